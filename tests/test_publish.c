/* SPDX-License-Identifier: MIT */
/*
 * The page of figures that other processes read: found by /proc/PID/fd alone, true without anybody's call, and no hit stores
 * where another thread does (G1); sealed; not the child's (G32).
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/child.h"
#include "tests/world.h"

/* ---- a reader, as another process would be one ---- */

/* The library's own descriptor; -1: there is none. */
static int page_fd(void) {
  DIR *dir = opendir("/proc/self/fd");
  struct dirent *e;
  int found = -1;
  ck_assert_ptr_nonnull(dir);
  while ((e = readdir(dir))) {
    char path[64], link[128];
    snprintf(path, sizeof path, "/proc/self/fd/%.20s", e->d_name);
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n < 0) continue;
    link[n] = 0;
    if (strncmp(link, "/memfd:" OC_STATS_NAME, strlen("/memfd:" OC_STATS_NAME)) != 0) continue;
    if ((fcntl(atoi(e->d_name), F_GETFL) & O_ACCMODE) == O_RDONLY) continue;   /* a reader's, of this test */
    ck_assert_int_eq(found, -1);   /* one a process */
    found = atoi(e->d_name);
  }
  closedir(dir);
  return found;
}

static int find_page(void) {
  char path[64];
  int own = page_fd();
  if (own < 0) return -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", own);
  int found = open(path, O_RDONLY | O_CLOEXEC);
  ck_assert_int_ge(found, 0);
  return found;
}

struct reader {
  int fd;
  oc_stats_page head;
  const char *at;
};

static struct reader look(void) {
  struct reader r = {.fd = find_page()};
  ck_assert_msg(r.fd >= 0, "no page");
  ck_assert_int_eq(pread(r.fd, &r.head, sizeof r.head, 0), sizeof r.head);
  ck_assert_str_eq(r.head.magic, OC_STATS_MAGIC);
  ck_assert_uint_eq(r.head.version, OC_STATS_VERSION);
  ck_assert_uint_eq(r.head.page_struct_bytes, sizeof(oc_stats_page));
  ck_assert_uint_eq(r.head.pid, (uint64_t)getpid());
  ck_assert_str_eq(r.head.library, oc_version());
  r.at = mmap(NULL, r.head.bytes, PROT_READ, MAP_SHARED, r.fd, 0);
  ck_assert_ptr_ne(r.at, MAP_FAILED);
  return r;
}

static void look_away(struct reader *r) {
  munmap((void *)(uintptr_t)r->at, r->head.bytes);
  close(r->fd);
}

static const oc_stats_page *head_of(const struct reader *r) { return (const oc_stats_page *)(const void *)r->at; }

static uint64_t value(const uint64_t *cell) { return __atomic_load_n(cell, __ATOMIC_RELAXED); }

static const oc_stats_model *model_at(const struct reader *r, uint32_t i) {
  return (const oc_stats_model *)(const void *)(r->at + r->head.models_at + (size_t)i * r->head.model_bytes);
}

static const oc_stats_thread *thread_at(const struct reader *r, uint32_t i) {
  return (const oc_stats_thread *)(const void *)(r->at + r->head.threads_at + (size_t)i * r->head.thread_bytes);
}

/* NULL: not shown. */
static const oc_stats_model *find_model(const struct reader *r, const oc_model *m) {
  for (uint32_t i = 0; i < r->head.model_slots; i++)
    if (value(&model_at(r, i)->generation) == oc_model_generation(m)) return model_at(r, i);
  return NULL;
}

static const oc_stats_model *shown(const struct reader *r, const oc_model *m) {
  const oc_stats_model *s = find_model(r, m);
  ck_assert_msg(s != NULL, "model %llu is not shown", (unsigned long long)oc_model_generation(m));
  ck_assert_uint_eq(value(&s->seq) % 2, 0);
  return s;
}

struct hits { uint64_t kernel, scratch, derived, gate; };

static struct hits hits_of(const struct reader *r) {
  struct hits sum = {0};
  for (uint32_t i = 0; i < r->head.thread_slots; i++) {
    const oc_stats_thread *t = thread_at(r, i);
    sum.kernel += value(&t->kernel_hits);
    sum.scratch += value(&t->scratch_hits);
    sum.derived += value(&t->derived_hits);
    sum.gate += value(&t->gate_hits);
  }
  return sum;
}

