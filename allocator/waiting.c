/* SPDX-License-Identifier: MIT */
/* Blocks that were given back and still wait: PENDING for an event (G20), HELD and RETIRED for a drain. */
#include "config.h"

#include "allocator/pool_internal.h"

#include <inttypes.h>

#include "rcu/error.h"

/* ---- queues of pending blocks ---- */

static struct pending **queue_of(struct pending **queues, const void *stream) {
  while (*queues && (*queues)->stream != stream) queues = &(*queues)->next_queue;
  return queues;
}

static void enqueue(struct pool *p, struct pending *w) {
  struct pending *head = *queue_of(&p->queues, w->stream);
  w->next = NULL;
  if (head) {
    head->tail->next = w;
    head->tail = w;
    return;
  }
  w->tail = w;
  w->next_queue = p->queues;
  p->queues = w;
}

/* The head leaves its queue; the next one carries it on. *at holds the head. */
static void dequeue(struct pending **at) {
  struct pending *head = *at, *next = head->next;
  if (next) {
    next->tail = head->tail;
    next->next_queue = head->next_queue;
  }
  *at = next ? next : head->next_queue;
}

/* ---- free_on ---- */

static void unmark(struct pool *p, void *event) { p->dev.unmark(p->dev.arg, event); }

static struct verdict judge_locked(struct pool *p, uint64_t ptr, unsigned classes, bool tracked_too) {
  pool_lock(p);
  struct verdict v = oci_pool_judge(p, ptr, classes, tracked_too);
  pool_unlock(p);
  return v;
}

static struct verdict pend(struct pool *p, struct pending *w, uint64_t ptr, unsigned classes, bool tracked_too) {
  pool_lock(p);
  /* Asked again: the pool's lock was not held while the device was called. */
  struct verdict v = oci_pool_judge(p, ptr, classes, tracked_too);
  if (v.status == POOL_OK) {
    oci_pool_wait(p, v.index, BLOCK_PENDING);
    w->block = v.index;
    enqueue(p, w);
    __atomic_add_fetch(&p->front.pending_count, 1, __ATOMIC_RELAXED);
  }
  pool_unlock(p);
  return v;
}

int oci_pool_free_pending(struct pool *p, uint64_t ptr, unsigned classes, void *stream, bool tracked_too) {
  struct verdict v = judge_locked(p, ptr, classes, tracked_too);
  if (v.status != POOL_OK) return oci_pool_word(&v, ptr);
  struct pending *w = meta_alloc(&p->meta, sizeof *w);
  if (!w) return oci_error(POOL_E_HOST_NOMEM, "no host memory to let 0x%" PRIx64 " wait for its stream", ptr);
  w->stream = stream;
  int status = p->dev.mark(p->dev.arg, stream, &w->event);
  if (status) goto no_event;
  v = pend(p, w, ptr, classes, tracked_too);
  if (v.status == POOL_OK) return POOL_OK;
  unmark(p, w->event);
  status = oci_pool_word(&v, ptr);
no_event:
  meta_free(&p->meta, w, sizeof *w);
  return status;
}

/* ---- collecting ---- */

#define MOST_FAILURES 4u   /* of queries, in one queue, before the rest is left to another time */

/* Those that could not be asked, back to the front of their queue: *at holds its new head, or what follows it. */
static void put_first(struct pending **at, struct pending *end, struct pending *first, struct pending *last) {
  struct pending *rest = *at == end ? NULL : *at;
  first->next_queue = rest ? rest->next_queue : end;
  first->tail = rest ? rest->tail : last;
  last->next = rest;
  *at = first;
}

/* Asks for a queue's heads until one has not passed; one that cannot be asked waits on, and does not keep those
   behind it from being asked. Those that have passed are pushed on *done. */
static int ask_queue(struct pool *p, struct pending **at, struct pending **done) {
  struct pending *end = (*at)->next_queue, *first = NULL, *last = NULL;
  int answer = 0;
  for (unsigned failures = 0; *at != end && failures < MOST_FAILURES && answer != POOL_E_DEVICE_LOST;) {
    struct pending *head = *at;
    answer = p->dev.passed(p->dev.arg, head->event);
    if (answer > 0) break;
    dequeue(at);
    if (answer == 0) {
      head->next = *done;
      *done = head;
    } else {
      if (last) last->next = head;
      else first = head;
      last = head;
      failures++;
    }
  }
  if (first) put_first(at, end, first, last);
  return answer;
}

static struct pending *ask_all(struct pool *p, struct pending **queues) {
  struct pending *done = NULL;
  struct pending **at = queues;
  while (*at) {
    struct pending *end = (*at)->next_queue;
    /* A lost device answers nothing any more. */
    if (ask_queue(p, at, &done) == POOL_E_DEVICE_LOST) break;
    if (*at != end) at = &(*at)->next_queue;
  }
  return done;
}

