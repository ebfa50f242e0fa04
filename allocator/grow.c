/* SPDX-License-Identifier: MIT */
/*
 * Growth (G17, G18). One sequence at a time, under `growing`:
 *
 *   an arena of the wanted size, of device memory (managed, once the latch is set)
 *   out of memory: pending blocks are collected, arenas without a block in use go back to the driver
 *                  the request again: from the arenas, then of the driver
 *                  an arena that just fits; if that works, arena_max is halved for good
 *                  the same two sizes of managed memory, where it is allowed: the latch
 *
 * Any other answer of the driver ends the sequence, is the call's, and changes nothing.
 */
#include "config.h"

#include "allocator/pool_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "rcu/error.h"

#define DEFAULT_ARENA_MIN ((uint64_t)64 << 20)
#define DEFAULT_ARENA_MAX ((uint64_t)1 << 30)

/* ---- sizes ---- */

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static uint64_t clamp(uint64_t v, uint64_t low, uint64_t high) { return v < low ? low : v > high ? high : v; }

static uint64_t power_of_two_from(uint64_t v) { return v <= 1 ? 1 : UINT64_C(1) << (64 - __builtin_clzll(v - 1)); }

static uint64_t limit(size_t bytes, uint64_t otherwise) {
  return bytes ? round_up(clamp(bytes, ARENA_GRAIN, ARENA_MOST), ARENA_GRAIN) : otherwise;
}

/* A limit that the caller set wins over a default; of two that cross, the smaller arenas. */
void oci_pool_set_limits(struct pool *p, size_t arena_min, size_t arena_max) {
  p->arena_min = limit(arena_min, DEFAULT_ARENA_MIN);
  p->arena_max = limit(arena_max, DEFAULT_ARENA_MAX);
  if (p->arena_min > p->arena_max && !arena_max) p->arena_max = p->arena_min;
  if (p->arena_min > p->arena_max) p->arena_min = p->arena_max;
  p->base_align = ARENA_GRAIN;
}

/* One sequence's plan. */
struct growth {
  const struct order *order;
  uint64_t want, fit;            /* bytes */
  uint64_t *out;                 /* NULL: nothing to carve */
};

/* Bytes of an arena that has room for the order whatever its base, if bases stay as aligned as they were. */
static uint64_t fit_bytes(const struct pool *p, const struct order *o) {
  uint64_t slop = o->align > p->base_align ? o->align - p->base_align : 0;
  return round_up(units_bytes(o->units) + slop, ARENA_GRAIN);
}

static void plan(struct pool *p, struct growth *g) {
  pool_lock(p);
  uint64_t live = p->live_bytes;
  pool_unlock(p);
  uint64_t usual = clamp(power_of_two_from(live), p->arena_min, p->arena_max);
  g->fit = fit_bytes(p, g->order);
  /* Over half an arena: one of its own. So is a reserve, whatever its size. */
  bool own = !g->out || units_bytes(g->order->units) > usual / 2 || g->fit > usual;
  g->want = own ? g->fit : usual;
}

static void halve_arena_max(struct pool *p) {
  p->arena_max = clamp(round_up(p->arena_max / 2, ARENA_GRAIN), ARENA_GRAIN, p->arena_max);
  if (p->arena_min > p->arena_max) p->arena_min = p->arena_max;
}

/* ---- one arena ---- */

static void count_arena(struct pool *p, const struct arena *a, bool comes) {
  uint64_t bytes = units_bytes(a->units);
  if (!a->managed) return;
  p->managed_arenas += comes ? 1 : (uint64_t)-1;
  p->managed_bytes += comes ? bytes : 0 - bytes;
}

static void discard(struct pool *p, struct arena *a) {
  pool_lock(p);
  oci_arena_discard(&p->sub, a);
  pool_unlock(p);
}

static void attach_lost(struct pool *p, struct arena *a) {
  pool_lock(p);
  oci_arena_attach_lost(&p->sub, a, p->lost_tag);
  count_arena(p, a, true);
  p->retired_bytes += units_bytes(a->units);
  ledger_retired(&p->ledger, p->lost_tag, units_bytes(a->units));
  pool_unlock(p);
}

