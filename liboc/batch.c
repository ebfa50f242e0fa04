/* SPDX-License-Identifier: MIT */
/*
 * When is a committed value finished on the device? Commits on one stream share an event, a batch: each commit
 * records it anew, and once it has passed all of the batch is finished (a little late, never early).
 *
 * The race: a thread asks the event while another records it anew. The answer "passed" may be about the older record, so
 * it counts only if no commit was recording when it was asked (recording == 0) nor began since (version).
 */
#include "config.h"

#include <time.h>

#include "liboc/model.h"
#include "rcu/mem.h"

#define BATCH_MAX 64u

/* ---- life; lists with the lock held ---- */

static void batch_free(struct oc_derived *d, struct batch *b) {
  oci_event_put(oci_model_of_derived(d), b->event);
  oci_free(d->heap, b, sizeof *b);
}

static void finish(struct oc_derived *d, struct batch *b) {
  LINK_EACH(l, &b->entries) {
    struct entry *e = CONTAINER(l, struct entry, in_batch);
    link_remove(l);
    e->batch = NULL;
    oci_map_set_entry(&d->maps[e->kind], e->key, (uint64_t)(uintptr_t)e);
  }
  link_remove(&b->link);
  b->finished = true;
}

void oci_batch_leave(struct entry *e) {
  link_remove(&e->in_batch);
  e->batch = NULL;
}

static void pin(struct batch *b) {
  b->pins++;
}

/* Unlocks. The last pin of a finished batch frees it. */
static void unpin_unlock(struct oc_derived *d, struct batch *b) {
  bool last = --b->pins == 0 && b->finished;
  pthread_mutex_unlock(&d->lock);
  if (last) batch_free(d, b);
}

/* Asks the event of a pinned batch: OC_OK (and it is finished), OC_MISS, or the driver's failure. Lock held on entry
   and on return, not while asking. */
static oc_status ask(struct oc_derived *d, struct batch *b) {
  if (b->finished) return OC_OK;
  if (b->recording) return OC_MISS;
  uint64_t version = b->version;
  pthread_mutex_unlock(&d->lock);
  oc_status st = oci_dev_event_query(oci_model_of_derived(d), b->event);
  pthread_mutex_lock(&d->lock);
  if (b->finished) return OC_OK;
  if (st != OC_OK) return st;
  if (b->recording || b->version != version) return OC_MISS;
  finish(d, b);
  return OC_OK;
}

/* ---- commit ---- */

static struct batch *open_batch(struct oc_derived *d, oc_stream s) {
  LINK_EACH(l, &d->batches) {
    struct batch *b = CONTAINER(l, struct batch, link);
    if (b->stream == s && b->commits < BATCH_MAX && !b->orphan) return b;
  }
  return NULL;
}

void oci_batches_forget_stream(struct oc_derived *d, oc_stream s) {
  pthread_mutex_lock(&d->lock);
  LINK_EACH(l, &d->batches) {
    struct batch *b = CONTAINER(l, struct batch, link);
    if (b->stream == s) b->orphan = true;
  }
  pthread_mutex_unlock(&d->lock);
}

static void will_record(struct batch *b) {
  b->commits++;
  b->recording++;
  b->version++;
}

/* Old batches are asked about when a new one is needed, so that there are few events. */
static void reap_oldest(struct oc_derived *d) {
  pthread_mutex_lock(&d->lock);
  if (link_empty(&d->batches)) {
    pthread_mutex_unlock(&d->lock);
    return;
  }
  struct batch *b = CONTAINER(d->batches.next, struct batch, link);
  pin(b);
  (void)ask(d, b);
  unpin_unlock(d, b);
}

static oc_status new_batch(struct oc_derived *d, oc_stream s, struct batch **out) {
  reap_oldest(d);
  struct batch *b = oci_alloc(d->heap, sizeof *b);
  if (!b) return oci_error(OC_E_HOST_NOMEM, "oc_build_commit: out of host memory");
  oc_status st = oci_event_get(oci_model_of_derived(d), &b->event);
  if (st) {
    oci_free(d->heap, b, sizeof *b);
    return st;
  }
  b->stream = s;
  link_init(&b->entries);
  *out = b;
  return OC_OK;
}

static struct batch *join_open(struct oc_derived *d, oc_stream s) {
  pthread_mutex_lock(&d->lock);
  struct batch *b = open_batch(d, s);
  if (b) will_record(b);
  pthread_mutex_unlock(&d->lock);
  return b;
}