static unsigned owners(const struct reader *r) {
  unsigned n = 0;
  for (uint32_t i = 0; i < r->head.thread_slots; i++) n += value(&thread_at(r, i)->owner) != 0;
  return n;
}

/* ---- a model at work ---- */

static oc_kernel_key add_key = OC_KERNEL_KEY("test", "add");
static oc_tag_key tag = OC_TAG_KEY("publish"), gate = OC_TAG_KEY("publish gate");

static oc_status cook(oc_build *b, void *arg, uint64_t *out) {
  (void)arg;
  return oc_build_alloc(b, 1000, 0, out);
}

static void warm(struct world *w) {
  oc_kernel k;
  oc_devptr p;
  uint64_t v;
  fx_load(w->m, "test");
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(w->m), &add_key, &k));
  ck_ok(oc_opcache_scratch_k(oc_model_opcache(w->m), &tag, 1000, &p));
  ck_ok(oc_derived_get_or_build_ptr(w->d, OC_BF16, 0x7f0000, cook, NULL, &v));
  ck_assert(oc_opcache_once_k(oc_model_opcache(w->m), &gate));
}

/* n of each kind, in a guard. */
static void hit(struct world *w, unsigned n) {
  oc_kernel k;
  oc_devptr p;
  uint64_t v;
  oc_guard_enter();
  for (unsigned i = 0; i < n; i++) {
    ck_ok(oc_opcache_kernel_k(oc_model_opcache(w->m), &add_key, &k));
    ck_ok(oc_opcache_scratch_k(oc_model_opcache(w->m), &tag, 1000, &p));
    ck_ok(oc_derived_get_ptr(w->d, OC_BF16, 0x7f0000, &v));
    ck_assert(!oc_opcache_once_k(oc_model_opcache(w->m), &gate));
  }
  oc_guard_leave();
}

static void same_as_stats(const oc_stats_model *s, struct world *w) {
  oc_model_stats m = {.struct_size = sizeof m};
  oc_pool_stats p = figures(w);
  ck_ok(oc_model_get_stats(w->m, &m));
  ck_assert_uint_eq(value(&s->arenas), p.arenas);
  ck_assert_uint_eq(value(&s->arena_bytes), p.arena_bytes);
  ck_assert_uint_eq(value(&s->managed_bytes), p.managed_bytes);
  ck_assert_uint_eq(value(&s->live_blocks), p.live_blocks);
  ck_assert_uint_eq(value(&s->live_bytes), p.live_bytes);
  ck_assert_uint_eq(value(&s->peak_live_bytes), p.peak_live_bytes);
  ck_assert_uint_eq(value(&s->retired_bytes), p.retired_bytes);
  ck_assert_uint_eq(value(&s->driver_allocs), p.driver_allocs);
  ck_assert_uint_eq(value(&s->driver_frees), p.driver_frees);
  ck_assert_uint_eq(value(&s->fell_back), p.fell_back);
  ck_assert_uint_eq(value(&s->kernel_misses), m.kernel_misses);
  ck_assert_uint_eq(value(&s->scratch_misses), m.scratch_misses);
  ck_assert_uint_eq(value(&s->derived_misses), m.derived_misses);
  ck_assert_uint_eq(value(&s->builds), m.builds);
  ck_assert_uint_eq(value(&s->build_ns), m.build_ns);
  ck_assert_uint_eq(value(&s->scratch_growths), m.scratch_growths);
  ck_assert_uint_eq(value(&s->guard_waits), m.guard_waits);
  ck_assert_int_eq(memcmp(s->driver, m.driver, sizeof m.driver), 0);
}

/* ---- tests ---- */

