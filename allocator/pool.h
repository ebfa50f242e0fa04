/* SPDX-License-Identifier: MIT */
/*
 * The pool: a model's arenas and the sub-allocator over them.
 *
 * pool:   owns every arena and its records; made by a model, any thread may call it. Device memory is never
 *         touched: all metadata is on the host, in the heap that the pool was given.
 * arena:  one device allocation; blocks tile it without gaps: used + free == arena bytes.
 * block:  a run of 256-byte units of one arena: FREE, LIVE, PENDING (free_on: waits for its event), HELD (free_on
 *         without events: waits for a drain), RETIRED (a graph or queued work may use it).
 * tag:    (site, owner), interned per pool: what the ledger counts by.
 *
 * Statuses are oc_status numbers as int (liboc asserts that they are the same); this layer names those it makes.
 */
#ifndef OCI_ALLOCATOR_POOL_H
#define OCI_ALLOCATOR_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap;
struct pool;

enum pool_status {
  POOL_OK = 0,
  POOL_MISS = 1,              /* try_alloc: no arena has room */
  POOL_EXISTS = 2,
  POOL_TRACKED = 3,           /* internal: the block is tracked (see oci_pool_track); nothing changed */
  POOL_E_INVALID = -1,
  POOL_E_HOST_NOMEM = -4,
  POOL_E_NOT_OWNED = -8,
  POOL_E_INTERIOR = -9,
  POOL_E_RELEASED = -20,
  POOL_E_DEVICE_NOMEM = -22,
  POOL_E_DEVICE_LOST = -41,
};

enum pool_note {
  POOL_NOTE_LATCH,      /* new arenas are managed memory from now on; 0 bytes */
  POOL_NOTE_RETIRED,    /* a block does not go back yet: it waits for a stream, a graph, or teardown */
};

/* How the pool reaches the device. Entries word their own errors (oci_error). No lock that a carve from an
   existing arena needs is held around them. */
struct pool_device {
  void *arg;
  int (*alloc)(void *arg, size_t bytes, bool managed, uint64_t *out);  /* POOL_E_DEVICE_NOMEM: out of memory */
  int (*free)(void *arg, uint64_t base);
  bool can_manage;      /* alloc(managed) may be tried at all */
  /* Stream markers; all NULL on a backend without events. */
  int (*mark)(void *arg, void *stream, void **event);  /* an event after what is queued on stream now */
  int (*passed)(void *arg, void *event);               /* 0 passed, 1 not yet, < 0 failed */
  void (*unmark)(void *arg, void *event);              /* the pool is done with it */
  /* Told of what happens, maybe with a lock of the pool held: must not call back. NULL: nobody is. */
  void (*note)(void *arg, enum pool_note what, uint64_t bytes);
};

struct pool_options {
  size_t arena_min, arena_max;  /* bytes, 0: 64 MiB, 1 GiB */
  bool no_managed;
};

/* Who may free a block, and whether it is swept at teardown. */
enum block_class { BLOCK_USER, BLOCK_OWNED, BLOCK_SCRATCH, BLOCK_BUILD, BLOCK_DERIVED };
#define BLOCK_BIT(c) (1u << (c))

struct pool_site { const char *file; uint32_t line; const char *func; };  /* same layout as oc_site */

struct pool_request {
  size_t bytes, align;           /* align 0: 256 */
  enum block_class class;
  const char *owner;             /* NULL: none */
  const struct pool_site *site;  /* NULL: unknown */
};

/* ---- life ---- */
int oci_pool_create(const struct pool_device *dev, const struct pool_options *opt, struct heap *heap,
                    struct pool **out);
/* A new pool's first request: one arena for that much (rounded to 2 MiB), or more than one past the largest there can be.
   Asked by the growth rules of G17, but that no room is made. 0: nothing to do. */
int oci_pool_reserve(struct pool *p, size_t bytes);
/* Refuses allocations from now on (POOL_E_RELEASED), or accepts them again. Frees work either way. */
void oci_pool_stop(struct pool *p, bool stop);
/* Gives every arena back, one driver free each, pending and retired blocks included. each (may be NULL) is told
   every arena's outcome; after POOL_E_DEVICE_LOST the driver is not called again (the rest is told the same).
   From then on every call but stats, check, destroy is POOL_E_RELEASED. Waits for nothing: the caller drained. */
