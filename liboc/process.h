/* SPDX-License-Identifier: MIT */
/*
 * What is process-wide: the list of backends with their models, and what fork() does to it.
 */
#ifndef OCI_LIBOC_PROCESS_H
#define OCI_LIBOC_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "liboc/oc.h"
#include "rcu/error.h"

struct oc_backend;
struct oc_model;

/* The list's lock. Inside it only pool locks, and that of the threads' list, may be taken. */
void oci_process_lock(void);
void oci_process_unlock(void);

/* Registers the fork handlers, once. False: they cannot be. */
bool oci_process_watch_fork(void);
oc_status oci_process_add_backend(struct oc_backend *b);
void oci_process_remove_backend(struct oc_backend *b);
/* b must not be closing. OC_E_FORKED, OC_E_INVALID. */
oc_status oci_process_add_model(struct oc_backend *b, struct oc_model *m);
void oci_process_remove_model(struct oc_model *m);
/* Each model whose backend this process opened; with the lock held (by the caller; or meanwhile). */
void oci_process_each_model_locked(void (*each)(void *arg, struct oc_model *m), void *arg);
void oci_process_each_model(void (*each)(void *arg, struct oc_model *m), void *arg);
/* Is addr in the pool of a model on m's backend, other than m? */
bool oci_process_other_pool(const struct oc_model *m, uint64_t addr);

/* The other process-wide locks, around fork(). */
void oci_keys_fork(enum oci_fork_step step);
void oci_kinds_fork(enum oci_fork_step step);

#endif