START_TEST(figures_are_true_without_a_call) {
  struct world w = world_open();
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  const oc_stats_model *s = shown(&r, w.m);
  ck_assert_str_eq(s->backend, oc_backend_table(w.b)->name);
  same_as_stats(s, &w);
  ck_assert_uint_eq(value(&s->live_bytes), 0);
  oc_devptr p = block_of(&w, 4096);
  ck_assert_uint_eq(value(&s->live_bytes), 4096);
  ck_assert_uint_eq(value(&s->live_blocks), 1);
  ck_assert_uint_eq(value(&s->arenas), 1);
  warm(&w);
  ck_assert_uint_eq(value(&s->builds), 1);
  ck_assert_uint_eq(value(&s->kernel_misses), 1);
  same_as_stats(s, &w);
  ck_ok(oc_pool_free(w.p, p));
  ck_ok(oc_pool_note_external(w.p, 0x10000, 777, "torch"));
  ck_assert_uint_eq(value(&s->external_bytes), 777);
  ck_assert_uint_eq(value(&s->external_blocks), 1);
  ck_ok(oc_pool_forget_external(w.p, 0x10000));
  ck_assert_uint_eq(value(&s->external_bytes), 0);
  same_as_stats(s, &w);
  ck_ok(oc_model_teardown(w.m, NULL));
  ck_assert_uint_eq(value(&s->state), 3);
  ck_assert_uint_eq(value(&s->arena_bytes), 0);
  ck_assert_uint_eq(value(&s->live_bytes), 0);
  ck_assert_uint_eq(value(&s->driver_frees), 1);
  ck_ok(oc_model_destroy(w.m));
  ck_assert_uint_eq(value(&s->generation), 0);
  look_away(&r);
  fx_close(w.b);
}
END_TEST

/* A model whose figures were there before the page was. */
START_TEST(what_was_before_is_shown_too) {
  struct world w = world_open();
  warm(&w);
  (void)block_of(&w, 100);
  ck_ok(oc_pool_note_external(w.p, 0x10000, 5, "torch"));
  hit(&w, 3);
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  same_as_stats(shown(&r, w.m), &w);
  ck_assert_uint_eq(value(&shown(&r, w.m)->external_bytes), 5);
  ck_assert_uint_eq(hits_of(&r).kernel, 0);   /* hits: from the page on */
  look_away(&r);
  ck_ok(oc_pool_forget_external(w.p, 0x10000));
  world_close(&w);
}
END_TEST

struct crowd { struct world w; struct reader r; };

static void serve(void *arg, unsigned i) {
  struct crowd *c = arg;
  hit(&c->w, 1000 + i);
}

START_TEST(g1_hits_count_in_a_threads_own_slot) {
  struct crowd c = {.w = world_open()};
  warm(&c.w);
  hit(&c.w, 1);                  /* this thread has been in a guard before the page is there */
  ck_ok(oc_stats_publish(NULL));
  c.r = look();
  ck_assert_uint_eq(owners(&c.r), 1);
  hit(&c.w, 7);
  struct hits h = hits_of(&c.r);
  ck_assert_uint_eq(h.kernel, 7);
  ck_assert_uint_eq(h.scratch, 7);
  ck_assert_uint_eq(h.derived, 7);
  ck_assert_uint_eq(h.gate, 7);
  fx_threads(4, serve, &c);
  h = hits_of(&c.r);
  ck_assert_uint_eq(h.kernel, 7 + 4006);   /* what ended threads have counted stays */
  ck_assert_uint_eq(h.derived, 7 + 4006);
  ck_assert_uint_eq(owners(&c.r), 1);
  ck_assert_uint_eq(value(&head_of(&c.r)->threads_left_out), 0);
  ck_assert_uint_eq(c.r.head.thread_bytes % 64, 0);
  ck_assert_uint_eq(c.r.head.threads_at % 64, 0);
  char text[16384];
  ck_assert_int_gt(oc_metrics_prometheus(text, sizeof text), 0);
  ck_assert_ptr_nonnull(strstr(text, "\nliboc_hits_total{what=\"kernel\"} 4013\n"));
  ck_assert_ptr_nonnull(strstr(text, "\nliboc_hits_total{what=\"gate\"} 4013\n"));
  ck_ok(oc_stats_unpublish());
  ck_assert_int_gt(oc_metrics_prometheus(text, sizeof text), 0);
  ck_assert_ptr_null(strstr(text, "liboc_hits_total"));
  look_away(&c.r);
  world_close(&c.w);
}
END_TEST

