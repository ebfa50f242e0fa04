/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/devmem.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rcu/error.h"

#define MIB2 ((size_t)2 << 20)
#define CHARGE_UNIT ((size_t)512)
/* Addresses asked for before the first is asked for again. Small under ThreadSanitizer, which maps shadow for
   what a program maps, and has room for 1.5 TiB in all. */
#ifdef OC_TSAN
#define WINDOW ((size_t)64 << 30)
#else
#define WINDOW ((size_t)512 << 30)
#endif

struct region {
  struct span span;            /* first; bytes as requested */
  size_t mapped;               /* bytes of the mapping */
  size_t charge;
  enum mem_kind kind;
  struct region *next;         /* in unmappable */
};

static const char *const kind_name[MEM_KINDS] = {"device", "managed", "page-locked host"};

/* ---- the cost model ---- */

static size_t round_up(size_t n, size_t unit) {
  return n > SIZE_MAX - (unit - 1) ? SIZE_MAX : (n + unit - 1) / unit * unit;
}

size_t oci_devmem_cost(const struct mem_options *opt, size_t bytes) {
  size_t rounded = round_up(bytes, CHARGE_UNIT);
  if (!opt->chunks || rounded >= MIB2) return rounded;
  return MIB2 / (MIB2 / rounded);
}

static oc_status charge(struct devmem *m, enum mem_kind kind, size_t bytes, size_t cost) {
  pthread_mutex_lock(&m->lock);
  uint64_t left = m->opt.capacity[kind] - m->used[kind];
  bool fits = cost <= left;
  if (fits) {
    m->used[kind] += cost;
    m->blocks[kind]++;
  }
  pthread_mutex_unlock(&m->lock);
  if (fits) return OC_OK;
  return oci_error(OC_E_DEVICE_NOMEM,
                   "out of %s memory: %zu bytes asked for (%zu by the cost model), %" PRIu64 " of %zu free",
                   kind_name[kind], bytes, cost, left, m->opt.capacity[kind]);
}

static void credit_locked(struct devmem *m, enum mem_kind kind, size_t cost) {
  m->used[kind] -= cost;
  m->blocks[kind]--;
}

/* ---- addresses ---- */

/* Finds a wide gap to place memory in. Not kept: all of it stays the process's too, so places are hints. */
static void find_window(struct devmem *m) {
  for (size_t bytes = WINDOW; bytes >= WINDOW / 64; bytes /= 2) {
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    munmap(p, bytes);
    m->low = m->next = (uint64_t)(uintptr_t)p;
    m->high = m->low + bytes;
    return;
  }
}

/* The next place upward; 0 where there is none. A freed address is not met again before the window is
   through, so that use after free faults instead of hitting the next allocation. */
static uint64_t claim_place(struct devmem *m, size_t bytes, size_t align) {
  pthread_mutex_lock(&m->lock);
  uint64_t at = round_up(m->next, align);
  if (at > m->high || m->high - at < bytes) at = round_up(m->low, align);
  bool fits = m->high - at >= bytes;   /* without a window low, next and high are 0, and nothing fits */
  if (fits) m->next = at + bytes;
  pthread_mutex_unlock(&m->lock);
  return fits ? at : 0;
}

static uint64_t map_at(uint64_t place, size_t bytes, int flags) {
  void *p = mmap((void *)(uintptr_t)place, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return p == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)p;
}

static void unmap(uint64_t base, uint64_t bytes) {
  if (bytes) munmap((void *)(uintptr_t)base, bytes);
}

/* Maps more than wanted and gives back what sticks out. */
static uint64_t map_trimmed(size_t bytes, size_t align) {
  uint64_t p = map_at(0, bytes + align, 0);
  if (!p) return 0;
  uint64_t at = round_up(p, align);
  unmap(p, at - p);
  unmap(at + bytes, p + align - at);
  return at;
}

static uint64_t map_new(struct devmem *m, size_t bytes, size_t align) {
  uint64_t p = map_at(claim_place(m, bytes, align), bytes, 0);
  if (!p || p % align == 0) return p;
  unmap(p, bytes);
  return map_trimmed(bytes, align);
}

