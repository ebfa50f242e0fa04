/* SPDX-License-Identifier: MIT */
/* Steps: modules, kernels, scratch, gates. */
#include "config.h"

#include "tests/fuzz/api.h"

static const char *const module_names[MODULES] = {"gemm", "norm", "rope"};
static const char *const function_names[FUNCTIONS] = {"add", "bias", "none", "zero"};
static const char *const tags[TAGS] = {"act", "workspace", "logits"};
static const char *const gates[GATES] = {"warned", "tuned", "w", ""};

/* ---- kernels, scratch, gates ---- */

void do_load(void) {
  unsigned i = below(MODULES);
  bool adopt = below(3) == 0;
  oc_module got = NULL;
  oc_status st = adopt ? oc_model_adopt_module(f.m, module_names[i], (oc_module)(uintptr_t)0x999)
                       : oc_model_load_module(f.m, module_names[i], "image", 5);
  uint64_t no = adopt ? torn() : calls_driver();
  must("load", st, no ? no | (f.loaded[i] ? one(OC_EXISTS) : 0) : 0, one(f.loaded[i] ? OC_EXISTS : OC_OK));
  if (!st) f.loaded[i] = adopt ? 0x999 : 0x1000 + f.d.made;
  st = oc_model_module(f.m, module_names[i], &got);
  must("module", st, torn(), one(f.loaded[i] ? OC_OK : OC_E_NOT_FOUND));
  if (!st) FUZZ_CHECK((uintptr_t)got == f.loaded[i], "another module's handle");
}

void do_kernel(void) {
  static oc_kernel_key keys[MODULES][FUNCTIONS];
  unsigned i = below(MODULES), k = below(FUNCTIONS);
  bool by_key = below(2);
  oc_kernel got = NULL, want = f.kernel[i][k];
  keys[i][k].module = module_names[i];
  keys[i][k].func = function_names[k];
  if (!want && k < 2) want = driver_kernel(f.loaded[i] ? f.loaded[i] : (uint8_t)module_names[i][0], function_names[k]);
  oc_status st = by_key ? oc_opcache_kernel_k(cache(), &keys[i][k], &got)
                        : oc_opcache_kernel(cache(), module_names[i], function_names[k], &got);
  must("kernel", st, f.kernel[i][k] ? torn() : calls_driver(), one(k < 2 ? OC_OK : OC_E_NOT_FOUND));
  if (st) return;
  FUZZ_CHECK(got == want, "%p, not %p", (void *)got, (void *)want);
  f.kernel[i][k] = got;
}

static uint64_t live_bytes(void) {
  oc_pool_stats s = {.struct_size = sizeof s};
  FUZZ_CHECK(oc_pool_get_stats(pool(), &s) == OC_OK, "%s", oc_last_error());
  return s.live_bytes;
}

/* The buffer grew; the old one is retired. How far it grew is the pool's to say: half again at least. */
static void scratch_grew(struct scratch *s, oc_devptr at, uint64_t asked) {
  unsigned blocks;
  uint64_t old = s->block == NOBODY ? 0 : f.p.block[s->block].bytes, others = plain_live(&f.p, &blocks) - old;
  uint64_t bytes = live_bytes() - others;
  FUZZ_CHECK(bytes >= asked && bytes >= old + old / 2 && bytes <= asked + asked + 2 * old + 512, "%llu bytes",
             (unsigned long long)bytes);
  if (old) f.p.block[s->block].state = RETIRED;
  note_block(at, bytes, 0, SCRATCH, NOBODY);
  *s = (struct scratch){(int)(plain_at(&f.p, at) - f.p.block), asked};
}

