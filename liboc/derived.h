/* SPDX-License-Identifier: MIT */
/*
 * Derived weights: the memo of (kind, source pointer), the builds that fill it, and who owns what.
 *
 * derived: part of its model. Readers take no lock; writers its lock; no driver call and no wait under it.
 * entry:   one memoized value. Its memory is used again only after a grace period (a reader may mark it).
 * span:    a block, an external range or a foreign address that entries have keys or values in: owned by derived as
 *          long as some entry is in it. The pool's record of the block is marked `tracked` meanwhile.
 * batch:   an event that several commits on one stream share; owned by derived until it has passed.
 * build:   one value being made; belongs to the thread that began it. Its blocks are BLOCK_BUILD until it ends.
 *
 * An entry's value is owned (freed with the last entry that points into that span), borrowed (in a span that
 * somebody else frees, which forgets the entry) or none (0, or its own key).
 */
#ifndef OCI_LIBOC_DERIVED_H
#define OCI_LIBOC_DERIVED_H

#include <pthread.h>

#include "liboc/oc.h"
#include "liboc/tasks.h"
#include "rcu/list.h"
#include "rcu/map.h"
#include "rcu/records.h"
#include "rcu/table.h"

#define KINDS_MAX 256u

struct oc_derived {
  struct map maps[KINDS_MAX];    /* by kind: key -> v0, v1; entry struct entry, MAP_FLAG: unfinished */

  pthread_mutex_t lock;          /* all that follows, and the writing side of the maps */
  struct heap *heap;
  size_t len;                    /* atomic to read */
  size_t leaving;                /* unpublished entries whose waits are not over */
  uint64_t clock;                /* orders builds and inserts against invalidates */
  struct table spans;            /* by start */
  struct table builds;           /* open ones, by kind and key */
  struct link open;              /* the same, oldest first */
  uint32_t kinds;                /* kinds 0 .. kinds - 1 may have a map */
  struct link batches;
  struct records entry_records, span_records;
  struct link foreign;           /* spans of foreign values that are neither dying nor retired */
  struct link retired_foreign;   /* those that a graph holds */
  bool swept;                    /* teardown has: nothing is found any more, whatever entries and spans still say */
  struct link zombies;           /* builds aborted by another thread: until their owner ends them, or destroy */
};

enum span_type { SPAN_BLOCK, SPAN_EXTERNAL, SPAN_FOREIGN };

struct span {
  struct table_node node;        /* by start */
  struct link link;              /* on an invalidate's list, foreign or retired_foreign */
  uint64_t start, bytes;
  enum span_type type;
  bool dying;                    /* its last owner went: it is freed after guards and streams, and takes nobody in */
  uint32_t owners;               /* entries that own their value in it */
  uint32_t leaving;              /* keys and values of unpublished entries whose waits are not over */
  uint32_t going;                /* owners doomed by the walk at work; else 0 */
  uint32_t captured;             /* newest graph epoch among entries that left */
  struct link keys;              /* entry.by_key */
  struct link builds;            /* oc_build.by_key: open ones */
  struct link values;            /* entry.half[].link */
};

struct entry_value {
  struct link link;              /* in its span's values */
  struct span *span;             /* NULL: none, or in the same span as the other half */
  struct entry *entry;
  bool owned;
};

struct entry {
  struct link link;              /* on an invalidate's list */
  struct link in_batch;
  struct link by_key;
  struct span *key_span;         /* NULL: the key is in no block of this pool and no external range */
  struct entry_value half[2];
  struct batch *batch;           /* NULL: finished */
  uint64_t key, value[2], born;
  oc_kind kind;
  uint32_t captured;             /* atomic: graph epoch in which a capture was handed it; 0: never */
};

struct batch {
  struct link link;
  struct link entries;
  oc_event event;
  oc_stream stream;
  uint32_t commits;              /* that recorded the event; at BATCH_MAX it takes no more */
  uint32_t recording;            /* commits between "will record" and "has stored" */
  uint32_t pins;                 /* threads that use the event without the lock */
  uint64_t version;              /* grows with each "will record" */
  uint64_t id;                   /* by derived.clock */
  bool finished;                 /* off the list: freed with its last pin */
  bool orphan;                   /* its stream was forgotten: the handle may be another stream's by now */
};

enum build_state { BUILD_OPEN, BUILD_ENDED, BUILD_ABORTED };

struct oc_build {
  struct table_node node;        /* in derived.builds */
  struct link link;              /* in open, or in zombies */
  struct link by_key;
  struct span *key_span;         /* while open; NULL: as an entry's */
  struct task task;
  enum build_state state;        /* under derived.lock */
  bool callback;                 /* of get_or_build: the library ends it; the owner's thread's to read */
  oc_derived *derived;
  oc_kind kind;
  uint64_t key, begun;
  uint64_t since;                /* oci_now_ns when it was opened: sight.c */
  oc_site site;                  /* file and func are copies */
  bool has_stream;
  oc_stream stream;
  uint64_t *blocks;              /* [block_cap] */
  size_t block_count, block_cap;
};

void oci_derived_init(struct oc_derived *d, struct heap *h);
void oci_derived_free(struct oc_derived *d);

