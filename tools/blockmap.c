/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/blockmap.h"

#include "tools/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 256, TRIES = 100 };

/* What blocks have in common. Strings are the pool's: equal ones are one pointer. */
struct kind {
  oc_block_state state;
  oc_block_role role;
  const char *owner;
  oc_site site;
  bool named;
};

struct drawing {
  const struct blocknames *names;
  struct kind *kinds;
  size_t kind_count, kind_room;
  struct packed packed;
  size_t last_name;                  /* SIZE_MAX: before the first */
  bool backward;                     /* names have begun to come in this order */
  uint64_t *last_kind;               /* by pattern: kind + 1 of the last block with such a name; 0: none */
  uint64_t count;
  json_t *arenas, *external;
};

static bool append(json_t *array, json_t *item)
{
  return json_array_append_new(array, item) == 0;
}

static json_t *address(uint64_t a)
{
  char text[20];

  snprintf(text, sizeof text, "0x%" PRIx64, a);
  return json_string(text);
}

/* ---- Kinds ---- */

static bool same_kind(const struct kind *a, const struct kind *b)
{
  return a->state == b->state && a->role == b->role && a->owner == b->owner && a->site.file == b->site.file &&
         a->site.line == b->site.line && a->site.func == b->site.func && a->named == b->named;
}

/* SIZE_MAX without memory. The last ones are the likeliest. */
static size_t kind_of(struct drawing *d, const struct kind *k)
{
  for (size_t i = d->kind_count; i > 0; i--)
    if (same_kind(&d->kinds[i - 1], k))
      return i - 1;
  if (d->kind_count == d->kind_room) {
    size_t room = d->kind_room ? d->kind_room * 2 : 32;
    struct kind *larger = realloc(d->kinds, room * sizeof *larger);

    if (!larger)
      return SIZE_MAX;
    d->kinds = larger;
    d->kind_room = room;
  }
  d->kinds[d->kind_count] = *k;
  return d->kind_count++;
}

static json_t *site_text(const oc_site *s)
{
  size_t room;
  char *text;
  json_t *json;

  if (!s->file)
    return json_null();
  room = strlen(s->file) + 16;
  text = malloc(room);
  if (!text)
    return NULL;
  snprintf(text, room, "%s:%" PRIu32, s->file, s->line);
  json = oct_page_text(text);
  free(text);
  return json;
}

static json_t *kind_json(const struct kind *k)
{
  static const char *const states[] = {"free", "live", "retired", "lost", "external"};
  static const char *const roles[] = {"none", "caller", "owner", "scratch", "build", "derived", "external"};

  return json_pack("{s:s, s:s, s:o, s:o, s:o, s:b}", "state", states[k->state], "role", roles[k->role], "owner",
                   oct_page_text(k->owner), "site", site_text(&k->site), "func", oct_page_text(k->site.func), "named",
                   (int)k->named);
}

static json_t *kinds_json(const struct drawing *d)
{
  json_t *array = json_array();
  bool ok = array;

  for (size_t i = 0; ok && i < d->kind_count; i++)
    ok = append(array, kind_json(&d->kinds[i]));
  return ok ? array : (json_decref(array), NULL);
}

/* ---- Blocks ---- */

/* Zigzag: small distances either way are small numbers. */
static uint64_t distance(size_t to, size_t from)
{
  int64_t d = (int64_t)to - (int64_t)from;

  return d < 0 ? ~((uint64_t)d << 1) : (uint64_t)d << 1;
}

static uint64_t round_up(uint64_t bytes)
{
  return (bytes + UNIT - 1) / UNIT * UNIT;
}

static size_t expected_name(const struct drawing *d)
{
  return d->backward ? d->last_name - 1 : d->last_name + 1;
}

static bool is_expected(const struct drawing *d, const oc_block_info *b, size_t kind, size_t name)
{
  const struct blockname *n = &d->names->names[name];

  return name == expected_name(d) && d->last_kind[n->pattern] == kind + 1 && n->bytes == b->requested &&
         round_up(b->requested) == b->bytes;
}

static void pack_block(struct drawing *d, const oc_block_info *b, size_t kind, bool named, size_t name)
{
  if (named && is_expected(d, b, kind, name)) {
    oct_pack_varint(&d->packed, 0);
  } else {
    oct_pack_varint(&d->packed, kind + 1);
    oct_pack_varint(&d->packed, b->bytes / UNIT);
    if (b->state != OC_BLOCK_FREE)
      oct_pack_varint(&d->packed, b->bytes - b->requested);
    if (named)
      oct_pack_varint(&d->packed, distance(name, expected_name(d)));
  }
  if (named) {
    d->last_kind[d->names->names[name].pattern] = kind + 1;
    if (name != expected_name(d))
      d->backward = name + 1 == d->last_name;
    d->last_name = name;
  }
}

