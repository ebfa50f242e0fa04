/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "allocator/text.h"
#include "rcu/error.h"
#include "rcu/list.h"
#include "rcu/mem.h"

struct row {
  oc_status status;
  char label[128];
  char detail[512];
};

struct oc_report {
  uint32_t refs;
  oc_status status;
  uint64_t generation;
  char model[128];
  struct report_totals totals;
  size_t count, room;
  uint64_t left_out;       /* rows that there was no room for */
  struct row row[];
};

/* ---- strings that callers get ---- */

/* Its size is kept beside it: the caller may write to it, a NUL too, before it gives it back. */
struct string {
  size_t bytes;
  char text[];
};

char *oci_string_out(char *text) {
  if (!text) return NULL;
  size_t n = strlen(text) + 1;
  struct string *s = oci_alloc(NULL, sizeof *s + n);
  if (s) {
    s->bytes = n;
    memcpy(s->text, text, n);
  }
  oci_strfree(NULL, text);
  return s ? s->text : NULL;
}

void oc_string_free(char *text) {
  if (!text) return;
  struct string *s = CONTAINER(text, struct string, text);
  oci_free(NULL, s, sizeof *s + s->bytes);
}

/* ---- filling ---- */

static size_t report_bytes(size_t rows) {
  return sizeof(struct oc_report) + rows * sizeof(struct row);
}

struct oc_report *oci_report_new(const char *model, uint64_t generation, size_t rows) {
  struct oc_report *r = oci_alloc(NULL, report_bytes(rows));
  if (!r) return NULL;
  r->refs = 1;
  r->generation = generation;
  r->room = rows;
  snprintf(r->model, sizeof r->model, "%s", model);
  return r;
}

struct oc_report *oci_report_ref(struct oc_report *r) {
  __atomic_add_fetch(&r->refs, 1, __ATOMIC_RELAXED);
  return r;
}

void oci_report_unref(struct oc_report *r) {
  if (r && __atomic_sub_fetch(&r->refs, 1, __ATOMIC_ACQ_REL) == 0) oci_free(NULL, r, report_bytes(r->room));
}

void oci_report_add(struct oc_report *r, oc_status st, const char *label, const char *fmt, ...) {
  if (r->count == r->room) {
    r->left_out++;
    return;
  }
  struct row *row = &r->row[r->count++];
  row->status = st;
  snprintf(row->label, sizeof row->label, "%s", label);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(row->detail, sizeof row->detail, fmt, ap);
  va_end(ap);
}

void oci_report_end(struct oc_report *r, oc_status st) {
  r->status = st;
}

struct report_totals *oci_report_totals(struct oc_report *r) {
  return &r->totals;
}

/* ---- public ---- */

size_t oc_report_count(const oc_report *r) {
  return r ? r->count : 0;
}

oc_status oc_report_row(const oc_report *r, size_t i, const char **label, oc_status *st, const char **detail) {
  if (!r) return oci_error(OC_E_INVALID, "oc_report_row: the report is NULL");
  if (i >= r->count) return oci_error(OC_E_INVALID, "oc_report_row: row %zu of %zu", i, r->count);
  if (label) *label = r->row[i].label;
  if (st) *st = r->row[i].status;
  if (detail) *detail = r->row[i].detail;
  return OC_OK;
}

uint64_t oc_report_arenas_freed(const oc_report *r) { return r ? r->totals.arenas_freed : 0; }
uint64_t oc_report_bytes_freed(const oc_report *r) { return r ? r->totals.bytes_freed : 0; }
uint64_t oc_report_blocks_swept(const oc_report *r) { return r ? r->totals.blocks_swept : 0; }
uint64_t oc_report_modules_unloaded(const oc_report *r) { return r ? r->totals.modules_unloaded : 0; }

static void add_text_row(struct text *t, const struct row *row) {
  char label[sizeof row->label + 4];   /* padded first: what does not print takes one column, too */
  snprintf(label, sizeof label, "%-18s", row->label);
  oci_text_add(t, "  ");
  oci_text_add_plain(t, label);
  oci_text_add(t, " %-12s ", row->status ? oc_status_name(row->status) : "ok");
  oci_text_add_plain(t, row->detail);
  oci_text_add(t, "\n");
}

/* A failure, what nobody owned, or a context that went: what people look for. An engine's own label may say so too. */
static bool is_news(const struct row *row) {
  return row->status || strncmp(row->label, "unowned ", 8) == 0 || strcmp(row->label, "context gone") == 0;
}

static const char *verdict(const oc_report *r) {
  if (r->status) return oc_status_name(r->status);
  return r->totals.blocks_swept ? "leaked" : "clean";
}

/* One line where all is well; else each failure, and who left what from where. The other rows are in the JSON. */
char *oc_report_text(const oc_report *r) {
  if (!r) return NULL;
  struct text t = {0};
  oci_text_add(&t, "teardown of ");
  oci_text_add_plain(&t, r->model);
  oci_text_add(&t, " (generation %llu): %s; %llu arenas, %llu bytes freed; %llu modules unloaded; %llu blocks swept\n",
               (unsigned long long)r->generation, verdict(r), (unsigned long long)r->totals.arenas_freed,
               (unsigned long long)r->totals.bytes_freed, (unsigned long long)r->totals.modules_unloaded,
               (unsigned long long)r->totals.blocks_swept);
  for (size_t i = 0; i < r->count; i++)
    if (is_news(&r->row[i])) add_text_row(&t, &r->row[i]);
  if (r->left_out) oci_text_add(&t, "  and %llu more\n", (unsigned long long)r->left_out);
  return oci_string_out(oci_text_take(&t));
}

static void add_json_row(struct text *t, const struct row *row, bool first) {
  oci_text_add(t, "%s\n    {\"label\": ", first ? "" : ",");
  oci_text_add_json(t, row->label);
  oci_text_add(t, ", \"status\": \"%s\", \"detail\": ", oc_status_name(row->status));
  oci_text_add_json(t, row->detail);
  oci_text_add(t, "}");
}

char *oc_report_json(const oc_report *r) {
  if (!r) return NULL;
  struct text t = {0};
  oci_text_add(&t, "{\n  \"model\": ");
  oci_text_add_json(&t, r->model);
  oci_text_add(&t, ",\n  \"generation\": %llu,\n  \"status\": \"%s\",\n", (unsigned long long)r->generation, oc_status_name(r->status));
  oci_text_add(&t, "  \"arenas_freed\": %llu,\n  \"bytes_freed\": %llu,\n  \"blocks_swept\": %llu,\n  \"modules_unloaded\": %llu,\n",
               (unsigned long long)r->totals.arenas_freed, (unsigned long long)r->totals.bytes_freed,
               (unsigned long long)r->totals.blocks_swept, (unsigned long long)r->totals.modules_unloaded);
  oci_text_add(&t, "  \"rows_left_out\": %llu,\n  \"rows\": [", (unsigned long long)r->left_out);
  for (size_t i = 0; i < r->count; i++) add_json_row(&t, &r->row[i], i == 0);
  oci_text_add(&t, "\n  ]\n}\n");
  return oci_string_out(oci_text_take(&t));
}

void oc_report_free(oc_report *r) {
  oci_report_unref(r);
}
