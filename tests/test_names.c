/* SPDX-License-Identifier: MIT */
/* The memo by one or two strings (G4): content decides, whatever the hash says; and the hash and comparison under it. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rcu/mem.h"
#include "rcu/names.h"
#include "tests/fixture.h"

struct record {
  struct name name;
  uint64_t n;
};

static struct heap *heap;
static struct map names;
static unsigned allocations, fail_at;   /* 0: none */

static bool fail_nth(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return ++allocations == fail_at;
}

static void setup(void) {
  heap = oci_heap_create();
  oci_map_init(&names, heap);
  allocations = fail_at = 0;
  oci_mem_set_fault(fail_nth, NULL);
}

static void teardown(void) {
  oci_names_free(&names, sizeof(struct record), NULL, NULL);
  ck_assert_uint_eq(oci_heap_bytes(heap), 0);
  oci_mem_set_fault(NULL, NULL);
  oci_heap_destroy(heap);
}

static struct record *get(const char *a, const char *b) {
  struct lookup k = oci_lookup(a, b);
  return (struct record *)oci_names_get(&names, &k);
}

static struct record *add(const char *a, const char *b, uint64_t n) {
  struct lookup k = oci_lookup(a, b);
  struct record *r = (struct record *)oci_names_add(&names, &k, sizeof *r);
  if (r) r->n = n;
  return r;
}

/* As if the hash function had answered `hash`. */
static struct lookup with_hash(const char *a, const char *b, uint64_t hash) {
  struct lookup k = oci_lookup(a, b);
  k.hash = hash;
  return k;
}

START_TEST(g4_content_decides) {
  static const char *const pairs[][2] = {
    {"gemm", "f"}, {"gem", "mf"}, {"gemmf", ""}, {"", "gemmf"}, {"", ""}, {"f", "gemm"}, {"gemm", "F"}, {"gemm ", "f"},
    {"gemm", "ff"}, {"a-name-of-more-than-eight-bytes", "x"}, {"a-name-of-more-than-eight-byteS", "x"}, {"\xff\xfe", "\x80"},
  };
  const size_t n = sizeof pairs / sizeof *pairs;
  for (size_t i = 0; i < n; i++) {
    ck_assert_ptr_null(get(pairs[i][0], pairs[i][1]));
    ck_assert_ptr_nonnull(add(pairs[i][0], pairs[i][1], i));
  }
  for (size_t i = 0; i < n; i++) {
    const struct record *r = get(pairs[i][0], pairs[i][1]);
    ck_assert_uint_eq(r->n, i);
    ck_assert_str_eq(oci_name_a(&r->name), pairs[i][0]);
    ck_assert_str_eq(oci_name_b(&r->name), pairs[i][1]);
  }
}
END_TEST

START_TEST(g4_a_reused_buffer_is_another_name) {
  char a[32] = "first", b[32] = "func";
  struct record *r = add(a, b, 1);
  strcpy(a, "other");
  ck_assert_ptr_null(get(a, b));
  ck_assert_str_eq(oci_name_a(&r->name), "first");
  strcpy(a, "first");
  strcpy(b, "fun");
  ck_assert_ptr_null(get(a, b));
  ck_assert_ptr_eq(get("first", "func"), r);
}
END_TEST

START_TEST(g4_names_of_one_hash_are_told_apart) {
  char text[16];
  for (unsigned i = 0; i < 50; i++) {
    snprintf(text, sizeof text, "name%u", i);
    struct lookup k = with_hash(text, "f", 42 + i % 2);
    ck_assert_ptr_null(oci_names_get(&names, &k));
    struct record *r = (struct record *)oci_names_add(&names, &k, sizeof *r);
    r->n = i;
  }
  for (unsigned i = 0; i < 50; i++) {
    snprintf(text, sizeof text, "name%u", i);
    struct lookup k = with_hash(text, "f", 42 + i % 2);
    ck_assert_uint_eq(((struct record *)oci_names_get(&names, &k))->n, i);
    k = with_hash(text, "g", 42 + i % 2);
    ck_assert_ptr_null(oci_names_get(&names, &k));
  }
}
END_TEST

