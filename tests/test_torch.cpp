/* SPDX-License-Identifier: MIT */
/*
 * liboc-torch.so as PyTorch calls it: opened by its path, functions found by name, kept as numbers and called through
 * std::function with PyTorch's own types, from a thread whose runtime has the primary context current. Over the simulated
 * driver only.
 */
#include "config.h"

extern "C" {
#include "tests/fixture.h"
#include "tests/simcuda/simcuda.h"
}

#include <dlfcn.h>

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

const size_t MiB = size_t(1) << 20;

using stream_t = oc_stream;   /* cudaStream_t: a pointer */
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;

/* ---- PyTorch's side ---- */

struct memory {
  std::function<void *(size_t, int, stream_t)> alloc;
  std::function<void(void *, size_t, int, stream_t)> free;
  std::function<void(void *, stream_t)> record_stream;
  std::function<void()> reset;
  std::function<void(int, MempoolId_t, std::function<bool(stream_t)>)> begin;
  std::function<void(int, MempoolId_t)> end, release;
  oc_model *(*model)(int);
  uint64_t (*refused)(void);
  void *library;
};

uint64_t address_of(void *library, const char *name) {
  void *symbol = dlsym(library, name);
  ck_assert_msg(symbol != nullptr, "%s", dlerror());
  return reinterpret_cast<uint64_t>(symbol);
}

/* set_record_stream_fn and the like take a number. */
template <class Fn>
std::function<Fn> from_number(uint64_t number) {
  return std::function<Fn>(reinterpret_cast<Fn *>(number));
}

memory open_memory() {
  const char *build = getenv("top_builddir");
  const std::string path = std::string(build ? build : "..") + "/torch/.libs/liboc-torch.so";
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != nullptr, "%s", dlerror());
  memory m;
  m.library = library;
  m.alloc = from_number<void *(size_t, int, stream_t)>(address_of(library, "oc_torch_alloc"));
  m.free = from_number<void(void *, size_t, int, stream_t)>(address_of(library, "oc_torch_free"));
  m.record_stream = from_number<void(void *, stream_t)>(address_of(library, "oc_torch_record_stream"));
  m.reset = from_number<void()>(address_of(library, "oc_torch_empty_cache"));
  m.begin = from_number<void(int, MempoolId_t, std::function<bool(stream_t)>)>(
      address_of(library, "oc_torch_begin_allocate_to_pool"));
  m.end = from_number<void(int, MempoolId_t)>(address_of(library, "oc_torch_end_allocate_to_pool"));
  m.release = from_number<void(int, MempoolId_t)>(address_of(library, "oc_torch_release_pool"));
  m.model = reinterpret_cast<oc_model *(*)(int)>(address_of(library, "oc_torch_model"));
  m.refused = reinterpret_cast<uint64_t (*)(void)>(address_of(library, "oc_torch_refused_frees"));
  return m;
}

/* ---- the runtime's side ---- */

#define yes(call) ck_assert_int_eq(int(call), 0)

struct runtime {
  const struct cuda_driver *d;
  const struct cuda_more *x;
  const struct simcuda *sim;
  cu_context context;
};

runtime open_runtime(int ordinal) {
  runtime r = {cuda_direct(), cuda_more(), simcuda_find(), nullptr};
  ck_assert_msg(r.d && r.x && r.sim, "no simulated driver: tests/with_simcuda.sh runs this");
  yes(r.d->init(0));
  yes(r.d->primary_retain(&r.context, ordinal));
  yes(r.x->context_set(r.context));
  return r;
}

stream_t new_stream(const runtime &r) {
  cu_stream s;
  yes(r.d->stream_create(&s, CU_STREAM_NONBLOCKING));
  return reinterpret_cast<stream_t>(s);
}

cu_stream driver_stream(stream_t s) { return reinterpret_cast<cu_stream>(s); }
void sync(const runtime &r, stream_t s) { yes(r.d->stream_synchronize(driver_stream(s))); }
void stall(const runtime &r, stream_t s, bool on) { ck_assert(r.sim->simcuda_stall(r.context, s, on)); }
void touch(const runtime &r, void *p, size_t n, stream_t s) {
  yes(r.d->memset_d8(reinterpret_cast<uintptr_t>(p), 1, n, driver_stream(s)));
}

simcuda_stats device(const runtime &r) {
  simcuda_stats s;
  ck_assert(r.sim->simcuda_read_stats(r.context, &s));
  return s;
}

