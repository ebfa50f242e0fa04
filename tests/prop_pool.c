/* SPDX-License-Identifier: MIT */
/*
 * Property test of the pool: random operations against a plain model, oci_pool_check after every step.
 *
 *   prop_pool [SEED [STEPS]]     repeats one run; without arguments a few fixed seeds and one of the clock
 *
 * The model is a list of intervals with a state each. After every call it must agree with the pool: no two
 * blocks overlap (G16), statuses are as the state says (G21), figures are the model's sums, pending blocks come
 * back with their events and not before (G20). The device runs out, refuses and answers late; host memory fails
 * now and then. A healthy run prints the seeds and "ok". The second half runs two threads on one pool.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fakedev.h"
#include "rcu/mem.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MOST 400

enum state { LIVE, PENDING, RETIRED, TAKEN, EXTERNAL };

struct item {
  uint64_t start, bytes, end;    /* end: of the block, padding included */
  enum state state;
  enum block_class class;
  unsigned stream;
  uint64_t seq;                  /* PENDING: of its event */
};

struct run {
  struct fakedev dev;
  struct heap *heap;
  struct pool *pool;
  struct item at[MOST];
  unsigned count;
  struct pool_batch batch;
  uint64_t rng;
  unsigned long step;
  uint64_t seed;
  int memory_fails_in;           /* host allocations; < 0: never */
};

static void failed(struct run *r, const char *what) {
  fprintf(stderr, "seed %" PRIu64 ", step %lu: %s; last error: %s\n", r->seed, r->step, what, oci_error_text());
  exit(EXIT_FAILURE);
}
#define MUST(r, condition) ((condition) ? (void)0 : failed(r, #condition))

static uint64_t roll(struct run *r, uint64_t n) {
  r->rng ^= r->rng << 13;
  r->rng ^= r->rng >> 7;
  r->rng ^= r->rng << 17;
  return (r->rng >> 11) % n;
}

static size_t some_size(struct run *r) {
  size_t magnitude = (size_t)1 << roll(r, 24);
  return roll(r, 4) ? magnitude + roll(r, magnitude) : 256 * (1 + roll(r, 8));
}

/* ---- the model ---- */

static uint64_t sum(const struct run *r, enum state state) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < r->count; i++)
    if (r->at[i].state == state) bytes += r->at[i].end - r->at[i].start;
  return bytes;
}

static struct item *item_at(struct run *r, uint64_t addr) {
  for (unsigned i = 0; i < r->count; i++)
    if (addr >= r->at[i].start && addr < r->at[i].end) return &r->at[i];
  return NULL;
}

static void add(struct run *r, struct item item) {
  for (unsigned i = 0; i < r->count; i++) MUST(r, item.end <= r->at[i].start || item.start >= r->at[i].end);
  r->at[r->count++] = item;
}

static void drop(struct run *r, struct item *item) { *item = r->at[--r->count]; }

static bool inside_a_device_arena(const struct run *r, uint64_t from, uint64_t to) {
  for (unsigned i = 0; i < r->dev.count; i++) {
    const struct fake_arena *a = &r->dev.arenas[i];
    if (from >= a->base && to <= a->base + a->bytes) return true;
  }
  return false;
}

static void compare(struct run *r) {
  struct pool_stats s;
  MUST(r, oci_pool_check(r->pool) == POOL_OK);
  oci_pool_stats(r->pool, &s);
  MUST(r, s.live_bytes == sum(r, LIVE));
  MUST(r, s.retired_bytes == sum(r, PENDING) + sum(r, RETIRED) + sum(r, TAKEN));
  MUST(r, s.live_bytes + s.retired_bytes + s.free_bytes == s.arena_bytes);
  MUST(r, s.arenas == r->dev.count);
  MUST(r, s.largest_free <= s.free_bytes);
  MUST(r, r->dev.bad_frees == 0);
}

/* ---- host memory ---- */

static bool memory_fails(void *arg, size_t bytes) {
  struct run *r = arg;
  (void)bytes;
  return r->memory_fails_in >= 0 && r->memory_fails_in-- == 0;
}

