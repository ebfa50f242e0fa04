/* SPDX-License-Identifier: MIT */
/*
 * octool inspect: the tensors of files or of a list, and where the real pool puts them, on a device whose memory is
 * mapped and never touched. Beside it, what one driver allocation a tensor costs under the chunk rule: requests under
 * 2 MiB, rounded up to 512 B, share 2 MiB chunks and never span two; larger ones are rounded up to 2 MiB.
 */
#include "config.h"

#include "tools/blockmap.h"
#include "tools/command.h"
#include "tools/device.h"
#include "tools/number.h"
#include "tools/output.h"
#include "tools/safetensors.h"
#include "tools/shapes.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
  "usage: octool inspect [--list] [--json OUT] [--html OUT] FILE.safetensors... | --shapes TSV\n"
  "\n"
  "Counts tensors and bytes, and lays them out with the real pool, arenas reserved and on demand, every invariant\n"
  "checked. Beside it: what one driver allocation a tensor costs where requests under 2 MiB share 2 MiB chunks.\n"
  "\n"
  "  --shapes TSV    a tensor list instead of files: name, dtype, shape, bytes a line; - is standard input\n"
  "  --list          each tensor too\n"
  "  --json OUT      the figures as JSON; - is standard output, alone then\n"
  "  --html OUT      a page, one file, for a browser: the plans' arenas as a map of their blocks; - is standard output,\n"
  "                  alone then\n";

static const uint64_t chunk = 2 << 20;
/* A plan takes records on the host for each GiB of arenas, and address space. */
static const uint64_t most = UINT64_C(16) << 40;

struct options { char *shapes; const char *json, *html; bool list; char **files; size_t file_count; };

/* ---- What is to be laid out ---- */

struct subject { struct tensor_list tensors; size_t blocks; uint64_t bytes, reserve; double chunk_rule; };

static bool add_file(const char *path, struct tensor_list *into, struct fault *why)
{
  struct safetensors s;
  bool ok = true;

  if (!oct_safetensors_open(path, &s, why))
    return false;
  for (size_t i = 0; ok && i < s.tensors.count; i++) {
    const struct tensor *t = &s.tensors.at[i];
    struct tensor *copy = oct_tensors_add(into, t->name, t->type, t->shape, t->rank);

    ok = copy || oct_fault(why, "%s: no memory", path);
    if (copy)
      copy->bytes = t->bytes;
  }
  oct_safetensors_close(&s);
  return ok;
}

/* What one request costs, in bytes of the device. */
static double chunk_cost(uint64_t bytes)
{
  uint64_t rounded = (bytes + 511) / 512 * 512;

  if (rounded >= chunk)
    return (double)((bytes + chunk - 1) / chunk) * (double)chunk;   // NOLINT(bugprone-integer-division): whole chunks
  return (double)chunk / (double)(chunk / rounded);   // NOLINT(bugprone-integer-division): whole ones
}

static bool sum_up(struct subject *s, struct fault *why)
{
  if (!oct_tensors_bytes(&s->tensors, &s->bytes) || s->bytes > most)
    return oct_fault(why, "the tensors together have over 16 TiB, for which no plan is made");
  for (size_t i = 0; i < s->tensors.count; i++) {
    uint64_t n = s->tensors.at[i].bytes;

    if (n == 0)
      continue;
    s->blocks++;
    s->reserve += (n + 255) / 256 * 256;
    s->chunk_rule += chunk_cost(n);
  }
  return true;
}

static bool read_subject(const struct options *o, struct subject *s, struct fault *why)
{
  if (o->shapes)
    return oct_shapes_read(o->shapes, &s->tensors, why) && sum_up(s, why);
  for (size_t i = 0; i < o->file_count; i++)
    if (!add_file(o->files[i], &s->tensors, why))
      return false;
  return sum_up(s, why);
}

/* ---- The plan ---- */

/* names, map: NULL where no page is asked for. */
struct plan { const char *name; oc_pool_stats pool; struct blocknames *names; json_t *map; };

static void name_all(struct blocknames *names, const struct subject *s)
{
  for (size_t i = 0; i < s->tensors.count; i++)
    oct_blocknames_add(names, s->tensors.at[i].name, s->tensors.at[i].bytes);
}

/* A type's tensors are one owner: a map can tell them apart. */
static oc_status allocate(oc_pool *pool, const struct tensor *t, oc_devptr *block)
{
  char owner[32];

  snprintf(owner, sizeof owner, "%s weights", t->type->name);
  return oc_pool_alloc_owned(pool, owner, (size_t)t->bytes, 0, block);
}

static bool allocate_all(oc_pool *pool, const struct subject *s, struct blocknames *names, struct fault *why)
{
  struct quoted q;

  if (names)
    oct_blocknames_lift(names);
  for (size_t i = 0; i < s->tensors.count; i++) {
    const struct tensor *t = &s->tensors.at[i];
    oc_devptr block;
    oc_status st = t->bytes ? allocate(pool, t, &block) : OC_OK;

    if (st != OC_OK)
      return oct_liboc_fault(why, st, "tensor '%s'", oct_quote(&q, t->name));
    if (names && t->bytes)
      oct_blocknames_place(names, i, block);
  }
  return true;
}

