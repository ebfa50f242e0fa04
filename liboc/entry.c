/* SPDX-License-Identifier: MIT */
/* Entries and the spans they lie in: who owns a derived value (G13). All with the derived lock held. */
#include "config.h"

#include "allocator/block.h"
#include "liboc/model.h"
#include "liboc/process.h"
#include "rcu/mem.h"

/* ---- spans ---- */

static uint64_t span_hash(uint64_t start) {
  return oci_mix(start, 0x9E3779B97F4A7C15u);
}

static bool in_pool(const struct span *s) {
  return s->type != SPAN_FOREIGN;
}

struct span *oci_span_find(const struct oc_derived *d, uint64_t start, bool foreign) {
  for (struct table_node *n = oci_table_find(&d->spans, span_hash(start)); n; n = oci_table_next(n)) {
    struct span *s = CONTAINER(n, struct span, node);
    if (s->start == start && in_pool(s) != foreign) return s;
  }
  return NULL;
}

/* OC_E_HOST_NOMEM; or why the pool has no such block any more: another thread freed it. */
static oc_status span_make(struct oc_derived *d, enum span_type type, uint64_t start, uint64_t bytes, const char *call,
                           struct span **out) {
  struct span *s = oci_table_reserve(&d->spans) ? oci_records_take(&d->span_records) : NULL;
  if (!s) return oci_error(OC_E_HOST_NOMEM, "%s: out of host memory", call);
  s->start = start;
  /* a block's padding is found in it too */
  s->bytes = type == SPAN_BLOCK ? (bytes + UNIT_BYTES - 1) & ~(uint64_t)(UNIT_BYTES - 1) : bytes;
  s->type = type;
  link_init(&s->keys);
  link_init(&s->builds);
  link_init(&s->values);
  int st = in_pool(s) ? oci_pool_track(oci_model_of_derived(d)->pool.core, start, true) : POOL_OK;
  if (st != POOL_OK) {
    oci_records_give(&d->span_records, s);
    return oci_error_add(st, "%s", call);
  }
  if (!in_pool(s)) link_add_tail(&d->foreign, &s->link);
  oci_table_add(&d->spans, &s->node, span_hash(start));
  *out = s;
  return OC_OK;
}

void oci_span_drop(struct oc_derived *d, struct span *s) {
  oci_table_remove(&d->spans, &s->node);
  link_remove(&s->link);
  if (in_pool(s)) (void)oci_pool_track(oci_model_of_derived(d)->pool.core, s->start, false);
  oci_records_give(&d->span_records, s);
}

void oci_span_put(struct oc_derived *d, struct span *s) {
  if (!s || s->leaving) return;   /* one that is dying is leaving too, or foreign, and not put */
  if (link_empty(&s->keys) && link_empty(&s->builds) && link_empty(&s->values)) oci_span_drop(d, s);
}

/* One in a block that is gone, or going, would be found again by whoever gets that address next. */
oc_status oci_span_of_key(struct oc_derived *d, uint64_t key, const char *call, struct span **out) {
  struct block_info info;
  *out = NULL;
  if (oci_pool_find(oci_model_of_derived(d)->pool.core, key, &info) != POOL_OK) return OC_OK;
  if (info.live && !info.external && info.class == BLOCK_SCRATCH)
    return oci_error(OC_E_NOT_OWNED, "%s: key 0x%llx is in a scratch buffer, whose memory is another's once it grows", call,
                     (unsigned long long)key);
  struct span *s = info.live ? oci_span_find(d, info.start, false) : NULL;
  if (!info.live || (s && s->dying))
    return oci_error(OC_E_NOT_OWNED, "%s: key 0x%llx is in a block that was freed", call, (unsigned long long)key);
  oc_status st = s ? OC_OK : span_make(d, info.external ? SPAN_EXTERNAL : SPAN_BLOCK, info.start, info.bytes, call, &s);
  if (!st) *out = s;
  return st;
}

/* ---- whose is a value? ---- */

enum ownership { NOBODY, BORROWED, OWNED };

struct claim {                /* what becomes of one half of a value */
  enum ownership ownership;
  enum span_type type;
  uint64_t start, bytes;
  bool reclass;               /* the block is still the caller's, or the build's */
  enum block_class was;
};

static bool has_block(const struct oc_build *b, uint64_t start) {
  for (size_t i = 0; b && i < b->block_count; i++)
    if (b->blocks[i] == start) return true;
  return false;
}

