/* SPDX-License-Identifier: MIT */
/*
 * Reports: the pool's figures, its arenas, the ledger by site, by file and by owner.
 *
 * view:  what the pool's lock is held for: a copy of all figures. Strings are interned and live as long as the
 *        pool, so a report is written without the lock.
 * group: tags that share a key, summed. A group's peak is the sum of its tags' peaks: never too small.
 */
#include "config.h"

#include "allocator/pool_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocator/text.h"

#define SIZE_CLASSES 33u         /* of free blocks: powers of two, in units */

struct arena_view {
  uint64_t base, bytes, driver_bytes, used, largest;
  bool managed, lost;
  uint64_t count[SIZE_CLASSES], free_bytes[SIZE_CLASSES];
};

struct view {
  struct pool_stats stats;
  bool latched;
  struct arena_view *arenas;
  size_t arena_count;
  struct ledger_row *rows;
  size_t row_count;
};

/* ---- the view ---- */

static void view_arena(struct arena_view *v, const struct arena *a) {
  *v = (struct arena_view){.base = a->base, .bytes = units_bytes(a->units), .driver_bytes = a->driver_bytes,
                           .used = units_bytes(a->used), .managed = a->managed, .lost = a->lost};
}

static void view_free(struct arena_view *v, const struct block *b) {
  uint32_t class = highest_bit(b->units);
  v->count[class]++;
  v->free_bytes[class] += block_bytes(b);
  if (block_bytes(b) > v->largest) v->largest = block_bytes(b);
}

static void view_bins(struct view *v, const struct suballoc *s, const uint32_t *place) {
  for (uint32_t bin = bins_from(&s->bins, 0); bin < BIN_COUNT; bin = bins_from(&s->bins, bin + 1))
    for (uint32_t i = s->bins.head[bin]; i; i = slab_at(&s->slab, i)->list_next)
      view_free(&v->arenas[place[slab_at(&s->slab, i)->arena]], slab_at(&s->slab, i));
}

static bool view_arenas(struct view *v, const struct suballoc *s) {
  uint32_t *place = oci_alloc(NULL, s->capacity * sizeof *place);   /* by slot */
  v->arenas = oci_alloc(NULL, s->count * sizeof *v->arenas);
  v->arena_count = s->count;
  if (place && v->arenas) {
    for (uint32_t i = 0; i < s->count; i++) {
      view_arena(&v->arenas[i], s->spans[i].arena);
      place[s->spans[i].arena->slot] = i;
    }
    view_bins(v, s, place);
  }
  oci_free(NULL, place, s->capacity * sizeof *place);
  return place && v->arenas;
}

static bool view_rows(struct view *v, const struct ledger *l) {
  v->rows = oci_alloc(NULL, l->tag_count * sizeof *v->rows);
  if (!v->rows) return false;
  for (uint32_t i = 0; i < l->tag_count; i++) {
    struct ledger_row row;
    oci_ledger_row(l, i, &row);
    if (row.peak_bytes || row.retired_bytes) v->rows[v->row_count++] = row;
  }
  return true;
}

static bool view_take(struct view *v, struct pool *p, size_t *rows_bytes) {
  *v = (struct view){.latched = oci_pool_fell_back(p)};
  pool_lock(p);
  oci_pool_stats_locked(p, &v->stats);
  *rows_bytes = p->ledger.tag_count * sizeof *v->rows;
  bool ok = view_arenas(v, &p->sub) && view_rows(v, &p->ledger);
  pool_unlock(p);
  return ok;
}

static void view_drop(struct view *v, size_t rows_bytes) {
  oci_free(NULL, v->arenas, v->arena_count * sizeof *v->arenas);
  oci_free(NULL, v->rows, rows_bytes);
}

/* Thousandths of free memory that are not in the largest free block. */
static unsigned fragmentation(uint64_t largest, uint64_t total) {
  return total ? (unsigned)(1000 - (uint64_t)((double)largest / (double)total * 1000)) : 0;
}

