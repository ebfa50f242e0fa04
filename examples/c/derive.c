/* SPDX-License-Identifier: MIT */
/* One model's life: load a kernel, derive a weight on the device, use both in a guard, tear down, read the report.
   cc derive.c $(pkg-config --cflags --libs liboc) */
#include <liboc/oc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096 };

static void check(oc_status st) {
  if (st == OC_OK) return;
  fprintf(stderr, "%s: %s\n", oc_status_name(st), oc_last_error());
  exit(1);
}

/* ---- a kernel of the embedded device; on CUDA this is a cubin or PTX ---- */

static void flip(const oc_host_launch *launch, void *const *params) {
  uint64_t to, from;
  (void)launch;
  memcpy(&to, params[0], sizeof to);
  memcpy(&from, params[1], sizeof from);
  for (size_t i = 0; i < BYTES; i++) ((uint8_t *)(uintptr_t)to)[i] = (uint8_t)~((const uint8_t *)(uintptr_t)from)[i];
}

static const uint32_t param_bytes[] = {8, 8};
static const oc_host_function functions[] = {{"flip", flip, 2, param_bytes}};
static const oc_host_module image = {sizeof image, 1, functions};

/* ---- deriving ---- */

struct work {
  oc_model *m;
  oc_backend *b;
  oc_stream s;
  oc_devptr weight;
};

static oc_kernel_key flip_key = OC_KERNEL_KEY("ops", "flip");

/* Runs once a key, whatever the number of threads that ask. */
static oc_status derive(oc_build *build, void *arg, uint64_t *out) {
  const struct work *w = arg;
  const uint32_t one[3] = {1, 1, 1};
  uint64_t from = w->weight;
  void *params[] = {out, &from};
  oc_kernel k;
  oc_status st = oc_build_alloc(build, BYTES, 0, out);
  if (!st) st = oc_opcache_kernel_k(oc_model_opcache(w->m), &flip_key, &k);
  if (!st) st = oc_backend_table(w->b)->launch(oc_backend_self(w->b), k, one, one, 0, w->s, params);
  return st ? st : oc_build_on_stream(build, w->s);
}

int main(void) {
  struct work w = {0};
  uint64_t flipped = 0;
  uint8_t host[BYTES];
  oc_report *report;
  check(oc_backend_open_host(NULL, &w.b));
  check(oc_model_create(w.b, NULL, &w.m));
  check(oc_model_load_module(w.m, "ops", &image, sizeof image));

  const oc_backend_ops *t = oc_backend_table(w.b);
  void *self = oc_backend_self(w.b);
  check(t->stream_create(self, &w.s));
  check(oc_model_use_stream(w.m, w.s));
  check(oc_pool_alloc_owned(oc_model_pool(w.m), "weights", BYTES, 0, &w.weight));
  check(t->memset(self, w.weight, 0x0f, BYTES, w.s));
  check(oc_derived_get_or_build_ptr(oc_model_derived(w.m), OC_BF16, w.weight, derive, &w, &flipped));

  /* From here on it is a hit. What it returns stays valid until the guard is left. */
  oc_guard_enter();
  check(oc_derived_get_ptr_on(oc_model_derived(w.m), OC_BF16, w.weight, w.s, &flipped));
  check(t->copy_d2h(self, host, flipped, BYTES, w.s));
  check(t->synchronize(self, w.s));
  oc_guard_leave();
  printf("derived 0x%02x\n", host[BYTES - 1]);

  check(oc_model_teardown(w.m, &report));
  char *text = oc_report_text(report);
  printf("%s\n", text ? text : "no memory for the report");
  oc_string_free(text);
  oc_report_free(report);
  check(oc_model_destroy(w.m));
  check(t->stream_destroy(self, w.s));
  check(oc_backend_close(w.b));
  return host[BYTES - 1] == 0xf0 ? 0 : 1;
}
