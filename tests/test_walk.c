/* SPDX-License-Identifier: MIT */
/* oc_pool_each_block: every block of one moment, with who has it; what the callback may do; refusals (G27, G28, G33). */
#include "config.h"

#include <stdlib.h>

#include "tests/world.h"

#define SEEN_MOST 4096

/* What a walk told, its strings as they were pointed to. */
struct seen {
  oc_block_info block[SEEN_MOST];
  oc_arena_info arena[SEEN_MOST];   /* of block[i] */
  size_t count;
};

static oc_status note(void *arg, const oc_block_info *b) {
  struct seen *s = arg;
  ck_assert_uint_lt(s->count, SEEN_MOST);
  ck_assert_uint_eq(b->struct_size, sizeof *b);
  if (b->arena) {
    ck_assert_uint_eq(b->arena->struct_size, sizeof *b->arena);
    s->arena[s->count] = *b->arena;
  }
  s->block[s->count++] = *b;
  return OC_OK;
}

static struct seen *walk(struct world *w) {
  struct seen *s = calloc(1, sizeof *s);
  ck_assert_ptr_nonnull(s);
  ck_ok(oc_pool_each_block(w->p, note, s));
  return s;
}

static const oc_block_info *at(const struct seen *s, oc_devptr start) {
  for (size_t i = 0; i < s->count; i++)
    if (s->block[i].start == start) return &s->block[i];
  ck_abort_msg("no block at 0x%llx", (unsigned long long)start);
  return NULL;
}

/* The block that this lies in: free neighbours are one, and so is all of a lost arena. */
static const oc_block_info *around(const struct seen *s, oc_devptr address) {
  for (size_t i = 0; i < s->count; i++)
    if (address - s->block[i].start < s->block[i].bytes) return &s->block[i];
  ck_abort_msg("no block around 0x%llx", (unsigned long long)address);
  return NULL;
}