oc_pool_stats figures(const memory &m, int ordinal = 0) {
  oc_pool_stats s = {};
  s.struct_size = sizeof s;
  ck_ok(oc_pool_get_stats(oc_model_pool(m.model(ordinal)), &s));
  ck_ok(oc_pool_check(oc_model_pool(m.model(ordinal))));
  return s;
}

/* Everything that PyTorch freed is free in the pool, and the driver has it back. */
void nothing_left(const memory &m, const runtime &r) {
  oc_pool_stats s = {};
  for (int i = 0; i < 2000; i++) {   /* until idle streams have passed the events */
    m.reset();
    s = figures(m);
    if (!s.live_blocks && !s.retired_bytes && !s.arenas) break;
    fx_msleep(1);
  }
  ck_assert_uint_eq(s.live_blocks, 0);
  ck_assert_uint_eq(s.retired_bytes, 0);
  ck_assert_uint_eq(s.arenas, 0);
  ck_assert_uint_eq(device(r).device_blocks, 0);
  ck_assert_uint_eq(device(r).bad_frees, 0);
  ck_assert_uint_eq(m.refused(), 0);
}

/* Is `wanted` among what a few allocations of that size on that stream get? All are freed again. */
bool is_back(const memory &m, const runtime &r, void *wanted, size_t bytes, stream_t s) {
  std::vector<void *> got;
  bool found = false;
  for (int i = 0; i < 8; i++) {
    got.push_back(m.alloc(bytes, 0, s));
    found |= got.back() == wanted;
  }
  for (void *p : got) m.free(p, bytes, 0, s);
  sync(r, s);
  return found;
}

/* What waits for a stream that has nothing to do is free a moment later. */
bool comes_back(const memory &m, const runtime &r, void *wanted, size_t bytes, stream_t s) {
  for (int i = 0; i < 2000; i++) {
    if (is_back(m, r, wanted, bytes, s)) return true;
    fx_msleep(1);
  }
  return false;
}

bool stays_away(const memory &m, const runtime &r, void *wanted, size_t bytes, stream_t s) {
  for (int i = 0; i < 10; i++) {
    if (is_back(m, r, wanted, bytes, s)) return false;
    fx_msleep(1);
  }
  return true;
}

/* ---- allocating and freeing ---- */

START_TEST(one_pool_a_device) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r);
  ck_assert_ptr_null(m.model(0));
  ck_assert_ptr_null(m.alloc(0, 0, s));
  ck_assert_ptr_null(m.model(0));           /* nothing is opened for nothing */
  m.free(nullptr, 0, 0, s);
  std::vector<void *> all;
  for (size_t n = 1; n <= 4 * MiB; n *= 2) all.push_back(m.alloc(n, 0, s));
  for (size_t i = 0; i < all.size(); i++) {
    ck_assert_uint_eq(reinterpret_cast<uintptr_t>(all[i]) % 256, 0);
    touch(r, all[i], size_t(1) << i, s);
  }
  ck_assert_uint_eq(device(r).device_blocks, 1);   /* one arena for them all */
  ck_assert_uint_eq(figures(m).live_blocks, all.size());
  for (size_t i = 0; i < all.size(); i++) m.free(all[i], size_t(1) << i, 0, s);
  sync(r, s);
  nothing_left(m, r);
}
END_TEST

START_TEST(devices_are_apart) {
  memory m = open_memory();
  simcuda_find()->simcuda_set_devices(2);
  runtime one = open_runtime(1);
  runtime zero = open_runtime(0);
  stream_t s = new_stream(zero);
  void *a = m.alloc(MiB, 0, s);
  ck_assert_ptr_null(m.model(1));
  yes(one.x->context_set(one.context));
  stream_t t = new_stream(one);
  yes(zero.x->context_set(zero.context));   /* any thread may ask for any device */
  void *b = m.alloc(MiB, 1, t);
  ck_assert_ptr_ne(m.model(0), m.model(1));
  ck_assert_uint_eq(device(zero).device_blocks, 1);
  ck_assert_uint_eq(device(one).device_blocks, 1);
  m.free(b, MiB, 1, t);
  m.free(a, MiB, 0, s);
  sync(zero, s);
  yes(one.x->context_set(one.context));
  sync(one, t);
  nothing_left(m, zero);
  ck_assert_uint_eq(device(one).device_blocks, 0);
}
END_TEST

START_TEST(freed_on_the_stream) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r), other = new_stream(r);
  void *p = m.alloc(MiB, 0, s);
  stall(r, s, true);
  touch(r, p, MiB, s);
  m.free(p, MiB, 0, s);                     /* does not wait */
  ck_assert(stays_away(m, r, p, MiB, other));
  stall(r, s, false);
  sync(r, s);
  ck_assert(comes_back(m, r, p, MiB, other));
  nothing_left(m, r);
}
END_TEST

