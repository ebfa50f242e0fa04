/* SPDX-License-Identifier: MIT */
/*
 * Gates (G3, G4, G6, G19, G27, G28, G33): true exactly once, or n times, whatever the number of threads and whatever grows
 * meanwhile.
 */
#include "config.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "liboc/model.h"
#include "rcu/dense.h"
#include "rcu/mem.h"
#include "tests/collide.h"
#include "tests/world.h"

#define REACHES (1u << 20)

static oc_backend *b;
static oc_model *m;
static oc_opcache *c;

static void setup(void) {
  b = fx_open(NULL);
  m = fx_model(b);
  c = oc_model_opcache(m);
}

static void teardown(void) {
  oci_mem_set_fault(NULL, NULL);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}

static void add(unsigned *n) {
  __atomic_add_fetch(n, 1, __ATOMIC_RELAXED);
}

/* ---- one thread ---- */

START_TEST(g6_once_is_true_once) {
  oc_tag_key key = OC_TAG_KEY("a"), same = OC_TAG_KEY("a"), other = OC_TAG_KEY("b");
  ck_assert(oc_opcache_once(c, "a"));
  for (int i = 0; i < 3; i++) {
    ck_assert(!oc_opcache_once(c, "a"));
    ck_assert(!oc_opcache_once_k(c, &key));   /* key and string are one gate */
    ck_assert(!oc_opcache_once_k(c, &same));
  }
  ck_assert(oc_opcache_once_k(c, &other));
  ck_assert(!oc_opcache_once(c, "b"));
  oc_tag_key lengthy = OC_TAG_KEY("a tag that does not fit into the words which are compared first");
  ck_assert(oc_opcache_once_k(c, &lengthy) && !oc_opcache_once(c, lengthy.tag));
  ck_assert(oc_opcache_once(c, ""));
  ck_assert(!oc_opcache_once(c, ""));
}
END_TEST

START_TEST(g6_first_n_is_true_n_times) {
  oc_tag_key key = OC_TAG_KEY("a");
  for (unsigned i = 0; i < 10; i++) ck_assert_int_eq(i % 2 ? oc_opcache_first_n(c, "a", 5) : oc_opcache_first_n_k(c, &key, 5), i < 5);
  ck_assert(oc_opcache_first_n(c, "a", 11));    /* every reach has counted: this is the eleventh */
  ck_assert(!oc_opcache_first_n(c, "a", 11));
  ck_assert(!oc_opcache_first_n(c, "zero", 0));
  ck_assert(!oc_opcache_first_n(c, "zero", 1));   /* that one counted too */
  ck_assert(oc_opcache_first_n(c, "zero", 3));
}
END_TEST

/* Exact up to 2^20, clamped there, and for ever false afterwards. */
static unsigned trues(const char *key, uint32_t n, unsigned reaches) {
  unsigned t = 0;
  for (unsigned i = 0; i < reaches; i++) t += oc_opcache_first_n(c, key, n);
  return t;
}

START_TEST(g6_first_n_is_exact_up_to_its_bound_and_clamped) {
  ck_assert_uint_eq(trues("below", REACHES - 1, REACHES + 10), REACHES - 1);
  ck_assert_uint_eq(trues("at", REACHES, REACHES + 10), REACHES);
  ck_assert_uint_eq(trues("above", REACHES + 1, REACHES + 10), REACHES);
  ck_assert_uint_eq(trues("most", UINT32_MAX, REACHES + 10), REACHES);
  ck_assert_uint_eq(trues("most", UINT32_MAX, 3 * REACHES), 0);   /* never armed again */
  ck_assert_uint_eq(trues("below", UINT32_MAX, 10), 0);
}
END_TEST

