/* SPDX-License-Identifier: MIT */
/* Derived weights: lookups among 20,000 and 300,000 keys, beside a mutex over a hash on u64. */
#include "config.h"

#include "tools/baseline.h"
#include "tools/benchworld.h"
#include "tools/clock.h"
#include "tools/device.h"
#include "tools/floor.h"
#include "tools/growth.h"

/* Keys as device addresses are: one behind the other, 256 bytes apart at least. */
static const uint64_t first_key = UINT64_C(0x7f2000000000), stride = 4352;

struct derived {
  size_t n;
  struct void_device device;
  oc_model *model;
  oc_derived *derived;
  struct plain_map plain, light;
  struct lfht *lfht;
  struct ckht *ck;
  struct order order;
  struct floor floor;
};

static uint64_t key_of(uint64_t i)
{
  return first_key + i * stride;
}

/* All of one table before the other, so that its nodes lie side by side. */
static bool fill_plain(struct plain_map *p, size_t n, struct fault *why)
{
  for (size_t i = 0; i < n; i++)
    if (!oct_plain_map_add(p, key_of(i), i + 1))
      return oct_fault(why, "no memory for key %zu of the baseline", i);
  return true;
}

static bool fill(struct derived *d, struct fault *why)
{
  for (size_t i = 0; i < d->n; i++) {
    oc_status st = oc_derived_insert_ptr(d->derived, OC_BF16, key_of(i), key_of(i), NULL);

    if (st != OC_OK)
      return oct_liboc_fault(why, st, "derived value %zu", i);
    oct_lfht_add(d->lfht, key_of(i), i + 1);
    if (d->ck && !oct_ckht_add(d->ck, key_of(i), i + 1))
      return oct_fault(why, "ck_ht took only %zu of %zu keys", i, d->n);
  }
  return fill_plain(&d->plain, d->n, why) && fill_plain(&d->light, d->n, why);
}

static bool fill_pairs(struct derived *d, struct fault *why)
{
  for (size_t i = 0; i < d->n; i++) {
    const uint64_t pair[2] = {key_of(i), key_of(i)};
    oc_status st = oc_derived_insert_pair(d->derived, OC_ROWWISE_FP8, key_of(i), pair, NULL);

    if (st != OC_OK)
      return oct_liboc_fault(why, st, "derived pair %zu", i);
  }
  return true;
}

static bool open_derived(struct derived *d, size_t n, struct fault *why)
{
  *d = (struct derived){.n = n, .lfht = oct_lfht_make(n), .ck = oct_ckht_make(n)};
  if (!oct_plain_map_make(&d->plain, n) || !oct_plain_map_make(&d->light, n) || !d->lfht)
    return oct_fault(why, "no memory for the baselines of %zu keys", n);
  if (!oct_order_make(&d->order, n, why) || !oct_void_open(&d->device, why) ||
      !oct_void_model(&d->device, 0, &d->model, why))
    return false;
  d->derived = oc_model_derived(d->model);
  return oct_floor_make(&d->floor, d->model, why) && fill(d, why);
}

static void close_derived(struct derived *d)
{
  struct fault ignored;

  if (d->model)
    (void)!oc_model_destroy(d->model);
  if (d->device.backend)
    oct_void_close(&d->device, &ignored);
  if (d->lfht)
    oct_lfht_free(d->lfht);
  if (d->ck)
    oct_ckht_free(d->ck);
  oct_plain_map_free(&d->plain);
  oct_plain_map_free(&d->light);
  oct_order_free(&d->order);
  oct_floor_free(&d->floor);
}

/* ---- Laps ---- */

static void get_ptr(void *arg, struct lap *lap)
{
  struct derived *d = arg;

  for (size_t i = 0; i < LAP; i++) {
    uint64_t value = 0;

    (void)!oc_derived_get_ptr(d->derived, OC_BF16, key_of(oct_order_at(&d->order, lap->at + i)), &value);
    oct_use(value);
  }
  lap->at += LAP;
}

/* Each thread on a stream of its own, as an engine's are. */
static oc_stream stream_of(const struct lap *lap)
{
  return (oc_stream)(uintptr_t)(0x1000 + 0x100 * lap->thread);
}