START_TEST(recorded_streams_are_waited_for) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r), other = new_stream(r), third = new_stream(r);
  void *p = m.alloc(MiB, 0, s);
  m.record_stream(p, s);                    /* its own: nothing to note */
  m.record_stream(p, other);
  m.record_stream(p, third);
  m.record_stream(p, other);
  stall(r, other, true);
  stall(r, third, true);
  touch(r, p, MiB, other);
  touch(r, p, MiB, third);
  m.free(p, MiB, 0, s);
  ck_assert(stays_away(m, r, p, MiB, s));
  stall(r, other, false);
  sync(r, other);
  ck_assert(stays_away(m, r, p, MiB, s));
  stall(r, third, false);
  sync(r, third);
  ck_assert(comes_back(m, r, p, MiB, s));
  nothing_left(m, r);
  ck_assert_uint_le(device(r).events, 64);  /* none a free */
}
END_TEST

/* The event counts what was queued when the block was freed, not what comes later. */
START_TEST(what_is_queued_later_keeps_nothing) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r), other = new_stream(r);
  void *p = m.alloc(MiB, 0, s), *q = m.alloc(MiB, 0, s);
  m.record_stream(p, other);
  touch(r, p, MiB, other);
  m.free(p, MiB, 0, s);
  sync(r, other);
  stall(r, other, true);
  touch(r, q, MiB, other);
  ck_assert(comes_back(m, r, p, MiB, s));
  stall(r, other, false);
  sync(r, other);
  m.free(q, MiB, 0, s);
  nothing_left(m, r);
}
END_TEST

/* ---- graphs ---- */

struct graph {
  cu_graph graph;
  cu_graph_exec exec;
};

void begin_capture(const memory &m, const runtime &r, MempoolId_t id, stream_t s) {
  m.begin(0, id, [s](stream_t asked) { return asked == s; });   /* the lambda ends with this line: the library keeps a copy */
  yes(r.x->begin_capture(driver_stream(s), CU_CAPTURE_GLOBAL));
}

graph end_capture(const memory &m, const runtime &r, MempoolId_t id, stream_t s) {
  graph g;
  yes(r.x->end_capture(driver_stream(s), &g.graph));   /* valid: nothing that was called in between broke it */
  m.end(0, id);
  yes(r.x->graph_instantiate(&g.exec, g.graph, 0));
  return g;
}

void drop(const memory &m, const runtime &r, MempoolId_t id, const graph &g) {
  yes(r.x->graph_exec_destroy(g.exec));
  yes(r.x->graph_destroy(g.graph));
  m.release(0, id);
}

START_TEST(a_graph_keeps_what_its_capture_allocated) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r), other = new_stream(r);
  const MempoolId_t id(0, 1);
  void *before = m.alloc(MiB, 0, s);
  begin_capture(m, r, id, s);
  void *a = m.alloc(MiB, 0, s);
  touch(r, a, MiB, s);
  m.free(a, MiB, 0, s);
  ck_assert_ptr_eq(m.alloc(MiB, 0, s), a);         /* round within the pool, in the stream's order */
  void *larger = m.alloc(100 * MiB, 0, s);         /* a new arena, in the middle of a capture */
  touch(r, larger, MiB, s);
  m.free(larger, 100 * MiB, 0, s);
  void *outside = m.alloc(MiB, 0, other);          /* a stream that the filter does not take */
  ck_assert_ptr_ne(outside, a);
  m.free(outside, MiB, 0, other);
  graph g = end_capture(m, r, id, s);
  m.free(a, MiB, 0, s);
  m.free(before, MiB, 0, s);
  ck_assert(stays_away(m, r, a, MiB, s));         /* a replay writes there */
  ck_assert(stays_away(m, r, larger, 100 * MiB, s));
  for (int i = 0; i < 3; i++) yes(r.x->graph_launch(g.exec, driver_stream(s)));
  m.reset();
  ck_assert_uint_eq(figures(m).live_blocks, 2);
  yes(r.x->graph_launch(g.exec, driver_stream(s)));
  drop(m, r, id, g);                               /* while the last replay may run still */
  ck_assert_uint_eq(figures(m).live_blocks, 0);
  ck_assert(comes_back(m, r, a, MiB, s));
  nothing_left(m, r);
}
END_TEST

