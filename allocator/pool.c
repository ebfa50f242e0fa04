/* SPDX-License-Identifier: MIT */
/* The pool's life, and blocks as callers see them: allocated, found, changed, freed (G16, G21). */
#include "config.h"

#include "allocator/pool_internal.h"

#include <inttypes.h>

#include "rcu/error.h"

/* ---- life ---- */

int oci_pool_create(const struct pool_device *dev, const struct pool_options *opt, struct heap *heap,
                    struct pool **out) {
  struct pool *p = oci_alloc(heap, sizeof *p);
  if (!p) goto no_memory;
  p->meta.heap = heap;
  p->dev = *dev;
  p->no_managed = opt->no_managed;
  p->by_stream.heap = heap;
  link_init(&p->queues);
  pthread_mutex_init(&p->growing, NULL);
  oci_suballoc_init(&p->sub, &p->meta);
  oci_ledger_init(&p->ledger, &p->meta);
  oci_ranges_init(&p->external, &p->meta);
  oci_pool_set_limits(p, opt->arena_min, opt->arena_max);
  if (!ledger_tag(&p->ledger, NULL, "arenas that the driver did not take back", false, &p->lost_tag))
    goto no_tag;
  *out = p;
  return POOL_OK;
no_tag:
  oci_pool_destroy(p);
no_memory:
  return oci_error(POOL_E_HOST_NOMEM, "no host memory for a pool");
}

void oci_pool_stop(struct pool *p, bool stop) {
  pool_lock(p);
  p->stopped = stop || p->released;
  pool_unlock(p);
}

/* Forgets all blocks at once; the arenas, for the driver, are returned. */
static struct arena *abandon(struct pool *p, struct link *queues) {
  p->stopped = p->released = true;
  link_splice(queues, &p->queues);
  oci_table_free(&p->by_stream);
  __atomic_store_n(&p->front.pending_count, 0, __ATOMIC_RELAXED);
  p->held = p->retired = (struct waiting){0};
  p->taken = 0;
  p->live_blocks = p->live_bytes = p->retired_bytes = p->managed_arenas = p->managed_bytes = 0;
  oci_ledger_clear(&p->ledger);
  return oci_suballoc_abandon(&p->sub);
}

/* What happened to one arena; DEVICE_LOST in `before` spares the driver the call. */
static int free_arena(struct pool *p, const struct arena *a, int before) {
  if (before == POOL_E_DEVICE_LOST) return before;
  int status = p->dev.free(p->dev.arg, a->driver_base);
  if (status) return status;
  pool_lock(p);
  p->driver_frees++;
  pool_unlock(p);
  return POOL_OK;
}

/* status POOL_E_DEVICE_LOST: the driver is not called. */
static void release_arenas(struct pool *p, int status,
                           void (*each)(void *arg, const struct pool_arena_info *a, int status), void *arg) {
  struct log_held lines;
  struct link queues;
  link_init(&queues);
  pool_growing_lock(p, &lines);
  pool_lock(p);
  /* A collector works on queues that it took out; it must not come back with blocks that are gone. */
  oci_pool_wait_for_collectors(p);
  struct arena *next, *list = abandon(p, &queues);
  pool_unlock(p);
  oci_pool_drop_pending(p, &queues);
  for (struct arena *a = list; a; a = next) {
    next = a->abandoned;
    status = free_arena(p, a, status);
    struct pool_arena_info info = {a->driver_base, a->driver_bytes, a->managed};
    if (each) each(arg, &info, status);
    oci_arena_forget(&p->sub, a);
  }
  pool_growing_unlock(p, &lines);
}

void oci_pool_release_arenas(struct pool *p, void (*each)(void *arg, const struct pool_arena_info *a, int status),
                             void *arg) {
  release_arenas(p, POOL_OK, each, arg);
}

void oci_pool_abandon_arenas(struct pool *p) { release_arenas(p, POOL_E_DEVICE_LOST, NULL, NULL); }

void oci_pool_destroy(struct pool *p) {
  oci_suballoc_fini(&p->sub);
  oci_ledger_fini(&p->ledger);
  oci_ranges_fini(&p->external);
  pthread_mutex_destroy(&p->growing);
  oci_free(p->meta.heap, p, sizeof *p);
}