/* Without %f: its decimal point is the locale's. */
static void add_thousandths(struct text *t, unsigned n) { oci_text_add(t, "%u.%03u", n / 1000, n % 1000); }

/* ---- groups ---- */

enum key { BY_SITE, BY_FILE, BY_OWNER };

/* Interned: equal texts are one pointer. The order by content only makes reports repeatable. */
static int compare_text(const char *a, const char *b) {
  if (a == b) return 0;
  if (!a || !b) return a ? 1 : -1;
  return strcmp(a, b);
}

static int compare_owner(const void *a, const void *b) {
  const struct ledger_row *x = a, *y = b;
  int c = compare_text(x->owner, y->owner);
  return c ? c : x->external - y->external;
}

static int compare_file(const void *a, const void *b) {
  const struct ledger_row *x = a, *y = b;
  int c = compare_text(x->file, y->file);
  return c ? c : x->external - y->external;
}

static int compare_site(const void *a, const void *b) {
  const struct ledger_row *x = a, *y = b;
  int c = compare_file(a, b);
  if (!c) c = (x->line > y->line) - (x->line < y->line);
  return c ? c : compare_text(x->func, y->func);
}

static int compare_size(const void *a, const void *b) {
  const struct ledger_row *x = a, *y = b;
  uint64_t m = x->live_bytes + x->retired_bytes, n = y->live_bytes + y->retired_bytes;
  if (m != n) return m < n ? 1 : -1;
  if (x->peak_bytes != y->peak_bytes) return x->peak_bytes < y->peak_bytes ? 1 : -1;
  int c = compare_site(a, b);
  return c ? c : compare_owner(a, b);
}

static void add_row(struct ledger_row *sum, const struct ledger_row *row) {
  sum->live_blocks += row->live_blocks;
  sum->live_bytes += row->live_bytes;
  sum->retired_bytes += row->retired_bytes;
  sum->peak_bytes += row->peak_bytes;
}

/* Rows with equal keys become one; largest first. What the key does not name is left out of it. */
static size_t group(struct ledger_row *rows, size_t count, enum key key) {
  int (*const compare[])(const void *, const void *) = {compare_site, compare_file, compare_owner};
  size_t groups = 0;
  if (count) qsort(rows, count, sizeof *rows, compare[key]);
  for (size_t i = 0; i < count; i++) {
    struct ledger_row row = rows[i];
    if (key != BY_OWNER) row.owner = NULL;
    if (key != BY_SITE) row.line = 0, row.func = NULL;
    if (key == BY_OWNER) row.file = NULL;
    if (groups && !compare[key](&rows[groups - 1], &row)) add_row(&rows[groups - 1], &row);
    else rows[groups++] = row;
  }
  if (groups) qsort(rows, groups, sizeof *rows, compare_size);
  return groups;
}

static void sum_rows(const struct ledger_row *rows, size_t count, struct ledger_row *ours,
                     struct ledger_row *others) {
  *ours = *others = (struct ledger_row){0};
  for (size_t i = 0; i < count; i++) add_row(rows[i].external ? others : ours, &rows[i]);
}

/* ---- text ---- */

static void text_cell(struct text *t, uint64_t bytes) {
  char amount[40];
  oci_text_bytes(amount, sizeof amount, bytes);
  oci_text_add(t, " %11s", amount);
}

static void text_figures(struct text *t, const struct ledger_row *r) {
  text_cell(t, r->live_bytes);
  oci_text_add(t, " %9" PRIu64, r->live_blocks);
  text_cell(t, r->retired_bytes);
  text_cell(t, r->peak_bytes);
  oci_text_add(t, "  ");
}

static void text_key(struct text *t, const struct ledger_row *r, enum key key) {
  if (key == BY_OWNER) oci_text_add_plain(t, r->owner ? r->owner : "(no owner)");
  else oci_text_add_plain(t, r->file ? r->file : "(unknown site)");
  if (key == BY_SITE && r->file) oci_text_add(t, ":%" PRIu32, r->line);
  if (key == BY_SITE && r->func) {
    oci_text_add(t, " ");
    oci_text_add_plain(t, r->func);
  }
  oci_text_add(t, r->external ? " [external]\n" : "\n");
}