START_TEST(graphs_share_a_pool) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r);
  const MempoolId_t id(7, 0);
  begin_capture(m, r, id, s);
  void *a = m.alloc(MiB, 0, s);
  m.free(a, MiB, 0, s);
  graph first = end_capture(m, r, id, s);
  begin_capture(m, r, id, s);
  ck_assert_ptr_eq(m.alloc(MiB, 0, s), a);         /* the second one takes what the first one is done with */
  void *kept = m.alloc(MiB, 0, s);
  m.free(a, MiB, 0, s);
  graph second = end_capture(m, r, id, s);
  drop(m, r, id, first);
  ck_assert(stays_away(m, r, a, MiB, s));
  drop(m, r, id, second);
  ck_assert(comes_back(m, r, a, MiB, s));
  ck_assert(stays_away(m, r, kept, MiB, s));      /* a tensor still: it is an ordinary block now */
  m.free(kept, MiB, 0, s);
  sync(r, s);
  ck_assert(comes_back(m, r, kept, MiB, s));
  m.release(0, id);                                /* one too many */
  m.release(0, MempoolId_t(9, 9));
  m.end(0, MempoolId_t(9, 9));
  nothing_left(m, r);
}
END_TEST

/* Blocks of before the capture, freed in it: no event can be recorded on the stream until it ends. */
START_TEST(freed_while_its_stream_captures) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r), other = new_stream(r);
  const MempoolId_t id(0, 2);
  void *a = m.alloc(MiB, 0, s), *b = m.alloc(MiB, 0, other);
  m.record_stream(b, s);
  begin_capture(m, r, id, s);
  m.free(a, MiB, 0, s);
  m.free(b, MiB, 0, other);
  void *p = m.alloc(MiB, 0, other);
  ck_assert_ptr_ne(p, a);
  ck_assert_ptr_ne(p, b);
  graph g = end_capture(m, r, id, s);
  m.free(p, MiB, 0, other);
  sync(r, other);
  ck_assert(comes_back(m, r, a, MiB, other));
  ck_assert(comes_back(m, r, b, MiB, other));
  drop(m, r, id, g);
  nothing_left(m, r);
}
END_TEST

/* One graph's pool goes while another one is captured: the wait for the device is put off, or it would break the capture. */
/* The block is not lost: it goes back once the whole device has passed. Nor is it counted as no block. */
START_TEST(freed_on_a_stream_that_takes_no_event) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  const stream_t per_thread = reinterpret_cast<stream_t>(2);
  const uint64_t refused = m.refused();
  void *a = m.alloc(MiB, 0, per_thread);
  m.free(a, MiB, 0, per_thread);
  ck_assert_uint_eq(m.refused(), refused);
  ck_assert_uint_eq(figures(m).live_blocks, 1);
  m.reset();
  ck_assert_uint_eq(figures(m).live_blocks, 0);
  ck_assert_uint_eq(m.refused(), refused);
  nothing_left(m, r);
}
END_TEST

START_TEST(released_during_another_capture) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r);
  const MempoolId_t one(0, 1), two(0, 2);
  begin_capture(m, r, one, s);
  void *a = m.alloc(MiB, 0, s);
  m.free(a, MiB, 0, s);
  graph g = end_capture(m, r, one, s);
  begin_capture(m, r, two, s);
  drop(m, r, one, g);
  ck_assert_uint_eq(figures(m).live_blocks, 1);
  graph h = end_capture(m, r, two, s);
  ck_assert_uint_eq(figures(m).live_blocks, 0);
  drop(m, r, two, h);
  nothing_left(m, r);
}
END_TEST

/* A pool of another stream's tensors: not reused in the pool, for that stream may use it still. */
START_TEST(recorded_inside_a_capture) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r), other = new_stream(r);
  const MempoolId_t id(0, 3);
  begin_capture(m, r, id, s);
  void *a = m.alloc(MiB, 0, s);
  m.record_stream(a, other);
  m.free(a, MiB, 0, s);
  void *b = m.alloc(MiB, 0, s);
  ck_assert_ptr_ne(b, a);
  m.free(b, MiB, 0, s);
  graph g = end_capture(m, r, id, s);
  drop(m, r, id, g);
  nothing_left(m, r);
}
END_TEST

/* ---- failures ---- */