/* ---- allocation ---- */

static int released(void) {
  return oci_error(POOL_E_RELEASED, "the pool takes no more requests: its model is being torn down, or was");
}

static __attribute__((noinline)) int refuse(const struct pool_request *r) {
  uint64_t align = r->align;
  if (!r->bytes) return oci_error(POOL_E_INVALID, "a block of 0 bytes");
  if (align & (align - 1)) return oci_error(POOL_E_INVALID, "an alignment of %" PRIu64 ", not a power of two", align);
  if (r->bytes > SIZE_MAX - ARENA_GRAIN || align > SIZE_MAX - ARENA_GRAIN - r->bytes)
    return oci_error(POOL_E_INVALID, "a block of %zu bytes aligned to %" PRIu64 " overflows", r->bytes, align);
  return oci_error(POOL_E_DEVICE_NOMEM,
                   "a block of %zu bytes aligned to %" PRIu64 " is larger than an arena can be (%" PRIu64 " bytes with the alignment)",
                   r->bytes, align, (uint64_t)BLOCK_MOST);
}

static inline bool acceptable(const struct pool_request *r) {
  if (__builtin_expect(!r->align, 1)) return r->bytes - 1 < BLOCK_MOST;
  return r->bytes - 1 < BLOCK_MOST && r->align <= BLOCK_MOST && !(r->align & (r->align - 1)) &&
         r->bytes + r->align <= BLOCK_MOST;
}

/* Field by field: a whole order, built and copied, is read back by wider loads than it was written with, and each such load
   waits until the stores have left the core. */
static inline void set_order(struct order *o, const struct pool_request *r) {
  o->units = (uint32_t)((r->bytes + UNIT_BYTES - 1) >> UNIT_SHIFT);
  o->bytes = r->bytes;
  o->align = r->align > UNIT_BYTES ? r->align : UNIT_BYTES;
  o->class = r->class;
}

static inline void count_live(struct pool *p, uint32_t tag, uint64_t bytes) {
  p->live_blocks++;
  p->live_bytes += bytes;
  if (p->live_bytes > p->peak_live_bytes) p->peak_live_bytes = p->live_bytes;
  ledger_live(&p->ledger, tag, bytes);
}

static inline void count_gone(struct pool *p, uint32_t tag, uint64_t bytes) {
  p->live_blocks--;
  p->live_bytes -= bytes;
  ledger_gone(&p->ledger, tag, bytes);
}

static inline int carve(struct pool *p, const struct order *o, uint64_t *out) {
  uint32_t index;
  int status = oci_suballoc_carve(&p->sub, o->units, o->align, &index);
  if (status) return status;
  struct block *b = pool_block(p, index);
  uint64_t bytes = units_bytes(o->units);
  block_become(b, BLOCK_LIVE, o->class, (unsigned)(bytes - o->bytes));
  b->tag = o->tag;
  count_live(p, o->tag, bytes);
  *out = suballoc_addr(&p->sub, b);
  return POOL_OK;
}

int oci_pool_carve(struct pool *p, const struct order *o, uint64_t *out) { return carve(p, o, out); }

static __attribute__((noinline)) int word_alloc(int status, const struct pool_request *r) {
  if (status == POOL_E_RELEASED) return released();
  if (status == POOL_E_HOST_NOMEM)
    return oci_error(status, "no host memory for the record of a block of %zu bytes", r->bytes);
  return status;
}

static inline int try_order(struct pool *p, const struct pool_request *r, struct order *o, uint64_t *out) {
  int status = POOL_E_RELEASED;
  if (!acceptable(r)) return refuse(r);
  set_order(o, r);
  pool_lock(p);
  if (!p->stopped)
    status = ledger_tag(&p->ledger, r->site, r->owner, false, &o->tag) ? carve(p, o, out) : POOL_E_HOST_NOMEM;
  pool_unlock(p);
  return status ? word_alloc(status, r) : POOL_OK;
}

int oci_pool_try_alloc(struct pool *p, const struct pool_request *r, uint64_t *out) {
  struct order o;
  return try_order(p, r, &o, out);
}

