/* SPDX-License-Identifier: MIT */
/*
 * Handles that can't be taken for what they are not.
 *
 * slots: a table of records that never move and are freed with the table only. Owned by one part of a device;
 *        any thread may use it. A handle is (generation, index, tag): a stale or made-up one is recognised
 *        without being followed.
 * slot:  first in every record. gen is odd while the record is in use, and changes at every new and drop.
 */
#ifndef OCI_LIBOC_DEVSLOTS_H
#define OCI_LIBOC_DEVSLOTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "rcu/mem.h"

enum { SLOT_CHUNKS = 18 };      /* of 64, 128, 256 ... records: 16.7 million */

enum slot_tag { SLOT_STREAM = 1, SLOT_EVENT = 2, SLOT_MODULE = 3, SLOT_KERNEL = 4 };

struct slot {
  uint32_t gen;                 /* atomic */
  uint32_t index;
  struct slot *next_free;
};

struct slots {
  pthread_mutex_t lock;         /* new and drop */
  struct heap *heap;
  uint32_t record_bytes;
  enum slot_tag tag;
  bool recycle;                 /* handles without generation: a dropped one's comes back at the next new */
  uint32_t count;               /* records made so far, atomic */
  uint32_t live;                /* atomic */
  struct slot *free;
  char *chunk[SLOT_CHUNKS];     /* atomic */
};

void oci_devslots_init(struct slots *t, struct heap *heap, size_t record_bytes, enum slot_tag tag,
                       bool recycle);
/* Frees the records. */
void oci_devslots_fini(struct slots *t);

/* A record, zeroed the first time, else as it was dropped; it is the caller's until published. NULL without
   memory. */
struct slot *oci_devslots_take(struct slots *t);
/* From here on the record's handle is good. */
uint64_t oci_devslots_publish(struct slots *t, struct slot *s);
/* The handle is stale from here on (where the record was published), and the record is free for the next
   take. */
void oci_devslots_drop(struct slots *t, struct slot *s);

/* The record that a handle was given for, good or stale; NULL for what never was a handle of this table. */
struct slot *oci_devslots_find(const struct slots *t, uint64_t handle);
/* Is the handle good? */
bool oci_devslot_is(const struct slots *t, const struct slot *s, uint64_t handle);
/* Was it good once, and is no longer? Of tables whose handles have generations. */
bool oci_devslot_was(const struct slot *s, uint64_t handle);
/* The record of an index below count, 1 the first. */
struct slot *oci_devslots_at(const struct slots *t, uint32_t index);
uint32_t oci_devslots_live(const struct slots *t);

#endif
