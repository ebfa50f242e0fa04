/* SPDX-License-Identifier: MIT */
/*
 * The embedded device from inside: its parts one by one, and host memory that fails at any point (G33). What
 * an engine can see of it is in test_host.c.
 */
#include "config.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "liboc/device.h"
#include "liboc/devstream_internal.h"
#include "rcu/error.h"
#include "rcu/hash.h"
#include "rcu/mem.h"
#include "tests/world.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* splitmix64 */
static uint64_t seed = 1;
static uint64_t next_random(void) {
  uint64_t z = seed += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static struct device *open_device(const struct mem_options *memory, bool recycle_handles) {
  struct device_options opt = {.memory = *memory, .recycle_handles = recycle_handles};
  struct device *d = NULL;
  ck_assert_int_eq(oci_device_open(&opt, &d), OC_OK);
  return d;
}

static struct device *open_plain(void) {
  return open_device(&(struct mem_options){.capacity = {GIB, GIB}}, false);
}

static bool mapped(uint64_t addr) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  return msync((void *)(uintptr_t)(addr / page * page), page, MS_ASYNC) == 0;
}

static uint64_t used(struct device *d, enum mem_kind kind) {
  uint64_t bytes, blocks;
  oci_devmem_usage(&d->memory, kind, &bytes, &blocks);
  return bytes;
}

static uint64_t blocks(struct device *d, enum mem_kind kind) {
  uint64_t bytes, n;
  oci_devmem_usage(&d->memory, kind, &bytes, &n);
  return n;
}

static uint64_t must_alloc(struct device *d, size_t bytes) {
  uint64_t p = 0;
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_DEVICE, bytes, &p), OC_OK);
  return p;
}

static void must_free(struct device *d, uint64_t p) {
  ck_assert_int_eq(oci_devmem_free(&d->memory, p, false), OC_OK);
}

/* ---- handles ---- */

static struct slots table;

static void open_table(bool recycle) {
  oci_devslots_init(&table, NULL, 40, SLOT_EVENT, recycle);
}

static uint64_t new_handle(void) {
  struct slot *s = oci_devslots_take(&table);
  ck_assert_ptr_nonnull(s);
  return oci_devslots_publish(&table, s);
}

static void drop_handle(uint64_t h) {
  oci_devslots_drop(&table, oci_devslots_find(&table, h));
}

static bool good(uint64_t h) {
  struct slot *s = oci_devslots_find(&table, h);
  return s && oci_devslot_is(&table, s, h);
}

START_TEST(handles_never_come_back) {
  open_table(false);
  uint64_t h[1000];
  for (int i = 0; i < 1000; i++) {
    h[i] = new_handle();
    ck_assert(good(h[i]));
    drop_handle(h[i]);
    bool clean = true;   /* ck_assert writes each of its points to a file: not for half a million */
    for (int j = 0; j <= i; j++) {
      bool was = oci_devslot_was(oci_devslots_find(&table, h[j]), h[j]);
      clean = clean && was && !good(h[j]) && (j == i || h[j] != h[i]);
    }
    ck_assert(clean);
  }
  ck_assert_uint_eq(table.count, 2);   /* one record all along */
  oci_devslots_fini(&table);
}
END_TEST

START_TEST(recycled_handles_come_back_at_once) {
  open_table(true);
  uint64_t a = new_handle(), b = new_handle();
  drop_handle(a);
  drop_handle(b);
  ck_assert_uint_eq(new_handle(), b);
  ck_assert_uint_eq(new_handle(), a);
  oci_devslots_fini(&table);
}
END_TEST

/* More than the first chunks hold: records never move. */
START_TEST(many_handles_are_all_good) {
  enum { N = 5000 };
  static uint64_t h[N];
  static struct slot *at[N];
  open_table(false);
  for (int i = 0; i < N; i++) {
    h[i] = new_handle();
    at[i] = oci_devslots_find(&table, h[i]);
  }
  for (int i = 0; i < N; i++) {
    ck_assert(good(h[i]));
    ck_assert_ptr_eq(oci_devslots_find(&table, h[i]), at[i]);
  }
  ck_assert_uint_eq(oci_devslots_live(&table), N);
  oci_devslots_fini(&table);
}
END_TEST

START_TEST(made_up_handles_are_none) {
  open_table(false);
  uint64_t h = new_handle();
  ck_assert(good(h));
  const uint64_t bad[] = {
      0, 1, 2, 3, 16, 17, h ^ 1, h + 16, h + (1u << 28), UINT64_MAX, (uint64_t)(uintptr_t)&h};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    ck_assert_msg(!good(bad[i]), "handle 0x%jx", (uintmax_t)bad[i]);
  for (int i = 0; i < 100000; i++) {
    uint64_t r = next_random();
    if (r != h && good(r)) ck_abort_msg("handle 0x%jx", (uintmax_t)r);
  }
  /* nor were they: of this generation, the next one, none */
  const struct slot *s = oci_devslots_find(&table, h);
  ck_assert(!oci_devslot_was(s, h));
  ck_assert(!oci_devslot_was(s, h + ((uint64_t)2 << 28)));
  ck_assert(!oci_devslot_was(s, h - ((uint64_t)1 << 28)));
  oci_devslots_fini(&table);
}
END_TEST

/* 64 + 128 + ... records: the last index that a handle has room for. */
START_TEST(a_full_table_has_no_more_handles) {
  open_table(false);
  uint64_t h = new_handle();
  uint32_t count = table.count;
  table.count = 64 * ((1u << SLOT_CHUNKS) - 1);
  ck_assert_ptr_null(oci_devslots_take(&table));
  table.count = count;
  drop_handle(h);
  ck_assert(good(new_handle()));   /* one that was given back is there still */
  oci_devslots_fini(&table);
}
END_TEST

/* ---- spans, against a plain list ---- */

START_TEST(spans_are_found_as_in_a_plain_list) {
  enum { N = 300, STEPS = 20000 };
  static struct span span[N];
  static bool in[N];
  struct spans t = {0};
  for (int i = 0; i < N; i++)
    span[i] = (struct span){.base = (uint64_t)(i * 7 + 1) << 12, .bytes = 1 + next_random() % 4096};
  for (int step = 0; step < STEPS; step++) {
    size_t i = next_random() % N;
    if (in[i]) oci_devspans_remove(&t, &span[i]);
    else oci_devspans_add(&t, &span[i]);
    in[i] = !in[i];
    uint64_t addr = next_random() % ((uint64_t)(N * 7 + 9) << 12);
    struct span *want = NULL;
    for (int k = 0; k < N; k++) {
      if (in[k] && addr >= span[k].base && addr - span[k].base < span[k].bytes) want = &span[k];
    }
    if (oci_devspans_find(&t, addr) != want) ck_abort_msg("step %d: wrong span", step);
    if (oci_devspans_find(&t, span[i].base) != (in[i] ? &span[i] : NULL))
      ck_abort_msg("step %d: wrong base", step);
  }
  size_t left = 0;
  for (int i = 0; i < N; i++) left += in[i];
  while (oci_devspans_pop(&t)) left--;
  ck_assert_uint_eq(left, 0);
}
END_TEST

