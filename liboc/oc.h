/* SPDX-License-Identifier: MIT */
/*
 * liboc: one owner, the loaded model, for everything that a GPU serving engine derives at run time.
 *
 * How to read this header. Every declaration carries its contract in one order: what it does; outcomes;
 * ownership afterwards in each outcome; threads; guard (may it be called inside oc_guard_enter, and what
 * happens there); capture (the same inside oc_capture_enter); units. What goes without saying:
 *   - Sizes and addresses are in bytes. Strings are NUL-terminated and copied, unless said otherwise.
 *   - Any thread may call anything, at any time, unless "threads" says otherwise.
 *   - An output is written on OC_OK only, unless said otherwise. NULL outputs are OC_E_INVALID.
 *   - NULL objects are OC_E_INVALID (bools: false; counts: 0; pointers: NULL).
 *   - OC_E_RELEASED (the model's teardown has begun), OC_E_FORKED (the backend was opened by a parent
 *     process), OC_E_HOST_NOMEM and what the driver says may come from every function that returns oc_status.
 *   - A thread that is cancelled (pthread_cancel, deferred) ends a model's call first, and oc_backend_close, what they call
 *     back included; a hit is no cancellation point. The function of oc_trace_stop must not be cancelled. Asynchronous
 *     cancellation must be off.
 *   - After a failure, oc_last_error() on the same thread has it in full, and nothing is half done.
 *   - "hit" and "miss" are as in oc(7): a hit takes no lock, makes no system call, allocates nothing.
 */
#ifndef LIBOC_OC_H
#define LIBOC_OC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define OC_API __attribute__((visibility("default")))
#define OC_MUST_USE __attribute__((warn_unused_result))
#else
#define OC_API
#define OC_MUST_USE
#endif

#define OC_VERSION_MAJOR 0
#define OC_VERSION_MINOR 1
#define OC_VERSION_PATCH 0

/* ---- Handles ------------------------------------------------------------------------------------ */

/* On CUDA these are the driver's own values: CUdeviceptr, CUfunction, CUstream, CUevent, CUmodule. */
typedef uint64_t            oc_devptr;  /* device address in bytes; 0 is none            */
typedef struct oc_kernel_s *oc_kernel;
typedef struct oc_stream_s *oc_stream;  /* NULL: the backend's default stream; ~0: none  */
typedef struct oc_event_s  *oc_event;
typedef struct oc_module_s *oc_module;

typedef struct oc_backend oc_backend;   /* one device's driver                           */
typedef struct oc_model   oc_model;     /* one loaded checkpoint on one backend          */
typedef struct oc_opcache oc_opcache;   /* a model's kernel handles, scratch and gates   */
typedef struct oc_derived oc_derived;   /* a model's derived weights                     */
typedef struct oc_pool    oc_pool;      /* a model's arenas                              */
typedef struct oc_report  oc_report;    /* what a teardown did                           */

/* ---- Status ------------------------------------------------------------------------------------- */

typedef enum oc_status {
  OC_OK = 0,
  /* ordinary outcomes */
  OC_MISS = 1,             /* nothing under this key                            */
  OC_EXISTS = 2,           /* an earlier value was kept; it is in *kept; the caller keeps its own */
  /* this call */
  OC_E_INVALID = -1,       /* bad argument                                      */
  OC_E_KIND = -2,          /* kind unknown, or pointer asked of a pair kind     */
  OC_E_NOT_FOUND = -3,     /* no such module, function, holder                  */
  OC_E_HOST_NOMEM = -4,
  OC_E_GUARDED = -5,       /* would wait or release inside a guard              */
  OC_E_CAPTURING = -6,     /* would call the driver inside a capture            */
  OC_E_REENTRANT = -7,     /* a build asked for what waits for it               */
  OC_E_NOT_OWNED = -8,     /* not a live block of this pool that the caller may free */
  OC_E_INTERIOR = -9,      /* pointer is inside a live block, not its start     */
  OC_E_IO = -10,
  OC_E_UNSUPPORTED = -11,  /* this backend cannot do that                       */
  /* this model */
  OC_E_RELEASED = -20,     /* torn down or being torn down                      */
  OC_E_BUSY = -21,         /* holders, open builds or calls still live          */
  OC_E_DEVICE_NOMEM = -22, /* device (and, where allowed, managed) memory is out */
  OC_E_TEARDOWN = -23,     /* teardown finished with failures; see the report   */
  /* this backend or process */
  OC_E_BACKEND = -40,      /* the driver refused; oc_last_error() has its words */
  OC_E_DEVICE_LOST = -41,  /* sticky driver error; the context is unusable      */
  OC_E_FORKED = -42,       /* used in a child of the process that opened it     */
  OC_E_NO_DRIVER = -43     /* no libcuda.so.1, or it has no device              */
} oc_status;

/* The enumerator's name, "OC_E_BUSY"; "OC_E_?" for a number that is none. Static; never NULL. */
OC_API const char *oc_status_name(oc_status s);
/* One sentence on what it means. Static; never NULL. */
OC_API const char *oc_status_text(oc_status s);
/* This thread's last failure, in full: call, arguments, driver's name, number and text; "" before the
   first. Owned by the thread, valid until its next failing call. */
OC_API const char *oc_last_error(void);
/* "0.1.0". Static. */
OC_API const char *oc_version(void);

/* level: 0 error, 1 warning, 2 note. line: no newline; valid during the call. Called from any thread, with
   no lock held that a call into liboc could need; it must not tear down or wait. */
typedef void (*oc_log_fn)(void *arg, int level, const char *line);
/* Sends the library's few log lines to fn; NULL silences (the default). Process-wide. */
OC_API void oc_set_log(oc_log_fn fn, void *arg);

/* A call site, for the ledger. File and function names are interned by content: they may differ between
   libraries, and dangle after dlclose. */
typedef struct oc_site { const char *file; uint32_t line; const char *func; } oc_site;

/* Functions that end in _at take a site (NULL allowed). The macro of the same name without _at passes a
   static one for its line. */
#ifdef __cplusplus
#define OC_SITE_HERE_                                                                        \
  ([](const char *oc_func_) -> const oc_site * {                                             \
    static const oc_site oc_site_ = {__FILE__, (uint32_t)__LINE__, oc_func_};                \
    return &oc_site_;                                                                        \
  }(__func__))
#else
#define OC_SITE_HERE_                                                                        \
  (__extension__({                                                                           \
    static const oc_site oc_site_ = {__FILE__, (uint32_t)__LINE__, __func__};                \
    &oc_site_;                                                                               \
  }))
#endif

/* ---- Backends ----------------------------------------------------------------------------------- */

/*
 * What a backend implements. liboc calls any entry from any thread, several at once, and holds no lock that
 * a hit needs; an entry must not call back into liboc. Every entry gets `self`. Entries return OC_OK,
 * OC_E_DEVICE_NOMEM (alloc, alloc_managed: out of memory, nothing else), OC_E_DEVICE_LOST (the context is
 * gone for good), OC_E_NOT_FOUND (module_function, kernel), OC_MISS (event_query: not yet), or another
 * OC_E_ status; outputs are read on OC_OK only.
 */
