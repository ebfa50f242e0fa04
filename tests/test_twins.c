/* SPDX-License-Identifier: MIT */
/* What is found by a name's hash and told apart by the name: names of one hash are two (G4). */
#include "config.h"

#include "tests/collide.h"
#include "tests/world.h"

START_TEST(modules_of_one_hash_are_two) {
  struct world w = world_open();
  const struct twins t = make_twins(_i);
  oc_module h, first = (oc_module)&w, second = (oc_module)&h;
  ck_ok(oc_model_adopt_module(w.m, t.a, first));
  ck_status(oc_model_module(w.m, t.b, &h), OC_E_NOT_FOUND);
  ck_ok(oc_model_adopt_module(w.m, t.b, second));
  ck_ok(oc_model_module(w.m, t.a, &h));
  ck_assert_ptr_eq(h, first);
  ck_ok(oc_model_module(w.m, t.b, &h));
  ck_assert_ptr_eq(h, second);
  ck_status(oc_model_adopt_module(w.m, t.a, second), OC_EXISTS);
  world_close(&w);
}
END_TEST

START_TEST(holders_of_one_hash_are_two) {
  struct world w = world_open();
  const struct twins t = make_twins(_i);
  ck_ok(oc_model_retain(w.m, t.a));
  ck_status(oc_model_release_hold(w.m, t.b), OC_E_NOT_FOUND);
  ck_ok(oc_model_retain(w.m, t.b));
  ck_ok(oc_model_retain(w.m, t.b));
  ck_ok(oc_model_release_hold(w.m, t.a));
  ck_status(oc_model_release_hold(w.m, t.a), OC_E_NOT_FOUND);
  ck_ok(oc_model_release_hold(w.m, t.b));
  ck_ok(oc_model_release_hold(w.m, t.b));
  world_close(&w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("twins", &tc);
  tcase_add_loop_test(tc, modules_of_one_hash_are_two, 0, 2);
  tcase_add_loop_test(tc, holders_of_one_hash_are_two, 0, 2);
  return fx_run(s);
}
