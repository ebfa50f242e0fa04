/* SPDX-License-Identifier: MIT */
/* Blocks that were given back and still wait: PENDING for an event (G20), HELD and RETIRED for a drain. */
#include "config.h"

#include "allocator/pool_internal.h"

#include <inttypes.h>

#include "rcu/error.h"

/* ---- queues of pending blocks ---- */

static struct queue *queue_of(const struct pool *p, const void *stream) {
  struct table_node *n = oci_table_find(&p->by_stream, pool_stream_hash(stream));
  return n ? CONTAINER(n, struct queue, node) : NULL;
}

static struct queue *new_queue(struct pool *p, void *stream) {
  struct queue *q = oci_table_reserve(&p->by_stream) ? meta_alloc(&p->meta, sizeof *q) : NULL;
  if (!q) return NULL;
  q->stream = stream;
  oci_table_add(&p->by_stream, &q->node, pool_stream_hash(stream));
  link_add_tail(&p->queues, &q->link);
  return q;
}

static void free_queue(struct pool *p, struct queue *q) {
  oci_table_remove(&p->by_stream, &q->node);
  link_remove(&q->link);
  meta_free(&p->meta, q, sizeof *q);
}

/* False without host memory for a stream's first. */
static bool enqueue(struct pool *p, struct pending *w, void *stream) {
  struct queue *q = queue_of(p, stream);
  if (!q) q = new_queue(p, stream);
  if (!q) return false;
  if (q->last) q->last->next = w;
  else q->first = w;
  q->last = w;
  __atomic_add_fetch(&p->front.pending_count, 1, __ATOMIC_RELAXED);
  return true;
}

/* ---- free_on ---- */

static void unmark(struct pool *p, void *event) { p->dev.unmark(p->dev.arg, event); }

static struct verdict judge_locked(struct pool *p, uint64_t ptr, unsigned classes, bool tracked_too) {
  pool_lock(p);
  struct verdict v = oci_pool_judge(p, ptr, classes, tracked_too);
  pool_unlock(p);
  return v;
}

static int no_memory(uint64_t ptr) {
  return oci_error(POOL_E_HOST_NOMEM, "no host memory to let 0x%" PRIx64 " wait for its stream", ptr);
}

static struct verdict pend(struct pool *p, struct pending *w, uint64_t ptr, unsigned classes, void *stream, bool tracked_too) {
  pool_lock(p);
  /* Asked again: the pool's lock was not held while the device was called. */
  struct verdict v = oci_pool_judge(p, ptr, classes, tracked_too);
  if (v.status == POOL_OK) {
    w->block = v.index;
    if (enqueue(p, w, stream)) oci_pool_wait(p, v.index, BLOCK_PENDING);
    else v.status = POOL_E_HOST_NOMEM;
  }
  pool_unlock(p);
  return v;
}

int oci_pool_free_pending(struct pool *p, uint64_t ptr, unsigned classes, void *stream, bool tracked_too) {
  struct verdict v = judge_locked(p, ptr, classes, tracked_too);
  if (v.status != POOL_OK) return oci_pool_word(&v, ptr);
  struct pending *w = meta_alloc(&p->meta, sizeof *w);
  if (!w) return no_memory(ptr);
  int status = p->dev.mark(p->dev.arg, stream, &w->event);
  if (status) goto no_event;
  v = pend(p, w, ptr, classes, stream, tracked_too);
  if (v.status == POOL_OK) return POOL_OK;
  unmark(p, w->event);
  status = v.status == POOL_E_HOST_NOMEM ? no_memory(ptr) : oci_pool_word(&v, ptr);
no_event:
  meta_free(&p->meta, w, sizeof *w);
  return status;
}

/* ---- collecting ---- */

#define MOST_FAILURES 4u   /* of queries, in one queue, before the rest is left to another time */
#define SOME_QUEUES 4u     /* what a call asks that has other things to do, however many streams there are */

static bool take_queues(struct pool *p, struct link *taken, uint32_t most) {
  link_init(taken);
  pool_lock(p);
  for (uint32_t n = 0; n < most && !link_empty(&p->queues); n++) {
    struct queue *q = CONTAINER(p->queues.next, struct queue, link);
    q->end = q->last;
    link_move_tail(taken, &q->link);
  }
  bool any = !link_empty(taken);
  if (any) __atomic_store_n(&p->collecting, p->collecting + 1, __ATOMIC_RELAXED);   /* the kernel looks too: oci_lock_sleep */
  pool_unlock(p);
  return any;
}

