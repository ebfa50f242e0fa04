/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/benchlayout.h"
#include "tools/benchworld.h"
#include "tools/device.h"
#include "tools/growth.h"

#include <stdlib.h>

/* ---- The tensors ---- */

enum { EDGES = 3, DENSE = 7, EXPERTS = 512, OF_EXPERT = 12 };

static void add(struct exl3 *x, uint64_t bytes)
{
  const uint64_t chunk = 2 << 20;
  uint64_t rounded = (bytes + 511) / 512 * 512;

  x->bytes[x->count++] = bytes;
  x->sum += bytes;
  x->reserve += (bytes + 255) / 256 * 256;
  if (rounded >= chunk)
    x->chunk_rule += (double)((bytes + chunk - 1) / chunk * chunk);   // NOLINT(bugprone-integer-division): whole chunks
  else
    x->chunk_rule += (double)chunk / (double)(chunk / rounded);       // NOLINT(bugprone-integer-division): whole ones
}

static void add_projection(struct exl3 *x, uint64_t rows, uint64_t columns)
{
  add(x, rows / 16 * (columns / 16) * 64 * 2);
  add(x, rows * 2);
  add(x, columns * 2);
  add(x, 4);
}

static void add_layer(struct exl3 *x)
{
  const uint64_t hidden = 2560, dense[DENSE - 2] = {32 * 128 * hidden * 2, 4 * 128 * hidden * 2, 4 * 128 * hidden * 2,
                                                    32 * 128 * hidden * 2, 512 * hidden * 2};

  for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
    add(x, dense[i]);
  for (size_t e = 0; e < EXPERTS; e++) {
    add_projection(x, hidden, 640);
    add_projection(x, hidden, 640);
    add_projection(x, 640, hidden);
  }
  add(x, hidden * 2);
  add(x, hidden * 2);
}

bool oct_exl3_make(struct exl3 *x, size_t layers, struct fault *why)
{
  size_t count = EDGES + layers * (DENSE + EXPERTS * OF_EXPERT);

  *x = (struct exl3){.bytes = calloc(count, sizeof *x->bytes)};
  if (!x->bytes)
    return oct_fault(why, "no memory for the sizes of %zu tensors", count);
  add(x, UINT64_C(151936) * 2560 * 2);
  add(x, 2560 * 2);
  add(x, UINT64_C(151936) * 2560 * 2);
  for (size_t i = 0; i < layers; i++)
    add_layer(x);
  return true;
}

void oct_exl3_free(struct exl3 *x)
{
  free(x->bytes);
}

bool oct_exl3_load(const struct exl3 *x, oc_pool *p, oc_devptr *at, struct fault *why)
{
  for (size_t i = 0; i < x->count; i++) {
    oc_devptr block;
    oc_status st = oc_pool_alloc_owned(p, "weights", (size_t)x->bytes[i], 0, &block);

    if (st != OC_OK)
      return oct_liboc_fault(why, st, "tensor %zu of %zu", i, x->count);
    if (at)
      at[i] = block;
  }
  return true;
}

/* ---- What the pool makes of them ---- */

static bool figures(oc_pool *p, oc_pool_stats *out, struct fault *why)
{
  oc_status st;

  out->struct_size = sizeof *out;
  st = oc_pool_get_stats(p, out);
  if (st == OC_OK)
    st = oc_pool_check(p);
  return st == OC_OK || oct_liboc_fault(why, st, "the pool's figures");
}

static bool lay_out(const struct exl3 *x, size_t reserve, oc_pool_stats *out, struct fault *why)
{
  struct void_device d;
  oc_model *m = NULL;
  bool ok = oct_void_open(&d, why) && oct_void_model(&d, reserve, &m, why) && oct_exl3_load(x, oc_model_pool(m), NULL, why) &&
            figures(oc_model_pool(m), out, why);

  if (m)
    (void)!oc_model_destroy(m);
  return d.backend ? oct_void_close(&d, ok ? why : &(struct fault){""}) && ok : ok;
}

static void rows(struct bench *b, const struct exl3 *x, const oc_pool_stats *reserved, const oc_pool_stats *on_demand)
{
  static const char rule[] = "the bytes asked for";
  double asked = (double)x->sum;
  struct row *row = oct_bench_row(b, rule, "B", "arena bytes, exl3-moe-512e, reserved");

  oct_row_judge(row, (double)reserved->arena_bytes, asked, AT_MOST, 1.005);
  oct_row_other(row, "one request a tensor, chunk rule", x->chunk_rule / asked);
  row = oct_bench_row(b, rule, "B", "arena bytes, exl3-moe-512e, on demand");
  oct_row_judge(row, (double)on_demand->arena_bytes, asked, AT_MOST, 1.03);
  row = oct_bench_row(b, "no baseline", "B", "host metadata a live block, exl3-moe-512e");
  oct_row_judge(row, (double)on_demand->host_metadata_bytes / (double)on_demand->live_blocks, 0, AT_MOST, 64);
}

static void draw(struct bench *b, const struct exl3 *x, const oc_pool_stats *reserved, const oc_pool_stats *on_demand)
{
  struct curve *c = oct_bench_curve(b, "device bytes by allocator, exl3-moe-512e", "allocator", "GiB");
  const double gib = 1 << 30;

  c->bars = true;
  oct_curve_lines(c, "GiB", NULL);
  // cppcheck-suppress internalAstError ; a fault of cppcheck 2.10
  oct_curve_named_point(c, "tensors", &(double){(double)x->sum / gib});
  oct_curve_named_point(c, "pool, reserved", &(double){(double)reserved->arena_bytes / gib});
  oct_curve_named_point(c, "pool, on demand", &(double){(double)on_demand->arena_bytes / gib});
  oct_curve_named_point(c, "a request a tensor", &(double){x->chunk_rule / gib});
}

bool oct_bench_layout(struct bench *b, struct fault *why)
{
  struct exl3 x;
  oc_pool_stats reserved, on_demand;
  bool ok = oct_exl3_make(&x, b->quick ? EXL3_QUICK_LAYERS : EXL3_LAYERS, why) &&
            lay_out(&x, (size_t)x.reserve, &reserved, why) && lay_out(&x, 0, &on_demand, why);

  if (ok) {
    rows(b, &x, &reserved, &on_demand);
    draw(b, &x, &reserved, &on_demand);
  }
  oct_exl3_free(&x);
  return ok;
}
