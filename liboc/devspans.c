/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/devspans.h"

#include <stddef.h>

static uint64_t priority(const struct span *r) {
  uint64_t x = r->base * 0x9E3779B97F4A7C15u;
  return x ^ x >> 32;
}

static struct span **child_towards(struct span *r, uint64_t base) {
  return base < r->base ? &r->left : &r->right;
}

/* Parts t into what lies below base and what does not. */
static void split(struct span *t, uint64_t base, struct span **below, struct span **above) {
  while (t) {
    if (t->base < base) {
      *below = t;
      below = &t->right;
      t = t->right;
    } else {
      *above = t;
      above = &t->left;
      t = t->left;
    }
  }
  *below = *above = NULL;
}

void oci_devspans_add(struct spans *t, struct span *r) {
  struct span **at = &t->root;
  while (*at && priority(*at) > priority(r)) at = child_towards(*at, r->base);
  split(*at, r->base, &r->left, &r->right);
  *at = r;
}

/* Puts two trees together; all of `below` lies below all of `above`. */
static void merge(struct span **at, struct span *below, struct span *above) {
  while (below && above) {
    if (priority(below) > priority(above)) {
      *at = below;
      at = &below->right;
      below = below->right;
    } else {
      *at = above;
      at = &above->left;
      above = above->left;
    }
  }
  *at = below ? below : above;
}

void oci_devspans_remove(struct spans *t, struct span *r) {
  struct span **at = &t->root;
  while (*at != r) at = child_towards(*at, r->base);
  merge(at, r->left, r->right);
}

struct span *oci_devspans_find(const struct spans *t, uint64_t addr) {
  struct span *below = NULL;
  for (struct span *r = t->root; r; r = *child_towards(r, addr)) {
    if (r->base <= addr) below = r;
  }
  return below && addr - below->base < below->bytes ? below : NULL;
}

struct span *oci_devspans_pop(struct spans *t) {
  struct span *r = t->root;
  if (r) oci_devspans_remove(t, r);
  return r;
}
