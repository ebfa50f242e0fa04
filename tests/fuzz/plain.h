/* SPDX-License-Identifier: MIT */
/*
 * The plain model of the API's fuzz target: who owns what, by lists and walks alone. It knows the contract (liboc/oc.h) and
 * nothing of how the library keeps it.
 *
 * block:    memory of the pool. PENDING waits for its stream, RETIRED for graphs_gone; of MAYBE it is not known whether it is
 *           still retired: a wait of that call had failed.
 * entry:    a derived value, and where its halves lie. A half in a block of class DERIVED, or in foreign memory, is owned.
 * foreign:  memory of the driver's own, outside the pool, that a value lies in.
 */
#ifndef TESTS_FUZZ_PLAIN_H
#define TESTS_FUZZ_PLAIN_H

#include "tests/fuzz/driver.h"

enum { BLOCKS = 96, ENTRIES = 48, BUILDS = 3, FOREIGN = 8, NOBODY = -1, NOBODYS_BUILD = -2 };

enum state { FREE, LIVE, PENDING, RETIRED, MAYBE };
enum class { USER, OWNED, SCRATCH, DERIVED, BUILD };

struct block {
  enum state state;
  enum class class;
  uint64_t start, bytes;      /* rounded to 256 */
  unsigned stream;            /* PENDING */
  uint64_t place;             /* PENDING: goes back once the stream is there */
  int build;                  /* BUILD: whose */
  bool captured;              /* handed out in a capture, no graphs_gone since */
};

struct half { int block, foreign; };

struct entry {
  bool there, on_stream;      /* on_stream: it may not be finished */
  oc_kind kind;
  uint64_t key, value[2];
  struct half half[2];
};

/* kept: its entries are gone, and it is not: a graph may use it, or (adrift) a call that was to free it failed, and it is
   nobody's or still kept. */
struct foreign { uint64_t at; bool captured, kept, adrift; };

struct build {
  oc_build *handle;
  oc_kind kind;
  uint64_t key;
  int stream;                 /* NOBODY: none */
};

struct plain {
  struct block block[BLOCKS];
  struct entry entry[ENTRIES];
  struct build build[BUILDS];
  struct foreign foreign[FOREIGN];
  bool doomed[ENTRIES];
};

struct block *plain_at(struct plain *p, uint64_t addr);      /* LIVE, or NULL */
int plain_add(struct plain *p, uint64_t start, uint64_t bytes, enum class class, int build);   /* NOBODY: no room */
bool plain_room(const struct plain *p, unsigned blocks);
struct entry *plain_entry(struct plain *p, oc_kind kind, uint64_t key);
bool plain_is_pair(oc_kind kind);
bool plain_owns(const struct plain *p, const struct entry *e, int half);
uint64_t plain_live(const struct plain *p, unsigned *blocks);
/* Is what lies there no source: freed, or scratch? */
bool plain_no_key(struct plain *p, bool (*in_arena)(uint64_t addr), uint64_t key);
/* OC_OK: stored. in_arena: lies in memory that the pool got of the driver. */
oc_status plain_store(struct plain *p, bool (*in_arena)(uint64_t addr), oc_kind kind, uint64_t key, const uint64_t v[2],
                      int build);

/* What goes with these keys, or with a block (NULL: none): it is in doomed. OC_E_REENTRANT: a build of this thread
   is in the way. `any`: everything. */
oc_status plain_doom(struct plain *p, const uint64_t *keys, unsigned n, const struct block *freed, bool any);
/* The doomed entries go. unsure (else NULL): a wait of the call failed, and what this driver still has may be retired. */
void plain_bury(struct plain *p, const struct driver *unsure);
/* A block goes back: at once, after a stream's work (stream != NOBODY), or for graphs. */
void plain_gone(struct plain *p, struct block *b, bool retire, int stream, const struct driver *d);
void plain_graphs_gone(struct plain *p);

#endif