static void text_rest(struct text *t, const struct ledger_row *rows, size_t count) {
  struct ledger_row rest = {0};
  if (!count) return;
  for (size_t i = 0; i < count; i++) add_row(&rest, &rows[i]);
  text_figures(t, &rest);
  oci_text_add(t, "(%zu more)\n", count);
}

static void text_sums(struct text *t, const struct ledger_row *rows, size_t count) {
  struct ledger_row ours, others;
  sum_rows(rows, count, &ours, &others);
  text_figures(t, &ours);
  oci_text_add(t, "sum\n");
  if (!others.peak_bytes) return;
  text_figures(t, &others);
  oci_text_add(t, "sum of external memory, not in the above\n");
}

static void text_groups(struct text *t, struct view *v, enum key key, struct ledger_row *rows, size_t top) {
  static const char *const title[] = {"site", "file", "owner"};
  memcpy(rows, v->rows, v->row_count * sizeof *rows);
  size_t groups = group(rows, v->row_count, key), shown = top && top < groups ? top : groups;
  oci_text_add(t, "\n%12s %9s %11s %11s  by %s\n", "live", "blocks", "retired", "peak", title[key]);
  for (size_t i = 0; i < shown; i++) {
    text_figures(t, &rows[i]);
    text_key(t, &rows[i], key);
  }
  text_rest(t, rows + shown, groups - shown);
  text_sums(t, rows, groups);
}

static void text_arena(struct text *t, const struct arena_view *a) {
  text_cell(t, a->bytes);
  text_cell(t, a->used);
  text_cell(t, a->bytes - a->used);
  text_cell(t, a->largest);
  oci_text_add(t, "         ");
  add_thousandths(t, fragmentation(a->largest, a->bytes - a->used));
  oci_text_add(t, " ");
  for (uint32_t c = 0; c < SIZE_CLASSES; c++) {
    if (!a->count[c]) continue;
    oci_text_add(t, " %" PRIu64 "x", a->count[c]);
    oci_text_add_bytes(t, units_bytes(1) << c);
  }
  oci_text_add(t, "\n");
}

static void add_arena(struct arena_view *sum, const struct arena_view *a) {
  sum->bytes += a->bytes;
  sum->used += a->used;
  if (a->largest > sum->largest) sum->largest = a->largest;
  for (uint32_t c = 0; c < SIZE_CLASSES; c++) sum->count[c] += a->count[c];
}

static void text_head(struct text *t, const struct view *v) {
  const struct pool_stats *s = &v->stats;
  oci_text_add(t, "live ");
  oci_text_add_bytes(t, s->live_bytes);
  oci_text_add(t, " in %" PRIu64 " blocks, peak ", s->live_blocks);
  oci_text_add_bytes(t, s->peak_live_bytes);
  oci_text_add(t, "; retired ");
  oci_text_add_bytes(t, s->retired_bytes);
  oci_text_add(t, "; free ");
  oci_text_add_bytes(t, s->free_bytes);
  oci_text_add(t, ", largest ");
  oci_text_add_bytes(t, s->largest_free);
  oci_text_add(t, ", fragmentation ");
  add_thousandths(t, fragmentation(s->largest_free, s->free_bytes));
  oci_text_add(t, "\n%" PRIu64 " arenas of ", s->arenas);
  oci_text_add_bytes(t, s->arena_bytes);
  oci_text_add(t, "%s; driver: %" PRIu64 " allocations, %" PRIu64 " refused, %" PRIu64 " frees; host metadata ",
               v->latched ? ", fallen back to managed memory" : "", s->driver_allocs, s->driver_alloc_failures,
               s->driver_frees);
  oci_text_add_bytes(t, s->host_metadata_bytes);
  oci_text_add(t, "\n");
}