static struct pending *take_queues(struct pool *p) {
  pool_lock(p);
  struct pending *queues = p->queues;
  p->queues = NULL;
  if (queues) __atomic_store_n(&p->collecting, p->collecting + 1, __ATOMIC_RELAXED);   /* the kernel looks too: oci_lock_sleep */
  pool_unlock(p);
  return queues;
}

/* Before what came to the stream's queue meanwhile. */
static void put_queue_back(struct pool *p, struct pending *head) {
  struct pending **at = queue_of(&p->queues, head->stream), *later = *at;
  if (later) {
    *at = later->next_queue;
    head->tail->next = later;
    head->tail = later->tail;
  }
  head->next_queue = p->queues;
  p->queues = head;
}

static void put_back_and_free(struct pool *p, struct pending *queues, struct pending *done) {
  uint32_t freed = 0;
  struct pending *next;
  pool_lock(p);
  for (; queues; queues = next) {
    next = queues->next_queue;
    put_queue_back(p, queues);
  }
  for (; done; done = done->next, freed++) oci_pool_unuse(p, done->block);
  __atomic_sub_fetch(&p->front.pending_count, freed, __ATOMIC_RELAXED);
  uint32_t left = p->collecting - 1;
  __atomic_store_n(&p->collecting, left, __ATOMIC_RELAXED);
  if (!left) oci_lock_changed(&p->collecting);
  pool_unlock(p);
}

static void drop(struct pool *p, struct pending *list) {
  struct pending *next;
  for (; list; list = next) {
    next = list->next;
    unmark(p, list->event);
    meta_free(&p->meta, list, sizeof *list);
  }
}

void oci_pool_collect(struct pool *p) {
  /* A count that is a moment old only puts the block off to the next time. */
  if (!__atomic_load_n(&p->front.pending_count, __ATOMIC_RELAXED)) return;
  struct pending *queues = take_queues(p);
  if (!queues) return;
  struct pending *done = ask_all(p, &queues);
  put_back_and_free(p, queues, done);
  drop(p, done);
}

void oci_pool_wait_for_collectors(struct pool *p) {
  while (p->collecting) oci_lock_sleep(&p->lock, &p->collecting, p->collecting);
}

void oci_pool_collect_all(struct pool *p) {
  oci_pool_collect(p);
  pool_lock(p);
  oci_pool_wait_for_collectors(p);
  pool_unlock(p);
}

void oci_pool_drop_pending(struct pool *p, struct pending *queues) {
  struct pending *next;
  for (; queues; queues = next) {
    next = queues->next_queue;
    drop(p, queues);
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

/* The retired block that starts there, off its list; 0: there is none. */
static uint32_t take_retired(struct pool *p, uint64_t ptr) {
  struct verdict v = oci_pool_judge(p, ptr, ~0u, true);
  bool retired = v.index && v.start == ptr && v.state == BLOCK_RETIRED && leave_list(p, &p->retired, v.index);
  return retired ? v.index : 0;
}

static int not_retired(uint64_t ptr) {
  return oci_error(POOL_E_NOT_OWNED, "0x%" PRIx64 " is no retired block", ptr);
}

int oci_pool_unretire(struct pool *p, uint64_t ptr) {
  pool_lock(p);
  uint32_t index = take_retired(p, ptr);
  if (index) oci_pool_unuse(p, index);
  pool_unlock(p);
  return index ? POOL_OK : not_retired(ptr);
}

static bool pend_retired(struct pool *p, struct pending *w, uint64_t ptr) {
  pool_lock(p);
  uint32_t index = take_retired(p, ptr);
  if (index) {
    w->block = index;
    pool_block(p, index)->state = BLOCK_PENDING;   /* counted as retired either way */
    enqueue(p, w);
    __atomic_add_fetch(&p->front.pending_count, 1, __ATOMIC_RELAXED);
  }
  pool_unlock(p);
  return index != 0;   /* w may be gone: another thread may have collected it */
}

int oci_pool_unretire_after(struct pool *p, uint64_t ptr, void *stream) {
  struct pending *w = meta_alloc(&p->meta, sizeof *w);
  if (!w) return oci_error(POOL_E_HOST_NOMEM, "no host memory to let 0x%" PRIx64 " wait for its stream", ptr);
  w->stream = stream;
  int status = p->dev.mark(p->dev.arg, stream, &w->event);
  if (status) goto no_event;
  if (pend_retired(p, w, ptr)) return POOL_OK;
  unmark(p, w->event);
  status = not_retired(ptr);
no_event:
  meta_free(&p->meta, w, sizeof *w);
  return status;
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
  if (what & POOL_TAKE_RETIRED) take(p, &p->retired, &b);
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
