/* SPDX-License-Identifier: MIT */
/*
 * Hot swap (G2, G3, S1): threads dispatch through a shared pointer to the current model while it is replaced over and
 * over. What a lookup gave inside a guard must be of that model's generation and usable until the guard is left.
 * Healthy: every dispatch saw its own generation's marks, no launch was stale, the device is empty at the end.
 */
#include "config.h"

#include <string.h>

#include "tests/fixture.h"

#define MiB ((size_t)1 << 20)
#define SOURCE 0x7f0000u
#define READERS 4
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SWAPS 60
#else
#define SWAPS 400
#endif

/* ---- S1 ---- */

static oc_devptr derive(oc_model *m, uint64_t key) {
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, key, p, NULL));
  return p;
}

START_TEST(s1_the_next_model_misses_under_the_same_address) {
  oc_backend *b = fx_open(&(struct fx_options){.recycle = true});
  uint64_t got, key;
  oc_devptr weight, again, value;
  oc_kernel k;
  oc_model *a = fx_model(b);
  fx_load(a, "test");
  ck_ok(oc_pool_alloc(oc_model_pool(a), 4096, 0, &weight));
  key = weight;
  value = derive(a, key);
  ck_ok(oc_opcache_kernel(oc_model_opcache(a), "test", "add", &k));
  ck_assert(oc_opcache_once(oc_model_opcache(a), "tuned"));
  ck_ok(oc_model_destroy(a));
  oc_model *n = fx_model(b);
  ck_ok(oc_pool_alloc(oc_model_pool(n), 4096, 0, &again));
  ck_assert_uint_eq(again, weight);   /* the device does hand it out again, or this proves nothing */
  ck_status(oc_derived_get_ptr(oc_model_derived(n), OC_BF16, key, &got), OC_MISS);
  ck_status(oc_opcache_kernel(oc_model_opcache(n), "test", "add", &k), OC_E_NOT_FOUND);
  ck_assert(oc_opcache_once(oc_model_opcache(n), "tuned"));
  ck_assert_uint_eq(derive(n, key), value);
  ck_ok(oc_derived_get_ptr(oc_model_derived(n), OC_BF16, key, &got));
  ck_assert_uint_eq(got, value);
  ck_ok(oc_model_destroy(n));
  fx_close(b);
}
END_TEST

/* The next model at the very same host address, too: the old pointer's cache is nothing to it. */
START_TEST(s1_by_interned_key_too) {
  static oc_kernel_key kernel_key = OC_KERNEL_KEY("test", "add");
  static oc_tag_key tag = OC_TAG_KEY("act");
  oc_backend *b = fx_open(&(struct fx_options){.recycle = true});
  oc_kernel before = NULL, k;
  oc_devptr p;
  for (int i = 0; i < 20; i++) {
    oc_model *m = fx_model(b);
    ck_status(oc_opcache_kernel_k(oc_model_opcache(m), &kernel_key, &k), OC_E_NOT_FOUND);
    fx_load(m, "test");
    ck_ok(oc_opcache_kernel_k(oc_model_opcache(m), &kernel_key, &k));
    ck_ok(oc_opcache_scratch_k(oc_model_opcache(m), &tag, 4096, &p));
    if (before) ck_assert_ptr_ne(k, before);
    before = k;
    fx_launch_add(b, k, NULL, p, 1);
    ck_ok(oc_model_destroy(m));
  }
  ck_assert_uint_eq(fx_stale(b), 0);
  fx_close(b);
}
END_TEST

/* ---- swapping under load ---- */

struct engine {
  oc_backend *b;
  oc_model *current;
  oc_stream streams[READERS];
  oc_devptr value[2 * SWAPS + 1024];   /* by generation, offset by the first */
  uint64_t first;
  bool stop;
  unsigned dispatched[READERS];
  oc_kernel_key kernel;
  oc_tag_key tag;
};

static oc_devptr *value_of(struct engine *e, uint64_t generation) { return &e->value[generation - e->first]; }

