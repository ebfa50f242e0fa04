/* SPDX-License-Identifier: MIT */
/*
 * Kernel handles (G1, G3, G4, G5, G19, G27, G28, G33, S5, S8, S10): lookups by name and by key, what runs once, what is
 * never memoized, and the modules behind them. On a table of the test's own, whose every answer is known.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rcu/dense.h"
#include "rcu/mem.h"
#include "rcu/names.h"
#include "tests/collide.h"
#include "tests/fixture.h"

/*
 * driver: counts calls by entry; a function or image called "slow" does not answer until it is let go.
 *         Handles: of `kernel` the name's hash; of a module's function that hash and the module's number.
 */
struct driver {
  unsigned kernel, load, unload, function, other;   /* calls; atomic */
  unsigned inside, let_go;                          /* atomic: in a slow call; slow calls may end */
  oc_status next;                                   /* atomic: what kernel and function answer, once, if not OK */
  uint64_t modules;
};

static struct driver drv;
static oc_backend *b;
static oc_model *m;
static oc_opcache *c;
static bool no_memory;
static unsigned allocations;

static unsigned count(const unsigned *n) {
  return __atomic_load_n(n, __ATOMIC_RELAXED);
}

static void called(unsigned *n) {
  __atomic_add_fetch(n, 1, __ATOMIC_RELAXED);
}

static unsigned driver_calls(void) {
  return count(&drv.kernel) + count(&drv.load) + count(&drv.unload) + count(&drv.function) + count(&drv.other);
}

static void slowly(const char *what) {
  if (strncmp(what, "slow", 4) != 0) return;
  called(&drv.inside);
  while (!__atomic_load_n(&drv.let_go, __ATOMIC_ACQUIRE)) fx_msleep(1);
}

static oc_kernel handle(const char *module, const char *func) {
  return (oc_kernel)(uintptr_t)(oci_lookup(module, func).hash | 1);
}

static oc_status answer(const char *func, oc_kernel k, oc_kernel *out) {
  slowly(func);
  oc_status st = __atomic_exchange_n(&drv.next, OC_OK, __ATOMIC_RELAXED);
  if (st) return st;
  if (strcmp(func, "missing") == 0) return OC_E_NOT_FOUND;
  *out = strcmp(func, "null") == 0 ? NULL : k;   /* S5 */
  return OC_OK;
}

static oc_status d_alloc(void *self, size_t n, oc_devptr *out) {
  (void)self;
  (void)n;
  (void)out;
  called(&drv.other);
  return OC_E_DEVICE_NOMEM;
}
static oc_status d_free(void *self, oc_devptr p) {
  (void)self;
  (void)p;
  called(&drv.other);
  return OC_OK;
}
static oc_status d_kernel(void *self, const char *module, const char *func, oc_kernel *out) {
  ck_assert_ptr_eq(self, &drv);
  called(&drv.kernel);
  return answer(func, handle(module, func), out);
}
static oc_status d_load(void *self, const void *image, size_t n, oc_module *out) {
  (void)self;
  (void)n;
  called(&drv.load);
  slowly(image);
  if (strcmp(image, "slow bad") == 0 || strcmp(image, "bad") == 0) return OC_E_BACKEND;
  *out = strcmp(image, "null") == 0 ? NULL : (oc_module)(uintptr_t)__atomic_add_fetch(&drv.modules, 16, __ATOMIC_RELAXED);
  return OC_OK;
}
static oc_status d_unload(void *self, oc_module mod) {
  (void)self;
  (void)mod;
  called(&drv.unload);
  return OC_OK;
}
static oc_kernel function_of(oc_module mod, const char *func) {
  return (oc_kernel)((uintptr_t)handle("", func) ^ (uintptr_t)mod);
}
static oc_status d_function(void *self, oc_module mod, const char *func, oc_kernel *out) {
  (void)self;
  called(&drv.function);
  return answer(func, function_of(mod, func), out);
}

static const oc_backend_ops all = {
  .struct_size = sizeof all, .name = "drv", .alloc = d_alloc, .free = d_free, .kernel = d_kernel,
  .module_load = d_load, .module_unload = d_unload, .module_function = d_function,
};

static bool fault(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  called(&allocations);
  return __atomic_load_n(&no_memory, __ATOMIC_RELAXED);
}

static void open_on(const oc_backend_ops *ops) {
  drv = (struct driver){.modules = 1024};
  no_memory = false;
  ck_ok(oc_backend_create(ops, &drv, &b));
  m = fx_model(b);
  c = oc_model_opcache(m);
}

static void open_all(void) { open_on(&all); }

static void close_all(void) {
  no_memory = false;
  oci_mem_set_fault(NULL, NULL);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
}

static oc_kernel kernel(const char *module, const char *func) {
  oc_kernel k = NULL;
  ck_ok(oc_opcache_kernel(c, module, func, &k));
  return k;
}

static oc_kernel kernel_k(oc_kernel_key *key) {
  oc_kernel k = NULL;
  ck_ok(oc_opcache_kernel_k(c, key, &k));
  return k;
}

/* ---- hits and misses ---- */

START_TEST(g1_a_hit_asks_nobody_and_allocates_nothing) {
  static oc_kernel_key key = OC_KERNEL_KEY("gemm", "f");
  ck_assert_ptr_eq(kernel("gemm", "f"), handle("gemm", "f"));
  ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "f"));
  ck_assert_uint_eq(driver_calls(), 1);   /* by either way, once */
  oci_mem_set_fault(fault, NULL);
  allocations = 0;
  no_memory = true;
  for (int i = 0; i < 1000; i++) {
    ck_assert_ptr_eq(kernel("gemm", "f"), handle("gemm", "f"));
    ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "f"));
  }
  ck_assert_uint_eq(allocations, 0);
  ck_assert_uint_eq(driver_calls(), 1);
  ck_assert_uint_eq(oc_opcache_kernels(c), 1);
}
END_TEST

