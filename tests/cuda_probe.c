/* SPDX-License-Identifier: MIT */
/*
 * Opens the CUDA backend and says how that went: tests/test_cuda.c runs it in processes whose environment or whose end
 * matters. A word names what to do after opening.
 *   cuda_probe            "OC_OK" or the status, and the words
 *   cuda_probe leave      exits with a model, arenas and a module alive
 *   cuda_probe shut       the driver shuts down before the model ends: the teardown's report
 *   cuda_probe shut-exit  the same at exit, and nothing is torn down
 *   cuda_probe fork       the backend in a forked child
 */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "liboc/oc.h"
#include "tests/child.h"

static int say(oc_status st) {
  printf("%s %s\n", oc_status_name(st), st ? oc_last_error() : "");
  fflush(stdout);
  return st != OC_OK;
}

static void (*shut_down(void))(bool) {
  void (*f)(bool);
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym(library, "simcuda_shut_down") : NULL;
  memcpy(&f, &symbol, sizeof f);
  if (!f) abort();
  return f;
}

static oc_model *fill(oc_backend *b) {
  static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n";
  oc_model *m;
  oc_devptr p;
  oc_stream s;
  if (oc_model_create(b, NULL, &m) || oc_pool_alloc(oc_model_pool(m), 100000, 0, &p) ||
      oc_model_load_module(m, "empty", ptx, sizeof ptx) || oc_backend_table(b)->stream_create(oc_backend_self(b), &s) ||
      oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 4096, &p))
    exit(say(OC_E_BACKEND));
  return m;
}

static int end_shut(oc_backend *b, oc_model *m) {
  oc_report *r;
  shut_down()(true);
  oc_status st = oc_model_teardown(m, &r);
  char *text = oc_report_text(r);
  printf("%s\n", text ? text : "no report");
  oc_string_free(text);
  oc_report_free(r);
  if (!st) st = oc_model_destroy(m);
  if (!st) st = oc_backend_close(b);
  return say(st);
}

static void at_exit(void) {
  shut_down()(true);
}

/* In the child of a process that uses the backend: nothing may reach the driver, which would abort. */
static int in_child(oc_backend *b, oc_model *m) {
  size_t left, total;
  oc_kernel k;
  oc_backend *other;
  const oc_host_options host = {.struct_size = sizeof host};
  int wrong = oc_opcache_kernel(oc_model_opcache(m), "empty", "f", &k) != OC_E_FORKED;
  wrong |= oc_backend_table(b)->mem_info(oc_backend_self(b), &left, &total) != OC_E_FORKED;
  wrong |= oc_model_teardown(m, NULL) != OC_E_FORKED;
  wrong |= oc_backend_close(b) != OC_E_FORKED;
  wrong |= oc_backend_open_cuda(NULL, &other) != OC_E_FORKED;
  wrong |= oc_backend_open_host(&host, &other) != OC_OK || oc_backend_close(other) != OC_OK;
  return wrong;
}

static int wait_for(pid_t child) {
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int fork_with(oc_backend *b, oc_model *m) {
  pid_t child = fork();
  if (child == 0) child_end(in_child(b, m));
  int wrong = wait_for(child);
  oc_status st = oc_model_destroy(m);
  if (!st) st = oc_backend_close(b);
  printf("child %d\n", wrong);
  return say(st) || wrong;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  oc_backend *b;
  oc_status st = oc_backend_open_cuda(NULL, &b);
  if (st || !*what) {
    int rc = say(st);
    if (!st) rc = say(oc_backend_close(b));
    return rc;
  }
  oc_model *m = fill(b);
  if (strcmp(what, "leave") == 0) return say(OC_OK);
  if (strcmp(what, "shut") == 0) return end_shut(b, m);
  if (strcmp(what, "fork") == 0) return fork_with(b, m);
  if (strcmp(what, "shut-exit") == 0) return atexit(at_exit) ? 1 : say(OC_OK);
  return 2;
}