START_TEST(out_of_memory_is_an_exception_with_words) {
  memory m = open_memory();
  simcuda_options small = {};
  small.device_bytes = 64 * MiB;
  small.managed = SIMCUDA_MANAGED_NO;
  ck_assert(simcuda_find()->simcuda_configure(0, &small));
  runtime r = open_runtime(0);
  stream_t s = new_stream(r);
  void *a = m.alloc(30 * MiB, 0, s);
  std::string words;
  try {
    m.alloc(60 * MiB, 0, s);
  } catch (const std::bad_alloc &e) {
    words = e.what();
  }
  ck_assert_msg(words.find("OC_E_DEVICE_NOMEM") != std::string::npos, "%s", words.c_str());
  ck_assert_msg(words.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos, "%s", words.c_str());
  m.free(a, 30 * MiB, 0, s);
  sync(r, s);
  a = m.alloc(60 * MiB, 0, s);
  m.free(a, 60 * MiB, 0, s);
  sync(r, s);
  nothing_left(m, r);
}
END_TEST

START_TEST(no_device_no_driver) {
  memory m = open_memory();
  std::string words;
  for (int ordinal : {-1, 64, 1000}) {
    try {
      m.alloc(1, ordinal, nullptr);
    } catch (const std::invalid_argument &e) {
      words += e.what();
    }
  }
  ck_assert_str_eq(words.c_str(), "liboc-torch: there is no device -1liboc-torch: there is no device 64"
                                  "liboc-torch: there is no device 1000");
  words.clear();
  try {
    m.alloc(1, 5, nullptr);
  } catch (const std::runtime_error &e) {
    words = e.what();
  }
  ck_assert_msg(words.find("liboc-torch: OC_E_") == 0, "%s", words.c_str());
  ck_assert_ptr_null(m.model(5));
}
END_TEST

START_TEST(strangers_are_refused_and_counted) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  stream_t s = new_stream(r);
  int here;
  m.free(&here, 4, 0, s);                          /* before anything is open */
  m.free(&here, 4, -3, s);
  void *a = m.alloc(MiB, 0, s);
  m.free(static_cast<char *>(a) + 256, MiB, 0, s);
  m.record_stream(&here, s);
  m.free(a, MiB, 0, s);
  m.free(a, MiB, 0, s);
  ck_assert_uint_eq(m.refused(), 4);
  sync(r, s);
  m.reset();
  ck_assert_uint_eq(device(r).device_blocks, 0);
  ck_assert_uint_eq(device(r).bad_frees, 0);
}
END_TEST

/* ---- threads ---- */

void work(const memory &m, const runtime &r, unsigned seed) {
  yes(r.x->context_set(r.context));
  stream_t s = new_stream(r), other = new_stream(r);
  uint64_t state = seed + 1;
  std::vector<std::pair<void *, size_t>> mine;
  for (unsigned n = 0; n < fx_scale(2000); n++) {
    const uint64_t roll = fx_random(&state);
    if (mine.size() < 20 && roll % 3) {
      const size_t bytes = size_t(1) << (roll / 8 % 20);
      mine.push_back({m.alloc(bytes, 0, s), bytes});
      touch(r, mine.back().first, bytes, s);
      if (roll % 5 == 0) m.record_stream(mine.back().first, other);
    } else if (!mine.empty()) {
      const size_t i = roll / 8 % mine.size();
      m.free(mine[i].first, mine[i].second, 0, s);
      mine[i] = mine.back();
      mine.pop_back();
    }
    if (roll % 97 == 0) m.reset();
  }
  for (auto &b : mine) m.free(b.first, b.second, 0, s);
  sync(r, s);
  sync(r, other);
}

START_TEST(many_threads) {
  memory m = open_memory();
  runtime r = open_runtime(0);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; i++) threads.emplace_back([&m, &r, i] { work(m, r, i); });
  for (std::thread &t : threads) t.join();
  nothing_left(m, r);
}
END_TEST

Suite *suite() {
  Suite *s = suite_create("torch");
  TCase *t = tcase_create("torch");
  tcase_add_test(t, one_pool_a_device);
  tcase_add_test(t, devices_are_apart);
  tcase_add_test(t, freed_on_the_stream);
  tcase_add_test(t, recorded_streams_are_waited_for);
  tcase_add_test(t, what_is_queued_later_keeps_nothing);
  tcase_add_test(t, a_graph_keeps_what_its_capture_allocated);
  tcase_add_test(t, graphs_share_a_pool);
  tcase_add_test(t, freed_while_its_stream_captures);
  tcase_add_test(t, freed_on_a_stream_that_takes_no_event);
  tcase_add_test(t, released_during_another_capture);
  tcase_add_test(t, recorded_inside_a_capture);
  tcase_add_test(t, out_of_memory_is_an_exception_with_words);
  tcase_add_test(t, no_device_no_driver);
  tcase_add_test(t, strangers_are_refused_and_counted);
  tcase_add_test(t, many_threads);
  suite_add_tcase(s, t);
  return s;
}

}  // namespace

int main() { return fx_run(suite()); }