typedef struct oc_backend_ops {
  uint32_t struct_size;               /* sizeof(oc_backend_ops): append-only; copied */
  const char *name;                   /* "cuda", "host"; copied */
  /* required */
  oc_status (*alloc)(void *self, size_t bytes, oc_devptr *out);   /* OC_E_DEVICE_NOMEM when out of memory */
  oc_status (*free)(void *self, oc_devptr ptr);
  /* kernel, or the three module entries, must be there for kernel lookups */
  oc_status (*kernel)(void *self, const char *module, const char *func, oc_kernel *out);
  oc_status (*module_load)(void *self, const void *image, size_t bytes, oc_module *out);
  oc_status (*module_unload)(void *self, oc_module m);
  oc_status (*module_function)(void *self, oc_module m, const char *func, oc_kernel *out);
  /* optional: NULL means OC_E_UNSUPPORTED, or nothing to do */
  oc_status (*alloc_managed)(void *self, size_t bytes, oc_devptr *out);
  oc_status (*mem_info)(void *self, size_t *free_bytes, size_t *total_bytes);
  oc_status (*synchronize)(void *self, oc_stream s);
  oc_status (*synchronize_all)(void *self);
  oc_status (*capturing)(void *self, oc_stream s, bool *out);  /* the one driver call made in a capture */
  oc_status (*event_create)(void *self, oc_event *out);        /* no timing */
  oc_status (*event_record)(void *self, oc_event e, oc_stream s);
  oc_status (*event_query)(void *self, oc_event e);            /* OC_OK done, OC_MISS not yet */
  oc_status (*event_wait)(void *self, oc_stream s, oc_event e);
  oc_status (*event_destroy)(void *self, oc_event e);
  oc_status (*stream_create)(void *self, oc_stream *out);      /* non-blocking */
  oc_status (*stream_destroy)(void *self, oc_stream s);
  /* copies and memset are queued on s: host memory must live until s has passed them */
  oc_status (*copy_h2d)(void *self, oc_devptr dst, const void *src, size_t n, oc_stream s);
  oc_status (*copy_d2h)(void *self, void *dst, oc_devptr src, size_t n, oc_stream s);
  oc_status (*copy_d2d)(void *self, oc_devptr dst, oc_devptr src, size_t n, oc_stream s);
  oc_status (*memset)(void *self, oc_devptr dst, uint8_t value, size_t n, oc_stream s);
  oc_status (*host_alloc)(void *self, size_t bytes, void **out);   /* page-locked */
  oc_status (*host_free)(void *self, void *ptr);
  oc_status (*launch)(void *self, oc_kernel k, const uint32_t grid[3], const uint32_t block[3],
                      uint32_t shared_bytes, oc_stream s, void **params);
  const char *(*last_error)(void *self);       /* this thread's last failure in the driver's words */
  void      (*close)(void *self);
} oc_backend_ops;

/* Makes a backend of the engine's own table. Without events in it, commit and drain synchronise; without
   synchronize, synchronize_all; without both, calls count as finished on return.
   Outcomes: OC_E_INVALID (a required entry is NULL, struct_size too small, a tail that is not zero).
   Ownership: the table is copied; `self` stays the caller's until close(self), called once by
   oc_backend_close. On failure nothing is kept and close is not called. */
OC_API oc_status oc_backend_create(const oc_backend_ops *ops, void *self, oc_backend **out) OC_MUST_USE;

/* Option structs may be NULL (all defaults) and may be longer or shorter than the library's: a struct_size
   below the struct's first published size is OC_E_INVALID, an unknown tail must be zero. */
enum { OC_HOST_POISON = 1,         /* fill new device memory with 0xA5 (freed memory is unmapped in any case) */
       OC_HOST_RECYCLE = 2,        /* hand the last freed address of a size out again first (of the last 1,024);
                                      likewise the handle of the last stream or event destroyed, at once. Without
                                      it no handle comes back, and addresses not for a long while */
       OC_HOST_CHUNKS = 4,         /* charge for memory as one driver does: under 2 MiB a request is rounded up to
                                      512 B and costs 2 MiB / floor(2 MiB / rounded) of the capacity */
       OC_HOST_NO_MANAGED = 8,     /* the table has no alloc_managed */
       OC_HOST_NO_EVENTS = 16 };   /* the table has no event entries */
typedef struct oc_host_options { uint32_t struct_size, flags; size_t device_bytes; /* 0: 16 GiB */
                                 size_t managed_bytes; /* 0: 64 GiB */ } oc_host_options;
/* Opens the embedded device: asynchronous, on the CPU. Streams are ordered queues with a worker thread each,
   started by the stream's first use; the default stream is one more, and waits for no other. Memory is mapped
   lazily; a device address is a host address. `free` waits for nothing: queued work that still touches what was
   freed faults. Copies and memset must lie in one live allocation. Unknown and stale handles, frees of what is no
   allocation's start: OC_E_INVALID. A queued launch whose module was unloaded is not run; the stream's next
   synchronize says so, once (OC_E_BACKEND). What is queued on a stream that is then destroyed still runs.
   Close waits until all that was queued has run.
   Ownership: *out is the caller's, to oc_backend_close. */
OC_API oc_status oc_backend_open_host(const oc_host_options *opt, oc_backend **out) OC_MUST_USE;

typedef struct oc_cuda_options { uint32_t struct_size, flags; int ordinal;
                                 void *context; /* engine's own CUcontext; NULL: primary */ } oc_cuda_options;
/* Opens a CUDA device through the driver's library, found at run time.
   Outcomes: OC_E_NO_DRIVER, OC_E_UNSUPPORTED (this build has no CUDA backend). Ownership: as open_host. */
OC_API oc_status oc_backend_open_cuda(const oc_cuda_options *opt, oc_backend **out) OC_MUST_USE;
/* The CUcontext behind a CUDA backend; NULL for others. Not the caller's to destroy. */
OC_API void *oc_cuda_context(const oc_backend *b);

/* Closes the backend. Outcomes: OC_E_BUSY while models live (nothing changes), OC_E_GUARDED, OC_E_FORKED.
   Ownership: on OC_OK the pointer is dead; else it lives. Guard: OC_E_GUARDED. */
OC_API oc_status oc_backend_close(oc_backend *b) OC_MUST_USE;
/* The table and its self, to launch, copy, ... Valid until oc_backend_close; NULL for a NULL backend. */
OC_API const oc_backend_ops *oc_backend_table(const oc_backend *b);
OC_API void *oc_backend_self(const oc_backend *b);

/* ---- The embedded device: kernels and controls ---------------------------------------------------- */

typedef struct oc_host_launch { uint32_t grid[3], block[3], shared_bytes; } oc_host_launch;
/* A kernel: runs once a launch, on the stream's worker (all signals blocked); params[i] points to a copy of
   parameter i, aligned to 16. It must not wait for its own stream. */