START_TEST(g6_first_shape_is_true_once_a_shape) {
  oc_tag_key key = OC_TAG_KEY("gemm");
  static const uint32_t shapes[][3] = {{1, 2, 3}, {3, 2, 1}, {2, 1, 3}, {1, 3, 2}, {0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {1, 0, 0},
                                       {UINT32_MAX, UINT32_MAX, UINT32_MAX}, {UINT32_MAX, 0, 0}, {4096, 4096, 14336}};
  const size_t n = sizeof shapes / sizeof *shapes;
  for (size_t i = 0; i < n; i++)
    ck_assert(i % 2 ? oc_opcache_first_shape(c, "gemm", shapes[i][0], shapes[i][1], shapes[i][2])
                    : oc_opcache_first_shape_k(c, &key, shapes[i][0], shapes[i][1], shapes[i][2]));
  for (size_t i = 0; i < n; i++) {
    ck_assert(!oc_opcache_first_shape(c, "gemm", shapes[i][0], shapes[i][1], shapes[i][2]));
    ck_assert(!oc_opcache_first_shape_k(c, &key, shapes[i][0], shapes[i][1], shapes[i][2]));
    ck_assert(oc_opcache_first_shape(c, "norm", shapes[i][0], shapes[i][1], shapes[i][2]));
  }
}
END_TEST

/* Shapes whose hash is 0, which is no key, and so one hash: the first factor of its product is 0, or both make a multiple of
   2^64 + 1, whose halves are equal. */
START_TEST(g6_shapes_of_one_hash_are_as_many_shapes) {
  static const uint32_t shapes[][3] = {{0xA0761D64, 0x78BD642F, 2696202900}, {0xA0762054, 0x8921B52E, 2696202900},
                                       {0xA0766705, 0x9B84C62D, 2696202900}, {0xA0761D64, 0x78BD642F, 7}};
  for (size_t i = 0; i < 4; i++) {
    uint64_t mn = (uint64_t)shapes[i][0] << 32 | shapes[i][1];
    ck_assert_msg(oci_mix(mn ^ 0xA0761D6478BD642Fu, shapes[i][2] ^ 0xE7037ED1A0B428DBu) == 0, "the hash has changed");
    for (size_t seen = 0; seen < i; seen++)
      ck_assert(!oc_opcache_first_shape(c, "gemm", shapes[seen][0], shapes[seen][1], shapes[seen][2]));
    ck_assert(oc_opcache_first_shape(c, "gemm", shapes[i][0], shapes[i][1], shapes[i][2]));
  }
}
END_TEST

static void ask_first_shape(void *arg) {
  *(bool *)arg = oc_opcache_first_shape(c, "late", 1, 2, 3);
}

/* Teardown begins between the question whether the model lives and the one that is counted: false, and not used up. */
START_TEST(g6_a_shape_asked_for_as_teardown_begins) {
  struct side s;
  bool first = true;
  ck_assert(oc_opcache_once(c, "late"));   /* the tag is there */
  oci_tasks_lock();
  side_start(&s, ask_first_shape, &first);
  side_waits(&s);
  __atomic_store_n(&m->state, MODEL_STOPPING, __ATOMIC_RELAXED);
  oci_tasks_unlock();
  side_join(&s);
  ck_assert(!first);
  __atomic_store_n(&m->state, MODEL_LIVE, __ATOMIC_RELAXED);
  ck_assert(oc_opcache_first_shape(c, "late", 1, 2, 3));
}
END_TEST

START_TEST(the_three_have_key_spaces_of_their_own) {
  oc_devptr p;
  ck_ok(oc_opcache_scratch(c, "name", 256, &p));   /* and scratch too */
  ck_assert(oc_opcache_once(c, "name"));
  ck_assert(oc_opcache_first_n(c, "name", 1));
  ck_assert(oc_opcache_first_shape(c, "name", 0, 0, 0));
  ck_assert(!oc_opcache_once(c, "name"));
  ck_assert(!oc_opcache_first_n(c, "name", 1));
}
END_TEST

START_TEST(gates_are_the_models) {
  static oc_tag_key key = OC_TAG_KEY("per model");
  oc_model *other = fx_model(b);
  oc_opcache *o = oc_model_opcache(other);
  ck_assert(oc_opcache_once_k(c, &key));
  ck_assert(oc_opcache_once_k(o, &key));
  ck_assert(oc_opcache_first_shape_k(c, &key, 1, 1, 1) && oc_opcache_first_shape_k(o, &key, 1, 1, 1));
  ck_assert(oc_opcache_first_n_k(c, &key, 1) && oc_opcache_first_n_k(o, &key, 1));
  ck_assert(!oc_opcache_once_k(c, &key) && !oc_opcache_once_k(o, &key));
  ck_ok(oc_model_destroy(other));
}
END_TEST

START_TEST(g33_nonsense_is_false) {
  oc_tag_key key = OC_TAG_KEY("a"), none = OC_TAG_KEY(NULL);
  ck_assert(!oc_opcache_once(NULL, "a") && !oc_opcache_once(c, NULL));
  ck_assert(!oc_opcache_first_n(NULL, "a", 1) && !oc_opcache_first_n(c, NULL, 1));
  ck_assert(!oc_opcache_first_shape(NULL, "a", 1, 1, 1) && !oc_opcache_first_shape(c, NULL, 1, 1, 1));
  ck_assert(!oc_opcache_once_k(NULL, &key) && !oc_opcache_once_k(c, NULL) && !oc_opcache_once_k(c, &none));
  ck_assert(!oc_opcache_first_n_k(NULL, &key, 1) && !oc_opcache_first_n_k(c, NULL, 1) && !oc_opcache_first_n_k(c, &none, 1));
  ck_assert(!oc_opcache_first_shape_k(NULL, &key, 1, 1, 1) && !oc_opcache_first_shape_k(c, NULL, 1, 1, 1));
  ck_assert(!oc_opcache_first_shape_k(c, &none, 1, 1, 1));
  ck_assert(oc_opcache_once(c, "a") && oc_opcache_first_n(c, "a", 1) && oc_opcache_first_shape(c, "a", 1, 1, 1));
}
END_TEST

START_TEST(g4_a_reused_buffer_is_another_key) {
  char text[16] = "one";
  oc_tag_key key = OC_TAG_KEY(text), two = OC_TAG_KEY("two");
  ck_assert(oc_opcache_once(c, text));
  ck_assert(!oc_opcache_once_k(c, &key));
  strcpy(text, "two");
  ck_assert(oc_opcache_once(c, text));
  ck_assert(!oc_opcache_once_k(c, &two));
  ck_assert_uint_ne(two.id, key.id);
}
END_TEST

START_TEST(g4_keys_whose_hashes_collide_are_two_gates) {
  struct twins twins = make_twins(_i);
  const char *base = twins.a, *other = twins.b;
  oc_devptr p, q;
  oc_tag_key k = OC_TAG_KEY(base), o = OC_TAG_KEY(other);
  ck_assert(oc_opcache_once(c, base) && oc_opcache_once(c, other));
  ck_assert(!oc_opcache_once_k(c, &k) && !oc_opcache_once_k(c, &o));
  ck_assert_uint_ne(k.id, o.id);
  ck_ok(oc_opcache_scratch_k(c, &k, 256, &p));
  ck_ok(oc_opcache_scratch_k(c, &o, 256, &q));
  ck_assert_uint_ne(p, q);
}
END_TEST

#define MANY 70000

START_TEST(g4_past_65536_ids_keys_take_the_string_path) {
  static char names[MANY][12];
  static oc_tag_key keys[MANY];
  unsigned by_text = 0;
  for (unsigned i = 0; i < MANY; i++) {
    snprintf(names[i], sizeof names[i], "many%u", i);
    keys[i] = (oc_tag_key)OC_TAG_KEY(names[i]);
    ck_assert(oc_opcache_once_k(c, &keys[i]));
    by_text += keys[i].id > DENSE_IDS;
  }
  ck_assert_uint_ge(by_text, MANY - DENSE_IDS);
  for (unsigned i = 0; i < MANY; i++) {
    oc_tag_key wrong = {names[i], UINT32_MAX - i % 2};   /* an id that cannot be */
    ck_assert(!oc_opcache_once_k(c, &keys[i]) && !oc_opcache_once(c, names[i]) && !oc_opcache_once_k(c, &wrong));
  }
  oc_devptr p, q;
  ck_ok(oc_opcache_scratch_k(c, &keys[MANY - 1], 256, &p));
  ck_ok(oc_opcache_scratch(c, names[MANY - 1], 256, &q));
  ck_assert_uint_eq(p, q);
}
END_TEST

/* ---- many threads ---- */

#define THREADS 16
#define GATES 3000

static unsigned fired[GATES];   /* atomic */
static const char *const prefix = "gate";

static void fire_all(void *arg, unsigned t) {
  (void)arg;
  for (unsigned i = 0; i < GATES; i++) {
    char name[24];
    snprintf(name, sizeof name, "%s%u", prefix, i);
    oc_tag_key key = OC_TAG_KEY(name);
    if (t % 2 ? oc_opcache_once(c, name) : oc_opcache_once_k(c, &key)) add(&fired[i]);
  }
}

START_TEST(g6_once_is_true_for_one_of_many_threads) {
  fx_threads(THREADS, fire_all, NULL);
  for (unsigned i = 0; i < GATES; i++) ck_assert_uint_eq(fired[i], 1);
}
END_TEST

static unsigned arrived;   /* atomic */

/* The gates are there, and both threads come to each of them at the same moment. */
static void fire_together(void *arg, unsigned t) {
  (void)arg;
  (void)t;
  for (unsigned i = 0; i < GATES; i++) {
    char name[24];
    snprintf(name, sizeof name, "%s%u", prefix, i);
    add(&arrived);
    for (unsigned looks = 0; __atomic_load_n(&arrived, __ATOMIC_ACQUIRE) < 2 * (i + 1); looks++)
      if (looks > 1000) sched_yield();
    if (oc_opcache_once(c, name)) add(&fired[i]);
  }
}

START_TEST(g6_once_is_true_for_one_of_two_that_come_together) {
  memset(fired, 0, sizeof fired);
  arrived = 0;
  for (unsigned i = 0; i < GATES; i++) {
    char name[24];
    snprintf(name, sizeof name, "%s%u", prefix, i);
    ck_assert(oc_opcache_first_n(c, name, 1));
  }
  fx_threads(2, fire_together, NULL);
  for (unsigned i = 0; i < GATES; i++) ck_assert_uint_eq(fired[i], 1);
}
END_TEST

struct counted {
  uint32_t n;
  unsigned each, trues;   /* trues: atomic */
};

static void reach_all(void *arg, unsigned t) {
  struct counted *x = arg;
  oc_tag_key key = OC_TAG_KEY("counted");
  unsigned mine = 0;
  for (unsigned i = 0; i < x->each; i++)
    mine += (i + t) % 2 ? oc_opcache_first_n(c, "counted", x->n) : oc_opcache_first_n_k(c, &key, x->n);
  __atomic_add_fetch(&x->trues, mine, __ATOMIC_RELAXED);
}

START_TEST(g6_first_n_is_exact_under_threads) {
  struct counted x = {.n = 10007, .each = 2000};
  fx_threads(8, reach_all, &x);
  ck_assert_uint_eq(x.trues, 10007);
  x = (struct counted){.n = 100000, .each = 2000};   /* 16,000 reaches have been counted, 16,000 more come */
  fx_threads(8, reach_all, &x);
  ck_assert_uint_eq(x.trues, 16000);
  x = (struct counted){.n = UINT32_MAX, .each = REACHES / 4};
  fx_threads(8, reach_all, &x);
  ck_assert_uint_eq(x.trues, REACHES - 32000);
  x = (struct counted){.n = UINT32_MAX, .each = 1000};
  fx_threads(8, reach_all, &x);
  ck_assert_uint_eq(x.trues, 0);
}
END_TEST

#define SHAPES 100000

static void all_shapes(void *arg, unsigned t) {
  oc_tag_key key = OC_TAG_KEY("gemm");
  unsigned mine = 0;
  for (unsigned i = 0; i < SHAPES; i++) {
    unsigned n = t % 2 ? i : SHAPES - 1 - i;   /* from both ends, so that they meet in the middle of a growth */
    mine += t % 3 ? oc_opcache_first_shape(c, "gemm", n, n * 7, n % 13) : oc_opcache_first_shape_k(c, &key, n, n * 7, n % 13);
  }
  __atomic_add_fetch((unsigned *)arg, mine, __ATOMIC_RELAXED);
}

START_TEST(g6_first_shape_is_exact_while_it_grows) {
  unsigned sum = 0;
  fx_threads(4, all_shapes, &sum);
  ck_assert_uint_eq(sum, SHAPES);
  sum = 0;
  fx_threads(2, all_shapes, &sum);
  ck_assert_uint_eq(sum, 0);
}
END_TEST

/* ---- captures, guards, teardown ---- */

START_TEST(g28_gates_work_inside_a_capture_and_a_guard) {
  oc_tag_key key = OC_TAG_KEY("warm");
  ck_assert(oc_opcache_once(c, "warm"));
  ck_ok(oc_capture_enter(m, NULL));
  oc_guard_enter();
  uint64_t before = fx_all_calls(b);
  ck_assert(!oc_opcache_once_k(c, &key));
  ck_assert(oc_opcache_once(c, "new in a capture"));
  ck_assert(oc_opcache_first_n(c, "new in a capture", 1));
  ck_assert(oc_opcache_first_shape(c, "new in a capture", 1, 2, 3));
  ck_assert(!oc_opcache_first_shape(c, "new in a capture", 1, 2, 3));
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_guard_leave();
  oc_capture_leave(m);
  ck_assert(!oc_opcache_once(c, "new in a capture"));
}
END_TEST

START_TEST(g3_after_teardown_all_are_false) {
  static oc_tag_key key = OC_TAG_KEY("gone");
  ck_assert(oc_opcache_first_n_k(c, &key, 100));
  ck_ok(oc_model_teardown(m, NULL));
  ck_assert(!oc_opcache_first_n_k(c, &key, 100) && !oc_opcache_first_n(c, "gone", 100));
  ck_assert(!oc_opcache_once_k(c, &key) && !oc_opcache_once(c, "gone") && !oc_opcache_once(c, "new"));
  ck_assert(!oc_opcache_first_shape_k(c, &key, 1, 1, 1) && !oc_opcache_first_shape(c, "new", 1, 1, 1));
}
END_TEST

/* A teardown that refused has not moved any gate. */
START_TEST(g3_a_refused_teardown_leaves_gates_as_they_were) {
  oc_model *held = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 20});
  oc_opcache *h = oc_model_opcache(held);
  ck_assert(oc_opcache_once(h, "fired"));
  ck_ok(oc_model_retain(held, "holder"));
  ck_status(oc_model_teardown(held, NULL), OC_E_BUSY);
  ck_assert(!oc_opcache_once(h, "fired"));
  ck_assert(oc_opcache_once(h, "fresh"));
  ck_ok(oc_model_release_hold(held, "holder"));
  ck_ok(oc_model_destroy(held));
}
END_TEST

