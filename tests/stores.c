/* SPDX-License-Identifier: MIT */
/*
 * One hit of each kind, for test_stores.sh.
 *
 *   stores list      the kinds, a line each
 *   stores trace     under valgrind's lackey: thread A makes TIMES hits of each kind, then thread B the same. A store of
 *                    2 * kind + 1 (A) or 2 * kind + 2 (B) to `mark` opens a section, a store of 0 closes it; the first line
 *                    of output is mark's address.
 *   stores trace published   the same with the figures published (oc_stats_publish), where hits count
 *   stores protect   reaches the counting gates 2^20 times, makes all memory of the process read-only but the stack, then makes each kind's hits: a store to
 *                    anything that threads could share is a fault, which is told by kind. Exit status 1 after one.
 *   stores protect-early   the same without the 2^20 reaches: those gates must be told, which shows that stores are seen.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "liboc/oc.h"

#define TIMES 4

/* ---- a device that does nothing ---- */

static uint64_t next_address = (uint64_t)1 << 40;

static oc_status dev_alloc(void *self, size_t bytes, oc_devptr *out) {
  (void)self;
  *out = next_address;
  next_address += (bytes + 0x3fffff) & ~(uint64_t)0x1fffff;
  return OC_OK;
}

static oc_status dev_free(void *self, oc_devptr ptr) {
  (void)self;
  (void)ptr;
  return OC_OK;
}

static oc_status dev_kernel(void *self, const char *module, const char *func, oc_kernel *out) {
  (void)self;
  (void)module;
  *out = (oc_kernel)(uintptr_t)(0x1000 + strlen(func));
  return OC_OK;
}

static void need(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "stores: %s: %s\n", what, oc_last_error());
  exit(1);
}

/* ---- the kinds ---- */

static oc_model *model;
static oc_opcache *cache;
static oc_derived *derived;
static oc_kernel_key kernel_key = OC_KERNEL_KEY("gemm", "bf16_to_fp8");
static oc_tag_key tag_key = OC_TAG_KEY("activations");
static char module_text[] = "gemm", func_text[] = "bf16_to_fp8", tag_text[] = "activations";
static const oc_stream stream = (oc_stream)(uintptr_t)0x77000;
static const uint64_t key = 0x7f2000000000;

static bool kernel(void) {
  oc_kernel k;
  return oc_opcache_kernel(cache, module_text, func_text, &k) == OC_OK;
}
static bool kernel_k(void) {
  oc_kernel k;
  return oc_opcache_kernel_k(cache, &kernel_key, &k) == OC_OK;
}
static bool scratch(void) {
  oc_devptr p;
  return oc_opcache_scratch(cache, tag_text, 4096, &p) == OC_OK;
}
static bool scratch_k(void) {
  oc_devptr p;
  return oc_opcache_scratch_k(cache, &tag_key, 4096, &p) == OC_OK;
}
static bool scratch_on(void) {
  oc_devptr p;
  return oc_opcache_scratch_on(cache, tag_text, stream, 4096, &p) == OC_OK;
}
static bool scratch_on_k(void) {
  oc_devptr p;
  return oc_opcache_scratch_on_k(cache, &tag_key, stream, 4096, &p) == OC_OK;
}
static bool once(void) { return !oc_opcache_once(cache, tag_text); }
static bool once_k(void) { return !oc_opcache_once_k(cache, &tag_key); }
static bool first_shape(void) { return !oc_opcache_first_shape(cache, tag_text, 16, 4096, 4096); }
static bool first_shape_k(void) { return !oc_opcache_first_shape_k(cache, &tag_key, 16, 4096, 4096); }
static bool first_n(void) { return !oc_opcache_first_n(cache, tag_text, 3); }
static bool first_n_k(void) { return !oc_opcache_first_n_k(cache, &tag_key, 3); }
static bool get_ptr(void) {
  uint64_t v;
  return oc_derived_get_ptr(derived, OC_BF16, key, &v) == OC_OK;
}
static bool get_pair(void) {
  uint64_t v[2];
  return oc_derived_get_pair(derived, OC_ROWWISE_FP8, key, v) == OC_OK;
}
static bool get_ptr_on(void) {
  uint64_t v;
  return oc_derived_get_ptr_on(derived, OC_BF16, key, stream, &v) == OC_OK;
}
static bool get_pair_on(void) {
  uint64_t v[2];
  return oc_derived_get_pair_on(derived, OC_ROWWISE_FP8, key, stream, v) == OC_OK;
}
static bool guard(void) {
  oc_guard_enter();
  oc_guard_leave();
  return true;
}

/* counting: a hit only after 2^20 reaches, which no trace has the time for; before, it stores. guarding: writes its own thread's record. */
static const struct kind {
  const char *name;
  bool (*hit)(void);
  bool counting, guarding;
} kinds[] = {
  {.name = "kernel", .hit = kernel},           {.name = "kernel_k", .hit = kernel_k},
  {.name = "scratch", .hit = scratch},         {.name = "scratch_k", .hit = scratch_k},
  {.name = "scratch_on", .hit = scratch_on},   {.name = "scratch_on_k", .hit = scratch_on_k},
  {.name = "once", .hit = once},               {.name = "once_k", .hit = once_k},
  {.name = "first_shape", .hit = first_shape}, {.name = "first_shape_k", .hit = first_shape_k},
  {.name = "first_n", .hit = first_n, .counting = true},
  {.name = "first_n_k", .hit = first_n_k, .counting = true},
  {.name = "get_ptr", .hit = get_ptr},         {.name = "get_pair", .hit = get_pair},
  {.name = "get_ptr_on", .hit = get_ptr_on},   {.name = "get_pair_on", .hit = get_pair_on},
  {.name = "guard", .hit = guard, .guarding = true},
};
#define KINDS (sizeof kinds / sizeof *kinds)

