/* SPDX-License-Identifier: MIT */
/* octool run: its options, and the order of its steps. */
#include "config.h"

#include "tools/run.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/number.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
  "usage: octool run [OPTION...] FILE.safetensors...\n"
  "\n"
  "Loads every tensor of every file into a model's pool, builds the derived encodings of its matrices (2-D; F32,\n"
  "BF16 or F16) with kernels, verifies each byte, and serves: threads look up, launch and check matrix-vector\n"
  "products, while the model is loaded anew and the old one torn down. Ends with a teardown and its report.\n"
  "\n"
  "  --backend NAME    host (the default), the embedded device; or cuda, a GPU\n"
  "  --threads N       serving threads; default 2\n"
  "  --seconds S       serve for at least S seconds; default 2\n"
  "  --swap K          load anew and swap K times meanwhile; default 1\n"
  "  --derive LIST     of bf16,rowwise-fp8,nvfp4-t,nvfp4-from-fp8; default all\n"
  "  --json OUT        write the figures there too, as JSON; - is standard output, alone then\n"
  "  --trace OUT       write a trace there, which Perfetto and chrome://tracing open: builds and driver calls, a row a\n"
  "                    thread; live, retired and arena bytes, a track a model\n"
  "  --html OUT        write a page there, one file, for a browser: the arenas as a map of their blocks, bytes over time,\n"
  "                    latencies, the teardown's report; - is standard output, alone then\n"
  "  --publish         let octool top look at it meanwhile\n"
  "\n"
  "Latencies are of single lookups, each timed, less the median cost of reading the clock.\n"
  "Exit status 0 only if every byte and product was right, no launch was stale, and nothing was left behind.\n";

/* ---- The input of all products ---- */

/* Magnitudes from 1 to 2, so that no product with a small weight loses bits; signs and steps by a hash of k. */
static float input(size_t k)
{
  uint32_t hash = (uint32_t)k * 2654435761u;
  float magnitude = 1 + (float)(hash >> 8 & 63) / 64;

  return hash >> 31 ? -magnitude : magnitude;
}

static bool make_input(struct run *r, struct fault *why)
{
  r->x = calloc(r->checkpoint.most_columns + 1, sizeof *r->x);
  for (size_t k = 0; r->x && k < r->checkpoint.most_columns; k++)
    r->x[k] = input(k);
  return r->x || oct_fault(why, "no memory for the input vector");
}

/* ---- Streams and chunks of the loader ---- */

static bool open_loader(struct run *r, struct fault *why)
{
  for (; r->stream_count < LOADER_STREAMS; r->stream_count++) {
    unsigned i = r->stream_count;

    if (!oct_host_alloc(&r->device, LOADER_CHUNK, &r->chunk[i], why))
      return false;
    if (!oct_stream_create(&r->device, &r->streams[i], why)) {
      oct_host_free(&r->device, r->chunk[i]);
      return false;
    }
  }
  return true;
}

/* All models are gone. */
static bool close_loader(struct run *r, struct fault *why)
{
  bool ok = true;

  while (r->stream_count > 0) {
    unsigned i = --r->stream_count;

    ok = oct_wait(&r->device, r->streams[i], why) && ok;
    ok = oct_stream_destroy(&r->device, r->streams[i], why) && ok;
    oct_host_free(&r->device, r->chunk[i]);
  }
  return ok;
}

/* ---- The steps ---- */

/* Each step's failure is kept, if it is the first; those after it are taken all the same. Being
   interrupted is no failure. */
static void keep(struct run *r, bool ok, const struct fault *why)
{
  if (!ok && !(oct_interrupted() && strcmp(why->text, "interrupted") == 0))
    oct_run_fail(r, why);
}

static bool serve(struct run *r, struct fault *why)
{
  struct generation *first = oct_generation_make(r, why);
  uint64_t start = oct_now_ns();
  struct servers *servers;
  bool ok;

  if (!first)
    return false;
  oct_publish(r, first);
  servers = oct_serve_begin(r, why);
  if (!servers)
    return false;
  ok = oct_swap(r, why);
  keep(r, ok, why);
  ok = oct_serve_end(r, servers, ok ? why : &(struct fault){""}) && ok;
  r->totals.serving_ns = oct_now_ns() - start;
  return ok;
}

static bool retire_all(struct run *r, struct fault *why)
{
  struct generation *next;
  bool ok = !r->alive || oct_runpage_map(r, r->alive, why);

  for (struct generation *g = r->alive; g; g = next) {
    next = g->next;
    ok = oct_generation_retire(r, g, ok ? why : &(struct fault){""}) && ok;
  }
  return ok;
}

/* Without the device's own counts, what went back is what the teardowns' reports say: totals has it. */
static bool account(struct run *r, const struct device_account *before, struct fault *why)
{
  struct device_account now;

  if (!oct_device_account(&r->device, &now, why))
    return false;
  r->totals.device_counts = now.counts;
  r->totals.device_growth = (int64_t)(now.used - before->used);
  r->totals.stale_launches = now.stale_launches;
  r->totals.device_frees = now.frees - before->frees;
  if (now.counts)
    r->totals.bytes_leaked = r->totals.device_growth;
  return true;
}