static void sum_up(void *arg, struct name *n) {
  *(uint64_t *)arg += ((struct record *)n)->n;
}

START_TEST(each_record_is_told_once) {
  char text[16];
  uint64_t sum = 0;
  for (unsigned i = 1; i <= 1000; i++) {
    snprintf(text, sizeof text, "%u", i);
    struct lookup k = i % 10 ? oci_lookup(text, NULL) : with_hash(text, NULL, 7);
    ((struct record *)oci_names_add(&names, &k, sizeof(struct record)))->n = i;
  }
  oci_names_each(&names, sum_up, &sum);
  ck_assert_uint_eq(sum, 500500);
  sum = 0;
  oci_names_free(&names, sizeof(struct record), sum_up, &sum);
  ck_assert_uint_eq(sum, 500500);
}
END_TEST

START_TEST(g33_every_allocation_of_an_add_may_fail) {
  unsigned failed = 0;
  for (fail_at = 1;; fail_at++) {
    allocations = 0;
    struct record *r = add("module", "function", 1);
    if (r) break;
    failed++;
    ck_assert_ptr_null(get("module", "function"));
    ck_assert_uint_eq(oci_heap_bytes(heap), oci_map_bytes(&names));   /* room that was made may stay */
    oci_names_free(&names, sizeof(struct record), NULL, NULL);
  }
  ck_assert_uint_ge(failed, 2);   /* the map's table, the record */
  ck_assert_uint_eq(get("module", "function")->n, 1);
}
END_TEST

/* Lengths have 32 bits in a record: a longer name is refused, and no memory asked for. */
START_TEST(g33_a_name_of_4_gib_is_refused) {
  for (int second = 0; second < 2; second++) {
    struct lookup k = oci_lookup("module", "function");
    *(second ? &k.b_bytes : &k.a_bytes) = UINT32_MAX;
    ck_assert_ptr_null(oci_names_add(&names, &k, sizeof(struct record)));
    ck_assert_uint_eq(allocations, 0);
  }
}
END_TEST

/* Readers while one chain grows and the map with it. */
static void look_or_add(void *arg, unsigned i) {
  uint64_t *bad = arg;
  char text[16];
  for (unsigned n = 0; n < 2000; n++) {
    snprintf(text, sizeof text, "n%u", n);
    struct lookup k = n % 4 ? oci_lookup(text, NULL) : with_hash(text, NULL, 99);
    if (i == 0) {
      struct record *r = (struct record *)oci_names_add(&names, &k, sizeof *r);
      __atomic_store_n(&r->n, n, __ATOMIC_RELEASE);
      continue;
    }
    struct record *r = (struct record *)oci_names_get(&names, &k);
    if (r && (strcmp(oci_name_a(&r->name), text) != 0 || (__atomic_load_n(&r->n, __ATOMIC_ACQUIRE) | n) != n))
      __atomic_add_fetch(bad, 1, __ATOMIC_RELAXED);
  }
}

START_TEST(readers_find_the_right_name_while_others_are_added) {
  uint64_t bad = 0;
  fx_threads(3, look_or_add, &bad);
  ck_assert_uint_eq(bad, 0);
  for (unsigned n = 0; n < 2000; n++) {
    char text[16];
    snprintf(text, sizeof text, "n%u", n);
    struct lookup k = n % 4 ? oci_lookup(text, NULL) : with_hash(text, NULL, 99);
    ck_assert_uint_eq(((struct record *)oci_names_get(&names, &k))->n, n);
  }
}
END_TEST

/* ---- the hash, the comparison ---- */

/* At the very end of its own allocation, so that a read past it is found by AddressSanitizer. */
static char *exact(const char *from, size_t n) {
  char *p = malloc(n ? n : 1);
  memcpy(p, from, n);
  return p;
}

