/* SPDX-License-Identifier: MIT */
/* Arenas as runs of blocks: carve, join, find by address (G16). */
#include "config.h"

#include <check.h>
#include <stdlib.h>

#include "allocator/pool.h"
#include "allocator/suballoc.h"

#define MIB ((uint64_t)1 << 20)

static struct meta meta;
static struct suballoc sub;

static void setup(void) {
  meta = (struct meta){0};
  oci_suballoc_init(&sub, &meta);
}

static void teardown(void) {
  struct arena *next;
  oci_mem_set_fault(NULL, NULL);
  for (struct arena *a = oci_suballoc_abandon(&sub); a; a = next) {
    next = a->abandoned;
    oci_arena_forget(&sub, a);
  }
  ck_assert_uint_eq(meta_bytes(&meta), 0);
}

static struct arena *add_arena(uint64_t base, uint64_t bytes) {
  struct arena *a = oci_arena_prepare(&sub, bytes);
  ck_assert_ptr_nonnull(a);
  oci_arena_set(a, base, bytes, false);
  oci_arena_attach(&sub, a);
  return a;
}

static uint32_t carve(uint32_t units, uint64_t align) {
  uint32_t index;
  int status = oci_suballoc_carve(&sub, units, align, &index);
  if (status == POOL_MISS) return 0;
  ck_assert_int_eq(status, POOL_OK);
  block_become(slab_at(&sub.slab, index), BLOCK_LIVE, 0, 0);
  return index;
}

static uint64_t addr_of(uint32_t index) { return suballoc_addr(&sub, slab_at(&sub.slab, index)); }

static uint32_t find(uint64_t addr) {
  struct arena *a = suballoc_arena(&sub, addr);
  return a ? suballoc_find(&sub, a, addr) : 0;
}

/* One free block, whole arena. */
static void expect_whole(const struct arena *a) {
  const struct block *b = slab_at(&sub.slab, a->first);
  ck_assert_uint_eq(a->used, 0);
  ck_assert_uint_eq(b->state, BLOCK_FREE);
  ck_assert_uint_eq(b->units, a->units);
  ck_assert_uint_eq(b->next, 0);
  ck_assert(oci_pages_check(&a->pages, &sub.leaves, &sub.slab, a->first));
}

START_TEST(blocks_join_again_in_any_order) {
  static const int order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  struct arena *a = add_arena(64 * MIB, 2 * MIB);
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    uint32_t at[3] = {carve(1, 256), carve(700, 256), carve(a->units - 701, 256)};
    ck_assert(at[0] && at[1] && at[2]);
    ck_assert_uint_eq(carve(1, 256), 0);
    ck_assert_uint_eq(a->used, a->units);
    for (int j = 0; j < 3; j++) oci_suballoc_free(&sub, at[order[i][j]]);
    expect_whole(a);
  }
}
END_TEST

START_TEST(alignment_is_of_the_absolute_address) {
  struct arena *a = add_arena(64 * MIB + 4096 + 48, 16 * MIB);
  ck_assert_uint_eq(a->base, 64 * MIB + 4096 + 256);
  ck_assert_uint_eq(a->units, 16 * MIB / 256 - 1);
  for (uint64_t align = 256; align <= 4 * MIB; align *= 2) {
    uint32_t index = carve(3, align);
    ck_assert_uint_ne(index, 0);
    ck_assert_uint_eq(addr_of(index) % align, 0);
    ck_assert_uint_ge(addr_of(index), a->base);
    ck_assert_uint_le(addr_of(index) + 3 * 256, a->driver_base + a->driver_bytes);
    oci_suballoc_free(&sub, index);
    expect_whole(a);
  }
}
END_TEST

START_TEST(an_aligned_block_that_just_fits_is_found) {
  struct arena *a = add_arena(64 * MIB, 4 * MIB);
  uint32_t low = carve(1, 256);                        /* at the high end */
  uint32_t aligned = carve(8192, 2 * MIB);             /* leaves exactly one place */
  ck_assert_uint_ne(aligned, 0);
  ck_assert_uint_eq(addr_of(aligned), 64 * MIB);
  ck_assert_uint_eq(carve(8192, 2 * MIB), 0);
  oci_suballoc_free(&sub, aligned);
  oci_suballoc_free(&sub, low);
  expect_whole(a);
}
END_TEST

/* G16, S12: a request of a freed block's exact size gets that block, not a piece of a larger one. */
START_TEST(the_exact_size_is_found_again) {
  add_arena(1024 * MIB, 530 * MIB);
  add_arena(2048 * MIB, 270 * MIB);
  for (int i = 0; i < 100; i++) {
    uint32_t small = carve((uint32_t)(270 * MIB / 256), 256), large = carve((uint32_t)(530 * MIB / 256), 256);
    ck_assert(small && large);
    oci_suballoc_free(&sub, small);
    oci_suballoc_free(&sub, large);
  }
}
END_TEST