/* ---- the cost model ---- */

START_TEST(cost_is_in_units_of_512_bytes) {
  struct mem_options opt = {0};
  ck_assert_uint_eq(oci_devmem_cost(&opt, 1), 512);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 512), 512);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 513), 1024);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 3 * MIB + 1), 3 * MIB + 512);
  ck_assert_uint_eq(oci_devmem_cost(&opt, SIZE_MAX), SIZE_MAX);
}
END_TEST

/* 2 MiB / floor(2 MiB / rounded), worked out by hand. */
START_TEST(cost_of_chunks) {
  struct mem_options opt = {.chunks = true};
  ck_assert_uint_eq(oci_devmem_cost(&opt, 1), 512);                 /* 4096 of them in a chunk */
  ck_assert_uint_eq(oci_devmem_cost(&opt, 400 * KIB), 2097152 / 5); /* 5 fit, 48 KiB lost */
  ck_assert_uint_eq(oci_devmem_cost(&opt, 600 * KIB), 2097152 / 3);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 800 * KIB), MIB);
  ck_assert_uint_eq(oci_devmem_cost(&opt, MIB), MIB);
  ck_assert_uint_eq(oci_devmem_cost(&opt, MIB + 1), 2 * MIB);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 2 * MIB - 1), 2 * MIB);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 2 * MIB), 2 * MIB);
  ck_assert_uint_eq(oci_devmem_cost(&opt, 3 * MIB), 3 * MIB);
}
END_TEST

START_TEST(chunks_fill_the_device_as_the_rule_says) {
  struct device *d = open_device(&(struct mem_options){.chunks = true, .capacity = {8 * MIB}}, false);
  uint64_t p;
  for (int i = 0; i < 12; i++) must_alloc(d, 600 * KIB);   /* 3 a chunk, 4 chunks; 7.03 MiB were asked for */
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_DEVICE, 600 * KIB, &p), OC_E_DEVICE_NOMEM);
  oci_device_close(d);
}
END_TEST

/* ---- memory ---- */

START_TEST(capacity_holds_for_each_kind) {
  struct device *d = open_device(&(struct mem_options){.capacity = {MIB, 2 * MIB}}, false);
  uint64_t p = must_alloc(d, MIB), q = 7, r;
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_DEVICE, 1, &q), OC_E_DEVICE_NOMEM);
  ck_assert_uint_eq(q, 7);
  ck_assert_ptr_nonnull(strstr(oci_error_text(), "out of device memory"));
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_MANAGED, 2 * MIB, &r), OC_OK);
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_MANAGED, 1, &q), OC_E_DEVICE_NOMEM);
  ck_assert_ptr_nonnull(strstr(oci_error_text(), "out of managed memory"));
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_HOST, 64 * MIB, &q), OC_OK);   /* not charged */
  must_free(d, p);
  must_free(d, r);
  ck_assert_uint_eq(used(d, MEM_DEVICE) + used(d, MEM_MANAGED), 0);
  ck_assert_uint_eq(blocks(d, MEM_DEVICE) + blocks(d, MEM_MANAGED), 0);
  must_alloc(d, MIB);
  oci_device_close(d);
}
END_TEST

START_TEST(absurd_sizes_are_refused) {
  struct device *d = open_device(&(struct mem_options){.capacity = {SIZE_MAX, SIZE_MAX}}, false);
  uint64_t p;
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_DEVICE, 0, &p), OC_E_INVALID);
  for (size_t n = SIZE_MAX; n > SIZE_MAX - 10000; n -= 511)
    ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_DEVICE, n, &p), OC_E_DEVICE_NOMEM);
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_DEVICE, SIZE_MAX / 2, &p), OC_E_DEVICE_NOMEM);
  ck_assert_uint_eq(used(d, MEM_DEVICE) + blocks(d, MEM_DEVICE), 0);
  oci_device_close(d);
}
END_TEST

START_TEST(memory_is_aligned_zero_and_writable) {
  struct device *d = open_plain();
  const size_t size[] = {1, 511, 4096, 5000, 2 * MIB - 1, 2 * MIB, 3 * MIB + 1, 17 * MIB};
  for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
    uint64_t p = must_alloc(d, size[i]);
    unsigned char *b = (unsigned char *)(uintptr_t)p;
    ck_assert_uint_eq(p % (size[i] >= 2 * MIB ? 2 * MIB : 512), 0);
    ck_assert_uint_eq(b[0] | b[size[i] - 1], 0);
    b[0] = b[size[i] - 1] = 1;
  }
  oci_device_close(d);
}
END_TEST

START_TEST(a_model_of_100_gib_can_be_laid_out) {
  struct device *d = open_device(&(struct mem_options){.capacity = {100 * GIB}}, false);
  uint64_t p = must_alloc(d, 60 * GIB), q = must_alloc(d, 40 * GIB);
  for (size_t at = 0; at < 40 * GIB; at += 4 * GIB) {
    *(char *)(uintptr_t)(p + at) = 1;
    *(char *)(uintptr_t)(q + at) = 1;
  }
  *(char *)(uintptr_t)(p + 60 * GIB - 1) = 1;
  ck_assert_uint_eq(used(d, MEM_DEVICE), 100 * GIB);
  must_free(d, p);
  must_free(d, q);
  oci_device_close(d);
}
END_TEST

/* A small window: places are met again, also where something lives, and past the window anywhere will do. */
START_TEST(places_come_round) {
  struct device *d = open_plain();
  uint64_t low = (d->memory.low + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), high = low + 15 * MIB;
  ck_assert_uint_gt(d->memory.high, high);
  d->memory.low = d->memory.next = low;
  d->memory.high = high;
  uint64_t stays = must_alloc(d, 3 * MIB), wide = must_alloc(d, 64 * MIB);
  int inside = 0;
  *(char *)(uintptr_t)stays = 1;
  for (int i = 0; i < 100; i++) {
    uint64_t p = must_alloc(d, 3 * MIB);
    ck_assert_uint_eq(p % (2 * MIB), 0);
    ck_assert(p + 3 * MIB <= stays || p >= stays + 3 * MIB);
    ck_assert(p + 3 * MIB <= wide || p >= wide + 64 * MIB);
    ck_assert_uint_le(d->memory.next, high);
    inside += p >= low && p + 3 * MIB <= high;
    must_free(d, p);
  }
  ck_assert_int_eq(inside, 75);       /* of four places one is taken */
  ck_assert_int_eq(*(char *)(uintptr_t)stays, 1);
  oci_device_close(d);
}
END_TEST

