/* SPDX-License-Identifier: MIT */
/* Steps: the pool and the device under it. */
#include "config.h"

#include "tests/fuzz/api.h"

bool in_arena(uint64_t addr) {
  for (int i = 0; i < FOREIGN; i++)
    if (f.p.foreign[i].at && addr - f.p.foreign[i].at < 4096) return false;
  return driver_holds(&f.d, addr, 1) && addr != f.next_door;
}

/* ---- memory ---- */

void note_block(oc_devptr at, uint64_t bytes, uint64_t align, enum class class, int build) {
  FUZZ_CHECK(at && at % (align > 256 ? align : 256) == 0, "0x%llx", (unsigned long long)at);
  FUZZ_CHECK(driver_holds(&f.d, at, bytes), "a block outside the driver's memory");
  for (int i = 0; i < BLOCKS; i++) {
    const struct block *b = &f.p.block[i];
    if (b->state == FREE || b->state == MAYBE || (b->state == PENDING && f.d.ran[b->stream] >= b->place)) continue;
    FUZZ_CHECK(at + bytes <= b->start || b->start + b->bytes <= at, "overlaps block %d", i);
  }
  FUZZ_CHECK(plain_add(&f.p, at, bytes, class, build) != NOBODY, "the model is full");
}

void do_alloc(void) {
  struct size s = some_size();
  bool owned = below(4) == 0;
  oc_devptr at = 0;
  if (!plain_room(&f.p, 8)) return;
  oc_status st = owned ? oc_pool_alloc_owned(pool(), "weights", s.bytes, s.align, &at)
                       : oc_pool_alloc(pool(), s.bytes, s.align, &at);
  must("alloc", st, torn() | s.wrong, may_lack_room());
  if (!st) note_block(at, s.bytes, s.align, owned ? OWNED : USER, NOBODY);
}

/* Why the address is not the caller's to free. */
static uint64_t not_free_able(uint64_t addr, const struct block *b) {
  if (!addr) return one(OC_E_INVALID);
  if (!b) return one(OC_E_NOT_OWNED);
  if (b->class != USER && b->class != OWNED) return one(OC_E_NOT_OWNED) | one(OC_E_INTERIOR);
  return addr == b->start ? 0 : one(OC_E_INTERIOR);
}

/* What forgetting the doomed entries is refused with, if there are any; a build in the way is one of those. */
static uint64_t refuses_doom(oc_status doom) {
  bool any = doom != OC_OK;
  for (int i = 0; i < ENTRIES; i++) any |= f.p.doomed[i];
  uint64_t no = any ? waits() : 0;
  return no || doom == OC_OK ? no : one(doom);
}

void do_free(void) {
  uint64_t addr = some_address();
  bool on = below(3) == 0;
  unsigned stream = below(STREAMS);
  struct block *b = plain_at(&f.p, addr);
  uint64_t no = torn() | not_free_able(addr, b) | (on && f.captures ? one(OC_E_CAPTURING) : 0);
  if (!no) no = refuses_doom(plain_doom(&f.p, NULL, 0, b, false));
  /* Torn down, some refusals are seen before others; nothing may be freed. */
  oc_status st = on ? oc_pool_free_on(pool(), addr, driver_stream(stream)) : oc_pool_free(pool(), addr);
  must("free", st, no, one(OC_OK));
  if (no) return;
  if (st && !f.d.met) return;
  plain_bury(&f.p, unsure());
  if (st) return;
  f.freed = b->start;
  plain_gone(&f.p, b, f.captures, on ? (int)stream : NOBODY, &f.d);
}

void do_trim(void) { must("trim", oc_pool_trim(pool()), calls_driver(), one(OC_OK)); }

/* ---- the device ---- */

void do_queue(void) { f.d.queued[below(STREAMS)]++; }
void do_run(void) { driver_run(&f.d, below(STREAMS)); }

void do_order(void) {
  static const oc_status as[] = {OC_E_DEVICE_NOMEM, OC_E_BACKEND, OC_E_DEVICE_NOMEM, OC_OK, OC_E_DEVICE_LOST};
  f.d.order_at = (enum entry_point)below(ENTRY_POINTS);
  f.d.order_in = 1 + below(4);
  f.d.order_count = 1 + below(3);
  f.d.order_as = as[below(sizeof as / sizeof *as)];
  if (f.d.order_at == AT_QUERY && f.d.order_as == OC_OK) f.d.order_in = 0;   /* it would not be a lie */
}

void do_latch(void) {
  bool was = oc_opcache_alloc_fell_back(cache());
  oc_opcache_note_alloc_fallback(cache());
  FUZZ_CHECK(oc_opcache_alloc_fell_back(cache()) == !f.torn, "was %d", was);
}

void do_stream(void) {
  oc_stream s = driver_stream(below(STREAMS));
  must("use_stream", oc_model_use_stream(f.m, s), torn(), one(OC_OK));
}