START_TEST(g33_nonsense_is_refused) {
  oc_kernel k = (oc_kernel)&drv;
  oc_kernel_key key = OC_KERNEL_KEY("m", "f"), no_module = OC_KERNEL_KEY(NULL, "f"), no_func = OC_KERNEL_KEY("m", NULL);
  oc_kernel_key *keys[] = {&key, NULL, &key};
  ck_status(oc_opcache_kernel(NULL, "m", "f", &k), OC_E_INVALID);
  ck_status(oc_opcache_kernel(c, NULL, "f", &k), OC_E_INVALID);
  ck_status(oc_opcache_kernel(c, "m", NULL, &k), OC_E_INVALID);
  ck_status(oc_opcache_kernel(c, "m", "f", NULL), OC_E_INVALID);
  ck_words("oc_opcache_kernel");
  ck_status(oc_opcache_kernel_k(NULL, &key, &k), OC_E_INVALID);
  ck_status(oc_opcache_kernel_k(c, NULL, &k), OC_E_INVALID);
  ck_status(oc_opcache_kernel_k(c, &key, NULL), OC_E_INVALID);
  ck_status(oc_opcache_kernel_k(c, &no_module, &k), OC_E_INVALID);
  ck_status(oc_opcache_kernel_k(c, &no_func, &k), OC_E_INVALID);
  ck_words("oc_opcache_kernel_k");
  ck_status(oc_opcache_warm(NULL, keys, 1), OC_E_INVALID);
  ck_status(oc_opcache_warm(c, NULL, 1), OC_E_INVALID);
  ck_assert_uint_eq(driver_calls(), 0);
  ck_status(oc_opcache_warm(c, keys, 3), OC_E_INVALID);   /* the first stays */
  ck_assert_uint_eq(oc_opcache_kernels(c), 1);
  ck_assert_uint_eq(oc_opcache_kernels(NULL), 0);
  ck_assert_ptr_null(oc_opcache_label(NULL));
  ck_assert_int_lt(oc_opcache_describe(NULL, NULL, 0), 0);
  ck_assert_int_lt(oc_opcache_describe(c, NULL, 5), 0);
  ck_assert_ptr_eq(k, (oc_kernel)&drv);   /* outputs are written on success only */
}
END_TEST

START_TEST(g33_empty_and_long_names_are_names) {
  static char long_name[100001];
  memset(long_name, 'n', sizeof long_name - 1);
  ck_assert_ptr_eq(kernel("", ""), handle("", ""));
  ck_assert_ptr_eq(kernel(long_name, "f"), handle(long_name, "f"));
  long_name[50000] = 'm';
  ck_assert_ptr_eq(kernel(long_name, "f"), handle(long_name, "f"));
  ck_assert_uint_eq(drv.kernel, 3);
  ck_assert_ptr_eq(kernel(long_name, "f"), handle(long_name, "f"));
  ck_assert_uint_eq(drv.kernel, 3);
}
END_TEST

START_TEST(describe_is_as_snprintf) {
  char all_of_it[256], some[10];
  kernel("gemm", "f");
  kernel("gemm", "g");
  int n = oc_opcache_describe(c, all_of_it, sizeof all_of_it);
  ck_assert_int_eq(n, (int)strlen(all_of_it));
  ck_assert_msg(strstr(all_of_it, "kernels: 2") != NULL, "%s", all_of_it);
  ck_assert_ptr_null(strchr(all_of_it, '\n'));
  ck_assert_int_eq(oc_opcache_describe(c, NULL, 0), n);
  ck_assert_int_eq(oc_opcache_describe(c, some, sizeof some), n);
  ck_assert_int_eq(strncmp(some, all_of_it, 9), 0);
  ck_assert_int_eq(some[9], 0);
  ck_assert_str_eq(oc_opcache_label(c), "op scratch");
}
END_TEST

/* ---- G4: content ---- */

START_TEST(g4_a_reused_buffer_is_another_key) {
  char module[32] = "gemm", func[32] = "f16";
  ck_assert_ptr_eq(kernel(module, func), handle("gemm", "f16"));
  strcpy(func, "f32");
  ck_assert_ptr_eq(kernel(module, func), handle("gemm", "f32"));
  strcpy(module, "norm");
  ck_assert_ptr_eq(kernel(module, func), handle("norm", "f32"));
  strcpy(module, "gemm");
  strcpy(func, "f16");
  ck_assert_ptr_eq(kernel(module, func), handle("gemm", "f16"));
  ck_assert_uint_eq(oc_opcache_kernels(c), 3);
  ck_assert_uint_eq(drv.kernel, 3);
}
END_TEST

START_TEST(g4_names_whose_hashes_collide_have_their_own_handles) {
  struct twins twins = make_twins(_i);
  const char *base = twins.a, *other = twins.b;
  oc_kernel_key first = OC_KERNEL_KEY(base, TWINS_FUNC), again = first, second = OC_KERNEL_KEY(other, TWINS_FUNC);
  oc_kernel k;
  /* the handles of this driver are hashes, so tell them apart by what is there */
  ck_ok(oc_opcache_kernel_k(c, &first, &k));
  ck_ok(oc_capture_enter(m, NULL));   /* where keys that are new here are looked up by their names */
  ck_ok(oc_opcache_kernel_k(c, &again, &k));
  ck_status(oc_opcache_kernel_k(c, &second, &k), OC_E_CAPTURING);
  oc_capture_leave(m);
  __atomic_store_n(&drv.next, OC_E_NOT_FOUND, __ATOMIC_RELAXED);
  ck_status(oc_opcache_kernel(c, other, TWINS_FUNC, &k), OC_E_NOT_FOUND);
  __atomic_store_n(&drv.next, OC_E_NOT_FOUND, __ATOMIC_RELAXED);
  ck_status(oc_opcache_kernel_k(c, &second, &k), OC_E_NOT_FOUND);
  ck_ok(oc_opcache_kernel_k(c, &second, &k));
  ck_assert_uint_ne(first.id, second.id);
  ck_assert_uint_eq(oc_opcache_kernels(c), 2);
  ck_assert_uint_eq(drv.kernel, 4);
  ck_ok(oc_opcache_kernel(c, base, TWINS_FUNC, &k));
  ck_ok(oc_opcache_kernel(c, other, TWINS_FUNC, &k));
  ck_assert_uint_eq(drv.kernel, 4);
}
END_TEST

START_TEST(g4_keys_are_interned_by_content) {
  char module[16] = "gemm", func[16] = "interned";
  oc_kernel_key a = OC_KERNEL_KEY(module, func), same = OC_KERNEL_KEY("gemm", "interned"), other = OC_KERNEL_KEY("gemmi", "nterned");
  kernel_k(&a);
  strcpy(module, "xxxx");   /* its strings were copied: others of this content still meet it */
  ck_assert_ptr_eq(kernel_k(&same), handle("gemm", "interned"));
  ck_assert_uint_ne(a.id, 0);
  ck_assert_uint_eq(same.id, a.id);
  kernel_k(&other);
  ck_assert_uint_ne(other.id, a.id);
  ck_assert_uint_eq(drv.kernel, 2);
}
END_TEST

