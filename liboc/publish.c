/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "liboc/model.h"
#include "liboc/options.h"
#include "liboc/process.h"
#include "rcu/thread.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010   /* Linux 5.1 */
#endif

#define DEFAULT_MODELS 64u
#define DEFAULT_THREADS 1024u
#define MOST_MODELS 4096u
#define MOST_THREADS 16384u

/* The layout that others read: a change of any of these is another OC_STATS_VERSION. */
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
AT(oc_stats_page, models_at, 32);
AT(oc_stats_page, library, 80);
AT(oc_stats_model, state, 144);
AT(oc_stats_model, arenas, 160);
AT(oc_stats_model, kernel_misses, 256);
AT(oc_stats_model, driver, 344);
_Static_assert(sizeof(oc_stats_page) == 104 && sizeof(oc_stats_model) == 536 && sizeof(oc_stats_thread) == 128, "sizes");
_Static_assert(sizeof(struct thread_cell) == sizeof(oc_stats_thread), "a thread's cell");
AT(oc_stats_thread, gate_hits, offsetof(struct thread_cell, hits[HIT_GATE]));
_Static_assert(sizeof(struct pool_shown) == 256 - 160, "the pool's figures");
_Static_assert(offsetof(struct counts, driver) == 344 - 256, "the counts");

/* Models' slots and threads' slots lie on lines of their own. */
enum { MODEL_BYTES = (sizeof(oc_stats_model) + 127) / 128 * 128, HEAD_BYTES = 128 };

/* Under the process lock. */
static struct {
  char *at;                /* each page's own: never that of one before */
  size_t bytes;
  int fd;                  /* of the published one; else -1 */
  struct stat file;        /* what fd was when it was ours */
} page = {.fd = -1};

static oc_stats_page *head(void) { return (oc_stats_page *)(void *)page.at; }

static oc_stats_model *slot(uint32_t i) {
  return (oc_stats_model *)(void *)(page.at + head()->models_at + (size_t)i * MODEL_BYTES);
}

static void put(uint64_t *cell, uint64_t value) { __atomic_store_n(cell, value, __ATOMIC_RELAXED); }

/* ---- a model's slot ---- */