/* A reserve of just the sum of sizes serves those sizes, in any order. */
START_TEST(an_exact_reserve_is_enough) {
  enum { N = 500 };
  unsigned seed = 5;
  for (int round = 0; round < 20; round++) {
    uint32_t units[N], at[N];
    uint64_t sum = 0;
    for (int i = 0; i < N; i++) sum += units[i] = 1u + (uint32_t)rand_r(&seed) % (1u << (1 + rand_r(&seed) % 12));
    struct arena *a = add_arena(64 * MIB, sum * 256);
    for (int i = 0; i < N; i++) {
      at[i] = carve(units[i], 256);
      ck_assert_uint_ne(at[i], 0);
    }
    ck_assert_uint_eq(a->used, a->units);
    for (int i = 0; i < N; i++) oci_suballoc_free(&sub, at[i]);
    expect_whole(a);
    oci_arena_detach(&sub, a);
    oci_arena_discard(&sub, a);
  }
}
END_TEST

/* Every address of an arena is found, in crowded pages and far inside large blocks; with host memory for the
   leaves of crowded pages, and without. */
static bool no_memory(void *arg, size_t bytes) {
  (void)arg, (void)bytes;
  return true;
}

static void find_everywhere(const struct arena *a) {
  for (uint32_t i = a->first; i; i = slab_at(&sub.slab, i)->next) {
    const struct block *b = slab_at(&sub.slab, i);
    ck_assert_uint_eq(find(addr_of(i)), i);
    ck_assert_uint_eq(find(addr_of(i) + units_bytes(b->units) - 1), i);
    ck_assert_uint_eq(find(addr_of(i) + units_bytes(b->units) / 2), i);
  }
  ck_assert(oci_pages_check(&a->pages, &sub.leaves, &sub.slab, a->first));
}

START_TEST(any_address_finds_its_block) {
  enum { N = 6000 };
  static uint32_t at[N];
  unsigned seed = 21;
  struct arena *a = add_arena(1024 * MIB, 1024 * MIB);
  if (_i) ck_assert(slab_reserve(&sub.slab, 2 * N));
  if (_i) oci_mem_set_fault(no_memory, NULL);
  for (int i = 0; i < N; i++) {
    at[i] = carve(i % 100 ? 1u + (uint32_t)rand_r(&seed) % 3 : 60000u, 256);
    ck_assert_uint_ne(at[i], 0);
  }
  find_everywhere(a);
  for (int i = 0; i < N; i += 3) oci_suballoc_free(&sub, at[i]);
  find_everywhere(a);
  for (int i = 0; i < N; i += 3) at[i] = carve(1, 256);
  find_everywhere(a);
  for (int i = 0; i < N; i++) oci_suballoc_free(&sub, at[i]);
  expect_whole(a);
  ck_assert_uint_eq(find(a->base - 1), 0);
  ck_assert_uint_eq(find(a->base + 1024 * MIB), 0);
}
END_TEST

START_TEST(addresses_find_their_arena) {
  enum { N = 200 };
  static struct arena *at[N];
  for (uint64_t i = 0; i < N; i++) at[i * 7 % N] = add_arena((1 + i * 7 % N) * 64 * MIB + (i % 2) * MIB, 2 * MIB);
  for (int i = 0; i < N; i++) {
    ck_assert_ptr_eq(suballoc_arena(&sub, at[i]->base), at[i]);
    ck_assert_ptr_eq(suballoc_arena(&sub, at[i]->base + 2 * MIB - 1), at[i]);
    ck_assert_ptr_null(suballoc_arena(&sub, at[i]->base - 1));
    ck_assert_ptr_null(suballoc_arena(&sub, at[i]->base + 2 * MIB));
    ck_assert(oci_suballoc_overlaps(&sub, at[i]->base - 1, at[i]->base + 1));
    ck_assert(!oci_suballoc_overlaps(&sub, at[i]->base - 1, at[i]->base));
  }
  /* What was found before must not be found after it went. */
  uint64_t base = at[77]->base;
  oci_arena_detach(&sub, at[77]);
  ck_assert_ptr_null(suballoc_arena(&sub, base));
  oci_arena_discard(&sub, at[77]);
  ck_assert_uint_eq(sub.count, N - 1);
}
END_TEST

START_TEST(a_lost_arena_is_never_carved) {
  struct arena *a = add_arena(64 * MIB, 2 * MIB);
  oci_arena_detach(&sub, a);
  ck_assert_uint_eq(carve(1, 256), 0);
  oci_arena_attach_lost(&sub, a, 3);
  ck_assert_uint_eq(carve(1, 256), 0);
  ck_assert_uint_eq(sub.free_units, 0);
  ck_assert_ptr_null(oci_suballoc_empty(&sub));
  ck_assert_uint_eq(slab_at(&sub.slab, find(a->base))->state, BLOCK_LOST);
}
END_TEST

