/* SPDX-License-Identifier: MIT */
/*
 * report: what a teardown did, on the process heap, counted: the model keeps one reference for later calls, each
 *         caller of oc_model_teardown gets one. Filled by one thread, read-only afterwards. Rows are of fixed size and
 *         made room for before anything is released, so that a teardown cannot fail half way for want of memory.
 */
#ifndef OCI_LIBOC_REPORT_H
#define OCI_LIBOC_REPORT_H

#include "liboc/oc.h"

/* A text of the library's (NULL: none) as one that a caller gets, for oc_string_free. */
char *oci_string_out(char *text);

struct oc_report *oci_report_new(const char *model, uint64_t generation, size_t rows);
struct oc_report *oci_report_ref(struct oc_report *r);
void oci_report_unref(struct oc_report *r);
/* A row more than there is room for is counted in the last one. */
void oci_report_add(struct oc_report *r, oc_status st, const char *label, const char *fmt, ...)
  __attribute__((format(printf, 4, 5)));
void oci_report_end(struct oc_report *r, oc_status st);
/* For the totals. */
struct report_totals {
  uint64_t arenas_freed, bytes_freed, blocks_swept, modules_unloaded;
};
struct report_totals *oci_report_totals(struct oc_report *r);

#endif
