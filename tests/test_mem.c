/* SPDX-License-Identifier: MIT */
/* Host memory: zeroed, aligned, counted, failing on request; heaps that are used again; the thread's last error on it. */
#include "config.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rcu/error.h"
#include "rcu/mem.h"
#include "tests/fixture.h"

static const size_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 100, 320, 1000, 4096, 4097, 65536, 100000, (1 << 20) - 1,
                               1 << 20, (1 << 20) + 1, 5 << 20};
#define SIZES (sizeof sizes / sizeof *sizes)

static void dirty(void *p, size_t n) {
  memset(p, 0xA5, n);
}

static bool zeroed(const void *p, size_t n) {
  const unsigned char *c = p;
  for (size_t i = 0; i < n; i++)
    if (c[i]) return false;
  return true;
}

static void each_size_is_zeroed_and_aligned(struct heap *h) {
  void *p[SIZES];
  for (int round = 0; round < 3; round++) {   /* memory that was used before too */
    size_t sum = 0, before = oci_heap_bytes(h);
    for (size_t i = 0; i < SIZES; i++) {
      p[i] = oci_alloc(h, sizes[i]);
      ck_assert_ptr_nonnull(p[i]);
      ck_assert_uint_eq((uintptr_t)p[i] % (sizes[i] >= 64 ? 64 : 16), 0);
      ck_assert_msg(zeroed(p[i], sizes[i]), "%zu bytes", sizes[i]);
      dirty(p[i], sizes[i]);
      sum += sizes[i];
    }
    ck_assert_uint_eq(oci_heap_bytes(h), before + sum);
    for (size_t i = 0; i < SIZES; i++) oci_free(h, p[i], sizes[i]);
    ck_assert_uint_eq(oci_heap_bytes(h), before);
  }
}

START_TEST(memory_is_zeroed_aligned_and_counted) {
  struct heap *h = oci_heap_create();
  each_size_is_zeroed_and_aligned(h);
  oci_free(h, NULL, 100);
  ck_assert_uint_eq(oci_heap_bytes(h), 0);
  oci_heap_destroy(h);
  oci_heap_destroy(NULL);
}
END_TEST

START_TEST(the_process_heap_does_the_same) {
  each_size_is_zeroed_and_aligned(NULL);
  oci_free(NULL, NULL, 7);
}
END_TEST

START_TEST(what_is_too_large_is_no_memory) {
  struct heap *h = oci_heap_create();
  static const size_t huge[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 62, SIZE_MAX - 4096};
  for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
    ck_assert_ptr_null(oci_alloc(h, huge[i]));
    ck_assert_ptr_null(oci_alloc(NULL, huge[i]));
  }
  ck_assert_uint_eq(oci_heap_bytes(h), 0);
  oci_heap_destroy(h);
}
END_TEST

START_TEST(strings_are_copied) {
  struct heap *h = oci_heap_create();
  char text[] = "a name";
  char *copy = oci_strdup(h, text), *empty = oci_strdup(h, "");
  text[0] = 'b';
  ck_assert_str_eq(copy, "a name");
  ck_assert_str_eq(empty, "");
  ck_assert_uint_eq(oci_heap_bytes(h), 8);
  oci_strfree(h, copy);
  oci_strfree(h, empty);
  oci_strfree(h, NULL);
  ck_assert_uint_eq(oci_heap_bytes(h), 0);
  oci_heap_destroy(h);
}
END_TEST

/* ---- faults ---- */

struct fault {
  unsigned asked;
  size_t last, fail_from;
};

static bool fail_large(void *arg, size_t bytes) {
  struct fault *f = arg;
  f->asked++;
  f->last = bytes;
  return bytes >= f->fail_from;
}

START_TEST(faults_are_asked_for_before_every_allocation) {
  struct fault f = {.fail_from = 100};
  struct heap *h = oci_heap_create();
  oci_mem_set_fault(fail_large, &f);
  void *p = oci_alloc(h, 99), *q = oci_alloc(NULL, 99);
  ck_assert(p && q);
  ck_assert_uint_eq(f.asked, 2);
  ck_assert_ptr_null(oci_alloc(h, 100));
  ck_assert_ptr_null(oci_alloc(NULL, 5 << 20));
  ck_assert_uint_eq(f.asked, 4);
  ck_assert_uint_eq(f.last, 5 << 20);
  char long_text[200];
  memset(long_text, 'x', sizeof long_text - 1);
  long_text[199] = 0;
  ck_assert_ptr_null(oci_strdup(h, long_text));
  ck_assert_uint_eq(oci_heap_bytes(h), 99);
  f.fail_from = 0;
  ck_assert_ptr_null(oci_heap_create());
  oci_mem_set_fault(NULL, NULL);
  oci_free(h, p, 99);
  oci_free(NULL, q, 99);
  oci_heap_destroy(h);
}
END_TEST