/* By every function that can hit; what is no hit, or is asked of a model that is gone, counts nothing. */
START_TEST(each_kind_of_hit_counts_once) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_opcache *c = oc_model_opcache(w.m);
  oc_kernel k;
  oc_devptr p;
  uint64_t v[2];
  warm(&w);
  ck_ok(oc_model_use_stream(w.m, s));
  ck_ok(oc_opcache_scratch_on(c, "on", s, 10, &p));
  ck_ok(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, 0x7f0000, (uint64_t[2]){block_of(&w, 10), 0}, NULL));
  (void)oc_opcache_first_shape(c, "shape", 1, 2, 3);
  oc_guard_enter();
  oc_guard_leave();
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  ck_ok(oc_opcache_kernel(c, "test", "add", &k));
  ck_ok(oc_opcache_scratch(c, "publish", 10, &p));
  ck_ok(oc_opcache_scratch_on(c, "on", s, 10, &p));
  ck_ok(oc_derived_settle(w.d));
  ck_ok(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, 0x7f0000, v));
  ck_ok(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, 0x7f0000, s, v));
  ck_ok(oc_derived_get_ptr_on(w.d, OC_BF16, 0x7f0000, s, v));
  ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, 0x7f0000, cook, NULL, v));
  ck_assert(!oc_opcache_once(c, "publish gate"));
  ck_assert(!oc_opcache_first_shape(c, "shape", 1, 2, 3));
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, 0x7f1000, v), OC_MISS);
  ck_status(oc_opcache_kernel(c, "test", "nothing", &k), OC_E_NOT_FOUND);
  ck_assert(oc_opcache_once(c, "a new one"));
  struct hits h = hits_of(&r);
  ck_assert_uint_eq(h.kernel, 1);
  ck_assert_uint_eq(h.scratch, 2);
  ck_assert_uint_eq(h.derived, 4);
  ck_assert_uint_eq(h.gate, 2);
  ck_ok(oc_model_forget_stream(w.m, s));
  ck_ok(oc_model_teardown(w.m, NULL));
  ck_status(oc_opcache_kernel(c, "test", "add", &k), OC_E_RELEASED);
  ck_assert_uint_eq(hits_of(&r).kernel, 1);
  look_away(&r);
  fx_stream_free(w.b, s);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

START_TEST(slots_that_are_out_are_counted) {
  oc_publish_options opt = {.struct_size = sizeof opt, .models = 2, .threads = 1};
  struct crowd c = {.w = world_open()};
  warm(&c.w);
  hit(&c.w, 1);
  ck_ok(oc_stats_publish(&opt));
  c.r = look();
  oc_model *second = fx_model(c.w.b), *third = fx_model(c.w.b);
  ck_assert_ptr_nonnull(find_model(&c.r, second));
  ck_assert_ptr_null(find_model(&c.r, third));
  ck_assert_uint_eq(value(&head_of(&c.r)->models_left_out), 1);
  fx_threads(2, serve, &c);
  ck_assert_uint_eq(value(&head_of(&c.r)->threads_left_out), 2);
  ck_assert_uint_eq(hits_of(&c.r).kernel, 0);
  /* A slot is used again, and says so. */
  const oc_stats_model *slot = shown(&c.r, second);
  uint64_t seq = value(&slot->seq);
  ck_ok(oc_model_destroy(second));
  oc_model *fourth = fx_model_opt(c.w.b, (oc_model_options){.name = "the fourth"});
  ck_assert_ptr_eq(shown(&c.r, fourth), slot);
  ck_assert_str_eq(slot->name, "the fourth");
  ck_assert_uint_gt(value(&slot->seq), seq);
  ck_ok(oc_model_destroy(third));
  ck_ok(oc_model_destroy(fourth));
  look_away(&c.r);
  world_close(&c.w);
}
END_TEST

START_TEST(the_file_is_sealed) {
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", r.fd);
  int fd = open(link, O_RDWR);
  if (fd >= 0) {   /* Linux before 5.1 has no seal against this */
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(fd, (off_t)r.head.bytes + 4096), -1);
    if (fcntl(fd, F_GET_SEALS) & 0x10) ck_assert_int_eq((int)write(fd, "x", 1), -1);
    close(fd);
  }
  int seals = fcntl(r.fd, F_GET_SEALS);
  ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  look_away(&r);
}
END_TEST

