/* SPDX-License-Identifier: MIT */
/*
 * What comes in the middle of a call, at a place that the test chooses: while the driver is being asked (no lock is held
 * then, G19), another call of the same model is made, or the driver answers in an order that no device would.
 */
#include "config.h"

#include "tests/world.h"
#include "tests/wrap.h"

/* One call, made when the driver is asked `entry` with `arg` for the first time. */
struct between {
  const char *entry;
  oc_stream at;
  void (*call)(struct between *b);
  oc_model *m;
  oc_stream other;
  bool made;
  unsigned asked;      /* `entry` of `other`, afterwards */
};

static bool between(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct between *b = w->hook_arg;
  (void)answer;
  if (strcmp(entry, b->entry) != 0) return false;
  if (b->made) b->asked += (oc_stream)(uintptr_t)arg == b->other;
  if (b->made || (oc_stream)(uintptr_t)arg != b->at) return false;
  b->made = true;
  b->call(b);
  return false;
}

static void arm(struct wrap *w, struct between *b) {
  w->hook_arg = b;
  w->hook = between;
}

/* ---- streams ---- */

static void forget_other(struct between *b) {
  ck_ok(oc_model_forget_stream(b->m, b->other));
  b->asked = 0;
}

/* A stream forgotten while another one is waited for, or asked about, is not touched any more: its farewell stands for it. */
START_TEST(a_stream_forgotten_meanwhile_is_left_alone) {
  static const char *const entries[] = {"synchronize", "capturing"};
  struct wrap w;
  wrap_open(&w, NULL);
  oc_model *m = fx_model(w.outer);
  oc_stream s = fx_stream(w.outer);
  ck_ok(oc_model_use_stream(m, s));
  for (int i = 0; i < 2; i++) {
    struct between b = {.entry = entries[i], .at = s, .call = forget_other, .m = m, .other = fx_stream(w.outer)};
    ck_ok(oc_model_use_stream(m, b.other));
    arm(&w, &b);
    unsigned queries = wrap_calls(&w, "event_query");
    ck_ok(oc_model_graphs_gone(m));
    ck_assert(b.made);
    ck_assert_uint_eq(b.asked, 0);
    ck_assert_uint_gt(wrap_calls(&w, "event_query"), queries);
    fx_stream_free(w.outer, b.other);
  }
  w.hook = NULL;
  ck_ok(oc_model_destroy(m));
  fx_stream_free(w.outer, s);
  wrap_close(&w);
}
END_TEST

/* Two forgets of one stream, the second all within the first. */
START_TEST(a_stream_is_forgotten_twice_at_once) {
  struct wrap w;
  wrap_open(&w, NULL);
  struct between b = {.entry = "event_record", .call = forget_other, .m = fx_model(w.outer), .other = fx_stream(w.outer)};
  b.at = b.other;
  ck_ok(oc_model_use_stream(b.m, b.other));
  arm(&w, &b);
  ck_ok(oc_model_forget_stream(b.m, b.other));
  ck_assert(b.made);
  w.hook = NULL;
  unsigned calls = w.count;
  ck_ok(oc_model_forget_stream(b.m, b.other));   /* it is named no more */
  ck_assert_uint_eq(w.count, calls);
  fx_stream_free(w.outer, b.other);
  ck_ok(oc_model_destroy(b.m));
  ck_assert_uint_eq(wrap_calls(&w, "synchronize"), 0);
  wrap_close(&w);
}
END_TEST

/* One handle, forgotten while somebody waits for it, and named anew meanwhile: who comes and goes under the new name does not
   let the forget go. */
struct renamed {
  oc_model *m;
  oc_stream s;
  unsigned syncs;
  bool go;
};

static bool hold_the_first_wait(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct renamed *r = w->hook_arg;
  (void)arg;
  (void)answer;
  if (strcmp(entry, "synchronize") != 0 || __atomic_fetch_add(&r->syncs, 1, __ATOMIC_ACQ_REL)) return false;
  fx_until(__atomic_load_n(&r->go, __ATOMIC_ACQUIRE));
  return false;
}

static void wait_for_stream(void *arg) {
  ck_ok(oc_model_graphs_gone(((struct renamed *)arg)->m));
}

