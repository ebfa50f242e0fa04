/* SPDX-License-Identifier: MIT */
/*
 * Three ways to get host memory, chosen by configure: a private jemalloc (prefixed oc_je_, hidden), the process's
 * own jemalloc if it has one (weak references), libc. With jemalloc a heap is an arena with an explicit thread
 * cache under the heap's lock. `arena.destroy` leaks address space in jemalloc 5.3, so arenas are reset, purged
 * and used again. Large requests are mapped directly: lazily zeroed, given back at once, on huge pages.
 */
#include "config.h"

#include "rcu/mem.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "rcu/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define MAP_FROM ((size_t)1 << 40)   /* of pages that we map it would see neither the bounds nor what they point to */
#else
#define MAP_FROM ((size_t)1 << 20)
#endif
#define HUGE_FROM ((size_t)4 << 20)

#if defined(OC_JEMALLOC_PRIVATE) || defined(OC_JEMALLOC_HOST)
#define HAVE_JEMALLOC 1
#define JE_ALIGN(a) ((int)__builtin_ctzll(a))
#define JE_ZERO 0x40
#define JE_TCACHE(tc) ((int)(((tc) + 2) << 8))
#define JE_TCACHE_NONE JE_TCACHE(-1)
#define JE_ARENA(a) ((int)(((a) + 1) << 20))
#endif

#ifdef OC_JEMALLOC_PRIVATE
extern void *oc_je_mallocx(size_t size, int flags);
extern void oc_je_sdallocx(void *ptr, size_t size, int flags);
extern int oc_je_mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
#define je_mallocx oc_je_mallocx
#define je_sdallocx oc_je_sdallocx
#define je_mallctl oc_je_mallctl
#define je_present() true
#endif

#ifdef OC_JEMALLOC_HOST
extern void *mallocx(size_t size, int flags) __attribute__((weak));
extern void sdallocx(void *ptr, size_t size, int flags) __attribute__((weak));
extern int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen) __attribute__((weak));
#define je_mallocx mallocx
#define je_sdallocx sdallocx
#define je_mallctl mallctl
static bool je_present(void) {
  return mallocx && sdallocx && mallctl;
}
#endif

struct heap {
  pthread_mutex_t lock;   /* the tcache's */
  size_t bytes;           /* allocated and not freed */
  unsigned arena, tcache;
  bool je;                /* arena and tcache are valid */
  struct heap *next;      /* in the list of heaps whose arena waits to be used again */
};

static oci_mem_fault fault_fn;
static void *fault_arg;

void oci_mem_set_fault(oci_mem_fault fail, void *arg) {
  /* No fault leaves the arg as it is: another thread may have read fault_fn and be about to read it. */
  if (fail) fault_arg = arg;
  __atomic_store_n(&fault_fn, fail, __ATOMIC_RELEASE);
}

static bool injected(size_t bytes) {
  oci_mem_fault fail = __atomic_load_n(&fault_fn, __ATOMIC_ACQUIRE);
  return __builtin_expect(fail != NULL, 0) && fail(fault_arg, bytes);
}

static size_t alignment(size_t bytes) {
  return bytes >= 64 ? 64 : 16;
}

/* ---- large: straight from the kernel ---- */

static void *map_pages(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  /* Lookup tables of this size are read at random: 4 KiB pages would cost a TLB miss a lookup. */
  if (bytes >= HUGE_FROM) (void)madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}

/* ---- libc ---- */

static void *libc_alloc(size_t bytes) {
  if (alignment(bytes) <= _Alignof(max_align_t)) return calloc(1, bytes);
  void *p = NULL;
  if (posix_memalign(&p, alignment(bytes), bytes) != 0) return NULL;
  return memset(p, 0, bytes);
}

/* ---- jemalloc ---- */

#ifdef HAVE_JEMALLOC

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heap *idle;   /* destroyed heaps: their arenas and tcaches are used again */

static int process_flags(size_t bytes) {
  return JE_ARENA(0) | JE_TCACHE_NONE | JE_ALIGN(alignment(bytes));
}

static bool je_setup(struct heap *h) {
  size_t len = sizeof h->arena;
  if (je_mallctl("arenas.create", &h->arena, &len, NULL, 0) != 0) return false;
  len = sizeof h->tcache;
  return je_mallctl("tcache.create", &h->tcache, &len, NULL, 0) == 0;
}

static int heap_flags(const struct heap *h, size_t bytes) {
  return JE_ARENA((int)h->arena) | JE_TCACHE((int)h->tcache) | JE_ALIGN(alignment(bytes));
}

static void *je_alloc(struct heap *h, size_t bytes) {
  if (!h || !h->je) return je_mallocx(bytes, process_flags(bytes) | JE_ZERO);
  pthread_mutex_lock(&h->lock);
  void *p = je_mallocx(bytes, heap_flags(h, bytes) | JE_ZERO);
  pthread_mutex_unlock(&h->lock);
  return p;
}

