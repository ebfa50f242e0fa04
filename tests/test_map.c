/* SPDX-License-Identifier: MIT */
/*
 * The lock-free map, and the lists and the writers' table beside it.
 *
 * The property tests print their seed; LIBOC_TEST_SEED=n repeats one. What a reader may see of a key is: nothing, or
 * the values of one put whole; never those of two puts, and never another key's.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>

#include "liboc/derived.h"
#include "liboc/model.h"
#include "rcu/guard.h"
#include "rcu/list.h"
#include "rcu/map.h"
#include "rcu/mem.h"
#include "rcu/table.h"
#include "tests/fixture.h"

static struct heap *heap;
static struct map map;
static bool no_memory;
static size_t last_bytes, classes;   /* bytes of the last allocation; of all, as jemalloc hands them out: four sizes a doubling */

static bool fail_if_told(void *arg, size_t bytes) {
  (void)arg;
  size_t step = (size_t)1 << (61 - __builtin_clzll(bytes));
  last_bytes = bytes;
  classes += (bytes + step - 1) / step * step;
  return __atomic_load_n(&no_memory, __ATOMIC_RELAXED);
}

static void setup(void) {
  heap = oci_heap_create();
  ck_assert_ptr_nonnull(heap);
  oci_map_init(&map, heap);
  oci_map_of_values(&map);   /* none of them is ever 0 here */
  no_memory = false;
  last_bytes = classes = 0;
  oci_mem_set_fault(fail_if_told, NULL);
}

static void teardown(void) {
  oci_map_free(&map);
  ck_assert_uint_eq(oci_heap_bytes(heap), 0);
  oci_mem_set_fault(NULL, NULL);
  oci_heap_destroy(heap);
}

static uint64_t entry_of(uint64_t n) {
  return n << 3;   /* the map keeps three low bits for flags */
}

static void put(uint64_t key, uint64_t n) {
  ck_assert(oci_map_reserve(&map));
  oci_map_put(&map, key, n, ~n, entry_of(n));
}

static void is_there(uint64_t key, uint64_t n) {
  struct map_hit hit;
  ck_assert(oci_map_get(&map, key, &hit));
  ck_assert_uint_eq(hit.v0, n);
  ck_assert_uint_eq(hit.v1, ~n);
  ck_assert_uint_eq(hit.entry, entry_of(n));
  ck_assert_uint_eq(oci_map_value(&map, key), n);
}

static void is_gone(uint64_t key) {
  struct map_hit hit;
  ck_assert(!oci_map_get(&map, key, &hit));
  ck_assert_uint_eq(oci_map_value(&map, key), 0);
}

/* ---- one thread ---- */

START_TEST(an_empty_map_takes_no_memory) {
  is_gone(1);
  ck_assert_uint_eq(oci_map_drop(&map, 1), 0);
  oci_map_set_entry(&map, 1, entry_of(1));
  is_gone(1);
  ck_assert_uint_eq(oci_map_bytes(&map), 0);
  ck_assert_uint_eq(oci_heap_bytes(heap), 0);
}
END_TEST

START_TEST(keys_of_all_kinds_are_kept_apart) {
  const uint64_t keys[] = {1, 2, UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 32, ((uint64_t)1 << 32) + 1, (uint64_t)1 << 63, 0x7f0000000000};
  const size_t n = sizeof keys / sizeof *keys;
  for (size_t i = 0; i < n; i++) put(keys[i], i + 1);
  for (size_t i = 0; i < n; i++) is_there(keys[i], i + 1);
  ck_assert_uint_eq(map.live, n);
  for (size_t i = 0; i < n; i += 2) ck_assert_uint_eq(oci_map_drop(&map, keys[i]), entry_of(i + 1));
  for (size_t i = 0; i < n; i++) {
    if (i % 2) is_there(keys[i], i + 1);
    else is_gone(keys[i]);
  }
  ck_assert_uint_eq(map.live, n / 2);
}
END_TEST

START_TEST(a_dropped_key_is_put_again) {
  put(7, 1);
  ck_assert_uint_eq(oci_map_drop(&map, 7), entry_of(1));
  ck_assert_uint_eq(oci_map_drop(&map, 7), 0);
  size_t bytes = oci_map_bytes(&map);
  for (uint64_t n = 2; n < 10000; n++) {
    put(7, n);
    is_there(7, n);
    oci_map_drop(&map, 7);
  }
  ck_assert_uint_eq(oci_map_bytes(&map), bytes);   /* its slot waits for it */
}
END_TEST