typedef void (*oc_host_fn)(const oc_host_launch *launch, void *const *params);
typedef struct oc_host_function {
  const char *name;
  oc_host_fn fn;
  uint32_t param_count;
  const uint32_t *param_bytes;    /* [param_count]: size of each parameter */
} oc_host_function;
/* A module image of the host device: a named table of C functions. Pass its address and sizeof to
   oc_model_load_module; table and names are copied, the functions must stay mapped. */
typedef struct oc_host_module {
  uint32_t struct_size;
  uint32_t function_count;
  const oc_host_function *functions;
} oc_host_module;

typedef struct oc_host_stats {
  uint32_t struct_size, flags;
  uint64_t device_used, managed_used;          /* bytes, by the device's cost model */
  uint64_t device_blocks, managed_blocks;      /* allocations alive */
  uint64_t modules, streams, events;           /* alive; streams without the default one */
  uint64_t launches, stale_launches;           /* kernels run; launches of a function whose module was unloaded,
                                                  refused at the call or found so by the worker, never run */
  uint64_t bad_frees;                          /* frees of what was no live allocation's start */
  uint64_t calls;                              /* table entries called, all together */
} oc_host_stats;
/* Figures of a host backend; set struct_size first. Outcomes: OC_E_INVALID if b is no host backend. */
OC_API oc_status oc_host_get_stats(oc_backend *b, oc_host_stats *out) OC_MUST_USE;
/* Table entries called so far by that name ("alloc", "event_record", ...); 0 for an unknown name. */
OC_API uint64_t oc_host_calls(oc_backend *b, const char *entry);
/* From now on the stream's queue is kept but not run (true; what has begun ends), or runs again (false). A stall
   outlives the stream: the handle then still lets the queue run, or step. Close undoes stalls. */
OC_API oc_status oc_host_stall(oc_backend *b, oc_stream s, bool stalled) OC_MUST_USE;
/* Lets a stalled stream run n queued operations (launch, copy, memset, event_record and event_wait are one each)
   and waits until they ran (fewer if the queue ends). Outcomes: OC_E_INVALID (not stalled). */
OC_API oc_status oc_host_step(oc_backend *b, oc_stream s, uint32_t n) OC_MUST_USE;
/* The nth next call (1: the next) of that table entry, and the count - 1 after it (count 0: all after), fail
   with `as`, doing nothing. OC_OK is a success that isn't one: handles, addresses and sizes are 0. nth 0 takes
   the order back; a new order replaces the old. Outcomes: OC_E_NOT_FOUND (no such entry; last_error and close
   can't be failed, delayed or counted). */
OC_API oc_status oc_host_fail(oc_backend *b, const char *entry, uint64_t nth, uint64_t count, oc_status as) OC_MUST_USE;
/* Each call of that entry takes ns longer (0: no longer). */
OC_API oc_status oc_host_delay(oc_backend *b, const char *entry, uint64_t ns) OC_MUST_USE;
/* Says whether the device counts the stream as capturing (what `capturing` then answers). While it does, launch,
   copies and memset on it succeed and are dropped; event_record and event_wait on it, event_query and event_wait
   of an event last recorded on it, synchronize of it and synchronize_all fail (OC_E_BACKEND). */
OC_API oc_status oc_host_set_capturing(oc_backend *b, oc_stream s, bool capturing) OC_MUST_USE;

/* ---- The model ------------------------------------------------------------------------------------ */

enum { OC_MODEL_NO_MANAGED = 1,        /* never fall back: OC_E_DEVICE_NOMEM instead */
       OC_MODEL_BUILD_MAY_RACE = 2 };  /* several builds of one key at once; the first commit wins (G11) */
typedef struct oc_model_options { uint32_t struct_size, flags; const char *name;
  size_t arena_min, arena_max;    /* bytes; 0: 64 MiB, 1 GiB                      */
  size_t reserve_bytes;           /* arenas for this much at create (sizes each rounded up to 256);
                                     0: on demand. Can't be met: create fails, nothing kept */
  uint32_t teardown_wait_ms;      /* for calls, builds and holders to end; 0: 10,000 */ } oc_model_options;

/* Makes a model: op cache, derived weights and pool, all empty. Outcomes: OC_E_DEVICE_NOMEM (reserve).
   Ownership: *out is the caller's, to oc_model_destroy; the backend must outlive it. */
OC_API oc_status oc_model_create(oc_backend *b, const oc_model_options *opt, oc_model **out) OC_MUST_USE;
/* Process-wide unique, never reused, never 0 for a model. */
OC_API uint64_t oc_model_generation(const oc_model *m);
/* The model's parts; they live as long as the model. */
OC_API oc_opcache *oc_model_opcache(oc_model *m);
OC_API oc_derived *oc_model_derived(oc_model *m);
OC_API oc_pool    *oc_model_pool(oc_model *m);

/* Loads a module under a name. Outcomes: OC_EXISTS (that name is taken; the first stays). Ownership: the
   image may be freed on return; teardown unloads the module. Guard: allowed. Capture: OC_E_CAPTURING. */
OC_API oc_status oc_model_load_module(oc_model *m, const char *name, const void *image, size_t bytes) OC_MUST_USE;
/* Names a module that the engine loaded: looked up like ours, never unloaded by us. Outcomes: OC_EXISTS. */
OC_API oc_status oc_model_adopt_module(oc_model *m, const char *name, oc_module borrowed) OC_MUST_USE;
/* The handle under a name; valid until teardown. Outcomes: OC_E_NOT_FOUND. */
OC_API oc_status oc_model_module(oc_model *m, const char *name, oc_module *out) OC_MUST_USE;

/* Registers a holder of this model's handles; teardown waits for it, then refuses with its name. Holds of
   one name are counted. */
OC_API oc_status oc_model_retain(oc_model *m, const char *who) OC_MUST_USE;
/* Lets one hold of that name go. Works during teardown. Outcomes: OC_E_NOT_FOUND. */
OC_API oc_status oc_model_release_hold(oc_model *m, const char *who) OC_MUST_USE;

/* Streams that carry the model's work. Named by any _on call, or here. Teardown drains these; where
   none was ever named, the whole device. */
OC_API oc_status oc_model_use_stream(oc_model *m, oc_stream s) OC_MUST_USE;
/* Forget one before destroying it, for handles are recycled: an event recorded there is waited for by
   teardown and invalidate, and its scratch goes back after it. A stream never named is OC_OK.
   On return nobody in here uses it. Guard: allowed with events in the table, unless another thread is just waiting
   for the stream; else OC_E_GUARDED (it would wait). Capture: OC_E_CAPTURING. */
OC_API oc_status oc_model_forget_stream(oc_model *m, oc_stream s) OC_MUST_USE;

/* An engine's own resource (graphs, KV cache): released at teardown, newest first. */
typedef struct oc_resource_ops { uint32_t struct_size; const char *label;
  oc_status (*release)(void *self, oc_backend *b);  /* idempotent; may call oc_pool_free */ } oc_resource_ops;
