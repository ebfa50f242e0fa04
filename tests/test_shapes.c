/* SPDX-License-Identifier: MIT */
/* The reader of tensor lists, and the strict numbers under it: each kind of bad line is refused with file and line. */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/number.h"
#include "tools/shapes.h"

static char path[64];

static void write_text(const char *text, size_t n)
{
  FILE *f = fopen(path, "wb");

  ck_assert_ptr_nonnull(f);
  ck_assert_uint_eq(fwrite(text, 1, n, f), n);
  ck_assert_int_eq(fclose(f), 0);
}

static void refused(const char *words)
{
  struct tensor_list l = {0};
  struct fault why = {""};

  ck_assert_msg(!oct_shapes_read(path, &l, &why), "accepted; expected: %s", words);
  ck_assert_msg(strncmp(why.text, path, strlen(path)) == 0, "does not begin with the file: %s", why.text);
  ck_assert_msg(strstr(why.text, words) != NULL, "'%s' is not in: %s", words, why.text);
  ck_assert_uint_eq(l.count, 0);
}

START_TEST(a_sound_list_is_read)
{
  static const char text[] = "a.weight\tBF16\t128256x4096\t1050673152\ns\tF32\t\t4\nempty\tF16\t0x9\t0\nlast\tF4\t2x3\t3";
  struct tensor_list l;
  struct fault why = {""};
  uint64_t sum;

  write_text(text, strlen(text));
  ck_assert_msg(oct_shapes_read(path, &l, &why), "%s", why.text);
  ck_assert_uint_eq(l.count, 4);
  ck_assert_str_eq(l.at[0].name, "a.weight");
  ck_assert_uint_eq(l.at[0].rank, 2);
  ck_assert_uint_eq(l.at[0].shape[1], 4096);
  ck_assert_uint_eq(l.at[1].rank, 0);
  ck_assert_uint_eq(l.at[2].bytes, 0);
  ck_assert_uint_eq(l.at[3].bytes, 3);
  ck_assert(oct_tensors_bytes(&l, &sum));
  ck_assert_uint_eq(sum, 1050673152 + 4 + 3);
  oct_tensors_free(&l);
}
END_TEST

static const struct { const char *text, *words; } bad[] = {
  {"", "has no tensor"},
  {"\n", "line 1: 1 fields; name, dtype, shape and bytes are expected"},
  {"a\tF32\t4\n", "line 1: 3 fields"},
  {"a\tF32\t4\t16\tx\n", "line 1: 5 fields"},
  {"a\tF32\t4\t16\n\nb\tF32\t4\t16\n", "line 2: 1 fields"},
  {"\tF32\t4\t16\n", "line 1: the name is empty"},
  {"a\tF33\t4\t16\n", "line 1: unknown dtype 'F33'"},
  {"a\tF32\t4x\t16\n", "line 1: dimension 2 of the shape, '', is not a count"},
  {"a\tF32\tx4\t16\n", "line 1: dimension 1 of the shape, '', is not a count"},
  {"a\tF32\t4x-1\t16\n", "line 1: dimension 2 of the shape, '-1', is not a count"},
  {"a\tF32\t18446744073709551616\t16\n", "is not a count"},
  {"a\tF32\t4294967296x4294967296\t0\n", "line 1: the shape overflows"},
  {"a\tF4\t3\t2\n", "line 1: the shape overflows, or ends inside a byte"},
  {"a\tF32\t4\t\n", "line 1: bytes '' is not a count"},
  {"a\tF32\t4\t16\r\n", "line 1: bytes '16\\x0d' is not a count"},
  {"a\tF32\t4\t+16\n", "line 1: bytes '+16' is not a count"},
  {"a\tF32\t4\t16\nb\tF32\t4\t17\n", "line 2: 17 bytes, where dtype and shape make 16"},
};

START_TEST(a_bad_line_is_named)
{
  write_text(bad[_i].text, strlen(bad[_i].text));
  refused(bad[_i].words);
}
END_TEST

START_TEST(bad_bytes_and_files_are_named)
{
  char *line = malloc(70000);

  write_text("a\tF32\t4\t16\nb\tF32\t4\t1\0006\n", 24);
  refused("line 2: has a NUL byte in it");
  memset(line, 'n', 70000);
  write_text(line, 70000);
  refused("line 1: is over 65535 bytes long");
  free(line);
  ck_assert_int_eq(unlink(path), 0);
  refused("cannot be opened: No such file or directory");
  ck_assert_int_eq(mkdir(path, 0755), 0);
  refused("cannot be read: Is a directory");
  ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

START_TEST(a_sum_that_overflows_is_found)
{
  struct tensor_list l = {0};
  uint64_t half = UINT64_C(1) << 63, sum;

  for (int i = 0; i < 2; i++)
    oct_tensors_add(&l, "t", oct_dtype("U8"), &half, 1)->bytes = half;
  ck_assert(!oct_tensors_bytes(&l, &sum));
  oct_tensors_free(&l);
}
END_TEST

START_TEST(numbers_are_strict)
{
  static const char *const wrong[] = {"", " 1", "1 ", "+1", "-1", "0x1", "1e3", "18446744073709551616", "inf"};
  struct human h;
  uint64_t n;
  double s;

  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    ck_assert_msg(!oct_parse_u64(wrong[i], &n), "'%s'", wrong[i]);
  ck_assert(oct_parse_u64("18446744073709551615", &n) && n == UINT64_MAX);
  ck_assert(oct_parse_seconds("0.25", &s) && s == 0.25);
  ck_assert(oct_parse_seconds("10", &s) && s == 10);
  for (size_t i = 0; i < 7; i++)
    ck_assert_msg(!oct_parse_seconds(wrong[i], &s), "'%s'", wrong[i]);
  ck_assert(!oct_parse_seconds("nan", &s) && !oct_parse_seconds(".", &s) && !oct_parse_seconds("1.2.3", &s));
  ck_assert_str_eq(oct_human_bytes(&h, 1023), "1023 B");
  ck_assert_str_eq(oct_human_bytes(&h, 1536), "1.50 KiB");
  ck_assert_str_eq(oct_human_bytes(&h, UINT64_MAX), "16.0 EiB");
}
END_TEST

int main(void)
{
  Suite *s = suite_create("shapes");
  TCase *c = tcase_create("all");
  SRunner *r;
  int failed, fd;

  strcpy(path, "/tmp/oct-shapes-XXXXXX");
  fd = mkstemp(path);
  if (fd < 0) {
    perror(path);
    return EXIT_FAILURE;
  }
  close(fd);
  tcase_add_test(c, a_sound_list_is_read);
  tcase_add_loop_test(c, a_bad_line_is_named, 0, sizeof bad / sizeof bad[0]);
  tcase_add_test(c, bad_bytes_and_files_are_named);
  tcase_add_test(c, a_sum_that_overflows_is_found);
  tcase_add_test(c, numbers_are_strict);
  suite_add_tcase(s, c);
  r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  failed = srunner_ntests_failed(r);
  srunner_free(r);
  unlink(path);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