static void get_pair(void *arg, struct lap *lap)
{
  struct derived *d = arg;

  for (size_t i = 0; i < LAP; i++) {
    uint64_t pair[2] = {0, 0};

    (void)!oc_derived_get_pair(d->derived, OC_ROWWISE_FP8, key_of(oct_order_at(&d->order, lap->at + i)), pair);
    oct_use(pair[0]);
    oct_use(pair[1]);
  }
  lap->at += LAP;
}

static void get_ptr_on(void *arg, struct lap *lap)
{
  struct derived *d = arg;
  oc_stream s = stream_of(lap);

  for (size_t i = 0; i < LAP; i++) {
    uint64_t value = 0;

    (void)!oc_derived_get_ptr_on(d->derived, OC_BF16, key_of(oct_order_at(&d->order, lap->at + i)), s, &value);
    oct_use(value);
  }
  lap->at += LAP;
}

static void get_pair_on(void *arg, struct lap *lap)
{
  struct derived *d = arg;
  oc_stream s = stream_of(lap);

  for (size_t i = 0; i < LAP; i++) {
    uint64_t pair[2] = {0, 0};

    (void)!oc_derived_get_pair_on(d->derived, OC_ROWWISE_FP8, key_of(oct_order_at(&d->order, lap->at + i)), s, pair);
    oct_use(pair[0]);
    oct_use(pair[1]);
  }
  lap->at += LAP;
}

static inline void either_get(struct derived *d, struct lap *lap, bool light)
{
  struct plain_map *table = light ? &d->light : &d->plain;

  for (size_t i = 0; i < LAP; i++)
    oct_use(plain_map_get(table, light, key_of(oct_order_at(&d->order, lap->at + i))));
  lap->at += LAP;
}

static void plain_get(void *arg, struct lap *lap)
{
  either_get(arg, lap, false);
}

static void light_get(void *arg, struct lap *lap)
{
  either_get(arg, lap, true);
}

static inline void either_get_pair(struct derived *d, struct lap *lap, bool light)
{
  struct plain_map *table = light ? &d->light : &d->plain;

  for (size_t i = 0; i < LAP; i++) {
    uint64_t pair[2];

    plain_map_get_pair(table, light, key_of(oct_order_at(&d->order, lap->at + i)), pair);
    oct_use(pair[0]);
    oct_use(pair[1]);
  }
  lap->at += LAP;
}

static void plain_get_pair(void *arg, struct lap *lap)
{
  either_get_pair(arg, lap, false);
}

static void light_get_pair(void *arg, struct lap *lap)
{
  either_get_pair(arg, lap, true);
}

static struct key_walk walk_of(const struct derived *d)
{
  return (struct key_walk){first_key, stride, d->order.at, d->order.mask};
}

static void lfht_get(void *arg, struct lap *lap)
{
  struct derived *d = arg;
  struct key_walk w = walk_of(d);

  oct_lfht_walk(d->lfht, &w, lap->at, LAP);
  lap->at += LAP;
}

static void ck_get(void *arg, struct lap *lap)
{
  struct derived *d = arg;
  struct key_walk w = walk_of(d);

  oct_ckht_walk(d->ck, &w, lap->at, LAP);
  lap->at += LAP;
}

static const char plain_name[] = "mutex, chained hash on u64", light_name[] = "light mutex, chained hash on u64";

static bool measure(struct bench *b, struct derived *d, const struct hit *h, struct fault *why)
{
  struct racer r[RACERS] = {{.what = h->name, .lap = get_ptr, .arg = d},
                            {.what = plain_name, .lap = plain_get, .arg = d},
                            {.what = light_name, .lap = light_get, .arg = d},
                            {.what = "cds_lfht", .lap = lfht_get, .arg = d}};
  size_t count = 4;

  if (d->ck)
    r[count++] = (struct racer){.what = "ck_ht", .lap = ck_get, .arg = d};
  r[count++] = (struct racer){.what = "floor", .lap = oct_floor_lap, .arg = &d->floor};
  return oct_hit_rows(b, h, r, count, why);
}

