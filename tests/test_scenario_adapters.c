/* SPDX-License-Identifier: MIT */
/*
 * S33, adapters: 8 small weights and their derivations are loaded and freed every round, decode threads go on meanwhile,
 * graphs are captured anew every 100 rounds.
 *
 * Healthy: every lookup that hits has its own round's mark; live bytes, arenas, retired bytes after graphs_gone, host bytes
 * and events are the same at the end as early on; no launch is stale. 10,000 rounds; fewer under sanitizers.
 */
#include "config.h"

#include <malloc.h>
#include <string.h>

#include "tests/fixture.h"

#define MiB ((size_t)1 << 20)
#define WEIGHTS 8
#define DECODERS 2
#define RECAPTURE 100
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS 300
#else
#define ROUNDS 10000
#endif

struct weight {
  oc_devptr source;     /* atomic; 0: not loaded. Its address is the key */
  uint64_t round;       /* written before source */
};

struct engine {
  oc_backend *b;
  oc_model *m;
  oc_stream load_stream, streams[DECODERS];
  struct weight adapters[WEIGHTS];
  oc_devptr base, base_value;   /* one weight that stays */
  oc_kernel_key add;
  oc_tag_key act;
  bool stop, graph;
  uint64_t hits[DECODERS], misses[DECODERS];
  oc_pool_stats early;
  size_t early_host;
  uint64_t early_events;
};

static oc_pool_stats stats(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  return s;
}

/* ---- the loader ---- */

struct recipe {
  struct engine *e;
  uint32_t mark;
};
static oc_status derive(oc_build *b, void *arg, uint64_t *out) {
  struct recipe *r = arg;
  struct engine *e = r->e;
  oc_kernel fill;
  oc_status st = oc_build_alloc(b, 512, 0, out);
  if (!st) st = oc_build_on_stream(b, e->load_stream);
  if (!st) st = oc_opcache_kernel(oc_model_opcache(e->m), "test", "fill", &fill);
  if (!st) fx_launch_fill(e->b, fill, e->load_stream, *out, r->mark, 8);
  return st;
}

static void load_adapter(struct engine *e, int i, uint64_t round) {
  oc_devptr source;
  uint64_t value;
  struct recipe r = {e, (uint32_t)(round * WEIGHTS + (unsigned)i)};
  ck_ok(oc_pool_alloc_owned(oc_model_pool(e->m), "adapters", 1000 + (size_t)i * 700, 0, &source));
  ck_ok(oc_derived_get_or_build_ptr(oc_model_derived(e->m), OC_BF16, source, derive, &r, &value));
  e->adapters[i].round = round;
  __atomic_store_n(&e->adapters[i].source, source, __ATOMIC_RELEASE);
}

/* Freed under their readers. Either with one wait for all, or by the frees alone: each forgets its derivation, waits
   for guards and streams, and frees both. */
static void drop_adapters(struct engine *e, bool one_by_one) {
  oc_devptr sources[WEIGHTS];
  for (int i = 0; i < WEIGHTS; i++) sources[i] = __atomic_exchange_n(&e->adapters[i].source, 0, __ATOMIC_ACQ_REL);
  if (!one_by_one) ck_ok(oc_derived_invalidate_n(oc_model_derived(e->m), sources, WEIGHTS));
  for (int i = 0; i < WEIGHTS; i++) ck_ok(oc_pool_free(oc_model_pool(e->m), sources[i]));
}

/* The graph takes the base weight, an adapter's value, and scratch. */
static void capture(struct engine *e) {
  oc_devptr p;
  uint64_t v;
  ck_ok(oc_derived_settle(oc_model_derived(e->m)));
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(e->m), "graph", e->load_stream, 4096, &p));
  ck_ok(oc_capture_enter(e->m, e->load_stream));
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(e->m), "graph", e->load_stream, 4096, &p));
  ck_ok(oc_derived_get_ptr(oc_model_derived(e->m), OC_BF16, e->base, &v));
  ck_ok(oc_derived_get_ptr(oc_model_derived(e->m), OC_BF16, e->adapters[0].source, &v));
  ck_assert_uint_eq(*(const volatile uint32_t *)(uintptr_t)v, (uint32_t)(e->adapters[0].round * WEIGHTS));
  oc_capture_leave(e->m);
  e->graph = true;
}

static void recapture(struct engine *e) {
  if (e->graph) ck_assert_uint_ge(stats(e->m).retired_bytes, 512);   /* the adapter's value that the old graph had */
  ck_ok(oc_model_graphs_gone(e->m));
  ck_assert_uint_eq(stats(e->m).retired_bytes, 0);
  capture(e);
}

static void take_figures(struct engine *e) {
  ck_ok(oc_model_graphs_gone(e->m));
  e->graph = false;
  e->early = stats(e->m);
  e->early_host = mallinfo2().uordblks;
  e->early_events = fx_events(e->b);
}

