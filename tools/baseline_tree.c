/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/lock.h"
#include "tools/baseline_tree.h"

#include <stdlib.h>
#include <string.h>

/* ---- An AVL tree by two numbers ---- */

enum { LEFT, RIGHT, DEPTH_MAX = 64 };

struct knot {
  struct knot *child[2];
  uint64_t first, second;
  int height;
};

static int height(const struct knot *k)
{
  return k ? k->height : 0;
}

static void measure(struct knot *k)
{
  int l = height(k->child[LEFT]), r = height(k->child[RIGHT]);

  k->height = (l > r ? l : r) + 1;
}

/* The child on `side` comes up. */
static void rotate(struct knot **at, int side)
{
  struct knot *k = *at, *up = k->child[side];

  k->child[side] = up->child[!side];
  up->child[!side] = k;
  measure(k);
  measure(up);
  *at = up;
}

/* True: the height is what it was, and nothing above changes. */
static bool balance(struct knot **at)
{
  struct knot *k = *at;
  int was = k->height, lean = height(k->child[RIGHT]) - height(k->child[LEFT]), side = lean > 0 ? RIGHT : LEFT;

  measure(k);
  if (lean >= -1 && lean <= 1)
    return k->height == was;
  if (height(k->child[side]->child[!side]) > height(k->child[side]->child[side]))
    rotate(&k->child[side], !side);
  rotate(at, side);
  return (*at)->height == was;
}

static int side_of(const struct knot *k, const struct knot *n)
{
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): asked only of a knot that is there
  return n->first > k->first || (n->first == k->first && n->second > k->second) ? RIGHT : LEFT;
}

static void rebalance(struct knot ***path, size_t depth)
{
  while (depth > 0 && !balance(path[depth - 1]))
    depth--;
}

static void insert(struct knot **root, struct knot *n)
{
  struct knot **path[DEPTH_MAX], **at = root;
  size_t depth = 0;

  while (*at) {
    path[depth++] = at;
    at = &(*at)->child[side_of(*at, n)];
  }
  n->child[LEFT] = n->child[RIGHT] = NULL;
  n->height = 1;
  *at = n;
  rebalance(path, depth);
}

static void take_out(struct knot **root, struct knot *n)
{
  struct knot **path[DEPTH_MAX], **at = root, **next;
  size_t depth = 0, place;

  while (*at != n) {
    path[depth++] = at;
    at = &(*at)->child[side_of(*at, n)];
  }
  if (!n->child[LEFT] || !n->child[RIGHT]) {
    *at = n->child[n->child[LEFT] ? LEFT : RIGHT];
    rebalance(path, depth);
    return;
  }
  /* Its successor takes its place. */
  place = depth;
  path[depth++] = at;
  for (next = &n->child[RIGHT]; (*next)->child[LEFT]; next = &(*next)->child[LEFT])
    path[depth++] = next;
  *at = *next;
  *next = (*at)->child[RIGHT];
  (*at)->child[LEFT] = n->child[LEFT];
  (*at)->child[RIGHT] = n->child[RIGHT];
  (*at)->height = n->height;
  if (depth > place + 1)
    path[place + 1] = &(*at)->child[RIGHT];
  rebalance(path, depth);
}

/* The first that is not below; NULL: none. */
static struct knot *not_below(struct knot *k, uint64_t first)
{
  struct knot *best = NULL;

  while (k) {
    best = k->first >= first ? k : best;
    k = k->child[k->first >= first ? LEFT : RIGHT];
  }
  return best;
}

/* ---- Blocks ---- */

struct piece {
  struct knot by_address, by_size;
  uint64_t at, bytes;
  struct piece *before, *behind;   /* in its arena */
  bool free;
  struct entry *entry;             /* of the ledger; not free */
  struct piece *unused;
};

struct entry { const oc_site *site; oc_site is; uint64_t live_blocks, live_bytes, peak_bytes; };

enum { ENTRIES = 256 };

struct fit {
  struct lock lock;
  struct knot *by_address, *by_size;
  struct piece *piece, *unused;
  struct entry ledger[ENTRIES];
  struct entry all;
};

#define PIECE(k, member) ((struct piece *)(void *)((char *)(k) - offsetof(struct piece, member)))

static struct piece *take(struct fit *f, uint64_t at, uint64_t bytes)
{
  struct piece *p = f->unused;

  f->unused = p->unused;
  p->at = at;
  p->bytes = bytes;
  p->by_address.first = at;
  p->before = p->behind = NULL;
  insert(&f->by_address, &p->by_address);
  return p;
}