/* ---- kinds (kinds.c) ---- */
extern uint8_t oci_kind_arity[KINDS_MAX];     /* 0: no such kind; set once */
const char *oci_kind_name(oc_kind kind);      /* "?" if unknown */
/* The owner's name in the ledger: "derived bf16". */
const char *oci_kind_owner(oc_kind kind);
/* Is that some kind's? */
bool oci_kind_owns(const char *owner);
oc_status oci_kind_check(oc_kind kind, oc_arity arity, const char *call);
static inline bool oci_kind_is(oc_kind kind, oc_arity arity) {
  return kind < KINDS_MAX && __atomic_load_n(&oci_kind_arity[kind], __ATOMIC_RELAXED) == (uint8_t)arity;
}


/* ---- entries and spans (entry.c); all with the lock held ---- */
/* Makes an entry of these values and settles who owns them: finds or makes the spans, reclasses blocks. All or
   nothing. `build`: its own blocks count as the entry's. Words its failures: OC_E_NOT_OWNED, OC_E_HOST_NOMEM. */
oc_status oci_entry_make(struct oc_derived *d, oc_kind kind, uint64_t key, const uint64_t value[2],
                         const struct oc_build *build, const char *call, struct entry **out);
/* Publishes it; cannot fail. Unfinished where entry->batch is set. */
void oci_entry_publish(struct oc_derived *d, struct entry *e);
/* Off the map and off its spans; readers may still have it. */
void oci_entry_unpublish(struct oc_derived *d, struct entry *e);
/* After guards and streams: its memory may be used again; spans in which it was the last to own a value go to
   `gone`, for the caller to free. */
void oci_entry_settle(struct oc_derived *d, struct entry *e, struct link *gone);
struct entry *oci_entry_find(struct oc_derived *d, oc_kind kind, uint64_t key);
/* The span that starts there; NULL: none. A foreign value may lie where memory was noted, or an arena came, later: two spans. */
struct span *oci_span_find(const struct oc_derived *d, uint64_t start, bool foreign);
/* The block or external range that a key is in, found or made: freeing it forgets what was derived. NULL: in none, or in
   scratch, which is no source. OC_E_NOT_OWNED: in a block that was freed, or is being released. */
oc_status oci_span_of_key(struct oc_derived *d, uint64_t key, const char *call, struct span **out);
/* Forgets a span (NULL is ignored) unless somebody is in it. */
void oci_span_put(struct oc_derived *d, struct span *s);
/* Forgets a span that no entry is in, and no build's key. */
void oci_span_drop(struct oc_derived *d, struct span *s);

/* ---- batches (batch.c) ---- */
/* A batch whose event is recorded on s after what is queued there now; the caller's to give to batch_stored. Nothing
   locked. OC_E_CAPTURING. */
oc_status oci_batch_record(struct oc_derived *d, oc_stream s, struct batch **out);
/* With the lock held: the commit has linked its entry (e), or has not (NULL). */
void oci_batch_stored(struct oc_derived *d, struct batch *b, struct entry *e);
/* With the lock held: takes an entry off its batch. */
void oci_batch_leave(struct entry *e);
/* Makes s wait for the event of e, which a lookup found under kind and key, where it has not passed. OC_MISS: e is not
   there any more. Nothing locked. */
oc_status oci_batch_order(struct oc_derived *d, oc_kind kind, uint64_t key, const struct entry *e, oc_stream s);
/* The stream is forgotten: what its batches recorded stands, and nothing is added. Nothing locked. */
void oci_batches_forget_stream(struct oc_derived *d, oc_stream s);
/* Waits for every batch that there is now. Nothing locked. */
oc_status oci_batches_settle(struct oc_derived *d);
/* Teardown's part: the streams were drained, nobody is in a call. */
void oci_batches_drop(struct oc_derived *d);

/* ---- builds (build.c) ---- */
/* Frees those that another thread aborted and their owners never ended. */
void oci_builds_free(struct oc_derived *d);

/* ---- invalidate.c ---- */
struct doom {                    /* what goes: keys, a range of keys and values, or everything */
  const uint64_t *keys;
  size_t n;
  uint64_t start;                /* not 0: every key, and every borrowed value, in the block or range that starts here */
  bool all;
  bool patient;                  /* a free: goes on although teardown has begun */
};
/* Waits for builds (until deadline, NULL: for ever), unpublishes, waits for guards and streams, frees. Inside a call. */
oc_status oci_derived_doom(struct oc_derived *d, const struct doom *what, const struct timespec *deadline,
                           const char *call);
/* Teardown's part, when all waits are over: forgets everything; frees foreign values through the backend, unless the
   context is gone. */
struct sweep { uint64_t entries, foreign, failures; oc_status first; };
void oci_derived_sweep(struct oc_derived *d, bool context_gone, struct sweep *out);
/* Foreign values that a graph held: freed (free_now), or back to waiting. */
oc_status oci_derived_graphs_gone(struct oc_derived *d, struct link *taken, bool free_now);
void oci_derived_take_retired(struct oc_derived *d, struct link *out);

#endif