START_TEST(taken_back_and_published_again) {
  struct world w = world_open();
  warm(&w);
  ck_status(oc_stats_unpublish(), OC_E_NOT_FOUND);
  ck_ok(oc_stats_publish(NULL));
  ck_status(oc_stats_publish(NULL), OC_E_BUSY);
  struct reader old = look();
  hit(&w, 5);
  ck_assert_uint_eq(hits_of(&old).kernel, 5);
  ck_ok(oc_stats_unpublish());
  ck_assert_int_eq(find_page(), -1);
  hit(&w, 5);
  (void)block_of(&w, 4096);
  ck_assert_uint_eq(hits_of(&old).kernel, 5);   /* it stands still */
  ck_ok(oc_stats_publish(&(oc_publish_options){.struct_size = sizeof(oc_publish_options), .models = 4096, .threads = 16384}));
  struct reader r = look();
  ck_assert_uint_eq(r.head.model_slots, 4096);
  ck_assert_uint_eq(r.head.thread_slots, 16384);
  hit(&w, 2);
  ck_assert_uint_eq(hits_of(&r).kernel, 2);
  same_as_stats(shown(&r, w.m), &w);
  look_away(&r);
  look_away(&old);
  ck_ok(oc_stats_unpublish());
  world_close(&w);
}
END_TEST

/* G17: the latch moves before the page is there, or after. */
/* Where the library writes the page: of mappings of it the only one that may be written to. */
static char *own_mapping(void) {
  char line[512], perms[8];
  uintptr_t found = 0;
  unsigned long from;
  FILE *f = fopen("/proc/self/maps", "r");
  ck_assert_ptr_nonnull(f);
  while (fgets(line, sizeof line, f))
    if (strstr(line, "/memfd:" OC_STATS_NAME) && sscanf(line, "%lx-%*x %7s", &from, perms) == 2 && perms[1] == 'w') found = from;
  fclose(f);
  ck_assert(found != 0);
  return (char *)found;
}

/* A thread that was stopped with the address of a count in its hands writes there after all, a page later: nobody sees it. */
START_TEST(what_comes_late_is_in_no_later_page) {
  struct world w = world_open();
  ck_ok(oc_stats_publish(NULL));
  struct reader old = look();
  size_t count = (size_t)((const char *)&shown(&old, w.m)->kernel_misses - old.at);
  size_t hits = (size_t)((const char *)thread_at(&old, 0) - old.at) + offsetof(oc_stats_thread, kernel_hits);
  char *before = own_mapping();
  ck_ok(oc_stats_unpublish());
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  uint64_t misses = value(&shown(&r, w.m)->kernel_misses);
  memset(before + count, 1, 8);
  memset(before + hits, 1, 8);
  ck_assert_uint_eq(value(&shown(&r, w.m)->kernel_misses), misses);
  ck_assert_uint_eq(hits_of(&r).kernel, 0);
  ck_assert_uint_eq(hits_of(&old).kernel, 0);
  look_away(&r);
  look_away(&old);
  ck_ok(oc_stats_unpublish());
  world_close(&w);
}
END_TEST

START_TEST(the_latch_is_shown) {
  struct world w = world_open();
  oc_model *before = fx_model(w.b);
  oc_opcache_note_alloc_fallback(oc_model_opcache(before));
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  ck_assert_uint_eq(value(&shown(&r, before)->fell_back), 1);
  ck_assert_uint_eq(value(&shown(&r, w.m)->fell_back), 0);
  oc_opcache_note_alloc_fallback(oc_model_opcache(w.m));
  ck_assert_uint_eq(value(&shown(&r, w.m)->fell_back), 1);
  same_as_stats(shown(&r, w.m), &w);
  look_away(&r);
  ck_ok(oc_model_destroy(before));
  world_close(&w);
}
END_TEST

/* Taken back while a model has no slot: it goes on, and is shown where there is room. */
START_TEST(a_model_left_out_is_shown_next_time) {
  oc_publish_options one = {.struct_size = sizeof one, .models = 1};
  struct world w = world_open();
  oc_model *second = fx_model(w.b);
  ck_ok(oc_stats_publish(&one));
  ck_ok(oc_stats_unpublish());
  (void)block_of(&w, 4096);
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  ck_assert_uint_eq(value(&head_of(&r)->models_left_out), 0);
  ck_assert_ptr_nonnull(find_model(&r, second));
  same_as_stats(shown(&r, w.m), &w);
  look_away(&r);
  ck_ok(oc_model_destroy(second));
  world_close(&w);
}
END_TEST

