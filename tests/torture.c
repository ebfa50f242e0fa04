/* SPDX-License-Identifier: MIT */
/*
 * Everything at once, in the manner of liburcu's rcutorture: models are loaded, swapped and torn down while readers look up
 * under guards of random length and nesting, builders build, fail and stall, invalidators change sources, growers grow
 * scratch and churn the pool, streams come and go under recycled handles, and the driver fails now and then.
 *
 *   torture [SECONDS [THREADS]]      LIBOC_TEST_SEED=n repeats the choices, LIBOC_TEST_BACKEND=cuda: over the CUDA backend
 *   tests/stress.sh SANITIZER SECONDS THREADS   builds it and runs it over both
 *
 * Healthy output: the seed, what was done (each of it more than 0), what went wrong (all 0), "torture: passed".
 *   stale      a value of another model than the one it was asked of
 *   old        a value of a source's version from before the last finished invalidate
 *   changed    a value or scratch buffer that changed while a guard held it, or a block that a graph still has: it was freed and
 *              used again
 *   early      a value whose maker's stream had not got there, after get_ptr_on and the work queued since
 *   overlap    a block of the pool whose bytes somebody else wrote
 *   twice      a `once` gate that was true for two callers, or for none
 *   refused    a call that answered what it must not
 *   unloaded   launches of functions whose module was gone;  left: blocks, modules and events at the end
 * Memory is poisoned by the device when it is new; builders and growers stamp all that they get, and growers spoil what they
 * free. Queued work is slow (slow_down), and writes to what its caller has let go of by then: a value after the guard, a block
 * after free_on, a failed build's block, an outgrown scratch buffer. So whoever gets such memory too early finds it overwritten.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fixture.h"
#include "tests/simcuda/simcuda.h"

#define SOURCES 24u
#define WORDS 16u          /* of a value, stamped by the CPU; then as many of 32 bits by its stream, and as many for users' work */
#define VALUE_BYTES (WORDS * 16)
#define PAD_BYTES ((size_t)1 << 19)
#define THREADS_MAX 64u
#define BLOCKS 48u
#define KERNELS 2u

/* ---- a loaded model, as the engine sees it ---- */

/* A source has a version. Whoever changes it counts up, invalidates, and then says so (settled). */
struct source {
  uint64_t version, settled;   /* atomic */
  pthread_mutex_t changing;
};

struct loaded {
  oc_model *m;
  oc_opcache *c;
  oc_derived *d;
  oc_pool *p;
  uint64_t generation;
  unsigned opened_gates;       /* atomic: times that `once` was true */
  struct source source[SOURCES];
};

struct counts {
  uint64_t reads, misses, builds, failed, stalled, nested, races, invalidates, growths, blocks, launches, swaps, busy,
      captures, streams, orders;
  uint64_t stale, old, changed, early, overlap, twice, refused;
};

struct block {
  oc_devptr at;
  uint64_t words, stamp;
};

struct actor {
  unsigned id;
  uint64_t random;
  oc_stream stream, maker;            /* its own builds are queued on the second */
  oc_devptr pad[2];                   /* theirs, the device's own memory, for work that takes a while */
  uint64_t named_before, named_now;   /* generations that know the stream: the newest but one, the newest */
  struct loaded *lease;               /* atomic: in use, not to be destroyed */
  const char *doing;                  /* atomic */
  struct block block[BLOCKS];
  uint64_t retired_of;                /* the generation whose graphs have the blocks */
  struct counts n;
};

static unsigned seconds = 2, readers = 3;
static oc_backend *backend;
static struct loaded *current;        /* atomic; read inside a guard, or under a lease */
static uint64_t destroyed;            /* atomic: all generations up to it are gone */
static bool stop;                     /* atomic */
static struct actor actors[THREADS_MAX + 16];
static unsigned actor_count;
static oc_kernel_key keys[KERNELS] = {OC_KERNEL_KEY("test", "add"), OC_KERNEL_KEY("test", "fill")};
static oc_tag_key act = OC_TAG_KEY("act"), gate = OC_TAG_KEY("gate");

static uint64_t roll(struct actor *a, uint64_t n) { return fx_random(&a->random) % n; }
static void doing(struct actor *a, const char *what) { __atomic_store_n(&a->doing, what, __ATOMIC_RELAXED); }
static bool stopped(void) { return __atomic_load_n(&stop, __ATOMIC_ACQUIRE); }
static uint64_t key_of(unsigned source) { return 0x7f0000 + 4096 * (uint64_t)source; }