static oc_status refuse(const char *call, uint64_t value, const char *why) {
  return oci_error(OC_E_NOT_OWNED, "%s: value 0x%llx is in %s", call, (unsigned long long)value, why);
}

static oc_status claim_block(uint64_t value, const struct block_info *info, const struct oc_build *build,
                             struct claim *c, const char *call) {
  if (!info->live) return refuse(call, value, "a block that was freed or retired");
  c->was = info->class;
  c->ownership = OWNED;
  switch (info->class) {
    case BLOCK_OWNED: c->ownership = BORROWED; return OC_OK;
    case BLOCK_DERIVED: return OC_OK;
    case BLOCK_USER: c->reclass = true; return OC_OK;
    case BLOCK_BUILD:
      c->reclass = true;
      return has_block(build, info->start) ? OC_OK : refuse(call, value, "a block of another build");
    default: return refuse(call, value, "a scratch buffer");
  }
}

static oc_status claim_value(struct oc_derived *d, uint64_t key, uint64_t value, const struct oc_build *build,
                             struct claim *c, const char *call) {
  struct oc_model *m = oci_model_of_derived(d);
  struct block_info info, key_info;
  *c = (struct claim){.ownership = NOBODY};
  if (value == 0 || value == key) return OC_OK;
  if (oci_pool_find(m->pool.core, value, &info) != POOL_OK) {
    if (oci_process_other_pool(m, value)) return refuse(call, value, "another model's pool");
    *c = (struct claim){.ownership = OWNED, .type = SPAN_FOREIGN, .start = value, .bytes = 1};
    return OC_OK;
  }
  c->start = info.start;
  c->bytes = info.bytes;
  c->type = info.external ? SPAN_EXTERNAL : SPAN_BLOCK;
  if (info.external) {
    c->ownership = BORROWED;
    return OC_OK;
  }
  /* in the block of its own key: that block's freeing forgets the entry by its key */
  if (oci_pool_find(m->pool.core, key, &key_info) == POOL_OK && key_info.start == info.start) return OC_OK;
  return claim_block(value, &info, build, c, call);
}

/* ---- making ---- */

/* Back under the owner it had before, which the ledger knows: so this needs no memory, and cannot fail. */
static void undo_reclass(struct oc_derived *d, const struct entry *e, const struct claim *c) {
  const char *owner = c->was == BLOCK_BUILD ? oci_kind_owner(e->kind) : NULL;
  if (c->reclass) (void)oci_pool_reclass(oci_model_of_derived(d)->pool.core, c->start, c->was, owner);
}

static oc_status take_claim(struct oc_derived *d, struct entry *e, int i, const struct claim *c, const char *call) {
  struct pool *pool = oci_model_of_derived(d)->pool.core;
  struct entry_value *half = &e->half[i];
  *half = (struct entry_value){.entry = e};
  if (c->ownership == NOBODY) return OC_OK;
  struct span *s = oci_span_find(d, c->start, c->type == SPAN_FOREIGN);
  if (s && s->dying) return refuse(call, e->value[i], "a block that is being released");
  oc_status st = c->reclass ? oci_pool_reclass(pool, c->start, BLOCK_DERIVED, oci_kind_owner(e->kind)) : OC_OK;
  if (st) return oci_error_add(st, "%s: value 0x%llx", call, (unsigned long long)e->value[i]);
  st = s ? OC_OK : span_make(d, c->type, c->start, c->bytes, call, &s);
  if (st) {
    undo_reclass(d, e, c);
    return st;
  }
  half->span = s;
  half->owned = c->ownership == OWNED;
  return OC_OK;
}

static void give_claim_up(struct oc_derived *d, struct entry *e, int i, const struct claim *c) {
  struct span *s = e->half[i].span;
  if (!s) return;
  undo_reclass(d, e, c);
  if (s != e->key_span) oci_span_put(d, s);   /* which the caller puts */
}

static oc_status take_claims(struct oc_derived *d, struct entry *e, struct claim c[2], const char *call) {
  oc_status st = take_claim(d, e, 0, &c[0], call);
  if (st) return st;
  if (c[1].ownership != NOBODY && c[0].ownership != NOBODY && c[1].start == c[0].start) c[1].ownership = NOBODY;
  st = take_claim(d, e, 1, &c[1], call);
  if (st) give_claim_up(d, e, 0, &c[0]);
  return st;
}

