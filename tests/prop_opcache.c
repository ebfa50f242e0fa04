/* SPDX-License-Identifier: MIT */
/*
 * The op cache against a plain model: random calls, and after each the answer, the figures and the device's own count must
 * be what the model says. The seed is printed; LIBOC_TEST_SEED=n repeats a run.
 *
 * buffer: what the plain model knows of a (tag, stream): pointer, what was asked for at most, bytes of its block.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tests/fixture.h"

#define TAGS 6
#define STREAMS 4        /* the last is none: the tag's own buffer */
#define FUNCS 12         /* of which the module of test kernels has two */
#define MODULES 3

struct buffer {
  oc_devptr ptr;         /* 0: none */
  size_t asked, block;
  bool captured;
};

struct plain {
  struct buffer buffer[TAGS][STREAMS];
  uint64_t kept;         /* bytes retired for graphs: go with graphs_gone only */
  uint64_t outgrown[STREAMS];   /* bytes retired by growth and in no graph, by stream */
  bool loaded[MODULES];
  bool known[MODULES][2];
  bool fired[TAGS];
  unsigned reached[TAGS];
  uint32_t shapes[TAGS]; /* a bit each */
  unsigned captures;
  bool guarded;
};

struct run {
  oc_backend *b;
  oc_model *m;
  oc_opcache *c;
  oc_stream stream[STREAMS];
  struct plain p;
  uint64_t seed;
};

static const char *const tags[TAGS] = {"act", "norm", "a tag of more than sixteen bytes", "", "kv", "logits"};
static oc_tag_key tag_keys[TAGS] = {OC_TAG_KEY("act"), OC_TAG_KEY("norm"), OC_TAG_KEY("a tag of more than sixteen bytes"),
                                    OC_TAG_KEY(""), OC_TAG_KEY("kv"), OC_TAG_KEY("logits")};
static const char *const modules[MODULES] = {"gemm", "norms", "never loaded"};
static const char *const funcs[2] = {"add", "fill"};

static unsigned upto(struct run *r, unsigned n) { return (unsigned)(fx_random(&r->seed) % n); }
static size_t rounded(size_t n) { return (n + 255) / 256 * 256; }

static size_t any_size(struct run *r) {
  return 1 + (size_t)(fx_random(&r->seed) % ((uint64_t)1 << (4 + upto(r, 18))));
}

/* ---- scratch ---- */

static oc_status ask(struct run *r, unsigned t, unsigned s, size_t n, oc_devptr *out) {
  bool by_key = upto(r, 2);
  if (s == STREAMS - 1)
    return by_key ? oc_opcache_scratch_k(r->c, &tag_keys[t], n, out) : oc_opcache_scratch(r->c, tags[t], n, out);
  return by_key ? oc_opcache_scratch_on_k(r->c, &tag_keys[t], r->stream[s], n, out)
                : oc_opcache_scratch_on(r->c, tags[t], r->stream[s], n, out);
}

static void outgrow(struct plain *p, unsigned s, const struct buffer *old) {
  if (!old->ptr) return;
  if (old->captured) p->kept += old->block;
  else p->outgrown[s] += old->block;
}

static void op_scratch(struct run *r) {
  unsigned t = upto(r, TAGS), s = upto(r, STREAMS);
  struct buffer *x = &r->p.buffer[t][s];
  /* often just what is there, or a little more */
  size_t n = x->asked && upto(r, 3) == 0 ? x->asked + upto(r, 2) : any_size(r);
  oc_devptr got = 0;
  oc_status st = ask(r, t, s, n, &got);
  if (x->ptr && n <= x->asked) {
    ck_assert_int_eq(st, OC_OK);
    ck_assert_uint_eq(got, x->ptr);
    x->captured |= r->p.captures > 0;
    return;
  }
  if (r->p.captures) {
    ck_assert_int_eq(st, OC_E_CAPTURING);
    return;
  }
  ck_ok(st);
  ck_assert_uint_ne(got, x->ptr);
  outgrow(&r->p, s, x);
  size_t least = x->ptr ? x->block + x->block / 2 : 0, made = n > least ? n : least;
  *x = (struct buffer){.ptr = got, .asked = made, .block = rounded(made)};
}

