/* SPDX-License-Identifier: MIT */
/* The ledger: sites and owners by content, counters by tag (G26, section 3: names may dangle). */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocator/ledger.h"
#include "rcu/hash.h"

static struct meta meta;
static struct ledger ledger;

static void setup(void) {
  meta = (struct meta){0};
  oci_ledger_init(&ledger, &meta);
}

static void teardown(void) {
  oci_mem_set_fault(NULL, NULL);
  oci_ledger_fini(&ledger);
  ck_assert_uint_eq(meta_bytes(&meta), 0);
}

static uint32_t tag_of(const struct pool_site *site, const char *owner, bool external) {
  uint32_t tag = ~0u;
  ck_assert(ledger_tag(&ledger, site, owner, external, &tag));
  return tag;
}

static struct ledger_row row_of(uint32_t tag) {
  struct ledger_row row;
  oci_ledger_row(&ledger, tag, &row);
  return row;
}

START_TEST(equal_contents_are_one_tag) {
  char file[] = "loader.c", func[] = "load", owner[] = "weights";
  struct pool_site a = {"loader.c", 812, "load"}, b = {file, 812, func};
  ck_assert_uint_eq(tag_of(&a, "weights", false), tag_of(&b, owner, false));
}
END_TEST

START_TEST(any_difference_is_another_tag) {
  struct pool_site a = {"loader.c", 812, "load"}, line = {"loader.c", 813, "load"}, func = {"loader.c", 812, "lode"},
                   file = {"loader.cc", 812, "load"}, no_func = {"loader.c", 812, NULL};
  uint32_t tags[] = {tag_of(&a, NULL, false),    tag_of(&a, "x", false),  tag_of(&a, NULL, true), tag_of(&line, NULL, false),
                     tag_of(&func, NULL, false), tag_of(&file, NULL, false), tag_of(&no_func, NULL, false),
                     tag_of(NULL, NULL, false),  tag_of(NULL, "x", false),  tag_of(NULL, "", false)};
  for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
    for (size_t j = 0; j < i; j++) ck_assert_uint_ne(tags[i], tags[j]);
  ck_assert_uint_eq(ledger.tag_count, sizeof tags / sizeof *tags);
}
END_TEST

/* After a dlclose another library's strings, or its whole site, may come to the same address. */
START_TEST(a_recycled_address_is_not_believed) {
  char file[16] = "one.c", func[16] = "f", owner[16] = "who";
  struct pool_site site = {file, 10, func};
  uint32_t first = tag_of(&site, owner, false);
  strcpy(file, "two.c");
  uint32_t other_file = tag_of(&site, owner, false);
  strcpy(func, "g");
  uint32_t other_func = tag_of(&site, owner, false);
  strcpy(owner, "whom");
  uint32_t other_owner = tag_of(&site, owner, false);
  site.line = 11;
  uint32_t other_line = tag_of(&site, owner, false);
  ck_assert_uint_ne(first, other_file);
  ck_assert_uint_ne(other_file, other_func);
  ck_assert_uint_ne(other_func, other_owner);
  ck_assert_uint_ne(other_owner, other_line);
  ck_assert_str_eq(row_of(first).file, "one.c");
  ck_assert_str_eq(row_of(other_line).file, "two.c");
  ck_assert_str_eq(row_of(other_line).owner, "whom");
  memset(file, 0, sizeof file);
  ck_assert_str_eq(row_of(first).file, "one.c");
}
END_TEST

START_TEST(a_site_without_a_file_is_unknown) {
  struct pool_site site = {NULL, 10, "f"};
  ck_assert_uint_eq(tag_of(&site, NULL, false), tag_of(NULL, NULL, false));
  ck_assert_uint_eq(tag_of(&site, NULL, false), tag_of(NULL, NULL, false));
  ck_assert_ptr_null(row_of(tag_of(&site, NULL, false)).file);
}
END_TEST

