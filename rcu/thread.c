/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/thread.h"

__thread struct thread_self oci_self;

static uint64_t newest_id;

uint64_t oci_thread_id_new(void) {
  oci_self.id = __atomic_add_fetch(&newest_id, 1, __ATOMIC_RELAXED);
  return oci_self.id;
}