START_TEST(freed_memory_is_unmapped) {
  struct device *d = open_plain();
  uint64_t p = must_alloc(d, 3 * MIB), q = must_alloc(d, 100), stays = must_alloc(d, 100);
  must_free(d, p);
  must_free(d, q);
  ck_assert(!mapped(p) && !mapped(p + 3 * MIB - 1) && !mapped(q));
  ck_assert(mapped(stays));
  oci_device_close(d);
  ck_assert(!mapped(stays));
}
END_TEST

static volatile char sink;

/* Does fn die of a bad access? In a child, with the sanitizers' handlers off. */
static bool faults(void (*fn)(void)) {
  fflush(NULL);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(SIGSEGV, SIG_DFL);
    fn();
    _exit(0);
  }
  int status = 0;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void use_after_free(void) {
  struct device *d = open_plain();
  uint64_t p = must_alloc(d, 3 * MIB);
  must_free(d, p);
  for (int i = 0; i < 100; i++) must_alloc(d, 3 * MIB);   /* the address does not come back soon */
  sink = *(volatile char *)(uintptr_t)p;
}

START_TEST(use_after_free_faults) {
  ck_assert(faults(use_after_free));
}
END_TEST

START_TEST(recycling_is_last_in_first_out_by_size) {
  struct device *d = open_device(&(struct mem_options){.recycle = true, .capacity = {GIB}}, false);
  uint64_t a = must_alloc(d, 3 * MIB), b = must_alloc(d, 3 * MIB), c = must_alloc(d, 5 * MIB);
  must_free(d, a);
  must_free(d, b);
  must_free(d, c);
  ck_assert(!mapped(a) && !mapped(b) && !mapped(c));
  ck_assert_uint_eq(must_alloc(d, 3 * MIB), b);
  ck_assert_uint_eq(must_alloc(d, 5 * MIB), c);
  ck_assert_uint_eq(must_alloc(d, 3 * MIB - 100), a);   /* the same pages */
  uint64_t fresh = must_alloc(d, 3 * MIB);
  ck_assert(fresh != a && fresh != b && fresh != c);
  ck_assert_int_eq(*(char *)(uintptr_t)b, 0);
  oci_device_close(d);
}
END_TEST

/* What the address belongs to meanwhile is not mapped over. */
START_TEST(recycling_takes_nobody_elses_address) {
  struct device *d = open_device(&(struct mem_options){.recycle = true, .capacity = {GIB}}, false);
  uint64_t a = must_alloc(d, 3 * MIB);
  must_free(d, a);
  char *other = mmap((void *)(uintptr_t)a, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_eq(other, (char *)(uintptr_t)a);
  *other = 42;
  ck_assert_uint_ne(must_alloc(d, 3 * MIB), a);
  ck_assert_int_eq(*other, 42);
  munmap(other, 4096);
  oci_device_close(d);
}
END_TEST

START_TEST(remembers_the_last_1024_addresses) {
  struct device *d = open_device(&(struct mem_options){.recycle = true, .capacity = {GIB}}, false);
  static uint64_t p[MEM_FREED + 10];
  for (size_t i = 0; i < MEM_FREED + 10; i++) p[i] = must_alloc(d, 512);
  for (size_t i = 0; i < MEM_FREED + 10; i++) must_free(d, p[i]);
  for (size_t i = MEM_FREED + 10; i-- > 10;) ck_assert_uint_eq(must_alloc(d, 512), p[i]);
  oci_device_close(d);
}
END_TEST

START_TEST(poison_fills_new_memory) {
  struct device *d = open_device(&(struct mem_options){.poison = true, .recycle = true, .capacity = {GIB}},
                                 false);
  for (int round = 0; round < 2; round++) {
    uint64_t p = must_alloc(d, 10000);
    unsigned char *b = (unsigned char *)(uintptr_t)p;
    for (size_t i = 0; i < 10000; i++)
      if (b[i] != 0xA5) ck_abort_msg("byte %zu is %02x", i, b[i]);
    memset(b, 0, 10000);
    must_free(d, p);
  }
  oci_device_close(d);
}
END_TEST

static void bad_free(struct device *d, uint64_t p, bool host, const char *words) {
  uint64_t before = oci_devmem_bad_frees(&d->memory);
  ck_assert_int_eq(oci_devmem_free(&d->memory, p, host), OC_E_INVALID);
  ck_assert_msg(strstr(oci_error_text(), words) != NULL, "\"%s\" has no \"%s\"", oci_error_text(), words);
  ck_assert_uint_eq(oci_devmem_bad_frees(&d->memory), before + 1);
}

START_TEST(bad_frees_are_told_and_change_nothing) {
  struct device *d = open_plain();
  uint64_t p = must_alloc(d, 10000), q = must_alloc(d, 10000), h;
  ck_assert_int_eq(oci_devmem_alloc(&d->memory, MEM_HOST, 100, &h), OC_OK);
  must_free(d, q);
  uint64_t before = used(d, MEM_DEVICE);
  bad_free(d, 0, false, "no live allocation");
  bad_free(d, UINT64_MAX, false, "no live allocation");
  bad_free(d, (uint64_t)(uintptr_t)&p, false, "no live allocation");
  bad_free(d, q, false, "no live allocation");
  bad_free(d, p + 256, false, "256 bytes inside");
  bad_free(d, h, false, "page-locked");
  bad_free(d, p, true, "device memory");
  ck_assert_uint_eq(used(d, MEM_DEVICE), before);
  must_free(d, p);
  ck_assert_int_eq(oci_devmem_free(&d->memory, h, true), OC_OK);
  oci_device_close(d);
}
END_TEST

/* More mappings than the kernel lets a process have (65,530 by default): freeing every second of 150,000
   pages can't split the mapping so often. All calls work, and nothing stays mapped. */
START_TEST(more_holes_than_the_kernel_allows) {
  enum { N = 150000 };
  static uint64_t p[N];
  struct device *d = open_plain();
  for (int i = 0; i < N; i++) p[i] = must_alloc(d, 512);
  for (int i = 0; i < N; i += 2) must_free(d, p[i]);
  ck_assert_uint_eq(used(d, MEM_DEVICE), N / 2 * 512);
  for (int i = 1; i < N; i += 2) must_free(d, p[i]);
  ck_assert_uint_eq(blocks(d, MEM_DEVICE), 0);
  oci_device_close(d);
  for (int i = 0; i < N; i += 997) ck_assert(!mapped(p[i]));
}
END_TEST

START_TEST(ranges_are_checked) {
  struct device *d = open_plain();
  uint64_t p = must_alloc(d, 1000);
  char host[1001] = "";
  ck_assert_int_eq(oci_device_copy_in(d, p, host, 1000, NULL), OC_OK);
  ck_assert_int_eq(oci_device_copy_in(d, p, host, 1001, NULL), OC_E_INVALID);
  ck_assert_ptr_nonnull(strstr(oci_error_text(), "ends past its allocation"));
  ck_assert_int_eq(oci_device_copy_out(d, host, p + 999, 1, NULL), OC_OK);
  ck_assert_int_eq(oci_device_copy_out(d, host, p + 999, 2, NULL), OC_E_INVALID);
  ck_assert_int_eq(oci_device_copy(d, p, p + 500, 501, NULL), OC_E_INVALID);
  ck_assert_int_eq(oci_device_fill(d, p - 1, 0, 1, NULL), OC_E_INVALID);
  ck_assert_int_eq(oci_device_fill(d, p, 0, SIZE_MAX, NULL), OC_E_INVALID);
  ck_assert_int_eq(oci_device_copy_in(d, p, NULL, 1, NULL), OC_E_INVALID);
  ck_assert_int_eq(oci_devstream_synchronize(&d->streams, NULL), OC_OK);
  oci_device_close(d);
}
END_TEST

/* A kernel that reads memory freed while it was queued, free having waited for nothing. */
static void read_byte(const oc_host_launch *l, void *const *params) {
  (void)l;
  sink = **(volatile char *const *)params[0];
}

static oc_kernel load_one(struct device *d, const char *name, oc_host_fn fn, uint32_t count,
                          const uint32_t *bytes, oc_module *module) {
  oc_host_function f = {name, fn, count, bytes};
  oc_host_module image = {sizeof image, 1, &f};
  oc_kernel k = NULL;
  ck_assert_int_eq(oci_devmodule_load(&d->modules, &image, sizeof image, module), OC_OK);
  ck_assert_int_eq(oci_devmodule_function(&d->modules, *module, name, &k), OC_OK);
  return k;
}

static const oc_host_launch one = {{1, 1, 1}, {1, 1, 1}, 0};
static const uint32_t pointer_size[] = {sizeof(void *)};

static void queued_use_after_free(void) {
  struct device *d = open_plain();
  oc_module m;
  oc_kernel k = load_one(d, "read", read_byte, 1, pointer_size, &m);
  uint64_t p = must_alloc(d, 4096);
  void *params[] = {&p};
  ck_assert_int_eq(oci_devstream_stall(&d->streams, NULL, true), OC_OK);
  ck_assert_int_eq(oci_device_launch(d, k, &one, NULL, params), OC_OK);
  must_free(d, p);
  ck_assert_int_eq(oci_devstream_stall(&d->streams, NULL, false), OC_OK);
  (void)!oci_devstream_synchronize(&d->streams, NULL);
}

START_TEST(queued_use_after_free_faults) {
  ck_assert(faults(queued_use_after_free));
}
END_TEST

/* ---- address space that is short ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)   /* which need far more than that */
#define CAN_LIMIT 1
#endif

#ifdef CAN_LIMIT
static struct rlimit space_was;

/* From here on the process may map so much more. */
static void limit_space(size_t more) {
  unsigned long pages;
  FILE *f = fopen("/proc/self/statm", "r");
  ck_assert(f && fscanf(f, "%lu", &pages) == 1);
  fclose(f);
  ck_assert_int_eq(getrlimit(RLIMIT_AS, &space_was), 0);
  struct rlimit now = {.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + more, .rlim_max = space_was.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_AS, &now), 0);
}

