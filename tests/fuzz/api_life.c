/* SPDX-License-Identifier: MIT */
/* Steps: guards, captures, holders, resources; the model's end and the next one's begin. */
#include "config.h"

#include "tests/fuzz/api.h"

static const char *const holders[HOLDERS] = {"graph cache", "speculator"};

/* ---- guards, captures, holders, resources ---- */

void do_guard(void) {
  if (f.guards < DEPTH_MOST && below(3) == 0) {
    bool model = below(2);
    oc_status st = OC_OK;
    if (model) st = must("model_enter", oc_model_enter(f.m), torn(), one(OC_OK));
    else oc_guard_enter();
    f.guards += st == OC_OK;
    f.entered += model && st == OC_OK;
    return;
  }
  if (f.entered && below(2)) oc_model_leave(f.m);
  else oc_guard_leave();                 /* one too many is ignored */
  f.guards -= f.guards > 0;
  f.entered = f.entered < f.guards ? f.entered : f.guards;
}

void do_capture(void) {
  if (f.captures < DEPTH_MOST && below(3) == 0) {
    f.captures += must("capture_enter", oc_capture_enter(f.m, driver_stream(below(STREAMS))), torn(), one(OC_OK)) == OC_OK;
    return;
  }
  oc_capture_leave(f.m);
  f.captures -= f.captures > 0;
}

void do_graphs_gone(void) {
  oc_status st = oc_model_graphs_gone(f.m);
  must("graphs_gone", st, waits() | (f.captures ? one(OC_E_BUSY) : 0), one(OC_OK));
  if (!st) plain_graphs_gone(&f.p);
  else if (f.d.met) {                    /* the marks of captures may be gone, and blocks be retired for them no longer */
    for (int i = 0; i < BLOCKS; i++)
      if (f.p.block[i].state == RETIRED) f.p.block[i].state = MAYBE;
    f.spoilt = true;
  }
}

void do_hold(void) {
  unsigned i = below(HOLDERS);
  if (below(2)) {
    f.holds[i] += must("retain", oc_model_retain(f.m, holders[i]), torn(), one(OC_OK)) == OC_OK;
    return;
  }
  oc_status st = oc_model_release_hold(f.m, holders[i]);
  must("release_hold", st, 0, one(f.holds[i] ? OC_OK : OC_E_NOT_FOUND) | torn());
  f.holds[i] -= st == OC_OK;
}

void let_holders_go(void) {
  for (int i = 0; i < HOLDERS; i++)
    for (; f.holds[i]; f.holds[i]--) must("release_hold", oc_model_release_hold(f.m, holders[i]), 0, one(OC_OK));
}

static oc_status let_go(void *self, oc_backend *b) {
  bool *on = self;
  FUZZ_CHECK(*on && b == f.b, "released twice, or never pushed");
  *on = false;
  return OC_OK;
}

void do_resource(void) {
  static const oc_resource_ops ops = {.struct_size = sizeof ops, .label = "graphs", .release = let_go};
  unsigned i = below(RESOURCES);
  if (below(2)) {
    oc_status st = oc_model_push(f.m, &ops, &f.pushed[i]);
    must("push", st, torn(), one(f.pushed[i] ? OC_EXISTS : OC_OK));
    f.pushed[i] |= st == OC_OK;
    return;
  }
  oc_status st = oc_model_pop(f.m, &f.pushed[i]);
  must("pop", st, torn(), one(f.pushed[i] ? OC_OK : OC_E_NOT_FOUND));
  f.pushed[i] &= st != OC_OK;
}

/* ---- the model's life ---- */

void new_model(void) {
  oc_model_options o = {
      .struct_size = sizeof o, .name = "fuzz", .arena_min = 2 << 20, .arena_max = 8 << 20, .teardown_wait_ms = 1};
  o.reserve_bytes = below(3) ? 0 : 1 << 20;
  memset(&f.p, 0, sizeof f.p);
  memset(f.loaded, 0, sizeof f.loaded);
  memset(f.kernel, 0, sizeof f.kernel);
  memset(f.once, 0, sizeof f.once);
  memset(f.shape, 0, sizeof f.shape);
  memset(f.reached, 0, sizeof f.reached);
  memset(f.holds, 0, sizeof f.holds);
  for (int t = 0; t < TAGS; t++)
    for (int s = 0; s <= STREAMS; s++) f.scratch[t][s].block = NOBODY;
  f.torn = false;
  f.freed = 0;
  f.d.order_in = 0;
  f.d.met = 0;
  must("create", oc_model_create(f.b, &o, &f.m), 0, one(OC_OK));
}

static uint64_t refuses_end(void) {
  uint64_t no = f.guards ? one(OC_E_GUARDED) : 0;
  if (f.captures) no |= one(OC_E_BUSY) | one(OC_E_CAPTURING);
  for (int i = 0; i < BUILDS; i++) no |= f.p.build[i].handle ? one(OC_E_REENTRANT) : 0;
  for (int i = 0; i < HOLDERS; i++) no |= f.holds[i] ? one(OC_E_BUSY) : 0;
  return no;
}

static void is_torn(oc_status st) {
  f.torn = true;
  f.torn_as = st;
  if (f.d.met) f.spoilt = true;
  for (int i = 0; i < RESOURCES; i++) FUZZ_CHECK(!f.pushed[i], "a resource was not released");
  memset(&f.p, 0, sizeof f.p);
}

/* Over with failures: TEARDOWN. That the device is lost is none. */
void do_teardown(void) {
  oc_report *report = NULL;
  bool was = f.torn;
  oc_status st = oc_model_teardown(f.m, below(2) ? &report : NULL);
  uint64_t no = refuses_end();
  if (was) must("teardown again", st, 0, one(f.torn_as) | no);
  else must("teardown", st, no, one(OC_OK) | (f.d.met || f.spoilt ? one(OC_E_TEARDOWN) : 0));
  bool over = st == OC_OK || st == OC_E_TEARDOWN;
  FUZZ_CHECK(!report || over, "a report of what was refused");
  if (report) {
    char *text = oc_report_text(report), *json = oc_report_json(report);
    FUZZ_CHECK(text && json && oc_report_count(report) < 100, "no report");
    oc_string_free(text);
    oc_string_free(json);
    oc_report_free(report);
  }
  if (over && !was) is_torn(st);
}

void do_destroy(void) {
  uint64_t no = refuses_end();
  oc_status st = oc_model_destroy(f.m);
  must("destroy", st, no, one(OC_OK) | (f.torn || f.d.met || f.spoilt ? one(OC_E_TEARDOWN) : 0));
  if (st != OC_OK && st != OC_E_TEARDOWN) return;
  if (!f.torn) is_torn(st);
  new_model();
}

void do_words(void) {
  char small[8], large[512];
  int n = oc_opcache_describe(cache(), large, sizeof large);
  FUZZ_CHECK(n > 0 && n == oc_opcache_describe(cache(), small, sizeof small) && strlen(small) < sizeof small, "describe");
  n = oc_derived_describe(derived(), large, sizeof large);
  FUZZ_CHECK(n > 0 && n == oc_derived_describe(derived(), NULL, 0), "describe");
  char *text = oc_pool_report_text(pool(), 2), *json = oc_pool_report_json(pool());
  FUZZ_CHECK(f.torn || (text && json), "no report of the pool");
  oc_string_free(text);
  oc_string_free(json);
}
