/* SPDX-License-Identifier: MIT */
/* What is ordered, counted and asked of the simulated driver from outside. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/simcuda/sim.h"

#define AS_STRING(name) #name,
static const char *const function_name[SIM_FUNCTION_COUNT] = {SIM_FUNCTIONS(AS_STRING)};

/* Calls are numbered from 1 on, by device and over all. */
struct knob {
  uint64_t calls;              /* atomic */
  uint64_t delay_ns;           /* atomic */
  bool armed;                  /* atomic; what follows is under the lock */
  uint64_t first, last;
  cu_result code;
};

enum { ALL = SIMCUDA_DEVICES_MAX, SLOTS };
static struct knob knobs[SLOTS][SIM_FUNCTION_COUNT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int devices = 1;                  /* atomic */
static struct simcuda_options options[SIMCUDA_DEVICES_MAX];
static int missing_function;             /* atomic */
static pid_t initialised_in;             /* atomic; 0: not yet */

enum { RUNNING, SHUTTING, SHUT };
static int stage;                        /* atomic */
static bool strict;                      /* atomic */
static uint64_t late_calls;              /* atomic */

/* ---- the environment ---- */

static size_t env_number(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? (size_t)strtoull(text, NULL, 0) : otherwise;
}

static bool env_flag(const char *name) {
  return env_number(name, 0) != 0;
}

/* A knob that does not bite would hide a fault in a test. */
static void bad_setting(const char *name, const char *text) {
  fprintf(stderr, "simcuda: %s=%s: not understood\n", name, text);
  abort();
}

static enum simcuda_managed env_managed(void) {
  const char *text = getenv("SIMCUDA_MANAGED");
  if (!text || !*text) return SIMCUDA_MANAGED_YES;
  if (strcmp(text, "no") == 0) return SIMCUDA_MANAGED_NO;
  if (strcmp(text, "fails") == 0) return SIMCUDA_MANAGED_FAILS;
  if (strcmp(text, "exclusive") == 0) return SIMCUDA_MANAGED_EXCLUSIVE;
  bad_setting("SIMCUDA_MANAGED", text);
  return SIMCUDA_MANAGED_YES;
}

static int env_missing(void) {
  const char *text = getenv("SIMCUDA_MISSING_FUNCTION");
  if (!text || !*text) return 0;
  if (strcmp(text, "null") == 0) return 1;
  if (strcmp(text, "bad") == 0) return 2;
  bad_setting("SIMCUDA_MISSING_FUNCTION", text);
  return 0;
}

/* Each item of a list, to `take`, which says whether it understood. */
static void env_list(const char *name, bool (*take)(const char *item)) {
  char copy[512], *at = copy, *item;
  const char *text = getenv(name);
  if (!text) return;
  snprintf(copy, sizeof copy, "%s", text);
  while ((item = strsep(&at, ",")))
    if (*item && !take(item)) bad_setting(name, item);
}

static bool take_fail(const char *item) {
  char name[64];
  uint64_t nth, count;
  int code;
  return sscanf(item, "%63[^:]:%" SCNu64 ":%" SCNu64 ":%d", name, &nth, &count, &code) == 4 &&
         simcuda_fail(SIMCUDA_ANY, name, nth, count, code);
}

static bool take_delay(const char *item) {
  char name[64];
  uint64_t ns;
  return sscanf(item, "%63[^:]:%" SCNu64, name, &ns) == 2 && simcuda_delay(SIMCUDA_ANY, name, ns);
}

static struct simcuda_options default_options(void) {
  return (struct simcuda_options){.device_bytes = env_number("SIMCUDA_DEVICE_BYTES", (size_t)16 << 30),
                                  .managed_bytes = env_number("SIMCUDA_MANAGED_BYTES", (size_t)64 << 30),
                                  .recycle = env_flag("SIMCUDA_RECYCLE"),
                                  .chunks = env_flag("SIMCUDA_CHUNKS"),
                                  .poison = env_flag("SIMCUDA_POISON"),
                                  .integrated = env_flag("SIMCUDA_INTEGRATED"),
                                  .managed = env_managed()};
}

static pthread_once_t settings_once = PTHREAD_ONCE_INIT;
static __thread bool reading_settings;   /* by this thread: others wait until all is read */

static void read_settings(void) {
  reading_settings = true;
  simcuda_set_devices((int)env_number("SIMCUDA_DEVICES", 1));
  for (int i = 0; i < SIMCUDA_DEVICES_MAX; i++) options[i] = default_options();
  missing_function = env_missing();
  env_list("SIMCUDA_FAIL", take_fail);
  env_list("SIMCUDA_DELAY", take_delay);
  sim_load_kernels(getenv("SIMCUDA_KERNELS"));
  reading_settings = false;
}

/* Before anything is asked or ordered; orders of the environment's own come while it is read. */
static void settle(void) {
  if (!reading_settings) pthread_once(&settings_once, read_settings);
}

/* ---- orders ---- */

static int function_of(const char *name) {
  for (int f = 0; name && f < SIM_FUNCTION_COUNT; f++)
    if (strcmp(name, function_name[f]) == 0) return f;
  return -1;
}

static struct knob *slot_of(int ordinal) {
  if (ordinal == SIMCUDA_ANY) return knobs[ALL];
  return ordinal >= 0 && ordinal < SIMCUDA_DEVICES_MAX ? knobs[ordinal] : NULL;
}

static struct knob *knob_of(int ordinal, const char *function) {
  int f = function_of(function);
  struct knob *slot = slot_of(ordinal);
  return slot && f >= 0 ? &slot[f] : NULL;
}

bool simcuda_fail(int ordinal, const char *function, uint64_t nth, uint64_t count, int code) {
  settle();
  struct knob *k = knob_of(ordinal, function);
  if (!k) return false;
  pthread_mutex_lock(&lock);
  k->first = __atomic_load_n(&k->calls, __ATOMIC_RELAXED) + nth;
  k->last = count == 0 || count - 1 > UINT64_MAX - k->first ? UINT64_MAX : k->first + (count - 1);
  k->code = code;
  __atomic_store_n(&k->armed, nth != 0, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return true;
}

bool simcuda_delay(int ordinal, const char *function, uint64_t ns) {
  settle();
  struct knob *k = knob_of(ordinal, function);
  if (k) __atomic_store_n(&k->delay_ns, ns, __ATOMIC_RELAXED);
  return k != NULL;
}

uint64_t simcuda_calls(int ordinal, const char *function) {
  settle();
  const struct knob *slot = slot_of(ordinal);
  int only = function_of(function);
  uint64_t sum = 0;
  if (!slot || (function && only < 0)) return 0;
  for (int f = 0; f < SIM_FUNCTION_COUNT; f++)
    if (!function || f == only) sum += __atomic_load_n(&slot[f].calls, __ATOMIC_RELAXED);
  return sum;
}

bool simcuda_forget(int ordinal) {
  settle();
  struct knob *slot = slot_of(ordinal);
  if (!slot) return false;
  pthread_mutex_lock(&lock);
  for (int f = 0; f < SIM_FUNCTION_COUNT; f++) {
    __atomic_store_n(&slot[f].armed, false, __ATOMIC_RELAXED);
    __atomic_store_n(&slot[f].calls, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot[f].delay_ns, 0, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&lock);
  return true;
}

void simcuda_set_devices(int count) {
  settle();
  if (count < 0 || count > SIMCUDA_DEVICES_MAX) bad_setting("SIMCUDA_DEVICES", "not 0 to 8");
  __atomic_store_n(&devices, count, __ATOMIC_RELAXED);
}

int sim_device_count(void) {
  return __atomic_load_n(&devices, __ATOMIC_RELAXED);
}

bool simcuda_configure(int ordinal, const struct simcuda_options *o) {
  settle();
  if (ordinal < 0 || ordinal >= SIMCUDA_DEVICES_MAX) return false;
  struct simcuda_options fresh = default_options();
  if (o) {
    struct simcuda_options usual = fresh;
    fresh = *o;
    if (!fresh.device_bytes) fresh.device_bytes = usual.device_bytes;
    if (!fresh.managed_bytes) fresh.managed_bytes = usual.managed_bytes;
  }
  pthread_mutex_lock(&lock);
  options[ordinal] = fresh;
  pthread_mutex_unlock(&lock);
  return true;
}

const struct simcuda_options *sim_options(int ordinal) {
  return &options[ordinal];
}

void simcuda_missing_function(int how) {
  settle();
  __atomic_store_n(&missing_function, how, __ATOMIC_RELAXED);
}

int sim_missing_function(void) {
  return __atomic_load_n(&missing_function, __ATOMIC_RELAXED);
}

/* ---- the end ---- */

void simcuda_shut_down(bool only_once) {
  __atomic_store_n(&strict, only_once, __ATOMIC_RELAXED);
  __atomic_store_n(&stage, SHUTTING, __ATOMIC_RELEASE);
}

uint64_t simcuda_calls_after_shut_down(void) {
  return __atomic_load_n(&late_calls, __ATOMIC_RELAXED);
}

static void die(enum sim_function f, const char *why) {
  fprintf(stderr, "simcuda: %s was called %s\n", function_name[f], why);
  abort();
}

/* True: the driver is shut down. */
static bool is_shut(enum sim_function f) {
  if (__atomic_load_n(&stage, __ATOMIC_ACQUIRE) == RUNNING) return false;
  int was = __atomic_exchange_n(&stage, SHUT, __ATOMIC_ACQ_REL);
  if (was == SHUT && __atomic_load_n(&strict, __ATOMIC_RELAXED)) die(f, "after it had said that it is shut down");
  __atomic_add_fetch(&late_calls, 1, __ATOMIC_RELAXED);
  return true;
}

void sim_initialised(void) {
  __atomic_store_n(&initialised_in, getpid(), __ATOMIC_RELEASE);
}

/* ---- the start of every function ---- */

static void sleep_ns(uint64_t ns) {
  struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* Counts; true and the code if this call was ordered to fail. */
static bool count(struct knob *k, uint64_t *delay, cu_result *r) {
  uint64_t call = __atomic_add_fetch(&k->calls, 1, __ATOMIC_RELAXED);
  uint64_t ns = __atomic_load_n(&k->delay_ns, __ATOMIC_RELAXED);
  if (ns > *delay) *delay = ns;
  if (!__atomic_load_n(&k->armed, __ATOMIC_ACQUIRE)) return false;
  pthread_mutex_lock(&lock);
  bool hit = k->armed && call >= k->first && call <= k->last;
  if (hit) *r = k->code;
  pthread_mutex_unlock(&lock);
  return hit;
}

static bool ordered(enum sim_function f, const struct sim_context *c, cu_result *r) {
  uint64_t delay = 0;
  bool hit = count(&knobs[ALL][f], &delay, r);
  if (c) hit |= count(&knobs[c->ordinal][f], &delay, r);
  if (delay) sleep_ns(delay);
  return hit;
}

static bool without_init(enum sim_function f) {
  return f == FN_cuInit || f == FN_cuDriverGetVersion || f == FN_cuGetErrorName || f == FN_cuGetErrorString;
}

static cu_result context_state(const struct sim_context *c) {
  if (!c) return CU_E_INVALID_CONTEXT;
  if (!__atomic_load_n(&c->alive, __ATOMIC_ACQUIRE)) return CU_E_CONTEXT_IS_DESTROYED;
  return __atomic_load_n(&c->sticky, __ATOMIC_RELAXED);
}

/* What the driver may refuse beside a capture. The reference names allocation; that event queries and module loads are
   among them is known from the field, the others are taken to be. */
static bool potentially_unsafe(enum sim_function f) {
  switch (f) {
    case FN_cuMemAlloc_v2:
    case FN_cuMemAllocManaged:
    case FN_cuMemFree_v2:
    case FN_cuMemGetInfo_v2:
    case FN_cuMemHostAlloc:
    case FN_cuMemFreeHost:
    case FN_cuModuleLoadData:
    case FN_cuModuleLoadDataEx:
    case FN_cuModuleUnload:
    case FN_cuModuleGetFunction:
    case FN_cuStreamCreate:
    case FN_cuStreamDestroy_v2:
    case FN_cuStreamSynchronize:
    case FN_cuStreamQuery:
    case FN_cuEventQuery:
    case FN_cuEventSynchronize:
    case FN_cuDevicePrimaryCtxRetain:
    case FN_cuDevicePrimaryCtxRelease_v2:
    case FN_cuCtxCreate_v2:
    case FN_cuCtxDestroy_v2: return true;
    default: return false;
  }
}

bool sim_answered(enum sim_function f, struct sim_context **c, void *out, size_t out_bytes, cu_result *r) {
  settle();
  pid_t pid = __atomic_load_n(&initialised_in, __ATOMIC_ACQUIRE);
  if (pid && pid != getpid()) die(f, "in a forked child");
  if (c) *c = sim_current();
  bool hit = ordered(f, c ? *c : NULL, r);
  if (is_shut(f)) {
    *r = CU_E_DEINITIALIZED;
    return true;
  }
  if (!pid && !without_init(f)) {
    *r = CU_E_NOT_INITIALIZED;
    return true;
  }
  if (hit) {
    if (*r == CU_OK && out) memset(out, 0, out_bytes);
    return true;
  }
  *r = c ? context_state(*c) : CU_OK;
  if (*r == CU_OK && potentially_unsafe(f)) *r = sim_unsafe();
  if (*r == CU_OK && out_bytes && !out) *r = CU_E_INVALID_VALUE;
  return *r != CU_OK;
}