/* An engine that closes descriptors it does not know: what has the number now is not the library's to close. */
START_TEST(a_descriptor_closed_under_the_page) {
  for (int reused = 0; reused < 2; reused++) {
    ck_ok(oc_stats_publish(NULL));
    int own = page_fd();
    close(own);
    if (reused) ck_assert_int_eq(open("/dev/null", O_RDONLY), own);   /* the lowest that is free */
    ck_ok(oc_stats_unpublish());
    ck_assert_int_eq(fcntl(own, F_GETFD) != -1, reused);
    if (reused) close(own);
    ck_assert_int_eq(page_fd(), -1);
  }
}
END_TEST

/* ---- what the system refuses ---- */

static void refused_by_limit(unsigned resource, rlim_t limit, const char *what, int error) {
  struct rlimit was, now;
  ck_status(oc_stats_unpublish(), OC_E_NOT_FOUND);   /* the thread has room for its errors' words now */
  ck_assert_int_eq(getrlimit(resource, &was), 0);
  now = (struct rlimit){.rlim_cur = limit, .rlim_max = was.rlim_max};
  ck_assert_int_eq(setrlimit(resource, &now), 0);
  oc_status st = oc_stats_publish(NULL);
  ck_assert_int_eq(setrlimit(resource, &was), 0);
  ck_assert_int_eq(st, OC_E_IO);
  ck_words(what);
  ck_words(strerror(error));
  ck_assert_int_eq(page_fd(), -1);
}

/* First of all tests, in a process that has published nothing yet. After each refusal it works. */
START_TEST(g33_out_of_descriptors_or_memory) {
  int free_fd = dup(0);
  close(free_fd);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  refused_by_limit(RLIMIT_AS, 4096, "the page", ENOMEM);
#endif
  refused_by_limit(RLIMIT_NOFILE, (rlim_t)free_fd, "memfd_create", EMFILE);
  signal(SIGXFSZ, SIG_IGN);
  refused_by_limit(RLIMIT_FSIZE, 4096, "memory for the page", EFBIG);
  signal(SIGXFSZ, SIG_DFL);
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  look_away(&r);
  ck_ok(oc_stats_unpublish());
}
END_TEST

/* Published and taken back while threads hit: none writes to what is not there. */
struct restless { struct world w; int stop; };

static void hit_or_publish(void *arg, unsigned i) {
  struct restless *r = arg;
  if (i) {
    while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) hit(&r->w, 10);
    return;
  }
  for (unsigned n = 0; n < fx_scale(200); n++) {
    ck_ok(oc_stats_publish(NULL));
    ck_ok(oc_stats_unpublish());
  }
  __atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE);
}

START_TEST(published_and_taken_back_under_hits) {
  struct restless r = {.w = world_open()};
  warm(&r.w);
  fx_threads(3, hit_or_publish, &r);
  world_close(&r.w);
}
END_TEST

/* What many threads add at once all arrives. */
static void churn(void *arg, unsigned i) {
  struct crowd *c = arg;
  (void)i;
  for (unsigned n = 0; n < fx_scale(2000); n++) {
    oc_devptr p;
    ck_ok(oc_pool_alloc(c->w.p, 512, 0, &p));
    ck_ok(oc_pool_free(c->w.p, p));
    uint64_t v;
    ck_ok(oc_derived_get_or_build_ptr(c->w.d, OC_BF16, 0x100000 + ((uint64_t)i << 32) + n, cook, NULL, &v));
  }
}

static void churn_or_publish(void *arg, unsigned i) {
  if (i) churn(arg, i);
  else ck_ok(oc_stats_publish(NULL));
}

START_TEST(no_addition_is_lost) {
  struct crowd c = {.w = world_open()};
  fx_threads(3, churn_or_publish, &c);
  c.r = look();
  ck_assert_uint_eq(value(&shown(&c.r, c.w.m)->builds), 2 * fx_scale(2000));
  same_as_stats(shown(&c.r, c.w.m), &c.w);
  look_away(&c.r);
  world_close(&c.w);
}
END_TEST