START_TEST(another_owner_keeps_the_site) {
  struct pool_site site = {"a.c", 1, "f"};
  uint32_t tag = tag_of(&site, "build", false), other;
  ck_assert(oci_ledger_retag(&ledger, tag, "derived", &other));
  ck_assert_uint_eq(other, tag_of(&site, "derived", false));
  ck_assert(oci_ledger_retag(&ledger, other, NULL, &other));
  ck_assert_uint_eq(other, tag_of(&site, NULL, false));
}
END_TEST

START_TEST(counters_add_up) {
  uint32_t tag = tag_of(NULL, NULL, false), out = tag_of(NULL, "other library", true);
  ledger_live(&ledger, tag, 512);
  ledger_live(&ledger, tag, 256);
  ledger_live(&ledger, out, 100);
  ledger_gone(&ledger, tag, 512);
  ledger_retired(&ledger, tag, 512);
  struct ledger_row row = row_of(tag);
  ck_assert_uint_eq(row.live_blocks, 1);
  ck_assert_uint_eq(row.live_bytes, 256);
  ck_assert_uint_eq(row.retired_bytes, 512);
  ck_assert_uint_eq(row.peak_bytes, 768);
  oci_ledger_clear(&ledger);
  ck_assert_uint_eq(row_of(tag).live_bytes + row_of(tag).retired_bytes, 0);
  ck_assert_uint_eq(row_of(tag).peak_bytes, 768);
  ck_assert_uint_eq(row_of(out).live_bytes, 100);
}
END_TEST

START_TEST(many_tags) {
  enum { MANY = 20000 };
  static uint32_t tags[MANY];
  char owner[32];
  for (uint32_t i = 0; i < MANY; i++) {
    snprintf(owner, sizeof owner, "owner %u", i);
    tags[i] = tag_of(NULL, owner, false);
  }
  for (uint32_t i = 0; i < MANY; i++) {
    snprintf(owner, sizeof owner, "owner %u", i);
    ck_assert_uint_eq(tag_of(NULL, owner, false), tags[i]);
    ck_assert_str_eq(row_of(tags[i]).owner, owner);
  }
  ck_assert_uint_eq(ledger.tag_count, MANY);
}
END_TEST

/* Two owners whose names have one hash: their first eight bytes make one factor of the product 0, and the other, the next
   eight, counts for nothing. If the hash has changed so that they do not meet, this has to follow. */
START_TEST(names_of_one_hash_are_told_apart) {
  const uint64_t word = 0xE7037ED1A0B428DBu;
  char one[32] = "........abcdefghijklmnopqrstuvw", two[32] = "........Abcdefghijklmnopqrstuvw";
  memcpy(one, &word, sizeof word);
  memcpy(two, &word, sizeof word);
  ck_assert_uint_eq(oci_hash_bytes(one, sizeof one, 0), oci_hash_bytes(two, sizeof two, 0));
  uint32_t first = tag_of(NULL, one, false), second = tag_of(NULL, two, false);
  ck_assert_uint_ne(first, second);
  ck_assert_str_eq(row_of(first).owner, one);
  ck_assert_str_eq(row_of(second).owner, two);
  ck_assert_uint_eq(tag_of(NULL, two, false), second);
}
END_TEST

/* Pairs that differ in this alone, many enough that some of them meet in one slot of the index. */
START_TEST(external_memory_has_tags_of_its_own) {
  enum { MANY = 500 };
  uint32_t ours[MANY], others[MANY];
  char owner[32];
  for (uint32_t i = 0; i < MANY; i++) {
    snprintf(owner, sizeof owner, "owner %u", i);
    ours[i] = tag_of(NULL, owner, false);
    others[i] = tag_of(NULL, owner, true);
    ck_assert_uint_ne(ours[i], others[i]);
  }
  for (uint32_t i = 0; i < MANY; i++) {
    snprintf(owner, sizeof owner, "owner %u", i);
    ck_assert_uint_eq(tag_of(NULL, owner, true), others[i]);
    ck_assert_uint_eq(tag_of(NULL, owner, false), ours[i]);
  }
  ck_assert_uint_eq(ledger.tag_count, 2 * MANY);
}
END_TEST

