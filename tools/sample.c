/* SPDX-License-Identifier: MIT */
/*
 * octool sample: a safetensors file that any run writes alike: a transformer's shapes with random weights, and
 * tensors whose values are hard on encoders.
 */
#include "config.h"

#include "tools/command.h"
#include "tools/formats.h"
#include "tools/number.h"
#include "tools/output.h"
#include "tools/tensors.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
  "usage: octool sample OUT.safetensors [--params N] [--layers L]\n"
  "\n"
  "Writes a deterministic model: the shapes of a transformer in BF16, F16 and F32 with random weights, odd widths\n"
  "among them, and small tensors of zero rows, denormals, infinities, NaNs and extremes.\n"
  "\n"
  "  --params N    about N weights; default 1000000\n"
  "  --layers L    transformer layers; default 2\n";

/* What a tensor is filled with. */
enum filling { WEIGHTS, ONES, ZERO_ROWS, DENORMALS, INFINITIES, NANS, EXTREMES, BYTES };

enum { HEADER_ALIGN = 8, CHUNK = 4096 };

struct sample {
  struct tensor_list tensors;
  enum filling *filling;      /* [tensors.count] */
  size_t room;
  uint64_t parameters;
};

/* ---- The list ---- */

static bool add(struct sample *s, enum filling filling, const char *type, uint64_t rows, uint64_t columns, size_t rank,
                const char *name)
{
  uint64_t shape[2] = {rows, columns}, end = 0;
  size_t at = s->tensors.count;
  struct tensor *t;

  if (at == s->room) {
    enum filling *grown = reallocarray(s->filling, s->room ? 2 * s->room : 64, sizeof *grown);

    if (!grown)
      return false;
    s->filling = grown;
    s->room = s->room ? 2 * s->room : 64;
  }
  if (at > 0)
    end = s->tensors.at[at - 1].offset + s->tensors.at[at - 1].bytes;
  t = oct_tensors_add(&s->tensors, name, oct_dtype(type), rank == 2 ? shape : &shape[1], rank);
  if (!t || !oct_dtype_bytes(t->type, t->shape, rank, &t->bytes) || __builtin_add_overflow(end, t->bytes, &shape[0]))
    return false;
  t->offset = end;
  s->filling[at] = filling;
  s->parameters += t->bytes * 8 / t->type->bits;
  return true;
}

static bool add_layer(struct sample *s, uint64_t layer, uint64_t d, uint64_t inner)
{
  static const char *const attention[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
  const char *type = layer % 2 ? "F16" : "BF16", *inner_type = layer % 2 ? "BF16" : "F32";
  char name[96];
  bool ok = true;

  for (int i = 0; ok && i < 4; i++) {
    snprintf(name, sizeof name, "model.layers.%" PRIu64 ".self_attn.%s.weight", layer, attention[i]);
    ok = add(s, WEIGHTS, type, d, d, 2, name);
  }
  for (int i = 0; ok && i < 3; i++) {
    static const char *const mlp[] = {"gate_proj", "up_proj", "down_proj"};

    snprintf(name, sizeof name, "model.layers.%" PRIu64 ".mlp.%s.weight", layer, mlp[i]);
    ok = add(s, WEIGHTS, inner_type, i == 2 ? d : inner, i == 2 ? inner : d, 2, name);
  }
  for (int i = 0; ok && i < 2; i++) {
    snprintf(name, sizeof name, "model.layers.%" PRIu64 ".%s_layernorm.weight", layer, i ? "post" : "input");
    ok = add(s, ONES, "F32", 0, d, 1, name);
  }
  return ok;
}

static bool add_edges(struct sample *s)
{
  static const struct { enum filling filling; const char *name; uint64_t rows, columns; } edges[] = {
    {ZERO_ROWS, "zero_rows", 9, 33}, {DENORMALS, "denormals", 5, 47}, {INFINITIES, "infinities", 7, 19},
    {NANS, "nans", 6, 21},           {EXTREMES, "extremes", 8, 35},   {WEIGHTS, "one", 1, 1},
    {WEIGHTS, "row", 1, 37},         {WEIGHTS, "column", 41, 1}};
  static const char *const types[] = {"F32", "BF16", "F16"};
  char name[64];

  for (size_t t = 0; t < 3; t++)
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
      snprintf(name, sizeof name, "edges.%s.%s", edges[i].name, types[t]);
      if (!add(s, edges[i].filling, types[t], edges[i].rows, edges[i].columns, 2, name))
        return false;
    }
  return add(s, BYTES, "I64", 0, 1, 1, "edges.step") && add(s, BYTES, "U8", 3, 5, 2, "edges.mask") &&
         add(s, WEIGHTS, "F32", 0, 4, 2, "edges.empty");
}

