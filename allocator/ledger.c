/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/ledger.h"

#include "rcu/hash.h"

void oci_ledger_init(struct ledger *l, struct meta *meta) {
  *l = (struct ledger){.meta = meta, .name_count = 1};
}

static void index_fini(struct ledger_index *x, struct meta *meta) {
  if (x->slot) meta_free(meta, x->slot, ((size_t)x->mask + 1) * sizeof *x->slot);
}

void oci_ledger_fini(struct ledger *l) {
  for (uint32_t i = 1; i < l->name_count; i++) meta_free(l->meta, l->names[i].text, l->names[i].bytes);
  meta_free(l->meta, l->names, l->name_capacity * sizeof *l->names);
  meta_free(l->meta, l->tags, l->tag_capacity * sizeof *l->tags);
  index_fini(&l->by_tag, l->meta);
  index_fini(&l->by_name, l->meta);
  oci_ledger_init(l, l->meta);
}

/* ---- indexes ---- */

static void index_put(struct ledger_index *x, uint64_t hash, uint32_t item) {
  uint32_t at = (uint32_t)hash & x->mask;
  while (x->slot[at]) at = (at + 1) & x->mask;
  x->slot[at] = item + 1;
}

/* A larger, empty index in *out, if `items` would fill the old one by more than half; *out is {NULL} if not. */
static bool index_room(const struct ledger_index *x, struct meta *meta, uint32_t items, struct ledger_index *out) {
  *out = (struct ledger_index){NULL, 0};
  if (x->slot && (uint64_t)items * 2 <= (uint64_t)x->mask + 1) return true;
  uint32_t slots = x->slot ? (x->mask + 1) * 2 : 32;
  out->slot = meta_alloc(meta, slots * sizeof *out->slot);
  out->mask = slots - 1;
  return out->slot != NULL;
}

static void index_replace(struct ledger_index *x, struct meta *meta, struct ledger_index larger) {
  index_fini(x, meta);
  *x = larger;
}

/* ---- names ---- */

static uint32_t find_name(const struct ledger *l, uint64_t hash, const char *text) {
  const struct ledger_index *x = &l->by_name;
  if (!x->slot) return 0;
  for (uint32_t at = (uint32_t)hash & x->mask; x->slot[at]; at = (at + 1) & x->mask) {
    const struct ledger_name *n = &l->names[x->slot[at] - 1];
    if (n->hash == hash && !strcmp(n->text, text)) return x->slot[at] - 1;
  }
  return 0;
}

static bool room_for_name(struct ledger *l) {
  if (l->name_count >= l->name_capacity) {
    uint32_t capacity = l->name_capacity ? l->name_capacity * 2 : 16;
    void *grown = meta_grow(l->meta, l->names, l->name_capacity * sizeof *l->names, capacity * sizeof *l->names);
    if (!grown) return false;
    l->names = grown;
    l->name_capacity = capacity;
  }
  struct ledger_index larger;
  if (!index_room(&l->by_name, l->meta, l->name_count, &larger)) return false;
  if (!larger.slot) return true;
  for (uint32_t i = 1; i < l->name_count; i++) index_put(&larger, l->names[i].hash, i);
  index_replace(&l->by_name, l->meta, larger);
  return true;
}

static bool intern(struct ledger *l, const char *text, uint32_t *out) {
  struct ledger_name n;
  *out = 0;
  if (!text) return true;
  n.bytes = strlen(text) + 1;
  n.hash = oci_hash_bytes(text, n.bytes, 0);
  *out = find_name(l, n.hash, text);
  if (*out) return true;
  if (!room_for_name(l)) return false;
  n.text = meta_alloc(l->meta, n.bytes);
  if (!n.text) return false;
  memcpy(n.text, text, n.bytes);
  *out = l->name_count++;
  l->names[*out] = n;
  index_put(&l->by_name, n.hash, *out);
  return true;
}

static const char *name_text(const struct ledger *l, uint32_t name) { return name ? l->names[name].text : NULL; }

/* ---- tags ---- */

static uint64_t hash_tag(const struct ledger_tag *t) {
  uint64_t site = oci_mix((uint64_t)t->file << 32 | t->line, UINT64_C(0xE7037ED1A0B428DB));
  uint64_t who = (uint64_t)t->owner << 32 | t->func;
  return oci_mix(site ^ who, UINT64_C(0x8EBC6AF09C88C6E3) + t->external);
}