/* The other look-ups. Section 6 asks only that two threads be no slower. The mutex asks for no stream. */
static bool measure_others(struct bench *b, struct derived *d, struct fault *why)
{
  static const struct hit pair = {"get_pair of 20,000 keys", {0, 0}, {14, 0}, 1, true},
                          ptr_on = {"get_ptr_on of 20,000 keys", {0, 0}, {14, 0}, 1, true},
                          pair_on = {"get_pair_on of 20,000 keys", {0, 0}, {14, 0}, 1, true};
  const struct racer plain = {.what = plain_name, .lap = plain_get, .arg = d},
                     light = {.what = light_name, .lap = light_get, .arg = d},
                     plain_pair = {.what = plain_name, .lap = plain_get_pair, .arg = d},
                     light_pair = {.what = light_name, .lap = light_get_pair, .arg = d},
                     floor = {.what = "floor", .lap = oct_floor_lap, .arg = &d->floor};
  const struct racer of_pair[] = {{.what = pair.name, .lap = get_pair, .arg = d}, plain_pair, light_pair, floor};
  const struct racer of_ptr_on[] = {{.what = ptr_on.name, .lap = get_ptr_on, .arg = d}, plain, light, floor};
  const struct racer of_pair_on[] = {{.what = pair_on.name, .lap = get_pair_on, .arg = d}, plain_pair, light_pair, floor};

  return oct_hit_rows(b, &pair, of_pair, 4, why) && oct_hit_rows(b, &ptr_on, of_ptr_on, 4, why) &&
         oct_hit_rows(b, &pair_on, of_pair_on, 4, why);
}

static bool bench_some(struct bench *b, struct fault *why)
{
  static const struct hit some = {"get_ptr of 20,000 keys", {2.5, 12}, {14, 77}, 1, true};
  struct derived d;
  bool ok = open_derived(&d, b->quick ? 2000 : 20000, why) && measure(b, &d, &some, why) && fill_pairs(&d, why) &&
            measure_others(b, &d, why);

  close_derived(&d);
  return ok;
}

static bool bench_many(struct bench *b, struct fault *why)
{
  static const struct hit many = {"get_ptr of 300,000 keys", {4, 15}, {63, 260}, 12, true};
  struct derived d;
  bool ok = open_derived(&d, b->quick ? 5000 : 300000, why) && measure(b, &d, &many, why);

  close_derived(&d);
  return ok;
}

bool oct_bench_derived(struct bench *b, struct fault *why)
{
  return bench_some(b, why) && bench_many(b, why);
}

/* ---- As the keys grow in number ---- */

static bool insert_time(struct derived *d, double *ns, struct fault *why)
{
  oc_model *m;
  uint64_t began;
  oc_status st = OC_OK;

  if (!oct_void_model(&d->device, 0, &m, why))
    return false;
  began = oct_now_ns();
  for (size_t i = 0; st == OC_OK && i < d->n; i++)
    st = oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, key_of(i), key_of(i), NULL);
  *ns = (double)(oct_now_ns() - began) / (double)d->n;
  (void)!oc_model_destroy(m);
  return st == OC_OK || oct_liboc_fault(why, st, "inserting %zu keys", d->n);
}

static bool point(struct bench *b, size_t n, struct curve *c, struct fault *why)
{
  struct derived d;
  double ns;
  bool ok = open_derived(&d, n, why) && insert_time(&d, &ns, why);
  const struct racer r[] = {{.what = "get_ptr", .lap = get_ptr, .arg = &d, .threads = 1},
                            {.what = "mutex", .lap = plain_get, .arg = &d, .threads = 1},
                            {.what = "cds_lfht", .lap = lfht_get, .arg = &d, .threads = 1}};
  struct times t[3];

  ok = ok && oct_race(b, r, 3, n < 100000 ? 4 : 16, t, why);
  close_derived(&d);
  if (ok)
    oct_curve_point(c, (double)n, (const double[]){t[0].median, t[1].median, t[2].median, ns});
  return ok;
}

bool oct_grow_derived(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "get_ptr by derived keys", "keys", "ns");

  oct_curve_lines(c, "get_ptr", "mutex + hash", "cds_lfht", "insert_ptr", NULL);
  for (size_t n = 100; n <= (b->quick ? 100u : 1000000u); n *= 10)
    if (!point(b, n, c, why))
      return false;
  return true;
}