static bool same(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Arenas by address, their blocks tile them, the sums are the figures'. */
static void check_whole(struct world *w, const struct seen *s) {
  oc_pool_stats f = figures(w);
  uint64_t live = 0, retired = 0, free_bytes = 0, blocks = 0, arenas = 0, bytes = 0, managed = 0;
  bool externals = false;
  for (size_t i = 0; i < s->count; i++) {
    const oc_block_info *b = &s->block[i];
    const oc_arena_info *a = &s->arena[i];
    externals |= !b->arena;
    ck_assert_msg(!b->arena == externals, "external memory comes last");
    ck_assert_int_eq(b->state == OC_BLOCK_EXTERNAL, externals);
    ck_assert_int_eq((b->role == OC_ROLE_NONE), b->state == OC_BLOCK_FREE || b->state == OC_BLOCK_LOST);
    ck_assert_uint_gt(b->bytes, 0);
    ck_assert_uint_le(b->requested, b->bytes);
    if (externals) continue;
    bool first = i == 0 || s->arena[i - 1].index != a->index;
    if (first) {
      ck_assert_uint_eq(a->index, arenas++);
      ck_assert_uint_eq(b->start, a->base);
      ck_assert_uint_ge(a->base, a->driver_base);
      ck_assert_uint_le(a->base + a->bytes, a->driver_base + a->driver_bytes);
      if (i) ck_assert_uint_ge(a->base, s->arena[i - 1].base + s->arena[i - 1].bytes);
      bytes += a->bytes;
      managed += a->flags & OC_ARENA_MANAGED ? a->bytes : 0;
    } else {
      ck_assert_uint_eq(b->start, s->block[i - 1].start + s->block[i - 1].bytes);
    }
    bool last = i + 1 == s->count || !s->block[i + 1].arena || s->arena[i + 1].index != a->index;
    if (last) ck_assert_uint_eq(b->start + b->bytes, a->base + a->bytes);
    live += b->state == OC_BLOCK_LIVE ? b->bytes : 0;
    blocks += b->state == OC_BLOCK_LIVE;
    retired += b->state == OC_BLOCK_RETIRED || b->state == OC_BLOCK_LOST ? b->bytes : 0;
    free_bytes += b->state == OC_BLOCK_FREE ? b->bytes : 0;
  }
  ck_assert_uint_eq(arenas, f.arenas);
  ck_assert_uint_eq(bytes, f.arena_bytes);
  ck_assert_uint_eq(managed, f.managed_bytes);
  ck_assert_uint_eq(blocks, f.live_blocks);
  ck_assert_uint_eq(live, f.live_bytes);
  ck_assert_uint_eq(retired, f.retired_bytes);
  ck_assert_uint_eq(free_bytes, f.free_bytes);
}

static void check_block(const struct seen *s, oc_devptr start, uint64_t requested, oc_block_state state,
                        oc_block_role role, const char *owner) {
  const oc_block_info *b = at(s, start);
  ck_assert_uint_eq(b->requested, requested);
  if (b->arena) ck_assert_uint_eq(b->bytes, (requested + 255) / 256 * 256);
  ck_assert_int_eq(b->state, state);
  ck_assert_int_eq(b->role, role);
  ck_assert_msg(same(b->owner, owner), "owner %s", b->owner ? b->owner : "(none)");
}

static oc_status build_one(oc_build *b, void *arg, uint64_t *out) {
  (void)arg;
  return oc_build_alloc(b, 5000, 0, out);
}

/* Each role and state, named as the ledger names it. */
START_TEST(each_block_with_who_has_it) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.arena_min = 2 * MiB});
  oc_devptr plain = block_of(&w, 1), owned, scratch, gone = block_of(&w, 700);
  const oc_site site = {"loader.c", 812, "load"};
  uint64_t value;
  ck_ok(oc_pool_alloc_owned_at(w.p, "weights", 3 * MiB, 0, &site, &owned));
  ck_ok(oc_opcache_scratch(oc_model_opcache(w.m), "softmax", 10000, &scratch));
  ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, plain, build_one, NULL, &value));
  oc_build *build = begin(&w, OC_ROWWISE_FP8, plain + 0x40000000);
  oc_devptr open = build_block(build, 512);
  ck_ok(oc_pool_note_external(w.p, 0x4000, 1001, "framework"));
  ck_ok(oc_pool_note_external(w.p, 0x1000, 0x1000, NULL));
  ck_ok(oc_pool_free(w.p, gone));
  struct seen *s = walk(&w);
  check_whole(&w, s);
  check_block(s, plain, 1, OC_BLOCK_LIVE, OC_ROLE_CALLER, NULL);
  check_block(s, owned, 3 * MiB, OC_BLOCK_LIVE, OC_ROLE_OWNER, "weights");
  check_block(s, value, 5000, OC_BLOCK_LIVE, OC_ROLE_DERIVED, at(s, value)->owner);
  check_block(s, open, 512, OC_BLOCK_LIVE, OC_ROLE_BUILD, at(s, open)->owner);
  ck_assert_int_eq(around(s, gone)->state, OC_BLOCK_FREE);
  ck_assert_uint_eq(around(s, gone)->requested, 0);
  check_block(s, 0x1000, 0x1000, OC_BLOCK_EXTERNAL, OC_ROLE_EXTERNAL, NULL);
  check_block(s, 0x4000, 1001, OC_BLOCK_EXTERNAL, OC_ROLE_EXTERNAL, "framework");
  ck_assert_uint_eq(s->block[s->count - 2].start, 0x1000);
  ck_assert_int_eq(at(s, scratch)->role, OC_ROLE_SCRATCH);
  ck_assert_ptr_nonnull(strstr(at(s, scratch)->owner, "softmax"));
  ck_assert_ptr_nonnull(strstr(at(s, value)->owner, "bf16"));
  ck_assert_msg(!same(at(s, value)->owner, at(s, open)->owner), "two kinds, one owner");
  ck_assert_str_eq(at(s, owned)->site.file, "loader.c");
  ck_assert_uint_eq(at(s, owned)->site.line, 812);
  ck_assert_str_eq(at(s, owned)->site.func, "load");
  ck_assert_ptr_nonnull(strstr(at(s, plain)->site.file, "world.h"));
  ck_assert_uint_eq(at(s, plain)->flags, OC_BLOCK_HAS_ENTRIES);
  ck_assert_uint_eq(at(s, owned)->flags, 0);
  free(s);
  oc_build_abort(build);
  world_close(&w);
}
END_TEST

