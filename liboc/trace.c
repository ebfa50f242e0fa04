/* SPDX-License-Identifier: MIT */
/*
 * Trace-event JSON, as Perfetto and chrome://tracing read it. While the trace is on, threads only fill slots; text is
 * made when it ends.
 */
#include "config.h"

#include "liboc/trace.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "allocator/text.h"
#include "liboc/options.h"
#include "liboc/sight.h"
#include "rcu/mem.h"

#define DEFAULT_EVENTS ((size_t)65536)
#define MOST_EVENTS ((size_t)1 << 26)

bool oci_trace_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* start and stop */
static struct event *events;   /* [room]; set before oci_trace_on, taken away after the last writer left */
static size_t room;
static uint64_t started;
static size_t taken;           /* atomic: slots asked for, those there was no room for too */
static uint32_t writers;       /* atomic: threads in oci_trace_add */

void oci_trace_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) {
    pthread_mutex_lock(&lock);
    return;
  }
  if (step == OCI_FORK_CHILD) {   /* the trace is the parent's; its writers are not here */
    oci_trace_on = false;
    events = NULL;
    writers = 0;
  }
  pthread_mutex_unlock(&lock);
}

void oci_trace_add(const struct event *e) {
  /* seq_cst, with stop's: either stop sees this writer and waits, or this thread sees that the trace is off. */
  __atomic_fetch_add(&writers, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&oci_trace_on, __ATOMIC_SEQ_CST)) {
    size_t i = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    if (i < room) events[i] = *e;
  }
  __atomic_fetch_sub(&writers, 1, __ATOMIC_SEQ_CST);
}

static oc_status start(size_t n) {
  if (events) return oci_error(OC_E_BUSY, "oc_trace_start: a trace is on");
  events = oci_alloc(NULL, n * sizeof *events);
  if (!events) return oci_error(OC_E_HOST_NOMEM, "oc_trace_start: out of host memory for %zu events", n);
  room = n;
  taken = 0;
  started = oci_now_ns();
  __atomic_store_n(&oci_trace_on, true, __ATOMIC_SEQ_CST);
  return OC_OK;
}

oc_status oc_trace_start(const oc_trace_options *given) {
  oc_trace_options opt;
  oc_status st = OCI_OPTIONS(&opt, given, "oc_trace_start");
  if (st) return st;
  if (opt.flags) return oci_error(OC_E_INVALID, "oc_trace_start: unknown flags 0x%x", opt.flags);
  if (opt.events > MOST_EVENTS)
    return oci_error(OC_E_INVALID, "oc_trace_start: room for %zu events; %zu at most", opt.events, MOST_EVENTS);
  pthread_mutex_lock(&lock);
  st = start(opt.events ? opt.events : DEFAULT_EVENTS);
  pthread_mutex_unlock(&lock);
  return st;
}

/* ---- what nests ---- */

static int compare(const void *a, const void *b) {
  const struct event *x = a, *y = b;
  if (x->thread != y->thread) return x->thread < y->thread ? -1 : 1;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->ns < y->ns) - (x->ns > y->ns);
}

/* Ends of the spans that are open on a row. */
struct row {
  uint64_t thread, end[32];
  unsigned depth;
};

static bool is_span(const struct event *e) { return e->kind < EVENT_INSTANT; }

/* Builds that were begun one by one and ended crosswise do not lie inside one another: these get a track of their own. */
static bool nests(struct row *r, const struct event *e) {
  uint64_t end = e->begin + e->ns;
  if (e->thread != r->thread) *r = (struct row){.thread = e->thread};
  while (r->depth && r->end[r->depth - 1] <= e->begin) r->depth--;
  if (r->depth == sizeof r->end / sizeof r->end[0] || (r->depth && end > r->end[r->depth - 1])) return false;
  r->end[r->depth++] = end;
  return true;
}

/* ---- text ---- */

struct writer {
  oc_trace_fn fn;
  void *arg;
  struct text text;
  oc_status status;
  uint64_t started;
  long pid;
};

/* What there is goes out; false when nothing more is wanted. */
static bool flush(struct writer *w) {
  char *s = oci_text_take(&w->text);
  if (!s) w->status = oci_error(OC_E_HOST_NOMEM, "oc_trace_stop: out of host memory");
  else w->status = w->fn(w->arg, s, strlen(s));
  oci_strfree(NULL, s);
  if (w->status > 0) w->status = oci_error(OC_E_INVALID, "oc_trace_stop: the callback answered %s", oc_status_name(w->status));
  return w->status == OC_OK;
}

/* Without %f: its decimal point is the locale's. */
static void add_us(struct text *t, const char *name, uint64_t ns) {
  oci_text_add(t, ",\"%s\":%" PRIu64 ".%03" PRIu64, name, ns / 1000, ns % 1000);
}

/* An event may have begun before the trace did. */
static uint64_t since_start(const struct writer *w, uint64_t at) { return at > w->started ? at - w->started : 0; }

static void add_head(struct writer *w, const struct event *e, const char *phase) {
  oci_text_add(&w->text, ",\n{\"name\":");
  oci_text_add_json(&w->text, e->name);
  oci_text_add(&w->text, ",\"ph\":\"%s\",\"pid\":%ld,\"tid\":%" PRIu64, phase, w->pid, e->thread);
}