static uint64_t peek(oc_devptr at, unsigned word) {
  return __atomic_load_n((uint64_t *)(uintptr_t)at + word, __ATOMIC_RELAXED);
}
static void poke(oc_devptr at, unsigned word, uint64_t value) {
  __atomic_store_n((uint64_t *)(uintptr_t)at + word, value, __ATOMIC_RELAXED);
}

/* A few microseconds to a few milliseconds, mostly short. */
static void pause_a_while(struct actor *a) {
  uint64_t kind = roll(a, 64);
  if (kind == 0) nanosleep(&(struct timespec){.tv_nsec = (long)roll(a, 3000000)}, NULL);
  else if (kind < 8) sched_yield();
  else for (volatile uint64_t spin = roll(a, 300); spin; spin--) continue;
}

/* Answers that a call may give while models go and the driver fails at times. */
static bool expected(struct actor *a, oc_status st, const char *call) {
  switch (st) {
  case OC_OK: case OC_MISS: case OC_EXISTS: case OC_E_RELEASED: case OC_E_BACKEND: case OC_E_DEVICE_NOMEM: case OC_E_IO:
    return true;
  default:
    if (!a->n.refused++) fprintf(stderr, "torture: %s: %s: %s\n", call, oc_status_name(st), oc_last_error());
    return false;
  }
}

/* ---- queued work ---- */

/* So that what is queued behind it runs when its caller has gone on. */
static void slow_down(struct actor *a, oc_stream s, unsigned times) {
  const oc_backend_ops *t = oc_backend_table(backend);
  while (times--) expected(a, t->memset(oc_backend_self(backend), a->pad[s == a->maker], 1, PAD_BYTES, s), "memset");
}

/* n words of 32 bits. */
static oc_status queue_fill(struct loaded *l, oc_stream s, oc_devptr at, uint32_t value, uint32_t n) {
  oc_kernel k;
  oc_status st = oc_opcache_kernel_k(l->c, &keys[1], &k);
  if (st) return st;
  const uint32_t one[3] = {1, 1, 1};
  void *params[] = {&at, &value, &n};
  const oc_backend_ops *t = oc_backend_table(backend);
  return t->launch(oc_backend_self(backend), k, one, one, 0, s, params);
}

/* ---- values ---- */

static void stamp_value(oc_devptr at, uint64_t generation, unsigned source, uint64_t version) {
  poke(at, 0, generation);
  poke(at, 1, source);
  for (unsigned i = 2; i < WORDS; i++) poke(at, i, version);
}

/* What the maker's stream writes behind it, or the maker. */
static oc_devptr queued_part(oc_devptr at) { return at + WORDS * 8; }
static uint32_t queued_stamp(oc_devptr at) { return (uint32_t)(peek(at, 0) * 64 + peek(at, 1) + peek(at, 2) * 4096); }

static oc_status stamp_queued(struct actor *a, struct loaded *l, oc_devptr at, bool by_stream) {
  uint32_t stamp = queued_stamp(at);
  for (unsigned i = 0; i < WORDS / 2; i++) poke(queued_part(at), i, by_stream ? ~(uint64_t)0 : (uint64_t)stamp << 32 | stamp);
  if (!by_stream) return OC_OK;
  slow_down(a, a->maker, 1 + (unsigned)roll(a, 8));
  return queue_fill(l, a->maker, queued_part(at), stamp, WORDS);
}

/* On the actor's stream, which has waited for the maker's. */
static void check_queued(struct actor *a, oc_devptr at) {
  uint64_t want = queued_stamp(at);
  fx_sync(backend, a->stream);
  for (unsigned i = 0; i < WORDS / 2; i++)
    if (peek(queued_part(at), i) != (want << 32 | want)) { a->n.early++; return; }
}

static void check_value(struct actor *a, const struct loaded *l, oc_devptr at, unsigned source, uint64_t oldest) {
  uint64_t version = peek(at, 2);
  if (peek(at, 0) != l->generation || peek(at, 1) != source) a->n.stale++;
  else if (version < oldest) a->n.old++;
  for (unsigned i = 3; i < WORDS; i++)
    if (peek(at, i) != version) { a->n.changed++; return; }
}

struct recipe {
  struct actor *a;
  struct loaded *l;
  unsigned source;
  bool nested;
};

static oc_status build_ptr(oc_build *b, void *arg, uint64_t *out);