static bool same_tag(const struct ledger_tag *a, const struct ledger_tag *b) {
  return a->file == b->file && a->line == b->line && a->func == b->func && a->owner == b->owner &&
         a->external == b->external;
}

static bool find_tag(const struct ledger *l, uint64_t hash, const struct ledger_tag *key, uint32_t *out) {
  const struct ledger_index *x = &l->by_tag;
  if (!x->slot) return false;
  for (uint32_t at = (uint32_t)hash & x->mask; x->slot[at]; at = (at + 1) & x->mask)
    if (same_tag(&l->tags[x->slot[at] - 1], key)) {
      *out = x->slot[at] - 1;
      return true;
    }
  return false;
}

static bool room_for_tag(struct ledger *l) {
  if (l->tag_count == UINT32_MAX / 2) return false;
  if (l->tag_count == l->tag_capacity) {
    uint32_t capacity = l->tag_capacity ? l->tag_capacity * 2 : 16;
    void *grown = meta_grow(l->meta, l->tags, l->tag_capacity * sizeof *l->tags, capacity * sizeof *l->tags);
    if (!grown) return false;
    l->tags = grown;
    l->tag_capacity = capacity;
  }
  struct ledger_index larger;
  if (!index_room(&l->by_tag, l->meta, l->tag_count + 1, &larger)) return false;
  if (!larger.slot) return true;
  for (uint32_t i = 0; i < l->tag_count; i++) index_put(&larger, hash_tag(&l->tags[i]), i);
  index_replace(&l->by_tag, l->meta, larger);
  return true;
}

static bool tag_for(struct ledger *l, const struct ledger_tag *key, uint32_t *out) {
  uint64_t hash = hash_tag(key);
  if (find_tag(l, hash, key, out)) return true;
  if (!room_for_tag(l)) return false;
  *out = l->tag_count++;
  l->tags[*out] = *key;
  index_put(&l->by_tag, hash, *out);
  return true;
}

/* ---- from a caller's pointers ---- */

static bool look_up(struct ledger *l, const struct pool_site *site, const char *owner, bool external,
                    uint32_t *out) {
  struct ledger_tag key = {.line = site ? site->line : 0, .external = external};
  return intern(l, site ? site->file : NULL, &key.file) && intern(l, site ? site->func : NULL, &key.func) &&
         intern(l, owner, &key.owner) && tag_for(l, &key, out);
}

bool oci_ledger_intern(struct ledger *l, const struct pool_site *site, const char *owner, bool external,
                       uint32_t *tag) {
  if (!look_up(l, site && site->file ? site : NULL, owner, external, tag)) return false;
  const struct ledger_tag *t = &l->tags[*tag];
  *ledger_hint(l, site, owner) = (struct tag_hint){
    .site = site, .owner = owner, .tag = *tag, .line = t->line, .external = external, .known = true,
    .file_text = name_text(l, t->file), .func_text = name_text(l, t->func), .owner_text = name_text(l, t->owner),
  };
  return true;
}

bool oci_ledger_retag(struct ledger *l, uint32_t tag, const char *owner, uint32_t *out) {
  const struct ledger_tag *t = &l->tags[tag];
  struct ledger_tag key = {.file = t->file, .func = t->func, .line = t->line, .external = t->external};
  return intern(l, owner, &key.owner) && tag_for(l, &key, out);
}

void oci_ledger_clear(struct ledger *l) {
  for (uint32_t i = 0; i < l->tag_count; i++) {
    if (l->tags[i].external) continue;
    l->tags[i].live_blocks = l->tags[i].live_bytes = l->tags[i].retired_bytes = 0;
  }
}

void oci_ledger_row(const struct ledger *l, uint32_t tag, struct ledger_row *out) {
  const struct ledger_tag *t = &l->tags[tag];
  *out = (struct ledger_row){
    .file = name_text(l, t->file), .line = t->line, .func = name_text(l, t->func),
    .owner = name_text(l, t->owner), .external = t->external,
    .live_blocks = t->live_blocks, .live_bytes = t->live_bytes,
    .retired_bytes = t->retired_bytes, .peak_bytes = t->peak_bytes,
  };
}
