/* SPDX-License-Identifier: MIT */
/*
 * Structs that can grow: a caller's may be longer or shorter than ours. What it lacks is zero; what we do not know
 * must be zero.
 */
#ifndef OCI_LIBOC_OPTIONS_H
#define OCI_LIBOC_OPTIONS_H

#include <string.h>

#include "liboc/oc.h"
#include "rcu/error.h"

/* No struct will ever be as large: struct_size was not set. */
#define STRUCT_MOST 4096u

/* Copies a caller's option struct (NULL: all defaults) into ours. first: its size as first published. */
static inline oc_status oci_options(void *to, size_t size, size_t first, const void *from, const char *call) {
  memset(to, 0, size);
  if (!from) return OC_OK;
  uint32_t given;
  memcpy(&given, from, sizeof given);
  if (given < first)
    return oci_error(OC_E_INVALID, "%s: struct_size %u of the options is below their first size, %zu", call, given, first);
  if (given > STRUCT_MOST) return oci_error(OC_E_INVALID, "%s: struct_size %u is no size of the options", call, given);
  for (size_t i = size; i < given; i++)
    if (((const unsigned char *)from)[i])
      return oci_error(OC_E_INVALID, "%s: the options have a field (at byte %zu) that this library does not know", call, i);
  memcpy(to, from, given < size ? given : size);
  return OC_OK;
}

/* All structs of 0.1.0 still have their first size. */
#define OCI_OPTIONS(to, from, call) oci_options(to, sizeof *(to), sizeof *(to), from, call)

#endif