/* ---- fork (G32) ---- */

static void check_child(struct world *w, struct reader *parents) {
  struct hits before = hits_of(parents);
  oc_guard_enter();
  oc_guard_leave();
  oc_kernel k;
  if (oc_opcache_kernel_k(oc_model_opcache(w->m), &add_key, &k) != OC_E_FORKED) _exit(2);
  for (int fd = 3; fd < 64; fd++) {   /* the reader's own stays; the page's link is gone */
    char path[64], link[128] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd != parents->fd && readlink(path, link, sizeof link - 1) > 0 && strstr(link, OC_STATS_NAME)) _exit(3);
  }
  if (oc_stats_unpublish() != OC_E_NOT_FOUND) _exit(4);
  oc_backend *b;
  oc_model *m;
  oc_devptr p;
  if (oc_stats_publish(NULL) || oc_backend_open_host(NULL, &b) || oc_model_create(b, NULL, &m)) _exit(5);
  bool once = oc_opcache_once(oc_model_opcache(m), "a") && !oc_opcache_once(oc_model_opcache(m), "a");
  if (!once || oc_pool_alloc(oc_model_pool(m), 100, 0, &p)) _exit(6);
  if (hits_of(parents).kernel != before.kernel || hits_of(parents).gate != before.gate) _exit(7);
  if (find_model(parents, m)) _exit(8);
  child_end(0);
}

START_TEST(g32_a_child_writes_nothing_to_its_parents_page) {
  struct world w = world_open();
  warm(&w);
  hit(&w, 1);
  ck_ok(oc_stats_publish(NULL));
  struct reader r = look();
  hit(&w, 3);
  oc_stats_model was = *shown(&r, w.m);
  pid_t pid = fork();
  if (pid == 0) check_child(&w, &r);
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x", (unsigned)status);
  ck_assert_uint_eq(hits_of(&r).kernel, 3);
  ck_assert_int_eq(memcmp(&was, shown(&r, w.m), sizeof was), 0);
  hit(&w, 1);
  ck_assert_uint_eq(hits_of(&r).kernel, 4);
  look_away(&r);
  world_close(&w);
}
END_TEST

START_TEST(g33_nonsense_is_refused) {
  oc_publish_options opt = {0};
  ck_status(oc_stats_publish(&opt), OC_E_INVALID);
  ck_words("struct_size 0");
  opt = (oc_publish_options){.struct_size = sizeof opt, .flags = 1};
  ck_status(oc_stats_publish(&opt), OC_E_INVALID);
  opt = (oc_publish_options){.struct_size = sizeof opt, .models = 4097};
  ck_status(oc_stats_publish(&opt), OC_E_INVALID);
  ck_words("4097 models");
  opt = (oc_publish_options){.struct_size = sizeof opt, .threads = 16385};
  ck_status(oc_stats_publish(&opt), OC_E_INVALID);
  ck_assert_int_eq(find_page(), -1);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("publish");
  TCase *page = tcase_create("page");
  tcase_add_test(page, g33_out_of_descriptors_or_memory);
  tcase_add_test(page, figures_are_true_without_a_call);
  tcase_add_test(page, what_was_before_is_shown_too);
  tcase_add_test(page, g1_hits_count_in_a_threads_own_slot);
  tcase_add_test(page, each_kind_of_hit_counts_once);
  tcase_add_test(page, slots_that_are_out_are_counted);
  tcase_add_test(page, the_file_is_sealed);
  tcase_add_test(page, taken_back_and_published_again);
  tcase_add_test(page, what_comes_late_is_in_no_later_page);
  tcase_add_test(page, the_latch_is_shown);
  tcase_add_test(page, a_model_left_out_is_shown_next_time);
  tcase_add_test(page, a_descriptor_closed_under_the_page);
  tcase_add_test(page, published_and_taken_back_under_hits);
  tcase_add_test(page, no_addition_is_lost);
  tcase_add_test(page, g32_a_child_writes_nothing_to_its_parents_page);
  tcase_add_test(page, g33_nonsense_is_refused);
  suite_add_tcase(s, page);
  return s;
}

int main(void) { return fx_run(suite()); }
