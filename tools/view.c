/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/view.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where this thread's copy lands when the page under it is gone; NULL outside a copy. */
static __thread sigjmp_buf *volatile landing;

static void on_sigbus(int signal_number)
{
  if (landing)
    siglongjmp(*landing, 1);
  /* Not ours: the default is right, and takes effect when the instruction runs again. */
  signal(signal_number, SIG_DFL);
}

static void catch_sigbus(void)
{
  struct sigaction act = {.sa_handler = on_sigbus};

  sigemptyset(&act.sa_mask);
  sigaction(SIGBUS, &act, NULL);
}

static const char *file_type(mode_t mode)
{
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

static bool map(int fd, struct view *v, struct fault *why)
{
  struct stat st;
  void *at;

  if (fstat(fd, &st) != 0)
    return oct_fault(why, "cannot be examined: %s", strerror(errno));
  if (!S_ISREG(st.st_mode))
    return oct_fault(why, "is %s, not a regular file", file_type(st.st_mode));
  *v = (struct view){.bytes = (uint64_t)st.st_size};
  if (v->bytes == 0)
    return true;
  if (v->bytes > SIZE_MAX)
    return oct_fault(why, "has %" PRIu64 " bytes, more than this machine can address", v->bytes);
  at = mmap(NULL, (size_t)v->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (at == MAP_FAILED)
    return oct_fault(why, "cannot be mapped: %s", strerror(errno));
  v->at = at;
  return true;
}

bool oct_view_open(const char *path, struct view *v, struct fault *why)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  /* Non-blocking, or a pipe without a writer would be waited for. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  bool ok;

  if (fd < 0)
    return oct_fault(why, "cannot be opened: %s", strerror(errno));
  pthread_once(&once, catch_sigbus);
  ok = map(fd, v, why);
  close(fd);
  return ok;
}

void oct_view_close(struct view *v)
{
  if (v->at)
    munmap((void *)(uintptr_t)v->at, (size_t)v->bytes);
  *v = (struct view){0};
}

bool oct_view_copy(const struct view *v, void *to, uint64_t offset, size_t n, struct fault *why)
{
  sigjmp_buf here;

  if (offset > v->bytes || n > v->bytes - offset)
    return oct_fault(why, "has %" PRIu64 " bytes, fewer than %" PRIu64 " + %zu", v->bytes, offset, n);
  if (n == 0)
    return true;
  if (sigsetjmp(here, 1) != 0) {
    landing = NULL;
    return oct_fault(why, "was truncated, or its device failed, while it was read");
  }
  /* The fences keep the copy between the two stores: a signal handler looks at what they store. */
  landing = &here;
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  memcpy(to, v->at + offset, n);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  landing = NULL;
  return true;
}
