/* SPDX-License-Identifier: MIT */
/* Other allocators' memory: ranges by address, in chunks that fill, split and go. */
#include "config.h"

#include <check.h>
#include <stdlib.h>

#include "allocator/ranges.h"

#define PLACES 4000u             /* of 100 bytes each: where a range can be */
#define STEP 100u

static struct meta meta;
static struct ranges ranges;
static bool there[PLACES];
static unsigned count;

static void setup(void) {
  meta = (struct meta){0};
  oci_ranges_init(&ranges, &meta);
}

static void teardown(void) {
  oci_mem_set_fault(NULL, NULL);
  oci_ranges_fini(&ranges);
  ck_assert_uint_eq(meta_bytes(&meta), 0);
}

static uint64_t start_of(uint32_t place) { return 1000 + (uint64_t)place * STEP; }

/* Half of the ranges reach up to the next. */
static uint64_t bytes_of(uint32_t place) { return place % 2 ? STEP : STEP / 2; }

static bool try_add(uint32_t place) {
  struct range r = {.from = start_of(place), .bytes = bytes_of(place), .tag = place};
  return oci_ranges_add(&ranges, &r);
}

static void add(uint32_t place) {
  ck_assert(!there[place]);
  ck_assert(try_add(place));
  there[place] = true;
  count++;
}

static void drop(uint32_t place) {
  oci_ranges_remove(&ranges, oci_ranges_find(&ranges, start_of(place)));
  there[place] = false;
  count--;
}

static uint32_t ranges_in_chunks(void) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < ranges.count; i++) n += ranges.chunks[i]->count;
  return n;
}

/* Every address's answer, at the edges of every place. */
static void compare(void) {
  uint32_t next = PLACES;
  ck_assert(oci_ranges_check(&ranges));
  ck_assert_uint_eq(ranges_in_chunks(), count);
  for (uint32_t place = PLACES; place-- > 0;) {
    uint64_t from = start_of(place), bytes = bytes_of(place);
    const struct range *r = oci_ranges_find(&ranges, from), *last = oci_ranges_find(&ranges, from + bytes - 1);
    ck_assert_int_eq(r != NULL, there[place]);
    ck_assert_ptr_eq(r, last);
    if (there[place]) ck_assert(r->from == from && r->bytes == bytes && r->tag == place);
    if (bytes < STEP) ck_assert_ptr_null(oci_ranges_find(&ranges, from + bytes));
    if (there[place]) next = place;
    /* The first that [from, ...) meets; and not the one that begins where it ends. */
    const struct range *met = oci_ranges_overlap(&ranges, from, STEP * PLACES);
    ck_assert_int_eq(met != NULL, next < PLACES);
    if (met) ck_assert_uint_eq(met->tag, next);
    if (met && next > place) ck_assert_ptr_null(oci_ranges_overlap(&ranges, from, start_of(next) - from));
  }
}

START_TEST(ascending_addresses_fill_chunks) {
  for (uint32_t i = 0; i < PLACES; i++) add(i);
  compare();
  ck_assert_uint_le(ranges.count, PLACES / (RANGES_IN_CHUNK - 1) + 1);
}
END_TEST

START_TEST(descending_addresses_halve_them) {
  for (uint32_t i = PLACES; i-- > 0;) add(i);
  compare();
  ck_assert_uint_le(ranges.count, PLACES / (RANGES_IN_CHUNK / 2) + 1);
}
END_TEST

/* Into the gaps: the place is in the lower half, in the upper one, or just between them. */
START_TEST(a_full_chunk_splits_at_any_place) {
  for (uint32_t gap = 0; gap <= RANGES_IN_CHUNK; gap++) {
    oci_ranges_fini(&ranges);
    for (uint32_t i = 0; i < PLACES; i++) there[i] = false;
    count = 0;
    for (uint32_t i = 0; i < RANGES_IN_CHUNK; i++) add(2 * i + 1);
    ck_assert_uint_eq(ranges.count, 1);
    add(2 * gap);
    ck_assert_uint_eq(ranges.count, 2);
    ck_assert(oci_ranges_check(&ranges));
    ck_assert_uint_eq(oci_ranges_find(&ranges, start_of(2 * gap))->tag, 2 * gap);
  }
  compare();
}
END_TEST

START_TEST(ranges_come_and_go) {
  unsigned seed = 3;
  for (int step = 0; step < 60000; step++) {
    uint32_t place = (uint32_t)rand_r(&seed) % PLACES;
    /* full, then empty, then full: chunks come and go */
    bool fill = step / 10000 % 2 == 0;
    if (!there[place] && (fill || rand_r(&seed) % 8 == 0)) add(place);
    else if (there[place] && (!fill || rand_r(&seed) % 8 == 0)) drop(place);
    if (step % 5000 == 4999) compare();
  }
  for (uint32_t i = 0; i < PLACES; i++)
    if (there[i]) drop(i);
  ck_assert_uint_eq(ranges.count, 0);
  compare();
}
END_TEST

static bool no_memory(void *arg, size_t bytes) {
  (void)arg, (void)bytes;
  return true;
}

START_TEST(g33_without_memory_nothing_changes) {
  unsigned refused = 0;
  for (uint32_t i = 0; i < PLACES; i++) {
    oci_mem_set_fault(no_memory, NULL);
    bool added = try_add(i);
    oci_mem_set_fault(NULL, NULL);
    if (added) {
      there[i] = true;
      count++;
      continue;
    }
    refused++;
    ck_assert(oci_ranges_check(&ranges));
    ck_assert_uint_eq(ranges_in_chunks(), count);
    ck_assert_ptr_null(oci_ranges_find(&ranges, start_of(i)));
    add(i);
  }
  compare();
  ck_assert_uint_eq(refused, ranges.count);
}
END_TEST

START_TEST(check_sees_what_is_broken) {
  for (uint32_t i = 0; i <= RANGES_IN_CHUNK; i++) add(i);
  struct range_chunk *c = ranges.chunks[0];
  const struct range was = c->at[5];
  const uint32_t n = c->count;
  ck_assert(oci_ranges_check(&ranges));
  c->at[5].from = c->at[4].from;
  ck_assert(!oci_ranges_check(&ranges));
  c->at[5] = was;
  c->at[5].bytes = 0;
  ck_assert(!oci_ranges_check(&ranges));
  c->at[5] = was;
  c->count = 0;
  ck_assert(!oci_ranges_check(&ranges));
  c->count = RANGES_IN_CHUNK + 1;
  ck_assert(!oci_ranges_check(&ranges));
  c->count = n;
  ck_assert(oci_ranges_check(&ranges));
}
END_TEST

int main(void) {
  Suite *s = suite_create("ranges");
  TCase *t = tcase_create("ranges");
  tcase_add_checked_fixture(t, setup, teardown);
  tcase_set_timeout(t, 60);
  tcase_add_test(t, ascending_addresses_fill_chunks);
  tcase_add_test(t, descending_addresses_halve_them);
  tcase_add_test(t, a_full_chunk_splits_at_any_place);
  tcase_add_test(t, ranges_come_and_go);
  tcase_add_test(t, g33_without_memory_nothing_changes);
  tcase_add_test(t, check_sees_what_is_broken);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
