/* SPDX-License-Identifier: MIT */
/*
 * Stream captures, by the rules of the reference and the programming guide:
 *   - a potentially unsafe call is refused (900) beside a capture of this thread that is not relaxed, unless the thread's
 *     mode is relaxed; and, where the thread's mode is global, beside a global capture of any other thread;
 *   - whatever the modes: waiting for or asking a capturing stream, its context, or a captured event is refused, and so
 *     is the legacy stream while a blocking stream captures;
 *   - a dependency from or to uncaptured work, or between two captures, is refused;
 *   - what is refused breaks the captures concerned: they end without a graph.
 */
#include "config.h"

#include <string.h>

#include "rcu/mem.h"
#include "tests/simcuda/sim.h"

/* One recorded operation. */
struct sim_node {
  struct sim_node *next;
  size_t bytes;                /* of this record */
  bool is_launch;
  oc_kernel kernel;
  oc_host_launch shape;
  enum sim_copy kind;
  uint64_t dst, src;
  uint8_t value;
  size_t n;
  uint32_t param_count;
  void **params;               /* into the record's end */
  _Alignas(16) char data[];
};

struct sim_graph {
  struct sim_graph *next;      /* in graphs */
  struct sim_context *context;
  struct sim_node *first, **last;
  unsigned users;              /* the graph's handle, and executables */
  bool closed;                 /* its own handle was destroyed */
};

struct sim_exec {
  struct sim_exec *next;
  struct sim_graph *graph;
};

/* A stream that takes part. seq counts what it did, joined what another member has waited for. */
struct member {
  struct member *next;
  oc_stream stream;
  uint64_t seq, joined;
};

struct sim_capture {
  struct sim_capture *next;
  struct sim_context *context;
  uint64_t id;
  oc_stream origin;
  int mode;
  const struct sim_thread *thread;
  bool broken;
  struct member *members;
  struct sim_graph *graph;
};

/* An event whose latest record was in a capture, ended or not. */
struct captured_event {
  struct captured_event *next;
  struct sim_context *context;
  oc_event event;
  uint64_t capture, seq;
  oc_stream stream;
};

static struct sim_capture *captures;      /* all under sim_lock */
static struct captured_event *events;
static struct sim_graph *graphs;
static struct sim_exec *execs;
static uint64_t last_id;

static void lock(void) { pthread_mutex_lock(&sim_lock); }
static void unlock(void) { pthread_mutex_unlock(&sim_lock); }

/* ---- finding ---- */

static struct member *member_of(const struct sim_capture *k, oc_stream s) {
  struct member *m = k->members;
  while (m && m->stream != s) m = m->next;
  return m;
}

static struct sim_capture *capture_of(const struct sim_context *c, oc_stream s) {
  struct sim_capture *k = captures;
  while (k && (k->context != c || !member_of(k, s))) k = k->next;
  return k;
}

static struct sim_capture *capture_by_id(uint64_t id) {
  struct sim_capture *k = captures;
  while (k && k->id != id) k = k->next;
  return k;
}

static struct captured_event **event_place(const struct sim_context *c, oc_event e) {
  struct captured_event **at = &events;
  while (*at && ((*at)->context != c || (*at)->event != e)) at = &(*at)->next;
  return at;
}

static bool is_blocking(const struct sim_context *c, oc_stream s) {
  const struct sim_stream *b = c->blocking;
  while (b && b->handle != s) b = b->next;
  return b != NULL;
}

static bool has_blocking(const struct sim_capture *k) {
  const struct member *m = k->members;
  while (m && !is_blocking(k->context, m->stream)) m = m->next;
  return m != NULL;
}

/* ---- refusing ---- */

static bool forbids(const struct sim_capture *k) {
  if (k->broken || sim_thread.mode == CU_CAPTURE_RELAXED) return false;
  if (k->thread == &sim_thread) return k->mode != CU_CAPTURE_RELAXED;
  return k->mode == CU_CAPTURE_GLOBAL && sim_thread.mode == CU_CAPTURE_GLOBAL;
}

cu_result sim_unsafe(void) {
  cu_result r = CU_OK;
  lock();
  for (struct sim_capture *k = captures; k; k = k->next) {
    if (!forbids(k)) continue;
    k->broken = true;
    r = CU_E_CAPTURE_UNSUPPORTED;
  }
  unlock();
  return r;
}