struct pool_arena_info { uint64_t base; uint64_t bytes; bool managed; };
void oci_pool_release_arenas(struct pool *p, void (*each)(void *arg, const struct pool_arena_info *a, int status),
                             void *arg);
/* The same where the device's context is gone: the driver is not called. */
void oci_pool_abandon_arenas(struct pool *p);
/* Frees the records. The arenas must have been released. */
void oci_pool_destroy(struct pool *p);

/* ---- blocks ---- */
/* Carves from an existing arena, or POOL_MISS: never calls the device. */
int oci_pool_try_alloc(struct pool *p, const struct pool_request *r, uint64_t *out);
/* Grows where nothing fits (G17, G18); calls the device with only the growth lock held. */
int oci_pool_alloc(struct pool *p, const struct pool_request *r, uint64_t *out);

enum pool_release {
  RELEASE_NOW,      /* reusable at once */
  RELEASE_AFTER,    /* once what is queued on the stream now is done; HELD where there are no events */
  RELEASE_RETIRE,   /* stays used until oci_pool_take */
};
/* classes: BLOCK_BIT mask of those that the caller may free; others are POOL_E_NOT_OWNED. A tracked block is
   POOL_TRACKED unless `tracked_too`. RELEASE_AFTER can fail (mark, host memory): nothing changed then. NOW and
   RETIRE need no memory and call no driver. */
int oci_pool_free(struct pool *p, uint64_t ptr, unsigned classes, enum pool_release how, void *stream,
                  bool tracked_too);
/* How often the retired blocks were taken so far. */
uint64_t oci_pool_takes(const struct pool *p);
/* A retired block goes back by itself: the caller knows that nothing uses it, and that it was retired when oci_pool_takes
   was `takes`. POOL_E_NOT_OWNED if it is not retired, or if they were taken since: whose it is then is not known. */
int oci_pool_unretire(struct pool *p, uint64_t ptr, uint64_t takes);
/* The same once what is queued on the stream now is done; on a device with events. A failure changes nothing. */
int oci_pool_unretire_after(struct pool *p, uint64_t ptr, void *stream, uint64_t takes);
/* Where a pool begins: what every call looks at before it does anything. */
struct pool_front {
  uint32_t pending_count;   /* atomic: blocks PENDING; read without the lock to see that there is nothing to do */
};
/* Is any block waiting for an event? Lock-free, a moment old. */
static inline bool oci_pool_pending(const struct pool *p) {
  return __atomic_load_n(&((const struct pool_front *)p)->pending_count, __ATOMIC_RELAXED) != 0;
}
/* Asks for pending blocks' events and takes back those that passed. Cheap where nothing is pending. */
void oci_pool_collect(struct pool *p);
/* The same for a few streams, in turn, however many have such blocks: what one allocation or free does. */
void oci_pool_collect_some(struct pool *p);

/* Arenas with no live, waiting or retired block go back to the device; blocks that their streams have passed are free
   first. Calls the device with only the growth lock held. */
void oci_pool_trim(struct pool *p);

enum pool_waiting { POOL_TAKE_RETIRED = 1, POOL_TAKE_HELD = 2 };
struct pool_batch { uint32_t head; uint32_t count; };
/* Takes the blocks that wait so now off their lists, still used. After the caller's waits: give_back makes
   them free, put_back returns them to waiting (batch is empty afterwards). */
struct pool_batch oci_pool_take(struct pool *p, unsigned what);
void oci_pool_give_back(struct pool *p, struct pool_batch *b);
void oci_pool_put_back(struct pool *p, struct pool_batch *b);