/* Puts one on the list. Outcomes: OC_EXISTS if self is on it. Ownership: `self` belongs to the model until
   popped or released; ops and label are copied. */
OC_API oc_status oc_model_push(oc_model *m, const oc_resource_ops *ops, void *self) OC_MUST_USE;
/* Takes one off the list, unreleased: it is the caller's again. Outcomes: OC_E_NOT_FOUND. */
OC_API oc_status oc_model_pop(oc_model *m, void *self) OC_MUST_USE;

/* ---- Guards and captures --------------------------------------------------------------------------- */

/* A read-side section: what a lookup returned inside stays valid until the outermost leave. Nests; a few
   nanoseconds; never waits. A thread's first one may take liburcu's registration lock and map a page. */
OC_API void oc_guard_enter(void);
/* Without an enter: ignored, and logged. */
OC_API void oc_guard_leave(void);
/* Enters a guard if the model lives, else OC_E_RELEASED and no guard. Capture: works. */
OC_API oc_status oc_model_enter(oc_model *m) OC_MUST_USE;
OC_API void oc_model_leave(oc_model *m);
/* Optional: does a thread's first-guard work now. */
OC_API oc_status oc_thread_attach(void) OC_MUST_USE;

/* Around a stream capture on this thread: until the matching leave every miss, of every model on this
   thread, is OC_E_CAPTURING with no driver call; warm hits and gates work; blocks that go back are retired.
   Nests, over models and streams; leave in any order. Threads: leave on the thread that entered. */
OC_API oc_status oc_capture_enter(oc_model *m, oc_stream s) OC_MUST_USE;
/* Ends this thread's newest capture on m; without one: ignored, and logged. */
OC_API void oc_capture_leave(oc_model *m);
/* Says that no graph captured so far lives: what was retired for graphs goes back, after guards and streams.
   Outcomes: OC_E_BUSY while a capture is entered on this model, or if one was entered during the call (nothing goes
   back then). Guard: OC_E_GUARDED. Capture: OC_E_CAPTURING. */
OC_API oc_status oc_model_graphs_gone(oc_model *m) OC_MUST_USE;

/* ---- Teardown --------------------------------------------------------------------------------------- */

/* Ends the model, in order: refuses new calls; waits for calls, builds and holders (teardown_wait_ms);
   unpublishes; waits for guards; drains the model's streams; releases engine resources newest first,
   scratch, derived weights, arenas, modules. One failure does not abandon the rest.
   Outcomes: OC_OK; OC_E_TEARDOWN (finished with failures; see the report); OC_E_BUSY (a holder, call, build or
   capture, named in oc_last_error: nothing was released and the model works); OC_E_REENTRANT (this thread has
   a build open in it, or a circle of waits). A second call does nothing and repeats the first one's answer.
   Ownership: *report (report may be NULL) is the caller's, to oc_report_free; set to NULL unless OK or TEARDOWN.
   Guard: OC_E_GUARDED. Capture: OC_E_BUSY in one on this model, or on its backend where the model has named no
   stream; else OC_E_CAPTURING. */
OC_API oc_status oc_model_teardown(oc_model *m, oc_report **report) OC_MUST_USE;
/* Tears down if that was not done, waits for guards, frees the model. Outcomes: as teardown; on BUSY, GUARDED,
   CAPTURING, FORKED, REENTRANT, HOST_NOMEM the model lives; on OK and TEARDOWN the pointer is dead. */
OC_API oc_status oc_model_destroy(oc_model *m) OC_MUST_USE;

/* The report of a teardown; one row a resource, in the order of release. Strings live as long as the report. */
OC_API size_t    oc_report_count(const oc_report *r);
OC_API oc_status oc_report_row(const oc_report *r, size_t i, const char **label, oc_status *st,
                               const char **detail) OC_MUST_USE;
OC_API uint64_t  oc_report_arenas_freed(const oc_report *r);
OC_API uint64_t  oc_report_bytes_freed(const oc_report *r);      /* of arenas */
OC_API uint64_t  oc_report_blocks_swept(const oc_report *r);     /* live blocks with no owner */
OC_API uint64_t  oc_report_modules_unloaded(const oc_report *r);
/* One line where all went well; else a line more for each failure, and for who left what from where. The caller's, to
   oc_string_free; NULL without memory. oc_report_json has every row. */
OC_API char     *oc_report_text(const oc_report *r);
OC_API char     *oc_report_json(const oc_report *r);   /* likewise */
OC_API void      oc_report_free(oc_report *r);
OC_API void      oc_string_free(char *s);

/* ---- The op cache ------------------------------------------------------------------------------------ */

/* Resolves module::func, memoized. Hit: one content lookup. Miss: asks the module of that name loaded here,
   else the backend's `kernel`. Outcomes: OC_E_NOT_FOUND; a failure is not memoized. Ownership: the handle is
   the module's; valid as long as the guard. Guard: works. Capture: a miss is OC_E_CAPTURING. */
OC_API oc_status oc_opcache_kernel(oc_opcache *c, const char *module, const char *func, oc_kernel *out) OC_MUST_USE;

/* An interned name: `static oc_kernel_key k = OC_KERNEL_KEY("gemm", "bf16_to_fp8");` at the call site. First
   use gives it a small process-wide id (same content, same id; the strings are copied); each model keeps a
   dense vector by id, so a hit is one indexed load and no handle is ever static. The strings must not change
   after first use. */
typedef struct oc_kernel_key { const char *module, *func; uint32_t id;
  oc_status (*init)(oc_backend *b, oc_kernel k, void *arg);  /* once a model, before any thread gets k:
                               shared memory limits, attributes. Calls only the backend's table; its failure
                               is the lookup's, and nothing is memoized. A second, different init for the same
                               name is OC_E_INVALID; a handle memoized without one gets it at the first key
                               that has it */
  void *arg; } oc_kernel_key;
#define OC_KERNEL_KEY(module, func) { module, func, 0, NULL, NULL }
#define OC_KERNEL_KEY_INIT(module, func, init, arg) { module, func, 0, init, arg }
/* As oc_opcache_kernel, by key. */
OC_API oc_status oc_opcache_kernel_k(oc_opcache *c, oc_kernel_key *key, oc_kernel *out) OC_MUST_USE;
/* Resolves all now; stops at the first failure and returns it (those before stay memoized). */
OC_API oc_status oc_opcache_warm(oc_opcache *c, oc_kernel_key *const *keys, size_t n) OC_MUST_USE;

typedef struct oc_tag_key { const char *tag; uint32_t id; } oc_tag_key;   /* scratch tags, gate keys */
#define OC_TAG_KEY(tag) { tag, 0 }

/* A device buffer of at least `bytes` by purpose tag, grow-only: a request that fits returns the same pointer;
   a larger one gets a new block of at least one and a half times the old, which is retired (a graph or queued
   work may use it). The _on forms keep one buffer per (tag, stream); the others one per tag. The per-thread
   default stream (handle 2 on CUDA) is OC_E_INVALID.
   Outcomes: OC_E_DEVICE_NOMEM. Ownership: the cache's; not for oc_pool_free. Guard: works. Capture: a buffer
   that must grow is OC_E_CAPTURING; one handed out is kept for the graph. */