START_TEST(flags_change_and_values_stay) {
  struct map_hit hit;
  put(7, 5);
  oci_map_set_entry(&map, 7, entry_of(5) | MAP_FLAG);
  ck_assert(oci_map_get(&map, 7, &hit));
  ck_assert_uint_eq(hit.entry, entry_of(5) | MAP_FLAG);
  ck_assert_uint_eq(hit.v0, 5);
  ck_assert_uint_eq((uintptr_t)oci_map_entry(hit.entry), entry_of(5));
  for (uint64_t k = 100; k < 200; k++) put(k, k);   /* and a copy takes the flag along */
  ck_assert(oci_map_get(&map, 7, &hit));
  ck_assert_uint_eq(hit.entry, entry_of(5) | MAP_FLAG);
  oci_map_drop(&map, 7);
  oci_map_set_entry(&map, 7, entry_of(5));
  oci_map_set_value(&map, 7, 5);
  is_gone(7);   /* a dropped key stays dropped */
  ck_assert_uint_eq(oci_map_drop(&map, 8), 0);
  oci_map_set_entry(&map, 8, entry_of(5));
  oci_map_set_value(&map, 8, 5);
  is_gone(8);   /* and one that never was there */
  ck_assert_uint_eq(map.live, 100);
}
END_TEST

/* The hash takes the top bits: keys that differ in few bits, or meet in one slot, must still be told apart. */
START_TEST(keys_that_meet_in_one_slot_are_told_apart) {
  uint64_t keys[64];
  size_t n = 0;
  for (uint64_t k = 1; n < 64; k++)
    if (oci_hash_u64(k) >> 54 == 1023) keys[n++] = k;   /* all at the end of the table: the probe wraps round */
  for (size_t i = 0; i < n; i++) put(keys[i], i + 1);
  for (size_t i = 0; i < n; i++) is_there(keys[i], i + 1);
  for (size_t i = 0; i < n; i += 3) oci_map_drop(&map, keys[i]);
  for (size_t i = 0; i < n; i++) {
    if (i % 3) is_there(keys[i], i + 1);
    else is_gone(keys[i]);
  }
}
END_TEST

START_TEST(without_memory_nothing_changes) {
  no_memory = true;
  ck_assert(!oci_map_reserve(&map));
  no_memory = false;
  uint64_t k = 1;
  for (;; k++) {
    no_memory = true;
    bool room = oci_map_reserve(&map);
    no_memory = false;
    if (!room) {
      if (k > 1000) break;
      ck_assert(oci_map_reserve(&map));
    }
    oci_map_put(&map, k, k, ~k, entry_of(k));
  }
  for (uint64_t i = 1; i < k; i++) is_there(i, i);
  is_gone(k);
  oci_map_drop(&map, 1);
  no_memory = true;
  oci_map_put(&map, 1, 9, ~UINT64_C(9), entry_of(9));   /* its own slot: needs no memory */
  is_there(1, 9);
  no_memory = false;
}
END_TEST

static void count_and_drop(void *sum, uint64_t key, const struct map_hit *hit) {
  ck_assert_uint_eq(hit->v0, key);
  *(uint64_t *)sum += key;
  ck_assert_uint_eq(oci_map_drop(&map, key), entry_of(key));
}

START_TEST(each_key_is_told_once_and_may_be_dropped) {
  uint64_t sum = 0;
  for (uint64_t k = 1; k <= 1000; k++) put(k, k);
  for (uint64_t k = 2; k <= 1000; k += 2) oci_map_drop(&map, k);
  oci_map_each(&map, count_and_drop, &sum);
  ck_assert_uint_eq(sum, 250000);
  ck_assert_uint_eq(map.live, 0);
  oci_map_each(&map, count_and_drop, &sum);
  ck_assert_uint_eq(sum, 250000);
}
END_TEST

/* ---- G30: what is kept until the map goes ---- */