static void run_rounds(struct engine *e) {
  for (uint64_t round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < WEIGHTS; i++) load_adapter(e, i, round);
    if (round % RECAPTURE == 0) recapture(e);
    drop_adapters(e, round % 20 == 0);
    if (round == 2 * RECAPTURE) take_figures(e);
  }
  __atomic_store_n(&e->stop, true, __ATOMIC_RELEASE);
}

/* ---- decode ---- */

/* Inside a guard. The source was published with its round; if the value is still there, it is that round's. */
static void decode_one(struct engine *e, unsigned d, int i) {
  oc_devptr source = __atomic_load_n(&e->adapters[i].source, __ATOMIC_ACQUIRE);
  uint64_t value;
  oc_kernel k;
  oc_devptr act;
  if (!source) return;
  oc_status st = oc_derived_get_ptr_on(oc_model_derived(e->m), OC_BF16, source, e->streams[d], &value);
  if (st == OC_MISS) {
    e->misses[d]++;
    return;
  }
  ck_ok(st);
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(e->m), &e->add, &k));
  ck_ok(oc_opcache_scratch_on_k(oc_model_opcache(e->m), &e->act, e->streams[d], 4096, &act));
  fx_launch_add(e->b, k, e->streams[d], act, 1);
  fx_launch_add(e->b, k, e->streams[d], value + 64 + 4 * d, 1);   /* uses the value: freed memory would fault */
  e->hits[d]++;
}

static void decode(struct engine *e, unsigned d) {
  for (unsigned n = 0; !__atomic_load_n(&e->stop, __ATOMIC_ACQUIRE); n++) {
    ck_ok(oc_model_enter(e->m));
    decode_one(e, d, (int)(n % WEIGHTS));
    oc_model_leave(e->m);
    if (n % 8 == 7) fx_sync(e->b, e->streams[d]);
  }
}

static void work(void *arg, unsigned i) {
  if (i == DECODERS) run_rounds(arg);
  else decode(arg, i);
}

START_TEST(s33_adapters) {
  if (fx_which() != FX_HOST) { fx_skip("reads device memory from the host"); return; }
  static struct engine e;
  e = (struct engine){.b = fx_open(&(struct fx_options){.recycle = true}), .add = OC_KERNEL_KEY("test", "add"), .act = OC_TAG_KEY("act")};
  e.m = fx_model_opt(e.b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 8 * MiB});
  fx_load(e.m, "test");
  e.load_stream = fx_stream(e.b);
  for (int i = 0; i < DECODERS; i++) {
    oc_devptr act;
    e.streams[i] = fx_stream(e.b);
    /* there before the early figures, however late its thread comes to run */
    ck_ok(oc_opcache_scratch_on_k(oc_model_opcache(e.m), &e.act, e.streams[i], 4096, &act));
  }
  ck_ok(oc_pool_alloc_owned(oc_model_pool(e.m), "weights", 4096, 0, &e.base));
  struct recipe r = {&e, 0xBA5E};
  ck_ok(oc_derived_get_or_build_ptr(oc_model_derived(e.m), OC_BF16, e.base, derive, &r, &e.base_value));
  fx_threads(DECODERS + 1, work, &e);
  ck_ok(oc_model_graphs_gone(e.m));
  oc_pool_stats s = stats(e.m);
  ck_assert_uint_eq(s.live_bytes, e.early.live_bytes);
  ck_assert_uint_eq(s.retired_bytes, 0);
  ck_assert_uint_eq(s.arena_bytes, e.early.arena_bytes);
  ck_assert_uint_le(s.host_metadata_bytes, e.early.host_metadata_bytes + 4096);
  ck_assert_uint_le(fx_events(e.b), e.early_events + 8);
  /* replaced tables are kept, at most 64 bytes an ever-new key (G30); recycled blocks are few keys */
  ck_assert_msg(mallinfo2().uordblks <= e.early_host + 256 * 1024, "%zu host bytes, %zu early on", (size_t)mallinfo2().uordblks,
                e.early_host);
  for (int i = 0; i < DECODERS; i++) ck_assert_uint_gt(e.hits[i], 0);
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(e.m)), 1);
  ck_ok(oc_pool_check(oc_model_pool(e.m)));
  uint64_t value;
  ck_ok(oc_derived_get_ptr(oc_model_derived(e.m), OC_BF16, e.base, &value));
  ck_assert_uint_eq(value, e.base_value);
  ck_ok(oc_model_destroy(e.m));
  ck_assert_uint_eq(fx_stale(e.b), 0);
  for (int i = 0; i < DECODERS; i++) fx_stream_free(e.b, e.streams[i]);
  fx_stream_free(e.b, e.load_stream);
  fx_close(e.b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("scenario_adapters");
  TCase *t = tcase_create("adapters");
  tcase_set_timeout(t, 120);
  suite_add_tcase(s, t);
  tcase_add_test(t, s33_adapters);
  return s;
}

int main(void) { return fx_run(suite()); }