START_TEST(g4_an_id_out_of_bounds_is_looked_up_by_content) {
  static const uint32_t ids[] = {DENSE_IDS + 1, UINT32_MAX, UINT32_MAX - 1, 1u << 31};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
    oc_kernel_key key = OC_KERNEL_KEY("gemm", "f");
    key.id = ids[i];
    ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "f"));
  }
  ck_assert_uint_eq(drv.kernel, 1);
}
END_TEST

/* What an init is given, and notes. */
struct setting {
  unsigned runs;         /* atomic */
  oc_status result;
  oc_kernel kernel;
  oc_backend *backend;
};

static oc_status note_run(oc_backend *backend, oc_kernel k, void *arg) {
  struct setting *s = arg;
  called(&s->runs);
  s->kernel = k;
  s->backend = backend;
  return s->result;
}

/* Too long for the short way to hash and compare: to the last byte. */
START_TEST(g4_keys_of_long_names) {
  char module[300], func[300];
  memset(module, 'm', sizeof module);
  memset(func, 'f', sizeof func);
  module[299] = func[299] = 0;
  oc_kernel_key key = OC_KERNEL_KEY(module, func);
  ck_assert_ptr_eq(kernel_k(&key), handle(module, func));
  func[298] = 'g';
  oc_kernel_key other = OC_KERNEL_KEY(module, func);
  ck_assert_ptr_eq(kernel_k(&other), handle(module, func));
  ck_assert_uint_ne(other.id, key.id);
  ck_assert_uint_eq(drv.kernel, 2);
}
END_TEST

#define MANY 70000

START_TEST(g4_past_65536_ids_keys_take_the_string_path) {
  static char names[MANY][12];
  static oc_kernel_key keys[MANY];
  unsigned by_text = 0;
  for (unsigned i = 0; i < MANY; i++) {
    snprintf(names[i], sizeof names[i], "many%u", i);
    keys[i] = (oc_kernel_key)OC_KERNEL_KEY("m", names[i]);
    ck_assert_ptr_eq(kernel_k(&keys[i]), handle("m", names[i]));
    by_text += keys[i].id > DENSE_IDS;
  }
  ck_assert_uint_eq(by_text, MANY - DENSE_IDS);
  ck_assert_uint_eq(drv.kernel, MANY);
  ck_assert_uint_eq(oc_opcache_kernels(c), MANY);
  oci_mem_set_fault(fault, NULL);
  allocations = 0;
  ck_ok(oc_capture_enter(m, NULL));
  unsigned in_enter = allocations;
  for (unsigned i = 0; i < MANY; i++) ck_assert_ptr_eq(kernel_k(&keys[i]), handle("m", names[i]));   /* hits, all of them */
  ck_assert_uint_eq(allocations, in_enter);
  oc_capture_leave(m);
  ck_assert_uint_eq(drv.kernel, MANY);

  /* another model has its own handles */
  oc_model *other = fx_model(b);
  oc_kernel k;
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(other), &keys[MANY - 1], &k));
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(other), &keys[0], &k));
  ck_assert_uint_eq(drv.kernel, MANY + 2);
  ck_ok(oc_model_destroy(other));

  /* a name that has an id, and an init that has none: run once, and hits after that */
  struct setting s = {0};
  oc_kernel_key late[] = {OC_KERNEL_KEY_INIT("m", names[0], note_run, &s), OC_KERNEL_KEY_INIT("m", names[0], note_run, &s)};
  for (int i = 0; i < 4; i++) ck_assert_ptr_eq(kernel_k(&late[i % 2]), handle("m", names[0]));
  ck_assert_uint_eq(s.runs, 1);
  ck_assert(late[0].id > DENSE_IDS && late[1].id > DENSE_IDS);
  ck_assert_uint_eq(drv.kernel, MANY + 2);
}
END_TEST

START_TEST(s1_a_handle_is_its_models_own) {
  static oc_kernel_key key = OC_KERNEL_KEY("gemm", "f");
  oc_kernel k = NULL;
  ck_ok(oc_model_load_module(m, "gemm", "one", 3));
  oc_kernel first = kernel_k(&key);
  oc_model *other = fx_model(b);
  ck_ok(oc_model_load_module(other, "gemm", "two", 3));
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(other), &key, &k));
  ck_assert_ptr_ne(k, first);
  ck_ok(oc_model_destroy(m));
  m = fx_model(b);
  c = oc_model_opcache(m);
  ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "f"));   /* no module there: the backend's own */
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(other), &key, &first));
  ck_assert_ptr_eq(first, k);
  ck_ok(oc_model_destroy(other));
}
END_TEST

/* ---- G5: failures ---- */

START_TEST(g5_a_failed_lookup_is_not_memoized) {
  static oc_kernel_key key = OC_KERNEL_KEY("gemm", "failing");
  static const oc_status fails[] = {OC_E_NOT_FOUND, OC_E_BACKEND, OC_E_DEVICE_LOST, OC_E_DEVICE_NOMEM};
  oc_kernel k = (oc_kernel)&drv;
  for (unsigned i = 0; i < 4; i++) {
    drv.next = fails[i];
    ck_status(oc_opcache_kernel(c, "gemm", "failing", &k), fails[i]);
    ck_words("gemm::failing");
    ck_words("drv");
    drv.next = fails[i];
    ck_status(oc_opcache_kernel_k(c, &key, &k), fails[i]);
    ck_assert_uint_eq(drv.kernel, 2 * i + 2);
  }
  drv.next = OC_EXISTS;   /* no answer of a lookup */
  ck_status(oc_opcache_kernel(c, "gemm", "failing", &k), OC_E_BACKEND);
  ck_assert_ptr_eq(k, (oc_kernel)&drv);
  ck_assert_uint_eq(oc_opcache_kernels(c), 0);
  ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "failing"));
  ck_assert_uint_eq(oc_opcache_kernels(c), 1);
}
END_TEST

START_TEST(s5_success_and_a_null_handle_is_not_found) {
  oc_kernel k;
  for (unsigned i = 1; i <= 3; i++) {
    ck_status(oc_opcache_kernel(c, "gemm", "null", &k), OC_E_NOT_FOUND);
    ck_words("gemm::null");
    ck_words("null handle");
    ck_assert_uint_eq(drv.kernel, i);
  }
  ck_ok(oc_model_load_module(m, "gemm", "image", 5));
  ck_status(oc_opcache_kernel(c, "gemm", "null", &k), OC_E_NOT_FOUND);
  ck_assert_uint_eq(drv.function, 1);
  ck_assert_uint_eq(oc_opcache_kernels(c), 0);
}
END_TEST