/* Takes the newest remembered address of that mapping size; 0 if there is none. */
static uint64_t take_freed(struct devmem *m, size_t bytes) {
  uint64_t base = 0;
  pthread_mutex_lock(&m->lock);
  for (size_t i = m->freed_count; i-- > 0 && !base;) {
    if (m->freed[i].bytes != bytes) continue;
    base = m->freed[i].base;
    memmove(&m->freed[i], &m->freed[i + 1], (--m->freed_count - i) * sizeof m->freed[0]);
  }
  pthread_mutex_unlock(&m->lock);
  return base;
}

static void remember_freed_locked(struct devmem *m, uint64_t base, size_t bytes) {
  if (m->freed_count == MEM_FREED) memmove(&m->freed[0], &m->freed[1], --m->freed_count * sizeof m->freed[0]);
  m->freed[m->freed_count].base = base;
  m->freed[m->freed_count++].bytes = bytes;
}

static uint64_t map_recycled(struct devmem *m, size_t bytes) {
  uint64_t base = take_freed(m, bytes);
  if (!base) return 0;
  uint64_t p = map_at(base, bytes, MAP_FIXED_NOREPLACE);
  if (p == base) return p;
  unmap(p, p ? bytes : 0);   /* kernels before 4.17 take the flag for a hint */
  return 0;
}

static uint64_t map_region(struct devmem *m, size_t mapped) {
  uint64_t p = m->opt.recycle ? map_recycled(m, mapped) : 0;
  if (!p) p = map_new(m, mapped, mapped >= MIB2 ? MIB2 : m->page);
  if (p && m->opt.poison) memset((void *)(uintptr_t)p, 0xA5, mapped);
  return p;
}

/* ---- regions ---- */

void oci_devmem_init(struct devmem *m, struct heap *heap, const struct mem_options *opt) {
  *m = (struct devmem){.heap = heap, .opt = *opt};
  m->page = (size_t)sysconf(_SC_PAGESIZE);
  find_window(m);
  pthread_mutex_init(&m->lock, NULL);
}

static void drop_region(struct devmem *m, struct region *r) {
  unmap(r->span.base, r->mapped);
  oci_free(m->heap, r, sizeof *r);
}

void oci_devmem_fini(struct devmem *m) {
  for (struct span *r; (r = oci_devspans_pop(&m->live));) drop_region(m, (struct region *)r);
  for (struct region *r; (r = m->unmappable);) {
    m->unmappable = r->next;
    drop_region(m, r);
  }
  pthread_mutex_destroy(&m->lock);
}

static void publish(struct devmem *m, struct region *r) {
  pthread_mutex_lock(&m->lock);
  oci_devspans_add(&m->live, &r->span);
  pthread_mutex_unlock(&m->lock);
}

static oc_status map_charged(struct devmem *m, struct region *r, size_t bytes) {
  r->mapped = round_up(bytes, m->page);
  r->span.bytes = bytes;
  errno = ENOMEM;
  r->span.base = r->mapped > SIZE_MAX - MIB2 ? 0 : map_region(m, r->mapped);
  if (r->span.base) return OC_OK;
  pthread_mutex_lock(&m->lock);
  credit_locked(m, r->kind, r->charge);
  pthread_mutex_unlock(&m->lock);
  return oci_error(OC_E_DEVICE_NOMEM, "no %zu bytes of address space for %s memory: %s", bytes,
                   kind_name[r->kind], strerror(errno));
}

oc_status oci_devmem_alloc(struct devmem *m, enum mem_kind kind, size_t bytes, uint64_t *out) {
  if (bytes == 0) return oci_error(OC_E_INVALID, "0 bytes of %s memory asked for", kind_name[kind]);
  struct region *r = oci_alloc(m->heap, sizeof *r);
  if (!r) return oci_error(OC_E_HOST_NOMEM, "no host memory for the record of %zu bytes of %s memory", bytes,
                           kind_name[kind]);
  r->kind = kind;
  r->charge = kind == MEM_HOST ? 0 : oci_devmem_cost(&m->opt, bytes);
  oc_status st = charge(m, kind, bytes, r->charge);
  if (st == OC_OK) st = map_charged(m, r, bytes);
  if (st != OC_OK) {
    oci_free(m->heap, r, sizeof *r);
    return st;
  }
  publish(m, r);
  *out = r->span.base;
  return OC_OK;
}