static bool no_memory_left(const struct run *r, int status) {
  return status == POOL_E_HOST_NOMEM && r->memory_fails_in == -1;
}

/* ---- operations ---- */

static bool out_of_device(const struct run *r) {
  const struct fakedev *d = &r->dev;
  return d->capacity || d->alloc_fails || (oci_pool_fell_back(r->pool) && (d->managed_capacity || d->managed_fails));
}

static void op_alloc(struct run *r) {
  static const struct pool_site sites[] = {{"a.c", 1, "f"}, {"b.c", 2, "g"}, {"b.c", 3, NULL}, {NULL, 0, NULL}};
  static const char *const owners[] = {NULL, "weights", "kv cache"};
  struct pool_request q = {.bytes = some_size(r), .align = roll(r, 3) ? 0 : (size_t)1 << roll(r, 22),
                           .class = (enum block_class)roll(r, 5), .owner = owners[roll(r, 3)],
                           .site = &sites[roll(r, 4)]};
  uint64_t ptr = 0;
  if (r->count == MOST) return;
  int status = roll(r, 8) ? oci_pool_alloc(r->pool, &q, &ptr) : oci_pool_try_alloc(r->pool, &q, &ptr);
  if (status == POOL_MISS || no_memory_left(r, status)) return;
  if (status && out_of_device(r)) return;
  MUST(r, status == POOL_OK);
  MUST(r, ptr % (q.align > 256 ? q.align : 256) == 0);
  uint64_t end = ptr + (q.bytes + 255) / 256 * 256;
  MUST(r, inside_a_device_arena(r, ptr, end));
  add(r, (struct item){.start = ptr, .bytes = q.bytes, .end = end, .state = LIVE, .class = q.class});
}

static struct item *some_item(struct run *r) { return r->count ? &r->at[roll(r, r->count)] : NULL; }

/* An address that is anything: a start, an inside, a freed one, a stranger. */
static uint64_t some_address(struct run *r) {
  struct item *item = some_item(r);
  uint64_t kind = roll(r, 8);
  if (!item || kind == 0) return roll(r, UINT64_C(1) << 48);
  if (kind == 1) return item->start + roll(r, item->end - item->start);
  if (kind == 2) return item->end + 256 * roll(r, 100);
  return item->start;
}

static int expected(const struct run *r, const struct item *item, uint64_t ptr, unsigned classes) {
  (void)r;
  if (!item || item->state != LIVE) return POOL_E_NOT_OWNED;
  if (item->start != ptr) return POOL_E_INTERIOR;
  return classes & BLOCK_BIT(item->class) ? POOL_OK : POOL_E_NOT_OWNED;
}

static void op_free(struct run *r) {
  uint64_t ptr = some_address(r);
  struct item *item = item_at(r, ptr);
  unsigned classes = roll(r, 4) ? ~0u : (unsigned)roll(r, 32);
  enum pool_release how = (enum pool_release)roll(r, 3);
  unsigned stream = (unsigned)roll(r, FAKE_STREAMS);
  int should = expected(r, item, ptr, classes);
  int status = oci_pool_free(r->pool, ptr, classes, how, (void *)(uintptr_t)stream, false);
  if (how == RELEASE_AFTER && should == POOL_OK) {
    if (r->dev.mark_fails && status == r->dev.mark_fails) return;
    if (no_memory_left(r, status)) return;
  }
  MUST(r, status == should);
  if (status) return;
  item->state = how == RELEASE_AFTER ? PENDING : RETIRED;
  item->stream = stream;
  item->seq = r->dev.marked[stream];
  if (how == RELEASE_NOW) drop(r, item);
}

static void op_collect(struct run *r) {
  if (roll(r, 2)) fake_run(&r->dev, (unsigned)roll(r, FAKE_STREAMS), 1 + roll(r, 4));
  oci_pool_collect(r->pool);
  for (unsigned i = r->count; i-- > 0;) {
    struct item *item = &r->at[i];
    if (item->state == PENDING && item->seq <= r->dev.run[item->stream] && !r->dev.passed_fails) drop(r, item);
  }
}

