/* SPDX-License-Identifier: MIT */
/* Size classes and the two-level bitmap. */
#include "config.h"

#include <check.h>
#include <stdlib.h>

#include "allocator/bins.h"

static struct meta meta;
static struct slab slab;
static struct bins bins;

static void setup(void) {
  meta = (struct meta){0};
  bins = (struct bins){0};
  oci_slab_init(&slab, &meta);
}

static void teardown(void) {
  oci_slab_fini(&slab);
  ck_assert_uint_eq(meta_bytes(&meta), 0);
}

static uint32_t add(uint32_t units) {
  ck_assert(slab_reserve(&slab, 1));
  uint32_t index = slab_take(&slab);
  slab_at(&slab, index)->units = units;
  block_become(slab_at(&slab, index), BLOCK_FREE, 0, 0);
  bins_insert(&bins, &slab, index, bin_of(units));
  return index;
}

static void drop(uint32_t index) {
  bins_remove(&bins, &slab, index, bin_of(slab_at(&slab, index)->units));
  slab_give(&slab, index);
}

static void expect(uint64_t blocks, uint64_t units) {
  uint64_t b, u;
  const char *why = "";
  ck_assert_msg(oci_bins_check(&bins, &slab, &b, &u, &why), "%s", why);
  ck_assert_uint_eq(b, blocks);
  ck_assert_uint_eq(u, units);
}

START_TEST(classes_rise_with_size) {
  uint32_t last = 0;
  for (uint64_t u = 1; u <= UINT32_MAX; u += 1 + u / 200) {
    uint32_t bin = bin_of((uint32_t)u);
    ck_assert_uint_ge(bin, last);
    ck_assert_uint_lt(bin, BIN_COUNT);
    last = bin;
  }
  ck_assert_uint_eq(bin_of(UINT32_MAX), BIN_COUNT - 1);
}
END_TEST

START_TEST(small_classes_hold_one_size) {
  for (uint32_t u = 1; u < 64; u++) ck_assert_uint_eq(bin_of(u), u);
}
END_TEST

START_TEST(classes_are_within_a_32nd) {
  for (uint64_t u = 64; u <= UINT32_MAX; u += 1 + u / 100) {
    uint64_t larger = u + u / 32 + 1;
    if (larger <= UINT32_MAX) ck_assert_uint_gt(bin_of((uint32_t)larger), bin_of((uint32_t)u));
  }
}
END_TEST

START_TEST(search_finds_the_first_that_has_a_block) {
  ck_assert_uint_eq(bins_from(&bins, 0), BIN_COUNT);
  uint32_t low = add(5), middle = add(1000), high = add(UINT32_MAX);
  ck_assert_uint_eq(bins_from(&bins, 0), 5);
  ck_assert_uint_eq(bins_from(&bins, 5), 5);
  ck_assert_uint_eq(bins_from(&bins, 6), bin_of(1000));
  ck_assert_uint_eq(bins_from(&bins, bin_of(1000) + 1), BIN_COUNT - 1);
  ck_assert_uint_eq(bins_from(&bins, BIN_COUNT), BIN_COUNT);
  ck_assert_uint_eq(oci_bins_largest(&bins, &slab), UINT32_MAX);
  drop(high);
  ck_assert_uint_eq(bins_from(&bins, bin_of(1000) + 1), BIN_COUNT);
  ck_assert_uint_eq(oci_bins_largest(&bins, &slab), 1000);
  drop(middle);
  drop(low);
  ck_assert_uint_eq(oci_bins_largest(&bins, &slab), 0);
  expect(0, 0);
}
END_TEST

START_TEST(the_largest_of_a_bin_is_seen) {
  add(1030), add(1055), add(1024);
  ck_assert_uint_eq(bin_of(1030), bin_of(1055));
  ck_assert_uint_eq(oci_bins_largest(&bins, &slab), 1055);
}
END_TEST

/* Random inserts and removes, against a plain list. */
START_TEST(lists_and_bitmaps_stay_true) {
  enum { MOST = 300 };
  uint32_t at[MOST], count = 0;
  uint64_t units = 0;
  unsigned seed = 11;
  for (int step = 0; step < 20000; step++) {
    if (count < MOST && (!count || rand_r(&seed) % 2)) {
      at[count] = add(1u + (uint32_t)rand_r(&seed) % (1u << (1 + rand_r(&seed) % 30)));
      units += slab_at(&slab, at[count++])->units;
    } else {
      uint32_t i = (uint32_t)rand_r(&seed) % count;
      units -= slab_at(&slab, at[i])->units;
      drop(at[i]);
      at[i] = at[--count];
    }
    if (step % 64 == 0) expect(count, units);
  }
}
END_TEST

static void broken(const char *words) {
  uint64_t b, u;
  const char *why = "";
  ck_assert(!oci_bins_check(&bins, &slab, &b, &u, &why));
  ck_assert_str_eq(why, words);
}

START_TEST(check_sees_what_is_broken) {
  uint32_t index = add(700), other = add(701), row = bin_of(700) / BIN_SPLIT;
  struct block *b = slab_at(&slab, index);   /* the list's last */
  ck_assert_uint_eq(bin_of(700), bin_of(701));
  expect(2, 1401);
  b->units = 7;
  broken("a free block is in the wrong bin");
  b->units = 700;
  b->state = BLOCK_LIVE;
  broken("a block in a bin is not free");
  b->state = BLOCK_FREE;
  b->list_prev = 0;
  broken("a bin's links do not match");
  b->list_prev = other;
  b->list_next = other;
  broken("a bin's links do not match");   /* in a circle: the walk ends */
  b->list_next = 0;
  bins.rows = 0;
  broken("a bitmap does not match its bins");
  bins.rows = 1u << row;
  bins.map[row] |= 1u << (bin_of(700) % BIN_SPLIT + 1);
  broken("a bitmap does not match its bins");
  bins.map[row] = 1u << bin_of(700) % BIN_SPLIT;
  expect(2, 1401);
}
END_TEST

/* An index has 31 bits: past 2^29 records the next step, which is fourfold, would leave them. */
START_TEST(records_end_where_indices_do) {
  struct slab full = {.meta = &meta, .capacity = 1u << 30, .fresh = 1u << 30};
  ck_assert(!slab_reserve(&full, 1));
  ck_assert_uint_eq(full.capacity, 1u << 30);
  ck_assert_uint_eq(meta_bytes(&meta), 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("bins");
  TCase *t = tcase_create("bins");
  tcase_add_checked_fixture(t, setup, teardown);
  tcase_add_test(t, classes_rise_with_size);
  tcase_add_test(t, small_classes_hold_one_size);
  tcase_add_test(t, classes_are_within_a_32nd);
  tcase_add_test(t, search_finds_the_first_that_has_a_block);
  tcase_add_test(t, the_largest_of_a_bin_is_seen);
  tcase_add_test(t, lists_and_bitmaps_stay_true);
  tcase_add_test(t, check_sees_what_is_broken);
  tcase_add_test(t, records_end_where_indices_do);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
