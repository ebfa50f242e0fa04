/* SPDX-License-Identifier: MIT */
/*
 * octool top --demo: a process of its own with something to look at. Two models on the embedded device: one is served from
 * and builds derived weights; the other is loaded, served from and torn down in a loop. It ends with octool top, however
 * that ends.
 */
#include "config.h"

#include "tools/top.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "liboc/oc.h"

enum { SOURCES = 64, SERVERS = 2 };

static oc_tag_key y_tag = OC_TAG_KEY("activations"), warned = OC_TAG_KEY("warned");

/* A child without anybody to complain to. */
static void need(oc_status st)
{
  if (st < 0)
    _exit(1);
}

static void nap(long ms)
{
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static oc_status cook(oc_build *b, void *bytes, uint64_t *out)
{
  nap(2);
  return oc_build_alloc(b, *(size_t *)bytes, 0, out);
}

/* ---- A module ---- */

static oc_kernel_key nothing_key = OC_KERNEL_KEY("demo", "nothing");

static void do_nothing(const oc_host_launch *launch, void *const *params)
{
  (void)launch, (void)params;
}

static void load_module(oc_model *m)
{
  static const oc_host_function function = {.name = "nothing", .fn = do_nothing};
  static const oc_host_module module = {.struct_size = sizeof module, .function_count = 1, .functions = &function};

  need(oc_model_load_module(m, "demo", &module, sizeof module));
}

/* ---- Serving ---- */

/* The model that is torn down meanwhile says so, and is let be. */
static void serve_once(oc_model *m, oc_devptr source)
{
  oc_kernel k;
  oc_devptr p;
  uint64_t v;

  if (oc_model_enter(m) != OC_OK)
    return;
  for (int i = 0; i < 500; i++) {
    (void)!oc_opcache_kernel_k(oc_model_opcache(m), &nothing_key, &k);
    (void)!oc_opcache_scratch_k(oc_model_opcache(m), &y_tag, 4096, &p);
    (void)!oc_derived_get_ptr(oc_model_derived(m), OC_BF16, source + (uint64_t)(i % SOURCES) * 65536, &v);
    (void)oc_opcache_once_k(oc_model_opcache(m), &warned);
  }
  oc_model_leave(m);
}

static struct { oc_model *model; oc_devptr source; } steady;

static void *serve(void *unused)
{
  (void)unused;
  for (;;) {
    serve_once(steady.model, steady.source);
    nap(1);
  }
  return NULL;
}

/* ---- Models ---- */

static oc_model *load(oc_backend *b, const char *name, size_t bytes, oc_devptr *source)
{
  oc_model_options options = {.struct_size = sizeof options, .name = name, .arena_min = 8 << 20};
  oc_model *m;

  need(oc_model_create(b, &options, &m));
  load_module(m);
  need(oc_pool_alloc_owned(oc_model_pool(m), "weights", bytes, 0, source));
  return m;
}

static void build(oc_model *m, oc_devptr source, size_t i, size_t bytes)
{
  uint64_t v;

  need(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, source + i * 65536, cook, &bytes, &v));
}

/* One that comes, grows, and goes. */
static void visit(oc_backend *b)
{
  oc_devptr source, p;
  oc_model *m = load(b, "visitor", 24 << 20, &source);

  for (size_t i = 0; i < 40; i++) {
    build(m, source, i, 256 << 10);
    need(oc_opcache_scratch(oc_model_opcache(m), "logits", (i + 1) * 32768, &p));
    serve_once(m, source);
    nap(50);
    need(oc_derived_invalidate(oc_model_derived(steady.model), steady.source + i % SOURCES * 65536));
    build(steady.model, steady.source, i % SOURCES, 64 << 10);
  }
  need(oc_model_destroy(m));
  nap(500);
}

static void work(void)
{
  oc_host_options options = {.struct_size = sizeof options};
  oc_backend *b;
  pthread_t thread;

  need(oc_stats_publish(NULL));
  need(oc_backend_open_host(&options, &b));
  steady.model = load(b, "steady", (size_t)SOURCES * 65536, &steady.source);
  for (size_t i = 0; i < SOURCES; i++)
    build(steady.model, steady.source, i, 64 << 10);
  need(oc_pool_note_external(oc_model_pool(steady.model), 0x10000, 3 << 20, "another library"));
  for (int i = 0; i < SERVERS; i++)
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
      _exit(1);
  for (;;)
    visit(b);
}

/* ---- The process ---- */

bool oct_demo_begin(pid_t *pid, struct fault *why)
{
  pid_t parent = getpid();

  fflush(NULL);
  *pid = fork();
  if (*pid < 0)
    return oct_fault(why, "--demo: no process for it: %s", strerror(errno));
  if (*pid > 0)
    return true;
  signal(SIGINT, SIG_IGN);      /* Ctrl-C is octool top's */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == parent)
    work();
  _exit(1);
}

void oct_demo_end(pid_t pid)
{
  kill(pid, SIGKILL);
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
    continue;
}