static void op_forget_stream(struct run *r) {
  unsigned s = upto(r, STREAMS - 1);
  bool named = oc_model_use_stream(r->m, r->stream[s]) == OC_OK;
  ck_assert(named);
  if (r->p.captures) {
    ck_status(oc_model_forget_stream(r->m, r->stream[s]), OC_E_CAPTURING);
    return;
  }
  ck_ok(oc_model_forget_stream(r->m, r->stream[s]));
  for (unsigned t = 0; t < TAGS; t++) {
    struct buffer *x = &r->p.buffer[t][s];
    if (x->ptr && x->captured) r->p.kept += x->block;
    *x = (struct buffer){0};
  }
  r->p.outgrown[s] = 0;
  fx_sync(r->b, r->stream[s]);
}

static void op_release(struct run *r) {
  if (r->p.guarded || r->p.captures) {
    ck_status(oc_opcache_release(r->c), r->p.guarded ? OC_E_GUARDED : OC_E_CAPTURING);
    return;
  }
  ck_ok(oc_opcache_release(r->c));
  for (unsigned s = 0; s < STREAMS; s++) {
    for (unsigned t = 0; t < TAGS; t++) {
      struct buffer *x = &r->p.buffer[t][s];
      if (x->ptr && x->captured) r->p.kept += x->block;
      *x = (struct buffer){0};
    }
    r->p.outgrown[s] = 0;
  }
}

static void op_graphs_gone(struct run *r) {
  if (r->p.guarded || r->p.captures) {
    ck_status(oc_model_graphs_gone(r->m), r->p.guarded ? OC_E_GUARDED : OC_E_CAPTURING);
    return;
  }
  ck_ok(oc_model_graphs_gone(r->m));
  r->p.kept = 0;
  memset(r->p.outgrown, 0, sizeof r->p.outgrown);
  for (unsigned t = 0; t < TAGS; t++)
    for (unsigned s = 0; s < STREAMS; s++) r->p.buffer[t][s].captured = false;
}

/* ---- kernels, modules ---- */

static void op_load(struct run *r) {
  unsigned i = upto(r, MODULES - 1);
  if (r->p.loaded[i] || r->p.captures) return;
  fx_load(r->m, modules[i]);
  r->p.loaded[i] = true;
}

static void op_kernel(struct run *r) {
  unsigned i = upto(r, MODULES), f = upto(r, FUNCS);
  char name[16];
  oc_kernel k = NULL, again = NULL;
  bool there = f < 2;
  snprintf(name, sizeof name, "%s", there ? funcs[f] : "no such one");
  oc_kernel_key key = OC_KERNEL_KEY(modules[i], name);
  oc_status st = upto(r, 2) ? oc_opcache_kernel(r->c, modules[i], name, &k) : oc_opcache_kernel_k(r->c, &key, &k);
  if (there && r->p.known[i][f]) {
    ck_ok(st);
  } else if (r->p.captures) {
    ck_assert_int_eq(st, OC_E_CAPTURING);
    return;
  } else {
    ck_assert_int_eq(st, there && r->p.loaded[i] ? OC_OK : OC_E_NOT_FOUND);
    if (st) return;
    r->p.known[i][f] = true;
  }
  ck_assert_ptr_nonnull(k);
  ck_ok(oc_opcache_kernel(r->c, modules[i], name, &again));
  ck_assert_ptr_eq(k, again);
}

/* ---- gates ---- */

static void op_gate(struct run *r) {
  unsigned t = upto(r, TAGS), by_key = upto(r, 2), n = upto(r, 50), s = upto(r, 32);
  switch (upto(r, 3)) {
    case 0:
      ck_assert_int_eq(by_key ? oc_opcache_once_k(r->c, &tag_keys[t]) : oc_opcache_once(r->c, tags[t]), !r->p.fired[t]);
      r->p.fired[t] = true;
      return;
    case 1:
      ck_assert_int_eq(by_key ? oc_opcache_first_n_k(r->c, &tag_keys[t], n) : oc_opcache_first_n(r->c, tags[t], n), r->p.reached[t] < n);
      r->p.reached[t]++;
      return;
    default:
      ck_assert_int_eq(by_key ? oc_opcache_first_shape_k(r->c, &tag_keys[t], s, 1, s) : oc_opcache_first_shape(r->c, tags[t], s, 1, s),
                       !(r->p.shapes[t] >> s & 1));
      r->p.shapes[t] |= 1u << s;
  }
}