/* A build that asks for another key. Always a larger one: circles have a test of their own. */
static void build_another(struct recipe *r) {
  struct recipe inner = *r;
  uint64_t v;
  if (r->source + 1 >= SOURCES) return;
  inner.source = r->source + 1 + (unsigned)roll(r->a, SOURCES - r->source - 1);
  inner.nested = true;
  r->a->n.nested++;
  expected(r->a, oc_derived_get_or_build_ptr(r->l->d, OC_BF16, key_of(inner.source), build_ptr, &inner, &v), "nested build");
}

static oc_status build_ptr(oc_build *b, void *arg, uint64_t *out) {
  struct recipe *r = arg;
  oc_devptr at, unused;
  uint64_t version = __atomic_load_n(&r->l->source[r->source].version, __ATOMIC_ACQUIRE);
  oc_status st = oc_build_alloc(b, VALUE_BYTES, 0, &at);
  if (!st && roll(r->a, 3) == 0) st = oc_build_alloc(b, 1 + roll(r->a, 9000), 0, &unused);
  if (st) return st;
  r->a->n.builds++;
  stamp_value(at, r->l->generation, r->source, version);
  bool by_stream = roll(r->a, 4) == 0;
  if (by_stream) st = oc_build_on_stream(b, r->a->maker);
  if (!st) st = stamp_queued(r->a, r->l, at, by_stream);
  if (!st && roll(r->a, 6) == 0) {
    r->a->n.stalled++;
    pause_a_while(r->a);
  }
  if (!st && !r->nested && roll(r->a, 8) == 0) build_another(r);
  if (!st && roll(r->a, 10) == 0) {
    r->a->n.failed++;
    st = OC_E_IO;
  }
  *out = at;
  return st;
}

/* The same by begin and commit, or abort. */
static void begin_and_end(struct actor *a, struct loaded *l, unsigned source) {
  struct recipe r = {a, l, source, true};
  oc_build *b = NULL;
  uint64_t v[2] = {0, 0};
  oc_status st = oc_derived_begin(l->d, OC_BF16, key_of(source), &b, v);
  if (!expected(a, st, "begin") || st != OC_MISS) return;
  st = build_ptr(b, &r, v);
  if (st || roll(a, 5) == 0) oc_build_abort(b);
  else expected(a, oc_build_commit(b, v, NULL), "commit");
}

/* ---- readers ---- */

static void read_one(struct actor *a, struct loaded *l, oc_devptr *seen, uint64_t *oldest, unsigned *source) {
  *source = (unsigned)roll(a, SOURCES);
  *oldest = __atomic_load_n(&l->source[*source].settled, __ATOMIC_ACQUIRE);
  oc_status st = oc_derived_get_ptr(l->d, OC_BF16, key_of(*source), seen);
  if (st == OC_OK) {
    a->n.reads++;
    check_value(a, l, *seen, *source, *oldest);
    return;
  }
  *seen = 0;
  a->n.misses++;
  expected(a, st, "get_ptr");
}

/* A buffer is outgrown while its user's guard holds it, and while queued work is on its way to it. Its first 8 words are the
   stream's. */
static void outgrow(struct actor *a, struct loaded *l, oc_devptr at) {
  enum { FIRST = 8, LAST = 64 };
  oc_devptr larger;
  uint64_t stamp = fx_random(&a->random);
  for (unsigned i = FIRST; i < LAST; i++) poke(at, i, stamp + i);
  oc_status st = oc_opcache_scratch_on_k(l->c, &act, a->stream, 4096 + roll(a, 1 << 18), &larger);
  if (!expected(a, st, "larger scratch") || st || larger == at) return;
  a->n.growths++;
  slow_down(a, a->stream, 1);
  expected(a, queue_fill(l, a->stream, at, 7, FIRST * 2), "fill");
  pause_a_while(a);
  for (unsigned i = FIRST; i < LAST; i++)
    if (peek(at, i) != stamp + i) { a->n.changed++; return; }
}

static void launch(struct actor *a, struct loaded *l) {
  oc_kernel k;
  oc_devptr at;
  oc_status st = oc_opcache_kernel_k(l->c, &keys[0], &k);
  if (!st) st = oc_opcache_scratch_on_k(l->c, &act, a->stream, 4096, &at);
  if (!expected(a, st, "kernel, scratch") || st) return;
  uint32_t one = 1;
  const uint32_t shape[3] = {1, 1, 1};
  void *params[] = {&at, &one};
  const oc_backend_ops *t = oc_backend_table(backend);
  expected(a, t->launch(oc_backend_self(backend), k, shape, shape, 0, a->stream, params), "launch");
  a->n.launches++;
  outgrow(a, l, at);
}