static void unlimit_space(void) { ck_assert_int_eq(setrlimit(RLIMIT_AS, &space_was), 0); }

/* A process with little address space gets a narrower window for its device, or none: then memory lies anywhere. */
START_TEST(a_window_is_what_there_is_room_for) {
  for (int none = 0; none < 2; none++) {
    limit_space(none ? 512 * MIB : 20 * GIB);
    struct device *d = open_plain();
    ck_assert_uint_eq(d->memory.high - d->memory.low, none ? 0 : 16 * GIB);
    uint64_t p = must_alloc(d, 100 * MIB);
    ck_assert_uint_eq(p % (2 * MIB), 0);
    ((volatile char *)(uintptr_t)p)[100 * MIB - 1] = 1;
    must_free(d, p);
    unlimit_space();
    oci_device_close(d);
  }
}
END_TEST

/* What could be mapped, but not at an address that is aligned, is refused in words and not kept. */
START_TEST(no_room_to_align) {
  limit_space(80 * MIB);   /* no window */
  struct device *d = open_plain();
  unlimit_space();
  oci_error(OC_E_INVALID, "the thread has room for its errors' words now");
  for (size_t n = 1; n <= 8; n++) {
    size_t bytes = 64 * MIB + n * 4096;
    uint64_t p = 0;
    limit_space(bytes + MIB);
    oc_status st = oci_devmem_alloc(&d->memory, MEM_DEVICE, bytes, &p);
    unlimit_space();
    ck_assert_int_eq(st, p ? OC_OK : OC_E_DEVICE_NOMEM);   /* one of 512 is aligned by luck */
    ck_assert_uint_eq(p % (2 * MIB), 0);
    ck_assert(p || strstr(oci_error_text(), "address space"));
    if (p) must_free(d, p);
    ck_assert_uint_eq(used(d, MEM_DEVICE), 0);
  }
  oci_device_close(d);
}
END_TEST

/* A worker's stack has no room: the call says so, and the stream works once there is. */
START_TEST(no_room_for_a_worker) {
  struct device *d = open_plain();
  uint64_t p = must_alloc(d, 4096);
  oc_stream s;
  oci_error(OC_E_INVALID, "the thread has room for its errors' words now");
  ck_assert_int_eq(oci_devstream_create(&d->streams, &s), OC_OK);
  limit_space(64 * KIB);
  oc_status st = oci_device_fill(d, p, 7, 4096, s);
  unlimit_space();
  ck_assert_int_eq(st, OC_E_BACKEND);
  ck_assert_ptr_nonnull(strstr(oci_error_text(), "no thread for a stream's worker: "));
  ck_assert_int_eq(oci_devstream_synchronize(&d->streams, s), OC_OK);
  ck_assert_int_eq(*(char *)(uintptr_t)p, 0);
  ck_assert_int_eq(oci_device_fill(d, p, 7, 4096, s), OC_OK);
  ck_assert_int_eq(oci_devstream_synchronize(&d->streams, s), OC_OK);
  ck_assert_int_eq(*(char *)(uintptr_t)p, 7);
  oci_device_close(d);
}
END_TEST
#endif

/* ---- modules ---- */

static void nothing(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
}

