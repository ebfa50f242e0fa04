/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/fixture.h"

START_TEST(opens) {
  fx_close(fx_open(NULL));
}
END_TEST

int main(void) {
  Suite *s = suite_create("test_cuda");
  TCase *t = tcase_create("test_cuda");
  tcase_add_test(t, opens);
  suite_add_tcase(s, t);
  return fx_run(s);
}
