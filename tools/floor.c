/* SPDX-License-Identifier: MIT */
/*
 * The floor under every lookup: an indexed load through a call. The call goes through a pointer in memory, as a call
 * into a shared library does.
 */
#include "config.h"

#include "tools/race.h"

static __attribute__((noinline)) uint64_t load(const uint64_t *table, size_t i)
{
  return __atomic_load_n(&table[i], __ATOMIC_ACQUIRE);
}

static uint64_t (*volatile call)(const uint64_t *table, size_t i) = load;

void oct_floor_lap(void *arg, struct lap *lap)
{
  const struct floor_table *f = arg;

  for (size_t i = 0; i < LAP; i++)
    oct_use(call(f->table, f->order[(lap->at + i) & f->mask]));
  lap->at += LAP;
}