/* Use of the legacy stream: it would wait for every blocking one. */
static cu_result legacy_locked(const struct sim_context *c, bool breaks) {
  cu_result r = CU_OK;
  for (struct sim_capture *k = captures; k; k = k->next) {
    if (k->context != c || !has_blocking(k)) continue;
    if (breaks) k->broken = true;
    r = CU_E_CAPTURE_IMPLICIT;
  }
  return r;
}

static cu_result refuse(struct sim_capture *k, cu_result r) {
  if (k->broken) return CU_E_CAPTURE_INVALIDATED;
  k->broken = true;
  return r;
}

cu_result sim_capture_stream_wait(struct sim_context *c, oc_stream s) {
  lock();
  struct sim_capture *k = s ? capture_of(c, s) : NULL;
  cu_result r = k ? refuse(k, CU_E_CAPTURE_UNSUPPORTED) : s ? CU_OK : legacy_locked(c, true);
  unlock();
  return r;
}

cu_result sim_capture_context_wait(struct sim_context *c) {
  cu_result r = CU_OK;
  lock();
  for (struct sim_capture *k = captures; k; k = k->next) {
    if (k->context != c) continue;
    k->broken = true;
    r = CU_E_CAPTURE_UNSUPPORTED;
  }
  unlock();
  return r;
}

cu_result sim_capture_event_query(struct sim_context *c, oc_event e) {
  lock();
  const struct captured_event *ev = *event_place(c, e);
  struct sim_capture *k = ev ? capture_by_id(ev->capture) : NULL;
  if (k) k->broken = true;
  unlock();
  return ev ? CU_E_CAPTURED_EVENT : CU_OK;
}

/* ---- events in captures ---- */

static void drop_event(struct sim_context *c, oc_event e) {
  struct captured_event **at = event_place(c, e), *gone = *at;
  if (!gone) return;
  *at = gone->next;
  oci_free(NULL, gone, sizeof *gone);
}

static cu_result note_event(struct sim_context *c, oc_event e, const struct sim_capture *k, oc_stream s) {
  struct captured_event *ev = oci_alloc(NULL, sizeof *ev);
  if (!ev) return CU_E_OUT_OF_MEMORY;
  *ev = (struct captured_event){.next = events, .context = c, .event = e, .capture = k->id, .seq = member_of(k, s)->seq,
                                .stream = s};
  events = ev;
  return CU_OK;
}

static cu_result record_locked(struct sim_context *c, oc_event e, oc_stream s, bool *captured) {
  struct sim_capture *k = s ? capture_of(c, s) : NULL;
  cu_result r = s ? CU_OK : legacy_locked(c, true);
  *captured = k != NULL;
  if (k && k->broken) r = CU_E_CAPTURE_INVALIDATED;
  if (r) return r;
  drop_event(c, e);
  return k ? note_event(c, e, k, s) : CU_OK;
}

cu_result sim_capture_record(struct sim_context *c, oc_event e, oc_stream s, bool *captured) {
  lock();
  cu_result r = record_locked(c, e, s, captured);
  unlock();
  return r;
}

static cu_result join(struct sim_capture *k, oc_stream s) {
  struct member *m = oci_alloc(NULL, sizeof *m);
  if (!m) return CU_E_OUT_OF_MEMORY;
  *m = (struct member){.next = k->members, .stream = s, .seq = 1};
  k->members = m;
  return CU_OK;
}

static void mark_joined(struct sim_capture *k, const struct captured_event *ev) {
  struct member *m = member_of(k, ev->stream);
  if (m && m->joined < ev->seq) m->joined = ev->seq;
}

/* s waits for an event of the capture `of` (NULL: that has ended). */
static cu_result wait_captured(struct sim_context *c, oc_stream s, struct sim_capture *mine, struct sim_capture *of,
                               const struct captured_event *ev) {
  if (!of) return mine ? refuse(mine, CU_E_CAPTURED_EVENT) : CU_E_CAPTURED_EVENT;
  if (of->broken) return CU_E_CAPTURE_INVALIDATED;
  if (mine && mine != of) {
    mine->broken = true;
    return refuse(of, CU_E_CAPTURE_MERGE);
  }
  if (!s) return refuse(of, CU_E_CAPTURE_IMPLICIT);
  cu_result r = mine ? CU_OK : join(of, s);
  if (r == CU_OK) mark_joined(of, ev);
  (void)c;
  return r;
}