static bool add_arena(struct drawing *d, const oc_arena_info *a)
{
  return append(d->arenas, json_pack("{s:o, s:I, s:I, s:b, s:b}", "base", address(a->base), "bytes",
                                     (json_int_t)a->bytes, "used", (json_int_t)a->used_bytes, "managed",
                                     (a->flags & OC_ARENA_MANAGED) != 0, "lost", (a->flags & OC_ARENA_LOST) != 0));
}

static oc_status add_block(void *arg, const oc_block_info *b)
{
  struct drawing *d = arg;
  size_t name = 0, kind;
  bool named = b->state == OC_BLOCK_LIVE && oct_blocknames_find(d->names, b->start, &name);
  struct kind k = {.state = b->state, .role = b->role, .owner = b->owner, .site = b->site, .named = named};

  kind = kind_of(d, &k);
  if (kind == SIZE_MAX)
    return OC_E_HOST_NOMEM;
  if (!b->arena)
    return append(d->external, json_pack("{s:o, s:I, s:I}", "start", address(b->start), "bytes", (json_int_t)b->bytes,
                                         "kind", (json_int_t)kind)) ? OC_OK : OC_E_HOST_NOMEM;
  if (b->start == b->arena->base && !add_arena(d, b->arena))
    return OC_E_HOST_NOMEM;
  pack_block(d, b, kind, named, name);
  d->count++;
  return OC_OK;
}

/* ---- The whole ---- */

static bool take_figures(oc_pool *pool, oc_pool_stats *s, struct fault *why)
{
  oc_status st;

  *s = (oc_pool_stats){.struct_size = sizeof *s};
  st = oc_pool_get_stats(pool, s);
  return st == OC_OK || oct_liboc_fault(why, st, "the pool's figures");
}

static json_t *figures_json(const oc_pool_stats *s)
{
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "arenas", (json_int_t)s->arenas, "arena_bytes",
                   (json_int_t)s->arena_bytes, "live_blocks", (json_int_t)s->live_blocks, "live_bytes",
                   (json_int_t)s->live_bytes, "peak_live_bytes", (json_int_t)s->peak_live_bytes, "retired_bytes",
                   (json_int_t)s->retired_bytes, "free_bytes", (json_int_t)s->free_bytes, "largest_free",
                   (json_int_t)s->largest_free, "fell_back", (int)s->fell_back);
}

static void drop(struct drawing *d)
{
  free(d->kinds);
  free(d->last_kind);
  free(d->packed.at);
  json_decref(d->arenas);
  json_decref(d->external);
}

/* All blocks of one moment, into *d, which is the caller's to drop. */
static bool draw(oc_pool *pool, const struct blocknames *names, struct drawing *d, struct fault *why)
{
  oc_status st;

  *d = (struct drawing){.names = names, .last_name = SIZE_MAX, .arenas = json_array(), .external = json_array(),
                        .last_kind = calloc(json_array_size(names->patterns) + 1, sizeof *d->last_kind)};
  st = d->arenas && d->external && d->last_kind && !names->failed ? oc_pool_each_block(pool, add_block, d)
                                                                  : OC_E_HOST_NOMEM;
  if (st == OC_E_HOST_NOMEM)
    return oct_fault(why, "no memory for the map of the blocks");
  return st == OC_OK || oct_liboc_fault(why, st, "listing the blocks");
}

/* Is it one moment? Blocks that waited for a stream may have come back meanwhile. */
static bool same_moment(const oc_pool_stats *a, const oc_pool_stats *b)
{
  return a->arena_bytes == b->arena_bytes && a->live_bytes == b->live_bytes && a->retired_bytes == b->retired_bytes &&
         a->live_blocks == b->live_blocks && a->largest_free == b->largest_free;
}

/* Map and figures of one moment: nobody works on the pool any more, so that comes soon. */
static bool draw_still(oc_pool *pool, const struct blocknames *names, struct drawing *d, oc_pool_stats *figures,
                       struct fault *why)
{
  oc_pool_stats before;
  bool ok = take_figures(pool, figures, why);

  for (unsigned tries = 0; ok; tries++) {
    before = *figures;
    drop(d);
    ok = draw(pool, names, d, why) && take_figures(pool, figures, why);
    if (ok && (same_moment(&before, figures) || tries == TRIES))
      break;
  }
  return ok;
}

json_t *oct_blockmap(oc_pool *pool, const char *title, const struct blocknames *names, struct fault *why)
{
  struct drawing d = {0};
  oc_pool_stats figures;
  json_t *map = NULL;

  if (draw_still(pool, names, &d, &figures, why)) {
    map = json_pack("{s:o, s:O, s:O, s:o, s:I, s:o, s:o}", "title", oct_page_text(title), "arenas", d.arenas,
                    "external", d.external, "kinds", kinds_json(&d), "count", (json_int_t)d.count, "data",
                    oct_packed_text(&d.packed), "figures", figures_json(&figures));
    if (!map)
      oct_fault_write(why, "no memory for the map of the blocks");
  }
  drop(&d);
  return map;
}