/* `live` keys stay; ever-new ones come and go. */
static void churn(uint64_t live, uint64_t n) {
  for (uint64_t k = 1; k <= live; k++) put(k, k);
  size_t bytes = oci_heap_bytes(heap);
  ck_assert_uint_eq(bytes, oci_map_bytes(&map));
  classes = 0;
  for (uint64_t k = live + 1; k <= live + n; k++) {
    put(k, k);
    ck_assert_uint_eq(oci_map_drop(&map, k), entry_of(k));
  }
  bytes = oci_heap_bytes(heap) - bytes;
  /* the newest table has room left, and a few before it were doubled for the live keys */
  size_t doubled = 3 * last_bytes;
  ck_assert_msg(bytes <= 64 * n && classes <= 64 * n + doubled, "%zu bytes, %zu in size classes, for %llu ever-new keys beside %llu live ones",
                bytes, classes, (unsigned long long)n, (unsigned long long)live);
  for (uint64_t k = 1; k <= live; k++) is_there(k, k);
}

static const uint64_t live_counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 63, 64, 100, 127, 128, 255, 256, 257, 500,
                                       1000, 1023, 1024, 2000, 2047, 4096, 5000};

START_TEST(g30_an_ever_new_key_costs_at_most_64_bytes) {
  churn(live_counts[_i], 200000);
}
END_TEST

START_TEST(g30_growing_is_bounded_by_the_live_keys) {
  for (uint64_t k = 1; k <= 100000; k++) {
    put(k, k);
    /* four slots a line: the newest table is over a quarter full once it has grown, and all older ones together are smaller */
    if (k >= 1000) ck_assert_uint_le(oci_heap_bytes(heap), k * 2 * LINE_BYTES + 4096);
  }
}
END_TEST

/* ---- against a plain model, with readers ---- */

#define KEYS 512
#define KEPT 64              /* keys beyond those, put once and never dropped: each look finds them */
#define READERS 2

struct race {
  uint64_t newest[KEYS];   /* atomic: the highest n ever put under the key, set before the put */
  uint32_t stop;           /* atomic */
  uint64_t hits, misses;   /* atomic */
  uint64_t bad;            /* atomic */
};

/* n of key i is i + KEYS * generation: a value says which key it is of. Entries are one a key, as where records are
   used again: the map tells puts apart only if a grace period lies between (see map.h). */
static void check_hit(struct race *r, uint64_t i, const struct map_hit *hit) {
  uint64_t newest = __atomic_load_n(&r->newest[i], __ATOMIC_ACQUIRE);
  bool whole = hit->v1 == ~hit->v0 && hit->entry == entry_of(i + 1);
  if (!whole || hit->v0 % KEYS != i || hit->v0 > newest) __atomic_add_fetch(&r->bad, 1, __ATOMIC_RELAXED);
}

/* Of the value alone: nothing, or one that was put under this key. */
static void check_value(struct race *r, uint64_t i, uint64_t value) {
  uint64_t newest = __atomic_load_n(&r->newest[i], __ATOMIC_ACQUIRE);
  if (value && (value % KEYS != i || value > newest)) __atomic_add_fetch(&r->bad, 1, __ATOMIC_RELAXED);
}

/* Whatever the writer does to others and to the table, a key that is there is found. */
static void check_kept(struct race *r, uint64_t key) {
  struct map_hit hit;
  bool found = oci_map_get(&map, key, &hit) && hit.v0 == key && hit.v1 == ~key && hit.entry == entry_of(key);
  if (!found || oci_map_value(&map, key) != key) __atomic_add_fetch(&r->bad, 1, __ATOMIC_RELAXED);
}

static void *reader(void *arg) {
  struct race *r = arg;
  uint64_t x = (uint64_t)(uintptr_t)&x | 1, hits = 0, misses = 0;
  while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
    oci_guard_enter();
    for (int n = 0; n < 64; n++) {
      struct map_hit hit;
      uint64_t i = fx_random(&x) % KEYS;
      bool there = oci_map_get(&map, i + 1, &hit);
      if (there) check_hit(r, i, &hit);
      check_value(r, i, oci_map_value(&map, i + 1));
      check_kept(r, KEYS + 1 + i % KEPT);
      hits += there;
      misses += !there;
    }
    if (!oci_guard_leave()) __atomic_add_fetch(&r->bad, 1, __ATOMIC_RELAXED);
  }
  __atomic_add_fetch(&r->hits, hits, __ATOMIC_RELAXED);
  __atomic_add_fetch(&r->misses, misses, __ATOMIC_RELAXED);
  return NULL;
}

