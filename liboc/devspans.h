/* SPDX-License-Identifier: MIT */
/*
 * Which span of addresses an address lies in.
 *
 * span:   one live piece of device or page-locked memory; embedded in its owner's record.
 * spans:  all of them, ordered by base: a treap whose priorities are a hash of the base. They never overlap.
 *         The owner's lock guards it.
 */
#ifndef OCI_LIBOC_DEVSPANS_H
#define OCI_LIBOC_DEVSPANS_H

#include <stdint.h>

struct span {
  uint64_t base, bytes;
  struct span *left, *right;
};

struct spans {
  struct span *root;
};

void oci_devspans_add(struct spans *t, struct span *r);
void oci_devspans_remove(struct spans *t, struct span *r);
/* The span that addr lies in, or NULL. */
struct span *oci_devspans_find(const struct spans *t, uint64_t addr);
/* Takes any one out; NULL when none is left. */
struct span *oci_devspans_pop(struct spans *t);

#endif