static cu_result wait_locked(struct sim_context *c, oc_stream s, oc_event e, bool *captured) {
  const struct captured_event *ev = *event_place(c, e);
  struct sim_capture *mine = s ? capture_of(c, s) : NULL;
  *captured = mine || ev;
  if (ev) return wait_captured(c, s, mine, capture_by_id(ev->capture), ev);
  if (mine) return refuse(mine, CU_E_CAPTURE_ISOLATION);
  return s ? CU_OK : legacy_locked(c, true);
}

cu_result sim_capture_wait(struct sim_context *c, oc_stream s, oc_event e, bool *captured) {
  lock();
  cu_result r = wait_locked(c, s, e, captured);
  unlock();
  return r;
}

void sim_capture_forget_event(struct sim_context *c, oc_event e) {
  lock();
  drop_event(c, e);
  unlock();
}

/* ---- recording work ---- */

cu_result sim_capture_work(struct sim_context *c, oc_stream s, bool *captured) {
  lock();
  const struct sim_capture *k = s ? capture_of(c, s) : NULL;
  cu_result r = k ? (k->broken ? CU_E_CAPTURE_INVALIDATED : CU_OK) : s ? CU_OK : legacy_locked(c, true);
  *captured = k != NULL;
  unlock();
  return r;
}

/* To the stream's capture, unless that has ended meanwhile. Without memory the capture is broken. */
static void record(struct sim_context *c, oc_stream s, struct sim_node *n) {
  lock();
  struct sim_capture *k = capture_of(c, s);
  if (k && n) {
    member_of(k, s)->seq++;
    *k->graph->last = n;
    k->graph->last = &n->next;
    n = NULL;
  } else if (k) {
    k->broken = true;
  }
  unlock();
  if (n) oci_free(NULL, n, n->bytes);
}

static size_t param_bytes(const struct signature *sig) {
  return sig->launch_bytes + sig->param_count * sizeof(void *) + 16;
}

static void copy_params(struct sim_node *n, const struct signature *sig, void **params) {
  char *at = n->data;
  n->params = (void **)(void *)(n->data + sig->launch_bytes);
  n->param_count = sig->param_count;
  for (uint32_t i = 0; i < sig->param_count; i++) {
    n->params[i] = memcpy(at, params[i], sig->param_bytes[i]);
    at += oci_devparam_stride(sig->param_bytes[i]);
  }
}

void sim_capture_launch(struct sim_context *c, oc_stream s, oc_kernel k, const oc_host_launch *shape,
                        const struct signature *sig, void **params) {
  size_t bytes = sizeof(struct sim_node) + param_bytes(sig);
  struct sim_node *n = oci_alloc(NULL, bytes);
  if (n) {
    n->bytes = bytes;
    n->is_launch = true;
    n->kernel = k;
    n->shape = *shape;
    copy_params(n, sig, params);
  }
  record(c, s, n);
}

void sim_capture_copy(struct sim_context *c, oc_stream s, enum sim_copy kind, uint64_t dst, uint64_t src, uint8_t value,
                      size_t count) {
  struct sim_node *n = oci_alloc(NULL, sizeof *n);
  if (n) {
    n->bytes = sizeof *n;
    n->kind = kind;
    n->dst = dst;
    n->src = src;
    n->value = value;
    n->n = count;
  }
  record(c, s, n);
}

/* ---- graphs ---- */

static struct sim_graph *new_graph(struct sim_context *c) {
  struct sim_graph *g = oci_alloc(NULL, sizeof *g);
  if (!g) return NULL;
  g->context = c;
  g->last = &g->first;
  g->users = 1;
  return g;
}

static void free_graph(struct sim_graph *g) {
  for (struct sim_node *n; (n = g->first);) {
    g->first = n->next;
    oci_free(NULL, n, n->bytes);
  }
  oci_free(NULL, g, sizeof *g);
}

/* Under the lock. */
static void put_graph(struct sim_graph *g) {
  if (--g->users) return;
  struct sim_graph **at = &graphs;
  while (*at && *at != g) at = &(*at)->next;
  if (*at) *at = g->next;
  free_graph(g);
}