static void je_free(struct heap *h, void *p, size_t bytes) {
  if (!h || !h->je) {
    je_sdallocx(p, bytes, process_flags(bytes));
    return;
  }
  pthread_mutex_lock(&h->lock);
  je_sdallocx(p, bytes, heap_flags(h, bytes));
  pthread_mutex_unlock(&h->lock);
}

/* The thread cache first: what it holds belongs to the arena. */
static void je_reset(struct heap *h) {
  char name[48];
  je_mallctl("tcache.flush", NULL, NULL, &h->tcache, sizeof h->tcache);
  snprintf(name, sizeof name, "arena.%u.reset", h->arena);
  je_mallctl(name, NULL, NULL, NULL, 0);
  snprintf(name, sizeof name, "arena.%u.purge", h->arena);
  je_mallctl(name, NULL, NULL, NULL, 0);
}

static struct heap *take_idle(void) {
  pthread_mutex_lock(&idle_lock);
  struct heap *h = idle;
  if (h) idle = h->next;
  pthread_mutex_unlock(&idle_lock);
  return h;
}

static void put_idle(struct heap *h) {
  je_reset(h);
  pthread_mutex_lock(&idle_lock);
  h->next = idle;
  idle = h;
  pthread_mutex_unlock(&idle_lock);
}

void oci_mem_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) pthread_mutex_lock(&idle_lock);
  else pthread_mutex_unlock(&idle_lock);
}

const char *oci_mem_kind(void) {
#ifdef OC_JEMALLOC_PRIVATE
  return "private jemalloc";
#else
  return je_present() ? "host jemalloc" : "libc";
#endif
}

#else

static bool je_present(void) { return false; }
static bool je_setup(struct heap *h) { (void)h; return false; }
static void *je_alloc(struct heap *h, size_t bytes) { (void)h; return libc_alloc(bytes); }
static void je_free(struct heap *h, void *p, size_t bytes) { (void)h; (void)bytes; free(p); }
static struct heap *take_idle(void) { return NULL; }
static void put_idle(struct heap *h) { (void)h; }
void oci_mem_fork(enum oci_fork_step step) { (void)step; }
const char *oci_mem_kind(void) { return "libc"; }

#endif

/* ---- the door ---- */

static void *raw_alloc(struct heap *h, size_t bytes) {
  if (bytes >= MAP_FROM) return map_pages(bytes);
  return je_present() ? je_alloc(h, bytes) : libc_alloc(bytes);
}

static void raw_free(struct heap *h, void *p, size_t bytes) {
  if (bytes >= MAP_FROM) munmap(p, bytes);
  else if (je_present()) je_free(h, p, bytes);
  else free(p);
}

static size_t process_bytes;   /* atomic: of the process heap */

static size_t *bytes_of(struct heap *h) { return h ? &h->bytes : &process_bytes; }

void *oci_alloc(struct heap *h, size_t bytes) {
  if (injected(bytes)) return NULL;
  void *p = raw_alloc(h, bytes ? bytes : 1);
  if (p) __atomic_add_fetch(bytes_of(h), bytes, __ATOMIC_RELAXED);
  return p;
}

void oci_free(struct heap *h, void *ptr, size_t bytes) {
  if (!ptr) return;
  raw_free(h, ptr, bytes ? bytes : 1);
  __atomic_sub_fetch(bytes_of(h), bytes, __ATOMIC_RELAXED);
}

char *oci_strdup(struct heap *h, const char *s) {
  size_t n = strlen(s) + 1;
  char *copy = oci_alloc(h, n);
  return copy ? memcpy(copy, s, n) : NULL;
}

void oci_strfree(struct heap *h, char *s) {
  if (s) oci_free(h, s, strlen(s) + 1);
}

struct heap *oci_heap_create(void) {
  if (injected(sizeof(struct heap))) return NULL;
  struct heap *h = take_idle();
  if (h) return h;
  h = raw_alloc(NULL, sizeof *h);
  if (!h) return NULL;
  pthread_mutex_init(&h->lock, NULL);
  h->je = je_present() && je_setup(h);
  return h;
}

void oci_heap_destroy(struct heap *h) {
  if (!h) return;
  if (h->bytes) oci_log(OCI_LOG_ERROR, "a model's heap still has %zu bytes: a bug in liboc", h->bytes);
  h->bytes = 0;
  if (h->je) {
    put_idle(h);
    return;
  }
  pthread_mutex_destroy(&h->lock);
  raw_free(NULL, h, sizeof *h);
}

size_t oci_heap_bytes(const struct heap *h) {
  return __atomic_load_n(h ? &h->bytes : &process_bytes, __ATOMIC_RELAXED);
}