static __attribute__((noinline)) int alloc_growing(struct pool *p, const struct pool_request *r, uint64_t *out) {
  struct log_held lines;
  struct order o;
  oci_pool_collect(p);   /* of every stream: the room may be there */
  pool_growing_lock(p, &lines);
  /* Another thread may have grown the pool while this one waited. */
  int status = try_order(p, r, &o, out);
  if (status == POOL_MISS) status = oci_pool_grow(p, &o, out);   /* words its failures, with the driver's */
  pool_growing_unlock(p, &lines);
  return status;
}

int oci_pool_alloc(struct pool *p, const struct pool_request *r, uint64_t *out) {
  int status = oci_pool_try_alloc(p, r, out);
  return status == POOL_MISS ? alloc_growing(p, r, out) : status;
}

static bool takes_requests(struct pool *p) {
  pool_lock(p);
  bool takes = !p->stopped;
  pool_unlock(p);
  return takes;
}

int oci_pool_reserve(struct pool *p, size_t bytes) {
  struct log_held lines;
  int status = POOL_OK;
  pool_growing_lock(p, &lines);
  if (bytes && !takes_requests(p)) status = released();
  while (bytes && !status) {
    uint64_t part = bytes < BLOCK_MOST ? bytes : BLOCK_MOST;
    struct order o = {.units = (uint32_t)((part + UNIT_BYTES - 1) >> UNIT_SHIFT), .align = UNIT_BYTES};
    status = oci_pool_grow(p, &o, NULL);
    bytes -= part;
  }
  pool_growing_unlock(p, &lines);
  return status;
}

/* ---- an address's block ---- */

struct verdict oci_pool_judge(struct pool *p, uint64_t ptr, unsigned classes, bool tracked_too) {
  struct verdict v = {.status = POOL_E_NOT_OWNED, .start = ptr};
  if (p->released) return v.status = POOL_E_RELEASED, v;
  struct arena *a = suballoc_arena(&p->sub, ptr);
  v.index = a ? suballoc_find(&p->sub, a, ptr) : 0;
  if (!v.index) return v;
  const struct block *b = pool_block(p, v.index);
  v.start = a->base + units_bytes(b->off);
  v.bytes = block_bytes(b) - b->slack;
  v.state = b->state;
  v.class = b->class;
  if (b->state != BLOCK_LIVE) return v;
  if (v.start != ptr) v.status = POOL_E_INTERIOR;
  else if (classes & BLOCK_BIT(b->class)) v.status = pool_tracks(p, b->tracked) && !tracked_too ? POOL_TRACKED : POOL_OK;
  return v;
}

static const char *class_name(unsigned class) {
  static const char *const names[] = {"block", "owned block", "scratch block", "block of a build", "derived block"};
  _Static_assert(sizeof names / sizeof *names == BLOCK_DERIVED + 1, "a name for each class");
  return names[class];
}

int oci_pool_word(const struct verdict *v, uint64_t ptr) {
  if (v->status >= 0) return v->status;
  if (v->status == POOL_E_RELEASED) return oci_error(v->status, "0x%" PRIx64 ": the pool's arenas have gone back", ptr);
  if (v->status == POOL_E_INTERIOR)
    return oci_error(v->status, "0x%" PRIx64 " is inside a live %s of %" PRIu64 " bytes that starts at 0x%" PRIx64,
                     ptr, class_name(v->class), v->bytes, v->start);
  if (!v->index) return oci_error(v->status, "0x%" PRIx64 " is in no arena of this pool", ptr);
  if (v->state == BLOCK_FREE)
    return oci_error(v->status, "0x%" PRIx64 " is in free memory of this pool: freed before, or never a block", ptr);
  if (v->state != BLOCK_LIVE)
    return oci_error(v->status, "0x%" PRIx64 " is in a block of %" PRIu64 " bytes at 0x%" PRIx64
                     " that was given back before and waits for queued work or a graph", ptr, v->bytes, v->start);
  return oci_error(v->status, "0x%" PRIx64 " is a %s of %" PRIu64 " bytes, which this call may not free", ptr,
                   class_name(v->class), v->bytes);
}

/* ---- free ---- */

