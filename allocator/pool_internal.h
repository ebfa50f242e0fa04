/* SPDX-License-Identifier: MIT */
/*
 * Inside of the pool: what pool.c, grow.c, waiting.c, poolcheck.c and poolreport.c share.
 *
 * pool:      see pool.h. Two locks, growing before lock:
 *              lock:    all records; never held across a device call, never while waiting.
 *              growing: held across device allocations and the device frees that make room for them, so that
 *                       threads that run out together cause one sequence. A carve never takes it.
 * pending:   a block that waits for its event; owned by its queue.
 * queue:     one stream's pending blocks, first in, first out; owned by the pool, which finds it by its stream. Changed
 *            under lock; a thread that collects has it in hand, and so reads it without, up to the block that was its last.
 * waiting:   a list of HELD or RETIRED blocks.
 */
#ifndef OCI_ALLOCATOR_POOL_INTERNAL_H
#define OCI_ALLOCATOR_POOL_INTERNAL_H

#include <pthread.h>

#include "allocator/ledger.h"
#include "allocator/pool.h"
#include "allocator/ranges.h"
#include "allocator/suballoc.h"
#include "rcu/error.h"
#include "rcu/hash.h"
#include "rcu/list.h"
#include "rcu/lock.h"
#include "rcu/table.h"

#define POOL_E_UNSUPPORTED (-11)
#define POOL_E_BACKEND (-40)

struct pending {
  struct pending *next;          /* on the same stream */
  void *event;
  uint32_t block;
  bool passed;                   /* the collector's, until it takes the block out */
};

/* Never empty. One that a thread asks is in that thread's list, and takes blocks at its end meanwhile. */
struct queue {
  struct table_node node;        /* by stream */
  struct link link;
  void *stream;
  struct pending *first, *last;
  struct pending *end;           /* the collector's: the last when it took the queue; it looks no further */
  uint32_t asked;                /* the collector's: how many from the first on */
};

struct waiting {
  uint32_t head, tail, count;
};

#define POOL_WORDS 400u          /* of a driver's error that are kept */

struct pool {
  struct pool_front front;
  struct lock lock;
  struct suballoc sub;
  struct ledger ledger;
  struct ranges external;
  struct link queues;            /* those that no thread has in hand; the one not asked for longest is first */
  struct table by_stream;        /* all queues */
  struct waiting held, retired;
  uint32_t taken;                /* HELD and RETIRED blocks in batches */
  uint64_t takes;                /* atomic to read: times that RETIRED ones were taken */
  uint32_t collecting;           /* threads that have taken queues out; slept for (oci_lock_sleep) */
  bool stopped, released;
  bool untracked;                /* no block or range counts as tracked any more */
  /* live_bytes + retired_bytes + free == arena bytes; those of PENDING, HELD, RETIRED and LOST are retired */
  uint64_t live_blocks, live_bytes, peak_live_bytes, retired_bytes;
  struct pool_shown *shown;      /* beside what each alloc and free writes; NULL: nobody looks */
  uint64_t managed_arenas, managed_bytes;
  uint64_t external_blocks, external_bytes;
  uint64_t driver_allocs, driver_alloc_failures, driver_frees;
  uint32_t lost_tag;

  bool latched;                  /* atomic */

  pthread_mutex_t growing;
  uint64_t arena_min, arena_max; /* under growing */
  uint64_t base_align;           /* under growing: every base so far was a multiple of it */
  char device_words[POOL_WORDS]; /* under growing: the driver's, when device memory ran out */

  struct meta meta;
  struct pool_device dev;
  bool no_managed;
};

/* A request on its way: checked, and with its tag. */
struct order {
  uint32_t units;
  uint64_t align;
  uint64_t bytes;
  uint32_t tag;
  enum block_class class;
};

/* pool.c */
int oci_pool_carve(struct pool *p, const struct order *o, uint64_t *out);      /* under lock */
void oci_pool_wait(struct pool *p, uint32_t index, enum block_state state);    /* under lock: LIVE -> waiting */
void oci_pool_unuse(struct pool *p, uint32_t index);                           /* under lock: waiting -> FREE */
void oci_pool_stats_locked(struct pool *p, struct pool_stats *out);            /* under lock */
void oci_pool_show_now(struct pool *p);                                        /* under lock; somebody looks */

/* grow.c */
/* o NULL: an arena of `bytes`, nothing carved. */
int oci_pool_grow(struct pool *p, const struct order *o, uint64_t *out);
void oci_pool_set_limits(struct pool *p, size_t arena_min, size_t arena_max);

/* waiting.c */
int oci_pool_free_pending(struct pool *p, uint64_t ptr, unsigned classes, void *stream, bool tracked_too);
void oci_pool_wait_list(struct pool *p, uint32_t index);   /* under lock: a HELD or RETIRED block, to its list */
/* As oci_pool_collect, and waits for threads that are collecting. */
void oci_pool_collect_all(struct pool *p);
/* under lock, which is left meanwhile: until no thread has taken queues out */
void oci_pool_wait_for_collectors(struct pool *p);
void oci_pool_drop_pending(struct pool *p, struct link *queues);

/* Its queue's place in by_stream; one to one, so equal hashes are equal streams. */
static inline uint64_t pool_stream_hash(const void *stream) { return oci_hash_u64((uintptr_t)stream); }

static inline struct block *pool_block(const struct pool *p, uint32_t index) { return slab_at(&p->sub.slab, index); }

static inline void pool_note(const struct pool *p, enum pool_note what, uint64_t bytes) {
  if (p->dev.note) p->dev.note(p->dev.arg, what, bytes);
}

static inline bool pool_tracks(const struct pool *p, bool tracked) { return tracked && !p->untracked; }

static inline void pool_lock(struct pool *p) { lock_take(&p->lock); }
static inline void pool_unlock(struct pool *p) {
  /* All that changes, changes under the lock: so what is shown is true whenever it is free. */
  if (__builtin_expect(p->shown != NULL, 0)) oci_pool_show_now(p);
  lock_leave(&p->lock);
}

/* Log lines come out once growing is free: what they call may need it. */
static inline void pool_growing_lock(struct pool *p, struct log_held *lines) {
  pthread_mutex_lock(&p->growing);
  oci_log_hold(lines);
}
static inline void pool_growing_unlock(struct pool *p, struct log_held *lines) {
  pthread_mutex_unlock(&p->growing);
  oci_log_let_go(lines);
}

/* What a free found, to be worded without the lock. */
struct verdict {
  int status;
  uint32_t index;                /* POOL_OK: the block */
  uint64_t start, bytes;
  uint8_t state, class;
};
/* Under lock: is it a live block's start that these classes may free? */
struct verdict oci_pool_judge(struct pool *p, uint64_t ptr, unsigned classes, bool tracked_too);
int oci_pool_word(const struct verdict *v, uint64_t ptr);

#endif