static void setup(void) {
  const oc_backend_ops ops = {.struct_size = sizeof ops, .name = "void", .alloc = dev_alloc, .free = dev_free, .kernel = dev_kernel};
  const uint64_t pair[2] = {key, key};
  oc_backend *b;
  need(oc_backend_create(&ops, NULL, &b) == OC_OK && oc_model_create(b, NULL, &model) == OC_OK, "a model");
  cache = oc_model_opcache(model);
  derived = oc_model_derived(model);
  need(oc_model_use_stream(model, stream) == OC_OK, "a stream");
  need(oc_derived_insert_ptr(derived, OC_BF16, key, key, NULL) == OC_OK, "a value");
  need(oc_derived_insert_pair(derived, OC_ROWWISE_FP8, key, pair, NULL) == OC_OK, "a pair");
  for (size_t i = 0; i < KINDS; i++) (void)kinds[i].hit();   /* misses, and what answers true the first time */
  for (size_t i = 0; i < KINDS; i++) need(kinds[i].counting || kinds[i].hit(), kinds[i].name);
}

/* ---- trace ---- */

static volatile uint64_t mark;
static int turn;   /* atomic: whose hits are traced; the other thread lives meanwhile, so that no stack is used twice */

static void *hits(void *second) {
  const int mine = second != NULL;
  for (size_t i = 0; i < KINDS; i++) (void)kinds[i].hit();   /* this thread's first guard, the loader's first calls */
  while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) < mine) sched_yield();
  for (size_t i = 0; i < KINDS; i++) {
    bool (*hit)(void) = kinds[i].hit;
    bool ok = true;
    mark = 2 * i + 1 + (unsigned)mine;
    for (int n = 0; n < TIMES; n++) ok &= hit();
    mark = 0;
    need(ok || kinds[i].counting, kinds[i].name);
  }
  __atomic_store_n(&turn, mine + 1, __ATOMIC_RELEASE);
  while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) < 2) sched_yield();
  return NULL;
}

static int trace(void) {
  static char second;
  pthread_t t[2];
  printf("%p %d\n", (void *)&mark, TIMES);
  fflush(stdout);
  for (int i = 0; i < 2; i++) need(pthread_create(&t[i], NULL, hits, i ? &second : NULL) == 0, "a thread");
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  return 0;
}

/* ---- protect ---- */

struct region {
  char *from;
  size_t bytes;
};
static struct region regions[1024];
static size_t region_count;
static sigjmp_buf faulted;

static bool protect_all(int prot) {
  bool ok = true;
  for (size_t i = 0; i < region_count; i++) ok &= mprotect(regions[i].from, regions[i].bytes, prot) == 0;
  return ok;
}

/* Writable again before the jump, which writes too. */
static void on_fault(int signal) {
  (void)signal;
  if (!protect_all(PROT_READ | PROT_WRITE)) abort();
  siglongjmp(faulted, 1);
}

static void find_regions(const char *stack) {
  FILE *f = fopen("/proc/self/maps", "r");
  char line[512], perms[8];
  unsigned long from, to;
  need(f != NULL, "/proc/self/maps");
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, "%lx-%lx %7s", &from, &to, perms) != 3 || perms[1] != 'w' || perms[3] != 'p') continue;
    if ((uintptr_t)stack >= from && (uintptr_t)stack < to) continue;
    need(region_count < sizeof regions / sizeof *regions, "too many regions");
    regions[region_count++] = (struct region){(char *)from, to - from};
  }
  fclose(f);
}

/* In the only thread that there is: another's stack would be read-only too. Nothing that writes to memory may be called
   between the two protects; results are kept on the stack. */
static bool protected_hits(void) {
  bool ok[KINDS], stored[KINDS];
  char here;
  struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  for (size_t i = 0; i < KINDS; i++) (void)kinds[i].hit();
  find_regions(&here);
  for (volatile size_t i = 0; i < KINDS; i++) {
    volatile bool good = true;
    stored[i] = false;
    if (kinds[i].guarding) {
      ok[i] = true;
      continue;
    }
    if (sigsetjmp(faulted, 0) == 0) {
      if (!protect_all(PROT_READ)) abort();
      for (int n = 0; n < TIMES; n++) good = kinds[i].hit() && good;
    } else {
      stored[i] = true;
    }
    if (!protect_all(PROT_READ | PROT_WRITE)) abort();
    ok[i] = good;
  }
  size_t bad = 0;
  for (size_t i = 0; i < KINDS; i++) {
    if (stored[i] || !ok[i]) bad++;
    if (stored[i]) printf("%s: a store outside the stack\n", kinds[i].name);
    else if (!ok[i]) printf("%s: no hit\n", kinds[i].name);
  }
  return bad == 0;
}

static int protect(bool early) {
  for (uint32_t n = 0; !early && n < 1u << 20; n++) (void)first_n();   /* both forms count on one tag */
  return protected_hits() ? 0 : 1;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  setup();
  if (argc > 2 && strcmp(argv[2], "published") == 0) need(oc_stats_publish(NULL) == OC_OK, "a page of figures");
  if (strcmp(what, "trace") == 0) return trace();
  if (strcmp(what, "protect") == 0) return protect(false);
  if (strcmp(what, "protect-early") == 0) return protect(true);
  if (strcmp(what, "list") != 0) return 2;
  for (size_t i = 0; i < KINDS; i++) printf("%s\n", kinds[i].name);
  return 0;
}