/* ---- init ---- */

static oc_status another_init(oc_backend *backend, oc_kernel k, void *arg) { return note_run(backend, k, arg); }

START_TEST(init_runs_once_a_model) {
  struct setting s = {0};
  oc_kernel_key key = OC_KERNEL_KEY_INIT("gemm", "smem", note_run, &s), same = OC_KERNEL_KEY_INIT("gemm", "smem", note_run, &s);
  oc_kernel k;
  for (int i = 0; i < 3; i++) {
    ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "smem"));
    ck_assert_ptr_eq(kernel_k(&same), handle("gemm", "smem"));
    ck_assert_ptr_eq(kernel("gemm", "smem"), handle("gemm", "smem"));
  }
  ck_assert_uint_eq(s.runs, 1);
  ck_assert_ptr_eq(s.kernel, handle("gemm", "smem"));
  ck_assert_ptr_eq(s.backend, b);
  oc_model *other = fx_model(b);
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(other), &key, &k));
  ck_assert_uint_eq(s.runs, 2);
  ck_ok(oc_model_destroy(other));
}
END_TEST

START_TEST(a_failed_init_is_the_lookups_and_nothing_is_memoized) {
  struct setting s = {.result = OC_E_UNSUPPORTED};
  oc_kernel_key key = OC_KERNEL_KEY_INIT("gemm", "failinit", note_run, &s);
  oc_kernel k = NULL;
  for (unsigned i = 1; i <= 3; i++) {
    ck_status(oc_opcache_kernel_k(c, &key, &k), OC_E_UNSUPPORTED);
    ck_words("init of kernel gemm::failinit");
    ck_assert_uint_eq(s.runs, i);
    ck_assert_uint_eq(drv.kernel, i);
    ck_assert_uint_eq(oc_opcache_kernels(c), 0);
  }
  s.result = OC_MISS;   /* neither success nor a failure */
  ck_status(oc_opcache_kernel_k(c, &key, &k), OC_E_BACKEND);
  ck_assert_ptr_null(k);
  ck_status(oc_opcache_warm(c, (oc_kernel_key *[]){&key}, 1), OC_E_BACKEND);
  s.result = OC_OK;
  ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "failinit"));
  ck_assert_uint_eq(s.runs, 6);
  ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "failinit"));
  ck_assert_uint_eq(s.runs, 6);
}
END_TEST

START_TEST(init_runs_on_a_handle_memoized_without_one) {
  struct setting s = {.result = OC_E_BACKEND};
  oc_kernel_key plain = OC_KERNEL_KEY("gemm", "late"), key = OC_KERNEL_KEY_INIT("gemm", "late", note_run, &s);
  oc_kernel k;
  kernel_k(&plain);
  ck_status(oc_opcache_kernel_k(c, &key, &k), OC_E_BACKEND);
  ck_assert_ptr_eq(kernel_k(&plain), handle("gemm", "late"));   /* what was memoized stays */
  ck_assert_ptr_eq(kernel("gemm", "late"), handle("gemm", "late"));
  s.result = OC_OK;
  ck_assert_ptr_eq(kernel_k(&key), handle("gemm", "late"));
  ck_assert_uint_eq(s.runs, 2);
  ck_assert_uint_eq(drv.kernel, 1);   /* the driver is not asked again */
  ck_assert_uint_eq(oc_opcache_kernels(c), 1);
}
END_TEST

START_TEST(a_second_different_init_is_invalid) {
  struct setting s = {0};
  oc_kernel_key key = OC_KERNEL_KEY_INIT("gemm", "twoinits", note_run, &s), rival = OC_KERNEL_KEY_INIT("gemm", "twoinits", another_init, &s);
  oc_kernel k;
  kernel_k(&key);
  for (int i = 0; i < 2; i++) {
    ck_status(oc_opcache_kernel_k(c, &rival, &k), OC_E_INVALID);
    ck_words("gemm::twoinits");
    ck_words("another init");
  }
  ck_assert_uint_eq(s.runs, 1);
  ck_assert_uint_eq(drv.kernel, 1);
  kernel_k(&key);
  /* a model that has run the rival's first refuses the other */
  oc_model *other = fx_model(b);
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(other), &rival, &k));
  ck_status(oc_opcache_kernel_k(oc_model_opcache(other), &key, &k), OC_E_INVALID);
  ck_ok(oc_model_destroy(other));
}
END_TEST

/* A key whose argument lies on a stack must not use an id up each time it is made. */
START_TEST(keys_that_differ_in_inits_argument_share_an_id) {
  struct setting s = {0}, t = {0};
  oc_kernel_key a = OC_KERNEL_KEY_INIT("gemm", "args", note_run, &s), a2 = OC_KERNEL_KEY_INIT("gemm", "args", note_run, &t);
  kernel_k(&a);
  kernel_k(&a2);
  ck_assert_uint_eq(a.id, a2.id);
  ck_assert_uint_eq(s.runs + t.runs, 1);
}
END_TEST

static oc_status init_asks(oc_backend *backend, oc_kernel k, void *arg) {
  (void)backend;
  (void)k;
  oc_kernel got;
  return oc_opcache_kernel(c, "gemm", arg, &got);
}

START_TEST(an_init_that_asks_for_its_own_kernel_is_reentrant) {
  oc_kernel_key self = OC_KERNEL_KEY_INIT("gemm", "itself", init_asks, "itself"), other = OC_KERNEL_KEY_INIT("gemm", "one", init_asks, "two");
  oc_kernel k;
  ck_status(oc_opcache_kernel_k(c, &self, &k), OC_E_REENTRANT);
  ck_assert_ptr_eq(kernel_k(&other), handle("gemm", "one"));
  ck_assert_uint_eq(oc_opcache_kernels(c), 2);
}
END_TEST

static unsigned init_may_end;   /* atomic */

static oc_status slow_init(oc_backend *backend, oc_kernel k, void *arg) {
  (void)backend;
  (void)k;
  called(arg);
  while (!count(&init_may_end)) fx_msleep(1);
  called(arg);
  return OC_OK;
}

struct seen {
  oc_kernel_key *key;
  unsigned *init_steps, got;   /* atomic */
  bool early;
};

