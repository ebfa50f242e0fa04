/* SPDX-License-Identifier: MIT */
/*
 * Host memory runs out at the Nth request, for every N until nothing fails (G33), over a model's whole life: each call
 * says OC_E_HOST_NOMEM or works, and when there is memory again the model is torn down to nothing.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "rcu/mem.h"
#include "tests/wrap.h"

#define MiB ((size_t)1 << 20)

static struct {
  uint64_t at, count;   /* the request that fails; requests so far */
  bool armed, failed, for_good;
} fault;

static bool fails(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  if (!fault.armed) return false;
  bool hit = fault.for_good ? ++fault.count >= fault.at : ++fault.count == fault.at;
  fault.failed |= hit;
  return hit;
}

static unsigned errors_logged;
static void on_log(void *arg, int level, const char *line) {
  (void)arg;
  if (level == 0 && strstr(line, "bug")) errors_logged++;
}

/* True if it worked. */
static bool worked(oc_status st, const char *call) {
  ck_assert_msg(st >= 0 || (st == OC_E_HOST_NOMEM && fault.failed), "request %u: %s: %s: %s", (unsigned)fault.at, call,
                oc_status_name(st), oc_last_error());
  return st >= 0;
}
#define TRY(call) worked(call, #call)

static oc_status released(void *self, oc_backend *b) {
  (void)b;
  ++*(unsigned *)self;
  return OC_OK;
}

static oc_status build(oc_build *b, void *stream, uint64_t *out) {
  oc_status st = oc_build_alloc(b, 300, 0, out);
  return st ? st : oc_build_on_stream(b, stream);
}

/* What an engine does with a model. Goes on after a failure, as engines do. */
static void live(oc_backend *b, oc_model *m, oc_stream s, unsigned *resource) {
  oc_opcache *c = oc_model_opcache(m);
  oc_derived *d = oc_model_derived(m);
  oc_pool *pool = oc_model_pool(m);
  const oc_resource_ops ops = {sizeof ops, "graph", released};
  oc_devptr p = 0, q;
  oc_kernel k;
  uint64_t v[2];
  bool pushed = TRY(oc_model_push(m, &ops, resource));
  if (TRY(oc_model_retain(m, "holder"))) ck_ok(oc_model_release_hold(m, "holder"));
  TRY(oc_model_adopt_module(m, "borrowed", (oc_module)b));
  TRY(oc_opcache_scratch(c, "act", 4096, &q));
  TRY(oc_opcache_scratch(c, "act", 3 * MiB, &q));
  TRY(oc_opcache_scratch_on(c, "act", s, 4096, &q));
  (void)oc_opcache_once(c, "gate");
  (void)oc_opcache_first_shape(c, "gate", 1, 2, 3);
  oc_status st = oc_opcache_kernel(c, "none", "such", &k);
  ck_assert(st == OC_E_NOT_FOUND || st == OC_E_HOST_NOMEM);
  for (uint64_t key = 1; key <= 20; key++) TRY(oc_derived_get_or_build_ptr(d, OC_BF16, key << 20, build, s, v));
  if (TRY(oc_pool_alloc(pool, 1000, 0, &p)) && !TRY(oc_derived_insert_ptr(d, OC_BF16, p, p + 16, NULL))) v[0] = 0;
  if (TRY(oc_pool_alloc_owned(pool, "weights", 5 * MiB, 0, &q)) && !TRY(oc_pool_free_on(pool, q, s))) ck_ok(oc_pool_free(pool, q));
  if (TRY(oc_capture_enter(m, s))) {
    ck_assert_int_le(oc_derived_get_ptr(d, OC_BF16, 1 << 20, v), OC_MISS);
    oc_capture_leave(m);
  }
  TRY(oc_derived_invalidate(d, 1 << 20));
  TRY(oc_model_graphs_gone(m));
  TRY(oc_derived_settle(d));
  TRY(oc_pool_note_external(pool, (oc_devptr)1 << 50, 256, "other"));
  TRY(oc_model_forget_stream(m, s));
  TRY(oc_derived_release(d));
  TRY(oc_opcache_release(c));
  char *text = oc_pool_report_json(pool);
  if (text) oc_string_free(text);
  else ck_assert(fault.failed);
  (void)pushed;
}