static void give(struct fit *f, struct piece *p)
{
  take_out(&f->by_address, &p->by_address);
  p->unused = f->unused;
  f->unused = p;
}

static void become_free(struct fit *f, struct piece *p)
{
  p->free = true;
  p->by_size.first = p->bytes;
  p->by_size.second = p->at;
  insert(&f->by_size, &p->by_size);
}

static void no_longer_free(struct fit *f, struct piece *p)
{
  take_out(&f->by_size, &p->by_size);
  p->free = false;
}

struct fit *oct_fit_make(size_t arenas, uint64_t arena_bytes, size_t blocks)
{
  struct fit *f = calloc(1, sizeof *f);
  size_t pieces = 2 * blocks + arenas + 2;

  if (!f)
    return NULL;
  f->piece = calloc(pieces, sizeof *f->piece);
  for (size_t i = pieces; f->piece && i > 0; i--) {
    f->piece[i - 1].unused = f->unused;
    f->unused = &f->piece[i - 1];
  }
  for (size_t i = 0; f->piece && i < arenas; i++)
    become_free(f, take(f, (i + 1) * 2 * arena_bytes, arena_bytes));
  if (f->piece)
    return f;
  oct_fit_destroy(f);
  return NULL;
}

void oct_fit_destroy(struct fit *f)
{
  free(f->piece);
  free(f);
}

static bool same_site(const oc_site *a, const oc_site *b)
{
  return a->line == b->line && strcmp(a->file, b->file) == 0 && strcmp(a->func, b->func) == 0;
}

static struct entry *entry_of(struct fit *f, const oc_site *site)
{
  size_t i = (size_t)((uintptr_t)site / 8 * 0x9E3779B97F4A7C15u >> 56) % ENTRIES;
  struct entry *e = &f->ledger[i];

  while (e->site && !(e->site == site && same_site(&e->is, site))) {
    i = (i + 1) % ENTRIES;
    e = &f->ledger[i];
  }
  e->site = site;
  e->is = *site;
  return e;
}

static void count(struct entry *e, uint64_t bytes)
{
  e->live_blocks++;
  e->live_bytes += bytes;
  if (e->live_bytes > e->peak_bytes)
    e->peak_bytes = e->live_bytes;
}

static void discount(struct entry *e, uint64_t bytes)
{
  e->live_blocks--;
  e->live_bytes -= bytes;
}

/* Cuts the tail off, which stays free. */
static void split(struct fit *f, struct piece *p, uint64_t bytes)
{
  struct piece *rest;

  if (p->bytes == bytes)
    return;
  rest = take(f, p->at + bytes, p->bytes - bytes);
  rest->before = p;
  rest->behind = p->behind;
  if (rest->behind)
    rest->behind->before = rest;
  p->behind = rest;
  p->bytes = bytes;
  become_free(f, rest);
}

uint64_t oct_fit_alloc(struct fit *f, uint64_t bytes, const oc_site *site)
{
  uint64_t rounded = (bytes + 255) / 256 * 256, at = 0;
  struct knot *found;
  struct piece *p;

  lock_take(&f->lock);
  found = not_below(f->by_size, rounded);
  if (found && f->unused) {
    p = PIECE(found, by_size);
    no_longer_free(f, p);
    split(f, p, rounded);
    p->entry = entry_of(f, site);
    count(p->entry, rounded);
    count(&f->all, rounded);
    at = p->at;
  }
  lock_leave(&f->lock);
  return at;
}

/* Takes in the piece behind, which is in no tree by size. */
static void merge(struct fit *f, struct piece *p)
{
  struct piece *gone = p->behind;

  p->bytes += gone->bytes;
  p->behind = gone->behind;
  if (p->behind)
    p->behind->before = p;
  give(f, gone);
}

static void free_piece(struct fit *f, struct piece *p)
{
  discount(p->entry, p->bytes);
  discount(&f->all, p->bytes);
  if (p->behind && p->behind->free) {
    no_longer_free(f, p->behind);
    merge(f, p);
  }
  if (p->before && p->before->free) {
    p = p->before;
    no_longer_free(f, p);
    merge(f, p);
  }
  become_free(f, p);
}

bool oct_fit_free(struct fit *f, uint64_t at)
{
  struct knot *k;
  bool found;

  lock_take(&f->lock);
  k = not_below(f->by_address, at);
  found = k && k->first == at && !PIECE(k, by_address)->free;
  if (found)
    free_piece(f, PIECE(k, by_address));
  lock_leave(&f->lock);
  return found;
}
