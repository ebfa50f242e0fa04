/* SPDX-License-Identifier: MIT */
/*
 * No call takes longer because there is more of what it is not about: 200,000 of everything that a model keeps by name, by
 * address or by stream. No clock is read: each test takes a second or two, and Check stops it after 30. If a call looked at all
 * there is, it would take minutes: a pass over 200,000 records is 0.1 to 0.3 ms. Under a sanitizer there are fewer, and only
 * what comes out is looked at.
 */
#include "config.h"

#include "tests/world.h"

#define MANY 200000u

static const char *numbered(const char *what, unsigned i) {
  static char name[32];
  snprintf(name, sizeof name, "%s %u", what, i);
  return name;
}

/* Loaded, found, asked for a kernel; and a name that is not there. */
START_TEST(modules) {
  struct world w = world_open();
  const unsigned n = fx_scale(MANY);
  oc_module first = NULL, h;
  oc_kernel k;
  oc_opcache *c = oc_model_opcache(w.m);
  for (unsigned i = 0; i < n; i++) {
    if (i % 10 == 0) fx_load(w.m, numbered("module", i));
    else ck_ok(oc_model_adopt_module(w.m, numbered("module", i), first));
    if (!first) ck_ok(oc_model_module(w.m, numbered("module", 0), &first));
  }
  for (unsigned i = 0; i < n; i++) {
    ck_ok(oc_model_module(w.m, numbered("module", i), &h));
    ck_assert((h == first) == (i == 0 || i % 10 != 0));
    ck_ok(oc_opcache_kernel(c, numbered("module", i), "add", &k));
    ck_status(oc_model_adopt_module(w.m, numbered("module", i), first), OC_EXISTS);
    ck_status(oc_opcache_kernel(c, numbered("none", i), "add", &k), OC_E_NOT_FOUND);
  }
  ck_assert_uint_eq(oc_opcache_kernels(c), n);
  world_close(&w);
}
END_TEST

START_TEST(holds) {
  struct world w = world_open();
  const unsigned n = fx_scale(MANY);
  for (unsigned i = 0; i < n; i++) ck_ok(oc_model_retain(w.m, numbered("holder", i)));
  for (unsigned i = 0; i < n; i++) {
    ck_ok(oc_model_retain(w.m, numbered("holder", n - 1 - i)));
    ck_ok(oc_model_release_hold(w.m, numbered("holder", i)));
    ck_status(oc_model_release_hold(w.m, numbered("nobody", i)), OC_E_NOT_FOUND);
  }
  for (unsigned i = 0; i < n; i += 2) ck_ok(oc_model_release_hold(w.m, numbered("holder", i)));
  for (unsigned i = n - 1 - n % 2; i < n; i -= 2) ck_ok(oc_model_release_hold(w.m, numbered("holder", i)));
  ck_status(oc_model_release_hold(w.m, numbered("holder", 0)), OC_E_NOT_FOUND);
  world_close(&w);
}
END_TEST

struct pushed {
  unsigned *next;    /* to be released: the newest that is left */
  unsigned number;
};

static oc_status release(void *self, oc_backend *b) {
  struct pushed *p = self;
  (void)b;
  ck_assert_uint_eq(p->number, *p->next);
  *p->next -= 2;
  return OC_OK;
}

/* Every second one is popped, oldest first; the others are released, newest first. */
START_TEST(resources) {
  static struct pushed all[MANY];
  struct world w = world_open();
  const oc_resource_ops ops = {sizeof ops, "resource", release};
  const unsigned n = fx_scale(MANY);
  unsigned next = n - 1;
  for (unsigned i = 0; i < n; i++) {
    all[i] = (struct pushed){&next, i};
    ck_ok(oc_model_push(w.m, &ops, &all[i]));
  }
  for (unsigned i = 0; i < n; i += 2) {
    ck_status(oc_model_push(w.m, &ops, &all[i]), OC_EXISTS);
    ck_ok(oc_model_pop(w.m, &all[i]));
    ck_status(oc_model_pop(w.m, &all[i]), OC_E_NOT_FOUND);
  }
  ck_ok(oc_model_destroy(w.m));
  ck_assert_uint_eq(next, UINT32_MAX);
  fx_close(w.b);
}
END_TEST

/* Blocks of many owners, from several sites: a row an owner in the report, in the order in which they came. */
START_TEST(owners) {
  struct world w = world_open();
  oc_report *r;
  oc_devptr p;
  const char *label, *detail;
  const unsigned n = fx_scale(MANY);
  for (unsigned i = 0; i < 3 * n; i++) {
    const oc_site site = {"loader.c", 1 + i / n, "load"};
    ck_ok(oc_pool_alloc_owned_at(w.p, numbered("tensor", i % n), 256, 0, &site, &p));
  }
  ck_ok(oc_model_teardown(w.m, &r));
  size_t at = 0;
  for (unsigned i = 0; i < n; i++) {
    do ck_ok(oc_report_row(r, at++, &label, NULL, &detail));
    while (i == 0 && strcmp(label, "tensor 0") != 0);
    ck_assert_str_eq(label, numbered("tensor", i));
    ck_assert_str_eq(detail, "3 blocks, 768 bytes");
  }
  oc_report_free(r);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

/* A stream is forgotten beside buffers of other tags, each of which was outgrown once. */
START_TEST(scratch) {
  struct world w = world_open();
  oc_opcache *c = oc_model_opcache(w.m);
  oc_stream s = fx_stream(w.b);
  oc_devptr p;
  const unsigned n = fx_scale(MANY);
  for (unsigned i = 0; i < n; i++) {
    ck_ok(oc_opcache_scratch(c, numbered("tag", i), 256, &p));
    ck_ok(oc_opcache_scratch(c, numbered("tag", i), 257, &p));
  }
  for (unsigned i = 0; i < n; i += 10) {
    ck_ok(oc_opcache_scratch_on(c, numbered("tag", i), s, 256, &p));
    ck_ok(oc_opcache_scratch_on(c, numbered("tag", i), s, 257, &p));
    ck_assert_uint_eq(oc_opcache_scratches(c), n + 1);
    ck_ok(oc_model_forget_stream(w.m, s));
    ck_assert_uint_eq(oc_opcache_scratches(c), n);
  }
  fx_stream_free(w.b, s);
  world_close(&w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("linear", &tc);
  tcase_set_timeout(tc, 30);
  tcase_add_test(tc, modules);
  tcase_add_test(tc, holds);
  tcase_add_test(tc, resources);
  tcase_add_test(tc, owners);
  tcase_add_test(tc, scratch);
  return fx_run(s);
}