OC_API oc_status oc_opcache_scratch_at(oc_opcache *c, const char *tag, size_t bytes, const oc_site *site,
                                       oc_devptr *out) OC_MUST_USE;
OC_API oc_status oc_opcache_scratch_on_at(oc_opcache *c, const char *tag, oc_stream s, size_t bytes,
                                          const oc_site *site, oc_devptr *out) OC_MUST_USE;
OC_API oc_status oc_opcache_scratch_k_at(oc_opcache *c, oc_tag_key *tag, size_t bytes, const oc_site *site,
                                         oc_devptr *out) OC_MUST_USE;
OC_API oc_status oc_opcache_scratch_on_k_at(oc_opcache *c, oc_tag_key *tag, oc_stream s, size_t bytes,
                                            const oc_site *site, oc_devptr *out) OC_MUST_USE;
#define oc_opcache_scratch(c, tag, bytes, out) oc_opcache_scratch_at(c, tag, bytes, OC_SITE_HERE_, out)
#define oc_opcache_scratch_on(c, tag, s, bytes, out) oc_opcache_scratch_on_at(c, tag, s, bytes, OC_SITE_HERE_, out)
#define oc_opcache_scratch_k(c, tag, bytes, out) oc_opcache_scratch_k_at(c, tag, bytes, OC_SITE_HERE_, out)
#define oc_opcache_scratch_on_k(c, tag, s, bytes, out) \
  oc_opcache_scratch_on_k_at(c, tag, s, bytes, OC_SITE_HERE_, out)

/* Has the managed-memory latch been set on this model? */
OC_API bool oc_opcache_alloc_fell_back(const oc_opcache *c);
/* Sets it: new arenas are managed until the model goes. Under OC_MODEL_NO_MANAGED, or where the backend has
   no managed memory: no effect, logged. */
OC_API void oc_opcache_note_alloc_fallback(oc_opcache *c);

/* Gates, counted per model and key. first_n: true the first n times (n is clamped to 2^20; every reach
   counts, and the count never wraps). once: true for exactly one caller. first_shape: true for exactly one
   caller per (name, m, n, k). The three have separate key spaces. After teardown began: false. Without host
   memory for a new key: false, logged. Guard, capture: work. */
OC_API bool oc_opcache_first_n(oc_opcache *c, const char *key, uint32_t n);
OC_API bool oc_opcache_once(oc_opcache *c, const char *key);
OC_API bool oc_opcache_first_shape(oc_opcache *c, const char *name, uint32_t m, uint32_t n, uint32_t k);
OC_API bool oc_opcache_first_n_k(oc_opcache *c, oc_tag_key *key, uint32_t n);
OC_API bool oc_opcache_once_k(oc_opcache *c, oc_tag_key *key);
OC_API bool oc_opcache_first_shape_k(oc_opcache *c, oc_tag_key *name, uint32_t m, uint32_t n, uint32_t k);

/* Gives all scratch back (kernel handles and gates stay), after guards and the model's streams; afterwards
   calls miss afresh. Idempotent. What a capture was handed is retired. Guard: OC_E_GUARDED. Capture:
   OC_E_CAPTURING. */
OC_API oc_status   oc_opcache_release(oc_opcache *c) OC_MUST_USE;
OC_API const char *oc_opcache_label(const oc_opcache *c);        /* "op scratch"               */
OC_API size_t      oc_opcache_kernels(const oc_opcache *c);      /* memoized handles           */
OC_API size_t      oc_opcache_scratches(const oc_opcache *c);    /* live buffers               */
/* One line on what it holds, as snprintf. */
OC_API int         oc_opcache_describe(const oc_opcache *c, char *buf, size_t n);

/* ---- Derived weights --------------------------------------------------------------------------------- */

typedef uint32_t oc_kind;
enum { OC_ROWWISE_FP8,            /* pair: row-wise FP8 bytes, per-row scales */
       OC_BF16,                   /* pointer                                  */
       OC_CUTLASS_NVFP4_T,        /* pointer: byte-transposed NVFP4           */
       OC_CUTLASS_NVFP4_FROM_FP8, /* pair: NVFP4 bytes, scales                */
       OC_KIND_ENGINE = 16 };     /* engines' kinds from here                 */
typedef enum oc_arity { OC_PTR = 1, OC_PAIR = 2 } oc_arity;
/* Gives a name an id, process-wide: same name, same id; another arity is OC_E_KIND. The four above are
   registered as "rowwise-fp8", "bf16", "nvfp4-t" and "nvfp4-from-fp8". */
OC_API oc_status oc_kind_register(const char *name, oc_arity arity, oc_kind *out) OC_MUST_USE;

/* The derived value of a source pointer. `key` is the source's device address, not 0. A value counts as there
   once committed, even if its stream has not finished it: then the order is the caller's (or use the _on form).
   Outcomes: OC_MISS; OC_E_KIND (unknown kind, or the other arity). Ownership: the model's; valid as long as
   the guard. Guard, capture: work. */
OC_API oc_status oc_derived_get_ptr(oc_derived *d, oc_kind kind, uint64_t key, uint64_t *out) OC_MUST_USE;
OC_API oc_status oc_derived_get_pair(oc_derived *d, oc_kind kind, uint64_t key, uint64_t out[2]) OC_MUST_USE;
/* The same, for use on s: where the build is not yet finished, s is made to wait for its event. Names s as one
   of the model's streams. Capture: a value not yet seen finished is OC_E_CAPTURING. */
OC_API oc_status oc_derived_get_ptr_on(oc_derived *d, oc_kind kind, uint64_t key, oc_stream s, uint64_t *out) OC_MUST_USE;
OC_API oc_status oc_derived_get_pair_on(oc_derived *d, oc_kind kind, uint64_t key, oc_stream s, uint64_t out[2]) OC_MUST_USE;

/* Stores a value that the engine made. The first stored value is the one every thread gets.
   Outcomes: OC_EXISTS (*kept has the first value; the caller's stays the caller's); OC_E_INVALID (a pointer
   value of 0; a pair of two); OC_E_NOT_OWNED (the value is in another model's pool, or in a block that is scratch,
   retired or another build's; the key is in memory of this pool that was freed, or in scratch).
   Ownership on OC_OK: a block of this pool (or an address outside every pool, freed through the backend) is
   the model's now, freed once with the last entry that points into it; borrowed and never freed by the entry are:
   the key itself, addresses in the key's block, in a block of oc_pool_alloc_owned, or noted as external. 0 in a
   pair is none. kept may be NULL; it is written on OC_OK (the value itself) and OC_EXISTS.
   Guard: works. Capture: works where it needs no driver. */
OC_API oc_status oc_derived_insert_ptr(oc_derived *d, oc_kind kind, uint64_t key, uint64_t value, uint64_t *kept) OC_MUST_USE;
OC_API oc_status oc_derived_insert_pair(oc_derived *d, oc_kind kind, uint64_t key, const uint64_t value[2],
                                        uint64_t kept[2]) OC_MUST_USE;