static void forget_stream(void *arg) {
  const struct renamed *r = arg;
  ck_ok(oc_model_forget_stream(r->m, r->s));
}

START_TEST(a_stream_named_anew_while_it_is_forgotten) {
  struct wrap w;
  struct side waiter, forgetter;
  wrap_open(&w, NULL);
  struct renamed r = {.m = fx_model(w.outer), .s = fx_stream(w.outer)};
  ck_ok(oc_model_use_stream(r.m, r.s));
  w.hook_arg = &r;
  w.hook = hold_the_first_wait;
  side_start(&waiter, wait_for_stream, &r);
  fx_until(__atomic_load_n(&r.syncs, __ATOMIC_ACQUIRE) == 1);
  side_start(&forgetter, forget_stream, &r);
  side_waits(&forgetter);
  ck_ok(oc_model_use_stream(r.m, r.s));
  ck_ok(oc_model_graphs_gone(r.m));
  ck_assert_uint_ge(r.syncs, 2);
  side_waits(&forgetter);
  __atomic_store_n(&r.go, true, __ATOMIC_RELEASE);
  side_join(&forgetter);
  side_join(&waiter);
  w.hook = NULL;
  ck_ok(oc_model_destroy(r.m));
  fx_stream_free(w.outer, r.s);
  wrap_close(&w);
}
END_TEST

/* ---- several failures: which one is said ---- */

struct answers {
  const char *entry;
  oc_status as[2];     /* the first answers to it; then the device's own */
  unsigned met;
};

static bool answer_in_turn(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct answers *a = w->hook_arg;
  (void)arg;
  if (strcmp(entry, a->entry) != 0 || a->met == 2) return false;
  *answer = a->as[a->met++];
  return true;
}

/* Of two streams: both are waited for, and the first failure is said; a lost context above it, and nothing after that. */
START_TEST(the_first_failed_wait_is_said_unless_the_context_went) {
  static const struct { oc_status as[2], said; unsigned syncs; } cases[] = {
    {{OC_E_IO, OC_E_BACKEND}, OC_E_IO, 2},
    {{OC_E_IO, OC_E_DEVICE_LOST}, OC_E_DEVICE_LOST, 2},
    {{OC_E_DEVICE_LOST, OC_E_IO}, OC_E_DEVICE_LOST, 1}};
  struct wrap w;
  wrap_open(&w, NULL);
  oc_model *m = fx_model(w.outer);
  oc_stream s[2] = {fx_stream(w.outer), fx_stream(w.outer)};
  for (int i = 0; i < 2; i++) ck_ok(oc_model_use_stream(m, s[i]));
  for (int i = 0; i < 3; i++) {
    struct answers a = {.entry = "synchronize", .as = {cases[i].as[0], cases[i].as[1]}};
    unsigned before = wrap_calls(&w, "synchronize");
    w.hook_arg = &a;
    w.hook = answer_in_turn;
    ck_status(oc_model_graphs_gone(m), cases[i].said);
    ck_assert_uint_eq(wrap_calls(&w, "synchronize") - before, cases[i].syncs);
  }
  w.hook = NULL;
  ck_ok(oc_model_destroy(m));
  for (int i = 0; i < 2; i++) fx_stream_free(w.outer, s[i]);
  wrap_close(&w);
}
END_TEST

static bool no_event_passes(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)w;
  (void)arg;
  *answer = OC_MISS;
  return strcmp(entry, "event_query") == 0;
}

static oc_model *with_two_farewells(struct wrap *w) {
  oc_model *m = fx_model(w->outer);
  w->hook = no_event_passes;
  for (int i = 0; i < 2; i++) {
    oc_stream s = fx_stream(w->outer);
    ck_ok(oc_model_use_stream(m, s));
    ck_ok(oc_model_forget_stream(m, s));
    fx_stream_free(w->outer, s);
  }
  return m;
}

/* The same of farewells; they are kept, and awaited the next time. */
START_TEST(farewells_that_cannot_be_awaited_are_kept) {
  struct wrap w;
  wrap_open(&w, NULL);
  oc_model *m = with_two_farewells(&w);
  struct answers a = {.entry = "event_query", .as = {OC_E_IO, OC_E_BACKEND}};
  w.hook_arg = &a;
  w.hook = answer_in_turn;
  ck_status(oc_model_graphs_gone(m), OC_E_IO);
  ck_assert_uint_eq(a.met, 2);
  unsigned queries = wrap_calls(&w, "event_query");
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_ge(wrap_calls(&w, "event_query"), queries + 2);
  ck_ok(oc_model_destroy(m));
  wrap_close(&w);   /* no event is left */
}
END_TEST