/* Back to the driver. Where it refuses, the arena stays listed, out of use, until release_arenas tries again. */
static void give_to_driver(struct pool *p, struct arena *a) {
  int status = p->dev.free(p->dev.arg, a->driver_base);
  if (status) {
    oci_log(OCI_LOG_WARNING,
            "the driver did not take back an arena of %" PRIu64 " bytes at 0x%" PRIx64 " (status %d); it is out of use",
            a->driver_bytes, a->driver_base, status);
    attach_lost(p, a);
    return;
  }
  pool_lock(p);
  p->driver_frees++;
  oci_arena_discard(&p->sub, a);
  pool_unlock(p);
}

static int driver_alloc(struct pool *p, uint64_t bytes, bool managed, uint64_t *base) {
  *base = 0;
  int status = p->dev.alloc(p->dev.arg, bytes, managed, base);
  if (!status && (!*base || bytes > UINT64_MAX - *base))
    status = oci_error(POOL_E_BACKEND,
                       "the driver answered success and address 0x%" PRIx64 " to an allocation of %" PRIu64 " bytes",
                       *base, bytes);
  pool_lock(p);
  if (status) p->driver_alloc_failures++;
  else p->driver_allocs++;
  pool_unlock(p);
  return status;
}

static struct arena *prepare(struct pool *p, uint64_t bytes) {
  pool_lock(p);
  struct arena *a = oci_arena_prepare(&p->sub, bytes);
  pool_unlock(p);
  return a;
}

static void warn_of_external(const struct pool *p, const struct arena *a) {
  const struct range *r = oci_ranges_overlap(&p->external, a->driver_base, a->driver_bytes);
  if (!r) return;
  oci_log(OCI_LOG_WARNING, "the driver's new allocation at 0x%" PRIx64 " overlaps external memory at 0x%" PRIx64
          ", which was freed without being forgotten", a->driver_base, r->from);
}

static int carve(struct pool *p, const struct growth *g) {
  int status = oci_pool_carve(p, g->order, g->out);
  if (status != POOL_E_HOST_NOMEM) return status;
  return oci_error(status, "no host memory for the record of a block of %" PRIu64 " bytes", g->order->bytes);
}

/* Into use, and the order out of it before another thread can take the room. */
static int put_to_use(struct pool *p, struct arena *a, const struct growth *g) {
  int status = POOL_OK;
  pool_lock(p);
  oci_arena_attach(&p->sub, a);
  count_arena(p, a, true);
  if (g->out) status = carve(p, g);
  warn_of_external(p, a);
  pool_unlock(p);
  return status;
}

/* POOL_MISS: the base was less aligned than any before, and the order does not fit; base_align knows now. */
static int add_arena(struct pool *p, const struct growth *g, uint64_t bytes, bool managed) {
  uint64_t base;
  struct arena *a = prepare(p, bytes);
  if (!a)
    return oci_error(POOL_E_HOST_NOMEM, "no host memory for the records of an arena of %" PRIu64 " bytes", bytes);
  int status = driver_alloc(p, bytes, managed, &base);
  if (status) {
    discard(p, a);
    return status;
  }
  oci_arena_set(a, base, bytes, managed);
  if ((base & (0 - base)) < p->base_align) p->base_align = base & (0 - base);
  if (oci_arena_fits(a, g->order->units, g->order->align)) return put_to_use(p, a, g);
  give_to_driver(p, a);
  return POOL_MISS;
}

static int ask(struct pool *p, struct growth *g, const uint64_t *bytes, bool managed) {
  int status = add_arena(p, g, *bytes, managed);
  if (status != POOL_MISS) return status;
  g->fit = fit_bytes(p, g->order);
  if (g->want < g->fit) g->want = g->fit;
  /* Once is enough, whatever this base is: by now fit has grown by ARENA_GRAIN at least, and no base loses more. */
  return add_arena(p, g, *bytes, managed);
}

/* ---- making room ---- */

static struct arena *detach_empty(struct pool *p) {
  pool_lock(p);
  struct arena *a = oci_suballoc_empty(&p->sub);
  if (a) {
    oci_arena_detach(&p->sub, a);
    count_arena(p, a, false);
  }
  pool_unlock(p);
  return a;
}

static void make_room(struct pool *p) {
  struct arena *a;
  oci_pool_collect_all(p);
  while ((a = detach_empty(p))) give_to_driver(p, a);
}

void oci_pool_trim(struct pool *p) {
  struct log_held lines;
  pool_growing_lock(p, &lines);
  make_room(p);
  pool_growing_unlock(p, &lines);
}