/* Asks for a queue's blocks until one has not passed; one that cannot be asked waits on, and does not keep those behind
   it from being asked. Without the lock: others only add behind the end, and the end's next is not looked at. */
static int ask_queue(struct pool *p, struct queue *q) {
  unsigned failures = 0;
  for (struct pending *w = q->first;; w = w->next) {
    int answer = p->dev.passed(p->dev.arg, w->event);
    if (answer > 0) return answer;
    w->passed = answer == 0;
    q->asked++;
    failures += answer < 0;
    if (w == q->end || failures == MOST_FAILURES || answer == POOL_E_DEVICE_LOST) return answer;
  }
}

static void ask(struct pool *p, struct link *taken) {
  LINK_EACH(l, taken) {
    /* A lost device answers nothing any more. */
    if (ask_queue(p, CONTAINER(l, struct queue, link)) == POOL_E_DEVICE_LOST) return;
  }
}

/* Those of a queue that have passed, pushed on *done; the others keep their order. */
static void take_passed(struct queue *q, struct pending **done) {
  struct pending **at = &q->first, *kept = NULL;
  for (; q->asked; q->asked--) {
    struct pending *w = *at;
    if (!w->passed) {
      kept = w;
      at = &w->next;
      continue;
    }
    *at = w->next;
    if (w == q->last) q->last = kept;
    w->next = *done;
    *done = w;
  }
}

static struct pending *put_back(struct pool *p, struct link *taken) {
  struct pending *done = NULL;
  LINK_EACH(l, taken) {
    struct queue *q = CONTAINER(l, struct queue, link);
    take_passed(q, &done);
    if (q->first) link_move_tail(&p->queues, l);
    else free_queue(p, q);
  }
  return done;
}

static struct pending *put_back_and_free(struct pool *p, struct link *taken) {
  uint32_t freed = 0;
  pool_lock(p);
  struct pending *done = put_back(p, taken);
  for (struct pending *w = done; w; w = w->next, freed++) oci_pool_unuse(p, w->block);
  __atomic_sub_fetch(&p->front.pending_count, freed, __ATOMIC_RELAXED);
  uint32_t left = p->collecting - 1;
  __atomic_store_n(&p->collecting, left, __ATOMIC_RELAXED);
  if (!left) oci_lock_changed(&p->collecting);
  pool_unlock(p);
  return done;
}

static void drop(struct pool *p, struct pending *list) {
  struct pending *next;
  for (; list; list = next) {
    next = list->next;
    unmark(p, list->event);
    meta_free(&p->meta, list, sizeof *list);
  }
}

static void collect(struct pool *p, uint32_t most) {
  struct link taken;
  /* A count that is a moment old only puts the block off to the next time. */
  if (!oci_pool_pending(p) || !take_queues(p, &taken, most)) return;
  ask(p, &taken);
  drop(p, put_back_and_free(p, &taken));
}

void oci_pool_collect(struct pool *p) { collect(p, UINT32_MAX); }

void oci_pool_collect_some(struct pool *p) { collect(p, SOME_QUEUES); }

void oci_pool_wait_for_collectors(struct pool *p) {
  while (p->collecting) oci_lock_sleep(&p->lock, &p->collecting, p->collecting);
}

void oci_pool_collect_all(struct pool *p) {
  oci_pool_collect(p);
  pool_lock(p);
  oci_pool_wait_for_collectors(p);
  pool_unlock(p);
}

void oci_pool_drop_pending(struct pool *p, struct link *queues) {
  LINK_EACH(l, queues) {
    struct queue *q = CONTAINER(l, struct queue, link);
    drop(p, q->first);
    meta_free(&p->meta, q, sizeof *q);
  }
}

/* ---- held and retired ---- */

static struct waiting *list_of(struct pool *p, const struct block *b) {
  return b->state == BLOCK_HELD ? &p->held : &p->retired;
}

void oci_pool_wait_list(struct pool *p, uint32_t index) {
  struct block *b = pool_block(p, index);
  struct waiting *w = list_of(p, b);
  b->list_prev = w->tail;
  b->list_next = 0;
  if (w->tail) pool_block(p, w->tail)->list_next = index;
  else w->head = index;
  w->tail = index;
  w->count++;
}

/* Blocks in batches are RETIRED too, and in no list of the pool's. */
static bool is_listed(const struct pool *p, const struct waiting *w, uint32_t index) {
  if (!p->taken) return true;
  uint32_t i = w->head;
  while (i && i != index) i = pool_block(p, i)->list_next;
  return i != 0;
}