/* ---- host memory ---- */

static unsigned allocations, fail_at;

static bool fail_nth(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return ++allocations == fail_at;
}

static unsigned lines;
static char line[256];

static void keep_line(void *arg, int level, const char *text) {
  (void)arg;
  ck_assert_int_eq(level, 1);
  snprintf(line, sizeof line, "%s", text);
  lines++;
}

/* Fails allocation n, for every n: then the gate is false and says so in the log, and is true the next time. */
static unsigned fail_each(bool (*gate)(unsigned n)) {
  unsigned failed = 0;
  fail_at = 0;
  ck_assert(gate(0));   /* the process's own tables are made */
  for (unsigned n = 1;; n++) {
    allocations = lines = 0;
    fail_at = n;
    bool answer = gate(n);
    fail_at = 0;
    if (answer && allocations < n) return failed;
    if (answer) continue;   /* it did not matter */
    failed++;
    ck_assert_uint_eq(lines, 1);
    ck_assert_msg(strstr(line, "out of host memory") != NULL, "%s", line);
    ck_assert(gate(n));
    ck_assert(!gate(n));
  }
}

static const char *fresh(const char *what, unsigned n) {
  static char name[32];
  snprintf(name, sizeof name, "%s-%u", what, n);
  return name;
}

static bool once(unsigned n) { return oc_opcache_once(c, fresh("once", n)); }
static bool once_k(unsigned n) {
  oc_tag_key key = OC_TAG_KEY(fresh("once_k", n));
  return oc_opcache_once_k(c, &key);
}
static bool first_n(unsigned n) { return oc_opcache_first_n(c, fresh("first_n", n), 1); }
static bool shape(unsigned n) { return oc_opcache_first_shape(c, fresh("shape", n), 1, 2, 3); }