static void free_live(struct pool *p, uint32_t index) {
  const struct block *b = pool_block(p, index);
  count_gone(p, b->tag, block_bytes(b));
  oci_suballoc_free(&p->sub, index);
}

void oci_pool_wait(struct pool *p, uint32_t index, enum block_state state) {
  struct block *b = pool_block(p, index);
  uint64_t bytes = block_bytes(b);
  count_gone(p, b->tag, bytes);
  ledger_retired(&p->ledger, b->tag, bytes);
  p->retired_bytes += bytes;
  b->state = state & 7u;
  pool_note(p, POOL_NOTE_RETIRED, bytes);
}

void oci_pool_unuse(struct pool *p, uint32_t index) {
  const struct block *b = pool_block(p, index);
  uint64_t bytes = block_bytes(b);
  ledger_unretired(&p->ledger, b->tag, bytes);
  p->retired_bytes -= bytes;
  oci_suballoc_free(&p->sub, index);
}

static void wait_off(struct pool *p, uint32_t index, enum pool_release how) {
  oci_pool_wait(p, index, how == RELEASE_RETIRE ? BLOCK_RETIRED : BLOCK_HELD);
  oci_pool_wait_list(p, index);
}

/* The block to free, if all is as it should be; 0: oci_pool_judge knows why not. */
static inline uint32_t freeable(struct pool *p, uint64_t ptr, unsigned classes, bool tracked_too) {
  struct arena *a = suballoc_arena(&p->sub, ptr);
  uint32_t index = a ? suballoc_find(&p->sub, a, ptr) : 0;
  if (!index) return 0;
  const struct block *b = pool_block(p, index);
  bool good = b->state == BLOCK_LIVE && a->base + units_bytes(b->off) == ptr &&
              (classes & BLOCK_BIT(b->class)) && (!pool_tracks(p, b->tracked) || tracked_too);
  return good ? index : 0;
}

static __attribute__((noinline)) int refuse_free(struct pool *p, uint64_t ptr, unsigned classes, bool tracked_too) {
  struct verdict v = oci_pool_judge(p, ptr, classes, tracked_too);
  pool_unlock(p);
  return oci_pool_word(&v, ptr);
}

int oci_pool_free(struct pool *p, uint64_t ptr, unsigned classes, enum pool_release how, void *stream,
                  bool tracked_too) {
  if (how == RELEASE_AFTER && p->dev.mark) return oci_pool_free_pending(p, ptr, classes, stream, tracked_too);
  pool_lock(p);
  uint32_t index = freeable(p, ptr, classes, tracked_too);
  if (!index) return refuse_free(p, ptr, classes, tracked_too);
  if (how == RELEASE_NOW) free_live(p, index);
  else wait_off(p, index, how);
  pool_unlock(p);
  return POOL_OK;
}

/* ---- find, contain, change ---- */

static struct block_info info_of(const struct pool *p, uint32_t index) {
  const struct block *b = pool_block(p, index);
  return (struct block_info){.start = suballoc_addr(&p->sub, b), .bytes = block_bytes(b) - b->slack,
                             .class = b->class, .live = b->state == BLOCK_LIVE, .tracked = b->tracked};
}

static int find(struct pool *p, uint64_t addr, struct block_info *out) {
  if (p->released) return POOL_E_RELEASED;
  struct arena *a = suballoc_arena(&p->sub, addr);
  uint32_t index = a ? suballoc_find(&p->sub, a, addr) : 0;
  if (index) return *out = info_of(p, index), POOL_OK;
  const struct range *r = oci_ranges_find(&p->external, addr);
  if (!r) return POOL_MISS;
  *out = (struct block_info){.start = r->from, .bytes = r->bytes, .class = BLOCK_USER, .live = true,
                             .tracked = r->tracked, .external = true};
  return POOL_OK;
}

int oci_pool_find(struct pool *p, uint64_t addr, struct block_info *out) {
  pool_lock(p);
  int status = find(p, addr, out);
  pool_unlock(p);
  return status == POOL_E_RELEASED ? released() : status;
}

bool oci_pool_contains(struct pool *p, uint64_t addr) {
  pool_lock(p);
  bool inside = suballoc_arena(&p->sub, addr) != NULL;
  pool_unlock(p);
  return inside;
}