static oc_status join(struct oc_derived *d, oc_stream s, struct batch **out) {
  *out = join_open(d, s);
  if (*out) return OC_OK;
  struct batch *b = NULL;
  oc_status st = new_batch(d, s, &b);
  if (st) return st;
  pthread_mutex_lock(&d->lock);
  b->id = ++d->clock;
  will_record(b);
  link_add_tail(&d->batches, &b->link);
  pthread_mutex_unlock(&d->lock);
  *out = b;
  return OC_OK;
}

void oci_batch_stored(struct oc_derived *d, struct batch *b, struct entry *e) {
  (void)d;
  b->recording--;
  if (!e) return;
  e->batch = b;
  link_add_tail(&b->entries, &e->in_batch);
}

oc_status oci_batch_record(struct oc_derived *d, oc_stream s, struct batch **out) {
  struct oc_model *m = oci_model_of_derived(d);
  if (oci_dev_capturing(m, s))
    return oci_error(OC_E_CAPTURING, "oc_build_commit: stream %p is capturing", (void *)s);
  oc_status st = join(d, s, out);
  if (st) return st;
  st = oci_dev_event_record(m, (*out)->event, s);
  if (!st) return OC_OK;
  /* what earlier commits recorded still stands */
  pthread_mutex_lock(&d->lock);
  oci_batch_stored(d, *out, NULL);
  pthread_mutex_unlock(&d->lock);
  *out = NULL;   /* the caller has nothing to give back */
  return st;
}

/* ---- waiting for it ---- */

static oc_status order_after(struct oc_model *m, struct batch *b, oc_stream s) {
  if (b->stream == s && !b->orphan) return OC_OK;   /* in order behind the build's work anyway */
  if (oci_dev_capturing(m, s))
    return oci_error(OC_E_CAPTURING, "get_on: the value is not finished, and stream %p is capturing", (void *)s);
  return oci_dev_event_wait(m, s, b->event);
}

oc_status oci_batch_order(struct oc_derived *d, oc_kind kind, uint64_t key, const struct entry *e, oc_stream s) {
  pthread_mutex_lock(&d->lock);
  /* Another entry may stand there by now: its event says nothing about the value that was found. */
  bool there = oci_entry_find(d, kind, key) == e;
  struct batch *b = there ? e->batch : NULL;
  if (!b) {
    pthread_mutex_unlock(&d->lock);
    return there ? OC_OK : OC_MISS;
  }
  pin(b);
  oc_status st = ask(d, b);
  if (st == OC_MISS) {
    pthread_mutex_unlock(&d->lock);
    st = order_after(oci_model_of_derived(d), b, s);
    pthread_mutex_lock(&d->lock);
  }
  unpin_unlock(d, b);
  return st;
}

/* The oldest batch up to `newest`, pinned; NULL: none. It takes no more commits, or it might never pass. */
static struct batch *pin_oldest(struct oc_derived *d, uint64_t newest) {
  if (link_empty(&d->batches)) return NULL;
  struct batch *b = CONTAINER(d->batches.next, struct batch, link);
  if (b->id > newest) return NULL;
  b->commits = BATCH_MAX;
  pin(b);
  return b;
}

static oc_status await(struct oc_derived *d, struct batch *b) {
  long ns = 5000;
  for (;;) {
    oc_status st = ask(d, b);
    if (st != OC_MISS) return st;
    pthread_mutex_unlock(&d->lock);
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    if (ns < 500000) ns += ns / 2;
    pthread_mutex_lock(&d->lock);
  }
}

oc_status oci_batches_settle(struct oc_derived *d) {
  pthread_mutex_lock(&d->lock);
  uint64_t newest = d->clock;
  for (;;) {
    struct batch *b = pin_oldest(d, newest);
    if (!b) break;
    oc_status st = await(d, b);
    unpin_unlock(d, b);
    if (st) return st;
    pthread_mutex_lock(&d->lock);
  }
  pthread_mutex_unlock(&d->lock);
  return OC_OK;
}

void oci_batches_drop(struct oc_derived *d) {
  LINK_EACH(l, &d->batches) {
    struct batch *b = CONTAINER(l, struct batch, link);
    finish(d, b);
    batch_free(d, b);
  }
}