START_TEST(g33_without_host_memory_a_new_gate_is_false_and_logged) {
  oci_mem_set_fault(fail_nth, NULL);
  oc_set_log(keep_line, NULL);
  ck_assert_uint_ge(fail_each(once), 1);
  ck_assert_uint_ge(fail_each(once_k), 1);
  ck_assert_uint_ge(fail_each(first_n), 1);
  ck_assert_uint_ge(fail_each(shape), 2);
  oc_set_log(NULL, NULL);
}
END_TEST

START_TEST(g1_a_gate_that_is_there_allocates_nothing) {
  oc_tag_key key = OC_TAG_KEY("hit");
  ck_assert(oc_opcache_once_k(c, &key) && oc_opcache_first_shape(c, "hit", 1, 2, 3));
  oci_mem_set_fault(fail_nth, NULL);
  allocations = fail_at = 0;
  for (int i = 0; i < 1000; i++)
    ck_assert(!oc_opcache_once_k(c, &key) && !oc_opcache_once(c, "hit") && !oc_opcache_first_shape(c, "hit", 1, 2, 3) &&
              !oc_opcache_first_n(c, "hit", 0));
  ck_assert_uint_eq(allocations, 0);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {
    g6_once_is_true_once, g6_first_n_is_true_n_times, g6_first_n_is_exact_up_to_its_bound_and_clamped,
    g6_first_shape_is_true_once_a_shape, g6_shapes_of_one_hash_are_as_many_shapes,
    g6_a_shape_asked_for_as_teardown_begins, the_three_have_key_spaces_of_their_own, gates_are_the_models, g33_nonsense_is_false,
    g4_a_reused_buffer_is_another_key, g4_past_65536_ids_keys_take_the_string_path,
    g6_once_is_true_for_one_of_many_threads, g6_once_is_true_for_one_of_two_that_come_together,
    g6_first_n_is_exact_under_threads, g6_first_shape_is_exact_while_it_grows,
    g28_gates_work_inside_a_capture_and_a_guard, g3_after_teardown_all_are_false, g3_a_refused_teardown_leaves_gates_as_they_were,
    g33_without_host_memory_a_new_gate_is_false_and_logged, g1_a_gate_that_is_there_allocates_nothing,
  };
  Suite *s = suite_create("gates");
  TCase *t = tcase_create("gates");
  tcase_add_checked_fixture(t, setup, teardown);
  tcase_set_timeout(t, 30);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) tcase_add_test(t, tests[i]);
  tcase_add_loop_test(t, g4_keys_whose_hashes_collide_are_two_gates, 0, 2);
  suite_add_tcase(s, t);
  return fx_run(s);
}