static void read_inside(struct actor *a, struct loaded *l) {
  enum { LOOKS = 6 };
  oc_devptr seen[LOOKS];
  uint64_t oldest[LOOKS], was[LOOKS];
  unsigned source[LOOKS];
  for (unsigned i = 0; i < LOOKS; i++) {
    read_one(a, l, &seen[i], &oldest[i], &source[i]);
    was[i] = seen[i] ? peek(seen[i], 2) : 0;
  }
  if (oc_opcache_once_k(l->c, &gate)) __atomic_add_fetch(&l->opened_gates, 1, __ATOMIC_RELAXED);
  pause_a_while(a);
  for (unsigned i = 0; i < LOOKS; i++) {
    if (!seen[i]) continue;
    if (peek(seen[i], 2) != was[i]) a->n.changed++;
    else check_value(a, l, seen[i], source[i], 0);
  }
}

/* The engine's pointer is read inside the guard too: a destroyed model's record is freed after guards. */
static void read_guarded(struct actor *a) {
  unsigned depth = 1 + (unsigned)roll(a, 4);
  for (unsigned i = 0; i < depth; i++) oc_guard_enter();
  struct loaded *l = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
  if (oc_model_enter(l->m) == OC_OK) {
    read_inside(a, l);
    oc_model_leave(l->m);
  }
  for (unsigned i = 0; i < depth; i++) oc_guard_leave();
}

/* ---- leases: for calls that are no hits ---- */

static struct loaded *lease(struct actor *a) {
  for (;;) {
    struct loaded *l = __atomic_load_n(&current, __ATOMIC_SEQ_CST);
    __atomic_store_n(&a->lease, l, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&current, __ATOMIC_SEQ_CST) == l) return l;
  }
}

/* Every second model has nobody who waits for guards but its teardown. On the others some invalidate is mostly on its way,
   for which teardown waits, and so for the guards: its own grace period would never be missed. */
static bool is_quiet(const struct loaded *l) { return l->generation % 2 != 0; }

static void end_lease(struct actor *a) { __atomic_store_n(&a->lease, NULL, __ATOMIC_RELEASE); }

static bool leased(const struct loaded *l) {
  for (unsigned i = 0; i < actor_count; i++)
    if (__atomic_load_n(&actors[i].lease, __ATOMIC_SEQ_CST) == l) return true;
  return false;
}

static void knows_my_stream(struct actor *a, const struct loaded *l) {
  if (a->named_now == l->generation) return;
  a->named_before = a->named_now;
  a->named_now = l->generation;
}

/* Forgotten, destroyed, made anew, perhaps under the same handle; once no older model may still wait for it. */
static void renew_stream(struct actor *a, struct loaded *l) {
  doing(a, "renewing its stream");
  if (__atomic_load_n(&destroyed, __ATOMIC_ACQUIRE) < a->named_before || a->named_now != l->generation) return;
  oc_status st = oc_model_forget_stream(l->m, a->stream);
  if (!expected(a, st, "forget_stream") || st) return;
  fx_stream_free(backend, a->stream);
  a->stream = fx_stream(backend);
  a->named_now = a->named_before = 0;
  a->n.streams++;
}

/* ---- the acts ---- */

static void act_read(struct actor *a) {
  doing(a, "reading");
  read_guarded(a);
  if (roll(a, 32)) return;
  struct loaded *l = lease(a);
  doing(a, "launching");
  knows_my_stream(a, l);
  oc_guard_enter();
  launch(a, l);
  oc_guard_leave();
  if (roll(a, 16) == 0) renew_stream(a, l);
  end_lease(a);
}

/* A value is used by queued work that outlasts the guard: each user has a word of its own for it. */
static void use_on_stream(struct actor *a, struct loaded *l, unsigned source) {
  uint64_t v;
  oc_guard_enter();
  oc_status st = oc_derived_get_ptr_on(l->d, OC_BF16, key_of(source), a->stream, &v);
  if (expected(a, st, "get_ptr_on") && st == OC_OK) {
    a->n.orders++;
    check_queued(a, v);
    slow_down(a, a->stream, 1 + (unsigned)roll(a, 16));
    expected(a, queue_fill(l, a->stream, queued_part(v) + WORDS * 4 + 4 * (a->id % WORDS), 7, 1), "fill");
  }
  oc_guard_leave();
}