static void add_args(struct text *t, const struct event *e) {
  oci_text_add(t, ",\"args\":{\"model\":%" PRIu64, e->generation);
  if (e->kind == EVENT_DRIVER || e->kind == EVENT_BUILD)
    oci_text_add(t, ",\"status\":\"%s\"", oc_status_name((oc_status)(int64_t)(e->kind == EVENT_DRIVER ? e->a : e->b)));
  if (e->kind == EVENT_BUILD) oci_text_add(t, ",\"key\":\"0x%" PRIx64 "\"", e->a);
  oci_text_add(t, "}}");
}

static const char *category(const struct event *e) {
  static const char *const names[] = {"driver", "build", "wait", "wait", "step"};
  return names[e->kind];
}

static void add_span(struct writer *w, const struct event *e) {
  struct text *t = &w->text;
  uint64_t begin = since_start(w, e->begin), end = since_start(w, e->begin + e->ns);
  add_head(w, e, "X");
  oci_text_add(t, ",\"cat\":\"%s\"", category(e));
  add_us(t, "ts", begin);
  add_us(t, "dur", end - begin);
  add_args(t, e);
}

static void add_async(struct writer *w, const struct event *e, size_t id, bool begins) {
  struct text *t = &w->text;
  add_head(w, e, begins ? "b" : "e");
  oci_text_add(t, ",\"cat\":\"%s\",\"id\":%zu", category(e), id);
  add_us(t, "ts", since_start(w, begins ? e->begin : e->begin + e->ns));
  add_args(t, e);
}

static void add_instant(struct writer *w, const struct event *e) {
  add_head(w, e, "i");
  oci_text_add(&w->text, ",\"cat\":\"%s\",\"s\":\"t\"", category(e));
  add_us(&w->text, "ts", since_start(w, e->begin));
  add_args(&w->text, e);
}

static void add_bytes(struct writer *w, const struct event *e) {
  struct text *t = &w->text;
  oci_text_add(t, ",\n{\"name\":\"model %" PRIu64 " bytes\",\"ph\":\"C\",\"pid\":%ld,\"tid\":0", e->generation, w->pid);
  add_us(t, "ts", since_start(w, e->begin));
  oci_text_add(t, ",\"args\":{\"live\":%" PRIu64 ",\"retired\":%" PRIu64 ",\"arenas\":%" PRIu64 "}}", e->a, e->b, e->c);
}

static void add_event(struct writer *w, struct row *r, const struct event *e, size_t id) {
  if (e->kind == EVENT_BYTES) {
    add_bytes(w, e);
  } else if (!is_span(e)) {
    add_instant(w, e);
  } else if (nests(r, e)) {
    add_span(w, e);
  } else {
    add_async(w, e, id, true);
    add_async(w, e, id, false);
  }
}

/* Thread 0 is none: the tracks of bytes. */
static void name_thread(struct writer *w, uint64_t thread) {
  if (thread == 0) return;
  oci_text_add(&w->text, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%ld,\"tid\":%" PRIu64
               ",\"args\":{\"name\":\"thread %" PRIu64 "\"}}", w->pid, thread, thread);
}

static oc_status write_all(struct writer *w, const struct event *at, size_t n, size_t dropped) {
  struct row row = {0};
  oci_text_add(&w->text, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"liboc\":\"%s\",\"dropped\":\"%zu\"},\"traceEvents\":[\n"
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%ld,\"tid\":0,\"args\":{\"name\":\"liboc\"}}",
               oc_version(), dropped, w->pid);
  for (size_t i = 0; i < n; i++) {
    if (i == 0 || at[i].thread != at[i - 1].thread) name_thread(w, at[i].thread);
    add_event(w, &row, &at[i], i);
    if (w->text.length > 65536 && !flush(w)) return w->status;
  }
  oci_text_add(&w->text, "\n]}\n");
  (void)flush(w);
  return w->status;
}

/* A trace that is over: nobody else knows of it any more. */
struct ended {
  struct event *events;
  size_t room, taken;
  uint64_t started;
};

/* Off, and the last writer left. */
static struct ended end_trace(void) {
  pthread_mutex_lock(&lock);
  struct ended t = {.events = events};
  if (events) {
    __atomic_store_n(&oci_trace_on, false, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&writers, __ATOMIC_SEQ_CST)) sched_yield();
    t = (struct ended){events, room, taken, started};
    events = NULL;
  }
  pthread_mutex_unlock(&lock);
  return t;
}

/* Without the lock: fn is the engine's, and may fork. */
static oc_status write_ended(const struct ended *t, oc_trace_fn fn, void *arg) {
  size_t n = t->taken < t->room ? t->taken : t->room;
  struct writer w = {.fn = fn, .arg = arg, .started = t->started, .pid = (long)getpid()};
  qsort(t->events, n, sizeof *t->events, compare);
  oc_status st = write_all(&w, t->events, n, t->taken - n);
  oci_strfree(NULL, oci_text_take(&w.text));
  return st;
}

oc_status oc_trace_stop(oc_trace_fn fn, void *arg) {
  struct ended t = end_trace();
  if (!t.events) return oci_error(OC_E_NOT_FOUND, "oc_trace_stop: no trace is on");
  oc_status st = fn ? write_ended(&t, fn, arg) : OC_OK;
  oci_free(NULL, t.events, t.room * sizeof *t.events);
  return st;
}