/* Widths for about `params` weights: d^2 (4 + 3 * 8/3) a layer, as much again as two layers outside them. */
static bool lay_out(struct sample *s, uint64_t params, uint64_t layers)
{
  uint64_t d = (uint64_t)sqrt((double)params / (double)(12 * layers + 24)), inner, in_layers, vocabulary;
  bool ok;

  d = d < 8 ? 8 : d;
  inner = (8 * d / 3) | 1;
  in_layers = layers * (4 * d * d + 3 * d * inner + 2 * d);
  vocabulary = (params > in_layers ? (params - in_layers) / (2 * d) : 8) | 1;
  ok = add(s, WEIGHTS, "BF16", vocabulary, d, 2, "model.embed_tokens.weight");
  for (uint64_t i = 0; ok && i < layers; i++)
    ok = add_layer(s, i, d, inner);
  return ok && add(s, ONES, "F32", 0, d, 1, "model.norm.weight") &&
         add(s, WEIGHTS, "F16", vocabulary, d, 2, "lm_head.weight") && add_edges(s);
}

/* ---- Values ---- */

/* splitmix64, seeded by tensor: a tensor's values don't depend on those before it. */
static uint64_t next_random(uint64_t *state)
{
  uint64_t z = *state += 0x9e3779b97f4a7c15u;

  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Bell-shaped, of standard deviation 0.02: the sum of four uniforms. */
static float weight(uint64_t *state)
{
  uint64_t r = next_random(state);
  int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) + (int)(r >> 48);

  return (float)(sum - 2 * 0xffff) * (0.02f / 37837.0f);
}

/* A 16-bit type's codes by exponent and mantissa bits; F32 has 8 and 23. */
struct fields { unsigned exponent_bits, mantissa_bits; };

static struct fields fields_of(const struct dtype *t)
{
  if (t->source == SOURCE_F32)
    return (struct fields){8, 23};
  return t->source == SOURCE_BF16 ? (struct fields){8, 7} : (struct fields){5, 10};
}

static uint32_t encode_f16(float x)
{
  /* Weights are under 1 and over the denormals but for zero, so that truncation of fields is enough. */
  uint32_t u;
  int exponent;

  memcpy(&u, &x, sizeof u);
  exponent = (int)(u >> 23 & 255) - 127 + 15;
  return exponent <= 0 ? u >> 16 & 0x8000 : (u >> 16 & 0x8000) | (uint32_t)exponent << 10 | (u >> 13 & 0x3ff);
}

static uint32_t encode(const struct dtype *t, float x)
{
  uint32_t u;

  memcpy(&u, &x, sizeof u);
  return t->source == SOURCE_F32 ? u : t->source == SOURCE_BF16 ? oct_f32_to_bf16(x) : encode_f16(x);
}

static uint32_t special(const struct dtype *t, enum filling filling, uint64_t r)
{
  struct fields f = fields_of(t);
  uint32_t sign = (uint32_t)(r >> 63) << (f.exponent_bits + f.mantissa_bits);
  uint32_t mantissa = (uint32_t)(r >> 8) & ((1u << f.mantissa_bits) - 1);
  uint32_t top = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;

  switch (filling) {
  case DENORMALS: return sign | mantissa;
  case INFINITIES: return sign | top;
  case NANS: return sign | top | (mantissa ? mantissa : 1);
  default: return sign | (r & 1 ? top - 1 - (mantissa >> 2) : 1u << f.mantissa_bits);  /* largest, smallest normal */
  }
}

static uint32_t value(const struct dtype *t, enum filling filling, uint64_t row, uint64_t *state)
{
  uint64_t r;

  switch (filling) {
  case ONES: return encode(t, 1 + weight(state));
  case ZERO_ROWS: return row % 3 == 0 ? 0 : encode(t, weight(state));
  case WEIGHTS: return encode(t, weight(state));
  case BYTES: return (uint32_t)next_random(state) & 1;
  case DENORMALS: return special(t, filling, next_random(state));
  default:
    /* One in eight, and the whole of the last row, is special; the first row has none. */
    r = next_random(state);
    return row > 0 && (r % 8 == 0 || row == 5) ? special(t, filling, r >> 3 | r << 61) : encode(t, weight(state));
  }
}

