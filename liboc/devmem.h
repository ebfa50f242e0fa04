/* SPDX-License-Identifier: MIT */
/*
 * Memory of the embedded device: mapped lazily, charged by a cost model, unmapped when freed.
 *
 * devmem:  one device's memory; owned by the device, any thread may use it. Its lock is not held while memory
 *          is mapped, filled or unmapped.
 * region:  one live allocation.
 */
#ifndef OCI_LIBOC_DEVMEM_H
#define OCI_LIBOC_DEVMEM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "liboc/devspans.h"
#include "liboc/oc.h"
#include "rcu/mem.h"

/* HOST: page-locked host memory, not charged */
enum mem_kind { MEM_DEVICE, MEM_MANAGED, MEM_HOST, MEM_KINDS };

struct mem_options {
  bool poison;         /* fill new memory with 0xA5 */
  bool recycle;        /* hand the last freed address of a size out again first */
  bool chunks;         /* cost: see oci_devmem_cost */
  size_t capacity[MEM_KINDS];
};

enum { MEM_FREED = 1024 };   /* addresses remembered for recycling */

struct devmem {
  pthread_mutex_t lock;
  struct heap *heap;
  struct mem_options opt;
  size_t page;
  struct spans live;
  struct region *unmappable;               /* freed, but the kernel could not split its mapping */
  uint64_t used[MEM_KINDS], blocks[MEM_KINDS];   /* used <= capacity; used: sum of the live regions' costs */
  uint64_t bad_frees;
  uint64_t next, low, high;                /* where to place memory: upward, so that none comes back soon */
  struct { uint64_t base, bytes; } freed[MEM_FREED];   /* oldest first */
  size_t freed_count;
};

void oci_devmem_init(struct devmem *m, struct heap *heap, const struct mem_options *opt);
/* Unmaps all. */
void oci_devmem_fini(struct devmem *m);

/* Outcomes: OC_E_INVALID (0 bytes), OC_E_DEVICE_NOMEM (over capacity, or the kernel refuses),
   OC_E_HOST_NOMEM. */
oc_status oci_devmem_alloc(struct devmem *m, enum mem_kind kind, size_t bytes, uint64_t *out);
/* Frees what starts at ptr; `host`: only page-locked memory, else only the other two. Waits for nothing:
   queued work that still touches it faults. Outcomes: OC_E_INVALID (no live start of that sort; counted,
   nothing changes). */
oc_status oci_devmem_free(struct devmem *m, uint64_t ptr, bool host);
/* Do n bytes from ptr lie in one live allocation of any kind? OC_OK or OC_E_INVALID. what: for the words. */
oc_status oci_devmem_check(struct devmem *m, const char *what, uint64_t ptr, size_t n);

/* What an allocation is charged: rounded up to 512 B. With chunks, requests under 2 MiB are packed into
   chunks of 2 MiB and never split across two: 2 MiB / floor(2 MiB / rounded). SIZE_MAX on overflow. */
size_t oci_devmem_cost(const struct mem_options *opt, size_t bytes);
void oci_devmem_usage(struct devmem *m, enum mem_kind kind, uint64_t *used, uint64_t *blocks);
uint64_t oci_devmem_bad_frees(struct devmem *m);

#endif