static oc_module must_load(struct device *d, const oc_host_function *f, uint32_t n) {
  oc_host_module image = {sizeof image, n, f};
  oc_module m = NULL;
  ck_assert_int_eq(oci_devmodule_load(&d->modules, &image, sizeof image, &m), OC_OK);
  return m;
}

static oc_kernel must_find(struct device *d, oc_module m, const char *name) {
  oc_kernel k = NULL;
  ck_assert_msg(oci_devmodule_function(&d->modules, m, name, &k) == OC_OK, "%s", oci_error_text());
  return k;
}

static void must_launch(struct device *d, oc_kernel k, oc_stream s, void **params) {
  ck_assert_msg(oci_device_launch(d, k, &one, s, params) == OC_OK, "%s", oci_error_text());
}

static void must_sync(struct device *d, oc_stream s) {
  ck_assert_msg(oci_devstream_synchronize(&d->streams, s) == OC_OK, "%s", oci_error_text());
}

static void said(const char *words) {
  ck_assert_msg(strstr(oci_error_text(), words) != NULL, "\"%s\" has no \"%s\"", oci_error_text(), words);
}

/* What was a handle once, and what never was one. */
START_TEST(stale_and_made_up_handles_have_their_words) {
  struct device *d = open_plain();
  const oc_host_function f = {"a", nothing, 0, NULL};
  oc_module m = must_load(d, &f, 1), other = must_load(d, &f, 1);
  oc_kernel k = must_find(d, m, "a"), of_other = must_find(d, other, "a");
  const uint64_t next = (uint64_t)2 << 28;   /* generations on */
  ck_assert_int_eq(oci_devmodule_unload(&d->modules, m), OC_OK);
  ck_assert_int_eq(oci_devmodule_unload(&d->modules, m), OC_E_INVALID);
  said(": unloaded");
  ck_assert_int_eq(oci_devmodule_unload(&d->modules, (oc_module)((uintptr_t)other + next)), OC_E_INVALID);
  said(": no such module");
  ck_assert_int_eq(oci_devmodule_unload(&d->modules, (oc_module)(uintptr_t)7), OC_E_INVALID);
  said(": no such module");
  ck_assert_int_eq(oci_device_launch(d, k, &one, NULL, NULL), OC_E_INVALID);
  said(": stale");
  ck_assert_int_eq(oci_device_launch(d, (oc_kernel)((uintptr_t)of_other + next), &one, NULL, NULL), OC_E_INVALID);
  said(": no such kernel");
  must_launch(d, of_other, NULL, NULL);
  must_sync(d, NULL);
  oci_device_close(d);
}
END_TEST

static unsigned ran_a, ran_b;   /* atomic */
static void run_a(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
  __atomic_add_fetch(&ran_a, 1, __ATOMIC_RELAXED);
}
static void run_b(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
  __atomic_add_fetch(&ran_b, 1, __ATOMIC_RELAXED);
}

/* Two names of 32 bytes with one hash: the first word makes a factor of it 0, and the second counts for nothing. */
START_TEST(functions_whose_names_hash_alike_are_two) {
  char a[] = "\xDB\x28\xB4\xA0\xD1\x7E\x03\xE7" "..one...................", b[] = "\xDB\x28\xB4\xA0\xD1\x7E\x03\xE7" "..two...................";
  ck_assert_uint_eq(strlen(a), 32);
  ck_assert_msg(oci_hash_bytes(a, 32, 0) == oci_hash_bytes(b, 32, 0), "the hash has changed: these two names have to follow");
  struct device *d = open_plain();
  const oc_host_function f[] = {{a, run_a, 0, NULL}, {b, run_b, 0, NULL}};
  oc_module m = must_load(d, f, 2);
  ran_a = ran_b = 0;
  must_launch(d, must_find(d, m, a), NULL, NULL);
  for (int i = 0; i < 2; i++) must_launch(d, must_find(d, m, b), NULL, NULL);
  must_sync(d, NULL);
  ck_assert(ran_a == 1 && ran_b == 2);
  oci_device_close(d);
}
END_TEST

/* One module after another in one record, and threads that look up what they last heard of. */
#define LIVES 40000u

struct life {
  oc_kernel k;
  oc_host_fn fn;
};

struct succession {
  struct device *d;
  struct life lives[LIVES];
  unsigned newest, over;   /* atomic */
  unsigned wrong;   /* atomic */
};

static void look_up_kernels(void *arg) {
  struct succession *x = arg;
  while (!__atomic_load_n(&x->over, __ATOMIC_ACQUIRE)) {
    const struct life *l = &x->lives[__atomic_load_n(&x->newest, __ATOMIC_ACQUIRE)];
    struct kernel_ref ref;
    bool stale;
    oc_status st = oci_devkernel_resolve(&x->d->modules, l->k, &ref, &stale);
    if (st == OC_OK ? ref.fn != l->fn : !stale) __atomic_add_fetch(&x->wrong, 1, __ATOMIC_RELAXED);
  }
}

/* A handle is its own function's, or stale; never another's that has the record now. */
START_TEST(a_kernel_is_found_as_it_was_or_not_at_all) {
  static struct succession x;
  struct side side[2];
  const oc_host_function f[] = {{"a", run_a, 0, NULL}, {"b", run_b, 0, NULL}};
  x.d = open_plain();
  for (unsigned i = 0; i < LIVES; i++) {
    oc_module m = must_load(x.d, &f[i % 2], 1);
    x.lives[i] = (struct life){must_find(x.d, m, f[i % 2].name), f[i % 2].fn};
    __atomic_store_n(&x.newest, i, __ATOMIC_RELEASE);
    if (i == 0) for (int n = 0; n < 2; n++) side_start(&side[n], look_up_kernels, &x);
    ck_assert_int_eq(oci_devmodule_unload(&x.d->modules, m), OC_OK);
  }
  __atomic_store_n(&x.over, 1, __ATOMIC_RELEASE);
  for (int n = 0; n < 2; n++) side_join(&side[n]);
  ck_assert_uint_eq(x.wrong, 0);
  oci_device_close(x.d);
}
END_TEST

/* ---- queues ---- */

#define LARGE 100000u
static const uint32_t large_sizes[] = {LARGE, 4};
static uint64_t large_sum, small_runs;   /* the worker's; read after a synchronize */

static void sum_large(const oc_host_launch *l, void *const *params) {
  (void)l;
  const unsigned char *p = params[0];
  for (uint32_t i = 0; i < LARGE; i++) large_sum += p[i];
  large_sum += *(const uint32_t *)params[1];
}

static void count_small(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
  small_runs++;
}

