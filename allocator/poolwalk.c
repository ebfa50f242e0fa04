/* SPDX-License-Identifier: MIT */
/*
 * A walk over every block, in the order of addresses, while others allocate and free.
 *
 * snapshot: all arenas, blocks, external ranges and tags of one moment: what the pool's lock is held for. It is then
 *           told without the lock, so that who listens may call anything. Owned by the walk.
 */
#include "config.h"

#include "allocator/pool_internal.h"

#include "rcu/error.h"

struct shot_block {
  uint64_t start;
  uint32_t units, tag, arena;    /* arena: place in snapshot.arenas */
  uint8_t state, class, slack;
  bool tracked;
};

/* Places in each array. */
struct room {
  uint32_t arenas, blocks, ranges, tags;
};

struct snapshot {
  struct room room, count;
  struct pool_arena_view *arenas;
  struct shot_block *blocks;
  struct range *ranges;
  struct ledger_row *tags;
};

/* ---- room ---- */

/* Under lock. */
static struct room needed(const struct pool *p) {
  return (struct room){.arenas = p->sub.count, .blocks = p->sub.slab.fresh - p->sub.slab.unused_count,
                       .ranges = p->external.count * RANGES_IN_CHUNK, .tags = p->ledger.tag_count};
}

static bool has_room(const struct room *have, const struct room *need) {
  return have->arenas >= need->arenas && have->blocks >= need->blocks && have->ranges >= need->ranges &&
         have->tags >= need->tags;
}

static void snapshot_drop(struct snapshot *s) {
  oci_free(NULL, s->arenas, s->room.arenas * sizeof *s->arenas);
  oci_free(NULL, s->blocks, s->room.blocks * sizeof *s->blocks);
  oci_free(NULL, s->ranges, s->room.ranges * sizeof *s->ranges);
  oci_free(NULL, s->tags, s->room.tags * sizeof *s->tags);
  *s = (struct snapshot){0};
}

/* Somewhat more than was needed a moment ago: others go on. */
static uint32_t with_more(uint32_t n) {
  return n + n / 8 + 16;
}

static bool snapshot_make_room(struct snapshot *s, const struct room *need) {
  snapshot_drop(s);
  s->room = (struct room){.arenas = with_more(need->arenas), .blocks = with_more(need->blocks),
                          .ranges = with_more(need->ranges), .tags = with_more(need->tags)};
  s->arenas = oci_alloc(NULL, s->room.arenas * sizeof *s->arenas);
  s->blocks = oci_alloc(NULL, s->room.blocks * sizeof *s->blocks);
  s->ranges = oci_alloc(NULL, s->room.ranges * sizeof *s->ranges);
  s->tags = oci_alloc(NULL, s->room.tags * sizeof *s->tags);
  return s->arenas && s->blocks && s->ranges && s->tags;
}

/* ---- the moment ---- */

static void shoot_arena(struct snapshot *s, const struct pool *p, const struct arena *a) {
  uint32_t place = s->count.arenas++;
  s->arenas[place] = (struct pool_arena_view){
    .index = place, .base = a->base, .bytes = units_bytes(a->units), .used = units_bytes(a->used),
    .driver_base = a->driver_base, .driver_bytes = a->driver_bytes, .managed = a->managed, .lost = a->lost};
  for (uint32_t i = a->first; i; i = pool_block(p, i)->next) {
    const struct block *b = pool_block(p, i);
    s->blocks[s->count.blocks++] = (struct shot_block){
      .start = suballoc_addr(&p->sub, b), .units = b->units, .tag = b->tag, .arena = place,
      .state = b->state, .class = b->class, .slack = b->slack, .tracked = b->tracked};
  }
}

/* Under lock, with room. */
static void shoot(struct snapshot *s, const struct pool *p) {
  for (uint32_t i = 0; i < p->sub.count; i++) shoot_arena(s, p, p->sub.spans[i].arena);
  /* analyzer: the chunks up to count are there */
  for (uint32_t c = 0; c < p->external.count; c++)
    for (uint32_t i = 0; i < p->external.chunks[c]->count; i++)
      s->ranges[s->count.ranges++] = p->external.chunks[c]->at[i];
  for (; s->count.tags < p->ledger.tag_count; s->count.tags++)
    oci_ledger_row(&p->ledger, s->count.tags, &s->tags[s->count.tags]);
}

/* Memory is taken without the lock, so what is needed may grow meanwhile: then once more. */
static bool snapshot_take(struct snapshot *s, struct pool *p) {
  *s = (struct snapshot){0};
  for (;;) {
    pool_lock(p);
    struct room need = needed(p);
    bool fits = has_room(&s->room, &need);
    if (fits) shoot(s, p);
    pool_unlock(p);
    if (fits) return true;
    if (!snapshot_make_room(s, &need)) return false;
  }
}

/* ---- telling ---- */

static enum block_view_state state_of(uint8_t state) {
  switch (state) {
  case BLOCK_FREE: return VIEW_FREE;
  case BLOCK_LIVE: return VIEW_LIVE;
  case BLOCK_LOST: return VIEW_LOST;
  default: return VIEW_RETIRED;
  }
}

static int tell_block(const struct snapshot *s, const struct shot_block *b, pool_block_fn each, void *arg) {
  struct block_view v = {.start = b->start, .bytes = units_bytes(b->units), .state = state_of(b->state),
                         .class = b->class, .tracked = b->tracked, .arena = &s->arenas[b->arena]};
  v.requested = v.state == VIEW_FREE ? 0 : v.bytes - b->slack;
  if (v.state == VIEW_LIVE || v.state == VIEW_RETIRED) v.tag = &s->tags[b->tag];
  return each(arg, &v);
}

static int tell_range(const struct snapshot *s, const struct range *r, pool_block_fn each, void *arg) {
  struct block_view v = {.start = r->from, .bytes = r->bytes, .requested = r->bytes, .state = VIEW_EXTERNAL,
                         .tracked = r->tracked, .tag = &s->tags[r->tag]};
  return each(arg, &v);
}

static int tell(const struct snapshot *s, pool_block_fn each, void *arg) {
  int status = POOL_OK;
  for (uint32_t i = 0; !status && i < s->count.blocks; i++) status = tell_block(s, &s->blocks[i], each, arg);
  for (uint32_t i = 0; !status && i < s->count.ranges; i++) status = tell_range(s, &s->ranges[i], each, arg);
  return status;
}

int oci_pool_walk(struct pool *p, pool_block_fn each, void *arg) {
  struct snapshot s;
  int status = snapshot_take(&s, p) ? tell(&s, each, arg)
                                    : oci_error(POOL_E_HOST_NOMEM, "no memory for a list of the pool's blocks");
  snapshot_drop(&s);
  return status;
}