/* One life with the Nth request failing; false once nothing failed. */
static bool life(oc_backend *b, oc_stream s, uint64_t at, bool for_good) {
  fault.at = at;
  fault.count = 0;
  fault.failed = false;
  fault.for_good = for_good;
  unsigned resource = 0;
  oc_model *m = NULL;
  oc_report *r = NULL;
  fault.armed = true;
  oc_model_options o = {.struct_size = sizeof o, .name = "short of memory", .arena_min = 2 * MiB, .reserve_bytes = MiB};
  if (TRY(oc_model_create(b, &o, &m))) {
    live(b, m, s, &resource);
    oc_status st = oc_model_teardown(m, &r);
    if (!TRY(st)) ck_assert_ptr_null(r);
    char *text = r ? oc_report_text(r) : NULL;
    oc_string_free(text);
    fault.armed = false;
    if (st == OC_E_HOST_NOMEM) {   /* refused: nothing was released, and the model works */
      ck_ok(oc_pool_check(oc_model_pool(m)));
      ck_ok(oc_model_enter(m));
      oc_model_leave(m);
      ck_assert_uint_eq(resource, 0);
    }
    oc_report_free(r);
    ck_ok(oc_model_destroy(m));
    ck_assert_uint_le(resource, 1);
  }
  fault.armed = false;
  ck_assert_uint_eq(fx_blocks(b), 0);
  ck_assert_uint_eq(fx_events(b), 0);
  ck_assert_uint_eq(errors_logged, 0);
  return fault.failed;
}

static void every_request(bool for_good) {
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  uint64_t n = 1;
  oc_set_log(on_log, NULL);
  oci_mem_set_fault(fails, NULL);
  while (life(b, s, n, for_good)) n++;
  ck_assert_uint_gt(n, 50);
  oci_mem_set_fault(NULL, NULL);
  oc_set_log(NULL, NULL);
  fx_stream_free(b, s);
  fx_close(b);
}

START_TEST(g33_the_nth_request_fails) { every_request(false); }
END_TEST
START_TEST(g33_all_requests_from_the_nth_fail) { every_request(true); }
END_TEST

/* A backend, likewise. */
START_TEST(g33_backends_without_memory) {
  oci_mem_set_fault(fails, NULL);
  fault.for_good = false;
  for (fault.at = 1;; fault.at++) {
    oc_backend *b = NULL;
    fault.count = 0;
    fault.failed = false;
    fault.armed = true;
    bool open = TRY(oc_backend_open_host(NULL, &b));
    fault.armed = false;
    if (open) ck_ok(oc_backend_close(b));
    else ck_assert_ptr_null(b);
    if (!fault.failed) break;
  }
  ck_assert_uint_gt(fault.at, 2);
  oci_mem_set_fault(NULL, NULL);
}
END_TEST

#define STREAMS 3u

/* True if a request failed. */
static bool teardown_with_streams(struct wrap *w, const oc_stream *s, uint64_t at) {
  oc_model *m = fx_model(w->outer);
  for (unsigned i = 0; i < STREAMS; i++) ck_ok(oc_model_use_stream(m, s[i]));
  wrap_forget(w);
  fault.at = at;
  fault.count = 0;
  fault.failed = false;
  fault.armed = true;
  oc_status st = oc_model_teardown(m, NULL);
  fault.armed = false;
  TRY(st);
  ck_assert_uint_eq(wrap_calls(w, "synchronize"), st ? 0 : STREAMS);
  ck_ok(oc_model_destroy(m));
  return fault.failed;
}

