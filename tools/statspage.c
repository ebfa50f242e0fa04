/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/statspage.h"
#include "tools/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What a page may claim at most: the library's own limits, with room for structs that grew. */
enum { MOST_MODELS = 4096, MOST_THREADS = 16384, MOST_STRUCT = 8192, MOST_NAP = 100 };

/* ---- The process ---- */

static int open_process(uint64_t pid)
{
#ifdef SYS_pidfd_open
  return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
#else
  errno = ENOSYS;
  return -1;
#endif
}

bool oct_watched_lives(const struct watched *w)
{
  struct pollfd ended = {.fd = w->process, .events = POLLIN};

  if (w->process >= 0)
    return poll(&ended, 1, 0) <= 0;
  return kill((pid_t)w->pid, 0) == 0 || errno == EPERM;
}

/* The process's number as it knows it itself, in the innermost of its namespaces; 0 where that cannot be read. */
static uint64_t own_pid(uint64_t pid)
{
  char path[64], line[256];
  uint64_t own = 0;
  FILE *f;

  snprintf(path, sizeof path, "/proc/%" PRIu64 "/status", pid);
  f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f))
    if (strncmp(line, "NSpid:", 6) == 0)
      own = strtoull(strrchr(line, '\t') ? strrchr(line, '\t') : line + 6, NULL, 10);
  if (f)
    fclose(f);
  return own;
}

/* ---- The page's head ---- */

static bool fits(const oc_stats_page *h, uint64_t at, uint64_t count, uint64_t each)
{
  return at % 8 == 0 && each % 8 == 0 && at >= sizeof *h && at <= h->bytes && count * each <= h->bytes - at;
}

/* The numbers are bounded first, so that no product overflows. */
static const char *what_is_wrong(const oc_stats_page *h, uint64_t file_bytes)
{
  if (h->page_struct_bytes < sizeof *h || h->model_bytes < sizeof(oc_stats_model) || h->thread_bytes < sizeof(oc_stats_thread))
    return "its structs are smaller than those of the first version";
  if (h->page_struct_bytes > MOST_STRUCT || h->model_bytes > MOST_STRUCT || h->thread_bytes > MOST_STRUCT ||
      h->model_slots > MOST_MODELS || h->thread_slots > MOST_THREADS)
    return "its sizes are beyond all bounds";
  if (h->bytes > file_bytes)
    return "it is shorter than it says";
  if (!fits(h, h->models_at, h->model_slots, h->model_bytes) || !fits(h, h->threads_at, h->thread_slots, h->thread_bytes))
    return "its parts do not fit into it";
  return NULL;
}

static bool read_head(struct watched *w, struct fault *why)
{
  struct stat st;
  oc_stats_page *h = &w->head;
  const char *wrong;

  if (fstat(w->page, &st) != 0 || !S_ISREG(st.st_mode))
    return oct_fault(why, "process %" PRIu64 ": its " OC_STATS_NAME " is no memory file", w->pid);
  if (pread(w->page, h, sizeof *h, 0) != (ssize_t)sizeof *h)
    return oct_fault(why, "process %" PRIu64 ": its page of figures is cut off: %" PRId64 " bytes", w->pid, (int64_t)st.st_size);
  if (memcmp(h->magic, OC_STATS_MAGIC, sizeof h->magic) != 0)
    return oct_fault(why, "process %" PRIu64 ": what is called " OC_STATS_NAME " there is no page of figures", w->pid);
  if (h->version != OC_STATS_VERSION)
    return oct_fault(why, "process %" PRIu64 ": its page of figures has version %" PRIu32 "; this octool reads %d", w->pid,
                     h->version, OC_STATS_VERSION);
  wrong = what_is_wrong(h, (uint64_t)st.st_size);
  return !wrong || oct_fault(why, "process %" PRIu64 ": its page of figures is not as it should be: %s", w->pid, wrong);
}

/* Another process's, that this one only reads (octool top), or that it got by fork. */
static bool is_foreign(const struct watched *w)
{
  uint64_t own = own_pid(w->pid);

  return own != 0 && w->head.pid != own;
}

/* ---- Finding it ---- */

/* The link reads "/memfd:liboc-stats (deleted)". */
static bool is_page(int dir, const char *name)
{
  static const char wanted[] = "/memfd:" OC_STATS_NAME;
  char link[sizeof wanted + 16];
  ssize_t n = readlinkat(dir, name, link, sizeof link - 1);

  if (n < (ssize_t)sizeof wanted - 1)
    return false;
  link[n] = '\0';
  return strncmp(link, wanted, sizeof wanted - 1) == 0 && (link[sizeof wanted - 1] == '\0' || link[sizeof wanted - 1] == ' ');
}

/* One whose head is not yet written is looked at again for a moment. */
static bool read_head_soon(struct watched *w, struct fault *why)
{
  bool ok = read_head(w, why);

  for (int i = 0; !ok && i < MOST_NAP && memcmp(w->head.magic, "\0\0\0\0\0\0\0\0", 8) == 0; i++) {
    poll(NULL, 0, 1);
    memset(&w->head, 0, sizeof w->head);
    ok = read_head(w, why);
  }
  return ok;
}