/* Counts only grow, but their new values may come by here in another order. */
static void raise_to(uint64_t *cell, uint64_t sum) {
  uint64_t was = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (was < sum && !__atomic_compare_exchange_n(cell, &was, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
}

void oci_publish_count(const struct oc_model *m, oc_stats_model *shown, const uint64_t *count, uint64_t sum) {
  size_t i = (size_t)(count - (const uint64_t *)&m->counts);
  raise_to(&shown->kernel_misses + i, sum);
}

static void show_counts(struct oc_model *m, oc_stats_model *shown) {
  const uint64_t *counts = (const uint64_t *)&m->counts;
  size_t n = offsetof(struct counts, bytes_traced) / sizeof *counts;
  for (size_t i = 0; i < n; i++) oci_publish_count(m, shown, &counts[i], __atomic_load_n(&counts[i], __ATOMIC_SEQ_CST));
}

void oci_publish_latch(struct oc_model *m) {
  oc_stats_model *shown = __atomic_load_n(&m->shown, __ATOMIC_SEQ_CST);
  if (shown) put(&shown->fell_back, 1);
}

void oci_publish_state(struct oc_model *m) {
  oc_stats_model *shown = __atomic_load_n(&m->shown, __ATOMIC_SEQ_CST);
  if (shown) put(&shown->state, __atomic_load_n(&m->state, __ATOMIC_RELAXED));
}

/* Odd while the slot changes hands. release: who reads the later number sees all that was written before it; the fence keeps
   what is written after the odd number after it. */
static void begin_change(oc_stats_model *s) {
  put(&s->seq, s->seq + 1);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

static void end_change(oc_stats_model *s) { __atomic_store_n(&s->seq, s->seq + 1, __ATOMIC_RELEASE); }

/* Figures of the model that was there before go, all but seq. */
static void clear(oc_stats_model *s) {
  uint64_t *word = &s->generation;
  size_t n = (sizeof *s - offsetof(oc_stats_model, generation)) / sizeof *word;
  for (size_t i = 0; i < n; i++) put(&word[i], 0);
}

static void name_slot(const struct oc_model *m, oc_stats_model *s) {
  snprintf(s->name, sizeof s->name, "%s", m->name);
  snprintf(s->backend, sizeof s->backend, "%s", m->backend->name);
  put(&s->generation, m->generation);
}

static oc_stats_model *free_slot(void) {
  for (uint32_t i = 0; i < head()->model_slots; i++)
    if (!slot(i)->generation) return slot(i);
  return NULL;
}

void oci_publish_model(struct oc_model *m) {
  if (page.fd < 0) return;
  oc_stats_model *s = free_slot();
  if (!s) {
    put(&head()->models_left_out, head()->models_left_out + 1);
    return;
  }
  begin_change(s);
  clear(s);
  name_slot(m, s);
  __atomic_store_n(&m->shown, s, __ATOMIC_SEQ_CST);
  show_counts(m, s);
  oci_publish_state(m);
  if (oci_pool_fell_back(m->pool.core)) put(&s->fell_back, 1);
  oci_pool_show(m->pool.core, (struct pool_shown *)(void *)&s->arenas);
  end_change(s);
}

/* Nobody calls anything of the model any more, or the slot is not the model's any more. */
static void hide(struct oc_model *m) {
  __atomic_store_n(&m->shown, NULL, __ATOMIC_SEQ_CST);
  oci_pool_show(m->pool.core, NULL);
}

void oci_publish_model_gone(struct oc_model *m) {
  oc_stats_model *s = m->shown;
  if (!s) return;
  begin_change(s);
  hide(m);
  clear(s);
  end_change(s);
}

/* ---- the page ---- */

static oc_status no_page(const char *what) {
  return oci_error(OC_E_IO, "oc_stats_publish: %s: %s", what, strerror(errno));
}

/* Private memory where a page was, for ever: a thread that read its address, and was stopped since, may write there at any
   time, and what it writes goes nowhere. The next page is elsewhere, or it would show that as another model's. Where the
   kernel has no memory for it, the file stays there, which nobody shows any more either. */
static void map_nothing(void) {
  (void)mmap(page.at, page.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Of the right size, with its last page's memory there: writing must not run out of it. */
static oc_status make_file(size_t bytes, int *out) {
  int fd = memfd_create(OC_STATS_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return no_page("memfd_create");
  int error = posix_fallocate(fd, 0, (off_t)bytes);
  if (error) {
    errno = error;
    oc_status st = no_page("memory for the page");
    close(fd);
    return st;
  }
  *out = fd;
  return OC_OK;
}

/* From here on the mapping is the only way to write to it; on a kernel that lacks that, nobody changes its size. */
static bool seal(int fd) {
  const int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
  return fcntl(fd, F_ADD_SEALS, fixed | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0 ||
         fcntl(fd, F_ADD_SEALS, fixed | F_SEAL_SEAL) == 0;
}

static void write_head(const oc_publish_options *opt, size_t bytes) {
  oc_stats_page *h = head();
  h->version = OC_STATS_VERSION;
  h->page_struct_bytes = sizeof *h;
  h->model_slots = opt->models;
  h->model_bytes = MODEL_BYTES;
  h->thread_slots = opt->threads;
  h->thread_bytes = sizeof(oc_stats_thread);
  h->models_at = HEAD_BYTES;
  h->threads_at = HEAD_BYTES + (uint64_t)opt->models * MODEL_BYTES;
  h->bytes = bytes;
  h->pid = (uint64_t)getpid();
  snprintf(h->library, sizeof h->library, "%s", oc_version());
}

static void show_model(void *arg, struct oc_model *m) {
  (void)arg;
  oci_publish_model(m);
}

static void hide_model(void *arg, struct oc_model *m) {
  (void)arg;
  if (m->shown) hide(m);
}

static bool map_file(int fd, size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return false;
  if (!seal(fd)) {
    munmap(at, bytes);
    return false;
  }
  page.at = at;
  page.bytes = bytes;
  return true;
}

/* A page that is found has everything in it: the magic comes last. */
static void fill(void) {
  uint64_t magic;
  struct thread_cell *cells = (struct thread_cell *)(void *)(page.at + head()->threads_at);
  oci_thread_cells(cells, head()->thread_slots, &head()->threads_left_out);
  oci_process_each_model_locked(show_model, NULL);
  memcpy(&magic, OC_STATS_MAGIC, sizeof magic);
  __atomic_store_n((uint64_t *)(void *)head()->magic, magic, __ATOMIC_RELEASE);
}

/* What was fd may have been closed under us, and be another file by now. */
static void close_own(void) {
  struct stat now;
  bool ours = fstat(page.fd, &now) == 0 && now.st_ino == page.file.st_ino && now.st_dev == page.file.st_dev;
  if (ours) close(page.fd);
  page.fd = -1;
}

static oc_status publish(const oc_publish_options *opt) {
  size_t bytes = HEAD_BYTES + (size_t)opt->models * MODEL_BYTES + opt->threads * sizeof(oc_stats_thread);
  int fd = -1;
  if (page.fd >= 0) return oci_error(OC_E_BUSY, "oc_stats_publish: the figures are published already");
  oc_status st = make_file(bytes, &fd);
  if (st) return st;
  if (fstat(fd, &page.file) != 0 || !map_file(fd, bytes)) {
    st = no_page("the page");
    close(fd);
    return st;
  }
  page.fd = fd;
  write_head(opt, bytes);
  fill();
  return OC_OK;
}

oc_status oc_stats_publish(const oc_publish_options *given) {
  oc_publish_options opt;
  oc_status st = OCI_OPTIONS(&opt, given, "oc_stats_publish");
  if (st) return st;
  if (opt.flags) return oci_error(OC_E_INVALID, "oc_stats_publish: unknown flags 0x%x", opt.flags);
  if (opt.models > MOST_MODELS || opt.threads > MOST_THREADS)
    return oci_error(OC_E_INVALID, "oc_stats_publish: %u models and %u threads; %u and %u at most", opt.models, opt.threads,
                     MOST_MODELS, MOST_THREADS);
  if (!opt.models) opt.models = DEFAULT_MODELS;
  if (!opt.threads) opt.threads = DEFAULT_THREADS;
  if (!oci_process_watch_fork()) return oci_error(OC_E_HOST_NOMEM, "oc_stats_publish: pthread_atfork failed");
  oci_process_lock();
  st = publish(&opt);
  oci_process_unlock();
  return st;
}

/* Threads may be in the middle of writing to it: private memory takes the page's place, in one step. */
oc_status oc_stats_unpublish(void) {
  oci_process_lock();
  bool published = page.fd >= 0;
  if (published) {
    oci_process_each_model_locked(hide_model, NULL);
    oci_thread_cells(NULL, 0, NULL);
    close_own();
    map_nothing();
  }
  oci_process_unlock();
  return published ? OC_OK : oci_error(OC_E_NOT_FOUND, "oc_stats_unpublish: nothing is published");
}

bool oci_publish_hits(uint64_t hits[]) {
  for (size_t k = 0; k < HITS; k++) hits[k] = 0;
  oci_process_lock();
  bool published = page.fd >= 0;
  const struct thread_cell *cells = published ? (const void *)(page.at + head()->threads_at) : NULL;
  for (size_t i = 0; published && i < head()->thread_slots; i++)
    for (size_t k = 0; k < HITS; k++) hits[k] += __atomic_load_n(&cells[i].hits[k], __ATOMIC_RELAXED);
  oci_process_unlock();
  return published;
}

/* This thread is the only one. Models that the parent opened are marked as such, and write nothing any more. */
void oci_publish_in_child(void) {
  if (page.fd < 0) return;
  close_own();
  map_nothing();
}