static bool leave_list(struct pool *p, struct waiting *w, uint32_t index) {
  if (!is_listed(p, w, index)) return false;
  const struct block *b = pool_block(p, index);
  uint32_t prev = b->list_prev, next = b->list_next;
  if (prev) pool_block(p, prev)->list_next = next;
  else w->head = next;
  if (next) pool_block(p, next)->list_prev = prev;
  else w->tail = prev;
  w->count--;
  return true;
}

/* The retired block that starts there, and has since then, off its list; 0: there is none. */
static uint32_t take_retired(struct pool *p, uint64_t ptr, uint64_t takes) {
  if (p->takes != takes) return 0;
  struct verdict v = oci_pool_judge(p, ptr, ~0u, true);
  bool retired = v.index && v.start == ptr && v.state == BLOCK_RETIRED && leave_list(p, &p->retired, v.index);
  return retired ? v.index : 0;
}

static int not_retired(uint64_t ptr) {
  return oci_error(POOL_E_NOT_OWNED, "0x%" PRIx64 " is no retired block", ptr);
}

int oci_pool_unretire(struct pool *p, uint64_t ptr, uint64_t takes) {
  pool_lock(p);
  uint32_t index = take_retired(p, ptr, takes);
  if (index) oci_pool_unuse(p, index);
  pool_unlock(p);
  return index ? POOL_OK : not_retired(ptr);
}

static int pend_retired(struct pool *p, struct pending *w, uint64_t ptr, void *stream, uint64_t takes) {
  int status = POOL_E_NOT_OWNED;
  pool_lock(p);
  uint32_t index = take_retired(p, ptr, takes);
  if (index) {
    w->block = index;
    status = enqueue(p, w, stream) ? POOL_OK : POOL_E_HOST_NOMEM;
    if (status) oci_pool_wait_list(p, index);
    else pool_block(p, index)->state = BLOCK_PENDING;   /* counted as retired either way */
  }
  pool_unlock(p);
  return status;   /* w may be gone: another thread may have collected it */
}

int oci_pool_unretire_after(struct pool *p, uint64_t ptr, void *stream, uint64_t takes) {
  struct pending *w = meta_alloc(&p->meta, sizeof *w);
  if (!w) return no_memory(ptr);
  int status = p->dev.mark(p->dev.arg, stream, &w->event);
  if (status) goto no_event;
  status = pend_retired(p, w, ptr, stream, takes);
  if (status == POOL_OK) return POOL_OK;
  unmark(p, w->event);
  status = status == POOL_E_HOST_NOMEM ? no_memory(ptr) : not_retired(ptr);
no_event:
  meta_free(&p->meta, w, sizeof *w);
  return status;
}

uint64_t oci_pool_takes(const struct pool *p) {
  return __atomic_load_n(&p->takes, __ATOMIC_RELAXED);
}

static void take(struct pool *p, struct waiting *w, struct pool_batch *b) {
  if (!w->head) return;
  pool_block(p, w->tail)->list_next = b->head;
  b->head = w->head;
  b->count += w->count;
  p->taken += w->count;
  *w = (struct waiting){0};
}

struct pool_batch oci_pool_take(struct pool *p, unsigned what) {
  struct pool_batch b = {0, 0};
  pool_lock(p);
  if (what & POOL_TAKE_RETIRED) {
    take(p, &p->retired, &b);
    __atomic_store_n(&p->takes, p->takes + 1, __ATOMIC_RELAXED);
  }
  if (what & POOL_TAKE_HELD) take(p, &p->held, &b);
  pool_unlock(p);
  return b;
}

#define BATCH_HOLD 256u   /* blocks between two looks at the lock, so that others are not kept waiting long */

static void empty_batch(struct pool *p, struct pool_batch *b, void (*each)(struct pool *p, uint32_t index)) {
  pool_lock(p);
  for (uint32_t n = 0; b->head && !p->released; n++) {
    uint32_t index = b->head;
    b->head = pool_block(p, index)->list_next;
    p->taken--;
    each(p, index);
    if (n % BATCH_HOLD != BATCH_HOLD - 1) continue;
    pool_unlock(p);
    pool_lock(p);
  }
  pool_unlock(p);
  *b = (struct pool_batch){0, 0};
}

void oci_pool_give_back(struct pool *p, struct pool_batch *b) { empty_batch(p, b, oci_pool_unuse); }

void oci_pool_put_back(struct pool *p, struct pool_batch *b) { empty_batch(p, b, oci_pool_wait_list); }
