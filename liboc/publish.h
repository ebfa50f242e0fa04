/* SPDX-License-Identifier: MIT */
/*
 * The page of figures that other processes read (oc_stats_publish): its layout is in oc.h.
 *
 * page:  one a process, at an address of its own that stays mapped for ever: whoever still holds a pointer into one that was
 *        taken back, or into a parent's, writes to private memory. Under the process lock.
 * shown: a model's slot in it. Model, pool and threads write to it where they change what stands there.
 */
#ifndef OCI_LIBOC_PUBLISH_H
#define OCI_LIBOC_PUBLISH_H

#include "liboc/oc.h"

struct oc_model;

/* A model came, goes; with the process lock held. Nothing where no page is published. */
void oci_publish_model(struct oc_model *m);
void oci_publish_model_gone(struct oc_model *m);
/* One of m's counts is `sum` now, or more. */
void oci_publish_count(const struct oc_model *m, struct oc_stats_model *shown, const uint64_t *count, uint64_t sum);
void oci_publish_latch(struct oc_model *m);
void oci_publish_state(struct oc_model *m);
/* Hits of all models by kind (enum hit) since the page is there; false where there is none. */
bool oci_publish_hits(uint64_t hits[]);
/* After fork: the page is the parent's. With the process lock held. */
void oci_publish_in_child(void);

#endif