typedef struct oc_build oc_build;   /* belongs to the thread that began it */
/* Makes the value: allocates with oc_build_alloc, queues work, returns OC_OK with the value in *out. Any other
   answer fails the build. Runs with no lock held; may ask for other keys; must not commit or abort. */
typedef oc_status (*oc_build_ptr_fn) (oc_build *b, void *arg, uint64_t *out);
typedef oc_status (*oc_build_pair_fn)(oc_build *b, void *arg, uint64_t out[2]);
/* Looks a value up and, where it is not there, builds it. One build a key: others who want it wait, and get the
   value; a failed build stores nothing, and one of the waiters builds next.
   Outcomes: what fn returned; OC_E_REENTRANT (would wait for itself, directly or round a circle).
   Ownership: what oc_build_alloc gave goes back to the pool unless a value lies in it. Guard: a miss is
   OC_E_GUARDED. Capture: a miss is OC_E_CAPTURING. */
OC_API oc_status oc_derived_get_or_build_ptr_at(oc_derived *d, oc_kind kind, uint64_t key, oc_build_ptr_fn fn,
                                                void *arg, const oc_site *site, uint64_t *out) OC_MUST_USE;
OC_API oc_status oc_derived_get_or_build_pair_at(oc_derived *d, oc_kind kind, uint64_t key, oc_build_pair_fn fn,
                                                 void *arg, const oc_site *site, uint64_t out[2]) OC_MUST_USE;
#define oc_derived_get_or_build_ptr(d, kind, key, fn, arg, out) \
  oc_derived_get_or_build_ptr_at(d, kind, key, fn, arg, OC_SITE_HERE_, out)
#define oc_derived_get_or_build_pair(d, kind, key, fn, arg, out) \
  oc_derived_get_or_build_pair_at(d, kind, key, fn, arg, OC_SITE_HERE_, out)

/* The same without a callback: allocate and launch between the lookup and the store.
   Outcomes: OC_OK: it was there, *build is NULL, out has the value. OC_MISS: *build is the caller's to end, by
   commit or abort; out is untouched. For a pointer kind only out[0] is written. Guard, capture: as
   get_or_build. Threads: the build belongs to the calling thread. */
OC_API oc_status oc_derived_begin_at(oc_derived *d, oc_kind kind, uint64_t key, const oc_site *site,
                                     oc_build **build, uint64_t out[2]) OC_MUST_USE;
#define oc_derived_begin(d, kind, key, build, out) oc_derived_begin_at(d, kind, key, OC_SITE_HERE_, build, out)
/* A block that belongs to the build until it ends. Threads: the build's. Guard, capture: as oc_pool_alloc. */
OC_API oc_status oc_build_alloc_at(oc_build *b, size_t bytes, size_t align, const oc_site *site, oc_devptr *out) OC_MUST_USE;
#define oc_build_alloc(b, bytes, align, out) oc_build_alloc_at(b, bytes, align, OC_SITE_HERE_, out)
/* The value is ready once the work queued on s at commit is done. Names s as one of the model's streams. */
OC_API oc_status oc_build_on_stream(oc_build *b, oc_stream s) OC_MUST_USE;
/* Stores the value and ends the build, whatever it returns but for OC_E_INVALID; a failure ends it as abort
   does. For a pointer kind value[1] is not read. Outcomes: OC_EXISTS (an insert or a racing build was first; *kept
   has its value), OC_E_NOT_OWNED, OC_E_RELEASED. Ownership: a block with a value anywhere inside it is the
   model's; the build's other blocks go back, after the work queued on its stream. kept may be NULL. */
OC_API oc_status oc_build_commit(oc_build *b, const uint64_t value[2], uint64_t kept[2]) OC_MUST_USE;
/* Ends the build without a value; its blocks go back after the work queued on its stream. From any thread, but
   not at once with another call on the same build by its owner's thread that ends it. After another thread's abort the
   owner's calls are OC_E_INVALID; its own abort then frees the record, which else stays until oc_model_destroy. */
OC_API void oc_build_abort(oc_build *b);

/* Waits until every committed value is finished on the device: before a capture. Guard: OC_E_GUARDED.
   Capture: OC_E_CAPTURING. */
OC_API oc_status oc_derived_settle(oc_derived *d) OC_MUST_USE;
/* The source was freed or changed: forgets its values in every kind, and what was derived from those. Waits for
   builds, begun before it, of what goes; for guards; for the model's streams; then frees. No value is OC_OK.
   Outcomes: OC_E_REENTRANT (round a circle of waits: nothing changes). Guard: OC_E_GUARDED. Capture:
   OC_E_CAPTURING. While another thread captures on the model, the blocks are retired for its graph. */
OC_API oc_status oc_derived_invalidate(oc_derived *d, uint64_t key) OC_MUST_USE;
/* The same for n keys, with one wait for all. */
OC_API oc_status oc_derived_invalidate_n(oc_derived *d, const uint64_t *keys, size_t n) OC_MUST_USE;
OC_API size_t      oc_derived_len(const oc_derived *d);        /* memoized entries, all kinds */
OC_API bool        oc_derived_is_empty(const oc_derived *d);
OC_API int         oc_derived_describe(const oc_derived *d, char *buf, size_t n);   /* as snprintf */
/* Forgets and frees every value, as invalidate does. Idempotent. Outcomes: OC_E_BUSY (a build begun before did
   not end in teardown_wait_ms). */
OC_API oc_status   oc_derived_release(oc_derived *d) OC_MUST_USE;
OC_API const char *oc_derived_label(const oc_derived *d);   /* "derived weights" */

/* ---- Sight ---------------------------------------------------------------------------------------------- */

/* Calls of the backend's table, by kind. */
typedef enum oc_call_kind { OC_CALL_ALLOC, OC_CALL_ALLOC_MANAGED, OC_CALL_FREE,
  OC_CALL_MODULE,               /* load, unload                        */
  OC_CALL_KERNEL,               /* kernel, module_function             */
  OC_CALL_EVENT,                /* create, record, query, wait, destroy */
  OC_CALL_SYNC, OC_CALL_CAPTURING, OC_CALL_KINDS } oc_call_kind;
typedef struct oc_call_stats { uint64_t calls, failures, ns; } oc_call_stats;
typedef struct oc_model_stats { uint32_t struct_size, flags;    /* flags: 0 */
  uint64_t generation;
  uint64_t kernel_misses, scratch_misses, derived_misses;   /* calls that were no hit: they had to ask, allocate, build
                                     or wait. An oc_derived_get_* that answers OC_MISS did none of that, and is not
                                     counted */
  uint64_t builds, build_failures, build_ns;   /* ended: value stored; without one (failed, aborted, second to
                                     another); from begin to end, of both */
  uint64_t build_waits, build_wait_ns;         /* of threads for another one's build */
  uint64_t scratch_growths, arena_growths;     /* buffers made, new or larger; driver allocations that worked */
  uint64_t retired_bytes;                      /* now, as in oc_pool_stats */
  uint64_t guard_waits, guard_wait_ns;         /* of teardown, invalidate, release, graphs_gone: for readers */
  oc_call_stats driver[OC_CALL_KINDS]; } oc_model_stats;
