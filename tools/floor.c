/* SPDX-License-Identifier: MIT */
/* The call goes through a pointer in memory, which is what a call into a shared library comes to. */
#include "config.h"

#include "tools/race.h"

struct floor_key { uint32_t id; };

static __attribute__((noinline)) oc_status load(const uint64_t *table, const struct floor_key *key, uint64_t *out)
{
  *out = __atomic_load_n(&table[__atomic_load_n(&key->id, __ATOMIC_RELAXED)], __ATOMIC_ACQUIRE);
  return OC_OK;
}

static oc_status (*volatile call)(const uint64_t *table, const struct floor_key *key, uint64_t *out) = load;

void oct_floor_lap(void *arg, struct lap *lap)
{
  const struct floor_table *f = arg;

  for (size_t i = 0; i < LAP; i++) {
    struct floor_key key = {f->order[(lap->at + i) & f->mask]};
    uint64_t value = 0;

    (void)call(f->table, &key, &value);
    oct_use(value);
  }
  lap->at += LAP;
}