/* Operations that do not fit a chunk of the queue have one of their own: first, between small ones, several in a row. */
START_TEST(operations_of_all_sizes_run_in_order) {
  struct device *d = open_plain();
  const oc_host_function f[] = {{"large", sum_large, 2, large_sizes}, {"small", count_small, 0, NULL}};
  oc_module m = must_load(d, f, 2);
  oc_kernel large = must_find(d, m, "large"), small = must_find(d, m, "small");
  static unsigned char bytes[LARGE];
  uint32_t last = 5;
  void *params[] = {bytes, &last};
  oc_stream s;
  ck_assert_int_eq(oci_devstream_create(&d->streams, &s), OC_OK);
  uint64_t want = 0, smalls = 0;
  large_sum = small_runs = 0;
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < 3; i++) {
      memset(bytes, round * 3 + i + 1, LARGE);   /* copied at the launch */
      must_launch(d, large, s, params);
      want += (uint64_t)LARGE * (unsigned)(round * 3 + i + 1) + last;
      for (int n = 0; n < (round % 2 ? 2000 : 1); n++, smalls++) must_launch(d, small, s, NULL);
    }
    must_sync(d, s);
    ck_assert_uint_eq(large_sum, want);
    ck_assert_uint_eq(small_runs, smalls);
  }
  oci_device_close(d);
}
END_TEST

/* Waits until open; says that it has begun. */
static unsigned gate_begun, gate_open, after_gate;   /* atomic */
static void wait_at_gate(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
  __atomic_store_n(&gate_begun, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&gate_open, __ATOMIC_ACQUIRE)) nanosleep(&(struct timespec){0, 100000}, NULL);
}
static void go_after(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
  __atomic_add_fetch(&after_gate, 1, __ATOMIC_RELAXED);
}

static oc_stream stream_at_gate(struct device *d, bool stalled) {
  const oc_host_function f[] = {{"gate", wait_at_gate, 0, NULL}, {"after", go_after, 0, NULL}};
  oc_module m = must_load(d, f, 2);
  oc_stream s;
  gate_begun = gate_open = after_gate = 0;
  ck_assert_int_eq(oci_devstream_create(&d->streams, &s), OC_OK);
  if (stalled) ck_assert_int_eq(oci_devstream_stall(&d->streams, s, true), OC_OK);
  must_launch(d, must_find(d, m, "gate"), s, NULL);
  for (int i = 0; i < 3; i++) must_launch(d, must_find(d, m, "after"), s, NULL);
  return s;
}

static void await_gate(void) {
  while (!__atomic_load_n(&gate_begun, __ATOMIC_ACQUIRE)) nanosleep(&(struct timespec){0, 100000}, NULL);
}

struct stepper {
  struct device *d;
  oc_stream s;
  pthread_t thread;
  unsigned called;   /* atomic */
};

static void *step_one(void *arg) {
  struct stepper *x = arg;
  __atomic_store_n(&x->called, 1, __ATOMIC_RELEASE);
  ck_assert_int_eq(oci_devstream_step(&x->d->streams, x->s, 1), OC_OK);
  return NULL;
}

static uint64_t limit_now(struct device *d) {
  return limit_of(d->streams.all);   /* the newest stream is the first */
}

/* Each of two steps at once lets one more run, the first one's not being done yet. */
START_TEST(steps_add_up) {
  struct device *d = open_plain();
  struct stepper x[2] = {{.d = d, .s = stream_at_gate(d, true)}, {.d = d}};
  x[1].s = x[0].s;
  for (int i = 0; i < 2; i++) {
    pthread_create(&x[i].thread, NULL, step_one, &x[i]);
    while (limit_now(d) != (uint64_t)i + 1) nanosleep(&(struct timespec){0, 100000}, NULL);
    await_gate();
  }
  __atomic_store_n(&gate_open, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) pthread_join(x[i].thread, NULL);
  ck_assert_uint_eq(after_gate, 1);
  oci_device_close(d);
  ck_assert_uint_eq(after_gate, 3);
}
END_TEST

/* A destroyed stream that is at work and not stalled cannot be stepped: it runs to its end anyway. */
START_TEST(a_destroyed_stream_at_work_is_not_stepped) {
  struct device *d = open_plain();
  oc_stream s = stream_at_gate(d, false);
  await_gate();
  ck_assert_int_eq(oci_devstream_destroy(&d->streams, s), OC_OK);
  ck_assert_int_eq(oci_devstream_step(&d->streams, s, 1), OC_E_INVALID);
  said("that stream was destroyed");
  oc_stream other;   /* has nothing to do with it */
  ck_assert_int_eq(oci_devstream_create(&d->streams, &other), OC_OK);
  ck_assert_int_eq(oci_devstream_stall(&d->streams, other, true), OC_OK);
  ck_assert_int_eq(oci_devstream_step(&d->streams, other, 1), OC_OK);
  ck_assert_int_eq(oci_devstream_stall(&d->streams, other, false), OC_OK);
  must_sync(d, other);
  ck_assert_uint_eq(__atomic_load_n(&after_gate, __ATOMIC_RELAXED), 0);
  __atomic_store_n(&gate_open, 1, __ATOMIC_RELEASE);
  oci_device_close(d);
  ck_assert_uint_eq(after_gate, 3);
}
END_TEST

/* Of two streams that failed synchronize_all tells one, and both are told. */
START_TEST(failures_of_two_streams_are_told_together) {
  struct device *d = open_plain();
  const oc_host_function f = {"gone", nothing, 0, NULL};
  oc_module m = must_load(d, &f, 1);
  oc_kernel k = must_find(d, m, "gone");
  oc_stream s[2];
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(oci_devstream_create(&d->streams, &s[i]), OC_OK);
    ck_assert_int_eq(oci_devstream_stall(&d->streams, s[i], true), OC_OK);
    must_launch(d, k, s[i], NULL);
  }
  ck_assert_int_eq(oci_devmodule_unload(&d->modules, m), OC_OK);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(oci_devstream_stall(&d->streams, s[i], false), OC_OK);
  ck_assert_int_eq(oci_devstreams_synchronize(&d->streams), OC_E_BACKEND);
  said("unloaded");
  ck_assert_int_eq(oci_devstreams_synchronize(&d->streams), OC_OK);
  for (int i = 0; i < 2; i++) must_sync(d, s[i]);
  oci_device_close(d);
}
END_TEST

/* ---- events ---- */

struct event_call {
  struct device *d;
  oc_event e;
  oc_status st;
  char words[128];
  struct side side;
};

static void record_event(void *arg) {
  struct event_call *c = arg;
  c->st = oci_devevent_record(&c->d->streams, c->e, NULL);
}

static void destroy_event(void *arg) {
  struct event_call *c = arg;
  c->st = oci_devevent_destroy(&c->d->streams, c->e);
  if (c->st) snprintf(c->words, sizeof c->words, "%s", oci_error_text());
}

