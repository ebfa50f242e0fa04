/* SPDX-License-Identifier: MIT */
/* What would wait for itself, directly or round a circle, says so; what only waits long does not (G11, G15; S30). */
#include "config.h"

#include "tests/world.h"
#include "tests/wrap.h"

#define ANY 0x7f0000u

/* ---- one thread ---- */

struct job {
  struct world *w;
  uint64_t block;     /* the value of ANY + 1 */
};

static oc_status asks_for_itself(oc_build *b, void *arg, uint64_t *out) {
  struct job *j = arg;
  oc_build *again = NULL;
  uint64_t two[2], v;
  ck_status(oc_derived_get_or_build_ptr(j->w->d, OC_BF16, ANY, asks_for_itself, j, &v), OC_E_REENTRANT);
  ck_words("bf16");
  ck_status(oc_derived_begin(j->w->d, OC_BF16, ANY, &again, two), OC_E_REENTRANT);
  ck_status(oc_derived_invalidate(j->w->d, ANY), OC_E_REENTRANT);
  ck_status(oc_derived_invalidate_n(j->w->d, (const uint64_t[2]){ANY + 1, ANY}, 2), OC_E_REENTRANT);
  ck_status(oc_derived_release(j->w->d), OC_E_REENTRANT);
  ck_status(oc_model_teardown(j->w->m, NULL), OC_E_REENTRANT);
  ck_status(oc_model_destroy(j->w->m), OC_E_REENTRANT);
  /* what does not wait for this build is fine */
  ck_ok(oc_derived_invalidate(j->w->d, ANY + 2));
  ck_ok(oc_derived_settle(j->w->d));
  ck_assert_uint_eq(value_of(j->w, OC_BF16, ANY + 1), j->block);
  ck_assert_ptr_null(again);
  return oc_build_alloc(b, 64, 0, out);
}

/* G11: the same thread, every call that would wait for the build; then it ends as if nothing had been. */
START_TEST(g11_a_build_that_waits_for_itself) {
  struct world w = world_open();
  struct job j = {.w = &w, .block = block_of(&w, 64)};
  put(&w, OC_BF16, ANY + 1, j.block);
  put(&w, OC_BF16, ANY + 2, block_of(&w, 64));
  uint64_t v = 0;
  ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, asks_for_itself, &j, &v));
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), v);
  ck_assert_uint_eq(live_blocks(&w), 2);
  world_close(&w);
}
END_TEST

/* The same key in another kind is another build; but an invalidate of the key is of all kinds. */
START_TEST(g11_another_kind_is_no_circle) {
  struct world w = world_open();
  oc_build *a = begin(&w, OC_BF16, ANY), *b = begin(&w, OC_CUTLASS_NVFP4_T, ANY);
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_REENTRANT);
  oc_build_abort(a);
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_REENTRANT);
  oc_build_abort(b);
  ck_ok(oc_derived_invalidate(w.d, ANY));
  world_close(&w);
}
END_TEST

/* G15: freeing, or forgetting, the source of one's own open build; and invalidating what its key was derived from. */
START_TEST(g15_a_build_that_takes_its_own_source_away) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 1000), fp8 = block_of(&w, 1000);
  put_pair(&w, src, fp8, 0);
  oc_build *b = begin(&w, OC_BF16, fp8 + 10);      /* of a value: inside its block */
  uint64_t key_of_value = fp8;
  ck_status(oc_derived_invalidate(w.d, src), OC_E_REENTRANT);
  ck_status(oc_pool_free(w.p, src), OC_E_REENTRANT);
  ck_status(oc_pool_free_on(w.p, src, NULL), OC_E_REENTRANT);
  ck_assert(has_pair(&w, OC_ROWWISE_FP8, src));
  ck_assert_uint_eq(live_blocks(&w), 2);
  ck_ok(oc_derived_invalidate(w.d, key_of_value));   /* nothing is keyed by that */
  commit_one(b, build_block(b, 64));
  ck_assert_uint_eq(oc_derived_len(w.d), 2);
  ck_ok(oc_pool_free(w.p, src));
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* A driver's callback that asks for the module which this thread is loading. */
static bool asks_for_the_module(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  oc_model *m = w->hook_arg;
  oc_module mod;
  size_t bytes;
  (void)arg;
  (void)answer;
  if (strcmp(entry, "module_load") != 0) return false;
  w->hook = NULL;
  const void *image = fx_image(&bytes);
  ck_status(oc_model_load_module(m, "twice", image, bytes), OC_E_REENTRANT);
  ck_words("module twice is being loaded by this thread");
  ck_status(oc_model_adopt_module(m, "twice", (oc_module)w), OC_E_REENTRANT);
  ck_status(oc_model_module(m, "twice", &mod), OC_E_NOT_FOUND);   /* not yet */
  fx_load(m, "another");
  return false;
}

