/* SPDX-License-Identifier: MIT */
/* The pool over a device that runs out, refuses and answers late: growth, latch, frees, ledger, reports. */
#define _GNU_SOURCE
#include "config.h"

#include <check.h>
#include <ctype.h>
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fakedev.h"
#include "allocator/pool_internal.h"
#include "rcu/mem.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define USER BLOCK_BIT(BLOCK_USER)

static struct fakedev dev;
static struct heap *heap;
static struct pool *pool;

static void open_pool(bool can_manage, bool events, struct pool_options opt) {
  struct pool_device d = fake_device(&dev, can_manage, events);
  heap = oci_heap_create();
  ck_assert_ptr_nonnull(heap);
  ck_assert_int_eq(oci_pool_create(&d, &opt, heap, &pool), POOL_OK);
}

static void setup(void) {
  fake_init(&dev);
  open_pool(true, true, (struct pool_options){0});
}

static void again(bool can_manage, bool events, struct pool_options opt) {
  oci_pool_release_arenas(pool, NULL, NULL);
  oci_pool_destroy(pool);
  oci_heap_destroy(heap);
  fake_init(&dev);
  open_pool(can_manage, events, opt);
}

static void check(void) { ck_assert_msg(oci_pool_check(pool) == POOL_OK, "%s", oci_error_text()); }

static void teardown(void) {
  oci_mem_set_fault(NULL, NULL);
  check();
  dev.free_fails = 0;
  oci_pool_release_arenas(pool, NULL, NULL);
  check();
  ck_assert_uint_eq(dev.count, 0);
  ck_assert_uint_eq(dev.bad_frees, 0);
  ck_assert_uint_eq(dev.events, 0);
  oci_pool_destroy(pool);
  ck_assert_uint_eq(oci_heap_bytes(heap), 0);
  oci_heap_destroy(heap);
}

static struct pool_stats stats(void) {
  struct pool_stats s;
  oci_pool_stats(pool, &s);
  ck_assert_uint_eq(s.live_bytes + s.retired_bytes + s.free_bytes, s.arena_bytes);
  return s;
}

static int try_get(size_t bytes, size_t align, enum block_class class, uint64_t *out) {
  static const struct pool_site site = {"tests/pool.c", 1, "get"};
  struct pool_request r = {.bytes = bytes, .align = align, .class = class, .site = &site};
  return oci_pool_alloc(pool, &r, out);
}

static uint64_t get(size_t bytes) {
  uint64_t ptr = 0;
  ck_assert_msg(try_get(bytes, 0, BLOCK_USER, &ptr) == POOL_OK, "%s", oci_error_text());
  ck_assert_uint_eq(ptr % 256, 0);
  return ptr;
}

static int give(uint64_t ptr, enum pool_release how, uintptr_t stream) {
  return oci_pool_free(pool, ptr, USER, how, (void *)stream, false);
}

static void put(uint64_t ptr) { ck_assert_msg(give(ptr, RELEASE_NOW, 0) == POOL_OK, "%s", oci_error_text()); }

static bool said(const char *words) { return strstr(oci_error_text(), words) != NULL; }

/* ---- G16: what may be asked ---- */

