/* SPDX-License-Identifier: MIT */
/* What a run has done: as text, as JSON, and whether all of it is as it should be. */
#include "config.h"

#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/number.h"
#include "tools/run.h"

#include <inttypes.h>

static double per_second(uint64_t count, uint64_t ns)
{
  return ns ? (double)count * 1e9 / (double)ns : 0;
}

static uint64_t lookups(const struct totals *t)
{
  return t->lookups.durations.total;
}

static double lookup_ns(const struct totals *t, double q)
{
  return oct_histogram_quantile(&t->lookups.durations, q);
}

/* ---- Clean or not ---- */

/* One line for each thing that is not as it should be. */
static bool none(uint64_t count, const char *what)
{
  if (count != 0)
    oct_complain("run", "%" PRIu64 " %s", count, what);
  return count == 0;
}

static bool equal(uint64_t a, const char *what_a, uint64_t b, const char *what_b)
{
  if (a != b)
    oct_complain("run", "%" PRIu64 " %s, but %" PRIu64 " %s", a, what_a, b, what_b);
  return a == b;
}

bool oct_run_is_clean(const struct run *r)
{
  const struct totals *t = &r->totals;
  bool ok = none(t->verify_failures, "verifications failed");

  ok &= none(t->product_failures, "products were wrong");
  ok &= none(t->stale_launches, "launches were of an unloaded function");
  ok &= none(t->blocks_swept, "blocks belonged to nobody at teardown");
  if (t->bytes_leaked != 0)
    oct_complain("run", "%" PRId64 " bytes of device memory were not given back", t->bytes_leaked);
  ok &= t->bytes_leaked == 0;
  if (t->teardown != OC_OK)
    oct_complain("run", "a teardown said %s", oc_status_name(t->teardown));
  ok &= t->teardown == OC_OK;
  ok &= equal(t->driver_allocs, "arenas came from the driver", t->driver_frees, "went back");
  if (t->device_counts)
    ok &= equal(t->driver_frees, "driver frees were reported", t->device_frees, "were counted by the device");
  if (!oct_interrupted() && !r->failed && t->verify_failures == 0)
    ok &= equal(t->derived_built, "derivations were built", t->derived_verified, "verified");
  return ok;
}

/* ---- Text ---- */

static void print_work(const struct run *r)
{
  const struct checkpoint *c = &r->checkpoint;
  const struct totals *t = &r->totals;
  struct human h;

  printf("loaded       %zu tensors, %s, of %zu file%s\n", c->placed_count, oct_human_bytes(&h, c->bytes), c->file_count,
         c->file_count == 1 ? "" : "s");
  printf("derived      %" PRIu64 " built, %" PRIu64 " verified in every byte, %" PRIu64 " failures\n", t->derived_built,
         t->derived_verified, t->verify_failures);
  printf("products     %" PRIu64 " compared with binary64, %" PRIu64 " failures\n", t->products_checked,
         t->product_failures);
}

static void print_service(const struct run *r)
{
  const struct totals *t = &r->totals;
  uint64_t n = lookups(t);

  printf("served       %" PRIu64 " passes in %.1f s by %" PRIu64 " threads, %" PRIu64 " swaps, %" PRIu64 " misses\n",
         t->passes, (double)t->serving_ns / 1e9, r->options.threads, t->swaps, t->misses);
  printf("lookups      %" PRIu64 ", %.0f a second\n", n, per_second(n, t->serving_ns));
  printf("latency      p50 %.0f ns, p99 %.0f ns, p99.9 %.0f ns of single lookups, less %" PRIu64 " ns for the clock\n",
         lookup_ns(t, 0.5), lookup_ns(t, 0.99), lookup_ns(t, 0.999), t->lookups.cost_ns);
}