START_TEST(g11_a_module_that_waits_for_itself) {
  struct wrap w;
  wrap_open(&w, NULL);
  oc_model *m = fx_model(w.outer);
  oc_module mod;
  w.hook_arg = m;
  w.hook = asks_for_the_module;
  fx_load(m, "twice");
  ck_ok(oc_model_module(m, "twice", &mod));
  ck_ok(oc_model_module(m, "another", &mod));
  ck_assert_uint_eq(wrap_calls(&w, "module_load"), 2);
  ck_ok(oc_model_destroy(m));
  wrap_close(&w);
}
END_TEST

/* ---- circles of threads ---- */

/* Each of n threads opens its own key, then does something that waits for the next one's. */
struct ring {
  struct world *w[40];     /* of thread i's key */
  unsigned n, open;
  oc_status st[40];
  oc_status (*wait)(struct ring *r, unsigned next);
};

static oc_status wait_begin(struct ring *r, unsigned next) {
  oc_build *b = NULL;
  uint64_t out[2];
  oc_status st = oc_derived_begin(r->w[next]->d, OC_BF16, ANY + next, &b, out);
  if (b) oc_build_abort(b);
  return st;
}

static oc_status wait_invalidate(struct ring *r, unsigned next) {
  return oc_derived_invalidate(r->w[next]->d, ANY + next);
}

static oc_status wait_mixed(struct ring *r, unsigned next) {
  return next % 2 ? wait_begin(r, next) : wait_invalidate(r, next);
}

static void ring_main(void *arg, unsigned i) {
  struct ring *r = arg;
  oc_build *b = begin(r->w[i], OC_BF16, ANY + i);
  __atomic_fetch_add(&r->open, 1, __ATOMIC_ACQ_REL);
  fx_until(__atomic_load_n(&r->open, __ATOMIC_ACQUIRE) == r->n);
  r->st[i] = r->wait(r, (i + 1) % r->n);
  oc_build_abort(b);
}

/* Exactly one closes the circle; with its way open, the others get what they asked for. */
static void run_ring(struct world *a, struct world *b, unsigned n, oc_status (*wait)(struct ring *, unsigned)) {
  struct ring r = {.n = n, .wait = wait};
  for (unsigned i = 0; i < n; i++) r.w[i] = i % 2 ? b : a;
  fx_threads(n, ring_main, &r);
  unsigned circles = 0;
  for (unsigned i = 0; i < n; i++) {
    circles += r.st[i] == OC_E_REENTRANT;
    ck_assert_msg(r.st[i] >= 0 || r.st[i] == OC_E_REENTRANT, "thread %u: %s", i, oc_status_name(r.st[i]));
  }
  ck_assert_uint_eq(circles, 1);
  ck_assert_uint_eq(oc_derived_len(a->d) + oc_derived_len(b->d), 0);
}

/* S30, and its like: two threads, three, forty; builds, invalidates, both; in one model and across two. */
START_TEST(s30_circles_of_any_length) {
  struct world a = world_open(), b = world_on(a.b, (oc_model_options){.name = "b"});
  const unsigned sizes[] = {2, 3, 8, 40};
  for (unsigned i = 0; i < 4; i++) {
    for (unsigned models = 0; models < 2; models++) {
      struct world *second = models ? &b : &a;
      run_ring(&a, second, sizes[i], wait_begin);
      run_ring(&a, second, sizes[i], wait_invalidate);
      run_ring(&a, second, sizes[i], wait_mixed);
    }
  }
  ck_ok(oc_model_destroy(b.m));
  world_close(&a);
}
END_TEST