static void look_while_init(void *arg, unsigned i) {
  struct seen *s = arg;
  oc_kernel k = NULL;
  if (i == 0) {
    while (count(s->init_steps) < 1) fx_msleep(1);
    fx_msleep(20);
    if (count(&s->got)) s->early = true;
    called(&init_may_end);
    return;
  }
  if (i > 1) while (!count(s->init_steps)) fx_msleep(1);
  oc_status st = i % 2 ? oc_opcache_kernel_k(c, s->key, &k) : oc_opcache_kernel(c, "gemm", "initslow", &k);
  if (st == OC_OK && k == handle("gemm", "initslow") && count(s->init_steps) == 2) called(&s->got);
}

START_TEST(init_runs_before_any_thread_gets_the_kernel) {
  unsigned steps = 0;
  oc_kernel_key key = OC_KERNEL_KEY_INIT("gemm", "initslow", slow_init, &steps);
  struct seen s = {.key = &key, .init_steps = &steps};
  fx_threads(9, look_while_init, &s);
  ck_assert(!s.early);
  ck_assert_uint_eq(s.got, 8);
  ck_assert_uint_eq(steps, 2);
  ck_assert_uint_eq(drv.kernel, 1);
}
END_TEST

/* ---- many threads ---- */

static void first_lookup(void *arg, unsigned i) {
  static oc_kernel_key shared = OC_KERNEL_KEY("gemm", "slow at first");
  oc_kernel_key own = OC_KERNEL_KEY("gemm", "slow at first");
  oc_kernel k = NULL;
  if (i == 0) {
    while (!count(&drv.inside)) fx_msleep(1);
    fx_msleep(20);
    __atomic_store_n(&drv.let_go, 1, __ATOMIC_RELEASE);
    return;
  }
  oc_status st = i % 3 == 0   ? oc_opcache_kernel(c, "gemm", "slow at first", &k)
                 : i % 3 == 1 ? oc_opcache_kernel_k(c, &shared, &k)
                              : oc_opcache_kernel_k(c, &own, &k);
  if (st == OC_OK && k == handle("gemm", "slow at first")) called(arg);
}

START_TEST(first_lookups_at_once_ask_the_driver_once) {
  unsigned right = 0;
  fx_threads(25, first_lookup, &right);
  ck_assert_uint_eq(right, 24);
  ck_assert_uint_eq(drv.kernel, 1);
  ck_assert_uint_eq(oc_opcache_kernels(c), 1);
}
END_TEST

static void one_is_slow(void *arg, unsigned i) {
  oc_kernel k = NULL;
  if (i == 1) {
    if (oc_opcache_kernel(c, "gemm", "slow one", &k) == OC_OK) called(arg);
    return;
  }
  while (!count(&drv.inside)) fx_msleep(1);
  char name[16];
  unsigned wrong = 0;
  for (int n = 0; n < 200; n++) {
    snprintf(name, sizeof name, "f%d", n);
    wrong += oc_opcache_kernel(c, "gemm", name, &k) != OC_OK || k != handle("gemm", name);   /* misses of others */
    wrong += oc_opcache_kernel(c, "gemm", "warm", &k) != OC_OK;
    wrong += oc_model_load_module(m, name, "image", 5) != OC_OK;
  }
  if (!wrong && !count(&drv.let_go)) called(arg);
  __atomic_store_n(&drv.let_go, 1, __ATOMIC_RELEASE);
}

START_TEST(g19_while_the_driver_is_busy_all_others_go_on) {
  unsigned right = 0;
  kernel("gemm", "warm");
  fx_threads(2, one_is_slow, &right);   /* and ends at all */
  ck_assert_uint_eq(right, 2);
}
END_TEST

static void churn(void *arg, unsigned i) {
  char name[16];
  oc_kernel k;
  uint64_t seed = i;
  for (unsigned n = 0; n < 3000; n++) {
    snprintf(name, sizeof name, "f%u", (unsigned)(fx_random(&seed) % 500));
    oc_kernel_key key = OC_KERNEL_KEY("m", name);
    oc_status st = n % 2 ? oc_opcache_kernel(c, "m", name, &k) : oc_opcache_kernel_k(c, &key, &k);
    if (st != OC_OK || k != handle("m", name)) called(arg);
  }
}

START_TEST(lookups_from_all_sides_resolve_each_kernel_once) {
  unsigned wrong = 0;
  fx_threads(8, churn, &wrong);
  ck_assert_uint_eq(wrong, 0);
  ck_assert_uint_eq(drv.kernel, oc_opcache_kernels(c));
  ck_assert_uint_le(drv.kernel, 500);
}
END_TEST

/* ---- warm ---- */

START_TEST(warm_resolves_all_and_stops_at_the_first_failure) {
  static oc_kernel_key a = OC_KERNEL_KEY("w", "a"), d = OC_KERNEL_KEY("w", "b"), bad = OC_KERNEL_KEY("w", "missing"), e = OC_KERNEL_KEY("w", "c");
  oc_kernel_key *keys[] = {&a, &d, &bad, &e};
  ck_ok(oc_opcache_warm(c, NULL, 0));
  ck_ok(oc_opcache_warm(c, keys, 0));
  ck_status(oc_opcache_warm(c, keys, 4), OC_E_NOT_FOUND);
  ck_words("w::missing");
  ck_assert_uint_eq(oc_opcache_kernels(c), 2);
  ck_assert_uint_eq(drv.kernel, 3);
  keys[2] = &e;
  ck_ok(oc_opcache_warm(c, keys, 4));
  ck_ok(oc_opcache_warm(c, keys, 4));
  ck_assert_uint_eq(drv.kernel, 4);
  ck_assert_uint_eq(oc_opcache_kernels(c), 3);
}
END_TEST

/* ---- captures, guards, teardown ---- */

