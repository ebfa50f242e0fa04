/* SPDX-License-Identifier: MIT */
/*
 * The embedded device from inside: its parts one by one, and host memory that fails at any point (G33). What
 * an engine can see of it is in test_host.c.
 */
#include "config.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "liboc/device.h"
#include "rcu/error.h"
#include "rcu/mem.h"

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

/* ---- modules ---- */

static void nothing(const oc_host_launch *l, void *const *params) {
  (void)l;
  (void)params;
}

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
  suite_add_tcase(s, t);

  t = tcase_create("modules");
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