/* ---- captures, guards ---- */

static void op_capture(struct run *r) {
  if (r->p.captures && upto(r, 2)) {
    oc_capture_leave(r->m);
    r->p.captures--;
  } else if (r->p.captures < 3) {
    ck_ok(oc_capture_enter(r->m, r->stream[upto(r, STREAMS)]));
    r->p.captures++;
  }
}

static void op_guard(struct run *r) {
  if (r->p.guarded) oc_guard_leave();
  else oc_guard_enter();
  r->p.guarded = !r->p.guarded;
}

/* ---- comparing ---- */

static void compare(struct run *r) {
  oc_pool_stats s = {.struct_size = sizeof s};
  uint64_t live = 0, retired = r->p.kept;
  size_t buffers = 0, kernels = 0;
  for (unsigned t = 0; t < TAGS; t++) {
    for (unsigned i = 0; i < STREAMS; i++) {
      live += r->p.buffer[t][i].block;
      buffers += r->p.buffer[t][i].ptr != 0;
    }
  }
  for (unsigned i = 0; i < STREAMS; i++) retired += r->p.outgrown[i];
  for (unsigned i = 0; i < MODULES; i++) kernels += (size_t)r->p.known[i][0] + r->p.known[i][1];
  ck_assert_uint_eq(oc_opcache_scratches(r->c), buffers);
  ck_assert_uint_eq(oc_opcache_kernels(r->c), kernels);
  ck_ok(oc_pool_get_stats(oc_model_pool(r->m), &s));
  ck_assert_uint_eq(s.live_bytes, live);
  /* what waits for a stream is asked for by stats, but not inside a capture */
  if (!r->p.captures) ck_assert_uint_eq(s.retired_bytes, retired);
  ck_assert_uint_eq(s.live_bytes + s.retired_bytes + s.free_bytes, s.arena_bytes);
}

static void begin(struct run *r, uint64_t seed) {
  *r = (struct run){.b = fx_open(NULL), .seed = seed};
  r->m = fx_model(r->b);
  r->c = oc_model_opcache(r->m);
  for (unsigned i = 0; i < STREAMS; i++) r->stream[i] = fx_stream(r->b);
}

static void end(struct run *r) {
  while (r->p.captures--) oc_capture_leave(r->m);
  if (r->p.guarded) oc_guard_leave();
  ck_ok(oc_pool_check(oc_model_pool(r->m)));
  ck_ok(oc_model_destroy(r->m));
  for (unsigned i = 0; i < STREAMS; i++) fx_stream_free(r->b, r->stream[i]);
  fx_close(r->b);
}

START_TEST(random_calls_answer_as_the_plain_model) {
  static void (*const ops[])(struct run *) = {op_scratch, op_scratch, op_scratch, op_scratch, op_scratch, op_scratch, op_kernel,
                                              op_kernel, op_gate, op_gate, op_gate, op_capture, op_guard, op_load};
  static void (*const rare[])(struct run *) = {op_forget_stream, op_release, op_graphs_gone};
  uint64_t seed = fx_seed();
  for (unsigned round = 0; round < fx_scale(40); round++) {
    struct run r;
    begin(&r, seed + round);
    for (unsigned n = 0; n < 2000; n++) {
      if (upto(&r, 40) == 0) rare[upto(&r, 3)](&r);
      else ops[upto(&r, sizeof ops / sizeof *ops)](&r);
      compare(&r);
    }
    end(&r);
  }
}
END_TEST

int main(void) {
  Suite *s = suite_create("op cache, random calls");
  TCase *t = tcase_create("random");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, random_calls_answer_as_the_plain_model);
  suite_add_tcase(s, t);
  return fx_run(s);
}