static oc_model *load(struct engine *e) {
  oc_model *m = fx_model_opt(e->b, (oc_model_options){.arena_min = 2 * MiB});
  if (!e->first) e->first = oc_model_generation(m);
  fx_load(m, "test");
  oc_devptr p = derive(m, SOURCE);
  uint32_t mark = (uint32_t)oc_model_generation(m);
  fx_write(e->b, p, &mark, sizeof mark);
  __atomic_store_n(value_of(e, oc_model_generation(m)), p, __ATOMIC_RELEASE);
  for (int i = 0; i < READERS; i++) {   /* warm: the readers never miss */
    oc_kernel k;
    ck_ok(oc_opcache_kernel_k(oc_model_opcache(m), &e->kernel, &k));
    ck_ok(oc_opcache_scratch_on_k(oc_model_opcache(m), &e->tag, e->streams[i], 4096, &p));
  }
  return m;
}

/* True if the model is being torn down: from then on its calls say so (G3), while what they gave before stays good. */
static bool over(oc_status st) {
  if (st != OC_E_RELEASED) ck_ok(st);
  return st == OC_E_RELEASED;
}

/* Inside the model's guard; false: torn down meanwhile. */
static bool dispatch(struct engine *e, oc_model *m, unsigned i) {
  oc_kernel k;
  oc_devptr act, value;
  oc_stream s = e->streams[i];
  if (over(oc_opcache_kernel_k(oc_model_opcache(m), &e->kernel, &k))) return false;
  if (over(oc_opcache_scratch_on_k(oc_model_opcache(m), &e->tag, s, 4096, &act))) return false;
  if (over(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, SOURCE, s, &value))) return false;
  ck_assert_uint_eq(value, __atomic_load_n(value_of(e, oc_model_generation(m)), __ATOMIC_ACQUIRE));
  fx_launch_add(e->b, k, s, act, 1);
  if (fx_which() == FX_HOST)
    ck_assert_uint_eq(*(const volatile uint32_t *)(uintptr_t)value, (uint32_t)oc_model_generation(m));
  return true;
}

static void read_side(struct engine *e, unsigned i) {
  while (!__atomic_load_n(&e->stop, __ATOMIC_ACQUIRE)) {
    oc_guard_enter();
    oc_model *m = __atomic_load_n(&e->current, __ATOMIC_ACQUIRE);
    if (!over(oc_model_enter(m))) {
      e->dispatched[i] += dispatch(e, m, i);
      oc_model_leave(m);
    }
    oc_guard_leave();
  }
}

static void swap_side(struct engine *e) {
  for (int i = 0; i < SWAPS; i++) {
    oc_model *fresh = load(e);
    oc_model *old = __atomic_exchange_n(&e->current, fresh, __ATOMIC_ACQ_REL);
    if (i % 2) ck_ok(oc_model_teardown(old, NULL));
    ck_ok(oc_model_destroy(old));
  }
  __atomic_store_n(&e->stop, true, __ATOMIC_RELEASE);
}

static void work(void *arg, unsigned i) {
  struct engine *e = arg;
  if (i == READERS) swap_side(e);
  else read_side(e, i);
}

START_TEST(g2_no_stale_handle_in_a_hot_swap) {
  static struct engine e;
  e = (struct engine){.b = fx_open(&(struct fx_options){.recycle = true}), .kernel = OC_KERNEL_KEY("test", "add"),
                      .tag = OC_TAG_KEY("act")};
  for (int i = 0; i < READERS; i++) e.streams[i] = fx_stream(e.b);
  e.current = load(&e);
  fx_threads(READERS + 1, work, &e);
  for (int i = 0; i < READERS; i++) ck_assert_uint_gt(e.dispatched[i], 0);
  ck_ok(oc_model_destroy(e.current));
  for (int i = 0; i < READERS; i++) {
    fx_sync(e.b, e.streams[i]);
    fx_stream_free(e.b, e.streams[i]);
  }
  ck_assert_uint_eq(fx_stale(e.b), 0);
  fx_close(e.b);
}
END_TEST