static int carve_again(struct pool *p, const struct growth *g) {
  pool_lock(p);
  int status = carve(p, g);
  pool_unlock(p);
  return status;
}

/* ---- the sequence ---- */

static int smaller(struct pool *p, struct growth *g, bool managed) {
  if (g->fit >= g->want) return POOL_E_DEVICE_NOMEM;
  int status = ask(p, g, &g->fit, managed);
  if (status == POOL_OK) halve_arena_max(p);
  return status;
}

/* The wanted size, room made, the wanted size again, the smaller one. */
static int whole_sequence(struct pool *p, struct growth *g, bool managed) {
  int status = ask(p, g, &g->want, managed);
  /* A reserve makes no room: what is empty is its own earlier part. */
  if (status != POOL_E_DEVICE_NOMEM || !g->out) return status;
  make_room(p);
  status = carve_again(p, g);
  if (status != POOL_MISS) return status;
  status = ask(p, g, &g->want, managed);
  return status == POOL_E_DEVICE_NOMEM ? smaller(p, g, managed) : status;
}

static void set_latch(struct pool *p, bool latched) {
  if (latched && !oci_pool_fell_back(p)) {
    oci_log(OCI_LOG_WARNING, "device memory is out: this model's new arenas are managed memory from now on (%s)",
            p->device_words);
    pool_note(p, POOL_NOTE_LATCH, 0);
  }
  __atomic_store_n(&p->latched, latched, __ATOMIC_RELAXED);
}

static void keep_words(char words[POOL_WORDS]) { snprintf(words, POOL_WORDS, "%s", oci_error_text()); }

static int word_out_of_memory(const struct pool *p, const struct growth *g, const char *managed_words) {
  const char *device = *p->device_words ? p->device_words : "not asked, the pool had fallen back";
  uint64_t bytes = g->out ? g->order->bytes : units_bytes(g->order->units);
  if (!managed_words)
    return oci_error(POOL_E_DEVICE_NOMEM,
                     "no memory for a block of %" PRIu64 " bytes; device: %s; managed memory is %s", bytes, device,
                     p->no_managed ? "forbidden for this model" : "not there on this device");
  return oci_error(POOL_E_DEVICE_NOMEM, "no memory for a block of %" PRIu64 " bytes; device: %s; managed: %s", bytes,
                   device, managed_words);
}

/* What an attempt at managed memory means for the latch and the caller. */
static int after_managed(struct pool *p, const struct growth *g, int status) {
  char words[POOL_WORDS];
  if (status != POOL_E_DEVICE_NOMEM && status != POOL_E_UNSUPPORTED && status != POOL_OK)
    return *p->device_words ? oci_error_add(status, "device: %s", p->device_words) : status;
  keep_words(words);
  /* Managed memory that is out says nothing on it: a request too large for either would else bind the model to it. */
  set_latch(p, status == POOL_OK || (status == POOL_E_DEVICE_NOMEM && oci_pool_fell_back(p)));
  return status == POOL_OK ? POOL_OK : word_out_of_memory(p, g, words);
}

static int fall_back(struct pool *p, struct growth *g) {
  keep_words(p->device_words);
  if (p->no_managed || !p->dev.can_manage) return word_out_of_memory(p, g, NULL);
  int status = ask(p, g, &g->want, true);
  if (status == POOL_E_DEVICE_NOMEM) status = smaller(p, g, true);
  return after_managed(p, g, status);
}

static int grow_managed(struct pool *p, struct growth *g) {
  int status = whole_sequence(p, g, true);
  /* Carved from what was there: says nothing on managed memory. */
  return status == POOL_OK ? status : after_managed(p, g, status);
}

static int grow_device(struct pool *p, struct growth *g) {
  int status = whole_sequence(p, g, false);
  return status == POOL_E_DEVICE_NOMEM ? fall_back(p, g) : status;
}

int oci_pool_grow(struct pool *p, const struct order *o, uint64_t *out) {
  struct growth g = {.order = o, .out = out};
  plan(p, &g);
  if (!oci_pool_fell_back(p)) return grow_device(p, &g);
  int status = grow_managed(p, &g);
  /* Unsupported after all: the latch is off again, and the device is asked. */
  return status == POOL_E_DEVICE_NOMEM && !oci_pool_fell_back(p) ? grow_device(p, &g) : status;
}
