/* SPDX-License-Identifier: MIT */
/* oc_pool_trim: what goes back to the driver, and what stays (G16, G18, G27, G28). */
#include "config.h"

#include "tests/world.h"

static oc_model_options small_arenas(void) {
  return (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB};
}

static void trimmed_to(struct world *w, uint64_t arenas, uint64_t bytes) {
  ck_ok(oc_pool_trim(w->p));
  ck_ok(oc_pool_check(w->p));
  oc_pool_stats s = figures(w);
  ck_assert_uint_eq(s.arenas, arenas);
  ck_assert_uint_eq(s.arena_bytes, bytes);
  ck_assert_uint_eq(fx_blocks(w->b), arenas);
}

START_TEST(empty_arenas_go_back_and_others_stay) {
  struct world w = world_on(fx_open(NULL), small_arenas());
  oc_devptr p[4];
  for (int i = 0; i < 4; i++) p[i] = block_of(&w, 2 * MiB - 4096);
  trimmed_to(&w, 4, 8 * MiB);
  ck_ok(oc_pool_free(w.p, p[0]));
  ck_ok(oc_pool_free(w.p, p[2]));
  trimmed_to(&w, 2, 4 * MiB);
  ck_assert_uint_eq(figures(&w).driver_frees, 2);
  trimmed_to(&w, 2, 4 * MiB);
  ck_assert_uint_eq(figures(&w).driver_frees, 2);
  ck_ok(oc_pool_free(w.p, p[1]));
  ck_ok(oc_pool_free(w.p, p[3]));
  trimmed_to(&w, 0, 0);
  ck_assert_uint_ne(block_of(&w, 4096), 0);     /* and it grows again */
  world_close(&w);
}
END_TEST

/* A block whose stream has not passed it is used; once it has, the trim itself finds out. */
START_TEST(waiting_blocks_are_collected_first) {
  if (!fx_can(FX_STALL)) return fx_skip("needs a stalled stream");
  struct world w = world_on(fx_open(NULL), small_arenas());
  oc_stream s = fx_stream(w.b);
  oc_devptr p = block_of(&w, MiB);
  fx_stall(w.b, s, true);
  ck_ok(oc_backend_table(w.b)->memset(oc_backend_self(w.b), p, 1, 4096, s));
  ck_ok(oc_pool_free_on(w.p, p, s));
  trimmed_to(&w, 1, 2 * MiB);
  fx_stall(w.b, s, false);
  fx_sync(w.b, s);
  trimmed_to(&w, 0, 0);
  world_close_stream(&w, s);
}
END_TEST

START_TEST(works_in_a_guard_and_not_in_a_capture) {
  struct world w = world_on(fx_open(NULL), small_arenas());
  oc_stream s = fx_stream(w.b);
  oc_devptr p = block_of(&w, MiB);
  ck_ok(oc_pool_free(w.p, p));
  ck_ok(oc_capture_enter(w.m, s));
  uint64_t calls = fx_all_calls(w.b);
  ck_status(oc_pool_trim(w.p), OC_E_CAPTURING);
  ck_words("oc_pool_trim");
  ck_assert_uint_eq(fx_all_calls(w.b), calls);
  oc_capture_leave(w.m);
  oc_guard_enter();
  trimmed_to(&w, 0, 0);
  oc_guard_leave();
  world_close_stream(&w, s);
}
END_TEST

START_TEST(a_retired_block_keeps_its_arena) {
  struct world w = world_on(fx_open(NULL), small_arenas());
  oc_stream s = fx_stream(w.b);
  oc_devptr p = block_of(&w, MiB);
  ck_ok(oc_capture_enter(w.m, s));
  ck_ok(oc_pool_free(w.p, p));
  oc_capture_leave(w.m);
  trimmed_to(&w, 1, 2 * MiB);
  ck_ok(oc_model_graphs_gone(w.m));
  trimmed_to(&w, 0, 0);
  world_close_stream(&w, s);
}
END_TEST

/* An arena that the driver does not take is not handed out again; teardown tries once more. */
START_TEST(the_driver_refuses_an_arena) {
  if (!fx_can(FX_FAIL)) return fx_skip("needs a driver that fails");
  struct world w = world_on(fx_open(NULL), small_arenas());
  ck_ok(oc_pool_free(w.p, block_of(&w, MiB)));
  fx_fail(w.b, "free", 1, 1, OC_E_BACKEND);
  trimmed_to(&w, 1, 2 * MiB);
  ck_assert_uint_eq(figures(&w).retired_bytes, 2 * MiB);
  block_of(&w, MiB);
  ck_assert_uint_eq(figures(&w).arenas, 2);
  world_close(&w);
}
END_TEST

START_TEST(nothing_to_trim) {
  struct world w = world_open();
  ck_status(oc_pool_trim(NULL), OC_E_INVALID);
  trimmed_to(&w, 0, 0);
  ck_ok(oc_model_teardown(w.m, NULL));
  ck_status(oc_pool_trim(w.p), OC_E_RELEASED);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

/* Against requests: no block is ever in an arena that goes. */
static void churn(void *arg, unsigned i) {
  struct world *w = arg;
  for (unsigned n = 0; n < fx_scale(300); n++) {
    if (i == 0) {
      ck_ok(oc_pool_trim(w->p));
    } else {
      oc_devptr p = block_of(w, 4096u << (n % 9));
      ck_ok(oc_pool_free(w->p, p));
    }
  }
}

START_TEST(while_others_allocate) {
  struct world w = world_on(fx_open(NULL), small_arenas());
  fx_threads(4, churn, &w);
  trimmed_to(&w, 0, 0);
  world_close(&w);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("trim");
  TCase *t = tcase_create("trim");
  tcase_add_test(t, empty_arenas_go_back_and_others_stay);
  tcase_add_test(t, waiting_blocks_are_collected_first);
  tcase_add_test(t, works_in_a_guard_and_not_in_a_capture);
  tcase_add_test(t, a_retired_block_keeps_its_arena);
  tcase_add_test(t, the_driver_refuses_an_arena);
  tcase_add_test(t, nothing_to_trim);
  tcase_add_test(t, while_others_allocate);
  suite_add_tcase(s, t);
  return s;
}

int main(void) { return fx_run(suite()); }