/* Tables grow, and are read meanwhile. */
static void insert_ever_new(struct actor *a, struct loaded *l) {
  static uint64_t key = 0x10000000;   /* atomic */
  oc_devptr at;
  oc_status st = oc_pool_alloc(l->p, 64, 0, &at);
  if (!expected(a, st, "alloc") || st) return;
  expected(a, oc_derived_insert_ptr(l->d, OC_BF16, __atomic_add_fetch(&key, 64, __ATOMIC_RELAXED), at, NULL), "insert");
}

static void act_build(struct actor *a) {
  struct loaded *l = lease(a);
  struct recipe r = {a, l, (unsigned)roll(a, SOURCES), false};
  uint64_t v;
  doing(a, "building");
  knows_my_stream(a, l);
  if (roll(a, 3) == 0) begin_and_end(a, l, r.source);
  else expected(a, oc_derived_get_or_build_ptr(l->d, OC_BF16, key_of(r.source), build_ptr, &r, &v), "get_or_build");
  doing(a, "ordering");
  if (roll(a, 4) == 0) use_on_stream(a, l, roll(a, 2) ? r.source : (unsigned)roll(a, SOURCES));
  if (roll(a, 16) == 0) insert_ever_new(a, l);
  if (roll(a, 64) == 0) expected(a, oc_derived_settle(l->d), "settle");
  end_lease(a);
  pause_a_while(a);
}

static void act_invalidate(struct actor *a) {
  struct loaded *l = lease(a);
  unsigned i = (unsigned)roll(a, SOURCES);
  struct source *s = &l->source[i];
  if (is_quiet(l)) {
    end_lease(a);
    usleep(500);
    return;
  }
  doing(a, "invalidating");
  pthread_mutex_lock(&s->changing);
  uint64_t version = __atomic_add_fetch(&s->version, 1, __ATOMIC_ACQ_REL);
  const uint64_t both[2] = {key_of(i), key_of(i) + 1};
  oc_status st = roll(a, 2) ? oc_derived_invalidate(l->d, both[0]) : oc_derived_invalidate_n(l->d, both, 2);
  if (st == OC_OK) __atomic_store_n(&s->settled, version, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&s->changing);
  expected(a, st, "invalidate");
  a->n.invalidates++;
  if (roll(a, 100) == 0) expected(a, oc_derived_release(l->d), "release");
  end_lease(a);
}

/* A block's memory is touched inside a guard of a model that lives: teardown frees the arenas after guards, and a lease
   does not hold it up. A block that could not be filled has no words to compare. */
static void fill(struct loaded *l, struct block *b) {
  if (oc_model_enter(l->m) != OC_OK) {
    b->words = 0;
    return;
  }
  for (uint64_t i = 0; i < b->words; i++) poke(b->at, (unsigned)i, b->stamp + i);
  oc_model_leave(l->m);
}
static bool intact(struct loaded *l, const struct block *b) {
  bool same = true;
  if (oc_model_enter(l->m) != OC_OK) return true;
  for (uint64_t i = 0; same && i < b->words; i++) same = peek(b->at, (unsigned)i) == b->stamp + i;
  oc_model_leave(l->m);
  return same;
}

/* Queued work writes to the block, and may not have when free_on returns. */
static oc_status use_and_free(struct actor *a, struct loaded *l, struct block *b) {
  if (oc_model_enter(l->m) == OC_OK) {
    oc_status st = oc_model_use_stream(l->m, a->stream);   /* teardown must know of it */
    if (!st) {
      slow_down(a, a->stream, 1);
      expected(a, queue_fill(l, a->stream, b->at, 7, (uint32_t)b->words * 2), "fill");
      b->words = 0;
    }
    oc_model_leave(l->m);
  }
  oc_status st = oc_pool_free_on(l->p, b->at, a->stream);
  if (st) fx_sync(backend, a->stream);   /* it is still ours, and may be freed in another way next time */
  return st;
}

static oc_status free_somehow(struct actor *a, struct loaded *l, struct block *b) {
  switch (roll(a, 24)) {
  case 0: return use_and_free(a, l, b);
  case 1: case 2: case 3: case 4: case 5: case 6: case 7: return oc_pool_free_on(l->p, b->at, a->stream);
  default: return oc_pool_free(l->p, b->at);
  }
}