/* What waits for a stream, and for a graph, is retired; once the stream has passed, the walk itself finds out. */
START_TEST(retired_blocks) {
  if (!fx_can(FX_STALL)) return fx_skip("needs a stalled stream");
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr waits = block_of(&w, 4096), graph = block_of(&w, 8192);
  fx_stall(w.b, s, true);
  ck_ok(oc_backend_table(w.b)->memset(oc_backend_self(w.b), waits, 1, 4096, s));
  ck_ok(oc_pool_free_on(w.p, waits, s));
  ck_ok(oc_capture_enter(w.m, s));
  ck_ok(oc_pool_free(w.p, graph));
  oc_capture_leave(w.m);
  struct seen *seen = walk(&w);
  check_block(seen, waits, 4096, OC_BLOCK_RETIRED, OC_ROLE_CALLER, NULL);
  check_block(seen, graph, 8192, OC_BLOCK_RETIRED, OC_ROLE_CALLER, NULL);
  check_whole(&w, seen);
  free(seen);
  fx_stall(w.b, s, false);
  fx_sync(w.b, s);
  seen = walk(&w);
  ck_assert_int_eq(around(seen, waits)->state, OC_BLOCK_FREE);
  check_block(seen, graph, 8192, OC_BLOCK_RETIRED, OC_ROLE_CALLER, NULL);
  free(seen);
  world_close_stream(&w, s);
}
END_TEST