START_TEST(every_byte_counts) {
  char text[101];
  for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * 7 % 26);
  for (size_t n = 0; n <= 100; n++) {
    char *a = exact(text, n), *b = exact(text, n);
    ck_assert_uint_eq(oci_hash_bytes(a, n, 1), oci_hash_bytes(b, n, 1));
    for (size_t i = 0; i < n; i++) {
      for (int bit = 0; bit < 8; bit++) {
        b[i] = (char)(b[i] ^ 1 << bit);
        ck_assert_msg(oci_hash_bytes(a, n, 1) != oci_hash_bytes(b, n, 1), "byte %zu of %zu", i, n);
        b[i] = a[i];
      }
    }
    free(a);
    free(b);
  }
}
END_TEST

/* `n` letters, at the very end of an allocation. */
static char *letters(size_t n, unsigned first) {
  char text[64];
  for (size_t i = 0; i < n; i++) text[i] = (char)('a' + (first + i * 7) % 26);
  text[n] = 0;
  return exact(text, n + 1);
}

/* Of every length on both sides of those that are ordinary, and of ordinary ones beside others; with_hash makes the
   comparison alone decide. */
START_TEST(g4_names_of_all_lengths_are_compared_in_full) {
  for (size_t n = 0; n <= 40; n++) {
    for (size_t m = 0; m <= 40; m++) {
      char *a = letters(n, 1), *b = letters(m, 2);
      struct lookup k = with_hash(a, b, 5);
      ck_assert_ptr_null(oci_names_get(&names, &k));
      ck_assert_ptr_nonnull(oci_names_add(&names, &k, sizeof(struct record)));
      ck_assert_ptr_nonnull(oci_names_get(&names, &k));
      free(a);
      free(b);
    }
  }
  for (size_t n = 0; n <= 40; n++) {
    for (size_t m = 0; m <= 40; m += n ? 3 : 1) {
      char *a = letters(n, 1), *b = letters(m, 2);
      for (size_t i = 0; i < n + m; i++) {
        char *at = i < n ? &a[i] : &b[i - n];
        *at = (char)(*at ^ 1);
        struct lookup k = with_hash(a, b, 5);
        ck_assert_msg(!oci_names_get(&names, &k), "byte %zu of %zu and %zu", i, n, m);
        *at = (char)(*at ^ 1);
      }
      free(a);
      free(b);
    }
  }
}
END_TEST

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Names as engines make them must not meet, in full or in the bits that choose a slot of a large table. */
START_TEST(names_in_a_row_do_not_collide) {
  enum { N = 100000 };
  static uint64_t hash[N], top[N];
  char text[32];
  for (unsigned i = 0; i < N; i++) {
    snprintf(text, sizeof text, "kernel_%u", i);
    hash[i] = oci_lookup("gemm", text).hash;
    top[i] = oci_hash_u64(hash[i]) >> 44;
  }
  qsort(hash, N, sizeof *hash, by_value);
  qsort(top, N, sizeof *top, by_value);
  unsigned met = 0;
  for (unsigned i = 1; i < N; i++) {
    ck_assert_uint_ne(hash[i - 1], hash[i]);
    met += top[i - 1] == top[i];
  }
  ck_assert_uint_le(met, 6000);   /* 100,000 in 1,048,576 slots: 4,600 by chance */
}
END_TEST

int main(void) {
  Suite *s = suite_create("names");
  TCase *c = tcase_create("names");
  tcase_add_checked_fixture(c, setup, teardown);
  tcase_set_timeout(c, 30);
  tcase_add_test(c, g4_content_decides);
  tcase_add_test(c, g4_a_reused_buffer_is_another_name);
  tcase_add_test(c, g4_names_of_one_hash_are_told_apart);
  tcase_add_test(c, each_record_is_told_once);
  tcase_add_test(c, g33_every_allocation_of_an_add_may_fail);
  tcase_add_test(c, g33_a_name_of_4_gib_is_refused);
  tcase_add_test(c, readers_find_the_right_name_while_others_are_added);
  tcase_add_test(c, every_byte_counts);
  tcase_add_test(c, g4_names_of_all_lengths_are_compared_in_full);
  tcase_add_test(c, names_in_a_row_do_not_collide);
  suite_add_tcase(s, c);
  return fx_run(s);
}
