/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rcu/mem.h"
#include "rcu/thread.h"

#define TEXT_BYTES 1536

struct thread_text {
  struct log_held *log;      /* the thread's log lines go there; NULL: out at once */
  char text[TEXT_BYTES];
};

static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static bool exit_key_made;

static void thread_ends(void *text) {
  oci_self.text = NULL;
  oci_free(NULL, text, sizeof(struct thread_text));
}

static void make_exit_key(void) {
  exit_key_made = pthread_key_create(&exit_key, thread_ends) == 0;
}

/* NULL without memory, or where the text could not be given back at thread exit. */
static struct thread_text *own_text(void) {
  if (oci_self.text) return oci_self.text;
  pthread_once(&exit_once, make_exit_key);
  if (!exit_key_made) return NULL;
  struct thread_text *t = oci_alloc(NULL, sizeof *t);
  if (!t) return NULL;
  if (pthread_setspecific(exit_key, t) != 0) {
    oci_free(NULL, t, sizeof *t);
    return NULL;
  }
  oci_self.text = t;
  return t;
}

int (oci_error)(int status, const char *fmt, ...) {
  struct thread_text *t = own_text();
  oci_self.wordless = !t;
  oci_self.failures++;
  if (!t) return status;
  /* The arguments may point into the old text, so the new one is made beside it. */
  char fresh[TEXT_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(fresh, sizeof fresh, fmt, ap);
  va_end(ap);
  memcpy(t->text, fresh, strlen(fresh) + 1);
  return status;
}

int (oci_error_add)(int status, const char *fmt, ...) {
  struct thread_text *t = own_text();
  if (!t) return status;
  size_t n = strlen(t->text);
  int sep = snprintf(t->text + n, TEXT_BYTES - n, "%s", n ? "; " : "");
  n += (size_t)sep < TEXT_BYTES - n ? (size_t)sep : 0;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(t->text + n, TEXT_BYTES - n, fmt, ap);
  va_end(ap);
  return status;
}

const char *oci_error_text(void) {
  if (oci_self.wordless) return "a call failed, and host memory for the words is out";
  return oci_self.text ? oci_self.text->text : "";
}

uint32_t oci_error_count(void) { return oci_self.failures; }

/* fn and arg change together; a log line is rare, so a lock does. Held only to read or write the pair: the
   callback runs without it, and may be called once more after oci_set_log returned. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static oci_log_fn log_fn;
static void *log_arg;

void oci_set_log(oci_log_fn fn, void *arg) {
  pthread_mutex_lock(&log_lock);
  log_fn = fn;
  log_arg = arg;
  pthread_mutex_unlock(&log_lock);
}

/* Names are the engine's, and have what they have. */
static void keep_one_line(char *line) {
  for (char *c = line; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}

static void out(int level, const char *line) {
  pthread_mutex_lock(&log_lock);
  oci_log_fn fn = log_fn;
  void *arg = log_arg;
  pthread_mutex_unlock(&log_lock);
  if (fn) fn(arg, level, line);
}

static void keep(struct log_held *h, int level, const char *line) {
  if (h->count < LOG_HELD_LINES) {
    h->level[h->count] = level;
    snprintf(h->line[h->count], LOG_HELD_BYTES, "%.*s", (int)LOG_HELD_BYTES - 1, line);
  }
  h->count++;
}

void oci_log(enum oci_log_level level, const char *fmt, ...) {
  char line[TEXT_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  keep_one_line(line);
  struct log_held *held = oci_self.text ? oci_self.text->log : NULL;
  if (held) keep(held, (int)level, line);
  else out((int)level, line);
}

void oci_log_hold(struct log_held *h) {
  struct thread_text *t = own_text();
  h->count = 0;
  if (t && !t->log) t->log = h;
}

static void all_out(const struct log_held *h) {
  unsigned kept = h->count < LOG_HELD_LINES ? h->count : LOG_HELD_LINES;
  for (unsigned i = 0; i < kept; i++) out(h->level[i], h->line[i]);
  if (h->count > kept) oci_log(OCI_LOG_WARNING, "%u more lines after these", h->count - kept);
}

/* What the callback calls may fail, and word that. */
void oci_log_let_go(struct log_held *h) {
  char words[TEXT_BYTES];
  if (oci_self.text && oci_self.text->log == h) oci_self.text->log = NULL;
  if (!h->count) return;
  snprintf(words, sizeof words, "%s", oci_error_text());
  uint32_t failures = oci_error_count();
  all_out(h);
  if (oci_error_count() != failures) (void)oci_error(0, "%s", words);
}

void oci_log_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) pthread_mutex_lock(&log_lock);
  else pthread_mutex_unlock(&log_lock);
}