static void churn(struct actor *a, struct loaded *l, struct block *b) {
  if (!b->at) {
    b->words = 1 + roll(a, roll(a, 8) ? 64 : 4096);
    b->stamp = fx_random(&a->random);
    oc_status st = oc_pool_alloc(l->p, b->words * 8, 0, &b->at);
    if (!expected(a, st, "alloc") || st) b->at = 0;
    else fill(l, b);
    a->n.blocks++;
    return;
  }
  if (!intact(l, b)) a->n.overlap++;
  b->stamp = ~b->stamp;
  fill(l, b);   /* spoilt for who still reads it */
  oc_status st = free_somehow(a, l, b);
  if (st == OC_OK) b->at = 0;
  else expected(a, st, "free");
}

/* All of a lease's blocks end with it. */
static void act_grow(struct actor *a) {
  struct loaded *l = lease(a);
  knows_my_stream(a, l);
  memset(a->block, 0, sizeof a->block);
  for (unsigned n = 0; n < 60; n++) {
    oc_devptr at;
    doing(a, "churning");
    churn(a, l, &a->block[roll(a, BLOCKS)]);
    if (roll(a, 24)) continue;
    doing(a, "growing scratch");
    oc_status st = oc_opcache_scratch_on_k(l->c, &act, a->stream, 1 + roll(a, 1 << 18), &at);
    if (expected(a, st, "scratch_on") && !st) a->n.growths++;
    char tag[16];
    snprintf(tag, sizeof tag, "tag-%u", (unsigned)roll(a, 6));
    expected(a, oc_opcache_scratch(l->c, tag, 1 + roll(a, 1 << 16), &at), "scratch");
  }
  doing(a, "checking the pool");
  oc_status st = oc_pool_check(l->p);
  if (st == OC_E_INVALID) expected(a, st, "pool_check");
  for (unsigned i = 0; i < BLOCKS; i++)
    if (a->block[i].at && !intact(l, &a->block[i])) a->n.overlap++;
  for (unsigned i = 0; i < BLOCKS; i++)
    if (a->block[i].at && roll(a, 20)) expected(a, oc_pool_free(l->p, a->block[i].at), "free at the end");
  end_lease(a);
}

/* The blocks that graphs have, oldest overwritten by newest, stay as they are. */
static void check_retired(struct actor *a, struct loaded *l) {
  if (a->retired_of != l->generation) memset(a->block, 0, sizeof a->block);
  a->retired_of = l->generation;
  for (unsigned i = 0; i < BLOCKS; i++)
    if (a->block[i].at && !intact(l, &a->block[i])) a->n.changed++;
}

/* A capture on its own stream: hits, frees that retire; now and then all graphs are gone. */
static void act_capture(struct actor *a) {
  struct loaded *l = lease(a);
  oc_devptr at = 0;
  uint64_t v;
  doing(a, "capturing");
  knows_my_stream(a, l);
  check_retired(a, l);
  struct block *b = &a->block[a->n.captures % BLOCKS];
  oc_status st = oc_pool_alloc(l->p, 512, 0, &at);
  *b = (struct block){st ? 0 : at, 64, fx_random(&a->random)};
  if (b->at) fill(l, b);
  if (expected(a, st, "alloc") && !st && oc_capture_enter(l->m, a->stream) == OC_OK) {
    a->n.captures++;
    oc_guard_enter();
    st = oc_derived_get_ptr(l->d, OC_BF16, key_of((unsigned)roll(a, SOURCES)), &v);
    expected(a, st, "get_ptr in a capture");
    pause_a_while(a);
    oc_guard_leave();
    expected(a, oc_pool_free(l->p, at), "free in a capture");
    oc_capture_leave(l->m);
  }
  doing(a, "graphs gone");
  if (!is_quiet(l) && roll(a, 4) == 0) {
    check_retired(a, l);
    memset(a->block, 0, sizeof a->block);
    expected(a, oc_model_graphs_gone(l->m), "graphs_gone");
  }
  end_lease(a);
  pause_a_while(a);
}

/* ---- loading and tearing down ---- */