/* More crowded pages than the first array of leaf chunks has room for; each block's own page gives its leaf back. */
START_TEST(leaves_are_as_many_as_crowded_pages) {
  enum { PAGES = 1200, IN_PAGE = 16 };
  static uint32_t at[PAGES * IN_PAGE];
  struct arena *a = add_arena(1024 * MIB, 256 * MIB);
  for (int i = 0; i < PAGES * IN_PAGE; i++) {
    at[i] = carve(256 / IN_PAGE, 256);
    ck_assert_uint_ne(at[i], 0);
  }
  for (int round = 0; round < 2; round++) {
    find_everywhere(a);
    ck_assert_uint_eq(sub.leaves.fresh, PAGES + 1);
  }
  for (int i = 0; i < PAGES * IN_PAGE; i++) oci_suballoc_free(&sub, at[i]);
  expect_whole(a);
  for (int i = 0; i < PAGES; i++) ck_assert_uint_eq(a->pages.entry[i] & PAGE_LEAF, 0);
}
END_TEST

static bool pages_right(const struct arena *a) {
  return oci_pages_check(&a->pages, &sub.leaves, &sub.slab, a->first);
}

/* Is the table found wrong while *word has that value? */
#define WRONG_WITH(a, word, value)     \
  do {                                 \
    __typeof__(word) was_ = (word);    \
    (word) = (value);                  \
    ck_assert(!pages_right(a));        \
    (word) = was_;                     \
    ck_assert(pages_right(a));         \
  } while (0)

START_TEST(check_sees_a_wrong_page_table) {
  struct arena *a = add_arena(1024 * MIB, 2 * MIB);
  uint32_t last = a->pages.count - 1, block = 0;
  for (int i = 0; i < 17; i++) block = carve(15, 256);   /* the last page's, and one block that begins before it */
  uint32_t other = slab_at(&sub.slab, block)->next;
  ck_assert(pages_right(a));
  uint32_t first = a->pages.entry[last];
  ck_assert(first && !(first & PAGE_LEAF));
  WRONG_WITH(a, a->pages.entry[last], slab_at(&sub.slab, first)->next);
  WRONG_WITH(a, a->pages.entry[last], 0);
  WRONG_WITH(a, a->pages.map[last / 64], a->pages.map[last / 64] ^ 2);
  WRONG_WITH(a, a->pages.summary[0], 0);
  WRONG_WITH(a, slab_at(&sub.slab, other)->off, 0);
  find_everywhere(a);
  ck_assert(a->pages.entry[last] & PAGE_LEAF);
  struct leaf *leaf = &sub.leaves.chunks[0][a->pages.entry[last] & ~PAGE_LEAF];
  uint32_t part = lowest_bit(leaf->mask), bare = lowest_bit(~leaf->mask);
  ck_assert_uint_lt(bare, LEAF_PARTS);
  WRONG_WITH(a, leaf->first[part], other);
  WRONG_WITH(a, leaf->first[bare], other);
  WRONG_WITH(a, leaf->mask, leaf->mask ^ 1u << part);
  /* A leaf that was never used, of a page where nothing starts. */
  a->pages.map[0] |= 2;
  a->pages.entry[1] = sub.leaves.fresh | PAGE_LEAF;
  ck_assert(!pages_right(a));
  a->pages.map[0] ^= 2;
  a->pages.entry[1] = 0;
}
END_TEST

/* The ends of a driver's block that is not on a boundary of 256 bytes are in the arena, and in no block. */
START_TEST(lost_ends_have_no_block) {
  struct arena *a = add_arena(64 * MIB + 16, 2 * MIB);
  ck_assert_ptr_eq(suballoc_arena(&sub, a->driver_base), a);
  ck_assert_uint_eq(find(a->driver_base), 0);
  ck_assert_uint_eq(find(a->base - 1), 0);
  ck_assert_uint_eq(find(a->base), a->first);
  ck_assert_uint_eq(find(a->base + units_bytes(a->units) - 1), a->first);
  ck_assert_ptr_eq(suballoc_arena(&sub, a->base + units_bytes(a->units)), a);
  ck_assert_uint_eq(find(a->base + units_bytes(a->units)), 0);
  ck_assert_uint_eq(find(a->driver_base + a->driver_bytes - 1), 0);
}
END_TEST

