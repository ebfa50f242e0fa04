/* SPDX-License-Identifier: MIT */
/* One walk over every invariant: the equations that stand beside the fields, recomputed. */
#include "config.h"

#include "allocator/pool_internal.h"

#include <inttypes.h>

#include "rcu/error.h"

/* What the walk counted. */
struct census {
  uint64_t blocks, free_blocks, free_units, live_blocks, live_bytes, retired_bytes, units;
  uint64_t pending, waiting, managed_arenas, managed_bytes;
  struct ledger_tag *tags;       /* counters only, by tag */
};

static int bad(uint64_t base, uint64_t off, const char *what) {
  return oci_error(POOL_E_INVALID, "oc_pool_check: arena 0x%" PRIx64 ", offset %" PRIu64 ": %s", base, off, what);
}

static int bad_pool(const char *what, uint64_t is, uint64_t should) {
  return oci_error(POOL_E_INVALID, "oc_pool_check: %s: %" PRIu64 ", the walk says %" PRIu64, what, is, should);
}

/* ---- arenas ---- */

static const char *wrong_with(const struct pool *p, const struct arena *a, uint32_t index, uint32_t before,
                              uint64_t off) {
  const struct block *b = pool_block(p, index);
  bool after_free = before && pool_block(p, before)->state == BLOCK_FREE;
  if (b->off != off) return "a gap or an overlap between neighbours";
  if (!b->units) return "a block of nothing";
  if (b->prev != before) return "a block's link to its left neighbour is wrong";
  if (b->arena != a->slot) return "a block belongs to another arena";
  if (b->state == BLOCK_UNUSED || b->state > BLOCK_LOST) return "a block has no state";
  if (b->state == BLOCK_FREE && after_free) return "two free neighbours";
  if (b->state == BLOCK_FREE && (b->slack || b->tracked)) return "a free block with remains of its last use";
  if ((b->state == BLOCK_LOST) != a->lost) return "a lost block outside a lost arena";
  if (b->state != BLOCK_FREE && b->tag >= p->ledger.tag_count) return "a block's tag is not in the ledger";
  return NULL;
}

static void count_block(struct census *c, const struct block *b) {
  c->blocks++;
  if (b->state == BLOCK_FREE) {
    c->free_blocks++;
    c->free_units += b->units;
  } else if (b->state == BLOCK_LIVE) {
    c->live_blocks++;
    c->live_bytes += block_bytes(b);
    c->tags[b->tag].live_blocks++;
    c->tags[b->tag].live_bytes += block_bytes(b);
  } else {
    c->pending += b->state == BLOCK_PENDING;
    c->waiting += b->state == BLOCK_HELD || b->state == BLOCK_RETIRED;
    c->retired_bytes += block_bytes(b);
    c->tags[b->tag].retired_bytes += block_bytes(b);
  }
}

static int check_arena(const struct pool *p, const struct arena *a, struct census *c) {
  uint64_t off = 0, free_before = c->free_units;
  for (uint32_t i = a->first, before = 0; i; before = i, i = pool_block(p, i)->next) {
    const char *wrong = wrong_with(p, a, i, before, off);
    if (wrong) return bad(a->base, off, wrong);
    off += pool_block(p, i)->units;
    if (off > a->units) return bad(a->base, off, "blocks reach past the arena's end");
    count_block(c, pool_block(p, i));
  }
  if (off != a->units) return bad(a->base, off, "blocks end before the arena does");
  if (a->used + (c->free_units - free_before) != a->units) return bad(a->base, a->used, "used + free != arena bytes");
  if (a->base % UNIT_BYTES) return bad(a->base, 0, "the arena's first byte is not aligned");
  if (!oci_pages_check(&a->pages, &p->sub.leaves, &p->sub.slab, a->first))
    return bad(a->base, 0, "the page table does not match the blocks");
  c->units += a->units;
  c->managed_arenas += a->managed;
  c->managed_bytes += a->managed ? units_bytes(a->units) : 0;
  return POOL_OK;
}

static int check_arenas(const struct pool *p, struct census *c) {
  for (uint32_t i = 0; i < p->sub.count; i++) {
    const struct span *s = &p->sub.spans[i];
    if (i && s[-1].to > s->from) return bad(s->from, 0, "arenas overlap or are out of order");
    if (p->sub.slots[s->arena->slot] != s->arena) return bad(s->from, 0, "an arena is not in its slot");
    int status = check_arena(p, s->arena, c);
    if (status) return status;
  }
  return POOL_OK;
}

/* ---- records, bins, lists ---- */

/* Arenas on their way from or to the driver have a slot and a record, and no span. */
static uint32_t arenas_under_way(const struct pool *p) {
  uint32_t slots = 0;
  for (uint32_t i = 0; i < p->sub.capacity; i++) slots += p->sub.slots[i] != NULL;
  return slots - p->sub.count;
}

static int check_bins(const struct pool *p, const struct census *c) {
  uint64_t blocks, units;
  const char *why;
  const struct slab *s = &p->sub.slab;
  if (!oci_bins_check(&p->sub.bins, s, &blocks, &units, &why))
    return oci_error(POOL_E_INVALID, "oc_pool_check: %s", why);
  if (blocks != c->free_blocks) return bad_pool("free blocks in bins", blocks, c->free_blocks);
  if (units != c->free_units) return bad_pool("free units in bins", units, c->free_units);
  uint64_t used = s->fresh - 1 - s->unused_count - arenas_under_way(p);
  return used == c->blocks ? POOL_OK : bad_pool("records in use", used, c->blocks);
}