/* Takes the first that is a page of this process's own; words for the last one that was not. */
static bool search(struct watched *w, DIR *dir, struct fault *why)
{
  struct dirent *e;

  oct_fault_write(why, "process %" PRIu64 " publishes no figures: it has not called oc_stats_publish", w->pid);
  while ((e = readdir(dir))) {
    if (!is_page(dirfd(dir), e->d_name))
      continue;
    w->page = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (w->page < 0)
      oct_fault_write(why, "process %" PRIu64 ": its page of figures cannot be read: %s", w->pid, strerror(errno));
    else if (read_head_soon(w, why) && !is_foreign(w))
      return true;
    if (w->page >= 0)
      close(w->page);
    w->page = -1;
  }
  return false;
}

static bool no_look(const struct watched *w, int error, struct fault *why)
{
  if (error == ENOENT || error == ESRCH)
    return oct_fault(why, "process %" PRIu64 ": there is none", w->pid);
  if (error == EACCES || error == EPERM)
    return oct_fault(why, "process %" PRIu64 " may not be looked into by this user: %s", w->pid, strerror(error));
  return oct_fault(why, "process %" PRIu64 ": /proc/%" PRIu64 "/fd: %s", w->pid, w->pid, strerror(error));
}

bool oct_watch(struct watched *w, uint64_t pid, struct fault *why)
{
  char path[64];
  bool found;
  DIR *dir;

  /* The process first: what is found below is that one's, whoever gets its number later. */
  *w = (struct watched){.pid = pid, .process = open_process(pid), .page = -1};
  snprintf(path, sizeof path, "/proc/%" PRIu64 "/fd", pid);
  dir = opendir(path);
  errno = dir ? 0 : errno;
  found = dir ? search(w, dir, why) : no_look(w, errno, why);
  if (dir)
    closedir(dir);
  if (!found && !oct_watched_lives(w))
    oct_fault_write(why, "process %" PRIu64 ": there is none", pid);
  if (!found)
    oct_unwatch(w);
  return found;
}

void oct_unwatch(struct watched *w)
{
  if (w->process >= 0)
    close(w->process);
  if (w->page >= 0)
    close(w->page);
  w->process = w->page = -1;
}

/* ---- A look ---- */

static bool copy(const struct watched *w, void *to, uint64_t bytes, uint64_t at, struct fault *why)
{
  ssize_t n = pread(w->page, to, bytes, (off_t)at);

  return n == (ssize_t)bytes || oct_fault(why, "process %" PRIu64 ": its page of figures was cut off", w->pid);
}

static uint64_t seq_of(const char *slots, const oc_stats_page *h, uint32_t i)
{
  uint64_t seq;

  memcpy(&seq, slots + (size_t)i * h->model_bytes, sizeof seq);
  return seq;
}

/* Read twice: a slot is taken if no other model came into it meanwhile. */
static bool look_at_models(const struct watched *w, struct look *l, char *slots, char *again, struct fault *why)
{
  const oc_stats_page *h = &w->head;
  uint64_t bytes = (uint64_t)h->model_slots * h->model_bytes;

  if (!copy(w, slots, bytes, h->models_at, why) || !copy(w, again, bytes, h->models_at, why))
    return false;
  for (uint32_t i = 0; i < h->model_slots; i++) {
    oc_stats_model *m = &l->model[l->models];

    if (seq_of(slots, h, i) % 2 != 0 || seq_of(slots, h, i) != seq_of(again, h, i))
      continue;
    memcpy(m, slots + (size_t)i * h->model_bytes, sizeof *m);
    m->name[sizeof m->name - 1] = m->backend[sizeof m->backend - 1] = '\0';
    l->models += m->generation != 0;
  }
  return true;
}

static bool look_at_threads(const struct watched *w, struct look *l, char *slots, struct fault *why)
{
  const oc_stats_page *h = &w->head;

  if (!copy(w, slots, (uint64_t)h->thread_slots * h->thread_bytes, h->threads_at, why))
    return false;
  for (uint32_t i = 0; i < h->thread_slots; i++) {
    oc_stats_thread t;

    memcpy(&t, slots + (size_t)i * h->thread_bytes, sizeof t);
    l->threads += t.owner != 0;
    l->kernel_hits += t.kernel_hits;
    l->scratch_hits += t.scratch_hits;
    l->derived_hits += t.derived_hits;
    l->gate_hits += t.gate_hits;
  }
  return true;
}

static bool look_at_head(const struct watched *w, struct look *l, struct fault *why)
{
  oc_stats_page h;

  if (!copy(w, &h, sizeof h, 0, why))
    return false;
  l->models_left_out = h.models_left_out;
  l->threads_left_out = h.threads_left_out;
  return true;
}

bool oct_look(const struct watched *w, struct look *out, struct fault *why)
{
  const oc_stats_page *h = &w->head;
  size_t models = (size_t)h->model_slots * h->model_bytes;
  char *slots = malloc(models + 1), *again = malloc(models + 1), *threads = malloc((size_t)h->thread_slots * h->thread_bytes + 1);
  bool ok;

  *out = (struct look){.at_ns = oct_now_ns(), .model = calloc((size_t)h->model_slots + 1, sizeof *out->model)};
  if (!slots || !again || !threads || !out->model)
    ok = oct_fault(why, "no memory for a look at %" PRIu32 " models", h->model_slots);
  else
    ok = look_at_head(w, out, why) && look_at_models(w, out, slots, again, why) && look_at_threads(w, out, threads, why);
  free(slots);
  free(again);
  free(threads);
  if (!ok)
    oct_look_free(out);
  return ok;
}

void oct_look_free(struct look *l)
{
  free(l->model);
  *l = (struct look){0};
}