static bool write_tensor(FILE *out, const struct tensor *t, enum filling filling, uint64_t seed)
{
  size_t size = t->type->bits / 8, n = 0;
  uint64_t count = t->bytes / size, columns = t->shape[t->rank - 1], state = seed;
  unsigned char chunk[CHUNK];

  for (uint64_t i = 0; i < count; i++) {
    uint64_t v = value(t->type, filling, i / columns, &state);

    for (size_t b = 0; b < size; b++)
      chunk[n++] = (unsigned char)(v >> 8 * b);
    if (n + 8 > CHUNK || i + 1 == count) {
      if (fwrite(chunk, 1, n, out) != n)
        return false;
      n = 0;
    }
  }
  return true;
}

/* ---- The file ---- */

static json_t *header_of(const struct sample *s)
{
  json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "octool sample");

  for (size_t i = 0; header && i < s->tensors.count; i++) {
    const struct tensor *t = &s->tensors.at[i];
    json_t *shape = json_array();

    for (size_t k = 0; k < t->rank; k++)
      json_array_append_new(shape, json_integer((json_int_t)t->shape[k]));
    if (json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->type->name, "shape", shape, "data_offsets",
                                      (json_int_t)t->offset, (json_int_t)t->offset + (json_int_t)t->bytes)) != 0) {
      json_decref(header);
      return NULL;
    }
  }
  return header;
}

static bool write_header(FILE *out, const struct sample *s)
{
  json_t *header = header_of(s);
  char *text = header ? json_dumps(header, JSON_COMPACT) : NULL;
  size_t n = text ? strlen(text) : 0, padded = (n + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
  bool ok = text != NULL;

  for (size_t i = 0; ok && i < 8; i++)
    ok = fputc((int)((uint64_t)padded >> 8 * i & 255), out) != EOF;
  ok = ok && fprintf(out, "%-*s", (int)padded, text) >= 0;
  free(text);
  json_decref(header);
  return ok;
}

static bool write_all(FILE *out, const struct sample *s)
{
  if (!write_header(out, s))
    return false;
  for (size_t i = 0; i < s->tensors.count; i++)
    if (!write_tensor(out, &s->tensors.at[i], s->filling[i], i))
      return false;
  return true;
}

static bool write_file(const char *path, const struct sample *s, struct fault *why)
{
  struct output out;

  if (!oct_output_open_file(&out, path, why))
    return false;
  errno = ENOMEM;     /* what jansson and the lists leave unsaid */
  return oct_output_close(&out, write_all(out.file, s), why);
}

/* ---- The command ---- */

static bool make(const char *path, uint64_t params, uint64_t layers, struct fault *why)
{
  struct sample s = {0};
  struct human h;
  struct quoted q;
  uint64_t bytes;
  bool ok;

  if (!lay_out(&s, params, layers) || !oct_tensors_bytes(&s.tensors, &bytes))
    ok = oct_fault(why, "no memory for the list of tensors");
  else
    ok = write_file(path, &s, why);
  if (ok)
    printf("%s: %zu tensors, %" PRIu64 " parameters, %s\n", oct_quote(&q, path), s.tensors.count, s.parameters,
           oct_human_bytes(&h, bytes));
  oct_tensors_free(&s.tensors);
  free(s.filling);
  return ok && oct_flush_stdout(why);
}

int oct_sample_main(int argc, char **argv)
{
  static const struct option options[] = {
    {"params", required_argument, NULL, 'p'}, {"layers", required_argument, NULL, 'l'},
    {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  uint64_t params = 1000000, layers = 2;
  struct fault why;
  int c;

  while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
    bool ok = true;

    switch (c) {
    case 'p': ok = oct_count_option("--params", optarg, 1, UINT64_C(1000000000000), &params, &why); break;
    case 'l': ok = oct_count_option("--layers", optarg, 1, 10000, &layers, &why); break;
    case 'h': return oct_help("sample", help);
    default: return oct_bad_option("sample", c, argv);
    }
    if (!ok)
      return oct_usage("sample", "%s", why.text);
  }
  if (argc - optind != 1)
    return oct_usage("sample", "one output file is expected, %d are given", argc - optind);
  if (make(argv[optind], params, layers, &why))
    return EXIT_SUCCESS;
  oct_complain("sample", "%s", why.text);
  return EXIT_FAILURE;
}