START_TEST(a_lost_arena_and_managed_ones) {
  if (!fx_can(FX_FAIL)) return fx_skip("needs a driver that fails");
  struct world w = world_on(fx_open(NULL), (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  oc_devptr lost = block_of(&w, MiB);
  ck_ok(oc_pool_free(w.p, lost));
  fx_fail(w.b, "free", 1, 1, OC_E_BACKEND);
  ck_ok(oc_pool_trim(w.p));
  oc_opcache_note_alloc_fallback(oc_model_opcache(w.m));
  oc_devptr managed = block_of(&w, MiB);
  struct seen *s = walk(&w);
  check_whole(&w, s);
  const oc_block_info *b = around(s, lost);
  ck_assert_int_eq(b->state, OC_BLOCK_LOST);
  ck_assert_uint_eq(b->bytes, 2 * MiB);
  ck_assert_uint_eq(s->arena[b - s->block].flags, OC_ARENA_LOST);
  ck_assert_uint_eq(s->arena[at(s, managed) - s->block].flags, OC_ARENA_MANAGED);
  free(s);
  world_close(&w);
}
END_TEST

/* ---- what the callback may do ---- */

struct meddler {
  struct world *w;
  unsigned told;
  oc_devptr made;
};

/* Frees what it is told of, allocates, asks: it sees the moment of its beginning all the same. */
static oc_status meddle(void *arg, const oc_block_info *b) {
  struct meddler *m = arg;
  if (b->state == OC_BLOCK_LIVE) {
    m->told++;
    ck_ok(oc_pool_free(m->w->p, b->start));
    m->made = block_of(m->w, 300);
    ck_ok(oc_pool_check(m->w->p));
    figures(m->w);
  }
  return OC_OK;
}

START_TEST(the_callback_may_call_back) {
  struct world w = world_open();
  for (int i = 0; i < 20; i++) block_of(&w, 1000);
  struct meddler m = {.w = &w};
  ck_ok(oc_pool_each_block(w.p, meddle, &m));
  ck_assert_uint_eq(m.told, 20);
  ck_assert_uint_eq(live_blocks(&w), 20);
  world_close(&w);
}
END_TEST

/* The model goes while it is walked: who listens is told the rest, and the words are still there. */
static oc_status tear_down(void *arg, const oc_block_info *b) {
  struct meddler *m = arg;
  if (!m->told++) ck_ok(oc_model_teardown(m->w->m, NULL));
  if (b->state == OC_BLOCK_LIVE) ck_assert_str_eq(b->owner, "weights");
  return OC_OK;
}

START_TEST(the_callback_may_tear_the_model_down) {
  struct world w = world_open();
  oc_devptr p;
  for (int i = 0; i < 20; i++) ck_ok(oc_pool_alloc_owned(w.p, "weights", 1000, 0, &p));
  struct meddler m = {.w = &w};
  ck_ok(oc_pool_each_block(w.p, tear_down, &m));
  ck_assert_uint_eq(m.told, 21);
  ck_status(oc_pool_each_block(w.p, tear_down, &m), OC_E_RELEASED);
  ck_words("oc_pool_each_block");
  ck_assert_uint_eq(m.told, 21);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

static oc_status stop_at_third(void *arg, const oc_block_info *b) {
  (void)b;
  return ++*(unsigned *)arg == 3 ? OC_E_IO : OC_OK;
}

static oc_status answer_exists(void *arg, const oc_block_info *b) {
  (void)b;
  ++*(unsigned *)arg;
  return OC_EXISTS;
}

START_TEST(its_answer_ends_the_walk) {
  struct world w = world_open();
  for (int i = 0; i < 9; i++) block_of(&w, 1000);
  unsigned told = 0;
  ck_status(oc_pool_each_block(w.p, stop_at_third, &told), OC_E_IO);
  ck_assert_uint_eq(told, 3);
  told = 0;
  ck_status(oc_pool_each_block(w.p, answer_exists, &told), OC_EXISTS);
  ck_assert_uint_eq(told, 1);
  world_close(&w);
}
END_TEST

/* ---- where it is called ---- */

START_TEST(an_empty_pool_and_misuse) {
  struct world w = world_open();
  struct seen *s = walk(&w);
  ck_assert_uint_eq(s->count, 0);
  ck_status(oc_pool_each_block(NULL, note, s), OC_E_INVALID);
  ck_words("oc_pool_each_block");
  ck_status(oc_pool_each_block(w.p, NULL, s), OC_E_INVALID);
  ck_words("oc_pool_each_block");
  ck_ok(oc_pool_note_external(w.p, 0x4000, 1, "framework"));
  ck_ok(oc_pool_each_block(w.p, note, s));
  ck_assert_uint_eq(s->count, 1);
  free(s);
  world_close(&w);
}
END_TEST

START_TEST(in_a_guard_and_in_a_capture_no_driver_call) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  block_of(&w, MiB);
  uint64_t calls = fx_all_calls(w.b);
  oc_guard_enter();
  free(walk(&w));
  oc_guard_leave();
  if (fx_can(FX_CALLS)) ck_assert_uint_eq(fx_all_calls(w.b), calls);
  ck_ok(oc_capture_enter(w.m, s));
  calls = fx_all_calls(w.b);
  struct seen *seen = walk(&w);
  ck_assert_uint_eq(seen->count, 2);
  free(seen);
  if (fx_can(FX_CALLS)) ck_assert_uint_eq(fx_all_calls(w.b), calls);
  oc_capture_leave(w.m);
  world_close_stream(&w, s);
}
END_TEST

/* A walk of one moment while others allocate, free, grow and trim: its own sums always hold. */
struct tiling {
  uint64_t next, arena_left, used;
};

static oc_status tiles(void *arg, const oc_block_info *b) {
  struct tiling *t = arg;
  if (!t->arena_left) {
    ck_assert_uint_eq(b->start, b->arena->base);
    *t = (struct tiling){.next = b->start, .arena_left = b->arena->bytes, .used = b->arena->used_bytes};
  }
  ck_assert_uint_eq(b->start, t->next);
  ck_assert_uint_le(b->bytes, t->arena_left);
  t->next += b->bytes;
  t->arena_left -= b->bytes;
  t->used -= b->state == OC_BLOCK_FREE ? 0 : b->bytes;
  if (!t->arena_left) ck_assert_uint_eq(t->used, 0);
  return OC_OK;
}

static void churn(void *arg, unsigned i) {
  struct world *w = arg;
  oc_devptr held[16] = {0};
  for (unsigned n = 0; n < fx_scale(400); n++) {
    if (i == 0) {
      struct tiling t = {0};
      ck_ok(oc_pool_each_block(w->p, tiles, &t));
      ck_assert_uint_eq(t.arena_left, 0);
      continue;
    }
    if (held[n % 16]) ck_ok(oc_pool_free(w->p, held[n % 16]));
    held[n % 16] = block_of(w, (size_t)4096 << n % 9);
    if (n % 64 == 0) ck_ok(oc_pool_trim(w->p));
  }
}

START_TEST(while_others_allocate) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  fx_threads(4, churn, &w);
  struct seen *s = walk(&w);
  check_whole(&w, s);
  free(s);
  world_close(&w);
}
END_TEST

static Suite *suite(void) {
  TCase *t;
  Suite *s = world_suite("walk", &t);
  tcase_add_test(t, each_block_with_who_has_it);
  tcase_add_test(t, retired_blocks);
  tcase_add_test(t, a_lost_arena_and_managed_ones);
  tcase_add_test(t, the_callback_may_call_back);
  tcase_add_test(t, the_callback_may_tear_the_model_down);
  tcase_add_test(t, its_answer_ends_the_walk);
  tcase_add_test(t, an_empty_pool_and_misuse);
  tcase_add_test(t, in_a_guard_and_in_a_capture_no_driver_call);
  tcase_add_test(t, while_others_allocate);
  return s;
}

int main(void) { return fx_run(suite()); }