/* Growth collects too: what has passed may be gone already, or not. Make it so before the model is compared. */
static void settle(struct run *r) {
  int fails = r->dev.passed_fails;
  r->dev.passed_fails = 0;
  oci_pool_collect(r->pool);
  for (unsigned i = r->count; i-- > 0;)
    if (r->at[i].state == PENDING && r->at[i].seq <= r->dev.run[r->at[i].stream]) drop(r, &r->at[i]);
  r->dev.passed_fails = fails;
}

static void op_batch(struct run *r) {
  if (!r->batch.count) {
    r->batch = oci_pool_take(r->pool, POOL_TAKE_RETIRED);
    unsigned count = 0;
    for (unsigned i = 0; i < r->count; i++)
      if (r->at[i].state == RETIRED) r->at[i].state = TAKEN, count++;
    MUST(r, count == r->batch.count);
    return;
  }
  bool back = roll(r, 2);
  if (back) oci_pool_put_back(r->pool, &r->batch);
  else oci_pool_give_back(r->pool, &r->batch);
  for (unsigned i = r->count; i-- > 0;) {
    if (r->at[i].state != TAKEN) continue;
    if (back) r->at[i].state = RETIRED;
    else drop(r, &r->at[i]);
  }
}

static void op_unretire(struct run *r) {
  uint64_t ptr = some_address(r);
  struct item *item = item_at(r, ptr);
  bool should = item && item->state == RETIRED && item->start == ptr;
  MUST(r, oci_pool_unretire(r->pool, ptr, oci_pool_takes(r->pool)) == (should ? POOL_OK : POOL_E_NOT_OWNED));
  if (should) drop(r, item);
}

static bool touches(const struct run *r, uint64_t from, uint64_t to, bool external) {
  for (unsigned i = 0; i < r->count; i++)
    if (r->at[i].start < to && from < r->at[i].end && (r->at[i].state == EXTERNAL) == external) return true;
  return false;
}

static bool touches_an_arena(const struct run *r, uint64_t from, uint64_t to) {
  for (unsigned i = 0; i < r->dev.count; i++)
    if (r->dev.arenas[i].base < to && from < r->dev.arenas[i].base + r->dev.arenas[i].bytes) return true;
  return false;
}

static void op_note(struct run *r) {
  uint64_t from = roll(r, 3) ? 4096 + roll(r, 2000) * 128 : some_address(r), bytes = 1 + roll(r, 1000);
  if (r->count == MOST || !from) return;
  int status = oci_pool_note_external(r->pool, from, bytes, "other", NULL);
  if (no_memory_left(r, status)) return;
  int should = touches_an_arena(r, from, from + bytes) ? POOL_E_INVALID : POOL_OK;
  if (!should && touches(r, from, from + bytes, true)) should = POOL_EXISTS;
  MUST(r, status == should);
  if (!status) add(r, (struct item){.start = from, .bytes = bytes, .end = from + bytes, .state = EXTERNAL});
}

static void op_forget(struct run *r) {
  uint64_t ptr = some_address(r);
  struct item *item = item_at(r, ptr);
  bool ours = item && item->state == EXTERNAL;
  int should = !ours ? POOL_E_NOT_OWNED : item->start != ptr ? POOL_E_INTERIOR : POOL_OK;
  MUST(r, oci_pool_forget_external(r->pool, ptr, false) == should);
  if (!should) drop(r, item);
}

static void op_find(struct run *r) {
  struct block_info info;
  uint64_t addr = some_address(r);
  const struct item *item = item_at(r, addr);
  int status = oci_pool_find(r->pool, addr, &info);
  if (!item) {
    MUST(r, status == POOL_MISS || !info.live);
    return;
  }
  MUST(r, status == POOL_OK && info.start == item->start && info.bytes == item->bytes);
  MUST(r, info.external == (item->state == EXTERNAL));
  MUST(r, info.live == (item->state == LIVE || item->state == EXTERNAL));
}