static struct sim_graph *find_graph(const void *handle) {
  struct sim_graph *g = graphs;
  while (g && (g != handle || g->closed)) g = g->next;
  return g;
}

static struct sim_exec **exec_place(const void *handle) {
  struct sim_exec **at = &execs;
  while (*at && *at != handle) at = &(*at)->next;
  return at;
}

uint64_t sim_graphs(const struct sim_context *c) {
  uint64_t n = 0;
  lock();
  for (const struct sim_graph *g = graphs; g; g = g->next) n += g->context == c;
  unlock();
  return n;
}

cu_result cuGraphDestroy(cu_graph graph) {
  cu_result r;
  if (sim_answered(FN_cuGraphDestroy, NULL, NULL, 0, &r)) return r;
  lock();
  struct sim_graph *g = find_graph(graph);
  if (g) {
    g->closed = true;
    put_graph(g);
  }
  unlock();
  return g ? CU_OK : CU_E_INVALID_VALUE;
}

static cu_result instantiate_locked(const void *graph, cu_graph_exec *out) {
  struct sim_graph *g = find_graph(graph);
  struct sim_exec *x = g ? oci_alloc(NULL, sizeof *x) : NULL;
  if (!x) return g ? CU_E_OUT_OF_MEMORY : CU_E_INVALID_VALUE;
  g->users++;
  x->graph = g;
  x->next = execs;
  execs = x;
  *out = (cu_graph_exec)x;
  return CU_OK;
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph, unsigned long long flags) {
  cu_result r;
  if (sim_answered(FN_cuGraphInstantiateWithFlags, NULL, exec, sizeof *exec, &r)) return r;
  if (flags) return CU_E_INVALID_VALUE;
  lock();
  r = instantiate_locked(graph, exec);
  unlock();
  return r;
}

cu_result cuGraphExecDestroy(cu_graph_exec exec) {
  cu_result r;
  if (sim_answered(FN_cuGraphExecDestroy, NULL, NULL, 0, &r)) return r;
  lock();
  struct sim_exec **at = exec_place(exec), *x = *at;
  if (x) {
    *at = x->next;
    put_graph(x->graph);
  }
  unlock();
  if (!x) return CU_E_INVALID_VALUE;
  oci_free(NULL, x, sizeof *x);
  return CU_OK;
}

/* An address that was freed since it was recorded is met here, as the device would meet it. */
static oc_status replay(struct device *d, const struct sim_node *n, oc_stream s) {
  if (n->is_launch) return oci_device_launch(d, n->kernel, &n->shape, s, n->params);
  switch (n->kind) {
    case SIM_COPY_IN: return oci_device_copy_in(d, n->dst, (const void *)(uintptr_t)n->src, n->n, s);
    case SIM_COPY_OUT: return oci_device_copy_out(d, (void *)(uintptr_t)n->dst, n->src, n->n, s);
    case SIM_COPY: return oci_device_copy(d, n->dst, n->src, n->n, s);
    default: return oci_device_fill(d, n->dst, n->value, n->n, s);
  }
}

/* The graph's user count keeps it while it is queued. */
static struct sim_graph *hold_graph(const void *exec) {
  lock();
  struct sim_exec *x = *exec_place(exec);
  if (x) x->graph->users++;
  unlock();
  return x ? x->graph : NULL;
}

cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  bool captured;
  if (sim_answered(FN_cuGraphLaunch, &c, NULL, 0, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r == CU_OK) r = sim_capture_work(c, s, &captured);
  if (r) return r;
  if (captured) return CU_E_NOT_SUPPORTED;   /* child graphs */
  struct sim_graph *g = hold_graph(exec);
  if (!g) return CU_E_INVALID_VALUE;
  for (const struct sim_node *n = g->first; n && r == CU_OK; n = n->next)
    r = sim_result(replay(c->device, n, s), CU_E_ILLEGAL_ADDRESS);
  lock();
  put_graph(g);
  unlock();
  return r;
}

/* ---- begin and end ---- */

static void free_members(struct sim_capture *k) {
  for (struct member *m; (m = k->members);) {
    k->members = m->next;
    oci_free(NULL, m, sizeof *m);
  }
}