static bool event_queries_fail(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  *answer = *(const oc_status *)w->hook_arg;
  return strcmp(entry, "event_query") == 0;
}

static unsigned lines;
static void count_lines(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  (void)line;
  lines++;
}

/* Until teardown, which says so, and destroys their events all the same; those of a lost context it leaves. What they took of
   host memory goes in both (else the heap's end would be logged). */
START_TEST(g23_farewells_that_teardown_cannot_await) {
  static const oc_status cases[] = {OC_E_BACKEND, OC_E_DEVICE_LOST};
  for (int i = 0; i < 2; i++) {
    struct wrap w;
    oc_status as = cases[i];
    bool lost = as == OC_E_DEVICE_LOST;
    oc_report *r;
    wrap_open(&w, NULL);
    oc_model *m = with_two_farewells(&w);
    w.hook_arg = &as;
    w.hook = event_queries_fail;
    ck_status(oc_model_teardown(m, &r), lost ? OC_OK : OC_E_TEARDOWN);
    char *text = oc_report_text(r);
    ck_assert_msg(strstr(text, lost ? "context gone" : "streams") && strstr(text, "event_query"), "%s", text);
    oc_string_free(text);
    oc_report_free(r);
    ck_assert_uint_eq(wrap_calls(&w, "event_destroy"), lost ? 0 : 2);
    lines = 0;
    oc_set_log(count_lines, NULL);
    ck_status(oc_model_destroy(m), lost ? OC_OK : OC_E_TEARDOWN);
    oc_set_log(NULL, NULL);
    ck_assert_uint_eq(lines, 0);
    if (lost) wrap_close_dirty(&w);
    else wrap_close(&w);
  }
}
END_TEST

/* ---- captures ---- */

static void enter_capture(struct between *b) {
  ck_ok(oc_capture_enter(b->m, b->other));
}

/* A capture entered after graphs_gone has looked for one: its stream is not waited for, and what is retired stays. */
START_TEST(g28_a_capture_entered_while_graphs_go) {
  struct wrap w;
  wrap_open(&w, NULL);
  struct between b = {.entry = "capturing", .call = enter_capture, .m = fx_model(w.outer), .other = fx_stream(w.outer)};
  oc_pool *p = oc_model_pool(b.m);
  oc_pool_stats s = {.struct_size = sizeof s};
  oc_devptr block;
  b.at = b.other;
  ck_ok(oc_pool_alloc(p, 4096, 0, &block));
  ck_ok(oc_capture_enter(b.m, b.other));
  ck_ok(oc_pool_free(p, block));
  oc_capture_leave(b.m);
  arm(&w, &b);
  ck_status(oc_model_graphs_gone(b.m), OC_E_BUSY);
  ck_words("a capture was entered meanwhile");
  ck_assert(b.made);
  w.hook = NULL;
  ck_ok(oc_pool_get_stats(p, &s));
  ck_assert_uint_eq(s.retired_bytes, 4096);
  ck_assert_uint_eq(wrap_calls(&w, "synchronize"), 0);
  oc_capture_leave(b.m);
  ck_ok(oc_model_graphs_gone(b.m));
  ck_ok(oc_pool_get_stats(p, &s));
  ck_assert_uint_eq(s.retired_bytes, 0);
  ck_ok(oc_model_destroy(b.m));
  fx_stream_free(w.outer, b.other);
  wrap_close(&w);
}
END_TEST

/* ---- the end of a teardown ---- */

/* A forget that the teardown did not refuse, and that is still inside the driver when all else is released. */
struct late_forget {
  oc_model *m;
  oc_stream s;
  struct side forgetting, tearing;
  bool inside, go;
  oc_status st;
};

static bool hold_the_record(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct late_forget *l = w->hook_arg;
  (void)arg;
  (void)answer;
  if (strcmp(entry, "event_record") != 0) return false;
  __atomic_store_n(&l->inside, true, __ATOMIC_RELEASE);
  fx_until(__atomic_load_n(&l->go, __ATOMIC_ACQUIRE));
  return false;
}

