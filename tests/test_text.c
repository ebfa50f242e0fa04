/* SPDX-License-Identifier: MIT */
/* Text as reports are made of it: any bytes that a caller may have as a name, and amounts of any size. */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/text.h"
#include "rcu/mem.h"

static void takes(struct text *t, const char *want) {
  char *s = oci_text_take(t);
  ck_assert_str_eq(s, want);
  oci_strfree(NULL, s);
}

static void plain_is(const char *s, const char *want) {
  struct text t = {0};
  oci_text_add_plain(&t, s);
  takes(&t, want);
}

static void json_is(const char *s, const char *want) {
  struct text t = {0};
  oci_text_add_json(&t, s);
  takes(&t, want);
}

START_TEST(characters_of_every_length_are_kept) {
  static const char *const good[] = {
    "a~", "\xc2\xa0", "\xc3\xa9", "\xdf\xbf",                 /* U+00A0, U+00E9, U+07FF */
    "\xe0\xa0\x80", "\xe2\x82\xac", "\xed\x9f\xbf",           /* U+0800, U+20AC, U+D7FF: the last before surrogates */
    "\xee\x80\x80", "\xef\xbf\xbd",                           /* U+E000, U+FFFD: behind them */
    "\xf0\x90\x80\x80", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf",   /* U+10000, U+1F600, U+10FFFF */
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    char quoted[16];
    snprintf(quoted, sizeof quoted, "\"%s\"", good[i]);
    plain_is(good[i], good[i]);
    json_is(good[i], quoted);
  }
}
END_TEST

/* Each byte of what is no character is one mark; what follows is read anew. */
START_TEST(what_is_no_utf8_is_marked) {
  static const struct { const char *bytes, *plain, *json; } bad[] = {
    {"\xff", "?", "\"\\ufffd\""},
    {"\x80z", "?z", "\"\\ufffdz\""},
    {"\xc3", "?", "\"\\ufffd\""},                                  /* cut off */
    {"\xe2\x82z", "??z", "\"\\ufffd\\ufffdz\""},
    {"\xc0\x80", "??", "\"\\ufffd\\ufffd\""},                      /* longer than need be */
    {"\xe0\x9f\xbf", "???", "\"\\ufffd\\ufffd\\ufffd\""},
    {"\xf0\x8f\xbf\xbf", "????", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
    {"\xed\xa0\x80", "???", "\"\\ufffd\\ufffd\\ufffd\""},          /* surrogates */
    {"\xed\xbf\xbf", "???", "\"\\ufffd\\ufffd\\ufffd\""},
    {"\xf4\x90\x80\x80", "????", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},   /* past the last one */
    {"\xf8\x88\x80\x80\x80", "?????", "\"\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\""},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    plain_is(bad[i].bytes, bad[i].plain);
    json_is(bad[i].bytes, bad[i].json);
  }
}
END_TEST

/* A terminal obeys these, in both of their encodings; it does not obey U+00A0 or U+0100. */
START_TEST(controls_reach_no_terminal) {
  plain_is("a\x1b[31m\x7f\n\xc2\x80\xc2\x9f\xc2\xa0\xc4\x80", "a?[31m????\xc2\xa0\xc4\x80");
  json_is("\"\\\x01\x1f\x7f\n", "\"\\\"\\\\\\u0001\\u001f\\u007f\\u000a\"");
  json_is(NULL, "null");
  json_is("", "\"\"");
}
END_TEST

START_TEST(amounts_of_any_size) {
  static const struct { uint64_t bytes; const char *want; } amounts[] = {
    {0, "0 B"}, {999, "999 B"}, {1000, "1.00 KB"}, {1999999, "1.99 MB"}, {64 << 20, "67.10 MB"},
    {UINT64_C(1) << 40, "1.09 TB"}, {UINT64_C(999999) * 1000000000000, "999999.00 TB"}, {UINT64_MAX, "18446744.07 TB"},
  };
  for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
    char buf[40];
    struct text t = {0};
    oci_text_bytes(buf, sizeof buf, amounts[i].bytes);
    ck_assert_str_eq(buf, amounts[i].want);
    oci_text_add_bytes(&t, amounts[i].bytes);
    takes(&t, amounts[i].want);
  }
}
END_TEST

/* Half a surrogate pair is in no encoding: the C library refuses, and writes nothing. */
START_TEST(what_cannot_be_formatted_is_left_out) {
  struct text t = {0};
  oci_text_add(&t, "a%d", 1);
  oci_text_add(&t, "%ls", L"\xd800");
  oci_text_add(&t, "b");
  takes(&t, "a1b");
}
END_TEST

START_TEST(text_grows_as_it_must) {
  struct text t = {0};
  for (unsigned i = 0; i < 5000; i++) oci_text_add(&t, "%04u", i);
  char *s = oci_text_take(&t);
  ck_assert_uint_eq(strlen(s), 20000);
  ck_assert_int_eq(strncmp(s + 4 * 4321, "43214322", 8), 0);
  oci_strfree(NULL, s);
}
END_TEST

int main(void) {
  Suite *s = suite_create("text");
  TCase *t = tcase_create("text");
  tcase_add_test(t, characters_of_every_length_are_kept);
  tcase_add_test(t, what_is_no_utf8_is_marked);
  tcase_add_test(t, controls_reach_no_terminal);
  tcase_add_test(t, amounts_of_any_size);
  tcase_add_test(t, what_cannot_be_formatted_is_left_out);
  tcase_add_test(t, text_grows_as_it_must);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