/* ---- free ---- */

/* Gives the lock back. */
static oc_status bad_free_unlock(struct devmem *m, uint64_t ptr, const struct region *r) {
  struct span in = r ? r->span : (struct span){0};
  enum mem_kind kind = r ? r->kind : MEM_DEVICE;
  m->bad_frees++;
  pthread_mutex_unlock(&m->lock);
  if (!r) return oci_error(OC_E_INVALID, "free of 0x%" PRIx64 ": no live allocation starts there", ptr);
  if (in.base != ptr)
    return oci_error(OC_E_INVALID,
                     "free of 0x%" PRIx64 ": it lies %" PRIu64 " bytes inside the %s allocation 0x%" PRIx64,
                     ptr, ptr - in.base, kind_name[kind], in.base);
  return oci_error(OC_E_INVALID, "free of 0x%" PRIx64 ": it is %s memory, which has a call of its own", ptr,
                   kind_name[kind]);
}

/* False where the kernel can't: past vm.max_map_count a mapping can't be split. Then the pages go, the
   address range stays ours until the device closes. */
static bool give_back_pages(const struct region *r) {
  void *p = (void *)(uintptr_t)r->span.base;
  if (munmap(p, r->mapped) == 0) return true;
  madvise(p, r->mapped, MADV_DONTNEED);
  return false;
}

oc_status oci_devmem_free(struct devmem *m, uint64_t ptr, bool host) {
  pthread_mutex_lock(&m->lock);
  struct region *r = (struct region *)oci_devspans_find(&m->live, ptr);
  if (!r || r->span.base != ptr || (r->kind == MEM_HOST) != host) return bad_free_unlock(m, ptr, r);
  oci_devspans_remove(&m->live, &r->span);
  pthread_mutex_unlock(&m->lock);

  /* The address is nobody's now: neither live, nor remembered, nor unmapped yet. */
  bool unmapped = give_back_pages(r);
  pthread_mutex_lock(&m->lock);
  credit_locked(m, r->kind, r->charge);
  if (unmapped && m->opt.recycle) remember_freed_locked(m, ptr, r->mapped);
  if (!unmapped) {
    r->next = m->unmappable;
    m->unmappable = r;
  }
  pthread_mutex_unlock(&m->lock);
  if (unmapped) oci_free(m->heap, r, sizeof *r);
  return OC_OK;
}

/* ---- questions ---- */

oc_status oci_devmem_check(struct devmem *m, const char *what, uint64_t ptr, size_t n) {
  pthread_mutex_lock(&m->lock);
  const struct span *r = oci_devspans_find(&m->live, ptr);
  struct span in = r ? *r : (struct span){0};
  pthread_mutex_unlock(&m->lock);
  if (!r)
    return oci_error(OC_E_INVALID, "%s 0x%" PRIx64 " is in no live allocation of the device", what, ptr);
  if (n <= in.bytes - (ptr - in.base)) return OC_OK;
  return oci_error(OC_E_INVALID,
                   "%s 0x%" PRIx64 " + %zu bytes ends past its allocation (0x%" PRIx64 ", %" PRIu64 " bytes)",
                   what, ptr, n, in.base, in.bytes);
}

void oci_devmem_usage(struct devmem *m, enum mem_kind kind, uint64_t *used, uint64_t *blocks) {
  pthread_mutex_lock(&m->lock);
  *used = m->used[kind];
  *blocks = m->blocks[kind];
  pthread_mutex_unlock(&m->lock);
}

uint64_t oci_devmem_bad_frees(struct devmem *m) {
  pthread_mutex_lock(&m->lock);
  uint64_t n = m->bad_frees;
  pthread_mutex_unlock(&m->lock);
  return n;
}