oc_status oci_entry_make(struct oc_derived *d, oc_kind kind, uint64_t key, const uint64_t value[2],
                         const struct oc_build *build, const char *call, struct entry **out) {
  struct claim claims[2];
  bool pair = oci_kind_arity[kind] == OC_PAIR;
  const uint64_t v[2] = {value[0], pair ? value[1] : 0};
  for (int i = 0; i < 2; i++) {
    oc_status st = claim_value(d, key, v[i], build, &claims[i], call);
    if (st) return st;
  }
  if (!pair) oci_map_of_values(&d->maps[kind]);
  struct entry *e = oci_map_reserve(&d->maps[kind]) ? oci_records_take(&d->entry_records) : NULL;
  if (!e) return oci_error(OC_E_HOST_NOMEM, "%s: out of host memory", call);
  e->kind = kind;
  e->key = key;
  e->value[0] = v[0];
  e->value[1] = v[1];
  e->batch = NULL;
  __atomic_store_n(&e->captured, 0, __ATOMIC_RELAXED);
  oc_status st = oci_span_of_key(d, key, call, &e->key_span);
  if (!st) st = take_claims(d, e, claims, call);
  if (!st) {
    *out = e;
    return OC_OK;
  }
  oci_span_put(d, e->key_span);
  oci_records_give(&d->entry_records, e);
  return st;
}

/* ---- publishing ---- */

static void join_spans(struct entry *e) {
  if (e->key_span) link_add_tail(&e->key_span->keys, &e->by_key);
  for (int i = 0; i < 2; i++) {
    struct entry_value *half = &e->half[i];
    if (!half->span) continue;
    link_add_tail(&half->span->values, &half->link);
    if (half->owned) half->span->owners++;
  }
}

void oci_entry_publish(struct oc_derived *d, struct entry *e) {
  join_spans(e);
  if (e->kind >= d->kinds) d->kinds = e->kind + 1;
  oci_map_put(&d->maps[e->kind], e->key, e->value[0], e->value[1], (uint64_t)(uintptr_t)e | (e->batch ? MAP_FLAG : 0));
  __atomic_store_n(&d->len, d->len + 1, __ATOMIC_RELAXED);
}

/* A span stays, and its block tracked, until the waits are over: else another thread could free the block while a
   reader inside a guard still uses what it looked up there. */
static void leave_value(struct entry_value *half) {
  struct span *s = half->span;
  if (!s) return;
  link_remove(&half->link);
  s->leaving++;
  s->going = 0;
  if (half->owned && --s->owners == 0) s->dying = true;
}

void oci_entry_unpublish(struct oc_derived *d, struct entry *e) {
  oci_map_drop(&d->maps[e->kind], e->key);
  __atomic_store_n(&d->len, d->len - 1, __ATOMIC_RELAXED);
  d->leaving++;
  if (e->batch) oci_batch_leave(e);
  link_remove(&e->by_key);
  if (e->key_span) e->key_span->leaving++;
  for (int i = 0; i < 2; i++) leave_value(&e->half[i]);
}

static void left(struct oc_derived *d, struct span *s, struct link *gone) {
  if (--s->leaving) return;
  if (s->dying) link_move_tail(gone, &s->link);
  else oci_span_put(d, s);
}

/* Only now is the mark final: a reader inside a guard may have set it after the entry was unpublished. */
static void settle_value(struct oc_derived *d, const struct entry *e, struct entry_value *half, struct link *gone) {
  struct span *s = half->span;
  if (!s) return;
  uint32_t captured = __atomic_load_n(&e->captured, __ATOMIC_RELAXED);
  if (captured > s->captured) s->captured = captured;
  half->span = NULL;
  left(d, s, gone);
}

void oci_entry_settle(struct oc_derived *d, struct entry *e, struct link *gone) {
  for (int i = 0; i < 2; i++) settle_value(d, e, &e->half[i], gone);
  if (e->key_span) left(d, e->key_span, gone);
  d->leaving--;
  link_remove(&e->link);
  oci_records_give(&d->entry_records, e);
}

struct entry *oci_entry_find(struct oc_derived *d, oc_kind kind, uint64_t key) {
  struct map_hit hit;
  return oci_map_get(&d->maps[kind], key, &hit) ? oci_map_entry(hit.entry) : NULL;
}