/* S30 once more, with values: an invalidate refused round a circle has changed nothing. */
struct pair_job {
  struct world *w;
  unsigned open, done;
  oc_status st[2];
};

static void invalidate_the_other(void *arg, unsigned i) {
  struct pair_job *j = arg;
  oc_build *b = begin(j->w, OC_BF16, ANY + i);
  __atomic_fetch_add(&j->open, 1, __ATOMIC_ACQ_REL);
  fx_until(__atomic_load_n(&j->open, __ATOMIC_ACQUIRE) == 2);
  j->st[i] = oc_derived_invalidate(j->w->d, ANY + 1 - i);
  if (j->st[i] == OC_E_REENTRANT) ck_assert_uint_ne(value_of(j->w, OC_CUTLASS_NVFP4_T, ANY + 1 - i), 0);
  oc_build_abort(b);
}

START_TEST(s30_an_invalidate_refused_changes_nothing) {
  struct world w = world_open();
  for (unsigned round = 0; round < 10; round++) {
    struct pair_job j = {.w = &w};
    for (unsigned i = 0; i < 2; i++) put(&w, OC_CUTLASS_NVFP4_T, ANY + i, block_of(&w, 64));
    fx_threads(2, invalidate_the_other, &j);
    ck_assert((j.st[0] == OC_E_REENTRANT) != (j.st[1] == OC_E_REENTRANT));
    ck_assert_uint_eq(oc_derived_len(w.d), 1);
    ck_ok(oc_derived_release(w.d));
  }
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* ---- frees ---- */

struct freer {
  struct world *w;
  oc_devptr src[2];
  unsigned open;
  oc_status st[2];
};

static void free_the_others_source(void *arg, unsigned i) {
  struct freer *f = arg;
  oc_build *b = begin(f->w, OC_BF16, f->src[i] + 5);
  __atomic_fetch_add(&f->open, 1, __ATOMIC_ACQ_REL);
  fx_until(__atomic_load_n(&f->open, __ATOMIC_ACQUIRE) == 2);
  f->st[i] = oc_pool_free(f->w->p, f->src[1 - i]);
  oc_build_abort(b);
}

/* G15: two builds that free each other's source: one is refused and nothing of its freed. */
START_TEST(g15_frees_count_in_circles) {
  struct world w = world_open();
  struct freer f = {.w = &w, .src = {block_of(&w, 100), block_of(&w, 100)}};
  fx_threads(2, free_the_others_source, &f);
  ck_assert((f.st[0] == OC_E_REENTRANT) != (f.st[1] == OC_E_REENTRANT));
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_ok(oc_pool_free(w.p, f.src[f.st[0] == OC_E_REENTRANT]));
  world_close(&w);
}
END_TEST

/* ---- teardown ---- */

struct two_models {
  struct world a, b;
  unsigned open;
  oc_status st[2];
};

static void tear_down_the_other(void *arg, unsigned i) {
  struct two_models *t = arg;
  struct world *mine = i ? &t->b : &t->a, *other = i ? &t->a : &t->b;
  oc_build *b = begin(mine, OC_BF16, ANY);
  __atomic_fetch_add(&t->open, 1, __ATOMIC_ACQ_REL);
  fx_until(__atomic_load_n(&t->open, __ATOMIC_ACQUIRE) == 2);
  t->st[i] = oc_model_teardown(other->m, NULL);
  oc_build_abort(b);
}

/* Two models torn down from inside each other's builds: one side is REENTRANT at once, the other works. */
START_TEST(g11_teardown_counts_in_circles) {
  struct two_models t = {.a = world_open()};
  t.b = world_on(t.a.b, (oc_model_options){0});
  fx_threads(2, tear_down_the_other, &t);
  ck_assert((t.st[0] == OC_E_REENTRANT) != (t.st[1] == OC_E_REENTRANT));
  ck_assert(t.st[0] == OC_OK || t.st[1] == OC_OK);
  ck_ok(oc_model_destroy(t.b.m));
  ck_ok(oc_model_destroy(t.a.m));
  fx_close(t.a.b);
}
END_TEST

static void ask_other_model(void *arg) {
  struct call *c = arg;
  oc_build *mine = begin(c->w, OC_BF16, ANY), *more = begin(c->w, OC_BF16, ANY + 7), *b = NULL;   /* two ways to one thread */
  struct world *other = (struct world *)(uintptr_t)c->keys;
  call_ended(c, oc_derived_begin(other->d, OC_BF16, ANY, &b, c->out));
  if (b) oc_build_abort(b);
  oc_build_abort(more);
  oc_build_abort(mine);
}

/* A's build waits for one in B that this thread has open, and this thread tears A down: it would wait for itself. */
START_TEST(g11_teardown_round_a_circle_of_two_models) {
  struct world a = world_open(), b = world_on(a.b, (oc_model_options){0});
  oc_build *in_b = begin(&b, OC_BF16, ANY);
  struct call c = {.w = &a, .keys = (const uint64_t *)(const void *)&b};
  struct side other;
  side_start(&other, ask_other_model, &c);
  side_waits(&other);
  ck_status(oc_model_teardown(a.m, NULL), OC_E_REENTRANT);
  put(&a, OC_BF16, ANY + 1, ANY + 1);              /* A lives */
  oc_devptr p = build_block(in_b, 64);
  commit_one(in_b, p);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(c.out[0], p);
  ck_ok(oc_model_destroy(b.m));
  world_close(&a);
}
END_TEST

/* The same, where that wait begins only when the teardown does. */
struct late_circle {
  struct world a, b;
  struct side other;
  bool begun, go;
  oc_status st;
};

static void ask_when_told(void *arg) {
  struct late_circle *c = arg;
  oc_build *mine = begin(&c->a, OC_BF16, ANY), *b = NULL;
  uint64_t out[2];
  __atomic_store_n(&c->begun, true, __ATOMIC_RELEASE);
  fx_until(__atomic_load_n(&c->go, __ATOMIC_ACQUIRE));
  c->st = oc_derived_begin(c->b.d, OC_BF16, ANY, &b, out);
  if (b) oc_build_abort(b);
  oc_build_abort(mine);
}

static bool close_the_circle(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct late_circle *c = w->hook_arg;
  (void)arg;
  (void)answer;
  if (strcmp(entry, "capturing") != 0) return false;
  w->hook = NULL;
  __atomic_store_n(&c->go, true, __ATOMIC_RELEASE);
  fx_msleep(20);          /* it sleeps between its questions whether to go, too */
  side_waits(&c->other);
  return false;
}

START_TEST(g11_a_circle_that_closes_as_teardown_begins) {
  struct wrap w;
  wrap_open(&w, NULL);
  struct late_circle c = {.a = world_on(w.outer, (oc_model_options){0}), .b = world_on(w.outer, (oc_model_options){0})};
  oc_stream s = fx_stream(w.outer);
  ck_ok(oc_model_use_stream(c.a.m, s));     /* teardown asks whether it captures, before it waits */
  oc_build *in_b = begin(&c.b, OC_BF16, ANY);
  side_start(&c.other, ask_when_told, &c);
  fx_until(__atomic_load_n(&c.begun, __ATOMIC_ACQUIRE));
  w.hook_arg = &c;
  w.hook = close_the_circle;
  ck_status(oc_model_teardown(c.a.m, NULL), OC_E_REENTRANT);
  ck_words("kept by what waits for this thread");
  ck_words("the build of bf16");
  put(&c.a, OC_BF16, ANY + 1, ANY + 1);     /* A lives */
  commit_one(in_b, build_block(in_b, 64));
  side_join(&c.other);
  ck_assert_int_eq(c.st, OC_OK);
  ck_ok(oc_model_destroy(c.b.m));
  ck_ok(oc_model_destroy(c.a.m));
  fx_stream_free(w.outer, s);
  wrap_close(&w);
}
END_TEST

/* ---- no false alarms ---- */

struct chain {
  struct world *w;
  unsigned n, open;
  oc_status st[24];
  uint64_t got[24];
};

/* Thread i builds key i, and asks for key i + 1 before it ends; the last one ends by itself. */
static void link_main(void *arg, unsigned i) {
  struct chain *c = arg;
  oc_build *b = begin(c->w, OC_BF16, ANY + i), *next = NULL;
  uint64_t out[2] = {0, 0};
  __atomic_fetch_add(&c->open, 1, __ATOMIC_ACQ_REL);
  fx_until(__atomic_load_n(&c->open, __ATOMIC_ACQUIRE) == c->n);
  c->st[i] = OC_OK;
  if (i + 1 < c->n) c->st[i] = oc_derived_begin(c->w->d, OC_BF16, ANY + i + 1, &next, out);
  else fx_msleep(30);
  c->got[i] = out[0];
  commit_one(b, build_block(b, 64));
}

/* A long way that is no circle works, and every link gets the next one's value. */
START_TEST(g11_a_chain_is_no_circle) {
  struct world w = world_open();
  struct chain c = {.w = &w, .n = 24};
  fx_threads(24, link_main, &c);
  for (unsigned i = 0; i < 24; i++) {
    ck_assert_int_eq(c.st[i], OC_OK);
    if (i < 23) ck_assert_uint_eq(c.got[i], value_of(&w, OC_BF16, ANY + i + 1));
  }
  world_close(&w);
}
END_TEST

static void wait_for_hub(void *arg, unsigned i) {
  struct chain *c = arg;
  if (i == 0) {
    oc_build *b = begin(c->w, OC_BF16, ANY);
    __atomic_store_n(&c->open, 1, __ATOMIC_RELEASE);
    fx_msleep(30);
    commit_one(b, build_block(b, 64));
    return;
  }
  fx_until(__atomic_load_n(&c->open, __ATOMIC_ACQUIRE));
  oc_build *mine = begin(c->w, OC_BF16, ANY + i), *b = NULL;
  uint64_t out[2];
  c->st[i] = i % 2 ? oc_derived_begin(c->w->d, OC_BF16, ANY, &b, out) : oc_derived_invalidate(c->w->d, ANY);
  if (b) oc_build_abort(b);                        /* its value was invalidated meanwhile */
  oc_build_abort(mine);
}

/* Many that wait for one, some to invalidate it, each with a build of its own open: all go on. */
START_TEST(g11_a_star_is_no_circle) {
  struct world w = world_open();
  struct chain c = {.w = &w, .n = 24};
  fx_threads(24, wait_for_hub, &c);
  for (unsigned i = 1; i < 24; i++)
    ck_assert_msg(c.st[i] == OC_OK || c.st[i] == OC_MISS, "thread %u: %s", i, oc_status_name(c.st[i]));
  ck_ok(oc_derived_release(w.d));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* A thread that was refused tries again once the circle is open: nothing of the refusal is left behind. */
START_TEST(g11_a_refusal_leaves_nothing_behind) {
  struct world w = world_open();
  for (unsigned i = 0; i < 1000; i++) {
    oc_build *b = begin(&w, OC_BF16, ANY), *again = NULL;
    uint64_t out[2];
    ck_status(oc_derived_begin(w.d, OC_BF16, ANY, &again, out), OC_E_REENTRANT);
    ck_status(oc_derived_invalidate(w.d, ANY), OC_E_REENTRANT);
    oc_build_abort(b);
    ck_ok(oc_derived_invalidate(w.d, ANY));
  }
  world_close(&w);
}
END_TEST

/* With racing builds there is no wait for a build; an invalidate waits still. */
START_TEST(g11_racing_builds_wait_for_nobody) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.flags = OC_MODEL_BUILD_MAY_RACE});
  oc_build *a = begin(&w, OC_BF16, ANY), *b = begin(&w, OC_BF16, ANY);
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_REENTRANT);
  oc_build_abort(a);
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_REENTRANT);
  commit_one(b, build_block(b, 64));
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* ---- cancelled threads ---- */