START_TEST(g28_in_a_capture_a_miss_reaches_no_driver_and_a_hit_works) {
  struct setting s = {0};
  static oc_kernel_key warm = OC_KERNEL_KEY("cap", "warm"), cold = OC_KERNEL_KEY("cap", "cold"), fresh = OC_KERNEL_KEY("cap", "by text");
  oc_kernel_key init = OC_KERNEL_KEY_INIT("cap", "warm", note_run, &s);
  oc_kernel_key *keys[] = {&warm, &cold};
  oc_kernel k;
  kernel_k(&warm);
  kernel("cap", "by text");
  ck_ok(oc_capture_enter(m, NULL));
  unsigned before = driver_calls();
  ck_status(oc_opcache_kernel(c, "cap", "cold", &k), OC_E_CAPTURING);
  ck_words("cap::cold");
  ck_status(oc_opcache_kernel_k(c, &cold, &k), OC_E_CAPTURING);
  ck_status(oc_opcache_warm(c, keys, 2), OC_E_CAPTURING);
  ck_status(oc_opcache_kernel_k(c, &init, &k), OC_E_CAPTURING);   /* its init would run */
  ck_status(oc_model_load_module(m, "cap", "image", 5), OC_E_CAPTURING);
  ck_assert_ptr_eq(kernel_k(&warm), handle("cap", "warm"));
  ck_assert_ptr_eq(kernel("cap", "warm"), handle("cap", "warm"));
  ck_assert_ptr_eq(kernel_k(&fresh), handle("cap", "by text"));   /* memoized by its name; this key is new */
  ck_ok(oc_opcache_warm(c, keys, 1));
  ck_assert_uint_eq(driver_calls(), before);
  ck_assert_uint_eq(s.runs, 0);
  ck_ok(oc_model_adopt_module(m, "adopted", (oc_module)&drv));   /* needs no driver */
  oc_capture_leave(m);
  ck_assert_ptr_eq(kernel_k(&cold), handle("cap", "cold"));
  ck_assert_ptr_eq(kernel_k(&init), handle("cap", "warm"));
  ck_assert_uint_eq(s.runs, 1);
}
END_TEST

START_TEST(g28_a_capture_on_one_model_holds_for_all_on_this_thread) {
  oc_model *other = fx_model(b);
  oc_kernel k;
  ck_ok(oc_capture_enter(other, NULL));
  ck_status(oc_opcache_kernel(c, "gemm", "f", &k), OC_E_CAPTURING);
  oc_capture_leave(other);
  ck_ok(oc_opcache_kernel(c, "gemm", "f", &k));
  ck_ok(oc_model_destroy(other));
}
END_TEST

START_TEST(g27_misses_work_inside_a_guard) {
  static oc_kernel_key key = OC_KERNEL_KEY("guard", "g");
  ck_ok(oc_model_enter(m));
  ck_ok(oc_model_load_module(m, "guard", "image", 5));
  ck_assert_ptr_nonnull(kernel("guard", "f"));
  ck_assert_ptr_nonnull(kernel_k(&key));
  oc_model_leave(m);
}
END_TEST

START_TEST(g3_after_teardown_nothing_is_answered) {
  static oc_kernel_key key = OC_KERNEL_KEY("gemm", "f"), cold = OC_KERNEL_KEY("gemm", "never seen");
  oc_kernel_key *keys[] = {&key};
  oc_kernel k = NULL;
  oc_module mod = NULL;
  kernel_k(&key);
  ck_ok(oc_model_load_module(m, "mod", "image", 5));
  ck_ok(oc_model_teardown(m, NULL));
  unsigned before = driver_calls();
  ck_status(oc_opcache_kernel(c, "gemm", "f", &k), OC_E_RELEASED);
  ck_words("torn down");
  ck_status(oc_opcache_kernel(c, "gemm", "g", &k), OC_E_RELEASED);
  ck_status(oc_opcache_kernel_k(c, &key, &k), OC_E_RELEASED);
  ck_status(oc_opcache_kernel_k(c, &cold, &k), OC_E_RELEASED);
  ck_status(oc_opcache_warm(c, keys, 1), OC_E_RELEASED);
  ck_status(oc_opcache_warm(c, keys, 0), OC_E_RELEASED);
  ck_status(oc_model_load_module(m, "new", "image", 5), OC_E_RELEASED);
  ck_status(oc_model_adopt_module(m, "new", (oc_module)&drv), OC_E_RELEASED);
  ck_status(oc_model_module(m, "mod", &mod), OC_E_RELEASED);
  ck_assert_ptr_null(k);
  ck_assert_uint_eq(driver_calls(), before);
}
END_TEST

/* ---- host memory ---- */

static unsigned fail_at;

static bool fail_nth(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return ++allocations == fail_at;
}

/* Fails allocation n of try(), for every n, until all of it works; how often it failed. A failure is HOST_NOMEM, or
   did not matter. */
static unsigned fail_each(oc_status (*attempt)(unsigned n)) {
  unsigned failed = 0;
  fail_at = 0;
  ck_ok(attempt(0));   /* the process's own tables are made */
  oci_mem_set_fault(fail_nth, NULL);
  for (unsigned n = 1;; n++) {
    allocations = 0;
    fail_at = n;
    oc_status st = attempt(n);
    if (st == OC_OK && allocations < n) break;
    if (st == OC_OK) continue;
    failed++;
    ck_assert_msg(st == OC_E_HOST_NOMEM, "%s: %s", oc_status_name(st), oc_last_error());
    fail_at = 0;
    ck_ok(attempt(n));   /* at once, with memory */
  }
  oci_mem_set_fault(NULL, NULL);
  return failed;
}

static oc_status fresh_kernel(unsigned n) {
  char name[24];
  oc_kernel k;
  snprintf(name, sizeof name, "nomem%u", n);
  oc_status st = oc_opcache_kernel(c, "m", name, &k);
  if (!st) ck_assert_ptr_eq(k, handle("m", name));
  return st;
}

static oc_status fresh_kernel_k(unsigned n) {
  char name[24];
  oc_kernel k;
  snprintf(name, sizeof name, "nomem_k%u", n);
  oc_kernel_key key = OC_KERNEL_KEY("m", name);
  oc_status st = oc_opcache_kernel_k(c, &key, &k);
  if (!st) ck_assert_ptr_eq(k, handle("m", name));
  return st;
}

/* A second id for names that have one. */
static oc_status fresh_init(unsigned n) {
  static struct setting s;
  char name[24];
  oc_kernel k;
  snprintf(name, sizeof name, "nomem_i%u", n);
  oc_kernel_key key = OC_KERNEL_KEY("m", name), init = OC_KERNEL_KEY_INIT("m", name, note_run, &s);
  oc_status st = oc_opcache_kernel_k(c, &key, &k);
  if (!st) st = oc_opcache_kernel_k(c, &init, &k);
  if (!st) ck_assert_ptr_eq(k, handle("m", name));
  return st;
}

static oc_status fresh_module(unsigned n) {
  char name[24];
  oc_module mod;
  snprintf(name, sizeof name, "nomem%u", n);
  oc_status st = oc_model_load_module(m, name, "image", 5);
  if (st == OC_OK) ck_ok(oc_model_module(m, name, &mod));
  return st;
}

