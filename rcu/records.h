/* SPDX-License-Identifier: MIT */
/*
 * records: fixed-size records of one owner, made in chunks. One that was given back is used again; all go at once, so that an
 *          end need not walk them. Used under the owner's lock; a record belongs to who took it until it is given back.
 */
#ifndef OCI_RCU_RECORDS_H
#define OCI_RCU_RECORDS_H

#include <stddef.h>

struct heap;

struct records {
  struct heap *heap;
  size_t bytes;                  /* of one */
  struct record_chunk *newest;
  struct record_idle *idle;
};

void oci_records_init(struct records *r, struct heap *h, size_t bytes);
/* Zeroed, aligned to 16; NULL without host memory. */
void *oci_records_take(struct records *r);
void oci_records_give(struct records *r, void *record);
/* Those that were not given back too. */
void oci_records_free(struct records *r);

#endif