static void print_memory(const struct run *r)
{
  const struct totals *t = &r->totals;
  struct human ha, hl;

  printf("arenas       %" PRIu64 " of %s a model, %s live at most; %" PRIu64 " driver allocations, %" PRIu64
         " driver frees\n", t->arenas, oct_human_bytes(&ha, t->arena_bytes), oct_human_bytes(&hl, t->live_bytes_peak),
         t->driver_allocs, t->driver_frees);
  printf("device       %" PRIu64 " stale launches, %" PRIu64 " blocks swept, %" PRId64 " bytes leaked\n",
         t->stale_launches, t->blocks_swept, t->bytes_leaked);
  if (!t->device_counts)
    printf("             %" PRId64 " bytes more in use than before, by the driver's figure for the whole GPU; it counts no "
           "stale launches\n", t->device_growth);
}

void oct_print_outcome(const struct run *r)
{
  print_work(r);
  print_service(r);
  print_memory(r);
  printf("teardown     %s; %s:\n\n%s", oc_status_name(r->totals.teardown),
         r->totals.unclean ? "the report of the first that was not clean" : "the last one's report",
         r->totals.report ? r->totals.report : "(none)\n");
}

/* ---- JSON ---- */

static void set_count(json_t *o, const char *key, uint64_t v)
{
  json_object_set_new(o, key, json_integer((json_int_t)v));
}

static void add_counts(json_t *o, const struct run *r)
{
  const struct totals *t = &r->totals;

  set_count(o, "tensors", r->checkpoint.placed_count);
  set_count(o, "bytes_loaded", r->checkpoint.bytes);
  set_count(o, "derived_built", t->derived_built);
  set_count(o, "derived_verified", t->derived_verified);
  set_count(o, "verify_failures", t->verify_failures);
  set_count(o, "products_checked", t->products_checked);
  set_count(o, "product_failures", t->product_failures);
  set_count(o, "passes", t->passes);
  set_count(o, "lookups", lookups(t));
  json_object_set_new(o, "lookups_per_second", json_real(per_second(lookups(t), t->serving_ns)));
  json_object_set_new(o, "lookup_ns_p50", json_real(lookup_ns(t, 0.5)));
  json_object_set_new(o, "lookup_ns_p99", json_real(lookup_ns(t, 0.99)));
  json_object_set_new(o, "lookup_ns_p999", json_real(lookup_ns(t, 0.999)));
  set_count(o, "swaps", t->swaps);
  set_count(o, "stale_launches", t->stale_launches);
  set_count(o, "blocks_swept", t->blocks_swept);
  json_object_set_new(o, "bytes_leaked", json_integer((json_int_t)t->bytes_leaked));
  set_count(o, "arena_bytes", t->arena_bytes);
  set_count(o, "live_bytes_peak", t->live_bytes_peak);
  set_count(o, "driver_allocs", t->driver_allocs);
  set_count(o, "driver_frees", t->driver_frees);
  json_object_set_new(o, "teardown_status", json_string(oc_status_name(t->teardown)));
}

/* Beside what every run is asked for. */
static void add_circumstances(json_t *o, const struct run *r)
{
  const struct totals *t = &r->totals;

  set_count(o, "arenas", t->arenas);
  set_count(o, "misses", t->misses);
  set_count(o, "threads", r->options.threads);
  json_object_set_new(o, "seconds", json_real((double)t->serving_ns / 1e9));
  set_count(o, "lookup_clock_ns", t->lookups.cost_ns);
  json_object_set_new(o, "backend", json_string(r->options.backend));
  json_object_set_new(o, "device_counts", json_boolean(t->device_counts));
  json_object_set_new(o, "device_growth_bytes", json_integer((json_int_t)t->device_growth));
  json_object_set_new(o, "interrupted", json_boolean(oct_interrupted()));
  json_object_set_new(o, "failure", r->failed ? json_string(r->failure.text) : json_null());
  json_object_set_new(o, "version", json_string(oc_version()));
  json_object_set_new(o, "teardown_report", t->report_json ? json_loads(t->report_json, 0, NULL) : json_null());
}

json_t *oct_outcome_json(const struct run *r)
{
  json_t *o = json_object();

  add_counts(o, r);
  add_circumstances(o, r);
  return o;
}

bool oct_write_outcome(const struct run *r, struct output *out, struct fault *why)
{
  return !out->file || oct_output_write(out, oct_outcome_json(r), why);
}