static oc_status fresh_adopted(unsigned n) {
  char name[24];
  snprintf(name, sizeof name, "adopted%u", n);
  return oc_model_adopt_module(m, name, (oc_module)&drv);
}

START_TEST(g33_host_memory_may_run_out_anywhere) {
  oc_kernel k;
  ck_status(oc_opcache_kernel(NULL, NULL, NULL, &k), OC_E_INVALID);   /* this thread's error text is there */
  ck_assert_uint_ge(fail_each(fresh_kernel), 1);
  ck_assert_uint_ge(fail_each(fresh_kernel_k), 1);   /* without an id, or a place for the handle, the text will do */
  ck_assert_uint_ge(fail_each(fresh_init), 1);
  unsigned loads = drv.load;
  ck_assert_uint_eq(fail_each(fresh_module), 2);
  ck_assert_uint_eq(drv.load - loads, 4);   /* the driver is not asked before there is room for its answer */
  ck_assert_uint_eq(fail_each(fresh_adopted), 2);
}
END_TEST

/* ---- modules ---- */

START_TEST(g5_a_module_name_is_taken_once) {
  oc_module first, mod = NULL;
  ck_ok(oc_model_load_module(m, "gemm", "image", 5));
  ck_ok(oc_model_module(m, "gemm", &first));
  ck_status(oc_model_load_module(m, "gemm", "image", 5), OC_EXISTS);
  ck_words("gemm");
  ck_status(oc_model_adopt_module(m, "gemm", (oc_module)&drv), OC_EXISTS);
  ck_assert_uint_eq(drv.load, 1);
  ck_ok(oc_model_module(m, "gemm", &mod));
  ck_assert_ptr_eq(mod, first);
  ck_assert_ptr_eq(kernel("gemm", "f"), function_of(first, "f"));
  ck_ok(oc_model_adopt_module(m, "borrowed", (oc_module)&drv));
  ck_status(oc_model_load_module(m, "borrowed", "image", 5), OC_EXISTS);
  ck_assert_ptr_eq(kernel("borrowed", "f"), function_of((oc_module)&drv, "f"));
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(drv.unload, 1);   /* never the borrowed one */
  ck_assert_uint_eq(oc_report_modules_unloaded(r), 1);
  oc_report_free(r);
}
END_TEST

START_TEST(g33_module_nonsense_is_refused) {
  oc_module mod;
  ck_status(oc_model_load_module(NULL, "m", "i", 1), OC_E_INVALID);
  ck_status(oc_model_load_module(m, NULL, "i", 1), OC_E_INVALID);
  ck_status(oc_model_load_module(m, "", "i", 1), OC_E_INVALID);
  ck_status(oc_model_load_module(m, "m", NULL, 1), OC_E_INVALID);
  ck_status(oc_model_load_module(m, "m", "i", 0), OC_E_INVALID);
  ck_words("module m");
  ck_status(oc_model_adopt_module(NULL, "m", (oc_module)&drv), OC_E_INVALID);
  ck_status(oc_model_adopt_module(m, NULL, (oc_module)&drv), OC_E_INVALID);
  ck_status(oc_model_adopt_module(m, "", (oc_module)&drv), OC_E_INVALID);
  ck_status(oc_model_adopt_module(m, "m", NULL), OC_E_INVALID);
  ck_status(oc_model_module(NULL, "m", &mod), OC_E_INVALID);
  ck_status(oc_model_module(m, NULL, &mod), OC_E_INVALID);
  ck_status(oc_model_module(m, "m", NULL), OC_E_INVALID);
  ck_status(oc_model_module(m, "m", &mod), OC_E_NOT_FOUND);
  ck_words("no module m");
  ck_assert_uint_eq(driver_calls(), 0);
}
END_TEST

START_TEST(a_module_that_failed_to_load_leaves_its_name_free) {
  oc_module mod;
  ck_status(oc_model_load_module(m, "gemm", "bad", 3), OC_E_BACKEND);
  ck_words("gemm");
  ck_status(oc_model_module(m, "gemm", &mod), OC_E_NOT_FOUND);
  ck_status(oc_model_load_module(m, "gemm", "null", 4), OC_E_BACKEND);   /* success, and no module */
  ck_words("null module");
  ck_assert_ptr_eq(kernel("gemm", "f"), handle("gemm", "f"));
  ck_ok(oc_model_load_module(m, "gemm", "image", 5));
  ck_ok(oc_model_module(m, "gemm", &mod));
  ck_ok(oc_model_teardown(m, NULL));
  ck_assert_uint_eq(drv.unload, 1);
}
END_TEST

struct loads {
  const char *image;
  unsigned ok, exists, failed, found;   /* atomic */
};

/* Thread 1 is inside the driver with the name when all others come for it. */
static void load_same(void *arg, unsigned i) {
  struct loads *l = arg;
  oc_module mod;
  if (i == 0) {
    while (!count(&drv.inside)) fx_msleep(1);
    fx_msleep(30);
    __atomic_store_n(&drv.let_go, 1, __ATOMIC_RELEASE);
    return;
  }
  if (i > 1) while (!count(&drv.inside)) fx_msleep(1);
  if (i % 3 == 2) {
    oc_status st = oc_model_module(m, "same", &mod);
    if (st == OC_OK) called(&l->found);
    return;
  }
  oc_status st = oc_model_load_module(m, "same", l->image, strlen(l->image));
  called(st == OC_OK ? &l->ok : st == OC_EXISTS ? &l->exists : &l->failed);
}

START_TEST(loads_of_one_name_at_once_are_one) {
  struct loads l = {.image = "slow image"};
  fx_threads(13, load_same, &l);
  ck_assert_uint_eq(l.ok, 1);
  ck_assert_uint_eq(l.exists, 7);
  ck_assert_uint_eq(l.found, 4);   /* who asks for it waits until it is there */
  ck_assert_uint_eq(drv.load, 1);
}
END_TEST

/* The record that the others wait on goes away under them. */
START_TEST(those_who_wait_for_a_load_that_fails_try_their_own) {
  struct loads l = {.image = "slow bad"};
  oc_module mod;
  fx_threads(13, load_same, &l);
  ck_assert_uint_eq(l.failed, 8);
  ck_assert_uint_eq(l.found, 0);
  ck_assert_uint_eq(drv.load, 8);
  ck_status(oc_model_module(m, "same", &mod), OC_E_NOT_FOUND);
}
END_TEST

/* ---- what a backend has ---- */