struct cancelled {
  struct world *w;
  oc_status (*call)(struct world *w);
  pthread_t thread;
  oc_status answer;
  bool returned;
};
static void *call_cancelled(void *arg) {
  struct cancelled *c = arg;
  c->answer = c->call(c->w);
  __atomic_store_n(&c->returned, true, __ATOMIC_RELEASE);
  pthread_testcancel();
  return NULL;
}
static void cancel_in(struct cancelled *c) {
  pthread_create(&c->thread, NULL, call_cancelled, c);
  fx_msleep(20);                /* it waits */
  pthread_cancel(c->thread);
  fx_msleep(20);
  ck_assert(!__atomic_load_n(&c->returned, __ATOMIC_ACQUIRE));
}
static void cancelled_after(struct cancelled *c) {
  void *result;
  pthread_join(c->thread, &result);
  ck_assert(c->returned);
  ck_assert_ptr_eq(result, PTHREAD_CANCELED);   /* but then */
  ck_ok(c->answer);
}

static oc_status ask_for_any(struct world *w) {
  oc_build *b;
  uint64_t out[2];
  return oc_derived_begin(w->d, OC_BF16, ANY, &b, out);
}
static oc_status settle_all(struct world *w) { return oc_derived_settle(w->d); }
static oc_status end_the_model(struct world *w) { return oc_model_teardown(w->m, NULL); }

