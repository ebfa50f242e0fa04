/* SPDX-License-Identifier: MIT */
/* The vector by small id: bounds (G4), no value lost while it grows, out of memory. */
#include "config.h"

#include "rcu/dense.h"
#include "tests/fixture.h"

static struct heap *heap;
static struct dense dense;
static bool no_memory;

static bool fail_if_told(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return no_memory;
}

static void setup(void) {
  heap = oci_heap_create();
  dense = (struct dense){0};
  oci_mem_set_fault(fail_if_told, NULL);
}

static void teardown(void) {
  oci_dense_free(&dense, heap);
  ck_assert_uint_eq(oci_heap_bytes(heap), 0);
  oci_mem_set_fault(NULL, NULL);
  oci_heap_destroy(heap);
}

static void *value_of(uint32_t id) {
  return (void *)((uintptr_t)id * 8 + 8);
}

START_TEST(g4_ids_are_bounds_checked) {
  static const uint32_t out[] = {DENSE_IDS, DENSE_IDS + 1, UINT32_MAX, UINT32_MAX - 1, 1u << 31};
  for (size_t i = 0; i < sizeof out / sizeof *out; i++) ck_assert_ptr_null(oci_dense_get(&dense, out[i]));
  ck_assert_ptr_null(oci_dense_get(&dense, 0));
  ck_assert(oci_dense_set(&dense, heap, DENSE_IDS - 1, value_of(3)));
  ck_assert(oci_dense_set(&dense, heap, 0, value_of(4)));
  ck_assert_ptr_eq(oci_dense_get(&dense, DENSE_IDS - 1), value_of(3));
  ck_assert_ptr_eq(oci_dense_get(&dense, 0), value_of(4));
  ck_assert_ptr_null(oci_dense_get(&dense, 1));
  ck_assert_ptr_null(oci_dense_get(&dense, DENSE_IDS));
}
END_TEST

START_TEST(all_ids_hold_their_own) {
  for (uint32_t id = 0; id < DENSE_IDS; id++) {
    ck_assert_ptr_null(oci_dense_get(&dense, id));
    ck_assert(oci_dense_set(&dense, heap, id, value_of(id)));
  }
  for (uint32_t id = 0; id < DENSE_IDS; id++) ck_assert_ptr_eq(oci_dense_get(&dense, id), value_of(id));
  ck_assert_uint_eq(oci_heap_bytes(heap), DENSE_IDS * sizeof(void *));
}
END_TEST

START_TEST(g33_without_memory_nothing_is_set) {
  ck_assert(oci_dense_set(&dense, heap, 7, value_of(7)));
  no_memory = true;
  ck_assert(!oci_dense_set(&dense, heap, DENSE_CHUNK, value_of(1)));
  ck_assert_ptr_null(oci_dense_get(&dense, DENSE_CHUNK));
  ck_assert(oci_dense_set(&dense, heap, 8, value_of(8)));   /* its chunk is there */
  no_memory = false;
  ck_assert(oci_dense_set(&dense, heap, DENSE_CHUNK, value_of(1)));
  ck_assert_ptr_eq(oci_dense_get(&dense, 7), value_of(7));
  ck_assert_ptr_eq(oci_dense_get(&dense, 8), value_of(8));
}
END_TEST

struct race {
  uint32_t set;     /* atomic: ids below are */
  uint64_t bad;     /* atomic */
};

static void grow_or_read(void *arg, unsigned i) {
  struct race *r = arg;
  if (i == 0) {
    for (uint32_t id = 0; id < DENSE_IDS; id++) {
      if (!oci_dense_set(&dense, heap, id, value_of(id))) __atomic_add_fetch(&r->bad, 1, __ATOMIC_RELAXED);
      __atomic_store_n(&r->set, id + 1, __ATOMIC_RELEASE);
    }
    return;
  }
  uint64_t x = i;
  for (uint32_t set = 0; set < DENSE_IDS;) {
    set = __atomic_load_n(&r->set, __ATOMIC_ACQUIRE);
    uint32_t id = (uint32_t)(fx_random(&x) % DENSE_IDS);
    void *v = oci_dense_get(&dense, id);
    if (v ? v != value_of(id) : id < set) __atomic_add_fetch(&r->bad, 1, __ATOMIC_RELAXED);
  }
}

START_TEST(g6_nothing_is_lost_while_it_grows) {
  struct race r = {0};
  fx_threads(3, grow_or_read, &r);
  ck_assert_uint_eq(r.bad, 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("dense");
  TCase *c = tcase_create("dense");
  tcase_add_checked_fixture(c, setup, teardown);
  tcase_add_test(c, g4_ids_are_bounds_checked);
  tcase_add_test(c, all_ids_hold_their_own);
  tcase_add_test(c, g33_without_memory_nothing_is_set);
  tcase_add_test(c, g6_nothing_is_lost_while_it_grows);
  suite_add_tcase(s, c);
  return fx_run(s);
}