static int reclass(struct pool *p, struct block *b, enum block_class class, const char *owner) {
  uint32_t tag;
  if (!oci_ledger_retag(&p->ledger, b->tag, owner, &tag)) return POOL_E_HOST_NOMEM;
  ledger_gone(&p->ledger, b->tag, block_bytes(b));
  ledger_live(&p->ledger, tag, block_bytes(b));
  b->tag = tag;
  b->class = class & 7u;
  return POOL_OK;
}

int oci_pool_reclass(struct pool *p, uint64_t start, enum block_class class, const char *owner) {
  pool_lock(p);
  struct verdict v = oci_pool_judge(p, start, ~0u, true);
  if (v.status == POOL_OK) v.status = reclass(p, pool_block(p, v.index), class, owner);
  pool_unlock(p);
  if (v.status == POOL_E_HOST_NOMEM) return oci_error(v.status, "no host memory for a new owner in the ledger");
  return oci_pool_word(&v, start);
}

int oci_pool_track(struct pool *p, uint64_t start, bool tracked) {
  pool_lock(p);
  struct verdict v = oci_pool_judge(p, start, ~0u, true);
  struct range *r = v.index || p->released ? NULL : oci_ranges_find(&p->external, start);
  if (v.status == POOL_OK) {
    pool_block(p, v.index)->tracked = tracked;
  } else if (r && r->from == start) {
    r->tracked = tracked;
    v.status = POOL_OK;
  }
  pool_unlock(p);
  return oci_pool_word(&v, start);
}

/* ---- other allocators' memory ---- */

static int note(struct pool *p, struct range *r, const char *owner, const struct pool_site *site) {
  if (p->released) return POOL_E_RELEASED;
  if (oci_suballoc_overlaps(&p->sub, r->from, r->from + r->bytes)) return POOL_E_INVALID;
  if (oci_ranges_overlap(&p->external, r->from, r->bytes)) return POOL_EXISTS;
  if (!ledger_tag(&p->ledger, site, owner, true, &r->tag)) return POOL_E_HOST_NOMEM;
  if (!oci_ranges_add(&p->external, r)) return POOL_E_HOST_NOMEM;
  ledger_live(&p->ledger, r->tag, r->bytes);
  p->external_blocks++;
  p->external_bytes += r->bytes;
  return POOL_OK;
}

int oci_pool_note_external(struct pool *p, uint64_t ptr, size_t bytes, const char *owner,
                           const struct pool_site *site) {
  struct range r = {.from = ptr, .bytes = bytes};
  if (!ptr || !bytes || bytes > UINT64_MAX - ptr)
    return oci_error(POOL_E_INVALID, "external memory at 0x%" PRIx64 " of %zu bytes: no such range", ptr, bytes);
  pool_lock(p);
  int status = note(p, &r, owner, site);
  pool_unlock(p);
  if (status == POOL_E_RELEASED) return released();
  if (status == POOL_E_INVALID)
    return oci_error(status, "external memory at 0x%" PRIx64 " of %zu bytes overlaps an arena of this pool", ptr, bytes);
  if (status == POOL_EXISTS)
    return oci_error(status, "external memory at 0x%" PRIx64 " of %zu bytes overlaps some that was noted before", ptr,
                     bytes);
  if (status) return oci_error(status, "no host memory to note external memory");
  return POOL_OK;
}

static int forget(struct pool *p, uint64_t ptr, bool tracked_too, struct range *was) {
  if (p->released) return POOL_E_RELEASED;
  struct range *r = oci_ranges_find(&p->external, ptr);
  if (!r) return POOL_E_NOT_OWNED;
  *was = *r;
  if (r->from != ptr) return POOL_E_INTERIOR;
  if (pool_tracks(p, r->tracked) && !tracked_too) return POOL_TRACKED;
  ledger_gone(&p->ledger, r->tag, r->bytes);
  p->external_blocks--;
  p->external_bytes -= r->bytes;
  oci_ranges_remove(&p->external, r);
  return POOL_OK;
}

