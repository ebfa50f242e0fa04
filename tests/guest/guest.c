/* SPDX-License-Identifier: MIT */
/*
 * A host process that looks at what a guest does to it. It dlopens the library named by its first argument, lives a whole
 * life with it over a driver of its own (no device thread, then), and compares: threads, signal handlers, malloc and
 * operator new, open files, standard output and error, what is registered for the exit, what the environment was asked.
 * Functions defined here come before libc's for every library that is loaded.
 *   guest LIBRARY           exits with the number of surprises
 *   guest LIBRARY PLUGIN    and calls `int plugin(void)` of a C++ library opened last
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <liboc/oc.h>

static int surprises;
static int asked, registered;   /* calls that came while `watching` */
static int watching;
static FILE *report;            /* standard error, before it was led away */

static void surprise(bool is_one, const char *what) {
  if (!is_one) return;
  surprises++;
  fprintf(report, "surprise: %s\n", what);
}

/* ---- what libraries call, and we count ---- */

extern char **environ;

static char *look_up(const char *name) {
  size_t n = strlen(name);
  for (char **e = environ; *e; e++)
    if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') return *e + n + 1;
  return NULL;
}

static char *ask(const char *name) {
  if (watching) {
    asked++;
    fprintf(report, "the environment was asked for %s\n", name);
  }
  return look_up(name);
}

char *getenv(const char *name) { return ask(name); }
char *secure_getenv(const char *name) { return ask(name); }

int __cxa_atexit(void (*fn)(void *), void *arg, void *dso);
int __cxa_atexit(void (*fn)(void *), void *arg, void *dso) {
  static int (*real)(void (*)(void *), void *, void *);
  if (watching) registered++;
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "__cxa_atexit");
  return real(fn, arg, dso);
}

int on_exit(void (*fn)(int, void *), void *arg) {
  (void)fn;
  (void)arg;
  registered++;
  return -1;
}

/* ---- what the process looks like ---- */

