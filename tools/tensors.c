/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(struct tensor_list *l)
{
  size_t room = l->room ? 2 * l->room : 64;
  struct tensor *at;

  if (l->count < l->room)
    return true;
  at = reallocarray(l->at, room, sizeof *at);
  if (!at)
    return false;
  l->at = at;
  l->room = room;
  return true;
}

struct tensor *oct_tensors_add(struct tensor_list *l, const char *name, const struct dtype *type,
                               const uint64_t *shape, size_t rank)
{
  struct tensor t = {.type = type, .rank = rank};

  if (!make_room(l))
    return NULL;
  t.name = strdup(name);
  t.shape = calloc(rank ? rank : 1, sizeof *t.shape);
  if (!t.name || !t.shape) {
    free(t.name);
    free(t.shape);
    return NULL;
  }
  if (rank)
    memcpy(t.shape, shape, rank * sizeof *shape);
  l->at[l->count] = t;
  return &l->at[l->count++];
}

bool oct_tensors_bytes(const struct tensor_list *l, uint64_t *sum)
{
  uint64_t all = 0;

  for (size_t i = 0; i < l->count; i++)
    if (__builtin_add_overflow(all, l->at[i].bytes, &all))
      return false;
  *sum = all;
  return true;
}

void oct_tensors_free(struct tensor_list *l)
{
  for (size_t i = 0; i < l->count; i++) {
    free(l->at[i].name);
    free(l->at[i].shape);
  }
  free(l->at);
  *l = (struct tensor_list){0};
}

const char *oct_tensor_shape(const struct tensor *t, char *buf, size_t n)
{
  size_t used = (size_t)snprintf(buf, n, "%s[", t->type->name);

  for (size_t i = 0; i < t->rank && used < n; i++)
    used += (size_t)snprintf(buf + used, n - used, "%s%" PRIu64, i ? "," : "", t->shape[i]);
  if (used < n)
    snprintf(buf + used, n - used, "]");
  return buf;
}
