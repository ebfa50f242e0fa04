/* SPDX-License-Identifier: MIT */
/* NULL and nonsense in every argument of every public function (G33): a status and words, no crash, nothing changed. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tests/fixture.h"

#define MiB ((size_t)1 << 20)

/* Each call is INVALID (or what is given), and says the function's name or what is wrong. */
#define refused(call) ck_status(call, OC_E_INVALID)

static oc_status release_nothing(void *self, oc_backend *b) {
  (void)self;
  (void)b;
  return OC_OK;
}
static oc_status build_nothing(oc_build *b, void *arg, uint64_t *out) {
  (void)b;
  (void)arg;
  (void)out;
  return OC_OK;   /* and no value */
}
static oc_status pair_of_nothing(oc_build *b, void *arg, uint64_t out[2]) {
  (void)b;
  (void)arg;
  out[0] = out[1] = 0;
  return OC_OK;
}

static oc_backend *b;
static oc_model *m;

static void setup(void) {
  b = fx_open(NULL);
  m = fx_model(b);
  fx_load(m, "test");
}

/* What is left afterwards works, and is what was there before. */
static void teardown(void) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  ck_assert_uint_eq(s.live_blocks, 0);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 0);
  ck_assert_uint_eq(oc_opcache_kernels(oc_model_opcache(m)), 0);
  ck_assert_uint_eq(oc_opcache_scratches(oc_model_opcache(m)), 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}

START_TEST(statuses) {
  ck_assert_str_eq(oc_status_name(OC_E_BUSY), "OC_E_BUSY");
  for (int s = -200; s < 200; s++) {
    ck_assert_str_ne(oc_status_name((oc_status)s), "");
    ck_assert_str_ne(oc_status_text((oc_status)s), "");
  }
  ck_assert_str_eq(oc_status_name((oc_status)12345), "OC_E_?");
  ck_assert_str_ne(oc_version(), "");
  ck_assert_ptr_nonnull(oc_last_error());
  oc_set_log(NULL, NULL);
  oc_set_log(NULL, &b);
}
END_TEST

START_TEST(backends) {
  const oc_backend_ops ops = *oc_backend_table(b);
  oc_backend *out;
  oc_model *n;
  refused(oc_backend_create(NULL, NULL, &out));
  refused(oc_backend_create(&ops, NULL, NULL));
  refused(oc_backend_open_host(NULL, NULL));
  refused(oc_backend_open_cuda(NULL, NULL));
  oc_cuda_options cuda = {0};
  refused(oc_backend_open_cuda(&cuda, &out));
  refused(oc_backend_close(NULL));
  ck_assert_ptr_null(oc_backend_table(NULL));
  ck_assert_ptr_null(oc_backend_self(NULL));
  ck_assert_ptr_null(oc_cuda_context(NULL));
  refused(oc_model_create(NULL, NULL, &n));
  refused(oc_model_create(b, NULL, NULL));
  refused(oc_host_get_stats(NULL, NULL));
  oc_host_stats s = {.struct_size = sizeof s};
  refused(oc_host_get_stats(NULL, &s));
  refused(oc_host_stall(NULL, NULL, true));
  refused(oc_host_step(NULL, NULL, 1));
  refused(oc_host_fail(NULL, "alloc", 1, 1, OC_E_IO));
  refused(oc_host_delay(NULL, "alloc", 1));
  refused(oc_host_set_capturing(NULL, NULL, true));
  ck_assert_uint_eq(oc_host_calls(NULL, "alloc"), 0);
  if (fx_which() != FX_HOST) return;
  refused(oc_host_get_stats(b, NULL));
  s.struct_size = 0;
  refused(oc_host_get_stats(b, &s));
  refused(oc_host_fail(b, NULL, 1, 1, OC_E_IO));
  ck_status(oc_host_fail(b, "no entry", 1, 1, OC_E_IO), OC_E_NOT_FOUND);
  refused(oc_host_delay(b, NULL, 1));
  refused(oc_host_stall(b, (oc_stream)&s, true));
  refused(oc_host_step(b, NULL, 1));
  refused(oc_host_set_capturing(b, (oc_stream)&s, true));
  ck_assert_uint_eq(oc_host_calls(b, NULL), 0);
  ck_assert_uint_eq(oc_host_calls(b, "no entry"), 0);
}
END_TEST