/* Figures of a model since it was created, after its teardown too; set struct_size first (of a longer struct the rest
   is zeroed). Each is exact; together they are a moment apart. Hits are not among them: they are counted
   where oc_stats_publish asks for it, a thread. Guard, capture: works; calls no driver. Units: ns. */
OC_API oc_status oc_model_get_stats(oc_model *m, oc_model_stats *out) OC_MUST_USE;
/* All models of the process in the Prometheus text exposition format (version 0.0.4), hits too where they are published, as
   snprintf: returns the whole text's length, writes at most n bytes with the NUL; -1 without host memory, or for a NULL buf
   with n. Guard, capture: works; calls no driver. Units: in each name. */
OC_API int oc_metrics_prometheus(char *buf, size_t n);

/* A page of figures that other processes may read while this one works: a memfd of the name OC_STATS_NAME, found as a link
   to it in /proc/PID/fd, by who may look there: this user, and root. octool top reads it. It goes with the process.
   Layout: struct oc_stats_page at 0; model_slots structs oc_stats_model at models_at, model_bytes apart; thread_slots
   structs oc_stats_thread at threads_at, thread_bytes apart. Later versions of the library append to the structs; another
   `version` means another layout. The file is sealed: it never shrinks or grows, and only this process writes to it. Each
   figure is an aligned uint64_t of this machine, to be read by one relaxed load, and exact; together they are a moment
   apart. Names are the engine's: untrusted bytes, NUL-terminated. */
#define OC_STATS_NAME "liboc-stats"
#define OC_STATS_MAGIC "OCSTATS"
enum { OC_STATS_VERSION = 1 };
typedef struct oc_stats_page {
  char magic[8];                       /* OC_STATS_MAGIC; written last, by a release store */
  uint32_t version, page_struct_bytes; /* sizeof(oc_stats_page) */
  uint32_t model_slots, model_bytes, thread_slots, thread_bytes;
  uint64_t models_at, threads_at, bytes;   /* offsets; of the file */
  uint64_t pid;                        /* getpid(): as the process itself sees it */
  uint64_t models_left_out, threads_left_out;   /* that there was no slot for, so far */
  char library[24]; } oc_stats_page;   /* oc_version() */
typedef struct oc_stats_model {
  uint64_t seq;                        /* odd: the model in this slot changes; other than before: it has changed */
  uint64_t generation;                 /* 0: no model in this slot */
  char name[96], backend[32];          /* cut to fit */
  uint64_t state;                      /* 0 live, 1 its teardown waits, 2 it releases, 3 torn down */
  uint64_t fell_back;                  /* the latch */
  /* as in oc_pool_stats; external: noted by oc_pool_note_external */
  uint64_t arenas, arena_bytes, managed_bytes;
  uint64_t live_blocks, live_bytes, peak_live_bytes, retired_bytes;
  uint64_t external_blocks, external_bytes;
  uint64_t driver_allocs, driver_alloc_failures, driver_frees;
  /* as in oc_model_stats */
  uint64_t kernel_misses, scratch_misses, derived_misses;
  uint64_t builds, build_failures, build_ns, build_waits, build_wait_ns;
  uint64_t scratch_growths, guard_waits, guard_wait_ns;
  oc_call_stats driver[OC_CALL_KINDS]; } oc_stats_model;
typedef struct oc_stats_thread {       /* hits of all models, counted since the page is there */
  uint64_t owner;                      /* 0: no thread counts here now; what was counted stays */
  uint64_t kernel_hits, scratch_hits, derived_hits, gate_hits, reserved[11]; } oc_stats_thread;
typedef struct oc_publish_options { uint32_t struct_size, flags;   /* flags: 0 */
                                    uint32_t models, threads;      /* slots; 0: 64, 1,024; 4,096 and 16,384 at most */
                                  } oc_publish_options;
/* Publishes that page, with all models of the process, those that come later too. From now on what changes is written there
   when it changes: nobody need call anything, and no thread is started. A hit counts in a slot of its thread (on lines
   that no other thread writes: G1), from the thread's first guard on. Who finds no slot is counted, and not seen. A child
   of fork has no page; it may publish its own. Outcomes: OC_E_BUSY (published already); OC_E_IO (no memfd, no memory for
   it: the words say). Guard, capture: works. */
OC_API oc_status oc_stats_publish(const oc_publish_options *opt) OC_MUST_USE;
/* Takes the page back: the link in /proc/PID/fd goes; who has it open sees it stand still. Outcomes: OC_E_NOT_FOUND. Guard,
   capture: works. */
OC_API oc_status oc_stats_unpublish(void) OC_MUST_USE;

typedef struct oc_trace_options { uint32_t struct_size, flags;   /* flags: 0 */
                                  size_t events;   /* room for so many; 0: 65,536; 2^26 at most */ } oc_trace_options;
/* Gets a piece of the document; anything but OC_OK ends the writing. */
typedef oc_status (*oc_trace_fn)(void *arg, const char *json, size_t n);
/* From now on builds, driver calls, waits and steps of all models of the process are remembered, in memory that is
   taken here; what there is no room for is dropped and counted. Hits are not traced. Outcomes: OC_E_BUSY (a trace is on).
   Guard, capture: works. */
OC_API oc_status oc_trace_start(const oc_trace_options *opt) OC_MUST_USE;
/* Ends the trace, and hands it to fn (NULL: to nobody) as one document of trace-event JSON, piece by piece, on this thread:
   a row a thread, tracks of live, retired and arena bytes a model; Perfetto and chrome://tracing open it. fn may not call
   oc_trace_*. Outcomes: OC_E_NOT_FOUND (no trace is on); what fn answered. The trace is over in each. Guard, capture: works. */
OC_API oc_status oc_trace_stop(oc_trace_fn fn, void *arg) OC_MUST_USE;

/* ---- The pool ------------------------------------------------------------------------------------------ */

/* A block, aligned in absolute address to max(256, align); align is a power of two, 0 means 256.
   Outcomes: OC_E_INVALID (0 bytes, overflow, align), OC_E_DEVICE_NOMEM. Ownership: the caller's, to
   oc_pool_free; what is left at teardown is swept and counted by call site. Guard: works. Capture: works where
   an arena has room, else OC_E_CAPTURING. */
OC_API oc_status oc_pool_alloc_at(oc_pool *p, size_t bytes, size_t align, const oc_site *site, oc_devptr *out) OC_MUST_USE;
#define oc_pool_alloc(p, bytes, align, out) oc_pool_alloc_at(p, bytes, align, OC_SITE_HERE_, out)
/* The same under an owner's name ("weights", "kv cache"): it goes with the arenas, one report row an owner. It may
   be freed before. */