/* However little memory there is, a teardown that goes on has waited for every stream, and one is refused that is under a
   capture (G22). */
START_TEST(g22_teardown_waits_for_streams_without_memory) {
  if (!fx_can(FX_CAPTURE)) { fx_skip("needs captures by order"); return; }
  struct wrap w;
  oc_stream s[STREAMS];
  wrap_open(&w, NULL);
  for (unsigned i = 0; i < STREAMS; i++) s[i] = fx_stream(w.inner);
  fault.for_good = false;
  oci_mem_set_fault(fails, NULL);
  for (uint64_t at = 1; teardown_with_streams(&w, s, at); at++) {}
  fault.at = 1;
  fault.for_good = true;
  oc_model *m = fx_model(w.outer);
  ck_ok(oc_model_use_stream(m, s[0]));
  fx_capturing(w.inner, s[0], true);
  fault.armed = true;
  oc_status st = oc_model_teardown(m, NULL);
  fault.armed = false;
  ck_status(st, OC_E_BUSY);
  fx_capturing(w.inner, s[0], false);
  oci_mem_set_fault(NULL, NULL);
  ck_ok(oc_model_destroy(m));
  for (unsigned i = 0; i < STREAMS; i++) fx_stream_free(w.inner, s[i]);
  wrap_close(&w);
}
END_TEST

#define OWNERS 100u

/* A model of OWNERS owners, each of two blocks from two sites. */
static oc_model *owned(oc_backend *b) {
  oc_model *m = fx_model(b);
  char name[24];
  oc_devptr p;
  for (unsigned i = 0; i < 2 * OWNERS; i++) {
    const oc_site site = {"loader.c", 1 + i / OWNERS, "load"};
    snprintf(name, sizeof name, "tensor %u", i % OWNERS);
    ck_ok(oc_pool_alloc_owned_at(oc_model_pool(m), name, 256, 0, &site, &p));
  }
  return m;
}

static void each_owner_has_its_row(const oc_report *r) {
  unsigned found = 0;
  for (size_t i = 0; i < oc_report_count(r); i++) {
    const char *label, *detail;
    char name[24];
    ck_ok(oc_report_row(r, i, &label, NULL, &detail));
    snprintf(name, sizeof name, "tensor %u", found);
    if (strcmp(label, name) != 0) continue;
    ck_assert_str_eq(detail, "2 blocks, 512 bytes");
    found++;
  }
  ck_assert_uint_eq(found, OWNERS);
}

/* Refused before anything is released, or done: from there on memory makes it faster, not possible. */
START_TEST(g33_owners_are_summed_without_memory) {
  oc_backend *b = fx_open(NULL);
  unsigned refused = 0, without = 0;
  oci_mem_set_fault(fails, NULL);
  fault.for_good = true;
  for (fault.at = 1;; fault.at++) {
    oc_model *m = owned(b);
    oc_report *r = NULL;
    fault.count = 0;
    fault.failed = false;
    fault.armed = true;
    bool done = TRY(oc_model_teardown(m, &r));
    fault.armed = false;
    if (done) each_owner_has_its_row(r);
    refused += !done;
    without += done && fault.failed;
    oc_report_free(r);
    ck_ok(oc_model_destroy(m));
    if (!fault.failed) break;
  }
  oci_mem_set_fault(NULL, NULL);
  ck_assert(refused >= 3 && without >= 3);
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("model_nomem");
  TCase *t = tcase_create("nomem");
  tcase_set_timeout(t, 60);
  suite_add_tcase(s, t);
  tcase_add_test(t, g33_the_nth_request_fails);
  tcase_add_test(t, g33_all_requests_from_the_nth_fail);
  tcase_add_test(t, g33_backends_without_memory);
  tcase_add_test(t, g22_teardown_waits_for_streams_without_memory);
  tcase_add_test(t, g33_owners_are_summed_without_memory);
  return s;
}

int main(void) { return fx_run(suite()); }