static bool draw(oc_pool *pool, struct plan *p, struct fault *why)
{
  if (!p->names)
    return true;
  oct_blocknames_sort(p->names);
  p->map = oct_blockmap(pool, p->name, p->names, why);
  return p->map;
}

static bool check(oc_pool *pool, oc_pool_stats *out, struct fault *why)
{
  oc_status st = oc_pool_check(pool);

  if (st != OC_OK)
    return oct_liboc_fault(why, st, "checking the pool");
  out->struct_size = sizeof *out;
  st = oc_pool_get_stats(pool, out);
  return st == OC_OK || oct_liboc_fault(why, st, "the pool's figures");
}

static bool lay_out(const struct device *d, const struct subject *s, size_t reserve, struct plan *p, struct fault *why)
{
  oc_model_options options = {.struct_size = sizeof options, .flags = OC_MODEL_NO_MANAGED, .name = "octool inspect",
                              .reserve_bytes = reserve};
  oc_model *m;
  oc_status st = oc_model_create(d->backend, &options, &m);
  bool ok;

  if (st != OC_OK)
    return oct_liboc_fault(why, st, "creating the model");
  ok = allocate_all(oc_model_pool(m), s, p->names, why) && check(oc_model_pool(m), &p->pool, why) &&
       draw(oc_model_pool(m), p, why);
  st = oc_model_destroy(m);
  return st == OC_OK ? ok : oct_liboc_fault(why, st, "destroying the model");
}

enum { PLANS = 2 };

static bool plan_all(const struct subject *s, struct plan plans[PLANS], struct fault *why)
{
  /* On demand, the last arena may be mostly empty: 1 GiB at most; a dedicated one is rounded to 2 MiB. */
  uint64_t room = s->reserve + s->reserve / 4 + (UINT64_C(4) << 30);
  struct device d;
  bool ok;

  if (!oct_device_open(&d, "host", (size_t)room, why))
    return false;
  ok = lay_out(&d, s, (size_t)s->reserve, &plans[0], why) && lay_out(&d, s, 0, &plans[1], why);
  return ok ? oct_device_close(&d, why) : (oct_device_close(&d, &(struct fault){""}), false);
}

/* ---- Text ---- */

static double ratio(double part, uint64_t whole)
{
  return whole ? part / (double)whole : 1;
}

static uint64_t waste(const struct subject *s, const struct plan *p)
{
  return p->pool.arena_bytes - s->bytes;
}

static void print_types(const struct subject *s)
{
  for (size_t k = 0; k < oct_dtype_count(); k++) {
    const struct dtype *t = oct_dtype_at(k);
    uint64_t count = 0, bytes = 0;
    struct human h;

    for (size_t i = 0; i < s->tensors.count; i++)
      if (s->tensors.at[i].type == t) {
        count++;
        bytes += s->tensors.at[i].bytes;
      }
    if (count)
      printf("  %-8s %8" PRIu64 " tensors %11s\n", t->name, count, oct_human_bytes(&h, bytes));
  }
}

static void print_tensors(const struct subject *s)
{
  for (size_t i = 0; i < s->tensors.count; i++) {
    char shape[160];
    struct quoted q;

    printf("  %12" PRIu64 "  %-20s %s\n", s->tensors.at[i].bytes,
           oct_tensor_shape(&s->tensors.at[i], shape, sizeof shape), oct_quote(&q, s->tensors.at[i].name));
  }
}

static void print_subject(const struct subject *s, const struct plan plans[PLANS])
{
  struct human ha, hb;

  printf("%zu tensors, %" PRIu64 " bytes (%s)\n", s->tensors.count, s->bytes, oct_human_bytes(&ha, s->bytes));
  print_types(s);
  printf("\n%-20s %8s %12s %9s %12s\n", "memory plan", "arenas", "bytes", "of tensors", "waste");
  printf("%-20s %8s %12s %9.4fx %12s\n", "one request a tensor", "-",
         oct_human_bytes(&ha, (uint64_t)s->chunk_rule), ratio(s->chunk_rule, s->bytes),
         oct_human_bytes(&hb, (uint64_t)s->chunk_rule - s->bytes));
  for (size_t i = 0; i < PLANS; i++)
    printf("%-20s %8" PRIu64 " %12s %9.4fx %12s\n", plans[i].name, plans[i].pool.arenas,
           oct_human_bytes(&ha, plans[i].pool.arena_bytes), ratio((double)plans[i].pool.arena_bytes, s->bytes),
           oct_human_bytes(&hb, waste(s, &plans[i])));
  if (s->blocks)
    printf("\npool: %" PRIu64 " blocks, every invariant checked; %.1f bytes of host records a block\n",
           plans[0].pool.live_blocks, (double)plans[0].pool.host_metadata_bytes / (double)s->blocks);
}

/* ---- JSON ---- */