struct plain {
  uint64_t n;          /* what is there; 0: nothing */
  uint64_t next;
  unsigned epoch;      /* grace periods when it was dropped */
};

static unsigned epochs;

static void put_fresh(struct race *r, struct plain *p, uint64_t i) {
  p->n = p->next;
  p->next += KEYS;
  __atomic_store_n(&r->newest[i], p->n, __ATOMIC_RELEASE);
  ck_assert(oci_map_reserve(&map));
  oci_map_put(&map, i + 1, p->n, ~p->n, entry_of(i + 1));
}

static void drop(struct plain *p, uint64_t i) {
  ck_assert_uint_eq(oci_map_drop(&map, i + 1), entry_of(i + 1));
  p->n = 0;
  p->epoch = epochs;
}

/* A key that comes and goes: tables fill with such, and are replaced. */
static void ever_new(void) {
  static uint64_t key = 1000000;
  key++;
  put(key, key);
  ck_assert_uint_eq(oci_map_drop(&map, key), entry_of(key));
}

static void step(struct race *r, struct plain *plain, uint64_t *seed) {
  uint64_t i = fx_random(seed) % KEYS;
  if (!plain[i].n && plain[i].epoch < epochs) put_fresh(r, &plain[i], i);
  else if (plain[i].n && fx_random(seed) % 2) drop(&plain[i], i);
  else ever_new();
}

static void compare(const struct plain *plain) {
  struct map_hit hit;
  size_t live = 0;
  for (uint64_t i = 0; i < KEYS; i++) {
    bool there = oci_map_get(&map, i + 1, &hit);
    ck_assert_int_eq(there, plain[i].n != 0);
    if (there) ck_assert_uint_eq(hit.v0, plain[i].n);
    live += there;
  }
  ck_assert_uint_eq(map.live, live + KEPT);
}

START_TEST(readers_see_whole_values_whatever_the_writer_does) {
  static struct race race;
  static struct plain plain[KEYS];
  pthread_t threads[READERS];
  uint64_t seed = fx_seed();
  epochs = 1;
  for (uint64_t i = 0; i < KEYS; i++) plain[i].next = i + KEYS;
  for (uint64_t k = KEYS + 1; k <= KEYS + KEPT; k++) put(k, k);
  for (int i = 0; i < READERS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, reader, &race), 0);
  for (unsigned round = 0; round < fx_scale(60); round++) {
    for (int n = 0; n < 500; n++) step(&race, plain, &seed);
    compare(plain);
    oci_guard_sync();
    epochs++;
  }
  __atomic_store_n(&race.stop, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < READERS; i++) pthread_join(threads[i], NULL);
  ck_assert_uint_eq(race.bad, 0);
  ck_assert_uint_gt(race.hits, 0);
  ck_assert_uint_gt(race.misses, 0);
}
END_TEST

/* An entry's flag changes all the time, as when builds are seen finished: a look-up that meets a change reads again. It
   neither misses what is there nor waits for the flag to stay. */
struct flips {
  struct map *map;
  uint64_t key, count;   /* atomic: count */
  uint32_t stop;         /* atomic */
};

