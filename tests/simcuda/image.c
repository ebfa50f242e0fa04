/* SPDX-License-Identifier: MIT */
/* Which kernels an image has, and the C functions behind them. */
#include "config.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rcu/mem.h"
#include "tests/simcuda/sim.h"

/* ---- registered functions ---- */

enum { TABLES_MAX = 32, ENTRIES_MAX = 4096 };
static const oc_host_module *tables[TABLES_MAX];   /* under sim_lock */
static size_t table_count;

void simcuda_register(const oc_host_module *table) {
  pthread_mutex_lock(&sim_lock);
  bool there = false;
  for (size_t i = 0; i < table_count; i++) there |= tables[i] == table;
  bool full = !there && table_count == TABLES_MAX;
  if (!there && !full) tables[table_count++] = table;
  pthread_mutex_unlock(&sim_lock);
  if (!full) return;
  fprintf(stderr, "simcuda: more than %d tables of kernels\n", TABLES_MAX);
  abort();
}

void sim_load_kernels(const char *file) {
  if (!file || !*file) return;
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const oc_host_module *const *list = library ? dlsym(library, "simcuda_kernels") : NULL;
  if (!list) {
    fprintf(stderr, "simcuda: SIMCUDA_KERNELS=%s: %s\n", file, dlerror());
    abort();
  }
  for (; *list; list++) simcuda_register(*list);
}

static const oc_host_function *find_function(const char *name, size_t length) {
  for (size_t t = table_count; t-- > 0;)
    for (uint32_t i = 0; i < tables[t]->function_count; i++) {
      const oc_host_function *f = &tables[t]->functions[i];
      if (strlen(f->name) == length && memcmp(f->name, name, length) == 0) return f;
    }
  return NULL;
}

/* ---- what an image names ---- */

struct entries {
  oc_host_function *list;      /* [ENTRIES_MAX] */
  uint32_t count;
  char *words;                 /* the log */
  size_t words_bytes;
};

/* params < 0: the image does not say how many. */
static cu_result add_entry(struct entries *e, const char *name, size_t length, int params) {
  const oc_host_function *f = find_function(name, length);
  if (!f) {
    snprintf(e->words, e->words_bytes, "simcuda: no C function is registered for entry %.*s", (int)length, name);
    return CU_E_INVALID_SOURCE;
  }
  if (params >= 0 && (uint32_t)params != f->param_count) {
    snprintf(e->words, e->words_bytes, "simcuda: entry %s has %d parameters, the C function registered for it %u", f->name,
             params, f->param_count);
    return CU_E_INVALID_SOURCE;
  }
  if (e->count == ENTRIES_MAX) return CU_E_INVALID_SOURCE;
  e->list[e->count++] = *f;
  return CU_OK;
}

/* ---- PTX ---- */

static bool name_char(char ch) {
  return isalnum((unsigned char)ch) || ch == '_' || ch == '$' || ch == '.' || ch == '%';
}

/* Past spaces and comments. */
static const char *skip_space(const char *p) {
  for (;;) {
    while (isspace((unsigned char)*p)) p++;
    if (p[0] == '/' && p[1] == '/') {
      while (*p && *p != '\n') p++;
    } else if (p[0] == '/' && p[1] == '*') {
      const char *end = strstr(p + 2, "*/");
      p = end ? end + 2 : p + strlen(p);
    } else {
      return p;
    }
  }
}

static const char *word_end(const char *p) {
  while (name_char(*p)) p++;
  return p;
}

static bool is_word(const char *p, const char *end, const char *word) {
  return (size_t)(end - p) == strlen(word) && memcmp(p, word, strlen(word)) == 0;
}

/* p: after the entry's name. Counts the .param directives between its parentheses. */
static int count_params(const char *p) {
  int n = 0;
  p = skip_space(p);
  if (*p != '(') return 0;
  for (p = skip_space(p + 1); *p && *p != ')'; p = skip_space(p)) {
    const char *end = word_end(p);
    if (is_word(p, end, ".param")) n++;
    p = end > p ? end : p + 1;
  }
  return n;
}

/* The words of the text, one after the other; a quoted string is skipped. */
static cu_result read_ptx(struct entries *e, const char *p) {
  bool version = false, target = false;
  for (p = skip_space(p); *p; p = skip_space(p)) {
    const char *end = word_end(p);
    version |= is_word(p, end, ".version");
    target |= is_word(p, end, ".target");
    if (is_word(p, end, ".entry")) {
      p = skip_space(end);
      end = word_end(p);
      cu_result r = add_entry(e, p, (size_t)(end - p), count_params(end));
      if (r) return r;
    }
    p = end > p ? end : p + 1;
  }
  if (version && target) return CU_OK;
  snprintf(e->words, e->words_bytes, "simcuda: ptx: missing %s directive", version ? ".target" : ".version");
  return CU_E_INVALID_PTX;
}

/* ---- cubin ---- */

static uint64_t number(const unsigned char *p, size_t bytes) {
  uint64_t v = 0;
  while (bytes-- > 0) v = v << 8 | p[bytes];
  return v;
}

/* A kernel's code is in a section .text.NAME. The caller has checked that the tables lie inside the image. */
static cu_result read_cubin(struct entries *e, const unsigned char *p) {
  static const char prefix[] = ".text.";
  const unsigned char *sections = p + number(p + 40, 8);
  size_t each = number(p + 58, 2), count = number(p + 60, 2), names = number(p + 62, 2);
  if (count == 0 || names >= count) return CU_E_INVALID_IMAGE;
  const char *strings = (const char *)p + number(sections + names * each + 24, 8);
  for (size_t i = 0; i < count; i++) {
    const char *name = strings + number(sections + i * each, 4);
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
    name += sizeof prefix - 1;
    cu_result r = add_entry(e, name, strlen(name), -1);
    if (r) return r;
  }
  return CU_OK;
}

/* ---- both ---- */

static bool begins_with(const unsigned char *p, const char *magic) {
  while (*magic && *p == (unsigned char)*magic) p++, magic++;   /* a shorter image ends with its NUL */
  return !*magic;
}

static cu_result read_image(struct entries *e, const void *image) {
  if (begins_with(image, "\x50\xED\x55\xBA")) return CU_E_NO_BINARY_FOR_GPU;   /* a fatbin */
  pthread_mutex_lock(&sim_lock);   /* of the registered tables */
  cu_result r = begins_with(image, "\177ELF") ? read_cubin(e, image) : read_ptx(e, image);
  pthread_mutex_unlock(&sim_lock);
  return r;
}

cu_result sim_load_image(struct sim_context *c, const void *image, oc_module *out, char *words, size_t bytes) {
  struct entries e = {.words = words, .words_bytes = bytes};
  e.list = oci_alloc(NULL, ENTRIES_MAX * sizeof *e.list);
  if (!e.list) return CU_E_OUT_OF_MEMORY;
  cu_result r = read_image(&e, image);
  oc_host_module table = {sizeof table, e.count, e.list};
  if (r == CU_OK) r = sim_result(oci_devmodule_load(&c->device->modules, &table, sizeof table, out), CU_E_INVALID_IMAGE);
  oci_free(NULL, e.list, ENTRIES_MAX * sizeof *e.list);
  return r;
}