static json_t *plan_json(const struct subject *s, const struct plan *p)
{
  return json_pack("{s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "arenas", (json_int_t)p->pool.arenas, "arena_bytes",
                   (json_int_t)p->pool.arena_bytes, "ratio", ratio((double)p->pool.arena_bytes, s->bytes), "waste",
                   (json_int_t)waste(s, p), "live_blocks", (json_int_t)p->pool.live_blocks, "live_bytes",
                   (json_int_t)p->pool.live_bytes, "driver_allocs", (json_int_t)p->pool.driver_allocs,
                   "host_metadata_bytes", (json_int_t)p->pool.host_metadata_bytes);
}

static json_t *subject_json(const struct subject *s, const struct plan plans[PLANS])
{
  return json_pack("{s:I, s:I, s:{s:I, s:f}, s:o, s:o}", "tensors", (json_int_t)s->tensors.count, "bytes",
                   (json_int_t)s->bytes, "chunk_rule", "bytes", (json_int_t)s->chunk_rule, "ratio",
                   ratio(s->chunk_rule, s->bytes), "reserved", plan_json(s, &plans[0]), "on_demand",
                   plan_json(s, &plans[1]));
}

/* ---- The page ---- */

static json_t *page_json(const struct options *o, const struct subject *s, const struct plan plans[PLANS])
{
  json_t *files = json_array();
  bool ok = files;

  for (size_t i = 0; ok && i < o->file_count; i++)
    ok = json_array_append_new(files, oct_page_text(o->files[i])) == 0;
  if (ok && o->shapes)
    ok = json_array_append_new(files, oct_page_text(strcmp(o->shapes, "-") == 0 ? "(standard input)" : o->shapes)) == 0;
  if (!ok) {
    json_decref(files);
    return NULL;
  }
  return json_pack("{s:s, s:s, s:o, s:o, s:o, s:[O, O]}", "command", "inspect", "version", oc_version(), "files", files,
                   "figures", subject_json(s, plans), "names", oct_blocknames_json(plans[0].names), "maps", plans[0].map,
                   plans[1].map);
}

/* ---- The command ---- */

struct outputs { struct output json, html; };

static bool is_no_input(const char *path, const struct options *o, struct fault *why)
{
  return oct_output_is_no_input(path, o->files, o->file_count, why) &&
         oct_output_is_no_input(path, &o->shapes, o->shapes != NULL, why);
}

static bool open_outputs(struct outputs *out, const struct options *o, struct fault *why)
{
  return is_no_input(o->json, o, why) && is_no_input(o->html, o, why) && oct_output_open(&out->json, o->json, why) && oct_output_open(&out->html, o->html, why);
}

static bool write_all(const struct options *o, const struct subject *s, struct outputs *out,
                      const struct plan plans[PLANS], struct fault *why)
{
  bool ok;

  if (!oct_output_is_stdout(&out->json) && !oct_output_is_stdout(&out->html)) {
    print_subject(s, plans);
    if (o->list)
      print_tensors(s);
  }
  ok = oct_output_write(&out->json, out->json.file ? subject_json(s, plans) : NULL, why) && oct_flush_stdout(why);
  return ok && oct_page_write(&out->html, out->html.file ? page_json(o, s, plans) : NULL, why);
}

static bool inspect(const struct options *o, struct subject *s, struct fault *why)
{
  struct blocknames names;
  struct plan plans[PLANS] = {{.name = "pool, reserved"}, {.name = "pool, on demand"}};
  struct outputs out = {0};
  bool ok;

  oct_blocknames_init(&names);
  for (size_t i = 0; o->html && i < PLANS; i++)
    plans[i].names = &names;
  ok = read_subject(o, s, why);
  if (ok && o->html)
    name_all(&names, s);
  ok = ok && plan_all(s, plans, why) && open_outputs(&out, o, why) && write_all(o, s, &out, plans, why);
  oct_output_abandon(&out.json);
  oct_output_abandon(&out.html);
  for (size_t i = 0; i < PLANS; i++)
    json_decref(plans[i].map);
  oct_blocknames_free(&names);
  return ok;
}

int oct_inspect_main(int argc, char **argv)
{
  static const struct option options[] = {
    {"shapes", required_argument, NULL, 's'}, {"json", required_argument, NULL, 'j'},
    {"html", required_argument, NULL, 'm'}, {"list", no_argument, NULL, 'l'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  struct options o = {0};
  struct subject s = {0};
  struct fault why;
  bool ok;
  int c;

  while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1)
    switch (c) {
    case 's': o.shapes = optarg; break;
    case 'j': o.json = optarg; break;
    case 'm': o.html = optarg; break;
    case 'l': o.list = true; break;
    case 'h': return oct_help("inspect", help);
    default: return oct_bad_option("inspect", c, argv);
    }
  o.files = argv + optind;
  o.file_count = (size_t)(argc - optind);
  if (!o.shapes == (o.file_count == 0))
    return oct_usage("inspect", o.shapes ? "--shapes takes the place of files" : "no file is given");
  if (oct_both_stdout(o.json, o.html))
    return oct_usage("inspect", "--json - and --html - both want standard output");
  ok = inspect(&o, &s, &why);
  oct_tensors_free(&s.tensors);
  if (!ok)
    oct_complain("inspect", "%s", why.text);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
