/* SPDX-License-Identifier: MIT */
/* What the bytes mean: numbers, blocks, keys, values, addresses; and which statuses a call may answer. */
#include "config.h"

#include "tests/fuzz/api.h"

uint8_t byte(void) { return f.at < f.end ? *f.at++ : 0; }
unsigned below(unsigned n) { return byte() % n; }

/* ---- choices ---- */

struct block *some_block(void) {
  unsigned i = below(BLOCKS);
  for (unsigned n = 0; n < BLOCKS; n++, i = (i + 1) % BLOCKS)
    if (f.p.block[i].state == LIVE) return &f.p.block[i];
  return NULL;
}

oc_kind some_kind(void) { return (oc_kind)(byte() % 33 % 4 + (byte() % 32 ? 0 : 4)); }

uint64_t in_block(const struct block *b) { return !b ? 0 : b->start + (below(3) ? 0 : byte() % b->bytes); }

uint64_t some_key(void) {
  struct block *b;
  const struct entry *e;
  switch (below(6)) {
  case 0: return below(9);                                   /* 0 too: no key */
  case 1: e = &f.p.entry[below(ENTRIES)]; return e->there ? e->key : 1;
  case 2: e = &f.p.entry[below(ENTRIES)]; return e->there && e->value[0] ? e->value[0] : 2;
  case 3: return f.freed ? f.freed : 3;
  default:
    b = some_block();
    return b && b->class != SCRATCH && b->class != BUILD ? in_block(b) : 4;
  }
}

static uint64_t new_foreign(void) {
  for (int i = 0; i < FOREIGN; i++) {
    struct foreign *to = &f.p.foreign[i];
    if (to->at) continue;
    if (f.captures || driver_table.alloc(&f.d, 4096, &to->at) != OC_OK) to->at = 0;
    return to->at;
  }
  return 0;
}

static uint64_t some_foreign(void) {
  const struct foreign *of = &f.p.foreign[below(FOREIGN)];
  return of->adrift ? 0 : of->at;
}

uint64_t some_value(uint64_t key) {
  switch (below(8)) {
  case 0: return key;
  case 1: return below(2) ? 0 : f.next_door;
  case 2: return new_foreign();
  case 3: return some_foreign();
  default: return in_block(some_block());
  }
}

uint64_t some_address(void) {
  switch (below(8)) {
  case 0: return f.freed;
  case 1: return f.next_door;
  case 2: return f.p.foreign[below(FOREIGN)].at;
  case 3: return 0;
  default: return in_block(some_block());
  }
}

struct size some_size(void) {
  static const size_t bytes[] = {1, 255, 256, 257, 4096, 5000, 70000, 1 << 20, 3 << 20, 0, SIZE_MAX, SIZE_MAX - 255};
  static const size_t aligns[] = {1, 512, 4096, 1 << 21, 3, (size_t)1 << 46};
  uint8_t sane = byte();
  struct size s = {bytes[below(sane % 8 ? 9 : 12)], sane % 16 < 12 ? 0 : aligns[below(6)], 0};
  if (!s.bytes || s.align == 3 || s.bytes >= SIZE_MAX - 255) s.wrong = one(OC_E_INVALID) | one(OC_E_DEVICE_NOMEM);
  if (s.align >> 40) s.wrong = one(OC_E_DEVICE_NOMEM) | one(OC_E_INVALID);
  return s;
}

/* ---- statuses, as sets ---- */

uint64_t torn(void) { return f.torn ? one(OC_E_RELEASED) : 0; }
uint64_t waits(void) {
  return torn() | (f.guards ? one(OC_E_GUARDED) : 0) | (f.captures ? one(OC_E_CAPTURING) : 0);
}
uint64_t calls_driver(void) { return torn() | (f.captures ? one(OC_E_CAPTURING) : 0); }

static uint64_t after_fault(void) {
  oc_status as = f.d.order_as == OC_OK ? OC_E_BACKEND : f.d.order_as;
  return f.d.met ? one(as) | one(OC_E_BACKEND) | one(OC_E_DEVICE_NOMEM) | one(OC_E_NOT_FOUND) : 0;
}

oc_status must(const char *call, oc_status st, uint64_t refused, uint64_t good) {
  uint64_t may = refused ? refused : good | after_fault();
  FUZZ_CHECK(st >= -43 && st <= 2 && may & one(st), "%s: %s: %s", call, oc_status_name(st), oc_last_error());
  if (st < 0) FUZZ_CHECK(oc_last_error()[0], "%s: %s, without a word", call, oc_status_name(st));
  return st;
}

uint64_t may_lack_room(void) { return one(OC_OK) | (f.captures ? one(OC_E_CAPTURING) : 0); }