/* Both found it, and wait for its lock, which a record has that waits for its stream's, which we have. */
START_TEST(an_event_is_destroyed_once) {
  struct device *d = open_plain();
  oc_event e;
  ck_assert_int_eq(oci_devevent_create(&d->streams, &e), OC_OK);
  struct event_call c[3] = {{.d = d, .e = e}, {.d = d, .e = e}, {.d = d, .e = e}};
  pthread_mutex_lock(&d->streams.null_stream->lock);
  for (int i = 0; i < 3; i++) {
    side_start(&c[i].side, i ? destroy_event : record_event, &c[i]);
    side_waits(&c[i].side);
  }
  pthread_mutex_unlock(&d->streams.null_stream->lock);
  for (int i = 0; i < 3; i++) side_join(&c[i].side);
  ck_assert_int_eq(c[0].st, OC_OK);
  const struct event_call *late = c[1].st ? &c[1] : &c[2];
  ck_assert_int_eq(c[1].st + c[2].st, OC_E_INVALID);   /* and OC_OK, which is 0 */
  ck_assert_ptr_nonnull(strstr(late->words, "that event was destroyed"));
  ck_assert_uint_eq(oci_devevents_live(&d->streams), 0);
  oci_device_close(d);
}
END_TEST

/* ---- workers that look again before they sleep ---- */

static int processors = -1;   /* as the library is told; 0: it cannot be told; -1: as it is */

/* In the place of the C library's. */
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set) {
  memset(set, 0, bytes);
  if (processors < 0) return syscall(SYS_sched_getaffinity, pid, bytes, set) < 0 ? -1 : 0;
  for (size_t i = 0; i < (size_t)processors; i++) CPU_SET(i, set);
  return processors ? 0 : -1;
}

START_TEST(workers_spin_where_each_has_a_processor) {
  for (processors = 0; processors <= 8; processors++) {
    struct device *d = open_plain();
    ck_assert_int_eq(d->streams.spins > 0, processors >= 4);
    oci_device_close(d);
  }
  processors = -1;
}
END_TEST

/* Found while it looks, or after it fell asleep. */
START_TEST(a_worker_that_spins_misses_nothing) {
  struct device *d = open_plain();
  const oc_host_function f = {"small", count_small, 0, NULL};
  oc_kernel k = must_find(d, must_load(d, &f, 1), "small");
  d->streams.spins = 20000;
  small_runs = 0;
  for (int i = 0; i < 300; i++) {
    must_launch(d, k, NULL, NULL);
    must_sync(d, NULL);
    if (i % 30 == 0) nanosleep(&(struct timespec){0, 5000000}, NULL);
  }
  ck_assert_uint_eq(small_runs, 300);
  oci_device_close(d);
}
END_TEST

/* ---- modules that come and go ---- */

/* S3: loading the same image again and again takes no more memory. */
START_TEST(reloading_is_flat) {
  struct device *d = open_plain();
  static char name[400][16];
  static oc_host_function f[400];
  for (int i = 0; i < 400; i++) {
    snprintf(name[i], sizeof name[i], "kernel%d", i);
    f[i] = (oc_host_function){name[i], nothing, 1, pointer_size};
  }
  oc_host_module image = {sizeof image, 400, f};
  size_t bytes = 0;
  oc_kernel seen = NULL;
  for (int cycle = 0; cycle < 200; cycle++) {
    oc_module m;
    ck_assert_int_eq(oci_devmodule_load(&d->modules, &image, sizeof image, &m), OC_OK);
    for (int i = 0; i < 400; i++) {
      oc_kernel k;
      ck_assert_int_eq(oci_devmodule_function(&d->modules, m, name[i], &k), OC_OK);
      ck_assert_ptr_ne(k, seen);
      if (i == cycle) seen = k;
    }
    ck_assert_int_eq(oci_devmodule_unload(&d->modules, m), OC_OK);
    if (cycle == 0) bytes = oci_heap_bytes(d->heap);
    ck_assert_uint_eq(oci_heap_bytes(d->heap), bytes);
  }
  ck_assert_uint_eq(oci_devmodules_live(&d->modules), 0);
  oci_device_close(d);
}
END_TEST

static void refused(struct device *d, const void *image, size_t bytes, const char *words) {
  oc_module m = NULL;
  ck_assert_int_eq(oci_devmodule_load(&d->modules, image, bytes, &m), OC_E_INVALID);
  ck_assert_msg(strstr(oci_error_text(), words) != NULL, "\"%s\" has no \"%s\"", oci_error_text(), words);
  ck_assert_ptr_null(m);
  ck_assert_uint_eq(oci_devmodules_live(&d->modules), 0);
  ck_assert_uint_eq(oci_devslots_live(&d->modules.kernels), 0);
}

START_TEST(bad_images_are_refused_in_words) {
  struct device *d = open_plain();
  oc_host_function f[2] = {{"a", nothing, 1, pointer_size}, {"b", nothing, 0, NULL}};
  struct { oc_host_module head; uint64_t tail; } longer = {{sizeof longer, 2, f}, 0};
  oc_host_module image = {sizeof image, 2, f}, bad = image;
  static const char text[64] = ".version 7.0\n.target sm_75\n.visible .entry a()";
  oc_module m;
  ck_assert_int_eq(oci_devmodule_load(&d->modules, &longer, sizeof longer, &m), OC_OK);
  ck_assert_int_eq(oci_devmodule_unload(&d->modules, m), OC_OK);
  longer.tail = 1;
  refused(d, &longer, sizeof longer, "unknown fields");
  refused(d, NULL, sizeof image, "NULL");
  refused(d, &image, sizeof image - 1, "bytes");
  refused(d, text, sizeof text, "no oc_host_module");
  bad.struct_size = 0;
  refused(d, &bad, sizeof bad, "struct_size 0");
  bad = image, bad.function_count = UINT32_MAX;
  refused(d, &bad, sizeof bad, "functions");
  bad = image, bad.functions = NULL;
  refused(d, &bad, sizeof bad, "NULL");
  bad = image, bad.functions = (const oc_host_function *)((uintptr_t)f + 1);
  refused(d, &bad, sizeof bad, "misaligned");
  f[1].name = NULL;
  refused(d, &image, sizeof image, "function 1 has no name");
  f[1].name = "";
  refused(d, &image, sizeof image, "function 1 has no name");
  f[1].name = "a";
  refused(d, &image, sizeof image, "two functions a");
  f[1].name = "b", f[1].fn = NULL;
  refused(d, &image, sizeof image, "function b has no code");
  f[1].fn = nothing, f[1].param_count = 1;
  refused(d, &image, sizeof image, "no sizes");
  f[1].param_bytes = (const uint32_t[]){0};
  refused(d, &image, sizeof image, "0 bytes");
  f[1].param_bytes = (const uint32_t[]){UINT32_MAX};
  refused(d, &image, sizeof image, "bytes of parameters");
  f[1].param_count = UINT32_MAX;
  refused(d, &image, sizeof image, "parameters");
  oci_device_close(d);
}
END_TEST

