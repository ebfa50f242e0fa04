/* SPDX-License-Identifier: MIT */
/*
 * The public API as a sequence of calls, each a few bytes: which call, and its arguments, sensible and not. After each the
 * status must be one that the plain model (plain.h) allows, every value and figure the model's, and the pool's invariants
 * hold; at the end nothing is left on the device. The driver (driver.h) refuses when the bytes say so.
 *
 * A call that met a refusal may fail; then nothing of it is done, but for what its contract says is.
 * One thread: what waits for another is tests/torture.c's.
 */
#include "config.h"

#include "tests/fuzz/api.h"

struct fuzz f;

/* ---- after each step ---- */

/* Blocks whose stream passed them are collected by the look at the figures, unless that may not ask. */
static void check_figures(void) {
  oc_pool_stats s = {.struct_size = sizeof s};
  uint64_t low = 0, high = 0;
  unsigned blocks, foreign = 0;
  f.d.met = 0;
  FUZZ_CHECK(oc_pool_get_stats(pool(), &s) == OC_OK, "%s", oc_last_error());
  for (int i = 0; i < BLOCKS; i++) {
    struct block *b = &f.p.block[i];
    bool passed = b->state == PENDING && f.d.ran[b->stream] >= b->place, asked = !f.captures && !f.d.met;
    low += b->state == RETIRED || (b->state == PENDING && !passed) ? b->bytes : 0;
    high += b->state == RETIRED || b->state == MAYBE || (b->state == PENDING && !(passed && asked)) ? b->bytes : 0;
    if (passed && asked) b->state = FREE;
  }
  for (int i = 0; i < FOREIGN; i++) foreign += f.p.foreign[i].at != 0;
  FUZZ_CHECK(s.live_bytes == plain_live(&f.p, &blocks) && s.live_blocks == blocks,
             "%llu bytes in %llu blocks live, not %llu in %u", (unsigned long long)s.live_bytes,
             (unsigned long long)s.live_blocks, (unsigned long long)plain_live(&f.p, &blocks), blocks);
  FUZZ_CHECK(s.retired_bytes >= low && (f.spoilt || s.retired_bytes <= high), "%llu retired, not %llu to %llu",
             (unsigned long long)s.retired_bytes, (unsigned long long)low, (unsigned long long)high);
  FUZZ_CHECK(s.live_bytes + s.retired_bytes + s.free_bytes == s.arena_bytes, "G16");
  FUZZ_CHECK(f.spoilt || s.arenas + foreign + 1 == f.d.memory_count, "%llu arenas, %u foreign, %u of the driver's",
             (unsigned long long)s.arenas, foreign, f.d.memory_count);
}

static void check_entries(void) {
  unsigned n = 0, scratches = 0, kernels = 0;
  for (int i = 0; i < ENTRIES; i++) {
    const struct entry *e = &f.p.entry[i];
    uint64_t v[2] = {0, 0};
    if (!e->there) continue;
    n++;
    if (f.captures) continue;            /* a look would mark it */
    oc_status st = plain_is_pair(e->kind) ? oc_derived_get_pair(derived(), e->kind, e->key, v)
                                          : oc_derived_get_ptr(derived(), e->kind, e->key, v);
    FUZZ_CHECK(st == OC_OK, "entry %d: %s", i, oc_status_name(st));
    check_kept(e, v);
  }
  for (int t = 0; t < TAGS; t++)
    for (int s = 0; s <= STREAMS; s++) scratches += f.scratch[t][s].block != NOBODY;
  for (int m = 0; m < MODULES; m++)
    for (int k = 0; k < FUNCTIONS; k++) kernels += f.kernel[m][k] != NULL;
  FUZZ_CHECK(oc_derived_len(derived()) == n, "%zu entries, not %u", oc_derived_len(derived()), n);
  FUZZ_CHECK(oc_opcache_scratches(cache()) == scratches, "%zu buffers, not %u", oc_opcache_scratches(cache()), scratches);
  FUZZ_CHECK(oc_opcache_kernels(cache()) == kernels, "%zu kernels, not %u", oc_opcache_kernels(cache()), kernels);
}