struct block_info {
  uint64_t start, bytes;      /* of the block (bytes: as requested), or of the external range */
  enum block_class class;
  bool live;                  /* false: free, pending, held or retired */
  bool tracked;
  bool external;              /* noted, not ours */
};
/* The block or external range that contains addr. POOL_MISS: in no arena and no external range. */
int oci_pool_find(struct pool *p, uint64_t addr, struct block_info *out);
/* Is addr inside an arena (not: an external range)? */
bool oci_pool_contains(struct pool *p, uint64_t addr);
/* A live block changes hands; its site stays, its owner becomes `owner` (NULL: none). Needs host memory only
   for an owner not seen before. */
int oci_pool_reclass(struct pool *p, uint64_t start, enum block_class class, const char *owner);
/* Marks that derived entries have keys or values inside this block or external range. */
int oci_pool_track(struct pool *p, uint64_t start, bool tracked);
/* All of them, for good: who tracked them is gone. */
void oci_pool_untrack(struct pool *p);

/* ---- other allocators' memory ---- */
int oci_pool_note_external(struct pool *p, uint64_t ptr, size_t bytes, const char *owner, const struct pool_site *site);
int oci_pool_forget_external(struct pool *p, uint64_t ptr, bool tracked_too);   /* POOL_TRACKED as in free */

/* ---- latch, figures, ledger ---- */
bool oci_pool_fell_back(const struct pool *p);       /* lock-free */
bool oci_pool_latch(struct pool *p);                 /* false: not allowed here; logged */

struct pool_stats {      /* as oc_pool_stats after struct_size */
  uint64_t arenas, arena_bytes, managed_arenas, managed_bytes;
  uint64_t live_blocks, live_bytes, peak_live_bytes, retired_bytes, free_bytes, largest_free;
  uint64_t driver_allocs, driver_alloc_failures, driver_frees;
  uint64_t host_metadata_bytes;
};
void oci_pool_stats(struct pool *p, struct pool_stats *out);
/* Figures that others may read at any time: each by a relaxed load; together they are a moment apart. */
struct pool_shown {
  uint64_t arenas, arena_bytes, managed_bytes;
  uint64_t live_blocks, live_bytes, peak_live_bytes, retired_bytes;
  uint64_t external_blocks, external_bytes;
  uint64_t driver_allocs, driver_alloc_failures, driver_frees;
};
/* From now on they stand there, whatever changes; NULL: nowhere any more. It must stay mapped. */
void oci_pool_show(struct pool *p, struct pool_shown *where);
/* Every invariant; POOL_E_INVALID with words. */
int oci_pool_check(struct pool *p);

struct ledger_row {
  const char *file; uint32_t line; const char *func;   /* NULL file: unknown site */
  const char *owner;                                   /* NULL: none */
  bool external;
  uint64_t live_blocks, live_bytes, retired_bytes, peak_bytes;
};
/* Every tag that ever had a block. Strings live as long as the pool. Called with the pool's lock held: each must
   not call back. */
void oci_pool_ledger(struct pool *p, void (*each)(void *arg, const struct ledger_row *row), void *arg);

/* As oc_block_state. */
enum block_view_state { VIEW_FREE, VIEW_LIVE, VIEW_RETIRED, VIEW_LOST, VIEW_EXTERNAL };
struct pool_arena_view {
  uint64_t index;                                      /* in the order of addresses */
  uint64_t base, bytes, used, driver_base, driver_bytes;
  bool managed, lost;
};
struct block_view {
  uint64_t start, bytes, requested;
  enum block_view_state state;
  enum block_class class;                              /* live and retired ones */
  bool tracked;
  const struct pool_arena_view *arena;                 /* NULL: external */
  const struct ledger_row *tag;                        /* NULL: free or lost. Its strings live as long as the pool */
};
typedef int (*pool_block_fn)(void *arg, const struct block_view *b);
/* Tells each every block of one moment, by address, then the external ranges. Without a lock held: each may call back.
   What it returns, if it is not 0, ends the walk and is returned. POOL_E_HOST_NOMEM. */
int oci_pool_walk(struct pool *p, pool_block_fn each, void *arg);

/* On the process heap (oci_strfree(NULL, ...)); NULL without memory. top 0: all. */
char *oci_pool_report_text(struct pool *p, size_t top);
char *oci_pool_report_json(struct pool *p);

#endif
