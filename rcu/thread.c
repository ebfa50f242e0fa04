/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/thread.h"

#include <pthread.h>

__thread struct thread_self oci_self;

static uint64_t newest_id;

uint64_t oci_thread_id_new(void) {
  oci_self.id = __atomic_add_fetch(&newest_id, 1, __ATOMIC_RELAXED);
  return oci_self.id;
}

/* ---- who counts where ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* all that follows; a leaf */
static struct link threads = {&threads, &threads};         /* struct thread_self */
static struct thread_cell *cells;                          /* [cell_count] */
static size_t cell_count;
static uint64_t *left_out;

static struct thread_cell *free_cell(void) {
  for (size_t i = 0; i < cell_count; i++)
    if (!cells[i].owner) return &cells[i];
  return NULL;
}

/* While there are cells at all. */
static void give_cell(struct thread_self *t) {
  struct thread_cell *cell = free_cell();
  if (cell) __atomic_store_n(&cell->owner, t->id, __ATOMIC_RELAXED);
  else __atomic_fetch_add(left_out, 1, __ATOMIC_RELAXED);
  /* release: who counts in it goes on from what its last owner left */
  __atomic_store_n(&t->cell, cell, __ATOMIC_RELEASE);
}

static void take_cell(struct thread_self *t) {
  if (t->cell) __atomic_store_n(&t->cell->owner, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&t->cell, NULL, __ATOMIC_RELAXED);
}

/* ---- the list ---- */

static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static bool exit_key_made;

static void thread_ends(void *self) {
  struct thread_self *t = self;
  pthread_mutex_lock(&lock);
  take_cell(t);
  link_remove(&t->link);
  pthread_mutex_unlock(&lock);
  t->listed = false;
  t->ended = true;
}

static void make_exit_key(void) {
  exit_key_made = pthread_key_create(&exit_key, thread_ends) == 0;
}

void oci_thread_list(void) {
  if (oci_self.listed || oci_self.ended) return;
  pthread_once(&exit_once, make_exit_key);
  /* One that could not be taken off the list at its exit is not put on it. */
  if (!exit_key_made || pthread_setspecific(exit_key, &oci_self) != 0) return;
  (void)oci_thread_id();
  oci_self.listed = true;
  pthread_mutex_lock(&lock);
  link_add_tail(&threads, &oci_self.link);
  if (cell_count) give_cell(&oci_self);
  pthread_mutex_unlock(&lock);
}

void oci_thread_cells(struct thread_cell *given, size_t n, uint64_t *more) {
  pthread_mutex_lock(&lock);
  cells = given;
  cell_count = n;
  left_out = more;
  LINK_EACH(l, &threads) {
    struct thread_self *t = CONTAINER(l, struct thread_self, link);
    if (n) give_cell(t);
    else __atomic_store_n(&t->cell, NULL, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&lock);
}

/* Of all threads a child has this one. Its counts are its own: the cells are the parent's. */
void oci_thread_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) {
    pthread_mutex_lock(&lock);
    return;
  }
  if (step == OCI_FORK_CHILD) {
    cell_count = 0;
    oci_self.cell = NULL;
    link_init(&threads);
    if (oci_self.listed) link_add_tail(&threads, &oci_self.link);
  }
  pthread_mutex_unlock(&lock);
}
