/* SPDX-License-Identifier: MIT */
/* Scratch and gates, by key and by string, of 32 tags, beside a mutex over a hash on the tag. */
#include "config.h"

#include "tools/baseline.h"
#include "tools/benchworld.h"
#include "tools/device.h"
#include "tools/floor.h"

#include <stdio.h>

/* What the mutex over a hash on the tag is known to take: DESIGN section 6 has it for u64, 14 and 77 ns. One string more to hash
   and to compare is half of what two cost, 8 and 7 ns; on two threads it is the lock that takes the time. */
enum { TAGS = 32, M = 16, N = 4096, K = 4096, MUTEX_NS = 22, MUTEX_2_NS = 77 };

struct tags {
  char text[TAGS][48], asked[TAGS][48];
  oc_tag_key key[TAGS];
  struct void_device device;
  oc_model *model;
  oc_opcache *cache;
  oc_stream stream;
  struct plain_names plain, light;
  struct order order;
  struct floor floor;
};

static const char *const purposes[] = {"attention output", "gemm workspace", "moe routing", "logits"};

static bool make_tag(struct tags *t, size_t i, struct fault *why)
{
  oc_devptr unused;
  oc_status st;

  snprintf(t->text[i], sizeof t->text[i], "%s %zu", purposes[i % 4], i);
  snprintf(t->asked[i], sizeof t->asked[i], "%s", t->text[i]);
  t->key[i] = (oc_tag_key)OC_TAG_KEY(t->text[i]);
  oct_plain_names_add(&t->plain, t->text[i], NULL, i + 1);
  oct_plain_names_add(&t->light, t->text[i], NULL, i + 1);
  (void)plain_tags_once(&t->plain, false, t->text[i]);
  (void)plain_tags_once(&t->light, true, t->text[i]);
  (void)oc_opcache_once_k(t->cache, &t->key[i]);
  (void)oc_opcache_first_shape_k(t->cache, &t->key[i], M, N, K);
  st = oc_opcache_scratch_k(t->cache, &t->key[i], 65536, &unused);
  if (st == OC_OK)
    st = oc_opcache_scratch_on_k(t->cache, &t->key[i], t->stream, 65536, &unused);
  return st == OC_OK || oct_liboc_fault(why, st, "scratch '%s'", t->text[i]);
}

static bool open_tags(struct tags *t, struct fault *why)
{
  *t = (struct tags){.stream = (oc_stream)(uintptr_t)0x1000};
  if (!oct_plain_names_make(&t->plain, TAGS) || !oct_plain_names_make(&t->light, TAGS))
    return oct_fault(why, "no memory for the baseline of %d tags", TAGS);
  if (!oct_order_make(&t->order, TAGS, why) || !oct_void_open(&t->device, why) ||
      !oct_void_model(&t->device, 0, &t->model, why) || !oct_floor_make(&t->floor, t->model, why))
    return false;
  t->cache = oc_model_opcache(t->model);
  for (size_t i = 0; i < TAGS; i++)
    if (!make_tag(t, i, why))
      return false;
  return true;
}

static void close_tags(struct tags *t)
{
  struct fault ignored;

  if (t->model)
    (void)!oc_model_destroy(t->model);
  if (t->device.backend)
    oct_void_close(&t->device, &ignored);
  oct_plain_names_free(&t->plain);
  oct_plain_names_free(&t->light);
  oct_order_free(&t->order);
  oct_floor_free(&t->floor);
}

/* ---- Laps ---- */

static void scratch(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++) {
    oc_devptr p = 0;

    (void)!oc_opcache_scratch_k(t->cache, &t->key[oct_order_at(&t->order, lap->at + i)], 4096, &p);
    oct_use(p);
  }
  lap->at += LAP;
}

static void scratch_on(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++) {
    oc_devptr p = 0;

    (void)!oc_opcache_scratch_on_k(t->cache, &t->key[oct_order_at(&t->order, lap->at + i)], t->stream, 4096, &p);
    oct_use(p);
  }
  lap->at += LAP;
}

static void scratch_text(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++) {
    oc_devptr p = 0;

    (void)!oc_opcache_scratch(t->cache, t->asked[oct_order_at(&t->order, lap->at + i)], 4096, &p);
    oct_use(p);
  }
  lap->at += LAP;
}

static void scratch_on_text(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++) {
    oc_devptr p = 0;

    (void)!oc_opcache_scratch_on(t->cache, t->asked[oct_order_at(&t->order, lap->at + i)], t->stream, 4096, &p);
    oct_use(p);
  }
  lap->at += LAP;
}