static void op_reclass(struct run *r) {
  uint64_t ptr = some_address(r);
  struct item *item = item_at(r, ptr);
  enum block_class class = (enum block_class)roll(r, 5);
  int status = oci_pool_reclass(r->pool, ptr, class, roll(r, 2) ? "reclassed" : NULL);
  if (no_memory_left(r, status)) return;
  MUST(r, status == expected(r, item, ptr, ~0u));
  if (!status) item->class = class;
}

/* The world changes: capacity, refusals, host memory. */
static void op_weather(struct run *r) {
  struct fakedev *d = &r->dev;
  d->capacity = roll(r, 2) ? 0 : d->used + roll(r, 64) * MIB + 1;
  d->managed_capacity = roll(r, 2) ? 0 : d->managed_used + roll(r, 64) * MIB + 1;
  d->alloc_fails = roll(r, 8) ? 0 : -40;
  d->managed_fails = roll(r, 8) ? 0 : -11;
  d->free_fails = 0;
  d->mark_fails = roll(r, 8) ? 0 : -6;
  d->passed_fails = roll(r, 8) ? 0 : -40;
  r->memory_fails_in = roll(r, 4) ? -2 : (int)roll(r, 12);
}

static void one_step(struct run *r) {
  static void (*const ops[])(struct run *) = {
    op_alloc, op_alloc, op_alloc, op_alloc, op_alloc, op_free, op_free, op_free, op_free, op_collect, op_collect,
    op_batch, op_unretire, op_note, op_forget, op_find, op_find, op_reclass,
  };
  ops[roll(r, sizeof ops / sizeof *ops)](r);
  if (!roll(r, 50)) op_weather(r);
  int memory = r->memory_fails_in;
  r->memory_fails_in = -2;
  settle(r);
  compare(r);
  r->memory_fails_in = memory == -1 ? -2 : memory;
}

static void open_run(struct run *r, uint64_t seed) {
  memset(r, 0, sizeof *r);
  fake_init(&r->dev);
  r->seed = seed;
  r->rng = seed * 2654435761u + 1;
  r->memory_fails_in = -2;
  r->dev.skew = roll(r, 3) ? 0 : 16 * roll(r, 64);
  struct pool_device d = fake_device(&r->dev, roll(r, 4), true);
  struct pool_options opt = {.arena_min = 2 * MIB << roll(r, 4), .arena_max = 32 * MIB, .no_managed = !roll(r, 5)};
  r->heap = oci_heap_create();
  MUST(r, oci_pool_create(&d, &opt, r->heap, &r->pool) == POOL_OK);
}

static void close_run(struct run *r) {
  oci_pool_release_arenas(r->pool, NULL, NULL);
  MUST(r, oci_pool_check(r->pool) == POOL_OK);
  oci_pool_destroy(r->pool);
  MUST(r, r->dev.count == 0 && r->dev.events == 0 && r->dev.bad_frees == 0);
  MUST(r, oci_heap_bytes(r->heap) == 0);
  oci_heap_destroy(r->heap);
}

static void one_run(uint64_t seed, unsigned long steps) {
  static struct run r;
  printf("seed %" PRIu64 "\n", seed);
  fflush(stdout);
  open_run(&r, seed);
  oci_mem_set_fault(memory_fails, &r);
  for (r.step = 0; r.step < steps; r.step++) one_step(&r);
  oci_mem_set_fault(NULL, NULL);
  close_run(&r);
}

/* ---- two threads ---- */

struct worker {
  struct run *shared;
  uint64_t rng;
  unsigned long steps;
};

/* Each thread knows its own blocks only; that none overlaps another thread's is what each writes down in a map of
   the address space that both see. */
#define CELLS (1u << 20)
static unsigned char owned[CELLS];

static void claim(struct run *r, uint64_t ptr, size_t bytes, bool mine) {
  for (uint64_t a = ptr; a < ptr + bytes; a += 256) {
    unsigned char *cell = &owned[(a - UINT64_C(0x7f0000000000)) / 256 % CELLS];
    if (mine) MUST(r, __atomic_exchange_n(cell, 1, __ATOMIC_RELAXED) == 0);
    else __atomic_store_n(cell, 0, __ATOMIC_RELAXED);
  }
}