int oci_pool_forget_external(struct pool *p, uint64_t ptr, bool tracked_too) {
  struct range was = {0};
  pool_lock(p);
  int status = forget(p, ptr, tracked_too, &was);
  pool_unlock(p);
  if (status == POOL_E_RELEASED) return released();
  if (status == POOL_E_NOT_OWNED)
    return oci_error(status, "0x%" PRIx64 " is in no external memory that was noted", ptr);
  if (status == POOL_E_INTERIOR)
    return oci_error(status, "0x%" PRIx64 " is inside external memory of %" PRIu64 " bytes that starts at 0x%" PRIx64,
                     ptr, was.bytes, was.from);
  return status;
}

void oci_pool_untrack(struct pool *p) {
  pool_lock(p);
  p->untracked = true;
  pool_unlock(p);
}

/* ---- figures ---- */

bool oci_pool_fell_back(const struct pool *p) { return __atomic_load_n(&p->latched, __ATOMIC_RELAXED); }

bool oci_pool_latch(struct pool *p) {
  bool allowed = p->dev.can_manage && !p->no_managed;
  if (allowed && !__atomic_exchange_n(&p->latched, true, __ATOMIC_RELAXED)) pool_note(p, POOL_NOTE_LATCH, 0);
  if (!allowed)
    oci_log(OCI_LOG_WARNING, "a fall back to managed memory was asked for, which is not allowed here: ignored");
  return allowed;
}

void oci_pool_stats_locked(struct pool *p, struct pool_stats *out) {
  *out = (struct pool_stats){
    .arenas = p->sub.count, .arena_bytes = p->sub.total_units << UNIT_SHIFT,
    .managed_arenas = p->managed_arenas, .managed_bytes = p->managed_bytes,
    .live_blocks = p->live_blocks, .live_bytes = p->live_bytes, .peak_live_bytes = p->peak_live_bytes,
    .retired_bytes = p->retired_bytes, .free_bytes = p->sub.free_units << UNIT_SHIFT,
    .largest_free = units_bytes(oci_bins_largest(&p->sub.bins, &p->sub.slab)),
    .driver_allocs = p->driver_allocs, .driver_alloc_failures = p->driver_alloc_failures,
    .driver_frees = p->driver_frees,
    .host_metadata_bytes = sizeof *p + meta_bytes(&p->meta) - oci_slab_spare(&p->sub.slab) +
                           p->by_stream.buckets * sizeof *p->by_stream.bucket,
  };
}

void oci_pool_stats(struct pool *p, struct pool_stats *out) {
  pool_lock(p);
  oci_pool_stats_locked(p, out);
  pool_unlock(p);
}

static void show(uint64_t *cell, uint64_t value) { __atomic_store_n(cell, value, __ATOMIC_RELAXED); }

void oci_pool_show_now(struct pool *p) {
  struct pool_shown *s = p->shown;
  show(&s->arenas, p->sub.count);
  show(&s->arena_bytes, p->sub.total_units << UNIT_SHIFT);
  show(&s->managed_bytes, p->managed_bytes);
  show(&s->live_blocks, p->live_blocks);
  show(&s->live_bytes, p->live_bytes);
  show(&s->peak_live_bytes, p->peak_live_bytes);
  show(&s->retired_bytes, p->retired_bytes);
  show(&s->external_blocks, p->external_blocks);
  show(&s->external_bytes, p->external_bytes);
  show(&s->driver_allocs, p->driver_allocs);
  show(&s->driver_alloc_failures, p->driver_alloc_failures);
  show(&s->driver_frees, p->driver_frees);
}

void oci_pool_show(struct pool *p, struct pool_shown *where) {
  pool_lock(p);
  p->shown = where;
  pool_unlock(p);
}

void oci_pool_ledger(struct pool *p, void (*each)(void *arg, const struct ledger_row *row), void *arg) {
  pool_lock(p);
  for (uint32_t i = 0; i < p->ledger.tag_count; i++) {
    struct ledger_row row;
    if (!p->ledger.tags[i].peak_bytes && !p->ledger.tags[i].retired_bytes) continue;
    oci_ledger_row(&p->ledger, i, &row);
    each(arg, &row);
  }
  pool_unlock(p);
}