static void forget_late(void *arg) {
  struct late_forget *l = arg;
  ck_ok(oc_model_forget_stream(l->m, l->s));
}

static oc_status start_to_forget(void *self, oc_backend *b) {
  struct late_forget *l = self;
  (void)b;
  side_start(&l->forgetting, forget_late, l);
  fx_until(__atomic_load_n(&l->inside, __ATOMIC_ACQUIRE));
  return OC_OK;
}

static void tear_down(void *arg) {
  struct late_forget *l = arg;
  l->st = oc_model_teardown(l->m, NULL);
}

static bool arenas_are_gone(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  return oc_pool_get_stats(oc_model_pool(m), &s) == OC_E_RELEASED;
}

START_TEST(g22_teardown_waits_for_a_forget_in_flight) {
  struct wrap w;
  wrap_open(&w, NULL);
  struct late_forget l = {.m = fx_model(w.outer), .s = fx_stream(w.outer)};
  const oc_resource_ops ops = {sizeof ops, "engine", start_to_forget};
  oc_devptr p;
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(l.m), "act", l.s, 4096, &p));
  ck_ok(oc_model_push(l.m, &ops, &l));
  w.hook_arg = &l;
  w.hook = hold_the_record;
  side_start(&l.tearing, tear_down, &l);
  fx_until(arenas_are_gone(l.m));
  side_waits(&l.tearing);
  ck_assert(!side_done(&l.forgetting));
  __atomic_store_n(&l.go, true, __ATOMIC_RELEASE);
  side_join(&l.forgetting);
  side_join(&l.tearing);
  ck_ok(l.st);
  ck_ok(oc_model_destroy(l.m));
  fx_stream_free(w.outer, l.s);
  wrap_close(&w);   /* the farewell's event went too */
}
END_TEST

/* G15: a free that waits for a build of something in its block goes on when teardown begins, and is waited for. */
struct late_free {
  struct world *w;
  oc_devptr p;
  oc_build *build;
  oc_status freed, torn;
};

static void open_build(void *arg) {
  struct late_free *l = arg;
  l->build = begin(l->w, OC_BF16, l->p + 16);
}

static void free_source(void *arg) {
  struct late_free *l = arg;
  l->freed = oc_pool_free(l->w->p, l->p);
}

static void tear_world_down(void *arg) {
  struct late_free *l = arg;
  l->torn = oc_model_teardown(l->w->m, NULL);
}

static bool stopped(oc_model *m) {
  oc_module h;
  return oc_model_module(m, "none", &h) == OC_E_RELEASED;
}

START_TEST(g15_a_free_that_waits_outlasts_the_start_of_teardown) {
  struct world w = world_open();
  struct late_free l = {.w = &w, .p = block_of(&w, 4096)};
  struct side opener, freer, tearer;
  side_start(&opener, open_build, &l);
  side_join(&opener);
  side_start(&freer, free_source, &l);
  side_waits(&freer);
  side_start(&tearer, tear_world_down, &l);
  fx_until(stopped(w.m));
  side_waits(&freer);
  side_waits(&tearer);
  oc_build_abort(l.build);
  side_join(&freer);
  side_join(&tearer);
  ck_ok(l.freed);
  ck_ok(l.torn);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("between", &tc);
  tcase_add_test(tc, a_stream_forgotten_meanwhile_is_left_alone);
  tcase_add_test(tc, a_stream_is_forgotten_twice_at_once);
  tcase_add_test(tc, a_stream_named_anew_while_it_is_forgotten);
  tcase_add_test(tc, the_first_failed_wait_is_said_unless_the_context_went);
  tcase_add_test(tc, farewells_that_cannot_be_awaited_are_kept);
  tcase_add_test(tc, g23_farewells_that_teardown_cannot_await);
  tcase_add_test(tc, g28_a_capture_entered_while_graphs_go);
  tcase_add_test(tc, g22_teardown_waits_for_a_forget_in_flight);
  tcase_add_test(tc, g15_a_free_that_waits_outlasts_the_start_of_teardown);
  return fx_run(s);
}