static oc_status slow_build(oc_build *b, void *arg, uint64_t *out) {
  (void)arg;
  fx_msleep(60);                /* sleeps: a cancellation point */
  return oc_build_alloc(b, 64, 0, out);
}
static oc_status build_slowly(struct world *w) {
  uint64_t v;
  return oc_derived_get_or_build_ptr(w->d, OC_BF16, ANY + 1, slow_build, NULL, &v);
}

/* A thread that is cancelled in a wait, in a build function, in a teardown: the call ends first, and nothing is left locked,
   linked or open. */
START_TEST(a_cancelled_thread_ends_its_call_first) {
  struct world w = world_open();
  struct cancelled waits = {.w = &w, .call = ask_for_any}, builds = {.w = &w, .call = build_slowly},
                   ends = {.w = &w, .call = end_the_model};
  oc_build *b = begin(&w, OC_BF16, ANY);
  cancel_in(&waits);
  commit_one(b, build_block(b, 64));
  cancelled_after(&waits);
  cancel_in(&builds);
  cancelled_after(&builds);
  ck_ok(oc_derived_invalidate(w.d, ANY + 1));
  ck_ok(oc_model_retain(w.m, "a request"));
  cancel_in(&ends);
  ck_ok(oc_model_release_hold(w.m, "a request"));
  cancelled_after(&ends);
  ck_status(oc_model_retain(w.m, "a request"), OC_E_RELEASED);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

START_TEST(a_cancelled_thread_settles_first) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  struct world w = world_open();
  struct cancelled settles = {.w = &w, .call = settle_all};
  oc_stream s = fx_stream(w.b);
  oc_build *b = begin(&w, OC_BF16, ANY);
  uint64_t block = build_block(b, 64);
  ck_ok(oc_build_on_stream(b, s));
  fx_stall(w.b, s, true);
  commit_one(b, block);
  cancel_in(&settles);
  fx_stall(w.b, s, false);
  cancelled_after(&settles);
  ck_ok(oc_model_forget_stream(w.m, s));
  fx_stream_free(w.b, s);
  world_close(&w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("reentrant", &tc);
  tcase_add_test(tc, g11_a_build_that_waits_for_itself);
  tcase_add_test(tc, g11_another_kind_is_no_circle);
  tcase_add_test(tc, g15_a_build_that_takes_its_own_source_away);
  tcase_add_test(tc, g11_a_module_that_waits_for_itself);
  tcase_add_test(tc, s30_circles_of_any_length);
  tcase_add_test(tc, s30_an_invalidate_refused_changes_nothing);
  tcase_add_test(tc, g15_frees_count_in_circles);
  tcase_add_test(tc, g11_teardown_counts_in_circles);
  tcase_add_test(tc, g11_teardown_round_a_circle_of_two_models);
  tcase_add_test(tc, g11_a_circle_that_closes_as_teardown_begins);
  tcase_add_test(tc, g11_a_chain_is_no_circle);
  tcase_add_test(tc, g11_a_star_is_no_circle);
  tcase_add_test(tc, g11_a_refusal_leaves_nothing_behind);
  tcase_add_test(tc, g11_racing_builds_wait_for_nobody);
  tcase_add_test(tc, a_cancelled_thread_ends_its_call_first);
  tcase_add_test(tc, a_cancelled_thread_settles_first);
  return fx_run(s);
}