/* ---- host memory that fails ---- */

struct fault {
  int left;        /* allocations until the failure */
  bool hit;
};

static bool fail_nth(void *arg, size_t bytes) {
  struct fault *f = arg;
  (void)bytes;
  return __atomic_sub_fetch(&f->left, 1, __ATOMIC_RELAXED) == -1 && (f->hit = true);
}

static int log_lines;
static void count_line(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  fprintf(stderr, "%s\n", line);
  log_lines++;
}

static int runs;
static void count_run(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
  __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED);
}

/* Each step may fail; whatever did is undone by the device's close. True: all went well. */
static bool work_with(struct device *d) {
  static const uint32_t sizes[] = {4, 8, 4096};
  oc_host_function f[] = {{"count", count_run, 3, sizes}, {"nothing", nothing, 0, NULL}};
  oc_host_module image = {sizeof image, 2, f};
  static char big[4096];
  void *params[] = {big, big, big};
  uint64_t p = 0, q = 0;
  oc_module m;
  oc_kernel k;
  oc_stream s;
  oc_event e;
  if (oci_devmem_alloc(&d->memory, MEM_DEVICE, MIB, &p) != OC_OK) return false;
  if (oci_devmem_alloc(&d->memory, MEM_HOST, MIB, &q) != OC_OK) return false;
  if (oci_devmodule_load(&d->modules, &image, sizeof image, &m) != OC_OK) return false;
  if (oci_devmodule_function(&d->modules, m, "count", &k) != OC_OK) return false;
  if (oci_devstream_create(&d->streams, &s) != OC_OK) return false;
  if (oci_devevent_create(&d->streams, &e) != OC_OK) return false;
  for (int i = 0; i < 10; i++) {
    if (oci_device_launch(d, k, &one, s, params) != OC_OK) return false;
  }
  if (oci_devevent_record(&d->streams, e, s) != OC_OK) return false;
  if (oci_devevent_wait(&d->streams, NULL, e) != OC_OK) return false;
  if (oci_device_fill(d, p, 1, MIB, NULL) != OC_OK) return false;
  return oci_devstreams_synchronize(&d->streams) == OC_OK;
}

START_TEST(host_memory_fails_at_every_point) {
  oci_set_log(count_line, NULL);
  struct device_options opt = {.memory = {.capacity = {GIB, GIB}}};
  bool all_well = false;
  int n = 0, opened = 0;
  for (; !all_well; n++) {
    struct fault f = {.left = n};
    struct device *d = NULL;
    oci_mem_set_fault(fail_nth, &f);
    oc_status st = oci_device_open(&opt, &d);
    ck_assert(st == OC_OK || (st == OC_E_HOST_NOMEM && f.hit && !d));
    if (d) {
      opened++;
      all_well = work_with(d);
      ck_assert(all_well != f.hit);
      f.left = -2;                    /* it was the one failure: the device still works */
      ck_assert(work_with(d));
      oci_device_close(d);
    }
    oci_mem_set_fault(NULL, NULL);
  }
  ck_assert_int_gt(opened, 10);
  ck_assert_int_ge(runs, 10 * opened);
  ck_assert_int_eq(log_lines, 0);     /* a heap that is not empty at its end says so */
  oci_set_log(NULL, NULL);
}
END_TEST

static Suite *device_suite(void) {
  Suite *s = suite_create("device");
  TCase *t = tcase_create("handles");
  tcase_add_test(t, handles_never_come_back);
  tcase_add_test(t, recycled_handles_come_back_at_once);
  tcase_add_test(t, many_handles_are_all_good);
  tcase_add_test(t, made_up_handles_are_none);
  tcase_add_test(t, a_full_table_has_no_more_handles);
  tcase_add_test(t, spans_are_found_as_in_a_plain_list);
  suite_add_tcase(s, t);

  t = tcase_create("memory");
  tcase_set_timeout(t, 30);
  tcase_add_test(t, cost_is_in_units_of_512_bytes);
  tcase_add_test(t, cost_of_chunks);
  tcase_add_test(t, chunks_fill_the_device_as_the_rule_says);
  tcase_add_test(t, capacity_holds_for_each_kind);
  tcase_add_test(t, absurd_sizes_are_refused);
  tcase_add_test(t, memory_is_aligned_zero_and_writable);
  tcase_add_test(t, a_model_of_100_gib_can_be_laid_out);
  tcase_add_test(t, places_come_round);
  tcase_add_test(t, freed_memory_is_unmapped);
  tcase_add_test(t, use_after_free_faults);
  tcase_add_test(t, queued_use_after_free_faults);
  tcase_add_test(t, recycling_is_last_in_first_out_by_size);
  tcase_add_test(t, recycling_takes_nobody_elses_address);
  tcase_add_test(t, remembers_the_last_1024_addresses);
  tcase_add_test(t, poison_fills_new_memory);
  tcase_add_test(t, bad_frees_are_told_and_change_nothing);
  tcase_add_test(t, more_holes_than_the_kernel_allows);
  tcase_add_test(t, ranges_are_checked);
#ifdef CAN_LIMIT
  tcase_add_test(t, a_window_is_what_there_is_room_for);
  tcase_add_test(t, no_room_to_align);
  tcase_add_test(t, no_room_for_a_worker);
#endif
  suite_add_tcase(s, t);

  t = tcase_create("queues");
  tcase_set_timeout(t, 30);
  tcase_add_test(t, operations_of_all_sizes_run_in_order);
  tcase_add_test(t, steps_add_up);
  tcase_add_test(t, a_destroyed_stream_at_work_is_not_stepped);
  tcase_add_test(t, failures_of_two_streams_are_told_together);
  tcase_add_test(t, an_event_is_destroyed_once);
  tcase_add_test(t, workers_spin_where_each_has_a_processor);
  tcase_add_test(t, a_worker_that_spins_misses_nothing);
  suite_add_tcase(s, t);

  t = tcase_create("modules");
  tcase_add_test(t, stale_and_made_up_handles_have_their_words);
  tcase_add_test(t, functions_whose_names_hash_alike_are_two);
  tcase_add_test(t, a_kernel_is_found_as_it_was_or_not_at_all);
  tcase_add_test(t, reloading_is_flat);
  tcase_add_test(t, bad_images_are_refused_in_words);
  suite_add_tcase(s, t);

  t = tcase_create("faults");
  tcase_set_timeout(t, 30);
  tcase_add_test(t, host_memory_fails_at_every_point);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  SRunner *r = srunner_create(device_suite());
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? 1 : 0;
}
