/* SPDX-License-Identifier: MIT */
/*
 * The op cache: kernel handles, scratch, gates.
 *
 * opcache: part of its model. Readers take no lock; writers its lock; a driver call runs without it, under the
 *          record's turn (only one thread resolves a kernel, or grows a buffer, at a time).
 * kernel:  the record of one (module, func): lives as long as the model; its handle is set once.
 * tag:     the record of one tag: its scratch and its gates; lives as long as the model.
 * scratch: one buffer. Unpublished ones wait in `limbo` until a grace period, then are used again: readers without
 *          a guard may still look at them, so their memory is never given back before the model is.
 * stream_scratch: the buffers of one stream, while there are some: what forgetting it looks at.
 * growth:  a buffer that is being made now, on its maker's stack: others who want the same one wait for it, those of
 *          another stream do not.
 * shape:   one (m, n, k) that a gate has seen.
 */
#ifndef OCI_LIBOC_OPCACHE_H
#define OCI_LIBOC_OPCACHE_H

#include <pthread.h>

#include "allocator/pool.h"
#include "liboc/oc.h"
#include "rcu/dense.h"
#include "rcu/list.h"
#include "rcu/map.h"
#include "rcu/names.h"
#include "rcu/table.h"

struct oc_opcache {
  struct dense kernels;       /* by key id - 1: the handle, once it is resolved (and its init has run) */
  struct dense tags;          /* by key id - 1: struct tag */
  struct map kernel_names;    /* names: struct kernel */
  struct map tag_names;       /* names: struct tag */
  size_t kernel_count, scratch_count;   /* atomic to read */

  pthread_mutex_t lock;       /* writers of all of it */
  pthread_cond_t turn;        /* a kernel's turn was given back, or a buffer made */
  struct link scratches;      /* published */
  struct link outgrown;       /* retired by growth: a graph or queued work may use them */
  struct table streams;       /* struct stream_scratch, by stream */
  struct link growing;        /* struct growth */
  struct link limbo, idle;    /* records without a block: before and after a grace period */
  size_t limbo_count;
};

struct kernel {
  struct name name;
  oc_kernel handle;           /* atomic; NULL: not resolved */
  uint64_t turn;              /* thread that resolves it now; 0: none */
  oc_status (*init)(oc_backend *b, oc_kernel k, void *arg);   /* the one that has run */
};

struct stream_scratch {
  struct table_node node;
  struct link scratches;      /* struct scratch, published or outgrown */
};

struct scratch {
  struct link link;
  struct link in_stream;      /* of that stream's: */
  struct stream_scratch *of;  /* NULL: on no stream, or no longer published nor outgrown */
  uint64_t ptr;               /* atomic */
  uint64_t bytes;             /* atomic */
  uint32_t captured;          /* atomic: the graph epoch in which a capture was handed it; 0: never */
  bool on_stream, outgrown;
  oc_stream stream;
  struct tag *tag;
};

struct shape {
  struct shape *same_hash;
  uint64_t mn;                /* m above, n below */
  uint32_t k;
};

struct tag {
  struct name name;
  struct scratch *plain;      /* atomic; NULL: none */
  struct map on_stream;       /* by stream key: v0 pointer, v1 bytes, entry struct scratch */
  struct map shapes;          /* by hash of (m, n, k): entry struct shape */
  uint32_t fired;             /* atomic: `once` was answered true */
  uint32_t reached __attribute__((aligned(64)));   /* atomic: of first_n; written before 2^20, so on its own line */
};

void oci_opcache_init(struct oc_opcache *c, struct heap *h);
void oci_opcache_free(struct oc_opcache *c);
/* The record of a tag, or behind a key, made where it is not there. NULL: refused, or no host memory. */
struct tag *oci_tag_get(struct oc_opcache *c, const struct lookup *k);
struct tag *oci_tag_by_text(struct oc_opcache *c, oc_tag_key *key);
/* NULL: not known to this model. */
static inline struct tag *oci_tag_known(const struct oc_opcache *c, const oc_tag_key *key) {
  /* id 0 (none yet) and KEY_BY_TEXT are out of the vector's bounds */
  return oci_dense_get(&c->tags, __atomic_load_n(&key->id, __ATOMIC_RELAXED) - 1);
}
static inline struct tag *oci_tag_of_key(struct oc_opcache *c, oc_tag_key *key) {
  struct tag *t = oci_tag_known(c, key);
  return __builtin_expect(t != NULL, 1) ? t : oci_tag_by_text(c, key);
}

/* Scratch of a stream that is forgotten goes back once its work is done. */
void oci_scratch_forget_stream(struct oc_opcache *c, oc_stream s);
/* Around a grace period: what was cut off before it may be used again after it. outgrown_freed: the caller gave
   the outgrown blocks back (else they stay retired). */
struct scratch_cut {
  struct link limbo, outgrown;
  uint64_t takes;             /* of the pool's retired blocks, when it was made: see scratch.c */
};
void oci_scratch_cut(struct oc_opcache *c, struct scratch_cut *cut);
/* The same, and the pool's retired blocks: those of the cut's outgrown buffers are among them. */
struct pool_batch oci_scratch_cut_retired(struct oc_opcache *c, struct scratch_cut *cut);
void oci_scratch_cut_end(struct oc_opcache *c, struct scratch_cut *cut, bool outgrown_freed);
/* Live buffers and their bytes. */
void oci_scratch_figures(struct oc_opcache *c, size_t *count, uint64_t *bytes);
/* The ledger's name for the owner of a tag's buffers: SCRATCH_OWNER and the tag, cut to SCRATCH_OWNER_BYTES with the NUL. */
#define SCRATCH_OWNER "scratch "
#define SCRATCH_OWNER_BYTES 256u
bool oci_scratch_owns(const struct oc_opcache *c, const char *owner);
/* Teardown's part: forgets all; the blocks go with the arenas. */
void oci_scratch_sweep(struct oc_opcache *c, size_t *count, uint64_t *bytes);

/* Interned keys (keys.c), process-wide: 0 and no id without host memory. */
#define KEY_BY_TEXT UINT32_MAX   /* past the last id: such a key takes the string path */
uint32_t oci_kernel_key_id(oc_kernel_key *key);
uint32_t oci_tag_key_id(oc_tag_key *key);

#endif