/* ---- heaps ---- */

static char said[256];

static void keep_line(void *arg, int level, const char *line) {
  (void)arg;
  ck_assert_int_eq(level, OCI_LOG_ERROR);
  snprintf(said, sizeof said, "%s", line);
}

START_TEST(a_heap_that_is_not_empty_says_so) {
  struct heap *h = oci_heap_create();
  void *p = oci_alloc(h, 1234);
  ck_assert_ptr_nonnull(p);
  oci_set_log(keep_line, NULL);
#if defined(OC_JEMALLOC_PRIVATE)
  oci_heap_destroy(h);   /* its arena is reset: nothing leaks */
  ck_assert_msg(strstr(said, "1234 bytes") != NULL, "%s", said);
  h = oci_heap_create();
  ck_assert_uint_eq(oci_heap_bytes(h), 0);
#else
  oci_free(h, p, 1200);   /* where libc would keep the rest, only the count is left over */
  oci_heap_destroy(h);
  ck_assert_msg(strstr(said, "34 bytes") != NULL, "%s", said);
  h = NULL;
#endif
  oci_set_log(NULL, NULL);
  oci_heap_destroy(h);
}
END_TEST

static size_t resident(void) {
  size_t pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  ck_assert_ptr_nonnull(f);
  ck_assert_int_eq(fscanf(f, "%*s %zu", &pages), 1);
  fclose(f);
  return pages * 4096;
}

static void fill_and_drop(void) {
  static void *p[2000];
  struct heap *h = oci_heap_create();
  for (int i = 0; i < 2000; i++) {
    p[i] = oci_alloc(h, 1000);
    dirty(p[i], 1000);
  }
  for (int i = 0; i < 2000; i++) oci_free(h, p[i], 1000);
  oci_heap_destroy(h);
}

/* S3: arenas are used again; a cycle leaves nothing. */
START_TEST(s3_heaps_come_and_go_and_memory_stays_flat) {
#ifdef __SANITIZE_ADDRESS__
  fx_skip("AddressSanitizer keeps freed memory for a while");
  return;
#endif
  for (int i = 0; i < 20; i++) fill_and_drop();
  size_t before = resident();
  for (unsigned i = 0; i < fx_scale(500); i++) fill_and_drop();
  size_t after = resident();
  ck_assert_msg(after < before + (4 << 20), "%zu bytes resident after %zu", after, before);
}
END_TEST

START_TEST(heaps_alive_at_once_are_apart) {
  struct heap *h[20];
  void *p[20];
  for (int i = 0; i < 20; i++) {
    h[i] = oci_heap_create();
    p[i] = oci_alloc(h[i], 4000);
    memset(p[i], i, 4000);
  }
  for (int i = 0; i < 20; i += 2) {
    oci_free(h[i], p[i], 4000);
    oci_heap_destroy(h[i]);
  }
  for (int i = 1; i < 20; i += 2) {
    for (int n = 0; n < 4000; n++) ck_assert_int_eq(((unsigned char *)p[i])[n], i);
    ck_assert_uint_eq(oci_heap_bytes(h[i]), 4000);
    oci_free(h[i], p[i], 4000);
    oci_heap_destroy(h[i]);
  }
}
END_TEST

static void alloc_and_free(void *arg, unsigned i) {
  struct heap *h = arg;
  void *p[64] = {0};
  size_t n[64] = {0};
  uint64_t seed = i;
  for (unsigned round = 0; round < 20000; round++) {
    unsigned at = (unsigned)(fx_random(&seed) % 64);
    if (p[at]) {
      oci_free(h, p[at], n[at]);
      p[at] = NULL;
      continue;
    }
    n[at] = fx_random(&seed) % 3000;
    p[at] = oci_alloc(h, n[at]);
    if (!zeroed(p[at], n[at])) abort();
    dirty(p[at], n[at]);
  }
  for (unsigned at = 0; at < 64; at++) oci_free(h, p[at], n[at]);
}