static struct loaded *load(struct actor *a) {
  struct loaded *l = calloc(1, sizeof *l);
  oc_model_options o = {.struct_size = sizeof o, .name = "torture", .arena_min = 2 << 20, .teardown_wait_ms = 20000};
  if (roll(a, 3) == 0) o.flags = OC_MODEL_BUILD_MAY_RACE;
  a->n.races += o.flags != 0;
  while (oc_model_create(backend, &o, &l->m) != OC_OK) sched_yield();
  l->c = oc_model_opcache(l->m);
  l->d = oc_model_derived(l->m);
  l->p = oc_model_pool(l->m);
  l->generation = oc_model_generation(l->m);
  for (unsigned i = 0; i < SOURCES; i++) {
    pthread_mutex_init(&l->source[i].changing, NULL);
    l->source[i].version = 1;
  }
  size_t bytes;
  const void *image = fx_image(&bytes);
  while (oc_model_load_module(l->m, "test", image, bytes) != OC_OK) sched_yield();
  return l;
}

static void unload(struct actor *a, struct loaded *l) {
  oc_status st;
  doing(a, "tearing down");
  /* a build stalls, or a capture is entered: tried again, the model works on meanwhile */
  while ((st = oc_model_teardown(l->m, NULL)) == OC_E_BUSY) {
    a->n.busy++;
    sched_yield();
  }
  expected(a, st, "teardown");
  doing(a, "waiting for leases");
  while (leased(l)) sched_yield();
  doing(a, "destroying");
  expected(a, oc_model_destroy(l->m), "destroy");
  if (l->opened_gates > 1) a->n.twice++;
  for (unsigned i = 0; i < SOURCES; i++) pthread_mutex_destroy(&l->source[i].changing);
  __atomic_store_n(&destroyed, l->generation, __ATOMIC_RELEASE);
  free(l);   /* destroy has waited for guards */
}

static void act_swap(struct actor *a) {
  doing(a, "loading");
  struct loaded *fresh = load(a);
  struct loaded *was = __atomic_exchange_n(&current, fresh, __ATOMIC_SEQ_CST);
  unload(a, was);
  a->n.swaps++;
  nanosleep(&(struct timespec){.tv_nsec = (long)roll(a, 20000000)}, NULL);
}

/* The driver fails: what it refuses there is tried again or given up by each call, never lost. */
static void act_break(struct actor *a) {
  static const struct { const char *entry; oc_status as; } faults[] = {
    {"alloc", OC_E_DEVICE_NOMEM}, {"alloc", OC_E_BACKEND}, {"event_create", OC_E_BACKEND}, {"event_record", OC_E_BACKEND},
    {"module_load", OC_E_BACKEND}, {"module_function", OC_E_BACKEND},
  };
  size_t i = roll(a, sizeof faults / sizeof *faults);
  doing(a, "breaking the driver");
  fx_fail(backend, faults[i].entry, 1 + roll(a, 4), 1, faults[i].as);
  nanosleep(&(struct timespec){.tv_nsec = (long)roll(a, 5000000)}, NULL);
}

/* ---- threads ---- */

static void (*const parts[])(struct actor *a) = {act_swap,  act_invalidate, act_invalidate, act_build, act_build,
                                                act_grow, act_grow,        act_capture,    act_break};
#define PARTS (sizeof parts / sizeof *parts)

static void *perform(void *arg) {
  struct actor *a = arg;
  void (*part)(struct actor *) = a->id < PARTS ? parts[a->id] : act_read;
  while (!stopped()) part(a);
  doing(a, NULL);
  return NULL;
}

static void *watch(void *arg) {
  (void)arg;
  for (unsigned i = 0; i < seconds * 10 && !stopped(); i++) usleep(100000);
  __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
  for (unsigned waited = 0; waited < 1200; waited++) {
    bool any = false;
    for (unsigned i = 0; i < actor_count; i++) any |= __atomic_load_n(&actors[i].doing, __ATOMIC_RELAXED) != NULL;
    if (!any) return NULL;
    usleep(100000);
  }
  for (unsigned i = 0; i < actor_count; i++) {
    const char *what = __atomic_load_n(&actors[i].doing, __ATOMIC_RELAXED);
    if (what) fprintf(stderr, "torture: thread %u hangs, %s\n", i, what);
  }
  abort();
}

static struct counts sum(void) {
  struct counts all = {0};
  for (unsigned i = 0; i < actor_count; i++) {
    const uint64_t *from = (const uint64_t *)&actors[i].n;
    for (size_t k = 0; k < sizeof all / sizeof *from; k++) ((uint64_t *)&all)[k] += from[k];
  }
  return all;
}

