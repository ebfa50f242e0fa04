/* SPDX-License-Identifier: MIT */
/* octool run --html: what the run keeps for its page, and the page. */
#include "config.h"

#include "tools/blockmap.h"
#include "tools/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* page: of a run; by the main thread. */
struct runpage {
  struct output out;
  struct sampler *sampler;
  json_t *names, *map;       /* of the last generation that was complete; NULL: none was */
};

/* ---- The map of the last generation ---- */

static void name_tensors(struct blocknames *b, const struct run *r, const struct generation *g)
{
  for (size_t i = 0; i < r->checkpoint.placed_count; i++) {
    const struct tensor *t = r->checkpoint.placed[i].tensor;

    oct_blocknames_add(b, t->name, t->bytes);
    oct_blocknames_place(b, i, g->source[i]);
  }
}

/* "h.0.mlp.weight as nvfp4-t", and of a pair "..., part 2". */
static void name_part(struct blocknames *b, const struct run *r, const struct job *j, unsigned part, uint64_t address)
{
  const char *tensor = r->checkpoint.placed[j->matrix->placed].tensor->name;
  const char *kind = oct_derivation_name(j->derivation);
  size_t room = strlen(tensor) + strlen(kind) + 32;
  char *name = malloc(room);

  if (!name) {
    b->failed = true;
    return;
  }
  snprintf(name, room, j->bytes[1] ? "%s as %s, part %u" : "%s as %s", tensor, kind, part + 1);
  oct_blocknames_add(b, name, j->bytes[part]);
  oct_blocknames_place(b, b->count - 1, address);
  free(name);
}

static void name_derived(struct blocknames *b, const struct run *r, const struct generation *g)
{
  for (size_t i = 0; i < r->checkpoint.job_count; i++) {
    const struct job *j = &r->checkpoint.jobs[i];
    uint64_t value[2] = {0, 0};

    if (oct_find(g, j, r->streams[0], value, NULL) != OC_OK)
      continue;
    name_part(b, r, j, 0, value[0]);
    if (j->bytes[1])
      name_part(b, r, j, 1, value[1]);
  }
}

static const char *map_title(const struct generation *g, char *text, size_t n)
{
  snprintf(text, n, "Generation %llu, before its teardown", (unsigned long long)g->number);
  return text;
}

bool oct_runpage_map(struct run *r, const struct generation *g, struct fault *why)
{
  struct runpage *p = r->page;
  struct blocknames names;
  char title[64];

  if (!p || !g->complete)
    return true;
  oct_blocknames_init(&names);
  name_tensors(&names, r, g);
  name_derived(&names, r, g);
  oct_blocknames_add(&names, "the input vector", r->checkpoint.most_columns * sizeof(float));
  oct_blocknames_place(&names, names.count - 1, g->x);
  oct_blocknames_sort(&names);
  json_decref(p->map);
  json_decref(p->names);
  p->map = oct_blockmap(oc_model_pool(g->model), map_title(g, title, sizeof title), &names, why);
  p->names = oct_blocknames_json(&names);
  oct_blocknames_free(&names);
  return p->map && (p->names || oct_fault(why, "no memory for the names of the blocks"));
}

/* ---- Its life ---- */

bool oct_runpage_open(struct run *r, struct fault *why)
{
  struct runpage *p;

  if (!r->options.html)
    return true;
  p = calloc(1, sizeof *p);
  if (!p)
    return oct_fault(why, "no memory for the page");
  r->page = p;
  if (!oct_output_open(&p->out, r->options.html, why))
    return false;
  p->sampler = oct_sampler_start(why);
  return p->sampler;
}

bool oct_runpage_is_stdout(const struct run *r)
{
  return r->page && oct_output_is_stdout(&r->page->out);
}

struct sampler *oct_runpage_sampler(const struct run *r)
{
  return r->page ? r->page->sampler : NULL;
}

static void drop(struct run *r)
{
  json_decref(r->page->map);
  json_decref(r->page->names);
  free(r->page);
  r->page = NULL;
}

void oct_runpage_abandon(struct run *r)
{
  if (!r->page)
    return;
  json_decref(oct_sampler_end(r->page->sampler));
  oct_output_abandon(&r->page->out);
  drop(r);
}

/* ---- The page ---- */

/* [least, most, count] of each bucket with something in it; ns. */
static json_t *latencies(const struct stopwatch *w)
{
  json_t *buckets = json_array();
  bool ok = buckets;

  for (size_t i = 0; ok && i < HISTOGRAM_BUCKETS; i++) {
    struct bucket b = oct_histogram_bucket(&w->durations, i);

    if (b.count > 0)
      ok = json_array_append_new(buckets, json_pack("[I, I, I]", (json_int_t)b.least, (json_int_t)b.most,
                                                    (json_int_t)b.count)) == 0;
  }
  return ok ? buckets : (json_decref(buckets), NULL);
}

static json_t *files(const struct run *r)
{
  json_t *array = json_array();
  bool ok = array;

  for (size_t i = 0; ok && i < r->options.file_count; i++)
    ok = json_array_append_new(array, oct_page_text(r->options.files[i])) == 0;
  return ok ? array : (json_decref(array), NULL);
}

static json_t *or_null(json_t *o)
{
  return o ? json_incref(o) : json_null();
}

/* The figures are those of --json. */
static json_t *document(struct run *r, bool clean)
{
  struct runpage *p = r->page;
  json_t *maps = p->map ? json_pack("[O]", p->map) : json_array(), *samples = oct_sampler_end(p->sampler);

  p->sampler = NULL;
  if (!samples) {
    json_decref(maps);
    return NULL;
  }
  return json_pack("{s:s, s:s, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "command", "run", "version", oc_version(),
                   "files", files(r), "clean", (int)clean, "figures", oct_outcome_json(r), "names", or_null(p->names),
                   "maps", maps, "samples", samples, "latencies", latencies(&r->totals.lookups), "report",
                   oct_page_lines(r->totals.report));
}

bool oct_runpage_write(struct run *r, bool clean, struct fault *why)
{
  bool ok;

  if (!r->page)
    return true;
  ok = oct_page_write(&r->page->out, document(r, clean), why);
  drop(r);
  return ok;
}