static void *work(void *arg) {
  struct worker *w = arg;
  struct run *r = w->shared;
  uint64_t at[64] = {0};
  size_t bytes[64];
  for (unsigned long step = 0; step < w->steps; step++) {
    w->rng = w->rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    unsigned i = (unsigned)(w->rng >> 33) % 64, what = (unsigned)(w->rng >> 40) % 8;
    if (at[i]) {
      enum pool_release how = what < 4 ? RELEASE_NOW : what < 6 ? RELEASE_AFTER : RELEASE_RETIRE;
      claim(r, at[i], bytes[i], false);
      MUST(r, oci_pool_free(r->pool, at[i], ~0u, how, (void *)(uintptr_t)(what % 4), false) == POOL_OK);
      at[i] = 0;
    } else {
      struct pool_request q = {.bytes = bytes[i] = 1 + (w->rng >> 20) % (64 * KIB), .owner = what % 2 ? "x" : NULL};
      MUST(r, oci_pool_alloc(r->pool, &q, &at[i]) == POOL_OK);
      claim(r, at[i], bytes[i], true);
    }
    if (step % 16 == 0) {
      fake_run(&r->dev, what % 4, 8);
      oci_pool_collect(r->pool);
    }
    if (step % 64 == 0) {
      struct pool_batch b = oci_pool_take(r->pool, POOL_TAKE_RETIRED | POOL_TAKE_HELD);
      if (what % 2) oci_pool_give_back(r->pool, &b);
      else oci_pool_put_back(r->pool, &b);
    }
    if (step % 256 == 0) MUST(r, oci_pool_check(r->pool) == POOL_OK);
    if (step % 512 == 0) oci_strfree(NULL, oci_pool_report_json(r->pool));
  }
  return NULL;
}

static void two_threads(uint64_t seed, unsigned long steps) {
  static struct run r;
  pthread_t thread[2];
  struct worker w[2];
  printf("two threads, seed %" PRIu64 "\n", seed);
  memset(owned, 0, sizeof owned);
  open_run(&r, seed);
  for (unsigned i = 0; i < 2; i++) {
    w[i] = (struct worker){&r, seed + i, steps};
    MUST(&r, pthread_create(&thread[i], NULL, work, &w[i]) == 0);
  }
  for (unsigned i = 0; i < 2; i++) pthread_join(thread[i], NULL);
  MUST(&r, oci_pool_check(r.pool) == POOL_OK);
  close_run(&r);
}

/* G17: threads that run out together cause one sequence. */
static void *grow_once(void *arg) {
  struct run *r = arg;
  struct pool_request q = {.bytes = 100};
  uint64_t ptr;
  MUST(r, oci_pool_alloc(r->pool, &q, &ptr) == POOL_OK);
  return NULL;
}

static void together(uint64_t seed) {
  static struct run r;
  pthread_t thread[4];
  open_run(&r, seed);
  for (int i = 0; i < 4; i++) MUST(&r, pthread_create(&thread[i], NULL, grow_once, &r) == 0);
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  MUST(&r, r.dev.allocs == 1);
  close_run(&r);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SCALE 4
#else
#define SCALE 1
#endif

int main(int argc, char **argv) {
  unsigned long steps = argc > 2 ? strtoul(argv[2], NULL, 0) : 6000 / SCALE;
  if (argc > 1) {
    one_run(strtoull(argv[1], NULL, 0), steps);
    two_threads(strtoull(argv[1], NULL, 0), steps);
    return EXIT_SUCCESS;
  }
  for (uint64_t seed = 1; seed <= 8; seed++) one_run(seed, steps);
  one_run((uint64_t)time(NULL), steps);
  for (uint64_t seed = 1; seed <= 3; seed++) two_threads(seed, 20000 / SCALE);
  for (uint64_t seed = 1; seed <= 20; seed++) together(seed);
  puts("ok");
  return EXIT_SUCCESS;
}