/* One reader sits in its guard over the whole teardown: what it holds stays usable to the last moment. */
struct slow {
  struct engine *e;
  bool in;
};
static void one_swap(void *arg, unsigned i) {
  struct slow *s = arg;
  struct engine *e = s->e;
  if (i == 1) {
    fx_until(__atomic_load_n(&s->in, __ATOMIC_ACQUIRE));
    ck_ok(oc_model_destroy(e->current));
    return;
  }
  oc_model *m = e->current;
  oc_kernel k;
  oc_devptr act;
  ck_ok(oc_model_enter(m));
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(m), &e->kernel, &k));
  ck_ok(oc_opcache_scratch_on_k(oc_model_opcache(m), &e->tag, e->streams[0], 4096, &act));
  __atomic_store_n(&s->in, true, __ATOMIC_RELEASE);
  fx_until(oc_model_enter(m) == OC_E_RELEASED || (oc_model_leave(m), false));   /* teardown has begun */
  for (int n = 0; n < 20; n++) {
    fx_launch_add(e->b, k, e->streams[0], act, 1);
    fx_msleep(1);
  }
  oc_model_leave(m);
}
START_TEST(g2_a_guard_keeps_what_it_got_over_teardown) {
  static struct engine e;
  e = (struct engine){.b = fx_open(NULL), .kernel = OC_KERNEL_KEY("test", "add"), .tag = OC_TAG_KEY("act")};
  for (int i = 0; i < READERS; i++) e.streams[i] = fx_stream(e.b);
  e.current = load(&e);
  struct slow s = {.e = &e};
  fx_threads(2, one_swap, &s);
  ck_assert_uint_eq(fx_stale(e.b), 0);
  for (int i = 0; i < READERS; i++) fx_stream_free(e.b, e.streams[i]);
  fx_close(e.b);
}
END_TEST

/* ---- guards ---- */

static unsigned warnings;
static void count_warning(void *arg, int level, const char *line) {
  (void)arg;
  if (level <= 1 && strstr(line, "guard")) __atomic_add_fetch(&warnings, 1, __ATOMIC_RELAXED);
}

/* One leave too many must not make the next teardown hang, nor end a guard of somebody else. */
START_TEST(a_leave_without_an_enter_is_ignored_and_logged) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_set_log(count_warning, NULL);
  warnings = 0;
  oc_guard_leave();
  oc_guard_leave();
  oc_model_leave(m);
  ck_assert_uint_eq(warnings, 3);
  ck_ok(oc_model_enter(m));
  oc_guard_enter();
  oc_model_leave(m);
  ck_status(oc_model_teardown(m, NULL), OC_E_GUARDED);
  oc_model_leave(m);
  oc_model_leave(m);
  ck_assert_uint_eq(warnings, 4);
  oc_set_log(NULL, NULL);
  ck_ok(oc_thread_attach());
  ck_ok(oc_thread_attach());
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* A refused enter leaves no guard behind. */
START_TEST(a_refused_enter_is_no_guard) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *n = fx_model(b);
  ck_ok(oc_model_teardown(m, NULL));
  for (int i = 0; i < 3; i++) ck_status(oc_model_enter(m), OC_E_RELEASED);
  ck_status(oc_model_enter(NULL), OC_E_INVALID);
  ck_ok(oc_model_teardown(n, NULL));   /* GUARDED, if one were left */
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_destroy(n));
  fx_close(b);
}
END_TEST

static void die_in_guard(void *m, unsigned i) {
  (void)i;
  ck_ok(oc_model_enter(m));   /* and the thread ends */
}
START_TEST(a_thread_that_dies_in_its_guard_keeps_nobody) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  fx_threads(3, die_in_guard, m);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("swap");
  TCase *t = tcase_create("swap");
  tcase_set_timeout(t, 60);
  suite_add_tcase(s, t);
  tcase_add_test(t, s1_the_next_model_misses_under_the_same_address);
  tcase_add_test(t, s1_by_interned_key_too);
  tcase_add_test(t, g2_no_stale_handle_in_a_hot_swap);
  tcase_add_test(t, g2_a_guard_keeps_what_it_got_over_teardown);
  tcase_add_test(t, a_leave_without_an_enter_is_ignored_and_logged);
  tcase_add_test(t, a_refused_enter_is_no_guard);
  tcase_add_test(t, a_thread_that_dies_in_its_guard_keeps_nobody);
  return s;
}

int main(void) { return fx_run(suite()); }