static void text_arenas(struct text *t, const struct view *v, size_t top) {
  size_t shown = top && top < v->arena_count ? top : v->arena_count;
  if (!v->arena_count) return;
  oci_text_add(t, "\n  %-16s %-7s %11s %11s %11s %11s %13s  free blocks by least size\n", "arena", "kind", "bytes",
               "used", "free", "largest", "fragmentation");
  for (size_t i = 0; i < shown; i++) {
    const struct arena_view *a = &v->arenas[i];
    oci_text_add(t, "  0x%-14" PRIx64 " %-7s", a->base, a->lost ? "lost" : a->managed ? "managed" : "device");
    text_arena(t, a);
  }
  if (shown == v->arena_count) return;
  struct arena_view rest = {0};
  for (size_t i = shown; i < v->arena_count; i++) add_arena(&rest, &v->arenas[i]);
  char name[32];
  snprintf(name, sizeof name, "(%zu more)", v->arena_count - shown);
  oci_text_add(t, "  %-24s", name);
  text_arena(t, &rest);
}

/* The fullest of free space first: what one looks for. */
static int compare_arenas(const void *a, const void *b) {
  const struct arena_view *x = a, *y = b;
  uint64_t m = x->bytes - x->used, n = y->bytes - y->used;
  if (m != n) return m < n ? 1 : -1;
  return (x->base > y->base) - (x->base < y->base);
}

char *oci_pool_report_text(struct pool *p, size_t top) {
  struct view v;
  struct text t = {0};
  size_t rows_bytes;
  struct ledger_row *rows = NULL;
  if (!view_take(&v, p, &rows_bytes) || !(rows = oci_alloc(NULL, rows_bytes))) t.failed = true;
  if (!t.failed) {
    if (v.arena_count) qsort(v.arenas, v.arena_count, sizeof *v.arenas, compare_arenas);
    text_head(&t, &v);
    text_arenas(&t, &v, top);
    for (enum key key = BY_SITE; key <= BY_OWNER; key++) text_groups(&t, &v, key, rows, top);
  }
  oci_free(NULL, rows, rows_bytes);
  view_drop(&v, rows_bytes);
  return oci_text_take(&t);
}

/* ---- JSON ---- */

static void json_bool(struct text *t, const char *name, bool value) {
  oci_text_add(t, "\"%s\":%s,", name, value ? "true" : "false");
}

static void json_number(struct text *t, const char *name, uint64_t value) {
  oci_text_add(t, "\"%s\":%" PRIu64 ",", name, value);
}

static void json_string(struct text *t, const char *name, const char *value) {
  oci_text_add(t, "\"%s\":", name);
  oci_text_add_json(t, value);
  oci_text_add(t, ",");
}

static void json_fragmentation(struct text *t, uint64_t largest, uint64_t total) {
  oci_text_add(t, "\"fragmentation\":");
  add_thousandths(t, fragmentation(largest, total));
}

static void json_figures(struct text *t, const struct ledger_row *r) {
  json_number(t, "live_blocks", r->live_blocks);
  json_number(t, "live_bytes", r->live_bytes);
  json_number(t, "retired_bytes", r->retired_bytes);
  oci_text_add(t, "\"peak_bytes\":%" PRIu64 "}", r->peak_bytes);
}

static void json_site(struct text *t, const struct ledger_row *r) {
  json_string(t, "file", r->file);
  json_number(t, "line", r->line);
  json_string(t, "func", r->func);
}

enum { LEDGER_ROWS = BY_OWNER + 1 };

static void json_rows(struct text *t, const char *name, const struct ledger_row *rows, size_t count, int key) {
  oci_text_add(t, "\"%s\":[", name);
  for (size_t i = 0; i < count; i++) {
    oci_text_add(t, i ? ",\n{" : "\n{");
    if (key == BY_FILE) json_string(t, "file", rows[i].file);
    if (key == BY_SITE || key == LEDGER_ROWS) json_site(t, &rows[i]);
    if (key == BY_OWNER || key == LEDGER_ROWS) json_string(t, "owner", rows[i].owner);
    json_bool(t, "external", rows[i].external);
    json_figures(t, &rows[i]);
  }
  oci_text_add(t, "],\n");
}