START_TEST(a_backend_with_kernel_only) {
  oc_backend_ops ops = all;
  ops.module_load = NULL;
  ops.module_unload = NULL;
  ops.module_function = NULL;
  open_on(&ops);
  ck_assert_ptr_eq(kernel("gemm", "f"), handle("gemm", "f"));
  ck_status(oc_model_load_module(m, "gemm", "image", 5), OC_E_UNSUPPORTED);
  ck_words("gemm");
  ck_ok(oc_model_adopt_module(m, "engine's", (oc_module)&drv));
  ck_assert_ptr_eq(kernel("engine's", "f"), handle("engine's", "f"));   /* by name: there is no other way */
  close_all();
}
END_TEST

START_TEST(a_backend_with_modules_only) {
  oc_backend_ops ops = all;
  oc_kernel k;
  oc_module mod;
  ops.kernel = NULL;
  open_on(&ops);
  ck_status(oc_opcache_kernel(c, "gemm", "f", &k), OC_E_NOT_FOUND);
  ck_words("no module gemm");
  ck_assert_uint_eq(driver_calls(), 0);
  ck_ok(oc_model_load_module(m, "gemm", "image", 5));
  ck_ok(oc_model_module(m, "gemm", &mod));
  ck_assert_ptr_eq(kernel("gemm", "f"), function_of(mod, "f"));   /* not memoized: now it is there */
  close_all();
}
END_TEST

START_TEST(a_backend_with_neither) {
  oc_backend_ops ops = all;
  oc_kernel k;
  ops.kernel = NULL;
  ops.module_function = NULL;
  open_on(&ops);
  ck_status(oc_opcache_kernel(c, "gemm", "f", &k), OC_E_UNSUPPORTED);
  ck_words("gemm::f");
  ck_words("drv");
  ck_status(oc_model_load_module(m, "gemm", "image", 5), OC_E_UNSUPPORTED);   /* could never be used */
  ck_ok(oc_model_adopt_module(m, "gemm", (oc_module)&drv));
  ck_status(oc_opcache_kernel(c, "gemm", "f", &k), OC_E_UNSUPPORTED);
  ck_assert_uint_eq(driver_calls(), 0);
  close_all();
}
END_TEST

/* Two of the three module entries load nothing: that is not "no such module", which another call could mend. */
START_TEST(a_backend_with_some_of_the_module_entries) {
  for (int i = 0; i < 2; i++) {
    oc_backend_ops ops = all;
    oc_kernel k;
    ops.kernel = NULL;
    if (i) ops.module_load = NULL;
    else ops.module_unload = NULL;
    open_on(&ops);
    ck_status(oc_model_load_module(m, "gemm", "image", 5), OC_E_UNSUPPORTED);
    ck_status(oc_opcache_kernel(c, "gemm", "f", &k), OC_E_UNSUPPORTED);
    ck_assert_uint_eq(driver_calls(), 0);
    ck_ok(oc_model_adopt_module(m, "gemm", (oc_module)&drv));
    ck_assert_ptr_eq(kernel("gemm", "f"), function_of((oc_module)&drv, "f"));
    close_all();
  }
}
END_TEST

START_TEST(a_module_of_the_model_comes_before_the_backends_own) {
  oc_module mod;
  oc_kernel k;
  ck_ok(oc_model_load_module(m, "gemm", "image", 5));
  ck_ok(oc_model_module(m, "gemm", &mod));
  ck_assert_ptr_eq(kernel("gemm", "f"), function_of(mod, "f"));
  ck_assert_ptr_eq(kernel("other", "f"), handle("other", "f"));
  ck_status(oc_opcache_kernel(c, "gemm", "missing", &k), OC_E_NOT_FOUND);   /* and is the only one asked */
  ck_assert_uint_eq(drv.kernel, 1);
  ck_assert_uint_eq(drv.function, 2);
}
END_TEST

static void add_all(TCase *t, const TTest *const *tests, size_t n) {
  for (size_t i = 0; i < n; i++) tcase_add_test(t, tests[i]);
}
#define ADD_ALL(t, tests) add_all(t, tests, sizeof(tests) / sizeof *(tests))

int main(void) {
  const TTest *const tests[] = {
    g1_a_hit_asks_nobody_and_allocates_nothing, g33_nonsense_is_refused, g33_empty_and_long_names_are_names, describe_is_as_snprintf,
    g4_a_reused_buffer_is_another_key, g4_keys_are_interned_by_content,
    g4_an_id_out_of_bounds_is_looked_up_by_content, g4_past_65536_ids_keys_take_the_string_path, g4_keys_of_long_names, s1_a_handle_is_its_models_own,
    g5_a_failed_lookup_is_not_memoized, s5_success_and_a_null_handle_is_not_found, init_runs_once_a_model,
    a_failed_init_is_the_lookups_and_nothing_is_memoized, init_runs_on_a_handle_memoized_without_one,
    a_second_different_init_is_invalid, keys_that_differ_in_inits_argument_share_an_id, an_init_that_asks_for_its_own_kernel_is_reentrant,
    init_runs_before_any_thread_gets_the_kernel, first_lookups_at_once_ask_the_driver_once,
    g19_while_the_driver_is_busy_all_others_go_on, lookups_from_all_sides_resolve_each_kernel_once,
    warm_resolves_all_and_stops_at_the_first_failure, g28_in_a_capture_a_miss_reaches_no_driver_and_a_hit_works,
    g28_a_capture_on_one_model_holds_for_all_on_this_thread, g27_misses_work_inside_a_guard, g3_after_teardown_nothing_is_answered,
    g33_host_memory_may_run_out_anywhere, g5_a_module_name_is_taken_once, g33_module_nonsense_is_refused,
    a_module_that_failed_to_load_leaves_its_name_free, loads_of_one_name_at_once_are_one,
    those_who_wait_for_a_load_that_fails_try_their_own, a_module_of_the_model_comes_before_the_backends_own,
  };
  const TTest *const own_backend[] = {a_backend_with_kernel_only, a_backend_with_modules_only, a_backend_with_neither,
                                      a_backend_with_some_of_the_module_entries};
  Suite *s = suite_create("kernel");
  TCase *t = tcase_create("kernel"), *o = tcase_create("what a backend has");
  tcase_add_checked_fixture(t, open_all, close_all);
  tcase_set_timeout(t, 20);
  ADD_ALL(t, tests);
  tcase_add_loop_test(t, g4_names_whose_hashes_collide_have_their_own_handles, 0, 2);
  ADD_ALL(o, own_backend);
  suite_add_tcase(s, t);
  suite_add_tcase(s, o);
  return fx_run(s);
}