static void run_all(uint64_t seed) {
  pthread_t threads[THREADS_MAX + PARTS], watcher;
  actor_count = (unsigned)PARTS + readers;
  for (unsigned i = 0; i < actor_count; i++) {
    actors[i] = (struct actor){.id = i, .random = seed + i * 7919, .doing = "starting"};
    actors[i].stream = fx_stream(backend);
    actors[i].maker = fx_stream(backend);
    for (int k = 0; k < 2; k++) ck_ok(oc_backend_table(backend)->alloc(oc_backend_self(backend), PAD_BYTES, &actors[i].pad[k]));
  }
  current = load(&actors[0]);
  pthread_create(&watcher, NULL, watch, NULL);
  for (unsigned i = 0; i < actor_count; i++) pthread_create(&threads[i], NULL, perform, &actors[i]);
  for (unsigned i = 0; i < actor_count; i++) pthread_join(threads[i], NULL);
  pthread_join(watcher, NULL);
  for (size_t i = 0; i < 6; i++)   /* no order is left over */
    fx_fail(backend, (const char *const[]){"alloc", "event_create", "event_record", "module_load", "module_function", "free"}[i], 0, 1, OC_OK);
  unload(&actors[0], current);
  for (unsigned i = 0; i < actor_count; i++) {
    fx_sync(backend, actors[i].stream);
    fx_sync(backend, actors[i].maker);
    fx_stream_free(backend, actors[i].stream);
    fx_stream_free(backend, actors[i].maker);
    for (int k = 0; k < 2; k++) ck_ok(oc_backend_table(backend)->free(oc_backend_self(backend), actors[i].pad[k]));
  }
}

static bool report(const struct counts *c, uint64_t unloaded, uint64_t left) {
#define U(x) ((unsigned long long)(x))
  printf("torture: %u seconds, %u readers and %zu others\n", seconds, readers, PARTS);
  printf("torture: did %llu reads, %llu misses, %llu builds (%llu failed, %llu stalled, %llu nested), %llu invalidates, "
         "%llu growths, %llu blocks, %llu launches, %llu captures, %llu waits for events, %llu streams, %llu swaps (%llu racing, "
         "%llu busy)\n", U(c->reads), U(c->misses), U(c->builds), U(c->failed), U(c->stalled), U(c->nested), U(c->invalidates),
         U(c->growths), U(c->blocks), U(c->launches), U(c->captures), U(c->orders), U(c->streams), U(c->swaps), U(c->races), U(c->busy));
  printf("torture: wrong: stale %llu, old %llu, changed %llu, early %llu, overlap %llu, twice %llu, refused %llu, unloaded %llu, left %llu\n",
         U(c->stale), U(c->old), U(c->changed), U(c->early), U(c->overlap), U(c->twice), U(c->refused), U(unloaded), U(left));
  bool wrong = c->stale || c->old || c->changed || c->early || c->overlap || c->twice || c->refused || unloaded || left;
  bool idle = !c->reads || !c->builds || !c->failed || !c->invalidates || !c->growths || !c->launches || !c->orders || !c->swaps;
  if (idle) printf("torture: some of it was never done\n");
  printf("torture: %s\n", wrong || idle ? "FAILED" : "passed");
  return !wrong && !idle;
}

START_TEST(g2_all_at_once) {
  if (fx_which() == FX_CUDA && !simcuda_find()) { fx_skip("a real driver's memory is not the host's"); return; }
  uint64_t seed = fx_seed();
  backend = fx_open(&(struct fx_options){.recycle = true, .poison = true});
  run_all(seed);
  struct counts c = sum();
  uint64_t left = fx_blocks(backend) + fx_modules(backend) + fx_events(backend);
  bool passed = report(&c, fx_stale(backend), left);
  fflush(stdout);
  ck_assert(passed);
  fx_close(backend);
}
END_TEST

static unsigned number(const char *given, const char *variable, unsigned otherwise) {
  if (!given) given = getenv(variable);
  return given ? (unsigned)strtoul(given, NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
  seconds = number(argc > 1 ? argv[1] : NULL, "LIBOC_TORTURE_SECONDS", seconds);
  readers = number(argc > 2 ? argv[2] : NULL, "LIBOC_TORTURE_THREADS", readers);
  if (!seconds || !readers || readers > THREADS_MAX) {
    fprintf(stderr, "usage: torture [SECONDS [THREADS]]: 1 to %u threads that read, besides %zu others\n", THREADS_MAX, PARTS);
    return 2;
  }
  Suite *s = suite_create("torture");
  TCase *tc = tcase_create("torture");
  tcase_set_timeout(tc, seconds + 150);
  suite_add_tcase(s, tc);
  tcase_add_test(tc, g2_all_at_once);
  return fx_run(s);
}