START_TEST(models) {
  oc_module h;
  int image = 0;
  oc_report *r = (oc_report *)&r;
  const oc_resource_ops ops = {sizeof ops, NULL, release_nothing}, none = {sizeof ops, NULL, NULL};
  ck_assert_uint_eq(oc_model_generation(NULL), 0);
  ck_assert_ptr_null(oc_model_opcache(NULL));
  ck_assert_ptr_null(oc_model_derived(NULL));
  ck_assert_ptr_null(oc_model_pool(NULL));
  refused(oc_model_load_module(NULL, "x", &image, 4));
  refused(oc_model_load_module(m, NULL, &image, 4));
  refused(oc_model_load_module(m, "x", NULL, 4));
  refused(oc_model_load_module(m, "x", &image, 0));
  ck_assert_int_lt(oc_model_load_module(m, "x", &image, sizeof image), 0);   /* no image at all */
  refused(oc_model_adopt_module(NULL, "x", (oc_module)&image));
  refused(oc_model_adopt_module(m, NULL, (oc_module)&image));
  refused(oc_model_adopt_module(m, "x", NULL));
  refused(oc_model_module(NULL, "test", &h));
  refused(oc_model_module(m, NULL, &h));
  refused(oc_model_module(m, "test", NULL));
  refused(oc_model_retain(NULL, "x"));
  refused(oc_model_retain(m, NULL));
  refused(oc_model_release_hold(NULL, "x"));
  refused(oc_model_release_hold(m, NULL));
  refused(oc_model_use_stream(NULL, NULL));
  refused(oc_model_forget_stream(NULL, NULL));
  refused(oc_model_push(NULL, &ops, &image));
  refused(oc_model_push(m, NULL, &image));
  refused(oc_model_push(m, &none, &image));
  refused(oc_model_pop(NULL, &image));
  ck_status(oc_model_pop(m, NULL), OC_E_NOT_FOUND);
  ck_ok(oc_model_push(m, &ops, NULL));   /* a resource without a self is one */
  ck_status(oc_model_push(m, &ops, NULL), OC_EXISTS);
  ck_ok(oc_model_pop(m, NULL));
  refused(oc_model_enter(NULL));
  oc_model_leave(NULL);
  refused(oc_capture_enter(NULL, NULL));
  oc_capture_leave(NULL);
  refused(oc_model_graphs_gone(NULL));
  refused(oc_model_teardown(NULL, &r));
  ck_assert_ptr_null(r);
  refused(oc_model_teardown(NULL, NULL));
  refused(oc_model_destroy(NULL));
}
END_TEST

START_TEST(reports) {
  const char *label, *detail;
  oc_status st;
  ck_assert_uint_eq(oc_report_count(NULL), 0);
  refused(oc_report_row(NULL, 0, &label, &st, &detail));
  ck_assert_uint_eq(oc_report_arenas_freed(NULL) + oc_report_bytes_freed(NULL) + oc_report_blocks_swept(NULL) +
                    oc_report_modules_unloaded(NULL), 0);
  ck_assert_ptr_null(oc_report_text(NULL));
  ck_assert_ptr_null(oc_report_json(NULL));
  oc_report_free(NULL);
  oc_string_free(NULL);
}
END_TEST

