/* SPDX-License-Identifier: MIT */
/*
 * What the parts of the API's fuzz target share (api.c says what it is).
 *
 * f:      one run: the bytes that are left, the driver, the plain model, and what a caller knows of his own calls.
 * do_*:   one step each: takes its arguments from the bytes, calls, and checks the answer.
 */
#ifndef TESTS_FUZZ_API_H
#define TESTS_FUZZ_API_H

#include "tests/fuzz/plain.h"
#include "tests/fuzz/target.h"

enum { MODULES = 3, FUNCTIONS = 4, TAGS = 3, GATES = 4, HOLDERS = 2, RESOURCES = 2, DEPTH_MOST = 4, STEPS_MOST = 400 };

struct scratch { int block; uint64_t asked; };

struct fuzz {
  const uint8_t *at, *end;
  struct driver d;
  struct plain p;
  oc_backend *b;
  oc_model *m, *neighbour;
  oc_devptr next_door, freed;            /* a block of the neighbour's; an address that was freed */
  bool torn;                             /* torn down, not yet destroyed */
  oc_status torn_as;
  unsigned guards, captures, entered;    /* entered: of the guards, those by oc_model_enter */
  unsigned holds[HOLDERS];
  bool pushed[RESOURCES];
  unsigned loaded[MODULES];              /* the module's handle; 0: none, 1: adopted */
  oc_kernel kernel[MODULES][FUNCTIONS];
  struct scratch scratch[TAGS][STREAMS + 1];
  bool once[GATES], shape[GATES];
  unsigned reached[GATES];
  unsigned nested;                       /* builds within builds */
  bool spoilt;                           /* memory of the driver's is lost, as it was ordered to be */
};
extern struct fuzz f;

/* ---- the bytes ---- */

uint8_t byte(void);                    /* 0 when they are over */
unsigned below(unsigned n);
oc_kind some_kind(void);               /* mostly one of the four */
struct block *some_block(void);        /* LIVE; NULL: there is none */
uint64_t in_block(const struct block *b);
uint64_t some_key(void);
uint64_t some_value(uint64_t key);
uint64_t some_address(void);           /* a start, an inside, freed, foreign, the neighbour's, none */

struct size { size_t bytes, align; uint64_t wrong; };   /* wrong: what must come of it; a set, empty if it is right */
struct size some_size(void);

/* ---- statuses, as sets ---- */

static inline uint64_t one(oc_status st) { return UINT64_C(1) << (st + 48); }
/* Why a call is refused, whatever else: the model is torn down; it would wait in a guard; it would call the driver, or
   wait, in a capture. */
uint64_t torn(void);
uint64_t waits(void);
uint64_t calls_driver(void);
/* In a capture, only what an arena has room for. */
uint64_t may_lack_room(void);
/* refused: if not empty, the call must answer one of these; else one of `good`, or what comes of a refusal of the driver's.
   Gives the status back. */
oc_status must(const char *call, oc_status st, uint64_t refused, uint64_t good);

/* ---- what several parts use ---- */

static inline oc_opcache *cache(void) { return oc_model_opcache(f.m); }
static inline oc_derived *derived(void) { return oc_model_derived(f.m); }
static inline oc_pool *pool(void) { return oc_model_pool(f.m); }
/* What a call whose wait failed leaves in doubt; NULL: none did. */
static inline const struct driver *unsure(void) { return f.d.met ? &f.d : NULL; }

bool in_arena(uint64_t addr);
/* A new block must lie right; the plain model gets it. */
void note_block(oc_devptr at, uint64_t bytes, uint64_t align, enum class class, int build);
/* Memory of the driver's that no entry took goes back. */
void free_unused_foreign(void);
void check_kept(const struct entry *e, const uint64_t out[2]);
void new_model(void);
void let_holders_go(void);

/* ---- the steps ---- */

void do_alloc(void);
void do_free(void);
void do_trim(void);
void do_queue(void);
void do_run(void);
void do_order(void);
void do_latch(void);
void do_stream(void);
void do_forget_stream(void);
void do_load(void);
void do_kernel(void);
void do_scratch(void);
void do_release_scratch(void);
void do_gate(void);
void do_get(void);
void do_insert(void);
void do_invalidate(void);
void do_release_derived(void);
void do_settle(void);
void do_begin(void);
void do_commit(void);
void do_abort(void);
void do_in_build(void);
void do_get_or_build(void);
void do_guard(void);
void do_capture(void);
void do_graphs_gone(void);
void do_hold(void);
void do_resource(void);
void do_teardown(void);
void do_destroy(void);
void do_words(void);

#endif