/* As if all tags were there: the index could not be doubled any more. */
START_TEST(tags_end_where_their_index_does) {
  uint32_t tag = tag_of(NULL, "here before", false), other = 7;
  size_t bytes = meta_bytes(&meta);
  uint32_t count = ledger.tag_count;
  ledger.tag_count = UINT32_MAX / 2;
  ck_assert(!ledger_tag(&ledger, NULL, NULL, false, &other));
  ck_assert_uint_eq(tag_of(NULL, "here before", false), tag);
  ck_assert_uint_eq(ledger.tag_count, UINT32_MAX / 2);
  ledger.tag_count = count;
  ck_assert_uint_eq(meta_bytes(&meta), bytes);
  ck_assert_uint_eq(other, 7);
}
END_TEST

static bool fail_nth(void *arg, size_t bytes) {
  int *left = arg;
  (void)bytes;
  return (*left)-- == 0;
}

/* Host memory fails at call N, for every N: either a right tag, or none and another try works (G33). */
START_TEST(host_memory_fails_anywhere) {
  int failures = 0;
  for (int n = 0; n < 200; n++) {
    char file[32], func[32], owner[32];
    snprintf(file, sizeof file, "file%d.c", n);
    snprintf(func, sizeof func, "func%d", n);
    snprintf(owner, sizeof owner, "owner%d", n);
    struct pool_site site = {file, 7, func};
    for (int nth = 0;; nth++) {
      int left = nth;
      uint32_t tag = ~0u;
      oci_mem_set_fault(fail_nth, &left);
      bool ok = ledger_tag(&ledger, &site, owner, false, &tag);
      oci_mem_set_fault(NULL, NULL);
      if (ok) {
        ck_assert_str_eq(row_of(tag).file, file);
        ck_assert_str_eq(row_of(tag).owner, owner);
        break;
      }
      failures++;
    }
  }
  ck_assert_int_gt(failures, 200);
  ck_assert_uint_eq(ledger.tag_count, 200);
}
END_TEST

/* Another owner for a block is a tag that may need room, even where the owner is known. */
START_TEST(host_memory_fails_for_another_owner) {
  struct pool_site site = {"a.c", 1, "f"}, elsewhere = {"b.c", 1, "f"};
  int failures = 0;
  for (int n = 0; n < 40; n++) {
    char owner[32];
    snprintf(owner, sizeof owner, "owner%d", n);
    uint32_t tag = tag_of(&site, NULL, false), other;
    (void)tag_of(&elsewhere, owner, false);
    uint32_t count = ledger.tag_count;
    for (int nth = 0;; nth++) {
      int left = nth;
      oci_mem_set_fault(fail_nth, &left);
      bool ok = oci_ledger_retag(&ledger, tag, owner, &other);
      oci_mem_set_fault(NULL, NULL);
      if (ok) break;
      ck_assert_uint_eq(ledger.tag_count, count);
      failures++;
    }
    ck_assert_str_eq(row_of(other).file, "a.c");
    ck_assert_str_eq(row_of(other).owner, owner);
  }
  ck_assert_int_gt(failures, 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("ledger");
  TCase *t = tcase_create("ledger");
  tcase_add_checked_fixture(t, setup, teardown);
  tcase_add_test(t, equal_contents_are_one_tag);
  tcase_add_test(t, any_difference_is_another_tag);
  tcase_add_test(t, a_recycled_address_is_not_believed);
  tcase_add_test(t, a_site_without_a_file_is_unknown);
  tcase_add_test(t, another_owner_keeps_the_site);
  tcase_add_test(t, counters_add_up);
  tcase_add_test(t, many_tags);
  tcase_add_test(t, names_of_one_hash_are_told_apart);
  tcase_add_test(t, external_memory_has_tags_of_its_own);
  tcase_add_test(t, tags_end_where_their_index_does);
  tcase_add_test(t, host_memory_fails_anywhere);
  tcase_add_test(t, host_memory_fails_for_another_owner);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