static void with_device(struct run *r)
{
  struct fault why = {""};
  struct device_account before;

  if (!oct_device_account(&r->device, &before, &why)) {
    oct_run_fail(r, &why);
    return;
  }
  keep(r, make_input(r, &why) && open_loader(r, &why) && serve(r, &why), &why);
  keep(r, retire_all(r, &why), &why);
  keep(r, account(r, &before, &why), &why);
  keep(r, close_loader(r, &why), &why);
}

static void lock_open(struct run *r)
{
  pthread_condattr_t monotonic;

  pthread_mutex_init(&r->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&r->moved, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static void lock_close(struct run *r)
{
  pthread_cond_destroy(&r->moved);
  pthread_mutex_destroy(&r->lock);
}

static int tell(struct run *r, struct output *out)
{
  struct fault why = {""};
  bool told, clean;

  /* Without a model there is nothing to tell but the failure. */
  if (r->totals.report && !oct_output_is_stdout(out) && !oct_runpage_is_stdout(r))
    oct_print_outcome(r);
  told = oct_write_outcome(r, out, &why) && oct_flush_stdout(&why);
  if (!told)
    oct_complain("run", "%s", why.text);
  if (r->failed)
    oct_complain("run", "%s", r->failure.text);
  clean = oct_run_is_clean(r);
  if (!oct_runpage_write(r, clean && !r->failed, &why)) {
    oct_complain("run", "%s", why.text);
    told = false;
  }
  if (r->failed || !told || !clean)
    return EXIT_FAILURE;
  if (oct_interrupted())
    oct_complain("run", "interrupted");
  return oct_interrupt_exit_code();
}

/* ---- The trace ---- */

static oc_status write_piece(void *file, const char *json, size_t n)
{
  return fwrite(json, 1, n, file) == n ? OC_OK : OC_E_IO;
}

/* No path: no trace. */
static bool trace_begin(struct run *r, struct output *out, struct fault *why)
{
  oc_trace_options options = {.struct_size = sizeof options, .events = TRACE_EVENTS};
  oc_status st;

  if (!r->options.trace)
    return true;
  if (!oct_output_open_file(out, r->options.trace, why))
    return false;
  st = oc_trace_start(&options);
  return st == OC_OK || oct_liboc_fault(why, st, "starting the trace");
}

static bool trace_end(struct output *out, struct fault *why)
{
  struct quoted q;
  oc_status st;

  if (!out->file)
    return true;
  st = oc_trace_stop(write_piece, out->file);
  if (st == OC_OK || st == OC_E_IO)
    return oct_output_close(out, st == OC_OK, why);
  oct_output_abandon(out);
  return oct_fault(why, "%s: cannot be written: %s", oct_quote(&q, out->path), oc_last_error());
}

/* After a failure all are closed again. */
static void abandon(struct run *r, struct output *json, struct output *trace)
{
  oc_status st = trace->file ? oc_trace_stop(NULL, NULL) : OC_OK;

  (void)st;
  oct_output_abandon(trace);
  oct_output_abandon(json);
  oct_runpage_abandon(r);
}

static bool is_no_input(const struct run_options *o, struct fault *why)
{
  return oct_output_is_no_input(o->json, o->files, o->file_count, why) &&
         oct_output_is_no_input(o->trace, o->files, o->file_count, why) &&
         oct_output_is_no_input(o->html, o->files, o->file_count, why);
}

static bool publish(const struct run *r, struct fault *why)
{
  oc_status st = r->options.publish ? oc_stats_publish(NULL) : OC_OK;

  return st == OC_OK || oct_liboc_fault(why, st, "publishing the figures");
}

static int run_on_device(struct run *r)
{
  struct output out = {0}, trace = {0};
  struct fault why;
  int code;

  if (!is_no_input(&r->options, &why) || !oct_output_open(&out, r->options.json, &why) || !oct_runpage_open(r, &why) ||
      !trace_begin(r, &trace, &why) || !publish(r, &why) ||
      !oct_device_open(&r->device, r->options.backend, 0, &why)) {
    abandon(r, &out, &trace);
    oct_complain("run", "%s", why.text);
    return EXIT_FAILURE;
  }
  lock_open(r);
  with_device(r);
  keep(r, oct_device_close(&r->device, &why), &why);
  keep(r, trace_end(&trace, &why), &why);
  code = tell(r, &out);
  lock_close(r);
  free(r->x);
  oc_string_free(r->totals.report);
  oc_string_free(r->totals.report_json);
  return code;
}

static int run(struct run *r)
{
  struct fault why;
  int code = EXIT_FAILURE;

  if (!oct_checkpoint_open(&r->checkpoint, r->options.files, r->options.file_count, r->options.derive, &why)) {
    oct_complain("run", "%s", why.text);
    return EXIT_FAILURE;
  }
  if (r->options.inject != INJECT_NONE && r->checkpoint.served_count == 0)
    oct_complain("run", "--inject: there is nothing to derive from in these files");
  else
    code = run_on_device(r);
  oct_checkpoint_close(&r->checkpoint);
  return code;
}

/* ---- Options ---- */

static bool derive_option(const char *list, bool derive[DERIVATIONS], struct fault *why)
{
  struct quoted q;

  memset(derive, 0, DERIVATIONS * sizeof derive[0]);
  for (const char *at = list;; at++) {
    size_t n = strcspn(at, ",");
    enum derivation d = 0;

    while (d < DERIVATIONS && !(strlen(oct_derivation_name(d)) == n && strncmp(at, oct_derivation_name(d), n) == 0))
      d++;
    if (d == DERIVATIONS)
      return oct_fault(why, "--derive: '%s' is no list of bf16,rowwise-fp8,nvfp4-t,nvfp4-from-fp8",
                       oct_quote(&q, list));
    derive[d] = true;
    at += n;
    if (*at == '\0')
      return true;
  }
}

static bool inject_option(const char *text, enum inject *out, struct fault *why)
{
  static const char *const names[] = {[INJECT_BITFLIP] = "bitflip", [INJECT_NO_GRACE] = "no-grace",
                                      [INJECT_MISS] = "miss", [INJECT_ORPHAN] = "orphan"};
  struct quoted q;

  for (size_t i = 1; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(text, names[i]) == 0) {
      *out = (enum inject)i;
      return true;
    }
  return oct_fault(why, "--inject: '%s' is not bitflip, no-grace, miss or orphan", oct_quote(&q, text));
}

static bool seconds_option(const char *text, double *out, struct fault *why)
{
  struct quoted q;

  if (oct_parse_seconds(text, out) && *out <= 1e9)
    return true;
  return oct_fault(why, "--seconds: '%s' is not a number from 0 to 1000000000", oct_quote(&q, text));
}

enum { OPT_BACKEND = 256, OPT_THREADS, OPT_SECONDS, OPT_SWAP, OPT_DERIVE, OPT_JSON, OPT_TRACE, OPT_HTML, OPT_PUBLISH,
       OPT_INJECT };

static bool take_option(struct run_options *o, int c, struct fault *why)
{
  switch (c) {
  case OPT_BACKEND: o->backend = optarg; return true;
  case OPT_THREADS: return oct_count_option("--threads", optarg, 1, 1024, &o->threads, why);
  case OPT_SECONDS: return seconds_option(optarg, &o->seconds, why);
  case OPT_SWAP: return oct_count_option("--swap", optarg, 0, 1000000, &o->swaps, why);
  case OPT_DERIVE: return derive_option(optarg, o->derive, why);
  case OPT_JSON: o->json = optarg; return true;
  case OPT_TRACE: o->trace = optarg; return true;
  case OPT_HTML: o->html = optarg; return true;
  case OPT_PUBLISH: o->publish = true; return true;
  default: return inject_option(optarg, &o->inject, why);
  }
}

int oct_run_main(int argc, char **argv)
{
  static const struct option options[] = {
    {"backend", required_argument, NULL, OPT_BACKEND}, {"threads", required_argument, NULL, OPT_THREADS},
    {"seconds", required_argument, NULL, OPT_SECONDS}, {"swap", required_argument, NULL, OPT_SWAP},
    {"derive", required_argument, NULL, OPT_DERIVE},   {"json", required_argument, NULL, OPT_JSON},
    {"trace", required_argument, NULL, OPT_TRACE},     {"html", required_argument, NULL, OPT_HTML},
    {"publish", no_argument, NULL, OPT_PUBLISH},
    {"inject", required_argument, NULL, OPT_INJECT},   {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  struct run r = {.options = {.backend = "host", .threads = 2, .seconds = 2, .swaps = 1,
                              .derive = {true, true, true, true}}};
  struct fault why;
  int c;

  while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
    if (c == 'h')
      return oct_help("run", help);
    if (c == '?' || c == ':')
      return oct_bad_option("run", c, argv);
    if (!take_option(&r.options, c, &why))
      return oct_usage("run", "%s", why.text);
  }
  if (optind == argc)
    return oct_usage("run", "no file is given");
  if (r.options.inject == INJECT_NO_GRACE && r.options.swaps == 0)
    return oct_usage("run", "--inject no-grace needs a teardown meanwhile: --swap 1 or more");
  if (r.options.inject == INJECT_NO_GRACE && strcmp(r.options.backend, "host") != 0)
    return oct_usage("run", "--inject no-grace needs the host backend: elsewhere nothing says what such a launch does");
  if (oct_both_stdout(r.options.json, r.options.html))
    return oct_usage("run", "--json - and --html - both want standard output");
  r.options.files = argv + optind;
  r.options.file_count = (size_t)(argc - optind);
  oct_interrupt_catch();
  return run(&r);
}