void do_scratch(void) {
  static const uint32_t sizes[] = {1, 256, 1000, 5000, 70000, 1 << 20, 0};
  static oc_tag_key keys[TAGS] = {OC_TAG_KEY("act"), OC_TAG_KEY("workspace"), OC_TAG_KEY("logits")};
  unsigned t = below(TAGS), where = below(STREAMS + 1), bytes = sizes[below(7)];
  bool by_key = below(2);
  struct scratch *s = &f.scratch[t][where];
  oc_devptr at = 0;
  oc_status st;
  if (!plain_room(&f.p, 8)) return;
  if (!where)
    st =
        by_key ? oc_opcache_scratch_k(cache(), &keys[t], bytes, &at) : oc_opcache_scratch(cache(), tags[t], bytes, &at);
  else if (by_key) st = oc_opcache_scratch_on_k(cache(), &keys[t], driver_stream(where - 1), bytes, &at);
  else st = oc_opcache_scratch_on(cache(), tags[t], driver_stream(where - 1), bytes, &at);
  bool fits = s->block != NOBODY && bytes <= f.p.block[s->block].bytes, sure = s->block != NOBODY && bytes <= s->asked;
  uint64_t no = torn() | (bytes ? 0 : one(OC_E_INVALID)) | (!fits && f.captures ? one(OC_E_CAPTURING) : 0);
  must("scratch", st, no, one(OC_OK) | (f.captures && !sure ? one(OC_E_CAPTURING) : 0));
  if (st) return;
  if (sure) FUZZ_CHECK(at == f.p.block[s->block].start, "a request that fits moved");
  if (s->block == NOBODY || at != f.p.block[s->block].start) scratch_grew(s, at, bytes);
  else if (bytes > s->asked) s->asked = bytes;
  if (f.captures) f.p.block[s->block].captured = true;
}

void do_release_scratch(void) {
  oc_status st = oc_opcache_release(cache());
  must("opcache_release", st, waits(), one(OC_OK));
  if (st && !f.d.met) return;
  for (int i = 0; i < BLOCKS; i++) {
    struct block *b = &f.p.block[i];
    if (b->class != SCRATCH || (b->state != LIVE && b->state != RETIRED)) continue;
    b->state = b->captured ? RETIRED : f.d.met ? MAYBE : FREE;
  }
  for (int t = 0; t < TAGS; t++)
    for (int s = 0; s <= STREAMS; s++) f.scratch[t][s] = (struct scratch){NOBODY, 0};
}

void do_gate(void) {
  static oc_tag_key keys[GATES] = {OC_TAG_KEY("warned"), OC_TAG_KEY("tuned"), OC_TAG_KEY("w"), OC_TAG_KEY("")};
  unsigned g = below(GATES), n = below(5);
  bool by_key = below(2), got, want;
  switch (below(3)) {
  case 0:
    want = !f.torn && !f.once[g];
    got = by_key ? oc_opcache_once_k(cache(), &keys[g]) : oc_opcache_once(cache(), gates[g]);
    f.once[g] |= !f.torn;
    break;
  case 1:
    want = !f.torn && !f.shape[g];
    got = by_key ? oc_opcache_first_shape_k(cache(), &keys[g], 1, 2, 3) : oc_opcache_first_shape(cache(), gates[g], 1, 2, 3);
    f.shape[g] |= !f.torn;
    break;
  default:
    want = !f.torn && f.reached[g] < n;
    got = by_key ? oc_opcache_first_n_k(cache(), &keys[g], n) : oc_opcache_first_n(cache(), gates[g], n);
    f.reached[g] += !f.torn;
  }
  FUZZ_CHECK(got == want, "gate %s", gates[g]);
}

/* ---- a stream is forgotten ---- */

static void scratch_gone(struct scratch *s, unsigned stream) {
  if (s->block == NOBODY) return;
  struct block *b = &f.p.block[s->block];
  if (f.d.met && !b->captured) b->state = MAYBE;   /* retired, where its end could not be marked */
  else plain_gone(&f.p, b, b->captured, (int)stream, &f.d);
  *s = (struct scratch){NOBODY, 0};
}

void do_forget_stream(void) {
  unsigned i = below(STREAMS);
  bool known = false;                    /* surely named; of any other there is nothing to forget */
  for (int t = 0; t < TAGS; t++) known |= f.scratch[t][i + 1].block != NOBODY;
  oc_status st = oc_model_forget_stream(f.m, driver_stream(i));
  must("forget_stream", st, calls_driver() ? calls_driver() | (known || f.torn ? 0 : one(OC_OK)) : 0, one(OC_OK));
  if (st) return;
  for (int t = 0; t < TAGS; t++) scratch_gone(&f.scratch[t][i + 1], i);
  for (int k = 0; k < BLOCKS; k++)   /* and what those had outgrown */
    if (f.p.block[k].class == SCRATCH && f.p.block[k].state == RETIRED && !f.p.block[k].captured) f.p.block[k].state = MAYBE;
}
