/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/sampler.h"

#include "tools/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_INTERVAL_NS = 2 * 1000 * 1000 };

struct sample { uint64_t at_ns, arena, live, retired; unsigned models; };
struct mark { uint64_t at_ns; char text[64]; };

/* All under lock. */
struct sampler {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  bool ending;
  uint64_t start_ns, interval_ns;
  oc_model *models[SAMPLED_MODELS];
  struct sample samples[SAMPLES_MOST];
  size_t count;
  struct mark marks[SAMPLER_MARKS];
  size_t mark_count;
};

/* ---- Looking ---- */

static void thin_out(struct sampler *s)
{
  size_t kept = 0;

  for (size_t i = 0; i < s->count; i += 2)
    s->samples[kept++] = s->samples[i];
  s->count = kept;
  s->interval_ns *= 2;
}

static void look(struct sampler *s)
{
  struct sample now = {.at_ns = oct_now_ns() - s->start_ns};

  for (size_t i = 0; i < SAMPLED_MODELS; i++) {
    oc_pool_stats pool = {.struct_size = sizeof pool};

    /* One whose arenas are gone has nothing, and says OC_E_RELEASED. */
    if (!s->models[i] || oc_pool_get_stats(oc_model_pool(s->models[i]), &pool) != OC_OK)
      continue;
    now.arena += pool.arena_bytes;
    now.live += pool.live_bytes;
    now.retired += pool.retired_bytes;
    now.models++;
  }
  if (s->count == SAMPLES_MOST)
    thin_out(s);
  s->samples[s->count++] = now;
}

static void *watch(void *arg)
{
  struct sampler *s = arg;

  pthread_mutex_lock(&s->lock);
  while (!s->ending) {
    uint64_t at;
    struct timespec until;

    look(s);
    at = oct_now_ns() + s->interval_ns;
    until.tv_sec = (time_t)(at / 1000000000);
    until.tv_nsec = (long)(at % 1000000000);
    pthread_cond_timedwait(&s->ended, &s->lock, &until);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* ---- Models and marks ---- */

/* Puts `to` where `from` is, and looks before and after: so that what it changes shows where it was, however rarely the
   thread looks. */
static void replace(struct sampler *s, const oc_model *from, oc_model *to)
{
  if (!s)
    return;
  pthread_mutex_lock(&s->lock);
  look(s);
  for (size_t i = 0; i < SAMPLED_MODELS; i++)
    if (s->models[i] == from) {
      s->models[i] = to;
      break;
    }
  look(s);
  pthread_mutex_unlock(&s->lock);
}

void oct_sampler_add(struct sampler *s, oc_model *m)
{
  replace(s, NULL, m);
}

void oct_sampler_remove(struct sampler *s, oc_model *m)
{
  replace(s, m, NULL);
}

void oct_sampler_mark(struct sampler *s, const char *text)
{
  if (!s)
    return;
  pthread_mutex_lock(&s->lock);
  look(s);
  if (s->mark_count < SAMPLER_MARKS) {
    struct mark *m = &s->marks[s->mark_count++];

    m->at_ns = s->samples[s->count - 1].at_ns;
    strncpy(m->text, text, sizeof m->text - 1);
  }
  pthread_mutex_unlock(&s->lock);
}

/* ---- Life ---- */

static bool launch(struct sampler *s)
{
  pthread_condattr_t monotonic;

  pthread_mutex_init(&s->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&s->ended, &monotonic);
  pthread_condattr_destroy(&monotonic);
  return pthread_create(&s->thread, NULL, watch, s) == 0;
}

struct sampler *oct_sampler_start(struct fault *why)
{
  struct sampler *s = calloc(1, sizeof *s);

  if (s) {
    s->start_ns = oct_now_ns();
    s->interval_ns = FIRST_INTERVAL_NS;
    if (launch(s))
      return s;
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
  }
  oct_fault_write(why, "no memory, or no thread, for a look at the memory over time");
  return NULL;
}

static double ms(uint64_t ns)
{
  uint64_t whole_us = ns / 1000;

  return (double)whole_us / 1000;
}

static bool append(json_t *array, json_t *item)
{
  return json_array_append_new(array, item) == 0;
}

static json_t *series(const struct sampler *s)
{
  json_t *rows = json_array(), *marks = json_array();
  bool ok = rows && marks;

  for (size_t i = 0; ok && i < s->count; i++) {
    const struct sample *x = &s->samples[i];

    ok = append(rows, json_pack("[f, I, I, I, i]", ms(x->at_ns), (json_int_t)x->arena, (json_int_t)x->live,
                                (json_int_t)x->retired, (int)x->models));
  }
  for (size_t i = 0; ok && i < s->mark_count; i++)
    ok = append(marks, json_pack("{s:f, s:o}", "ms", ms(s->marks[i].at_ns), "text", oct_page_text(s->marks[i].text)));
  if (!ok) {
    json_decref(rows);
    json_decref(marks);
    return NULL;
  }
  return json_pack("{s:f, s:[s, s, s, s, s], s:o, s:o}", "interval_ms", ms(s->interval_ns), "columns", "ms", "arena",
                   "live", "retired", "models", "rows", rows, "marks", marks);
}

json_t *oct_sampler_end(struct sampler *s)
{
  json_t *json;

  if (!s)
    return NULL;
  pthread_mutex_lock(&s->lock);
  s->ending = true;
  pthread_cond_signal(&s->ended);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  look(s);
  json = series(s);
  pthread_cond_destroy(&s->ended);
  pthread_mutex_destroy(&s->lock);
  free(s);
  return json;
}