/* Off the list, with its graph if it keeps one. */
static void end_locked(struct sim_capture *k, bool keep_graph) {
  struct sim_capture **at = &captures;
  while (*at != k) at = &(*at)->next;
  *at = k->next;
  if (keep_graph) {
    k->graph->next = graphs;
    graphs = k->graph;
  } else {
    free_graph(k->graph);
  }
  free_members(k);
  oci_free(NULL, k, sizeof *k);
}

static cu_result begin_locked(struct sim_context *c, oc_stream s, int mode) {
  if (capture_of(c, s)) return CU_E_ILLEGAL_STATE;
  struct sim_capture *k = oci_alloc(NULL, sizeof *k);
  if (!k) return CU_E_OUT_OF_MEMORY;
  *k = (struct sim_capture){.context = c, .id = ++last_id, .origin = s, .mode = mode, .thread = &sim_thread};
  k->graph = new_graph(c);
  if (!k->graph || join(k, s) != CU_OK) {
    if (k->graph) free_graph(k->graph);
    oci_free(NULL, k, sizeof *k);
    return CU_E_OUT_OF_MEMORY;
  }
  k->next = captures;
  captures = k;
  return CU_OK;
}

cu_result cuStreamBeginCapture_v2(cu_stream stream, cu_capture_mode mode) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamBeginCapture_v2, &c, NULL, 0, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r) return r;
  if (!s) return CU_E_CAPTURE_UNSUPPORTED;
  if ((int)mode < CU_CAPTURE_GLOBAL || (int)mode > CU_CAPTURE_RELAXED) return CU_E_INVALID_VALUE;
  lock();
  r = begin_locked(c, s, (int)mode);
  unlock();
  return r;
}

static bool all_joined(const struct sim_capture *k) {
  for (const struct member *m = k->members; m; m = m->next)
    if (m->stream != k->origin && m->joined < m->seq) return false;
  return true;
}

static cu_result finish_locked(struct sim_context *c, oc_stream s, cu_graph *graph) {
  struct sim_capture *k = s ? capture_of(c, s) : NULL;
  if (!k) return CU_E_ILLEGAL_STATE;
  if (k->origin != s) return refuse(k, CU_E_CAPTURE_UNMATCHED);
  if (k->mode != CU_CAPTURE_RELAXED && k->thread != &sim_thread) return CU_E_CAPTURE_WRONG_THREAD;
  cu_result r = k->broken ? CU_E_CAPTURE_INVALIDATED : all_joined(k) ? CU_OK : CU_E_CAPTURE_UNJOINED;
  *graph = r == CU_OK ? (cu_graph)k->graph : NULL;
  end_locked(k, r == CU_OK);
  return r;
}

cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamEndCapture, &c, graph, sizeof *graph, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r) return r;
  lock();
  r = finish_locked(c, s, graph);
  unlock();
  return r;
}

cu_result cuStreamIsCapturing(cu_stream stream, cu_capture_status *status) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamIsCapturing, &c, status, sizeof *status, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r) return r;
  lock();
  const struct sim_capture *k = s ? capture_of(c, s) : NULL;
  if (!s) r = legacy_locked(c, false);
  *status = !k ? CU_CAPTURE_NONE : k->broken ? CU_CAPTURE_BROKEN : CU_CAPTURE_ACTIVE;
  unlock();
  return r;
}

cu_result cuThreadExchangeStreamCaptureMode(cu_capture_mode *mode) {
  cu_result r;
  if (sim_answered(FN_cuThreadExchangeStreamCaptureMode, NULL, mode, sizeof *mode, &r)) return r;
  int wanted = (int)*mode;
  if (wanted < CU_CAPTURE_GLOBAL || wanted > CU_CAPTURE_RELAXED) return CU_E_INVALID_VALUE;
  *mode = sim_thread.mode;
  sim_thread.mode = wanted;
  return CU_OK;
}

/* Under the lock. */
void sim_capture_forget_context(struct sim_context *c) {
  for (struct sim_capture *k = captures, *next; k; k = next) {
    next = k->next;
    if (k->context == c) end_locked(k, false);
  }
  for (struct captured_event **at = &events; *at;) {
    struct captured_event *ev = *at;
    if (ev->context != c) {
      at = &ev->next;
      continue;
    }
    *at = ev->next;
    oci_free(NULL, ev, sizeof *ev);
  }
}