static void json_groups(struct text *t, const struct view *v, struct ledger_row *rows) {
  static const char *const name[] = {"by_site", "by_file", "by_owner"};
  for (enum key key = BY_SITE; key <= BY_OWNER; key++) {
    memcpy(rows, v->rows, v->row_count * sizeof *rows);
    json_rows(t, name[key], rows, group(rows, v->row_count, key), (int)key);
  }
  memcpy(rows, v->rows, v->row_count * sizeof *rows);
  if (v->row_count) qsort(rows, v->row_count, sizeof *rows, compare_size);
  json_rows(t, "ledger", rows, v->row_count, LEDGER_ROWS);
}

static void json_sums(struct text *t, const struct view *v) {
  struct ledger_row ours, others;
  sum_rows(v->rows, v->row_count, &ours, &others);
  oci_text_add(t, "\"sum\":{");
  json_figures(t, &ours);
  oci_text_add(t, ",\n\"external_sum\":{");
  json_figures(t, &others);
}

static void json_arena(struct text *t, const struct arena_view *a) {
  oci_text_add(t, "{\"base\":\"0x%" PRIx64 "\",", a->base);
  json_number(t, "bytes", a->bytes);
  json_number(t, "driver_bytes", a->driver_bytes);
  json_number(t, "used_bytes", a->used);
  json_number(t, "free_bytes", a->bytes - a->used);
  json_number(t, "largest_free", a->largest);
  json_fragmentation(t, a->largest, a->bytes - a->used);
  oci_text_add(t, ",");
  json_bool(t, "managed", a->managed);
  json_bool(t, "lost", a->lost);
  oci_text_add(t, "\"free_sizes\":[");
  bool any = false;
  for (uint32_t c = 0; c < SIZE_CLASSES; c++) {
    if (!a->count[c]) continue;
    oci_text_add(t, "%s{\"at_least\":%" PRIu64 ",\"blocks\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", any ? "," : "",
                 units_bytes(1) << c, a->count[c], a->free_bytes[c]);
    any = true;
  }
  oci_text_add(t, "]}");
}

static void json_stats(struct text *t, const struct view *v) {
  const struct pool_stats *s = &v->stats;
  json_bool(t, "fell_back", v->latched);
  json_number(t, "arenas", s->arenas);
  json_number(t, "arena_bytes", s->arena_bytes);
  json_number(t, "managed_arenas", s->managed_arenas);
  json_number(t, "managed_bytes", s->managed_bytes);
  json_number(t, "live_blocks", s->live_blocks);
  json_number(t, "live_bytes", s->live_bytes);
  json_number(t, "peak_live_bytes", s->peak_live_bytes);
  json_number(t, "retired_bytes", s->retired_bytes);
  json_number(t, "free_bytes", s->free_bytes);
  json_number(t, "largest_free", s->largest_free);
  json_number(t, "driver_allocs", s->driver_allocs);
  json_number(t, "driver_alloc_failures", s->driver_alloc_failures);
  json_number(t, "driver_frees", s->driver_frees);
  json_number(t, "host_metadata_bytes", s->host_metadata_bytes);
  json_fragmentation(t, s->largest_free, s->free_bytes);
}

char *oci_pool_report_json(struct pool *p) {
  struct view v;
  struct text t = {0};
  size_t rows_bytes;
  struct ledger_row *rows = NULL;
  if (!view_take(&v, p, &rows_bytes) || !(rows = oci_alloc(NULL, rows_bytes))) t.failed = true;
  if (!t.failed) {
    oci_text_add(&t, "{\"stats\":{");
    json_stats(&t, &v);
    oci_text_add(&t, "},\n\"arena_list\":[");
    for (size_t i = 0; i < v.arena_count; i++) {
      oci_text_add(&t, i ? ",\n" : "\n");
      json_arena(&t, &v.arenas[i]);
    }
    oci_text_add(&t, "],\n");
    json_groups(&t, &v, rows);
    json_sums(&t, &v);
    oci_text_add(&t, "}\n");
  }
  oci_free(NULL, rows, rows_bytes);
  view_drop(&v, rows_bytes);
  return oci_text_take(&t);
}