START_TEST(op_caches) {
  oc_opcache *c = oc_model_opcache(m);
  oc_kernel_key key = OC_KERNEL_KEY("test", "add"), half = {"test", NULL, 0, NULL, NULL}, other = {NULL, "add", 0, NULL, NULL};
  oc_kernel_key *keys[] = {NULL};
  oc_tag_key tag = OC_TAG_KEY("t"), no_tag = {NULL, 0};
  oc_kernel k;
  oc_devptr p;
  char buf[8];
  refused(oc_opcache_kernel(NULL, "test", "add", &k));
  refused(oc_opcache_kernel(c, NULL, "add", &k));
  refused(oc_opcache_kernel(c, "test", NULL, &k));
  refused(oc_opcache_kernel(c, "test", "add", NULL));
  refused(oc_opcache_kernel_k(NULL, &key, &k));
  refused(oc_opcache_kernel_k(c, NULL, &k));
  refused(oc_opcache_kernel_k(c, &key, NULL));
  refused(oc_opcache_kernel_k(c, &half, &k));
  refused(oc_opcache_kernel_k(c, &other, &k));
  refused(oc_opcache_warm(NULL, keys, 1));
  refused(oc_opcache_warm(c, NULL, 1));
  refused(oc_opcache_warm(c, keys, 1));
  ck_ok(oc_opcache_warm(c, NULL, 0));
  refused(oc_opcache_scratch_at(NULL, "t", 16, NULL, &p));
  refused(oc_opcache_scratch_at(c, NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_at(c, "t", 0, NULL, &p));
  refused(oc_opcache_scratch_at(c, "t", 16, NULL, NULL));
  ck_assert_int_lt(oc_opcache_scratch_at(c, "t", SIZE_MAX, NULL, &p), 0);
  ck_assert_int_lt(oc_opcache_scratch_at(c, "t", SIZE_MAX - 300, NULL, &p), 0);
  refused(oc_opcache_scratch_k_at(NULL, &tag, 16, NULL, &p));
  refused(oc_opcache_scratch_k_at(c, NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_k_at(c, &no_tag, 16, NULL, &p));
  refused(oc_opcache_scratch_k_at(c, &tag, 0, NULL, &p));
  refused(oc_opcache_scratch_k_at(c, &tag, 16, NULL, NULL));
  refused(oc_opcache_scratch_on_at(NULL, "t", NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_on_at(c, NULL, NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_on_at(c, "t", NULL, 0, NULL, &p));
  refused(oc_opcache_scratch_on_at(c, "t", NULL, 16, NULL, NULL));
  refused(oc_opcache_scratch_on_k_at(NULL, &tag, NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_on_k_at(c, NULL, NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_on_k_at(c, &no_tag, NULL, 16, NULL, &p));
  refused(oc_opcache_scratch_on_k_at(c, &tag, NULL, 0, NULL, &p));
  refused(oc_opcache_scratch_on_k_at(c, &tag, NULL, 16, NULL, NULL));
  ck_assert(!oc_opcache_alloc_fell_back(NULL));
  oc_opcache_note_alloc_fallback(NULL);
  ck_assert(!oc_opcache_once(NULL, "x") && !oc_opcache_once(c, NULL) && !oc_opcache_once_k(NULL, &tag));
  ck_assert(!oc_opcache_once_k(c, NULL) && !oc_opcache_once_k(c, &no_tag));
  ck_assert(!oc_opcache_first_n(NULL, "x", 1) && !oc_opcache_first_n(c, NULL, 1) && !oc_opcache_first_n(c, "x", 0));
  ck_assert(!oc_opcache_first_n_k(NULL, &tag, 1) && !oc_opcache_first_n_k(c, NULL, 1) && !oc_opcache_first_n_k(c, &no_tag, 1));
  ck_assert(!oc_opcache_first_shape(NULL, "x", 1, 1, 1) && !oc_opcache_first_shape(c, NULL, 1, 1, 1));
  ck_assert(!oc_opcache_first_shape_k(NULL, &tag, 1, 1, 1) && !oc_opcache_first_shape_k(c, NULL, 1, 1, 1));
  ck_assert(!oc_opcache_first_shape_k(c, &no_tag, 1, 1, 1));
  refused(oc_opcache_release(NULL));
  (void)oc_opcache_label(NULL);
  ck_assert_uint_eq(oc_opcache_kernels(NULL) + oc_opcache_scratches(NULL), 0);
  ck_assert_int_lt(oc_opcache_describe(NULL, buf, sizeof buf), 0);
  ck_assert_int_lt(oc_opcache_describe(c, NULL, 8), 0);
  ck_assert_int_gt(oc_opcache_describe(c, NULL, 0), 8);
  ck_assert_int_gt(oc_opcache_describe(c, buf, sizeof buf), 8);
  ck_assert_uint_eq(strlen(buf), sizeof buf - 1);
}
END_TEST

START_TEST(kinds_and_derived_weights) {
  oc_derived *d = oc_model_derived(m);
  oc_kind kind;
  uint64_t v[2] = {42, 42}, one[2] = {4096, 0}, zeros[2] = {0, 0}, keys[] = {1, 0};
  char buf[8];
  refused(oc_kind_register(NULL, OC_PTR, &kind));
  refused(oc_kind_register("", OC_PTR, &kind));
  refused(oc_kind_register("x", (oc_arity)0, &kind));
  refused(oc_kind_register("x", (oc_arity)3, &kind));
  refused(oc_kind_register("x", OC_PTR, NULL));
  ck_status(oc_kind_register("bf16", OC_PAIR, &kind), OC_E_KIND);
  refused(oc_derived_get_ptr(NULL, OC_BF16, 1, v));
  refused(oc_derived_get_ptr(d, OC_BF16, 0, v));
  refused(oc_derived_get_ptr(d, OC_BF16, 1, NULL));
  refused(oc_derived_get_pair(NULL, OC_ROWWISE_FP8, 1, v));
  refused(oc_derived_get_pair(d, OC_ROWWISE_FP8, 0, v));
  refused(oc_derived_get_pair(d, OC_ROWWISE_FP8, 1, NULL));
  refused(oc_derived_get_ptr_on(NULL, OC_BF16, 1, NULL, v));
  refused(oc_derived_get_ptr_on(d, OC_BF16, 1, NULL, NULL));
  refused(oc_derived_get_pair_on(NULL, OC_ROWWISE_FP8, 1, NULL, v));
  refused(oc_derived_get_pair_on(d, OC_ROWWISE_FP8, 1, NULL, NULL));
  const oc_kind unknown[] = {4, 15, 255, 256, UINT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    ck_status(oc_derived_get_ptr(d, unknown[i], 1, v), OC_E_KIND);
    ck_status(oc_derived_get_pair_on(d, unknown[i], 1, NULL, v), OC_E_KIND);
    ck_status(oc_derived_insert_ptr(d, unknown[i], 1, 4096, v), OC_E_KIND);
    ck_status(oc_derived_insert_pair(d, unknown[i], 1, one, v), OC_E_KIND);
    oc_build *none;
    ck_status(oc_derived_begin(d, unknown[i], 1, &none, v), OC_E_KIND);
    ck_status(oc_derived_get_or_build_ptr(d, unknown[i], 1, build_nothing, NULL, v), OC_E_KIND);
  }
  ck_status(oc_derived_insert_ptr(d, OC_ROWWISE_FP8, 1, 4096, v), OC_E_KIND);
  ck_status(oc_derived_insert_pair(d, OC_BF16, 1, one, v), OC_E_KIND);
  refused(oc_derived_insert_ptr(NULL, OC_BF16, 1, 4096, v));
  refused(oc_derived_insert_ptr(d, OC_BF16, 0, 4096, v));
  refused(oc_derived_insert_ptr(d, OC_BF16, 1, 0, v));
  refused(oc_derived_insert_pair(NULL, OC_ROWWISE_FP8, 1, one, v));
  refused(oc_derived_insert_pair(d, OC_ROWWISE_FP8, 0, one, v));
  refused(oc_derived_insert_pair(d, OC_ROWWISE_FP8, 1, NULL, v));
  refused(oc_derived_insert_pair(d, OC_ROWWISE_FP8, 1, zeros, v));
  refused(oc_derived_get_or_build_ptr_at(NULL, OC_BF16, 1, build_nothing, NULL, NULL, v));
  refused(oc_derived_get_or_build_ptr_at(d, OC_BF16, 0, build_nothing, NULL, NULL, v));
  refused(oc_derived_get_or_build_ptr_at(d, OC_BF16, 1, NULL, NULL, NULL, v));
  refused(oc_derived_get_or_build_ptr_at(d, OC_BF16, 1, build_nothing, NULL, NULL, NULL));
  refused(oc_derived_get_or_build_ptr_at(d, OC_BF16, 1, build_nothing, NULL, NULL, v));   /* no value */
  refused(oc_derived_get_or_build_pair_at(NULL, OC_ROWWISE_FP8, 1, pair_of_nothing, NULL, NULL, v));
  refused(oc_derived_get_or_build_pair_at(d, OC_ROWWISE_FP8, 0, pair_of_nothing, NULL, NULL, v));
  refused(oc_derived_get_or_build_pair_at(d, OC_ROWWISE_FP8, 1, NULL, NULL, NULL, v));
  refused(oc_derived_get_or_build_pair_at(d, OC_ROWWISE_FP8, 1, pair_of_nothing, NULL, NULL, NULL));
  refused(oc_derived_get_or_build_pair_at(d, OC_ROWWISE_FP8, 1, pair_of_nothing, NULL, NULL, v));
  refused(oc_derived_invalidate(NULL, 1));
  refused(oc_derived_invalidate(d, 0));
  refused(oc_derived_invalidate_n(NULL, keys, 1));
  refused(oc_derived_invalidate_n(d, NULL, 1));
  refused(oc_derived_invalidate_n(d, keys, 2));
  ck_ok(oc_derived_invalidate_n(d, NULL, 0));
  refused(oc_derived_settle(NULL));
  refused(oc_derived_release(NULL));
  ck_assert_uint_eq(oc_derived_len(NULL), 0);
  (void)oc_derived_is_empty(NULL);
  (void)oc_derived_label(NULL);
  ck_assert_int_lt(oc_derived_describe(NULL, buf, sizeof buf), 0);
  ck_assert_int_lt(oc_derived_describe(d, NULL, 8), 0);
  ck_assert_int_gt(oc_derived_describe(d, NULL, 0), 8);
  ck_assert_uint_eq(v[0] + v[1], 84);
}
END_TEST

START_TEST(builds) {
  oc_derived *d = oc_model_derived(m);
  oc_build *build = (oc_build *)&build;
  uint64_t v[2] = {42, 42}, zeros[2] = {0, 0};
  oc_devptr p = 42;
  refused(oc_derived_begin_at(NULL, OC_BF16, 1, NULL, &build, v));
  refused(oc_derived_begin_at(d, OC_BF16, 0, NULL, &build, v));
  refused(oc_derived_begin_at(d, OC_BF16, 1, NULL, NULL, v));
  refused(oc_derived_begin_at(d, OC_BF16, 1, NULL, &build, NULL));
  ck_assert_ptr_eq(build, (oc_build *)&build);
  ck_status(oc_derived_begin_at(d, OC_BF16, 1, NULL, &build, v), OC_MISS);
  refused(oc_build_alloc_at(NULL, 16, 0, NULL, &p));
  refused(oc_build_alloc_at(build, 16, 0, NULL, NULL));
  refused(oc_build_alloc_at(build, 0, 0, NULL, &p));
  refused(oc_build_alloc_at(build, 16, 3, NULL, &p));
  refused(oc_build_on_stream(NULL, NULL));
  refused(oc_build_commit(NULL, zeros, NULL));
  refused(oc_build_commit(build, NULL, NULL));
  refused(oc_build_commit(build, zeros, NULL));   /* and the build is still open */
  ck_ok(oc_build_alloc_at(build, 16, 0, NULL, &p));
  oc_build_abort(NULL);
  oc_build_abort(build);
  ck_assert_uint_eq(v[0] + v[1], 84);
}
END_TEST

START_TEST(pools) {
  oc_pool *p = oc_model_pool(m);
  oc_devptr out;
  oc_pool_stats s = {.struct_size = sizeof s};
  refused(oc_pool_alloc_at(NULL, 16, 0, NULL, &out));
  refused(oc_pool_alloc_at(p, 0, 0, NULL, &out));
  refused(oc_pool_alloc_at(p, 16, 5, NULL, &out));
  refused(oc_pool_alloc_at(p, 16, 0, NULL, NULL));
  refused(oc_pool_alloc_owned_at(NULL, "x", 16, 0, NULL, &out));
  refused(oc_pool_alloc_owned_at(p, NULL, 16, 0, NULL, &out));
  refused(oc_pool_alloc_owned_at(p, "x", 0, 0, NULL, &out));
  refused(oc_pool_alloc_owned_at(p, "x", 16, 0, NULL, NULL));
  refused(oc_pool_free(NULL, 4096));
  refused(oc_pool_free(p, 0));
  ck_status(oc_pool_free(p, 4096), OC_E_NOT_OWNED);
  refused(oc_pool_free_on(NULL, 4096, NULL));
  refused(oc_pool_free_on(p, 0, NULL));
  ck_status(oc_pool_free_on(p, 4096, NULL), OC_E_NOT_OWNED);
  refused(oc_pool_note_external_at(NULL, 4096, 16, "x", NULL));
  refused(oc_pool_note_external_at(p, 0, 16, "x", NULL));
  refused(oc_pool_note_external_at(p, 4096, 0, "x", NULL));
  refused(oc_pool_note_external_at(p, 4096, SIZE_MAX, "x", NULL));
  refused(oc_pool_forget_external(NULL, 4096));
  ck_status(oc_pool_forget_external(p, 4096), OC_E_NOT_OWNED);
  ck_assert_int_lt(oc_pool_forget_external(p, 0), 0);
  refused(oc_pool_get_stats(NULL, &s));
  refused(oc_pool_get_stats(p, NULL));
  refused(oc_pool_check(NULL));
  refused(oc_pool_each_block(NULL, NULL, NULL));
  ck_assert_ptr_null(oc_pool_report_text(NULL, 0));
  ck_assert_ptr_null(oc_pool_report_json(NULL));
  /* sites of nothing are sites */
  const oc_site empty = {0}, no_func = {"file.c", 7, NULL};
  ck_ok(oc_pool_alloc_at(p, 16, 0, &empty, &out));
  ck_ok(oc_pool_free(p, out));
  ck_ok(oc_pool_alloc_owned_at(p, "x", 16, 0, &no_func, &out));
  char *text = oc_pool_report_text(p, 0);
  ck_assert_ptr_nonnull(strstr(text, "file.c"));
  oc_string_free(text);
  ck_ok(oc_pool_free(p, out));
}
END_TEST

/* Nonsense that fills buffers: very long names and tags. */
START_TEST(very_long_names) {
  static char name[5000];
  memset(name, 'n', sizeof name - 1);
  oc_model_options o = {.struct_size = sizeof o, .name = name, .teardown_wait_ms = 1};
  oc_model *n;
  oc_devptr p;
  oc_kernel k;
  oc_kind kind;
  ck_ok(oc_model_create(b, &o, &n));
  fx_load(n, name);
  ck_ok(oc_opcache_kernel(oc_model_opcache(n), name, "add", &k));
  ck_status(oc_opcache_kernel(oc_model_opcache(n), name, name, &k), OC_E_NOT_FOUND);
  ck_ok(oc_opcache_scratch(oc_model_opcache(n), name, 16, &p));
  ck_assert(oc_opcache_once(oc_model_opcache(n), name));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(n), name, 16, 0, &p));
  const oc_site site = {name, 1, name};
  ck_ok(oc_pool_alloc_at(oc_model_pool(n), 16, 0, &site, &p));
  oc_status st = oc_kind_register(name, OC_PTR, &kind);
  ck_assert(st == OC_OK || st == OC_E_INVALID);
  ck_ok(oc_model_retain(n, name));
  ck_status(oc_model_teardown(n, NULL), OC_E_BUSY);
  ck_assert_uint_lt(strlen(oc_last_error()), 4096);
  ck_ok(oc_model_release_hold(n, name));
  oc_report *r;
  ck_ok(oc_model_teardown(n, &r));
  char *text = oc_report_text(r), *json = oc_report_json(r);
  ck_assert_ptr_nonnull(text);
  ck_assert_ptr_nonnull(json);
  oc_string_free(text);
  oc_string_free(json);
  oc_report_free(r);
  ck_ok(oc_model_destroy(n));
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("null");
  TCase *t = tcase_create("null");
  tcase_add_checked_fixture(t, setup, teardown);
  suite_add_tcase(s, t);
  tcase_add_test(t, statuses);
  tcase_add_test(t, backends);
  tcase_add_test(t, models);
  tcase_add_test(t, reports);
  tcase_add_test(t, op_caches);
  tcase_add_test(t, kinds_and_derived_weights);
  tcase_add_test(t, builds);
  tcase_add_test(t, pools);
  tcase_add_test(t, very_long_names);
  return s;
}

int main(void) { return fx_run(suite()); }