static void once(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++)
    oct_use(oc_opcache_once_k(t->cache, &t->key[oct_order_at(&t->order, lap->at + i)]));
  lap->at += LAP;
}

static void once_text(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++)
    oct_use(oc_opcache_once(t->cache, t->asked[oct_order_at(&t->order, lap->at + i)]));
  lap->at += LAP;
}

static void shape(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++)
    oct_use(oc_opcache_first_shape_k(t->cache, &t->key[oct_order_at(&t->order, lap->at + i)], M, N, K));
  lap->at += LAP;
}

static void shape_text(void *arg, struct lap *lap)
{
  struct tags *t = arg;

  for (size_t i = 0; i < LAP; i++)
    oct_use(oc_opcache_first_shape(t->cache, t->asked[oct_order_at(&t->order, lap->at + i)], M, N, K));
  lap->at += LAP;
}

static inline void either_scratch(struct tags *t, struct lap *lap, bool light)
{
  struct plain_names *table = light ? &t->light : &t->plain;

  for (size_t i = 0; i < LAP; i++)
    oct_use(plain_tags_get(table, light, t->asked[oct_order_at(&t->order, lap->at + i)]));
  lap->at += LAP;
}

static void plain_scratch(void *arg, struct lap *lap)
{
  either_scratch(arg, lap, false);
}

static void light_scratch(void *arg, struct lap *lap)
{
  either_scratch(arg, lap, true);
}

static inline void either_once(struct tags *t, struct lap *lap, bool light)
{
  struct plain_names *table = light ? &t->light : &t->plain;

  for (size_t i = 0; i < LAP; i++)
    oct_use(plain_tags_once(table, light, t->asked[oct_order_at(&t->order, lap->at + i)]));
  lap->at += LAP;
}

static void plain_once(void *arg, struct lap *lap)
{
  either_once(arg, lap, false);
}

static void light_once(void *arg, struct lap *lap)
{
  either_once(arg, lap, true);
}

typedef void lap_fn(void *arg, struct lap *lap);

static bool race(struct bench *b, struct tags *t, const struct hit *h, lap_fn *ours, lap_fn *theirs, lap_fn *theirs_light,
                 struct fault *why)
{
  const struct racer r[] = {{.what = h->name, .lap = ours, .arg = t},
                            {.what = "mutex, chained hash on the tag", .lap = theirs, .arg = t},
                            {.what = "light mutex, chained hash on the tag", .lap = theirs_light, .arg = t},
                            {.what = "floor", .lap = oct_floor_lap, .arg = &t->floor}};

  return oct_hit_rows(b, h, r, sizeof r / sizeof *r, why);
}

/* Where there is no budget the baseline is the same, which asks for less: no stream, no shape. */
static bool measure(struct bench *b, struct tags *t, struct fault *why)
{
  static const struct { struct hit hit; lap_fn *ours, *theirs, *light; } races[] = {
    {{"scratch_k", {5, 20}, {MUTEX_NS, MUTEX_2_NS}, 1, true}, scratch, plain_scratch, light_scratch},
    {{"scratch by string", {0, 0}, {MUTEX_NS, 0}, 1, true}, scratch_text, plain_scratch, light_scratch},
    {{"scratch_on_k", {0, 0}, {MUTEX_NS, 0}, 1, true}, scratch_on, plain_scratch, light_scratch},
    {{"scratch_on by string", {0, 0}, {MUTEX_NS, 0}, 1, true}, scratch_on_text, plain_scratch, light_scratch},
    {{"once_k", {5, 20}, {MUTEX_NS, MUTEX_2_NS}, 1, true}, once, plain_once, light_once},
    {{"once by string", {0, 0}, {MUTEX_NS, 0}, 1, true}, once_text, plain_once, light_once},
    {{"first_shape_k", {0, 0}, {MUTEX_NS, 0}, 1, true}, shape, plain_once, light_once},
    {{"first_shape by string", {0, 0}, {MUTEX_NS, 0}, 1, true}, shape_text, plain_once, light_once}};

  for (size_t i = 0; i < sizeof races / sizeof *races; i++)
    if (!race(b, t, &races[i].hit, races[i].ours, races[i].theirs, races[i].light, why))
      return false;
  return true;
}

bool oct_bench_tags(struct bench *b, struct fault *why)
{
  struct tags t;
  bool ok = open_tags(&t, why) && measure(b, &t, why);

  close_tags(&t);
  return ok;
}
