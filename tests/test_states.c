/* SPDX-License-Identifier: MIT */
/*
 * A call that finds its model alive without a lock, and torn down once it has the lock under which it becomes a task. The
 * test holds that lock, lets the call get as far, and changes the state as teardown does.
 */
#include "config.h"

#include "liboc/model.h"
#include "tests/world.h"

#define ANY 0x7f0000u

struct late {
  struct world w;
  oc_stream s;
  oc_devptr block;
  uint64_t out[2];
  oc_status st;
  char words[256];
};

static void set_state(struct late *t, enum model_state state) { __atomic_store_n(&t->w.m->state, state, __ATOMIC_RELEASE); }

/* Runs it on another thread, up to the lock; then the model's state is that. */
static void between(struct late *t, void (*call)(void *late), enum model_state state) {
  struct side side;
  oci_tasks_lock();
  side_start(&side, call, t);
  side_waits(&side);
  set_state(t, state);
  oci_tasks_unlock();
  side_join(&side);
  oci_tasks_lock();
  set_state(t, MODEL_LIVE);
  oci_tasks_unlock();
}

static void done(struct late *t, oc_status st) {
  t->st = st;
  snprintf(t->words, sizeof t->words, "%s", oc_last_error());
}

static struct late open_late(void) {
  struct late t = {.w = world_open(), .out = {77, 78}};
  t.s = fx_stream(t.w.b);
  t.block = block_of(&t.w, 4096);
  return t;
}

static void close_late(struct late *t) {
  ck_ok(oc_model_forget_stream(t->w.m, t->s));
  fx_stream_free(t->w.b, t->s);
  world_close(&t->w);
}

static void refused(struct late *t, const char *call) {
  ck_assert_msg(t->st == OC_E_RELEASED, "%s: %s", call, oc_status_name(t->st));
  ck_assert_msg(strstr(t->words, call) && strstr(t->words, "torn down"), "%s", t->words);
  ck_assert(t->out[0] == 77 && t->out[1] == 78);
}

static void late_begin(void *arg) {
  struct late *t = arg;
  oc_build *b = NULL;
  done(t, oc_derived_begin(t->w.d, OC_BF16, ANY, &b, t->out));
  ck_assert_ptr_null(b);
}

START_TEST(g22_a_miss_that_comes_too_late_begins_no_build) {
  struct late t = open_late();
  between(&t, late_begin, MODEL_STOPPING);
  refused(&t, "oc_derived_begin");
  oc_build_abort(begin(&t.w, OC_BF16, ANY));   /* no build was left open */
  close_late(&t);
}
END_TEST

static void late_get_on(void *arg) {
  struct late *t = arg;
  done(t, oc_derived_get_ptr_on(t->w.d, OC_BF16, ANY, t->s, t->out));
}

START_TEST(g22_a_hit_whose_stream_comes_too_late_is_none) {
  struct late t = open_late();
  put(&t.w, OC_BF16, ANY, t.block);
  between(&t, late_get_on, MODEL_STOPPING);
  refused(&t, "oc_derived_get_ptr_on");
  ck_ok(oc_derived_get_ptr_on(t.w.d, OC_BF16, ANY, t.s, t.out));
  ck_assert_uint_eq(t.out[0], t.block);
  close_late(&t);
}
END_TEST

static void late_free(void *arg) {
  struct late *t = arg;
  done(t, oc_pool_free(t->w.p, t->block));
}

/* A free of what has entries becomes a call, which works until the model is RELEASED. */
START_TEST(g3_a_free_that_comes_too_late_frees_nothing) {
  struct late t = open_late();
  put(&t.w, OC_BF16, t.block, block_of(&t.w, 64));
  between(&t, late_free, MODEL_RELEASED);
  refused(&t, "oc_pool_free");
  ck_assert_uint_eq(live_blocks(&t.w), 2);
  between(&t, late_free, MODEL_STOPPING);
  ck_ok(t.st);
  ck_assert_uint_eq(live_blocks(&t.w), 0);
  close_late(&t);
}
END_TEST

static void late_alloc(void *arg) {
  struct late *t = arg;
  done(t, oc_pool_alloc(t->w.p, 256, 0, &t->block));
}

/* What waits for a stream is not asked about any more; the allocation itself needs no task. */
START_TEST(g3_a_collection_that_comes_too_late_asks_nobody) {
  struct late t = open_late();
  ck_ok(oc_pool_free_on(t.w.p, t.block, t.s));
  fx_sync(t.w.b, t.s);
  uint64_t queries = fx_calls(t.w.b, "event_query");
  between(&t, late_alloc, MODEL_RELEASED);
  ck_ok(t.st);
  ck_assert_uint_eq(fx_calls(t.w.b, "event_query"), queries);
  ck_assert_uint_eq(figures(&t.w).retired_bytes, 0);
  ck_assert_uint_gt(fx_calls(t.w.b, "event_query"), queries);
  close_late(&t);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("states", &tc);
  tcase_add_test(tc, g22_a_miss_that_comes_too_late_begins_no_build);
  tcase_add_test(tc, g22_a_hit_whose_stream_comes_too_late_is_none);
  tcase_add_test(tc, g3_a_free_that_comes_too_late_frees_nothing);
  tcase_add_test(tc, g3_a_collection_that_comes_too_late_asks_nobody);
  return fx_run(s);
}