static void check(void) {
  FUZZ_CHECK(!f.d.wrong, "%s", f.d.wrong);
  if (f.torn) return;
  FUZZ_CHECK(oc_pool_check(pool()) == OC_OK, "%s", oc_last_error());
  check_figures();
  check_entries();
  FUZZ_CHECK(!f.d.wrong, "%s", f.d.wrong);
}

static void (*const steps[])(void) = {
  do_alloc, do_alloc, do_alloc, do_alloc, do_alloc, do_free, do_free, do_free, do_free, do_free, do_trim, do_queue, do_queue,
  do_run, do_run, do_order, do_latch, do_stream, do_forget_stream, do_load, do_kernel, do_kernel, do_scratch, do_scratch,
  do_scratch, do_scratch, do_release_scratch, do_gate, do_get, do_get, do_get, do_insert, do_insert, do_insert, do_insert,
  do_insert, do_invalidate, do_invalidate, do_release_derived, do_settle, do_begin, do_begin, do_begin, do_commit, do_commit,
  do_commit, do_abort, do_in_build, do_in_build, do_in_build, do_in_build, do_get_or_build, do_get_or_build, do_get_or_build,
  do_guard, do_guard, do_capture, do_capture, do_graphs_gone, do_hold, do_resource, do_teardown, do_destroy, do_words,
};

static void step(void) {
  f.d.met = f.d.asked = 0;
  f.d.capture = f.captures > 0;
  steps[below(sizeof steps / sizeof *steps)]();
  if (f.d.met && (f.d.order_at == AT_FREE || f.d.order_at == AT_UNLOAD || f.d.lost)) f.spoilt = true;
  f.d.capture = f.captures > 0;
  check();
}

/* ---- begin and end ---- */

static void begin(void) {
  memset(&f.d, 0, sizeof f.d);
  f.spoilt = f.torn = false;
  f.guards = f.captures = f.entered = f.nested = 0;
  driver_open(&f.d, below(2) ? 0 : 512);
  must("backend_create", oc_backend_create(&driver_table, &f.d, &f.b), 0, one(OC_OK));
  must("create", oc_model_create(f.b, NULL, &f.neighbour), 0, one(OC_OK));
  must("alloc", oc_pool_alloc(oc_model_pool(f.neighbour), 4096, 0, &f.next_door), 0, one(OC_OK));
  new_model();
}

static void end(void) {
  f.d.order_in = f.d.met = 0;
  f.d.capture = false;
  for (; f.captures; f.captures--) oc_capture_leave(f.m);
  while (f.guards) {
    oc_guard_leave();
    f.guards--;
  }
  for (int i = 0; i < BUILDS; i++)
    if (f.p.build[i].handle) oc_build_abort(f.p.build[i].handle), f.p.build[i].handle = NULL;
  let_holders_go();
  must("teardown", oc_model_teardown(f.m, NULL), 0, one(OC_OK) | (f.spoilt ? one(OC_E_TEARDOWN) : 0));
  FUZZ_CHECK(f.spoilt || f.d.memory_count == 1, "%u of the driver's memory left", f.d.memory_count);
  must("destroy", oc_model_destroy(f.m), 0, one(OC_OK) | (f.spoilt ? one(OC_E_TEARDOWN) : 0));
  must("destroy", oc_model_destroy(f.neighbour), 0, one(OC_OK) | (f.spoilt ? one(OC_E_TEARDOWN) : 0));
  /* On a lost device nothing is given back, events neither. */
  FUZZ_CHECK((f.d.lost || !f.d.events) && (f.spoilt || (!f.d.modules && !f.d.memory_count)), "%u events, %u modules, %u left",
             f.d.events, f.d.modules, f.d.memory_count);
  must("close", oc_backend_close(f.b), 0, one(OC_OK));
  FUZZ_CHECK(!f.d.wrong, "%s", f.d.wrong);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  f.at = data;
  f.end = data + size;
  begin();
  for (unsigned n = 0; n < STEPS_MOST && f.at < f.end; n++) step();
  f.at = f.end;
  end();
  return 0;
}