static int entries(const char *folder) {
  DIR *d = opendir(folder);
  int n = 0;
  if (!d) abort();
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

struct looks {
  int threads, files;
  struct sigaction handlers[65];
  void *functions[8];
  mode_t mask;
  sigset_t blocked;
};

static const char *const replaceable[8] = {"malloc", "free", "calloc", "realloc", "posix_memalign", "_Znwm", "_ZdlPv", "fork"};

static void look(struct looks *l) {
  memset(l, 0, sizeof *l);
  l->threads = entries("/proc/self/task");
  l->files = entries("/proc/self/fd");
  for (int s = 1; s < 65; s++) sigaction(s, NULL, &l->handlers[s]);
  for (int i = 0; i < 8; i++) l->functions[i] = dlsym(RTLD_DEFAULT, replaceable[i]);
  l->mask = umask(0);
  umask(l->mask);
  sigprocmask(SIG_SETMASK, NULL, &l->blocked);
}

static void compare(const struct looks *a, const char *when) {
  struct looks b;
  char words[128];
  look(&b);
#define COMPARE(is_one, what) (snprintf(words, sizeof words, "%s: %s", when, what), surprise(is_one, words))
  COMPARE(a->threads != b.threads, "a thread came or went");
  COMPARE(a->files != b.files, "a file was opened or closed");
  COMPARE(a->mask != b.mask, "the umask changed");
  COMPARE(memcmp(&a->blocked, &b.blocked, sizeof b.blocked) != 0, "the signal mask changed");
  for (int s = 1; s < 65; s++)
    COMPARE(a->handlers[s].sa_handler != b.handlers[s].sa_handler || a->handlers[s].sa_flags != b.handlers[s].sa_flags,
            "a signal's handler changed");
  for (int i = 0; i < 8; i++)
    if (a->functions[i] != b.functions[i]) COMPARE(true, replaceable[i]);
}

/* ---- the host's own driver ---- */

static oc_status drv_alloc(void *self, size_t bytes, oc_devptr *out) {
  (void)self;
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return OC_E_DEVICE_NOMEM;
  *out = (oc_devptr)(uintptr_t)p;
  return OC_OK;
}

static oc_status drv_free(void *self, oc_devptr p) {
  (void)self;
  return munmap((void *)(uintptr_t)p, 4096) ? OC_E_BACKEND : OC_OK;
}

static oc_status drv_kernel(void *self, const char *module, const char *func, oc_kernel *out) {
  (void)module;
  *out = self;
  return strcmp(func, "there") ? OC_E_NOT_FOUND : OC_OK;
}

/* ---- a whole life ---- */

/* The functions, by name: the library is opened late. */
static void *library;

static void *symbol(const char *name) {
  void *f = dlsym(library, name);
  if (!f) {
    fprintf(report, "%s\n", dlerror());
    exit(100);
  }
  return f;
}

#define CALL(name, ...) (*(__typeof__(&name))symbol(#name))(__VA_ARGS__)
#define EXPECT(status, call)                                                                              \
  do {                                                                                                    \
    oc_status st_ = (call);                                                                               \
    if (st_ != (status)) fprintf(report, "line %d: %d: %s\n", __LINE__, st_, CALL(oc_last_error)), surprises++; \
  } while (0)

static int lines;
static void log_line(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  lines += line[0] != 0;
}

static oc_status derive(oc_build *b, void *arg, uint64_t *out) {
  (void)arg;
  return CALL(oc_build_alloc_at, b, 4096, 0, NULL, out);
}

static void live(void) {
  int self;
  const oc_backend_ops ops = {.struct_size = sizeof ops, .name = "host's own", .alloc = drv_alloc, .free = drv_free,
                              .kernel = drv_kernel};
  oc_backend *b;
  oc_model *m;
  oc_kernel k;
  oc_devptr p, q;
  oc_report *r;
  EXPECT(OC_OK, CALL(oc_backend_create, &ops, &self, &b));
  EXPECT(OC_OK, CALL(oc_model_create, b, NULL, &m));
  CALL(oc_guard_enter);
  CALL(oc_guard_leave);
  CALL(oc_guard_leave);   /* one too many: logged, and the default is silence */
  CALL(oc_set_log, log_line, NULL);
  CALL(oc_guard_leave);
  surprise(lines != 1, "the callback did not get the line");
  EXPECT(OC_OK, CALL(oc_opcache_kernel, CALL(oc_model_opcache, m), "ops", "there", &k));
  EXPECT(OC_E_NOT_FOUND, CALL(oc_opcache_kernel, CALL(oc_model_opcache, m), "ops", "not there", &k));
  for (int i = 0; i < 1000; i++) EXPECT(OC_OK, CALL(oc_pool_alloc_at, CALL(oc_model_pool, m), 5000, 0, NULL, &p));
  EXPECT(OC_OK, CALL(oc_derived_get_or_build_ptr_at, CALL(oc_model_derived, m), OC_BF16, p, derive, NULL, NULL, &q));
  EXPECT(OC_OK, CALL(oc_pool_free, CALL(oc_model_pool, m), p));
  EXPECT(OC_E_NOT_OWNED, CALL(oc_pool_free, CALL(oc_model_pool, m), p));
  EXPECT(OC_OK, CALL(oc_model_teardown, m, &r));
  char *text = CALL(oc_report_text, r);
  surprise(!text || !strstr(text, "unowned"), "the report does not tell of the blocks");
  CALL(oc_string_free, text);
  CALL(oc_report_free, r);
  EXPECT(OC_OK, CALL(oc_model_destroy, m));
  EXPECT(OC_OK, CALL(oc_backend_close, b));
}

/* The embedded device's workers are its hardware: they go with it. */
static void live_on_the_device(void) {
  oc_backend *b;
  oc_model *m;
  oc_devptr p;
  EXPECT(OC_OK, CALL(oc_backend_open_host, NULL, &b));
  EXPECT(OC_OK, CALL(oc_model_create, b, NULL, &m));
  EXPECT(OC_OK, CALL(oc_opcache_scratch_on_at, CALL(oc_model_opcache, m), "act", NULL, 4096, NULL, &p));
  EXPECT(OC_OK, CALL(oc_backend_table, b)->memset(CALL(oc_backend_self, b), p, 1, 4096, NULL));
  EXPECT(OC_OK, CALL(oc_model_destroy, m));
  EXPECT(OC_OK, CALL(oc_backend_close, b));
  /* No CUDA here, or none that is ours: either way in words, not in output. */
  oc_status st = CALL(oc_backend_open_cuda, NULL, &b);
  if (st == OC_OK) EXPECT(OC_OK, CALL(oc_backend_close, b));
}

static void call_plugin(const char *file) {
  int (*plugin)(void);
  void *opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    fprintf(report, "%s\n", dlerror());
    exit(101);
  }
  *(void **)&plugin = dlsym(opened, "plugin");
  surprise(!plugin || plugin() != 0, "the C++ plugin failed");
  dlclose(opened);
}

int main(int argc, char **argv) {
  struct looks before;
  if (argc < 2) return 102;
  report = fdopen(dup(2), "w");
  if (!report) return 103;
  setvbuf(report, NULL, _IONBF, 0);
  FILE *nowhere = tmpfile();
  int quiet = nowhere ? fileno(nowhere) : -1;
  if (quiet < 0 || dup2(quiet, 1) < 0 || dup2(quiet, 2) < 0) return 104;
  free(malloc(100));

  look(&before);
  watching = 1;
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(report, "%s\n", dlerror());
    return 105;
  }
  compare(&before, "after dlopen");
  live();
  compare(&before, "after a life");
  surprise(asked != 0, "the environment was read");
  surprise(registered != 0, "something was registered for the exit");
  watching = 0;   /* a CUDA driver may */
  live_on_the_device();
  if (argc > 2) call_plugin(argv[2]);

  fflush(NULL);
  struct stat written;
  surprise(fstat(quiet, &written) != 0 || written.st_size != 0, "something was written to standard output or error");
  surprise(dlclose(library) != 0, "dlclose");
  return surprises;
}
