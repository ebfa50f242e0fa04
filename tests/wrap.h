/* SPDX-License-Identifier: MIT */
/*
 * A backend of an engine's own making, around the fixture's: it writes down every call and asks a hook first.
 *
 * wrap: owned by the test; outer is what models are made on, inner takes the fixture's knobs.
 */
#ifndef TESTS_WRAP_H
#define TESTS_WRAP_H

#include <pthread.h>

#include "tests/fixture.h"

#define WRAP_LOG 4096

struct wrap_call {
  const char *entry;
  uint64_t arg;          /* the pointer, handle or stream; bytes for alloc */
  oc_status answer;
};

struct wrap {
  oc_backend *inner, *outer;
  /* Called before each entry, if set. True: *answer is the answer, and the inner table is not asked. */
  bool (*hook)(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer);
  void *hook_arg;
  unsigned closed;       /* times that close was called */
  pthread_mutex_t lock;
  struct wrap_call log[WRAP_LOG];
  unsigned count;        /* calls; those past the log are only counted */
};

/* The table; a test may change it before wrap_open_ops. */
oc_backend_ops wrap_table(void);
void wrap_open(struct wrap *w, const struct fx_options *opt);
void wrap_open_ops(struct wrap *w, const struct fx_options *opt, const oc_backend_ops *ops);
/* Both backends, with fx_close's checks. */
void wrap_close(struct wrap *w);
/* The inner device may be left with what a failed teardown could not give back. */
void wrap_close_dirty(struct wrap *w);

unsigned wrap_calls(struct wrap *w, const char *entry);
/* Place of the nth (1: first) call of an entry in the log; -1: there is none. */
int wrap_at(struct wrap *w, const char *entry, unsigned nth);
int wrap_at_arg(struct wrap *w, const char *entry, uint64_t arg);
void wrap_forget(struct wrap *w);

#endif