OC_API oc_status oc_pool_alloc_owned_at(oc_pool *p, const char *owner, size_t bytes, size_t align,
                                        const oc_site *site, oc_devptr *out) OC_MUST_USE;
#define oc_pool_alloc_owned(p, owner, bytes, align, out) \
  oc_pool_alloc_owned_at(p, owner, bytes, align, OC_SITE_HERE_, out)
/* Gives a block back; reusable at once. A block with derivation keys inside it, or borrowed values, invalidates
   those first and waits as oc_derived_invalidate does; only then is it GUARDED, CAPTURING or REENTRANT (and
   nothing changes). Outcomes: OC_E_NOT_OWNED (stranger, double free, scratch, derived or build block),
   OC_E_INTERIOR. Works after teardown began, until the arenas go. Guard: works. Capture: the block is retired. */
OC_API oc_status oc_pool_free(oc_pool *p, oc_devptr ptr) OC_MUST_USE;
/* The same, reusable once what is queued on s now is done; never waits. Collected by alloc, free and stats (alloc
   and free ask a few streams a call, in turn, and all before the pool grows); a backend without events holds it until a
   drain. Capture: OC_E_CAPTURING, as on a stream that the driver calls capturing: the block stays the caller's. */
OC_API oc_status oc_pool_free_on(oc_pool *p, oc_devptr ptr, oc_stream s) OC_MUST_USE;
/* Gives arenas that hold no live and no retired block back to the driver; blocks of free_on whose stream has passed are
   collected first. One that the driver refuses stays, out of use, and is logged. Guard: works. Capture: OC_E_CAPTURING. */
OC_API oc_status oc_pool_trim(oc_pool *p) OC_MUST_USE;
/* Enters memory of another allocator in the ledger; never freed by us. Outcomes: OC_EXISTS (overlaps one noted
   before), OC_E_INVALID (overlaps an arena). */
OC_API oc_status oc_pool_note_external_at(oc_pool *p, oc_devptr ptr, size_t bytes, const char *owner, const oc_site *site) OC_MUST_USE;
#define oc_pool_note_external(p, ptr, bytes, owner) oc_pool_note_external_at(p, ptr, bytes, owner, OC_SITE_HERE_)
/* Takes it out again. Entries with keys or values in it are invalidated first, as oc_pool_free does.
   Outcomes: OC_E_NOT_OWNED, OC_E_INTERIOR. */
OC_API oc_status oc_pool_forget_external(oc_pool *p, oc_devptr ptr) OC_MUST_USE;

typedef struct oc_pool_stats { uint32_t struct_size, fell_back;
  uint64_t arenas, arena_bytes, managed_arenas, managed_bytes;
  uint64_t live_blocks, live_bytes, peak_live_bytes, retired_bytes, free_bytes, largest_free;
  uint64_t driver_allocs, driver_alloc_failures, driver_frees;
  uint64_t host_metadata_bytes; } oc_pool_stats;
/* Figures of the pool, until the arenas go; set struct_size first (of a longer struct the rest is zeroed). managed_* are part
   of arenas and arena_bytes. live + retired + free bytes == arena_bytes; retired counts all that waits for a
   stream, a graph or teardown. driver_allocs counts those that worked. host_metadata_bytes: the pool's records,
   indexes and ledger. */
OC_API oc_status oc_pool_get_stats(oc_pool *p, oc_pool_stats *out) OC_MUST_USE;
/* Walks every invariant. Outcomes: OC_OK; OC_E_INVALID with what is broken in oc_last_error(). */
OC_API oc_status oc_pool_check(oc_pool *p) OC_MUST_USE;
/* What the pool knows of its blocks, to be shown. struct_size of both: what this library knows of; it appends. */
typedef enum oc_block_state { OC_BLOCK_FREE, OC_BLOCK_LIVE,
  OC_BLOCK_RETIRED,             /* given back; waits for a stream, a graph or teardown          */
  OC_BLOCK_LOST,                /* all of an arena that the driver did not take back: out of use */
  OC_BLOCK_EXTERNAL             /* noted by oc_pool_note_external: in no arena                  */
} oc_block_state;
typedef enum oc_block_role { OC_ROLE_NONE,   /* free, lost */
  OC_ROLE_CALLER,               /* oc_pool_alloc: no owner          */
  OC_ROLE_OWNER,                /* oc_pool_alloc_owned              */
  OC_ROLE_SCRATCH,              /* owner: the tag's                 */
  OC_ROLE_BUILD,                /* of a build that is open; owner: the kind's */
  OC_ROLE_DERIVED,              /* owner: the kind's                */
  OC_ROLE_EXTERNAL } oc_block_role;
enum { OC_ARENA_MANAGED = 1, OC_ARENA_LOST = 2 };
typedef struct oc_arena_info { uint32_t struct_size, flags;     /* OC_ARENA_* */
  uint64_t index;                                  /* 0, 1, ... in the order of addresses */
  oc_devptr base; uint64_t bytes, used_bytes;      /* blocks tile it; used: all that is not free */
  oc_devptr driver_base; uint64_t driver_bytes;    /* as the driver gave it: the base need not be aligned */
} oc_arena_info;
enum { OC_BLOCK_HAS_ENTRIES = 1 };                 /* derived values have keys or values in it */
typedef struct oc_block_info { uint32_t struct_size, flags;     /* OC_BLOCK_HAS_ENTRIES */
  oc_block_state state; oc_block_role role;
  oc_devptr start; uint64_t bytes, requested;      /* with its padding; as asked for, 0 for a free one */
  const oc_arena_info *arena;                      /* NULL: external */
  const char *owner;                               /* NULL: none */
  oc_site site;                                    /* file NULL: unknown */
} oc_block_info;
/* Anything but OC_OK ends the walk. */
typedef oc_status (*oc_block_fn)(void *arg, const oc_block_info *block);
/* Tells fn every block of one moment, free ones too, on this thread: arenas in the order of addresses, the blocks of each in
   theirs, without a gap (no arena is without a block), then external memory. Sums agree with oc_pool_get_stats at that
   moment. Blocks of free_on whose stream has passed are collected first. It takes 24 bytes of host memory a block
   meanwhile, and holds the pool's lock while it copies, not while it tells: fn may call anything, for this model too, but
   oc_model_destroy. Outcomes: what fn answered; OC_E_HOST_NOMEM; OC_E_RELEASED (the arenas are gone). Ownership: what fn is
   shown is its own until it returns; owner and site are good until oc_model_destroy. Guard, capture: works; allocates
   nothing on the device. */
OC_API oc_status oc_pool_each_block(oc_pool *p, oc_block_fn fn, void *arg) OC_MUST_USE;
/* The ledger by site, by file, by owner: the `top` largest of each (0: all), the rest summed, the sum exact.
   Ownership: the caller's, to oc_string_free; NULL without host memory. */
OC_API char *oc_pool_report_text(oc_pool *p, size_t top);
OC_API char *oc_pool_report_json(oc_pool *p);

#ifdef __cplusplus
}
#endif

#endif