static int check_list(const struct pool *p, const struct waiting *w, uint8_t state) {
  uint32_t count = 0, last = 0;
  for (uint32_t i = w->head; i; i = pool_block(p, i)->list_next, count++) {
    uint8_t is = pool_block(p, i)->state;
    if (is != state) return bad_pool("state of a block on a waiting list", is, state);
    /* which also ends the walk of a list that goes round in a circle */
    if (pool_block(p, i)->list_prev != last)
      return bad_pool("link back in a waiting list", pool_block(p, i)->list_prev, last);
    last = i;
  }
  if (last != w->tail) return bad_pool("end of a waiting list", w->tail, last);
  return count == w->count ? POOL_OK : bad_pool("blocks on a waiting list", w->count, count);
}

static int check_queue(const struct pool *p, const struct queue *q, uint64_t *count) {
  const struct pending *last = NULL;
  for (const struct pending *w = q->first; w; last = w, w = w->next, ++*count)
    if (pool_block(p, w->block)->state != BLOCK_PENDING) return bad_pool("queued blocks that are not pending", 1, 0);
  if (!last) return bad_pool("queues of nothing", 1, 0);
  if (q->last != last) return bad_pool("queues whose end is lost", 1, 0);
  const struct table_node *found = oci_table_find(&p->by_stream, pool_stream_hash(q->stream));
  return found == &q->node ? POOL_OK : bad_pool("queues that their stream does not find", 1, 0);
}

static int check_queues(const struct pool *p, const struct census *c) {
  uint64_t count = 0, queues = 0;
  if (p->front.pending_count != c->pending) return bad_pool("pending blocks", p->front.pending_count, c->pending);
  if (p->collecting) return POOL_OK;   /* a thread has queues in hand */
  LINK_EACH(l, &p->queues) {
    int status = check_queue(p, CONTAINER(l, struct queue, link), &count);
    if (status) return status;
    queues++;
  }
  if (p->by_stream.count != queues) return bad_pool("streams with a queue", p->by_stream.count, queues);
  return count == c->pending ? POOL_OK : bad_pool("queued blocks", count, c->pending);
}

static int check_waiting(const struct pool *p, const struct census *c) {
  int status = check_list(p, &p->held, BLOCK_HELD);
  if (!status) status = check_list(p, &p->retired, BLOCK_RETIRED);
  if (status) return status;
  uint64_t waiting = (uint64_t)p->held.count + p->retired.count + p->taken;
  if (waiting != c->waiting) return bad_pool("held and retired blocks", waiting, c->waiting);
  return check_queues(p, c);
}

/* ---- sums ---- */

static int check_sums(const struct pool *p, const struct census *c) {
  const struct { const char *what; uint64_t is, should; } sums[] = {
    {"arena units", p->sub.total_units, c->units},
    {"free units", p->sub.free_units, c->free_units},
    {"live blocks", p->live_blocks, c->live_blocks},
    {"live bytes", p->live_bytes, c->live_bytes},
    {"retired bytes", p->retired_bytes, c->retired_bytes},
    {"live + retired + free bytes", p->live_bytes + p->retired_bytes + (p->sub.free_units << UNIT_SHIFT),
     c->units << UNIT_SHIFT},
    {"managed arenas", p->managed_arenas, c->managed_arenas},
    {"managed bytes", p->managed_bytes, c->managed_bytes},
    {"live bytes over their peak", p->live_bytes > p->peak_live_bytes, 0},
  };
  for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
    if (sums[i].is != sums[i].should) return bad_pool(sums[i].what, sums[i].is, sums[i].should);
  return POOL_OK;
}

static int check_external(const struct pool *p, struct census *c) {
  if (!oci_ranges_check(&p->external)) return bad_pool("external ranges out of order", 1, 0);
  for (uint32_t i = 0; i < p->external.count; i++)
    for (uint32_t j = 0; j < p->external.chunks[i]->count; j++) {
      const struct range *r = &p->external.chunks[i]->at[j];
      if (r->tag >= p->ledger.tag_count || !p->ledger.tags[r->tag].external)
        return bad_pool("external ranges without a tag", 1, 0);
      c->tags[r->tag].live_blocks++;
      c->tags[r->tag].live_bytes += r->bytes;
    }
  return POOL_OK;
}

static int check_ledger(const struct pool *p, const struct census *c) {
  for (uint32_t i = 0; i < p->ledger.tag_count; i++) {
    const struct ledger_tag *is = &p->ledger.tags[i], *should = &c->tags[i];
    if (is->live_blocks != should->live_blocks)
      return bad_pool("live blocks of a tag", is->live_blocks, should->live_blocks);
    if (is->live_bytes != should->live_bytes)
      return bad_pool("live bytes of a tag", is->live_bytes, should->live_bytes);
    if (is->retired_bytes != should->retired_bytes)
      return bad_pool("retired bytes of a tag", is->retired_bytes, should->retired_bytes);
    if (is->live_bytes > is->peak_bytes) return bad_pool("peak of a tag", is->peak_bytes, is->live_bytes);
  }
  return POOL_OK;
}

static int check_all(const struct pool *p, struct census *c) {
  int status = check_arenas(p, c);
  if (!status) status = check_bins(p, c);
  if (!status) status = check_waiting(p, c);
  if (!status) status = check_sums(p, c);
  if (!status) status = check_external(p, c);
  return status ? status : check_ledger(p, c);
}

int oci_pool_check(struct pool *p) {
  pool_lock(p);
  size_t bytes = p->ledger.tag_count * sizeof(struct ledger_tag);
  struct census c = {.tags = oci_alloc(p->meta.heap, bytes)};
  int status = c.tags ? check_all(p, &c) : POOL_E_HOST_NOMEM;
  oci_free(p->meta.heap, c.tags, bytes);
  pool_unlock(p);
  if (status == POOL_E_HOST_NOMEM) return oci_error(status, "no host memory to check the ledger's sums");
  return status;
}