/* The largest that may be asked for: its bin is the last, behind which nothing is searched. */
START_TEST(the_largest_block) {
  const uint32_t most = (uint32_t)(ARENA_MOST / UNIT_BYTES);
  ck_assert_uint_eq(carve(most, 256), 0);
  ck_assert_uint_eq(carve(most / 4, UINT64_C(1) << 39), 0);
  struct arena *a = add_arena(UINT64_C(1) << 46, ARENA_MOST);
  uint32_t index = carve(most, 256);
  ck_assert_uint_eq(addr_of(index), a->base);
  ck_assert_uint_eq(carve(most, 256), 0);
  ck_assert_uint_eq(find(a->base + ARENA_MOST - 1), index);
  oci_suballoc_free(&sub, index);
  index = carve((uint32_t)(MIB / UNIT_BYTES), UINT64_C(1) << 39);
  ck_assert_uint_eq(addr_of(index), (UINT64_C(1) << 46) + (UINT64_C(1) << 39));
  oci_suballoc_free(&sub, index);
  expect_whole(a);
}
END_TEST

static bool fail_nth(void *arg, size_t bytes) {
  int *left = arg;
  (void)bytes;
  return (*left)-- == 0;
}

/* G33: host memory fails at any call of prepare; nothing is left over. */
START_TEST(preparing_fails_clean) {
  int nth = 0;
  for (;; nth++) {
    int left = nth;
    oci_mem_set_fault(fail_nth, &left);
    struct arena *a = oci_arena_prepare(&sub, 64 * MIB);
    oci_mem_set_fault(NULL, NULL);
    if (a) {
      oci_arena_discard(&sub, a);
      break;
    }
    ck_assert_uint_eq(sub.count, 0);
  }
  ck_assert_int_gt(nth, 5);
}
END_TEST

START_TEST(g33_without_memory_for_a_record_nothing_changes) {
  struct arena *a = add_arena(64 * MIB, 2 * MIB);
  uint32_t carved = 0, index = 77;
  oci_mem_set_fault(no_memory, NULL);
  while (oci_suballoc_carve(&sub, 1, 256, &index) == POOL_OK) carved++;
  ck_assert_int_eq(oci_suballoc_carve(&sub, 1, 256, &index), POOL_E_HOST_NOMEM);
  ck_assert_uint_eq(carved, sub.slab.capacity - 3);   /* index 0, the free rest, and two are always at hand */
  ck_assert_uint_eq(a->used, carved);
  oci_mem_set_fault(NULL, NULL);
  ck_assert_int_eq(oci_suballoc_carve(&sub, 1, 256, &index), POOL_OK);
  ck_assert_uint_eq(a->used, carved + 1);
}
END_TEST

/* Slots are named by 16 bits. As if so many arenas were there: their slots are taken. */
START_TEST(arenas_end_where_slots_do) {
  const uint32_t old = 40000;
  struct arena other;
  sub.spans = meta_alloc(&meta, old * sizeof *sub.spans);
  sub.slots = meta_alloc(&meta, old * sizeof *sub.slots);
  sub.capacity = old;
  for (uint32_t i = 0; i < old; i++) sub.slots[i] = &other;
  struct arena *a = oci_arena_prepare(&sub, 2 * MIB);
  ck_assert_ptr_nonnull(a);
  ck_assert_uint_eq(a->slot, old);
  ck_assert_uint_eq(sub.capacity, ARENA_SLOTS);
  for (uint32_t i = old + 1; i < ARENA_SLOTS; i++) sub.slots[i] = &other;
  size_t bytes = meta_bytes(&meta);
  ck_assert_ptr_null(oci_arena_prepare(&sub, 2 * MIB));
  ck_assert_uint_eq(meta_bytes(&meta), bytes);
  oci_arena_discard(&sub, a);
  a = oci_arena_prepare(&sub, 2 * MIB);
  ck_assert_uint_eq(a->slot, old);
  oci_arena_discard(&sub, a);
}
END_TEST

int main(void) {
  Suite *s = suite_create("suballoc");
  TCase *t = tcase_create("suballoc");
  tcase_add_checked_fixture(t, setup, teardown);
  tcase_set_timeout(t, 60);
  tcase_add_test(t, blocks_join_again_in_any_order);
  tcase_add_test(t, alignment_is_of_the_absolute_address);
  tcase_add_test(t, an_aligned_block_that_just_fits_is_found);
  tcase_add_test(t, the_exact_size_is_found_again);
  tcase_add_test(t, an_exact_reserve_is_enough);
  tcase_add_loop_test(t, any_address_finds_its_block, 0, 2);
  tcase_add_test(t, addresses_find_their_arena);
  tcase_add_test(t, a_lost_arena_is_never_carved);
  tcase_add_test(t, preparing_fails_clean);
  tcase_add_test(t, leaves_are_as_many_as_crowded_pages);
  tcase_add_test(t, check_sees_a_wrong_page_table);
  tcase_add_test(t, lost_ends_have_no_block);
  tcase_add_test(t, the_largest_block);
  tcase_add_test(t, g33_without_memory_for_a_record_nothing_changes);
  tcase_add_test(t, arenas_end_where_slots_do);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
