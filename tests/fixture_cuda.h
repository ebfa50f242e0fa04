/* SPDX-License-Identifier: MIT */
/*
 * The fixture's functions over the CUDA backend; fixture.c picks. On the simulated driver each backend opened here has a
 * device of its own, so that two in one test do not see each other's knobs; on a real one all share device 0, and what
 * needs a knob is refused by fx_can.
 */
#ifndef TESTS_FIXTURE_CUDA_H
#define TESTS_FIXTURE_CUDA_H

#include "tests/fixture.h"

oc_backend *fxc_open(const struct fx_options *opt, const oc_host_module *kernels);
void fxc_close(oc_backend *b);
bool fxc_can(enum fx_knob k);
void fxc_stall(oc_backend *b, oc_stream s, bool stalled);
void fxc_fail(oc_backend *b, const char *entry, uint64_t nth, uint64_t count, oc_status as);
void fxc_delay(oc_backend *b, const char *entry, uint64_t ns);
void fxc_capturing(oc_backend *b, oc_stream s, bool on);
uint64_t fxc_calls(oc_backend *b, const char *entry);
uint64_t fxc_all_calls(oc_backend *b);
uint64_t fxc_stale(oc_backend *b);
size_t fxc_used(oc_backend *b);
uint64_t fxc_blocks(oc_backend *b);
uint64_t fxc_modules(oc_backend *b);
uint64_t fxc_events(oc_backend *b);

/* PTX of the fixture's kernels, NUL included. */
extern const char fxc_ptx[];
extern const size_t fxc_ptx_bytes;

/* The simulated device's ordinal under a backend of fx_open; -1 on a real driver. */
int fxc_ordinal(oc_backend *b);

#endif