START_TEST(g16_nonsense_is_invalid) {
  uint64_t ptr = 7;
  ck_assert_int_eq(try_get(0, 0, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert_int_eq(try_get(1, 3, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert_int_eq(try_get(1, 257, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert_int_eq(try_get(SIZE_MAX, 0, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert_int_eq(try_get(SIZE_MAX - 255, 0, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert_int_eq(try_get(SIZE_MAX / 2, (size_t)1 << 63, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert_int_eq(try_get(SIZE_MAX / 2, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert_int_eq(try_get(1, (size_t)1 << 62, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert_int_eq(try_get(ARENA_MOST - 2 * MIB, 4 * MIB, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert(said("larger than an arena can be"));
  ck_assert_uint_eq(ptr, 7);
  ck_assert_uint_eq(dev.allocs, 0);
  ck_assert(!oci_pool_fell_back(pool));
}
END_TEST

START_TEST(g16_alignment_small_and_large) {
  uint64_t ptr;
  for (size_t align = 1; align <= 64 * MIB; align *= 2) {
    ck_assert_int_eq(try_get(1000, align, BLOCK_USER, &ptr), POOL_OK);
    ck_assert_uint_eq(ptr % (align > 256 ? align : 256), 0);
    check();
  }
}
END_TEST

/* A backend whose addresses are multiples of 16 only. */
START_TEST(g16_a_base_of_a_malloc) {
  uint64_t ptr, other;
  dev.skew = 16;
  ck_assert_int_eq(try_get(128 * MIB, 0, BLOCK_USER, &ptr), POOL_OK);   /* its own arena: the first one is too small */
  ck_assert_uint_eq(ptr % 256, 0);
  ck_assert_uint_eq(dev.allocs, 2);
  ck_assert_uint_eq(dev.frees, 1);
  ck_assert_int_eq(try_get(256 * MIB, 0, BLOCK_USER, &other), POOL_OK);   /* now it is known */
  ck_assert_uint_eq(dev.allocs, 3);
  check();
  ck_assert_int_eq(try_get(64 * MIB, 64 * MIB, BLOCK_USER, &other), POOL_OK);
  ck_assert_uint_eq(other % (64 * MIB), 0);
  ck_assert_int_eq(oci_pool_reserve(pool, 32 * MIB), POOL_OK);
  ck_assert_uint_ge(stats().largest_free, 32 * MIB);
}
END_TEST

/* The ends that are lost to it are in the pool, and in no block. */
START_TEST(g16_the_ends_of_an_odd_base) {
  struct block_info info;
  dev.skew = 16;
  get(1);
  uint64_t base = dev.arenas[0].base, end = base + dev.arenas[0].bytes;
  for (uint64_t at = base; at < base + 240; at += 80) {
    ck_assert(oci_pool_contains(pool, at));
    ck_assert_int_eq(oci_pool_find(pool, at, &info), POOL_MISS);
    ck_assert_int_eq(give(at, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  }
  ck_assert_int_eq(oci_pool_find(pool, base + 240, &info), POOL_OK);
  ck_assert(oci_pool_contains(pool, end - 1));
  ck_assert_int_eq(oci_pool_find(pool, end - 1, &info), POOL_MISS);
}
END_TEST

/* Bases less aligned than all before: whatever they are, a request asks twice at most. */
static uint64_t skew_seed;

static void less_aligned(void) {
  skew_seed = skew_seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
  dev.skew = UINT64_C(16) << (skew_seed >> 33) % 17;
}

/* A base that is no multiple of 256 costs an arena its ends; the largest block has room in one all the same. */
START_TEST(g16_the_largest_block_at_an_odd_base) {
  uint64_t ptr;
  dev.skew = 16;
  get(1);
  unsigned before = dev.allocs;
  for (size_t bytes = BLOCK_MOST + 1; bytes <= ARENA_MOST; bytes += (ARENA_MOST - BLOCK_MOST) / 4) {
    ck_assert_int_eq(try_get(bytes, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
    ck_assert_int_eq(try_get(bytes - 16, 16, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  }
  ck_assert_uint_eq(dev.allocs, before);
  ck_assert_int_eq(try_get(BLOCK_MOST, 0, BLOCK_USER, &ptr), POOL_OK);
  ck_assert_int_eq(try_get(BLOCK_MOST - 16, 16, BLOCK_USER, &ptr), POOL_OK);
  ck_assert_int_eq(try_get(BLOCK_MOST - 4096, 4096, BLOCK_USER, &ptr), POOL_OK);
  ck_assert_int_eq(oci_pool_reserve(pool, ARENA_MOST + 1), POOL_OK);
  ck_assert_uint_eq(dev.allocs, before + 5);
  ck_assert_int_eq(oci_pool_check(pool), POOL_OK);
}
END_TEST

START_TEST(g16_bases_of_any_alignment) {
  for (uint64_t seed = 1; seed < 400; seed++) {
    uint64_t ptr;
    skew_seed = seed;
    again(true, true, (struct pool_options){.arena_min = 2 * MIB, .arena_max = 2 * MIB << seed % 3});
    dev.on_alloc = less_aligned;
    for (uint64_t i = 0; i < 6; i++) {
      unsigned before = dev.allocs;
      size_t align = (size_t)256 << (seed + i * 5) % 16, bytes = ((seed * 7 + i) % 5 + 1) * MIB + (i % 2 ? align : 256 * (seed % 9));
      ck_assert_msg(try_get(bytes, align, BLOCK_USER, &ptr) == POOL_OK, "%zu by %zu: %s", bytes, align, oci_error_text());
      ck_assert_uint_eq(ptr % align, 0);
      ck_assert_uint_le(dev.allocs, before + 2);
    }
    check();
  }
}
END_TEST

/* ---- G18: sizes of arenas ---- */

START_TEST(g18_arenas_double_with_live_bytes) {
  get(1);
  ck_assert_uint_eq(dev.last_bytes, 64 * MIB);
  for (int i = 0; i < 400; i++) get(10 * MIB);
  ck_assert_uint_eq(dev.last_bytes, 1024 * MIB);
  struct pool_stats s = stats();
  ck_assert_uint_le(s.arenas, 9);
  ck_assert_uint_eq(s.arenas, dev.allocs);
}
END_TEST

START_TEST(g18_limits_are_kept_sane) {
  const struct { struct pool_options opt; uint64_t first; } cases[] = {
    {{.arena_min = 1}, 2 * MIB},
    {{.arena_min = 3 * MIB}, 4 * MIB},
    {{.arena_max = 8 * MIB}, 8 * MIB},
    {{.arena_min = 4096 * MIB}, 4096 * MIB},
    {{.arena_min = 64 * MIB, .arena_max = 32 * MIB}, 32 * MIB},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    again(true, true, cases[i].opt);
    get(1);
    ck_assert_uint_eq(dev.last_bytes, cases[i].first);
  }
}
END_TEST

/* S13: waste under 1 % where arenas are smaller than the request. */
START_TEST(s13_a_large_request_has_an_arena_of_its_own) {
  uint64_t at[3];
  for (int i = 0; i < 3; i++) at[i] = get(1152 * MIB);
  ck_assert_uint_eq(stats().arena_bytes, 3 * 1152 * MIB);
  put(at[1]);
  uint64_t reused = get(1150 * MIB);   /* kept, and used again before the driver is asked */
  ck_assert(reused >= at[1] && reused < at[1] + 1152 * MIB);
  ck_assert_uint_eq(dev.allocs, 3);
  ck_assert_uint_eq(dev.frees, 0);
}
END_TEST

START_TEST(g18_reserve_is_one_arena) {
  ck_assert_int_eq(oci_pool_reserve(pool, 0), POOL_OK);
  ck_assert_uint_eq(dev.allocs, 0);
  ck_assert_int_eq(oci_pool_reserve(pool, 3001 * MIB), POOL_OK);
  ck_assert_uint_eq(dev.allocs, 1);
  ck_assert_uint_eq(dev.last_bytes, 3002 * MIB);
  for (int i = 0; i < 3001; i++) get(MIB);
  ck_assert_uint_eq(dev.allocs, 1);
}
END_TEST

/* ---- G17: out of memory ---- */

START_TEST(s34_an_empty_arena_makes_room) {
  dev.capacity = 1024 * MIB;
  put(get(530 * MIB));
  get(540 * MIB);
  ck_assert(!oci_pool_fell_back(pool));
  ck_assert_uint_eq(dev.managed_allocs, 0);
  ck_assert_uint_eq(stats().arenas, 1);
  ck_assert_uint_eq(stats().driver_frees, 1);
}
END_TEST

START_TEST(s12_two_sizes_in_turn) {
  dev.capacity = 1024 * MIB;
  for (int i = 0; i < 100; i++) {
    put(get(530 * MIB));
    put(get(270 * MIB));
  }
  ck_assert_uint_eq(dev.allocs, 1);
  uint64_t large = get(530 * MIB), small = get(270 * MIB);
  for (int i = 0; i < 100; i++) {
    put(large);
    put(small);
    if (i % 2) large = get(530 * MIB), small = get(270 * MIB);
    else small = get(270 * MIB), large = get(530 * MIB);
  }
  ck_assert(!oci_pool_fell_back(pool));
  ck_assert_uint_eq(stats().driver_allocs, 2);
}
END_TEST

START_TEST(g17_a_smaller_arena_halves_the_limit) {
  dev.capacity = 100 * MIB;
  for (int i = 0; i < 9; i++) get(10 * MIB);   /* 64, then 32 or what fits */
  ck_assert(!oci_pool_fell_back(pool));
  ck_assert_uint_lt(pool->arena_max, 1024 * MIB);
  ck_assert_uint_eq(dev.managed_allocs, 0);
  check();
}
END_TEST

/* The arena that just fits does not, at a base less aligned than any before: another, that fits there too, is asked for. */
START_TEST(g17_a_smaller_arena_at_an_odd_base) {
  dev.capacity = 5 * MIB;
  dev.skew = 16;
  get(2 * MIB);
  ck_assert_uint_eq(dev.allocs, 4);   /* 64 MiB, again, 2 MiB and 4 MiB */
  ck_assert_uint_eq(dev.frees, 1);
  ck_assert_uint_eq(stats().arena_bytes, 4 * MIB - 256);
  ck_assert_uint_eq(pool->arena_max, 512 * MIB);
  ck_assert(!oci_pool_fell_back(pool));
}
END_TEST

START_TEST(g17_the_limit_stops_at_2_mib) {
  dev.capacity = 64 * MIB;
  again(true, true, (struct pool_options){.arena_min = 2 * MIB, .arena_max = 8 * MIB});
  dev.capacity = 63 * MIB;
  for (int i = 0; i < 31; i++) get(2 * MIB - KIB);
  ck_assert(!oci_pool_fell_back(pool));
  ck_assert_uint_ge(pool->arena_max, 2 * MIB);
}
END_TEST

START_TEST(g17_the_latch) {
  dev.capacity = 64 * MIB;
  get(40 * MIB);
  unsigned before = dev.allocs;
  get(40 * MIB);
  ck_assert(oci_pool_fell_back(pool));
  ck_assert_uint_eq(dev.allocs, before + 2);      /* the request, and the request again */
  ck_assert_uint_eq(dev.managed_allocs, 1);
  before = dev.allocs;
  for (int i = 0; i < 20; i++) get(40 * MIB);
  ck_assert_uint_eq(dev.allocs, before);          /* the driver is not asked for device memory again */
  struct pool_stats s = stats();
  ck_assert_uint_eq(s.arenas, s.managed_arenas + 1);
  ck_assert_uint_eq(s.managed_bytes, dev.managed_used);
  ck_assert_uint_eq(s.driver_alloc_failures, 2);
}
END_TEST

/* Managed arenas that go back are counted out again; one that the driver keeps is still there. */
START_TEST(g17_managed_arenas_go_back) {
  ck_assert(oci_pool_latch(pool));
  put(get(40 * MIB));
  uint64_t kept = get(100 * MIB);
  ck_assert_uint_eq(stats().managed_arenas, 2);
  oci_pool_trim(pool);
  ck_assert_uint_eq(stats().managed_arenas, 1);
  ck_assert_uint_eq(stats().managed_bytes, dev.managed_used);
  check();
  put(kept);
  dev.free_fails = -40;
  oci_pool_trim(pool);
  ck_assert_uint_eq(stats().managed_arenas, 1);
  ck_assert_uint_eq(stats().managed_bytes, 100 * MIB);
}
END_TEST

/* Latched by hand: the device was never asked, and there are no words of its. */
START_TEST(g17_a_latch_by_hand) {
  uint64_t ptr;
  ck_assert(oci_pool_latch(pool));
  dev.managed_capacity = 1 * MIB;
  ck_assert_int_eq(try_get(40 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert(said("device: not asked, the pool had fallen back") && said("managed out of memory"));
  dev.managed_fails = -40;
  ck_assert_int_eq(try_get(40 * MIB, 0, BLOCK_USER, &ptr), -40);
  ck_assert_str_eq(oci_error_text(), "fake driver: managed refused, status -40");
  ck_assert_uint_eq(dev.allocs, 0);
  ck_assert(oci_pool_fell_back(pool));
}
END_TEST

START_TEST(g17_both_kinds_out) {
  uint64_t ptr;
  dev.capacity = 64 * MIB;
  dev.managed_capacity = 64 * MIB;
  get(40 * MIB);
  get(40 * MIB);
  ck_assert_int_eq(try_get(40 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert(said("device out of memory") && said("managed out of memory"));
  ck_assert(oci_pool_fell_back(pool));
  get(20 * MIB);
  check();
}
END_TEST

/* "Likewise": the latch is not set, or one request too large for either would bind the model to managed memory. */
START_TEST(g17_too_large_for_both_kinds) {
  uint64_t ptr;
  dev.capacity = 64 * MIB;
  dev.managed_capacity = 128 * MIB;
  ck_assert_int_eq(try_get(200 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert(said("device out of memory") && said("managed out of memory"));
  ck_assert(!oci_pool_fell_back(pool));
  get(40 * MIB);
  ck_assert_uint_eq(stats().managed_arenas, 0);
  get(100 * MIB);
  ck_assert(oci_pool_fell_back(pool));
  /* Once set, it stays, whatever managed memory answers. */
  ck_assert_int_eq(try_get(200 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert(oci_pool_fell_back(pool));
  check();
}
END_TEST

START_TEST(s15_managed_is_forbidden_or_not_there) {
  for (int forbidden = 0; forbidden < 2; forbidden++) {
    uint64_t ptr;
    again(forbidden, true, (struct pool_options){.no_managed = forbidden});
    dev.capacity = 64 * MIB;
    get(40 * MIB);
    for (int i = 0; i < 3; i++) {
      ck_assert_int_eq(try_get(40 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
      ck_assert(said("fake driver: device out of memory"));
    }
    ck_assert_uint_eq(dev.managed_allocs, 0);
    ck_assert(!oci_pool_fell_back(pool));
    ck_assert(!oci_pool_latch(pool));
    ck_assert(!oci_pool_fell_back(pool));
    dev.capacity = 0;
    get(40 * MIB);
  }
}
END_TEST

START_TEST(s14_managed_is_unsupported_after_all) {
  uint64_t ptr;
  dev.capacity = 64 * MIB;
  dev.managed_fails = -11;
  get(40 * MIB);
  ck_assert_int_eq(try_get(40 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert(said("device out of memory") && said("managed refused"));
  ck_assert(!oci_pool_fell_back(pool));
  dev.capacity = 128 * MIB;
  get(40 * MIB);
  /* A latch that was set by hand does not stand in the way either. */
  ck_assert(oci_pool_latch(pool));
  dev.capacity = 256 * MIB;
  get(100 * MIB);
  ck_assert(!oci_pool_fell_back(pool));
}
END_TEST

START_TEST(s28_any_other_error_changes_nothing) {
  uint64_t ptr;
  struct pool_stats before = stats();
  uint64_t max = pool->arena_max;
  dev.alloc_fails = -40;
  ck_assert_int_eq(try_get(1, 0, BLOCK_USER, &ptr), -40);
  ck_assert(said("fake driver: device refused"));
  ck_assert_int_eq(oci_pool_reserve(pool, MIB), -40);
  ck_assert_uint_eq(dev.allocs, 2);
  ck_assert_uint_eq(dev.managed_allocs, 0);
  ck_assert(!oci_pool_fell_back(pool));
  ck_assert_uint_eq(pool->arena_max, max);
  ck_assert_uint_eq(stats().arenas, before.arenas);
  check();
  dev.alloc_fails = 0;
  get(1);
  /* Managed memory answers so: the same. */
  dev.capacity = 1;
  dev.managed_fails = -40;
  ck_assert_int_eq(try_get(200 * MIB, 0, BLOCK_USER, &ptr), -40);
  ck_assert(!oci_pool_fell_back(pool));
}
END_TEST

START_TEST(g17_a_driver_that_answers_nothing) {
  uint64_t ptr;
  dev.next = 0;
  ck_assert_int_eq(try_get(1, 0, BLOCK_USER, &ptr), POOL_E_BACKEND);
  ck_assert(said("address 0x0"));
  dev.next = 0 - 32 * MIB;   /* or memory that goes round the end of addresses */
  ck_assert_int_eq(try_get(1, 0, BLOCK_USER, &ptr), POOL_E_BACKEND);
  ck_assert(said("address 0xfffffffffe000000 to an allocation of 67108864 bytes"));
  ck_assert_uint_eq(stats().driver_alloc_failures, 2);
  dev.count = 0, dev.used = 0;
}
END_TEST

static char logged[400];

static void keep_line(void *arg, int level, const char *line) {
  (void)arg, (void)level;
  snprintf(logged, sizeof logged, "%s", line);
}

/* The driver hands out what somebody noted as theirs: they freed it and did not say so. */
START_TEST(external_memory_that_was_not_forgotten) {
  uint64_t at = dev.next + 3 * MIB;
  ck_assert_int_eq(oci_pool_note_external(pool, at, 100, "x", NULL), POOL_OK);
  oci_set_log(keep_line, NULL);
  get(1);
  char want[32];
  snprintf(want, sizeof want, "0x%llx", (unsigned long long)at);
  ck_assert_msg(strstr(logged, "overlaps external memory") && strstr(logged, want), "%s", logged);
  logged[0] = 0;
  get(100 * MIB);
  ck_assert_str_eq(logged, "");
  oci_set_log(NULL, NULL);
}
END_TEST

/* A line is logged when no lock is held that a call could need: the callback may call anything, and its failures are not
   the caller's. */
static unsigned lines;

static void log_and_call(void *arg, int level, const char *line) {
  uint64_t ptr;
  (void)arg, (void)level;
  lines++;
  snprintf(logged, sizeof logged, "%s", line);
  (void)stats();
  oci_pool_trim(pool);
  ck_assert_int_eq(try_get(0, 0, BLOCK_USER, &ptr), POOL_E_INVALID);
  ck_assert(said("a block of 0 bytes"));
}

START_TEST(a_log_callback_may_call) {
  uint64_t ptr;
  again(true, true, (struct pool_options){0});
  oci_set_log(log_and_call, NULL);
  ck_assert_int_eq(oci_pool_note_external(pool, dev.next + MIB, 100, "x", NULL), POOL_OK);
  get(1);
  ck_assert_uint_eq(lines, 1);
  ck_assert_msg(strstr(logged, "overlaps external memory"), "%s", logged);
  dev.capacity = dev.used;
  dev.managed_capacity = 64 * MIB;
  get(60 * MIB);
  get(60 * MIB);
  ck_assert_uint_eq(lines, 2);
  ck_assert_msg(strstr(logged, "device memory is out"), "%s", logged);
  dev.managed_capacity = 1;
  ck_assert_int_eq(try_get(60 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert_uint_eq(lines, 2);
  oci_set_log(NULL, NULL);
}
END_TEST

/* Lines past the first few are counted. The failure's own words come back. */
START_TEST(many_arenas_that_the_driver_keeps) {
  uint64_t ptr, at[6];
  again(false, true, (struct pool_options){.arena_max = 64 * MIB});
  for (int i = 0; i < 6; i++) at[i] = get(60 * MIB);
  for (int i = 0; i < 6; i++) put(at[i]);
  dev.capacity = 1;
  dev.free_fails = -40;
  oci_set_log(log_and_call, NULL);
  lines = 0;
  ck_assert_int_eq(try_get(80 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert_msg(said("no memory for a block"), "%s", oci_error_text());
  ck_assert_uint_eq(lines, LOG_HELD_LINES + 1);
  ck_assert_str_eq(logged, "2 more lines after these");
  oci_set_log(NULL, NULL);
}
END_TEST

START_TEST(an_arena_that_the_driver_keeps_is_out_of_use) {
  uint64_t ptr;
  again(false, true, (struct pool_options){0});
  dev.capacity = 100 * MIB;
  put(get(60 * MIB));
  dev.free_fails = -40;
  ck_assert_int_eq(try_get(80 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  ck_assert_int_eq(try_get(50 * MIB, 0, BLOCK_USER, &ptr), POOL_E_DEVICE_NOMEM);
  struct pool_stats s = stats();
  ck_assert_uint_eq(s.arenas, 1);
  ck_assert_uint_eq(s.retired_bytes, s.arena_bytes);
  char *text = oci_pool_report_text(pool, 0);
  ck_assert_ptr_nonnull(strstr(text, "lost"));
  ck_assert_ptr_nonnull(strstr(text, "arenas that the driver did not take back"));
  oci_strfree(NULL, text);
}
END_TEST

/* ---- G21: what may be freed ---- */

START_TEST(g21_frees_that_are_refused) {
  uint64_t user = get(1000), scratch;
  ck_assert_int_eq(try_get(5000, 0, BLOCK_SCRATCH, &scratch), POOL_OK);
  ck_assert_int_eq(give(scratch, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  ck_assert(said("scratch"));
  ck_assert_int_eq(give(user + 1, RELEASE_NOW, 0), POOL_E_INTERIOR);
  ck_assert(said("inside a live block of 1000 bytes"));
  ck_assert_int_eq(give(user + 999, RELEASE_RETIRE, 0), POOL_E_INTERIOR);
  ck_assert_int_eq(give(user + 1000, RELEASE_AFTER, 1), POOL_E_INTERIOR);
  ck_assert_int_eq(give(1, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  ck_assert_int_eq(give(UINT64_MAX, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  put(user);
  ck_assert_int_eq(give(user, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  ck_assert(said("freed before"));
  user = get(1000);
  ck_assert_int_eq(give(user, RELEASE_RETIRE, 0), POOL_OK);
  ck_assert_int_eq(give(user, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  ck_assert(said("waits"));
  ck_assert_int_eq(oci_pool_free(pool, scratch, BLOCK_BIT(BLOCK_SCRATCH), RELEASE_NOW, NULL, false), POOL_OK);
  ck_assert_uint_eq(dev.frees, 0);
}
END_TEST

START_TEST(tracked_blocks_are_told) {
  uint64_t ptr = get(1000);
  struct block_info info;
  ck_assert_int_eq(oci_pool_track(pool, ptr + 256, true), POOL_E_INTERIOR);
  ck_assert_int_eq(oci_pool_track(pool, ptr, true), POOL_OK);
  ck_assert_int_eq(give(ptr, RELEASE_NOW, 0), POOL_TRACKED);
  ck_assert_int_eq(give(ptr, RELEASE_AFTER, 0), POOL_TRACKED);
  ck_assert_int_eq(oci_pool_find(pool, ptr + 999, &info), POOL_OK);
  ck_assert(info.live && info.tracked && info.start == ptr && info.bytes == 1000);
  ck_assert_int_eq(oci_pool_free(pool, ptr, USER, RELEASE_NOW, NULL, true), POOL_OK);
  ck_assert_uint_eq(get(1000), ptr);
  ck_assert_int_eq(oci_pool_find(pool, ptr, &info), POOL_OK);
  ck_assert(!info.tracked);
}
END_TEST

START_TEST(a_block_changes_hands) {
  uint64_t ptr;
  struct block_info info;
  ck_assert_int_eq(try_get(1000, 0, BLOCK_BUILD, &ptr), POOL_OK);
  ck_assert_int_eq(oci_pool_reclass(pool, ptr, BLOCK_DERIVED, "bf16"), POOL_OK);
  check();
  ck_assert_int_eq(oci_pool_find(pool, ptr, &info), POOL_OK);
  ck_assert_int_eq(info.class, BLOCK_DERIVED);
  ck_assert_int_eq(oci_pool_reclass(pool, ptr + 256, BLOCK_USER, NULL), POOL_E_INTERIOR);
  ck_assert_int_eq(oci_pool_reclass(pool, ptr, BLOCK_USER, NULL), POOL_OK);
  put(ptr);
}
END_TEST

/* ---- G20: free_on ---- */

START_TEST(g20_pending_until_its_event) {
  uint64_t a = get(MIB), b = get(MIB), c = get(MIB);
  ck_assert(!oci_pool_pending(pool));
  oci_pool_collect(pool);
  ck_assert_uint_eq(dev.asked, 0);
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(b, RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(c, RELEASE_AFTER, 2), POOL_OK);
  check();
  oci_pool_collect(pool);
  ck_assert_uint_eq(dev.asked, 2);               /* the head of each stream */
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  fake_run(&dev, 1, 1);
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, 2 * MIB);
  ck_assert_int_eq(give(a, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  fake_run(&dev, 1, 9), fake_run(&dev, 2, 9);
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_assert_uint_eq(dev.events, 0);
  check();
}
END_TEST

START_TEST(g20_a_failed_mark_or_query_loses_nothing) {
  uint64_t a = get(MIB), b = get(MIB);
  dev.mark_fails = -6;
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), -6);
  ck_assert(said("mark refused"));
  dev.mark_fails = 0;
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(b, RELEASE_AFTER, 1), POOL_OK);
  fake_run(&dev, 1, 2);
  dev.passed_fails = -6;
  oci_pool_collect(pool);
  check();
  ck_assert_uint_eq(stats().retired_bytes, 2 * MIB);
  dev.passed_fails = POOL_E_DEVICE_LOST;
  oci_pool_collect(pool);
  check();
  dev.passed_fails = 0;
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, 0);
}
END_TEST

START_TEST(g20_without_events_blocks_are_held) {
  again(true, false, (struct pool_options){0});
  uint64_t a = get(MIB), b = get(MIB), c = get(MIB);
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(b, RELEASE_RETIRE, 1), POOL_OK);
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, 2 * MIB);
  struct pool_batch held = oci_pool_take(pool, POOL_TAKE_HELD);
  ck_assert_uint_eq(held.count, 1);
  check();
  struct pool_batch both = oci_pool_take(pool, POOL_TAKE_HELD | POOL_TAKE_RETIRED);
  ck_assert_uint_eq(both.count, 1);
  ck_assert_int_eq(oci_pool_unretire(pool, b, oci_pool_takes(pool)), POOL_E_NOT_OWNED);   /* in a batch */
  oci_pool_put_back(pool, &both);
  ck_assert_uint_eq(both.count, 0);
  check();
  oci_pool_give_back(pool, &held);
  ck_assert_uint_eq(stats().retired_bytes, MIB);
  ck_assert_int_eq(oci_pool_unretire(pool, c, oci_pool_takes(pool)), POOL_E_NOT_OWNED);
  ck_assert_int_eq(oci_pool_unretire(pool, b, oci_pool_takes(pool)), POOL_OK);
  check();
  ck_assert_uint_eq(stats().retired_bytes, 0);
}
END_TEST

/* free_on and another collect while events are asked for: no lock is held, and the order of the stream stays. */
static uint64_t late[2];

static void free_while_asked(void) {
  dev.on_passed = NULL;
  ck_assert_int_eq(give(late[0], RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(late[1], RELEASE_AFTER, 2), POOL_OK);
  oci_pool_collect(pool);
  check();
}

START_TEST(g20_blocks_that_come_while_events_are_asked_for) {
  uint64_t first = get(MIB);
  late[0] = get(MIB), late[1] = get(MIB);
  ck_assert_int_eq(give(first, RELEASE_AFTER, 1), POOL_OK);
  dev.on_passed = free_while_asked;
  oci_pool_collect(pool);
  check();
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  fake_run(&dev, 1, 2);
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, MIB);
  fake_run(&dev, 2, 1);
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, 0);
}
END_TEST

/* A few streams a call, in turn; the order of each stays. */
START_TEST(g20_some_streams_are_asked_in_turn) {
  for (uintptr_t i = 1; i <= 800; i++)
    for (int n = 0; n < 2; n++) ck_assert_int_eq(give(get(1), RELEASE_AFTER, i), POOL_OK);
  for (unsigned i = 0; i < FAKE_STREAMS; i++) dev.run[i] = dev.marked[i] - 1;   /* all but the last stream's second */
  for (unsigned calls = 1; stats().retired_bytes > 8 * 256; calls++) {
    unsigned before = dev.asked;
    oci_pool_collect_some(pool);
    ck_assert_uint_le(dev.asked - before, 8);
    ck_assert_uint_le(calls, 200);
    if (calls % 20 == 0) check();
  }
  ck_assert_uint_eq(pool->by_stream.count, 8);
  for (unsigned i = 0; i < FAKE_STREAMS; i++) fake_run(&dev, i, 9);
  oci_pool_collect(pool);
  ck_assert_uint_eq(stats().retired_bytes, 0);
}
END_TEST

/* The block goes back while its stream is marked: the mark is given up, and the block is what it became. */
static uint64_t racing;

static void free_while_marked(void) {
  dev.on_mark = NULL;
  put(racing);
}

static void unretire_while_marked(void) {
  dev.on_mark = NULL;
  ck_assert_int_eq(oci_pool_unretire(pool, racing, oci_pool_takes(pool)), POOL_OK);
}

START_TEST(g20_freed_while_its_stream_is_marked) {
  racing = get(MIB);
  dev.on_mark = free_while_marked;
  ck_assert_int_eq(give(racing, RELEASE_AFTER, 1), POOL_E_NOT_OWNED);
  ck_assert(said("freed before"));
  ck_assert_uint_eq(dev.events, 0);
  racing = get(MIB);
  ck_assert_int_eq(oci_pool_unretire_after(pool, racing, NULL, oci_pool_takes(pool)), POOL_E_NOT_OWNED);
  ck_assert(said("is no retired block"));
  ck_assert_int_eq(give(racing, RELEASE_RETIRE, 1), POOL_OK);
  dev.on_mark = unretire_while_marked;
  ck_assert_int_eq(oci_pool_unretire_after(pool, racing, NULL, oci_pool_takes(pool)), POOL_E_NOT_OWNED);
  ck_assert_uint_eq(dev.events, 0);
  ck_assert(!oci_pool_pending(pool));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_assert_uint_eq(stats().live_bytes, 0);
}
END_TEST

/* The record of a retired block is another thread's, to collect and free, as soon as the lock is left. Here that comes in the
   call that wakes whoever slept for the lock: it is made to look slept for. */
static void (*on_wake)(void);

static void futex_called(long call, long word, long op) {
  if (call != SYS_futex || !pool || word != (long)&pool->lock.state || !on_wake) return;
  if (op == FUTEX_WAIT_PRIVATE) pool->lock.state = LOCK_OPEN;   /* as if its holder left it */
  if (op != FUTEX_WAKE_PRIVATE) return;
  void (*then)(void) = on_wake;
  on_wake = NULL;
  then();
}

long syscall(long call, ...) {
  long (*real)(long, ...);
  long a[6];
  va_list args;
  va_start(args, call);
  for (int i = 0; i < 6; i++) a[i] = va_arg(args, long);
  va_end(args);
  *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  futex_called(call, a[0], a[1]);
  return real(call, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Once it is collected, its memory serves another: one of these, as libc keeps seven of a size nearer at hand. */
static struct pending *reused[16];

static void collect_and_reuse(void) {
  oci_pool_collect(pool);
  ck_assert(!oci_pool_pending(pool));
  for (int i = 0; i < 16; i++) {
    reused[i] = malloc(sizeof(struct pending));   /* not calloc, which passes over what this thread freed last */
    reused[i]->block = 0;
  }
}

static void lock_is_slept_for(void) {
  dev.on_mark = NULL;
  on_wake = collect_and_reuse;
  pool->lock = (struct lock){.state = LOCK_SLEPT_FOR, .careful = 1};
}

START_TEST(g20_unretired_and_collected_at_once) {
  uint64_t ptr = get(MIB);
  ck_assert_int_eq(give(ptr, RELEASE_RETIRE, 1), POOL_OK);
  dev.run[1] = UINT64_MAX;
  dev.on_mark = lock_is_slept_for;
  ck_assert_msg(oci_pool_unretire_after(pool, ptr, (void *)1, oci_pool_takes(pool)) == POOL_OK, "%s", oci_error_text());
  ck_assert_ptr_nonnull(reused[0]);
  for (int i = 0; i < 16; i++) free(reused[i]);
  ck_assert_uint_eq(stats().retired_bytes, 0);
}
END_TEST

/* More than go back in one hold of the lock. */
START_TEST(batches_of_any_length_go_back) {
  for (int count = 254; count < 520; count += 1 + (count == 258) * 250) {
    for (int i = 0; i < count; i++) ck_assert_int_eq(give(get(1), RELEASE_RETIRE, 0), POOL_OK);
    struct pool_batch b = oci_pool_take(pool, POOL_TAKE_RETIRED);
    ck_assert_uint_eq(b.count, (unsigned)count);
    oci_pool_put_back(pool, &b);
    ck_assert_uint_eq(b.count, 0);
    check();
    b = oci_pool_take(pool, POOL_TAKE_RETIRED);
    ck_assert_uint_eq(b.count, (unsigned)count);
    oci_pool_give_back(pool, &b);
    ck_assert_uint_eq(stats().retired_bytes, 0);
    check();
  }
}
END_TEST

/* A thread that asks for events has their blocks in hand; another that runs out waits for it, and finds room. */
static bool asking;

static void ask_slowly(void) {
  dev.on_passed = NULL;
  __atomic_store_n(&asking, true, __ATOMIC_RELEASE);
  for (;;) {
    pthread_mutex_lock(&dev.lock);
    unsigned allocs = dev.allocs;
    pthread_mutex_unlock(&dev.lock);
    if (allocs > 1) break;
    usleep(1000);
  }
  usleep(50000);
}

static void *collect(void *arg) {
  oci_pool_collect(pool);
  return arg;
}

START_TEST(g17_growth_waits_for_a_collector) {
  pthread_t other;
  uint64_t ptr;
  again(false, true, (struct pool_options){0});
  dev.capacity = 64 * MIB;
  ck_assert_int_eq(give(get(40 * MIB), RELEASE_AFTER, 1), POOL_OK);
  fake_run(&dev, 1, 1);
  dev.on_passed = ask_slowly;
  ck_assert_int_eq(pthread_create(&other, NULL, collect, NULL), 0);
  while (!__atomic_load_n(&asking, __ATOMIC_ACQUIRE)) usleep(1000);
  ck_assert_int_eq(try_get(50 * MIB, 0, BLOCK_USER, &ptr), POOL_OK);
  pthread_join(other, NULL);
}
END_TEST

/* So does a release: the collector must not come back with blocks that are gone. */
static bool releasing, asked;

static void ask_meanwhile(void) {
  dev.on_passed = NULL;
  __atomic_store_n(&asking, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&releasing, __ATOMIC_ACQUIRE)) usleep(1000);
  usleep(50000);
  __atomic_store_n(&asked, true, __ATOMIC_RELEASE);
}

START_TEST(g22_release_waits_for_a_collector) {
  pthread_t other;
  ck_assert_int_eq(give(get(40 * MIB), RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(get(1), RELEASE_AFTER, 1), POOL_OK);
  fake_run(&dev, 1, 1);
  dev.on_passed = ask_meanwhile;
  ck_assert_int_eq(pthread_create(&other, NULL, collect, NULL), 0);
  while (!__atomic_load_n(&asking, __ATOMIC_ACQUIRE)) usleep(1000);
  __atomic_store_n(&releasing, true, __ATOMIC_RELEASE);
  oci_pool_release_arenas(pool, NULL, NULL);
  ck_assert(__atomic_load_n(&asked, __ATOMIC_ACQUIRE));
  pthread_join(other, NULL);
  ck_assert_uint_eq(dev.events, 0);
  ck_assert_uint_eq(stats().retired_bytes, 0);
}
END_TEST

/* G19: while the device is asked for an arena, existing ones serve. */
static void carve_while_growing(void) {
  struct pool_request r = {.bytes = 1000, .class = BLOCK_USER};
  uint64_t ptr;
  dev.on_alloc = NULL;
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  put(ptr);
  check();
}

START_TEST(g19_carves_go_on_while_the_device_is_asked) {
  get(1);
  dev.on_alloc = carve_while_growing;
  get(100 * MIB);
  ck_assert_ptr_null((void *)(uintptr_t)dev.on_alloc);
}
END_TEST

START_TEST(g17_pending_blocks_make_room) {
  dev.capacity = 64 * MIB;
  uint64_t a = get(40 * MIB);
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), POOL_OK);
  fake_run(&dev, 1, 1);
  get(50 * MIB);
  ck_assert(!oci_pool_fell_back(pool));
}
END_TEST

/* The room that they leave serves, in an arena that stays. */
static void pass_meanwhile(void) { fake_run(&dev, 1, 1); }

START_TEST(g17_pending_blocks_make_room_where_they_are) {
  dev.capacity = 64 * MIB;
  uint64_t a = get(30 * MIB);
  get(32 * MIB);
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), POOL_OK);
  dev.on_alloc = pass_meanwhile;
  ck_assert_uint_eq(get(30 * MIB), a);
  ck_assert_uint_eq(dev.allocs, 2);   /* the first, and one that was refused */
  ck_assert_uint_eq(dev.frees, 0);
  ck_assert(!oci_pool_fell_back(pool));
}
END_TEST

/* All streams are asked before the pool grows, those too whose turn has not come. */
START_TEST(g17_what_has_passed_spares_an_arena) {
  for (uintptr_t i = 1; i <= 60; i++) ck_assert_int_eq(give(get(MIB), RELEASE_AFTER, i), POOL_OK);
  fake_run(&dev, 60 % FAKE_STREAMS, 9);
  get(4 * MIB);
  get(MIB);
  ck_assert_uint_eq(dev.allocs, 1);
}
END_TEST

START_TEST(g17_retired_blocks_keep_their_arena) {
  again(false, true, (struct pool_options){0});
  dev.capacity = 64 * MIB;
  uint64_t a = get(40 * MIB), other;
  ck_assert_int_eq(give(a, RELEASE_RETIRE, 0), POOL_OK);
  ck_assert_int_eq(try_get(50 * MIB, 0, BLOCK_USER, &other), POOL_E_DEVICE_NOMEM);
  ck_assert_uint_eq(dev.frees, 0);
  struct pool_batch b = oci_pool_take(pool, POOL_TAKE_RETIRED);
  ck_assert_int_eq(try_get(50 * MIB, 0, BLOCK_USER, &other), POOL_E_DEVICE_NOMEM);
  oci_pool_give_back(pool, &b);
  get(50 * MIB);
}
END_TEST

/* ---- try, stop, release ---- */

START_TEST(g19_try_never_calls_the_device) {
  struct pool_request r = {.bytes = 100, .class = BLOCK_USER};
  uint64_t ptr = 0;
  ck_assert_int_eq(oci_pool_try_alloc(pool, &r, &ptr), POOL_MISS);
  ck_assert_uint_eq(dev.allocs, 0);
  get(1);
  ck_assert_int_eq(oci_pool_try_alloc(pool, &r, &ptr), POOL_OK);
}
END_TEST

START_TEST(g3_stop_refuses_requests_only) {
  uint64_t a = get(1), b;
  oci_pool_stop(pool, true);
  ck_assert_int_eq(try_get(1, 0, BLOCK_USER, &b), POOL_E_RELEASED);
  ck_assert_int_eq(give(a, RELEASE_AFTER, 1), POOL_OK);
  oci_pool_stop(pool, false);
  get(1);
}
END_TEST

struct outcomes { unsigned count; uint64_t bytes; int last; };

static void outcome(void *arg, const struct pool_arena_info *a, int status) {
  struct outcomes *o = arg;
  o->count++;
  o->bytes += a->bytes;
  o->last = status;
}

START_TEST(g22_release_is_one_free_an_arena) {
  struct outcomes o = {0};
  struct block_info info;
  struct pool_batch held;
  uint64_t ptr = 0, last = 0;
  for (int i = 0; i < 1000; i++) ptr = get(MIB), last = i % 5 ? last : ptr;
  ck_assert_int_eq(give(ptr, RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(give(last, RELEASE_RETIRE, 1), POOL_OK);
  held = oci_pool_take(pool, POOL_TAKE_RETIRED);
  struct pool_stats before = stats();
  oci_pool_release_arenas(pool, outcome, &o);
  ck_assert_uint_eq(o.count, before.arenas);
  ck_assert_uint_eq(o.bytes, before.arena_bytes);
  ck_assert_uint_eq(dev.frees, before.arenas);
  ck_assert_int_eq(try_get(1, 0, BLOCK_USER, &ptr), POOL_E_RELEASED);
  oci_pool_stop(pool, false);
  ck_assert_int_eq(try_get(1, 0, BLOCK_USER, &ptr), POOL_E_RELEASED);
  ck_assert_int_eq(give(ptr, RELEASE_NOW, 0), POOL_E_RELEASED);
  ck_assert_int_eq(give(ptr, RELEASE_AFTER, 0), POOL_E_RELEASED);
  ck_assert_int_eq(oci_pool_find(pool, ptr, &info), POOL_E_RELEASED);
  ck_assert_int_eq(oci_pool_track(pool, ptr, true), POOL_E_RELEASED);
  ck_assert_int_eq(oci_pool_reclass(pool, ptr, BLOCK_USER, NULL), POOL_E_RELEASED);
  ck_assert_int_eq(oci_pool_reserve(pool, 1), POOL_E_RELEASED);
  ck_assert_int_eq(oci_pool_note_external(pool, 4096, 1, NULL, NULL), POOL_E_RELEASED);
  ck_assert_int_eq(oci_pool_forget_external(pool, 4096, true), POOL_E_RELEASED);
  ck_assert(!oci_pool_contains(pool, ptr));
  oci_pool_give_back(pool, &held);
  ck_assert_uint_eq(stats().arena_bytes, 0);
  ck_assert_uint_eq(stats().driver_frees, before.arenas);
}
END_TEST

START_TEST(s22_a_lost_device_is_asked_once) {
  struct outcomes o = {0};
  for (int i = 0; i < 10; i++) get(200 * MIB);
  uint64_t arenas = stats().arenas;
  dev.free_fails = POOL_E_DEVICE_LOST;
  oci_pool_release_arenas(pool, outcome, &o);
  ck_assert_uint_gt(arenas, 2);
  ck_assert_uint_eq(dev.frees, 1);
  ck_assert_uint_eq(o.count, arenas);
  ck_assert_int_eq(o.last, POOL_E_DEVICE_LOST);
  dev.count = 0, dev.used = 0;
}
END_TEST

START_TEST(g25_abandoned_arenas_call_nothing) {
  get(1);
  oci_pool_abandon_arenas(pool);
  ck_assert_uint_eq(dev.frees, 0);
  dev.count = 0, dev.used = 0;
}
END_TEST

/* ---- external memory ---- */

START_TEST(external_memory) {
  struct block_info info;
  uint64_t ours = get(1000);
  ck_assert_int_eq(oci_pool_note_external(pool, 0, 10, "x", NULL), POOL_E_INVALID);
  ck_assert_int_eq(oci_pool_note_external(pool, 4096, 0, "x", NULL), POOL_E_INVALID);
  ck_assert_int_eq(oci_pool_note_external(pool, UINT64_MAX - 4, 6, "x", NULL), POOL_E_INVALID);
  ck_assert_int_eq(oci_pool_note_external(pool, ours + 999, 1, "x", NULL), POOL_E_INVALID);
  ck_assert_int_eq(oci_pool_note_external(pool, dev.arenas[0].base - 1, 2, "x", NULL), POOL_E_INVALID);
  ck_assert_int_eq(oci_pool_note_external(pool, dev.arenas[0].base - 1, 1, "x", NULL), POOL_OK);
  ck_assert_int_eq(oci_pool_note_external(pool, 5000, 100, "x", NULL), POOL_OK);
  ck_assert_int_eq(oci_pool_note_external(pool, 5100, 100, "x", NULL), POOL_OK);
  ck_assert_int_eq(oci_pool_note_external(pool, 4900, 101, "x", NULL), POOL_EXISTS);
  ck_assert_int_eq(oci_pool_note_external(pool, 5050, 1, "x", NULL), POOL_EXISTS);
  ck_assert_int_eq(oci_pool_note_external(pool, 1, 100000, "x", NULL), POOL_EXISTS);
  check();
  ck_assert_int_eq(oci_pool_find(pool, 5199, &info), POOL_OK);
  ck_assert(info.external && info.start == 5100 && info.bytes == 100);
  ck_assert_int_eq(oci_pool_find(pool, 5200, &info), POOL_MISS);
  ck_assert(!oci_pool_contains(pool, 5150));
  ck_assert_int_eq(give(5100, RELEASE_NOW, 0), POOL_E_NOT_OWNED);
  ck_assert_int_eq(oci_pool_forget_external(pool, 5150, true), POOL_E_INTERIOR);
  ck_assert_int_eq(oci_pool_forget_external(pool, 5200, true), POOL_E_NOT_OWNED);
  ck_assert_int_eq(oci_pool_forget_external(pool, ours, true), POOL_E_NOT_OWNED);
  ck_assert_int_eq(oci_pool_track(pool, 5150, true), POOL_E_NOT_OWNED);
  ck_assert_int_eq(oci_pool_track(pool, 5100, true), POOL_OK);
  ck_assert_int_eq(oci_pool_forget_external(pool, 5100, false), POOL_TRACKED);
  ck_assert_int_eq(oci_pool_forget_external(pool, 5100, true), POOL_OK);
  ck_assert_int_eq(oci_pool_forget_external(pool, 5100, true), POOL_E_NOT_OWNED);
  ck_assert_uint_eq(stats().live_blocks, 1);
}
END_TEST

/* ---- G26, issue of sight: ledger and reports ---- */

struct sums { uint64_t live, retired, external, rows; };

static void sum(void *arg, const struct ledger_row *row) {
  struct sums *s = arg;
  s->rows++;
  if (row->external) s->external += row->live_bytes;
  else s->live += row->live_bytes, s->retired += row->retired_bytes;
}

/* The number after a name in JSON; -1 if it is not there. */
static long long number_in(const char *json, const char *name) {
  const char *at = strstr(json, name);
  return at ? atoll(at + strlen(name)) : -1;
}

START_TEST(g26_sums_are_exact) {
  struct sums s = {0};
  uint64_t at[300];
  char file[32];
  for (uint32_t i = 0; i < 300; i++) {
    snprintf(file, sizeof file, "f%u.c", i % 30);
    struct pool_site site = {file, i, "f"};
    struct pool_request r = {.bytes = 100 + i * 1000, .site = &site, .owner = i % 3 ? "weights" : NULL};
    ck_assert_int_eq(oci_pool_alloc(pool, &r, &at[i]), POOL_OK);
  }
  for (int i = 0; i < 300; i += 7) ck_assert_int_eq(give(at[i], i % 2 ? RELEASE_RETIRE : RELEASE_AFTER, 1), POOL_OK);
  ck_assert_int_eq(oci_pool_note_external(pool, 4096, 12345, "nccl", NULL), POOL_OK);
  oci_pool_ledger(pool, sum, &s);
  ck_assert_uint_eq(s.live, stats().live_bytes);
  ck_assert_uint_eq(s.retired, stats().retired_bytes);
  ck_assert_uint_eq(s.external, 12345);
  ck_assert_uint_eq(s.rows, 301);
  char *json = oci_pool_report_json(pool);
  const char *total = strstr(json, "\"sum\":");
  ck_assert_ptr_nonnull(total);
  ck_assert_int_eq(number_in(total, "\"live_bytes\":"), (long long)stats().live_bytes);
  ck_assert_int_eq(number_in(total, "\"retired_bytes\":"), (long long)stats().retired_bytes);
  ck_assert_int_eq(number_in(strstr(total, "external_sum"), "\"live_bytes\":"), 12345);
  oci_strfree(NULL, json);
  char *text = oci_pool_report_text(pool, 4);
  ck_assert_ptr_nonnull(strstr(text, "(297 more)"));   /* 300 sites and the unknown one of nccl, 4 shown */
  ck_assert_ptr_nonnull(strstr(text, "sum\n"));
  oci_strfree(NULL, text);
}
END_TEST

/* After a dlclose another library's site may be where one was that came by lately: what it says now counts. */
START_TEST(g26_a_site_is_what_it_says_now) {
  char file[] = "one.c", func[] = "f";
  struct pool_site site = {file, 10, func};
  struct pool_request r = {.bytes = 256, .site = &site};
  struct sums s = {0};
  uint64_t ptr;
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  site.line = 11;
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  file[0] = 'O';
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  func[0] = 'g';
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  site.func = NULL;
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  ck_assert_int_eq(oci_pool_note_external(pool, 4096, 1, NULL, &site), POOL_OK);
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  oci_pool_ledger(pool, sum, &s);
  ck_assert_uint_eq(s.rows, 6);
  ck_assert_uint_eq(s.external, 1);
  char *json = oci_pool_report_json(pool);
  ck_assert_ptr_nonnull(strstr(json, "\"file\":\"one.c\",\"line\":10,\"func\":\"f\""));
  ck_assert_ptr_nonnull(strstr(json, "\"file\":\"one.c\",\"line\":11,\"func\":\"f\""));
  ck_assert_ptr_nonnull(strstr(json, "\"file\":\"One.c\",\"line\":11,\"func\":\"f\""));
  ck_assert_ptr_nonnull(strstr(json, "\"file\":\"One.c\",\"line\":11,\"func\":\"g\""));
  ck_assert_ptr_nonnull(strstr(json, "\"file\":\"One.c\",\"line\":11,\"func\":null"));
  oci_strfree(NULL, json);
}
END_TEST

/* "1.50 MB" in bytes, as near as it says. */
static double bytes_at(const char **at) {
  static const char units[] = "BKMGTP";
  char *end;
  double v = strtod(*at, &end);
  while (*end == ' ') end++;
  for (const char *u = strchr(units, toupper((unsigned char)*end)); u > units; u--) v *= 1000;
  *at = end + strcspn(end, " \n");
  return v;
}

/* Live, blocks, retired, peak: the rows shown, the rest and the sum. */
static void rows_sum_up(const char *text, const char *title, uint64_t live, uint64_t retired) {
  double shown[2] = {0}, total[2] = {0};
  uint64_t blocks = 0;
  unsigned rows = 0;
  const char *at = strstr(text, title);
  ck_assert_ptr_nonnull(at);
  for (at = strchr(at, '\n') + 1; *at && *at != '\n'; at = strchr(at, '\n') + 1) {
    const char *p = at, *end = strchr(at, '\n');
    double row[2];
    row[0] = bytes_at(&p);
    char *after;
    uint64_t n = strtoull(p, &after, 10);
    p = after;
    row[1] = bytes_at(&p);
    if (end - at > 5 && strncmp(end - 5, "  sum", 5) == 0) {
      total[0] = row[0], total[1] = row[1];
      ck_assert_uint_eq(n, blocks);   /* exact: no unit rounds it */
      break;
    }
    shown[0] += row[0], shown[1] += row[1], blocks += n, rows++;
  }
  ck_assert_uint_eq(rows, 4);         /* three, and the rest */
  ck_assert_double_eq_tol(total[0], (double)live, (double)live / 100);
  ck_assert_double_eq_tol(total[1], (double)retired, (double)retired / 100);
  ck_assert_double_eq_tol(shown[0], total[0], total[0] / 100);
  ck_assert_double_eq_tol(shown[1], total[1], total[1] / 100 + 1);
}

/* Whatever is left out is in "(n more)", of sites, files, owners and arenas. */
START_TEST(top_rows_and_the_rest_are_the_sum) {
  static const char *const owners[] = {NULL, "weights", "scratch y", "bf16", "kv cache", "tables"};
  uint64_t at;
  char file[16];
  for (uint32_t i = 0; i < 60; i++) {
    snprintf(file, sizeof file, "f%u.c", i % 7);
    struct pool_site site = {file, i % 11 + 1, "f"};
    struct pool_request r = {.bytes = 10000 + i * 70000, .site = &site, .owner = owners[i % 6]};
    ck_assert_int_eq(oci_pool_alloc(pool, &r, &at), POOL_OK);
    if (i % 5 == 0) ck_assert_int_eq(give(at, RELEASE_RETIRE, 0), POOL_OK);
  }
  char *text = oci_pool_report_text(pool, 3);
  rows_sum_up(text, "  by site", stats().live_bytes, stats().retired_bytes);
  rows_sum_up(text, "  by file", stats().live_bytes, stats().retired_bytes);
  rows_sum_up(text, "  by owner", stats().live_bytes, stats().retired_bytes);
  oci_strfree(NULL, text);
  text = oci_pool_report_text(pool, 1);
  if (stats().arenas > 1) {
    const char *p = strstr(text, "\n  0x");
    p = strstr(p, "device") + strlen("device");
    double bytes = bytes_at(&p), used = bytes_at(&p), room = bytes_at(&p);
    p = strstr(text, " more)") + strlen(" more)");
    bytes += bytes_at(&p), used += bytes_at(&p), room += bytes_at(&p);
    ck_assert_double_eq_tol(bytes, (double)stats().arena_bytes, bytes / 100);
    ck_assert_double_eq_tol(used + room, bytes, bytes / 100);
    ck_assert_double_eq_tol(room, (double)stats().free_bytes, bytes / 100);
  }
  ck_assert_uint_gt(stats().arenas, 1);
  oci_strfree(NULL, text);
}
END_TEST

/* The place of each arena in the report; what is left out is summed. */
START_TEST(arenas_with_most_room_come_first) {
  again(true, true, (struct pool_options){.arena_max = 2 * MIB});
  uint64_t at[4];
  for (int i = 0; i < 4; i++) at[i] = get(2 * MIB);
  ck_assert_uint_eq(stats().arenas, 4);
  put(at[2]);
  get(3 * MIB / 2);
  put(at[1]);
  const uint64_t order[] = {at[1], at[2], at[0], at[3]};   /* 2 MiB free, half a MiB, and two full ones by address */
  char *text = oci_pool_report_text(pool, 0), row[32];
  const char *p = text;
  for (int i = 0; i < 4; i++) {
    snprintf(row, sizeof row, "\n  0x%llx", (unsigned long long)order[i]);
    p = strstr(p, row);
    ck_assert_msg(p != NULL, "arena %d, 0x%llx, in %s", i, (unsigned long long)order[i], text);
  }
  oci_strfree(NULL, text);
  text = oci_pool_report_text(pool, 1);
  p = strstr(text, "(3 more)") + strlen("(3 more)");
  double bytes = bytes_at(&p), used = bytes_at(&p), room = bytes_at(&p), largest = bytes_at(&p);
  ck_assert_double_eq_tol(bytes, 6.0 * MIB, 1e4);
  ck_assert_double_eq_tol(used, 5.5 * MIB, 1e4);
  ck_assert_double_eq_tol(room, 0.5 * MIB, 1e4);
  ck_assert_double_eq_tol(largest, 0.5 * MIB, 1e4);
  oci_strfree(NULL, text);
}
END_TEST

START_TEST(reports_say_which_memory_is_managed) {
  get(1);
  char *text = oci_pool_report_text(pool, 0);
  ck_assert_ptr_null(strstr(text, "managed"));
  oci_strfree(NULL, text);
  ck_assert(oci_pool_latch(pool));
  get(100 * MIB);
  text = oci_pool_report_text(pool, 0);
  ck_assert_ptr_nonnull(strstr(text, "2 arenas of 171.96 MB, fallen back to managed memory; driver: 2 allocations"));
  ck_assert_ptr_nonnull(strstr(text, " managed "));
  ck_assert_ptr_nonnull(strstr(text, " device "));
  oci_strfree(NULL, text);
}
END_TEST

START_TEST(reports_escape_what_callers_say) {
  struct pool_site site = {"a\"b\\c\n\x1b[31m\xff\xc3\xa9.c", 1, NULL};
  struct pool_request r = {.bytes = 1, .site = &site, .owner = "\xed\xa0\x80 \x01"};
  uint64_t ptr;
  ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
  char *json = oci_pool_report_json(pool);
  ck_assert_ptr_nonnull(strstr(json, "\"a\\\"b\\\\c\\u000a\\u001b[31m\\ufffd\xc3\xa9.c\""));
  ck_assert_ptr_nonnull(strstr(json, "\\ufffd\\ufffd\\ufffd \\u0001"));
  oci_strfree(NULL, json);
  char *text = oci_pool_report_text(pool, 0);
  ck_assert_ptr_null(strchr(text, '\x1b'));
  ck_assert_ptr_nonnull(strstr(text, "a\"b\\c??[31m?\xc3\xa9.c:1"));
  oci_strfree(NULL, text);
}
END_TEST

START_TEST(reports_of_nothing) {
  for (int i = 0; i < 2; i++) {
    char *json = oci_pool_report_json(pool), *text = oci_pool_report_text(pool, 1);
    ck_assert_ptr_nonnull(json);
    ck_assert_ptr_nonnull(text);
    oci_strfree(NULL, json);
    oci_strfree(NULL, text);
    oci_pool_release_arenas(pool, NULL, NULL);
  }
}
END_TEST

/* ---- G33: host memory fails at call N, for every N ---- */

/* The nth request fails (from 0 on); with for_good all after it too. */
struct fault {
  int left;
  bool for_good, met;
};

static bool strikes(void *arg, size_t bytes) {
  struct fault *f = arg;
  (void)bytes;
  bool now = f->for_good ? f->left <= 0 : f->left == 0;
  f->left--;
  f->met |= now;
  return now;
}

static void arm(struct fault *f, int nth, bool for_good) {
  *f = (struct fault){.left = nth, .for_good = for_good};
  oci_mem_set_fault(strikes, f);
}

static void disarm(void) { oci_mem_set_fault(NULL, NULL); }

static int story(void) {
  struct pool_site site = {"story.c", 3, "story"};
  struct pool_request r = {.bytes = 3000, .align = 8192, .site = &site, .owner = "story"};
  uint64_t a, b;
  int status = oci_pool_reserve(pool, 5 * MIB);
  if (!status) status = oci_pool_alloc(pool, &r, &a);
  if (!status) status = try_get(200 * MIB, 0, BLOCK_USER, &b);
  if (!status) status = give(b, RELEASE_AFTER, 3);
  if (!status) status = oci_pool_reclass(pool, a, BLOCK_USER, "changed");
  if (!status) status = give(a, RELEASE_NOW, 0);
  if (!status) status = oci_pool_note_external(pool, 4096, 100, "other", &site);
  if (!status) status = oci_pool_forget_external(pool, 4096, false);
  return status;
}

/* No driver block that no arena holds, and all that was carved is accounted for. */
static void nothing_half_done(void) {
  check();
  ck_assert_uint_eq(dev.count, stats().arenas);
}

/* The number of requests at which the story could not go on. */
static unsigned story_with_faults(bool for_good) {
  unsigned refused = 0;
  for (int nth = 0;; nth++) {
    struct fault f;
    again(true, true, (struct pool_options){.arena_min = 2 * MIB});
    arm(&f, nth, for_good);
    int status = story();
    disarm();
    nothing_half_done();
    /* It may have found memory after all: an index or a leaf is done without. */
    ck_assert_msg(status == POOL_OK || (status == POOL_E_HOST_NOMEM && f.met && said("host memory")), "request %d: %d, %s", nth,
                  status, oci_error_text());
    if (!f.met) return refused;
    refused += status != POOL_OK;
    fake_run(&dev, 3, 9);
    oci_pool_collect(pool);
    nothing_half_done();
    (void)oci_pool_forget_external(pool, 4096, false);   /* the story notes it anew */
    ck_assert_msg(story() == POOL_OK, "after request %d failed: %s", nth, oci_error_text());
    nothing_half_done();
  }
}

START_TEST(g33_host_memory_fails_anywhere) {
  ck_assert_uint_ge(story_with_faults(false), 8);
  ck_assert_uint_ge(story_with_faults(true), 15);
}
END_TEST

START_TEST(g33_a_retired_block_stays_so_without_memory) {
  uint64_t ptr = get(MIB);
  struct fault f = {.met = true};
  ck_assert_int_eq(give(ptr, RELEASE_RETIRE, 0), POOL_OK);
  int nth = 0;
  for (; f.met; nth++) {
    arm(&f, nth, false);
    int status = oci_pool_unretire_after(pool, ptr, (void *)1, oci_pool_takes(pool));
    disarm();
    check();
    ck_assert_int_eq(status, f.met ? POOL_E_HOST_NOMEM : POOL_OK);
    if (f.met) ck_assert(said("no host memory to let"));
    ck_assert_uint_eq(dev.events, f.met ? 0 : 1);
  }
  ck_assert_int_eq(nth, 4);   /* a record, a place for the queue, the queue; and then none failed */
  fake_run(&dev, 1, 1);
}
END_TEST

/* The new arena is there, and there is no record for the block in it. */
static bool records_strike(void *arg, size_t bytes) {
  return bytes >= *(size_t *)arg * sizeof(struct block);
}

START_TEST(g33_an_arena_without_a_record_for_its_block) {
  again(true, true, (struct pool_options){.arena_min = 2 * MIB});
  get(1);
  const struct slab *s = &pool->sub.slab;
  while (s->fresh + 2 < s->capacity) get(1);
  size_t more = s->capacity + 1;
  uint64_t ptr = 7;
  unsigned blocks = (unsigned)stats().live_blocks;
  oci_mem_set_fault(records_strike, &more);
  ck_assert_int_eq(try_get(4 * MIB, 0, BLOCK_USER, &ptr), POOL_E_HOST_NOMEM);
  ck_assert(said("no host memory for the record of a block of 4194304 bytes"));
  disarm();
  ck_assert_uint_eq(ptr, 7);
  ck_assert_uint_eq(stats().arenas, 2);   /* it stays, and serves the next one */
  ck_assert_uint_eq(stats().live_blocks, blocks);
  check();
  get(4 * MIB);
  ck_assert_uint_eq(dev.allocs, 2);
}
END_TEST

START_TEST(g33_create_without_memory) {
  const size_t before = oci_heap_bytes(heap);
  const struct pool_device d = fake_device(&dev, true, true);
  for (int nth = 0;; nth++) {
    struct pool *other = NULL;
    struct fault f;
    arm(&f, nth, false);
    int status = oci_pool_create(&d, &(struct pool_options){0}, heap, &other);
    disarm();
    ck_assert_int_eq(status, f.met ? POOL_E_HOST_NOMEM : POOL_OK);
    ck_assert(f.met == !other);
    if (other) oci_pool_destroy(other);
    ck_assert_uint_eq(oci_heap_bytes(heap), before);
    if (f.met) continue;
    ck_assert_int_ge(nth, 1);
    break;
  }
}
END_TEST

static char *json_of(void) { return oci_pool_report_json(pool); }
static char *text_of(void) { return oci_pool_report_text(pool, 0); }

/* A report that lacks memory is none: never half a one. */
static void report_with_faults(char *(*report)(void)) {
  char *whole = report();
  ck_assert_ptr_nonnull(whole);
  for (int nth = 0;; nth++) {
    struct fault f;
    arm(&f, nth, false);
    char *s = report();
    disarm();
    ck_assert_msg(f.met ? !s : s && strcmp(s, whole) == 0, "request %d: %s", nth, s ? s : "no report");
    oci_strfree(NULL, s);
    if (f.met) continue;
    ck_assert_int_ge(nth, 3);
    break;
  }
  oci_strfree(NULL, whole);
}

START_TEST(g33_reports_without_memory) {
  get(1);
  report_with_faults(json_of);
  report_with_faults(text_of);
}
END_TEST

/* ---- a walk while others go on ---- */

struct walked { unsigned live, late, external; };

static int look(void *arg, const struct block_view *b) {
  struct walked *w = arg;
  w->external += b->state == VIEW_EXTERNAL;
  w->live += b->state == VIEW_LIVE;
  w->late += b->state == VIEW_LIVE && b->tag->owner && strcmp(b->tag->owner, "late") == 0;
  return 0;
}

static void note_many(void) {
  for (uint64_t i = 0; i < 300; i++)
    ck_assert_int_eq(oci_pool_note_external(pool, (1 + i) * 4096, 100, "other", NULL), POOL_OK);
}

static void many_owners(void) {
  char owner[16];
  for (int i = 0; i <= 60; i++) {
    struct pool_request r = {.bytes = 100, .owner = owner};
    uint64_t ptr;
    snprintf(owner, sizeof owner, i < 60 ? "owner %d" : "late", i);
    ck_assert_int_eq(oci_pool_alloc(pool, &r, &ptr), POOL_OK);
    if (i < 60) put(ptr);
  }
}

/* At its first request for memory, which is for the list of what there is: things go on, and there is more. */
static bool go_on(void *arg, size_t bytes) {
  void (*const *meanwhile)(void) = arg;
  (void)bytes;
  disarm();
  (*meanwhile)();
  return false;
}

START_TEST(a_walk_sees_what_came_while_it_made_room) {
  void (*meanwhile)(void) = note_many;
  struct walked w = {0};
  get(1);
  oci_mem_set_fault(go_on, &meanwhile);
  ck_assert_int_eq(oci_pool_walk(pool, look, &w), 0);
  ck_assert_uint_eq(w.external, 300);
  ck_assert_uint_eq(w.live, 1);
  meanwhile = many_owners;
  w = (struct walked){0};
  oci_mem_set_fault(go_on, &meanwhile);
  ck_assert_int_eq(oci_pool_walk(pool, look, &w), 0);
  ck_assert_uint_eq(w.live, 2);
  ck_assert_uint_eq(w.late, 1);
}
END_TEST

/* ---- check finds what is broken ---- */

START_TEST(check_sees_every_equation) {
  uint64_t *const sums[] = {&pool->live_blocks, &pool->live_bytes, &pool->retired_bytes, &pool->managed_arenas,
                            &pool->sub.free_units, &pool->sub.total_units};
  get(1000);
  for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
    ++*sums[i];
    ck_assert_int_eq(oci_pool_check(pool), POOL_E_INVALID);
    --*sums[i];
    check();
  }
  struct block *b = slab_at(&pool->sub.slab, pool->sub.spans[0].arena->first);
  b->units--;
  ck_assert_int_eq(oci_pool_check(pool), POOL_E_INVALID);
  b->units++;
  pool->sub.spans[0].arena->used++;
  ck_assert_int_eq(oci_pool_check(pool), POOL_E_INVALID);
  pool->sub.spans[0].arena->used--;
  pool->sub.spans[0].arena->pages.entry[3] = 1;
  ck_assert_int_eq(oci_pool_check(pool), POOL_E_INVALID);
  pool->sub.spans[0].arena->pages.entry[3] = 0;
}
END_TEST

/* What it says while `change` holds, and that it is content once `object` is as it was. */
#define BROKEN(object, change, words)                                                        \
  do {                                                                                       \
    __typeof__(object) was_ = (object);                                                      \
    change;                                                                                  \
    ck_assert_int_eq(oci_pool_check(pool), POOL_E_INVALID);                                  \
    ck_assert_msg(said(words), "\"%s\" is not what was found: %s", words, oci_error_text()); \
    (object) = was_;                                                                         \
    check();                                                                                 \
  } while (0)

static uint32_t index_of(uint64_t ptr) { return suballoc_find(&pool->sub, suballoc_arena(&pool->sub, ptr), ptr); }
static struct block *block_of(uint64_t ptr) { return pool_block(pool, index_of(ptr)); }

START_TEST(check_sees_a_broken_block) {
  uint64_t low = get(1000), high;
  high = low, low = get(1000);
  struct arena *a = pool->sub.spans[0].arena;
  struct block *b = block_of(low), *last = block_of(high), *room = pool_block(pool, a->first);
  ck_assert(room->state == BLOCK_FREE && b->prev == a->first && last->prev == index_of(low) && !last->next);
  BROKEN(*b, b->off++, "a gap or an overlap between neighbours");
  BROKEN(*b, b->units = 0, "a block of nothing");
  BROKEN(*b, b->prev = 0, "a block's link to its left neighbour is wrong");
  BROKEN(*b, b->arena++, "a block belongs to another arena");
  BROKEN(*b, b->state = BLOCK_UNUSED, "a block has no state");
  BROKEN(*b, b->state = 7, "a block has no state");
  BROKEN(*b, b->state = BLOCK_FREE, "two free neighbours");
  BROKEN(*room, room->slack = 1, "a free block with remains of its last use");
  BROKEN(*room, room->tracked = 1, "a free block with remains of its last use");
  BROKEN(*b, b->state = BLOCK_LOST, "a lost block outside a lost arena");
  BROKEN(*b, b->tag = pool->ledger.tag_count, "a block's tag is not in the ledger");
  BROKEN(*last, last->units++, "blocks reach past the arena's end");
  BROKEN(*b, b->next = 0, "blocks end before the arena does");
  BROKEN(a->base, a->base++, "the arena's first byte is not aligned");
}
END_TEST

/* The record of a free block that is in no arena. */
static uint32_t stray(uint32_t units) {
  uint32_t index = slab_take(&pool->sub.slab);
  *pool_block(pool, index) = (struct block){.units = units};
  block_become(pool_block(pool, index), BLOCK_FREE, 0, 0);
  return index;
}

static void insert_stray(uint32_t units) {
  bins_insert(&pool->sub.bins, &pool->sub.slab, stray(units), bin_of(units));
}

START_TEST(check_sees_arenas_and_records_in_the_wrong_place) {
  get(1), get(100 * MIB);
  struct suballoc *s = &pool->sub;
  BROKEN(s->spans[0], s->spans[0].to = s->spans[1].from + 1, "arenas overlap or are out of order");
  BROKEN(s->slots[0], s->slots[0] = s->slots[1], "an arena is not in its slot");
  BROKEN(s->bins.rows, s->bins.rows = 0, "a bitmap does not match its bins");
  uint32_t room = s->spans[0].arena->first, units = pool_block(pool, room)->units;
  BROKEN(*s, (void)stray(1), "records in use");
  BROKEN(*s, insert_stray(1), "free blocks in bins");
  BROKEN(*s, bins_remove(&s->bins, &s->slab, room, bin_of(units)); insert_stray(1), "free units in bins");
}
END_TEST

START_TEST(check_sees_what_waits_in_the_wrong_place) {
  uint64_t at[6];
  for (int i = 0; i < 6; i++) at[i] = get(1000);
  for (int i = 0; i < 3; i++) ck_assert_int_eq(give(at[i], RELEASE_AFTER, i < 2 ? 1 : 2), POOL_OK);
  for (int i = 3; i < 5; i++) ck_assert_int_eq(give(at[i], RELEASE_RETIRE, 0), POOL_OK);
  struct block *first = block_of(at[3]), *second = block_of(at[4]);
  BROKEN(*first, first->state = BLOCK_HELD, "state of a block on a waiting list");
  BROKEN(*second, second->list_prev = 0, "link back in a waiting list");
  BROKEN(*second, second->list_next = index_of(at[3]), "link back in a waiting list");   /* a circle ends */
  BROKEN(pool->retired, pool->retired.tail = 0, "end of a waiting list");
  BROKEN(pool->retired, pool->retired.count++, "blocks on a waiting list");
  BROKEN(pool->held, pool->held.count++, "blocks on a waiting list");
  BROKEN(pool->taken, pool->taken++, "held and retired blocks");
  BROKEN(pool->front.pending_count, pool->front.pending_count++, "pending blocks");
  struct queue *one = CONTAINER(pool->queues.next, struct queue, link);
  ck_assert(one->stream == (void *)1 && one->first->next && pool->by_stream.count == 2);
  BROKEN(*one, one->stream = (void *)3, "queues that their stream does not find");
  BROKEN(*one, one->first = NULL, "queues of nothing");
  BROKEN(*one->first, one->first->block = index_of(at[5]), "queued blocks that are not pending");
  BROKEN(*one, one->last = one->first, "queues whose end is lost");
  BROKEN(*one, one->first = one->last, "queued blocks");
  BROKEN(pool->by_stream.count, pool->by_stream.count++, "streams with a queue");
}
END_TEST

START_TEST(check_sees_a_wrong_ledger) {
  get(1000);
  ck_assert_int_eq(give(get(1000), RELEASE_RETIRE, 0), POOL_OK);
  ck_assert_int_eq(oci_pool_note_external(pool, 4096, 100, "x", NULL), POOL_OK);
  struct range *r = &pool->external.chunks[0]->at[0];
  struct ledger_tag *t = &pool->ledger.tags[block_of(pool->sub.spans[0].from + 64 * MIB - 1024)->tag];
  ck_assert_uint_eq(t->live_blocks, 1);
  BROKEN(*r, r->bytes = 0, "external ranges out of order");
  BROKEN(*r, r->tag = pool->ledger.tag_count, "external ranges without a tag");
  BROKEN(*r, r->tag = 0, "external ranges without a tag");
  BROKEN(*t, t->live_blocks++, "live blocks of a tag");
  BROKEN(*t, t->live_bytes++, "live bytes of a tag");
  BROKEN(*t, t->retired_bytes++, "retired bytes of a tag");
  BROKEN(*t, t->peak_bytes = 0, "peak of a tag");
}
END_TEST

static void add(Suite *s, const char *name, const TTest *const *tests, size_t n) {
  TCase *t = tcase_create(name);
  tcase_add_checked_fixture(t, setup, teardown);
  tcase_set_timeout(t, 60);
  for (size_t i = 0; i < n; i++) tcase_add_test(t, tests[i]);
  suite_add_tcase(s, t);
}
#define ADD(s, name, ...) \
  add(s, name, (const TTest *const[]){__VA_ARGS__}, sizeof((const TTest *const[]){__VA_ARGS__}) / sizeof(TTest *))

int main(void) {
  Suite *s = suite_create("pool_internal");
  ADD(s, "requests", g16_nonsense_is_invalid, g16_alignment_small_and_large, g16_a_base_of_a_malloc,
      g16_the_ends_of_an_odd_base, g16_the_largest_block_at_an_odd_base, g16_bases_of_any_alignment);
  ADD(s, "sizes", g18_arenas_double_with_live_bytes, g18_limits_are_kept_sane,
      s13_a_large_request_has_an_arena_of_its_own, g18_reserve_is_one_arena);
  ADD(s, "out of memory", s34_an_empty_arena_makes_room, s12_two_sizes_in_turn, g17_a_smaller_arena_halves_the_limit,
      g17_a_smaller_arena_at_an_odd_base,
      g17_the_limit_stops_at_2_mib, g17_the_latch, g17_managed_arenas_go_back, g17_a_latch_by_hand, g17_both_kinds_out, g17_too_large_for_both_kinds, s15_managed_is_forbidden_or_not_there,
      s14_managed_is_unsupported_after_all, s28_any_other_error_changes_nothing, g17_a_driver_that_answers_nothing,
      an_arena_that_the_driver_keeps_is_out_of_use, a_log_callback_may_call, many_arenas_that_the_driver_keeps, g17_pending_blocks_make_room,
      g17_pending_blocks_make_room_where_they_are, g17_what_has_passed_spares_an_arena, g17_retired_blocks_keep_their_arena);
  ADD(s, "frees", g21_frees_that_are_refused, tracked_blocks_are_told, a_block_changes_hands, g20_pending_until_its_event,
      g20_a_failed_mark_or_query_loses_nothing, g20_without_events_blocks_are_held,
      g20_blocks_that_come_while_events_are_asked_for, g20_some_streams_are_asked_in_turn, g20_freed_while_its_stream_is_marked,
      g20_unretired_and_collected_at_once, batches_of_any_length_go_back,
      g17_growth_waits_for_a_collector, g22_release_waits_for_a_collector);
  ADD(s, "life", g19_try_never_calls_the_device, g19_carves_go_on_while_the_device_is_asked,
      g3_stop_refuses_requests_only, g22_release_is_one_free_an_arena,
      s22_a_lost_device_is_asked_once, g25_abandoned_arenas_call_nothing);
  ADD(s, "ledger", external_memory, external_memory_that_was_not_forgotten, g26_sums_are_exact, g26_a_site_is_what_it_says_now,
      top_rows_and_the_rest_are_the_sum, arenas_with_most_room_come_first, reports_say_which_memory_is_managed, reports_escape_what_callers_say, reports_of_nothing);
  ADD(s, "host memory", g33_host_memory_fails_anywhere, g33_a_retired_block_stays_so_without_memory, g33_an_arena_without_a_record_for_its_block, g33_create_without_memory, g33_reports_without_memory);
  ADD(s, "walk", a_walk_sees_what_came_while_it_made_room);
  ADD(s, "check", check_sees_every_equation, check_sees_a_broken_block, check_sees_arenas_and_records_in_the_wrong_place,
      check_sees_what_waits_in_the_wrong_place, check_sees_a_wrong_ledger);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