START_TEST(any_thread_may_use_a_heap) {
  struct heap *h = oci_heap_create();
  fx_threads(4, alloc_and_free, h);
  ck_assert_uint_eq(oci_heap_bytes(h), 0);
  oci_heap_destroy(h);
}
END_TEST

/* ---- the thread's last error ---- */

static bool fail_all(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return true;
}

static void *without_memory(void *arg) {
  (void)arg;
  oci_mem_set_fault(fail_all, NULL);
  int st = oci_error(-4, "no memory for this");
  const char *text = oci_error_text();
  int added = oci_error_add(-22, "and more");
  bool same = strcmp(text, oci_error_text()) == 0;
  oci_mem_set_fault(NULL, NULL);
  return (void *)(uintptr_t)(st == -4 && added == -22 && same && strstr(text, "host memory") != NULL);
}

START_TEST(an_error_without_memory_for_its_text_is_still_an_error) {
  pthread_t t;
  void *right;
  pthread_create(&t, NULL, without_memory, NULL);   /* a thread that has no text yet */
  pthread_join(t, &right);
  ck_assert_ptr_nonnull(right);
}
END_TEST

static void *add_to_nothing(void *arg) {
  (void)arg;
  return (void *)(uintptr_t)(oci_error_add(-22, "step %d", 2) == -22 && strcmp(oci_error_text(), "step 2") == 0);
}

START_TEST(error_texts_are_added_to_and_cut) {
  pthread_t t;
  void *right;
  ck_assert_str_eq(oci_error_text(), "");
  pthread_create(&t, NULL, add_to_nothing, NULL);
  pthread_join(t, &right);
  ck_assert_ptr_nonnull(right);
  ck_assert_int_eq(oci_error(-22, "alloc(%d): %s", 5, "out"), -22);
  ck_assert_str_eq(oci_error_text(), "alloc(5): out");
  ck_assert_int_eq(oci_error_add(-22, "then %s", "managed"), -22);
  ck_assert_str_eq(oci_error_text(), "alloc(5): out; then managed");
  ck_assert_int_eq(oci_error(-1, "again: %s", oci_error_text()), -1);   /* made of itself */
  ck_assert_str_eq(oci_error_text(), "again: alloc(5): out; then managed");
  for (int i = 0; i < 500; i++) oci_error_add(-1, "and a long tail of more words, number %d", i);
  ck_assert_uint_lt(strlen(oci_error_text()), 2000);
  ck_assert_int_eq(strncmp(oci_error_text(), "again: alloc(5)", 15), 0);
}
END_TEST

static void own_error(void *arg, unsigned i) {
  uint32_t *bad = arg;
  char want[32];
  for (int n = 0; n < 1000; n++) {
    snprintf(want, sizeof want, "thread %u, error %d", i, n);
    oci_error(-1, "%s", want);
    if (strcmp(oci_error_text(), want) != 0) __atomic_add_fetch(bad, 1, __ATOMIC_RELAXED);
  }
}

START_TEST(each_thread_has_its_own_error) {
  uint32_t bad = 0;
  oci_error(-1, "mine");
  fx_threads(4, own_error, &bad);
  ck_assert_uint_eq(bad, 0);
  ck_assert_str_eq(oci_error_text(), "mine");
}
END_TEST

int main(void) {
  Suite *s = suite_create("mem");
  TCase *c = tcase_create("mem");
  tcase_set_timeout(c, 20);
  printf("host memory: %s\n", oci_mem_kind());
  fflush(stdout);
  tcase_add_test(c, memory_is_zeroed_aligned_and_counted);
  tcase_add_test(c, the_process_heap_does_the_same);
  tcase_add_test(c, what_is_too_large_is_no_memory);
  tcase_add_test(c, strings_are_copied);
  tcase_add_test(c, faults_are_asked_for_before_every_allocation);
  tcase_add_test(c, a_heap_that_is_not_empty_says_so);
  tcase_add_test(c, s3_heaps_come_and_go_and_memory_stays_flat);
  tcase_add_test(c, heaps_alive_at_once_are_apart);
  tcase_add_test(c, any_thread_may_use_a_heap);
  tcase_add_test(c, an_error_without_memory_for_its_text_is_still_an_error);
  tcase_add_test(c, error_texts_are_added_to_and_cut);
  tcase_add_test(c, each_thread_has_its_own_error);
  suite_add_tcase(s, c);
  return fx_run(s);
}