static void *flip(void *arg) {
  struct flips *f = arg;
  struct map_hit hit;
  if (!oci_map_get(f->map, f->key, &hit)) return NULL;
  while (!__atomic_load_n(&f->stop, __ATOMIC_RELAXED)) {
    oci_map_set_entry(f->map, f->key, hit.entry ^ MAP_FLAG);
    oci_map_set_entry(f->map, f->key, hit.entry);
    __atomic_add_fetch(&f->count, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

START_TEST(a_look_up_that_meets_a_change_reads_again) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_derived *d = oc_model_derived(m);
  oc_devptr source, pair[2], got[2];
  ck_ok(oc_pool_alloc(oc_model_pool(m), 1000, 0, &source));
  for (int i = 0; i < 2; i++) ck_ok(oc_pool_alloc(oc_model_pool(m), 1000, 0, &pair[i]));
  ck_ok(oc_derived_insert_pair(d, OC_ROWWISE_FP8, source, pair, NULL));
  struct flips f = {.map = &d->maps[OC_ROWWISE_FP8], .key = source};
  pthread_t other;
  ck_assert_int_eq(pthread_create(&other, NULL, flip, &f), 0);
  const uint64_t turns = fx_scale(500000);   /* of each of the two at least */
  for (uint64_t i = 0; i < turns || __atomic_load_n(&f.count, __ATOMIC_RELAXED) < turns; i++) {
    ck_ok(oc_derived_get_pair(d, OC_ROWWISE_FP8, source, got));
    if (got[0] != pair[0] || got[1] != pair[1]) ck_abort_msg("another pair, at the %lluth time", (unsigned long long)i);
  }
  __atomic_store_n(&f.stop, 1, __ATOMIC_RELAXED);
  pthread_join(other, NULL);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Values of entries with the flag are odd here, of those without even. They take turns under one key, faster than readers look. */
struct turns {
  uint64_t count;        /* atomic */
  uint32_t stop;         /* atomic */
};

static void put_turn(uint64_t n, uint64_t flag) {
  oci_map_put(&map, 7, n, 0, entry_of(1) | flag);
  oci_map_drop(&map, 7);
}

static void *take_turns(void *arg) {
  struct turns *t = arg;
  for (uint64_t n = 2; !__atomic_load_n(&t->stop, __ATOMIC_RELAXED); n += 2) {
    put_turn(n, 0);
    put_turn(n + 1, MAP_FLAG);
    __atomic_store_n(&t->count, n / 2, __ATOMIC_RELAXED);
  }
  return NULL;
}

START_TEST(a_value_whose_entry_has_the_flag_is_not_plain) {
  put(7, 2);
  ck_assert_uint_eq(oci_map_near_plain(&map, 7), 2);
  ck_assert_uint_eq(oci_map_near_plain(&map, 8), 0);
  oci_map_set_entry(&map, 7, entry_of(2) | MAP_FLAG);
  ck_assert_uint_eq(oci_map_near_plain(&map, 7), 0);
  for (uint64_t k = 100; k < 200; k++) put(k, k);
  ck_assert_uint_eq(oci_map_near_plain(&map, 7), 0);   /* nor in a copy of the table */
  oci_map_set_entry(&map, 7, entry_of(2));
  ck_assert_uint_eq(oci_map_near_plain(&map, 7), 2);
  oci_map_drop(&map, 7);
  ck_assert_uint_eq(oci_map_near_plain(&map, 7), 0);

  struct turns turns = {0};
  pthread_t other;
  const uint64_t enough = fx_scale(200000);
  uint64_t seen = 0, odd = 0;
  ck_assert_int_eq(pthread_create(&other, NULL, take_turns, &turns), 0);
  while (!seen || __atomic_load_n(&turns.count, __ATOMIC_RELAXED) < enough) {
    uint64_t value = oci_map_near_plain(&map, 7);
    seen += value != 0;
    odd += value & 1;
  }
  __atomic_store_n(&turns.stop, 1, __ATOMIC_RELAXED);
  pthread_join(other, NULL);
  ck_assert_uint_eq(odd, 0);
}
END_TEST

/* ---- lists ---- */

struct thing {
  int n;
  struct link link;
};

static void list_is(struct link *head, const char *want) {
  char got[32];
  size_t n = 0;
  LINK_EACH(l, head) got[n++] = (char)('0' + CONTAINER(l, struct thing, link)->n);
  got[n] = 0;
  ck_assert_str_eq(got, want);
  LINK_EACH(l, head) ck_assert_ptr_eq(l->next->prev, l);
  ck_assert_int_eq(link_empty(head), n == 0);
}

START_TEST(lists_keep_order) {
  struct link a, b;
  struct thing t[6] = {{.n = 0}, {.n = 1}, {.n = 2}, {.n = 3}, {.n = 4}, {.n = 5}};
  link_init(&a);
  link_init(&b);
  list_is(&a, "");
  ck_assert(!link_on(&t[0].link));
  link_remove(&t[0].link);   /* on no list: nothing happens */
  link_add_tail(&a, &t[1].link);
  link_add_tail(&a, &t[2].link);
  link_add_head(&a, &t[0].link);
  list_is(&a, "012");
  ck_assert(link_on(&t[0].link));
  link_splice(&b, &a);
  list_is(&a, "");
  list_is(&b, "012");
  link_splice(&b, &a);   /* of an empty one */
  list_is(&b, "012");
  link_add_tail(&a, &t[3].link);
  link_splice(&a, &b);
  list_is(&a, "3012");
  link_move_tail(&a, &t[3].link);
  list_is(&a, "0123");
  link_move_tail(&b, &t[4].link);   /* from no list */
  link_remove(&t[1].link);
  link_remove(&t[1].link);
  ck_assert(!link_on(&t[1].link));
  list_is(&a, "023");
  LINK_EACH(l, &a) link_move_tail(&b, l);   /* the loop may take its node away */
  list_is(&a, "");
  list_is(&b, "4023");
}
END_TEST

/* ---- the writers' table ---- */

#define NODES 1000

static size_t found_under(const struct table *t, uint64_t hash) {
  size_t n = 0;
  for (struct table_node *x = oci_table_find(t, hash); x; x = oci_table_next(x)) {
    ck_assert_uint_eq(x->hash, hash);
    n++;
  }
  return n;
}

START_TEST(the_table_has_what_was_added_and_not_removed) {
  static struct table_node nodes[NODES];
  static bool in[NODES];
  size_t under[16] = {0};
  struct table t = {.heap = heap};
  uint64_t seed = fx_seed();
  ck_assert_ptr_null(oci_table_find(&t, 3));
  for (int n = 0; n < 20000; n++) {
    size_t i = (size_t)(fx_random(&seed) % NODES), h = i % 16;
    if (in[i]) {
      oci_table_remove(&t, &nodes[i]);
    } else {
      ck_assert(oci_table_reserve(&t));
      oci_table_add(&t, &nodes[i], h << 40);   /* hashes that differ in high bits only */
    }
    in[i] = !in[i];
    if (in[i]) under[h]++;
    else under[h]--;
    if (n % 100 == 0)
      for (size_t k = 0; k < 16; k++) ck_assert_uint_eq(found_under(&t, k << 40), under[k]);
  }
  oci_table_free(&t);
}
END_TEST

START_TEST(a_table_without_memory_has_longer_chains) {
  static struct table_node nodes[NODES];
  struct table t = {.heap = heap};
  no_memory = true;
  ck_assert(!oci_table_reserve(&t));
  no_memory = false;
  ck_assert(oci_table_reserve(&t));
  no_memory = true;
  for (size_t i = 0; i < NODES; i++) {
    ck_assert(oci_table_reserve(&t));
    oci_table_add(&t, &nodes[i], i);
  }
  for (size_t i = 0; i < NODES; i++) ck_assert_ptr_eq(oci_table_find(&t, i), &nodes[i]);
  ck_assert_uint_eq(t.count, NODES);
  no_memory = false;
  oci_table_free(&t);
}
END_TEST

int main(void) {
  Suite *s = suite_create("map");
  TCase *c = tcase_create("map");
  tcase_add_checked_fixture(c, setup, teardown);
  tcase_set_timeout(c, 60);
  tcase_add_test(c, an_empty_map_takes_no_memory);
  tcase_add_test(c, keys_of_all_kinds_are_kept_apart);
  tcase_add_test(c, a_dropped_key_is_put_again);
  tcase_add_test(c, flags_change_and_values_stay);
  tcase_add_test(c, keys_that_meet_in_one_slot_are_told_apart);
  tcase_add_test(c, without_memory_nothing_changes);
  tcase_add_test(c, each_key_is_told_once_and_may_be_dropped);
  tcase_add_loop_test(c, g30_an_ever_new_key_costs_at_most_64_bytes, 0, (int)fx_scale(sizeof live_counts / sizeof *live_counts));
  tcase_add_test(c, g30_growing_is_bounded_by_the_live_keys);
  tcase_add_test(c, readers_see_whole_values_whatever_the_writer_does);
  tcase_add_test(c, a_look_up_that_meets_a_change_reads_again);
  tcase_add_test(c, a_value_whose_entry_has_the_flag_is_not_plain);
  tcase_add_test(c, lists_keep_order);
  tcase_add_test(c, the_table_has_what_was_added_and_not_removed);
  tcase_add_test(c, a_table_without_memory_has_longer_chains);
  suite_add_tcase(s, c);
  return fx_run(s);
}
