/* SPDX-License-Identifier: MIT */
/*
 * The safetensors reader on untrusted files: one file for each kind of damage, made here, must be refused with a
 * sentence that names the file, the tensor where there is one, and the damage.
 */
#include "config.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/safetensors.h"

static char folder[] = "/tmp/oct-safetensors-XXXXXX";
static char path[64];

static void write_bytes(const void *bytes, size_t n)
{
  FILE *f = fopen(path, "wb");

  ck_assert_ptr_nonnull(f);
  ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
  ck_assert_int_eq(fclose(f), 0);
}

static void put_length(unsigned char out[8], uint64_t n)
{
  for (int i = 0; i < 8; i++)
    out[i] = (unsigned char)(n >> 8 * i);
}

/* length, header, then `data` bytes 0, 1, 2, ... */
static void write_file(uint64_t length, const char *header, size_t data)
{
  size_t h = strlen(header);
  unsigned char *all = malloc(8 + h + data);

  put_length(all, length);
  memcpy(all + 8, header, h);   // NOLINT(bugprone-not-null-terminated-result): bytes
  for (size_t i = 0; i < data; i++)
    all[8 + h + i] = (unsigned char)i;
  write_bytes(all, 8 + h + data);
  free(all);
}

static void refused(const char *words)
{
  struct safetensors s;
  struct fault why = {""};

  ck_assert_msg(!oct_safetensors_open(path, &s, &why), "accepted; expected: %s", words);
  ck_assert_msg(strncmp(why.text, path, strlen(path)) == 0, "does not begin with the file: %s", why.text);
  ck_assert_msg(strstr(why.text, words) != NULL, "'%s' is not in: %s", words, why.text);
}

static void open_ok(struct safetensors *s)
{
  struct fault why = {""};

  ck_assert_msg(oct_safetensors_open(path, s, &why), "%s", why.text);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

START_TEST(a_sound_file_is_read_in_the_order_of_its_bytes)
{
  const char *header = "{\"__metadata__\":{\"format\":\"pt\"},\"b\":" T("F32", "[2,3]", "[4,28]") ",\"none\":"
                       T("F16", "[0,7]", "[28,28]") ",\"a\":" T("BF16", "[2]", "[0,4]") ",\"scalar\":"
                       T("U8", "[]", "[28,29]") "}   ";
  struct fault why;
  struct safetensors s;
  unsigned char two[2];
  char shape[32];

  write_file(strlen(header), header, 29);
  open_ok(&s);
  ck_assert_uint_eq(s.tensors.count, 4);
  ck_assert_str_eq(s.tensors.at[0].name, "a");
  ck_assert_str_eq(s.tensors.at[1].name, "b");
  ck_assert_str_eq(oct_tensor_shape(&s.tensors.at[1], shape, sizeof shape), "F32[2,3]");
  ck_assert_uint_eq(s.tensors.at[1].bytes, 24);
  ck_assert_str_eq(s.tensors.at[2].name, "none");
  ck_assert_uint_eq(s.tensors.at[2].bytes, 0);
  ck_assert_str_eq(s.tensors.at[3].name, "scalar");
  ck_assert(oct_safetensors_read(&s, &s.tensors.at[1], 22, two, 2, &why));
  ck_assert_uint_eq(two[0], 26);
  ck_assert_uint_eq(two[1], 27);
  ck_assert(!oct_safetensors_read(&s, &s.tensors.at[1], 23, two, 2, &why));
  ck_assert_ptr_nonnull(strstr(why.text, "tensor 'b': bytes 23 + 2 are past its end"));
  ck_assert(!oct_safetensors_read(&s, &s.tensors.at[1], UINT64_MAX, two, 2, &why));
  oct_safetensors_close(&s);
}
END_TEST

START_TEST(a_file_without_tensors_is_sound)
{
  struct safetensors s;

  write_file(2, "{}", 0);
  open_ok(&s);
  ck_assert_uint_eq(s.tensors.count, 0);
  oct_safetensors_close(&s);
}
END_TEST

static const struct { const char *header; size_t data; const char *words; } damages[] = {
  /* JSON */
  {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"a\":" T("U8", "[4]", "[4,8]") "}", 8, "duplicate object key"},
  {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "duplicate object key"},
  {"{\"a\":" T("U8", "[4]", "[0,4]"), 4, "header: no valid JSON at byte"},
  {"{\"a\":" T("U8", "[4]", "[0,4]") "} x", 4, "header: no valid JSON at byte"},
  {"{\"a\xff\":" T("U8", "[4]", "[0,4]") "}", 4, "header: no valid JSON at byte"},
  {"{\"a\\u0000b\":" T("U8", "[4]", "[0,4]") "}", 4, "header: no valid JSON at byte"},
  {" {}", 0, "header: does not begin with '{'"},
  {"[]", 0, "header: does not begin with '{'"},
  {"{\"a\":" T("U8", "[99999999999999999999]", "[0,4]") "}", 4, "too big integer"},
  /* entries */
  {"{\"a\":[]}", 0, "tensor 'a': its entry is not an object"},
  {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor 'a': no dtype"},
  {"{\"a\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor 'a': dtype is not a string"},
  {"{\"a\":" T("F33", "[4]", "[0,4]") "}", 4, "tensor 'a': unknown dtype 'F33'"},
  {"{\"a\":" T("f32", "[1]", "[0,4]") "}", 4, "tensor 'a': unknown dtype 'f32'"},
  {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, "tensor 'a': no shape"},
  {"{\"a\":" T("U8", "4", "[0,4]") "}", 4, "tensor 'a': shape is not a list"},
  {"{\"a\":" T("U8", "[-4]", "[0,4]") "}", 4, "tensor 'a': shape has a dimension that is not a count"},
  {"{\"a\":" T("U8", "[4.0]", "[0,4]") "}", 4, "tensor 'a': shape has a dimension that is not a count"},
  {"{\"a\":" T("U8", "[\"4\"]", "[0,4]") "}", 4, "tensor 'a': shape has a dimension that is not a count"},
  {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "tensor 'a': no data_offsets"},
  {"{\"a\":" T("U8", "[4]", "[0]") "}", 4, "tensor 'a': data_offsets is not a list of two"},
  {"{\"a\":" T("U8", "[4]", "[0,4,8]") "}", 4, "tensor 'a': data_offsets is not a list of two"},
  {"{\"a\":" T("U8", "[4]", "[-4,0]") "}", 4, "tensor 'a': data_offsets has an offset that is not a count"},
  {"{\"a\":" T("U8", "[4]", "[0,null]") "}", 4, "tensor 'a': data_offsets has an offset that is not a count"},
  {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"extra\":1}}", 4, "tensor 'a': unknown key 'extra'"},
  {"{\"__metadata__\":[]}", 0, "header: __metadata__ is not an object"},
  {"{\"__metadata__\":{\"k\":1}}", 0, "header: __metadata__ 'k' is not a string"},
  /* arithmetic */
  {"{\"a\":" T("U8", "[4]", "[4,0]") "}", 4, "tensor 'a': data_offsets end at 0, before their begin 4"},
  {"{\"a\":" T("F32", "[4]", "[0,4]") "}", 4, "tensor 'a': F32[4] takes 16 bytes, data_offsets give it 4"},
  {"{\"a\":" T("U8", "[4]", "[0,8]") "}", 8, "tensor 'a': U8[4] takes 4 bytes, data_offsets give it 8"},
  {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "tensor 'a': its shape overflows"},
  {"{\"a\":" T("F64", "[2305843009213693952]", "[0,0]") "}", 0, "tensor 'a': its shape overflows"},
  {"{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "tensor 'a': its shape overflows, or ends inside a byte"},
  {"{\"a\":" T("U8", "[4]", "[9223372036854775803,9223372036854775807]") "}", 4, "tensor 'a': ends at byte 9223372036854775807 of the data, which has 4"},
  {"{\"a\":" T("U8", "[8]", "[0,8]") "}", 7, "tensor 'a': ends at byte 8 of the data, which has 7 (truncated?)"},
  /* cover */
  {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[3,7]") "}", 7, "tensor 'b': overlaps tensor 'a'"},
  {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[0,4]") "}", 4, "tensor 'b': overlaps tensor 'a'"},
  {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"e\":" T("U8", "[0]", "[2,2]") "}", 4, "tensor 'e': overlaps tensor 'a'"},
  {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[6,10]") "}", 10, "tensor 'b': a hole of 2 bytes before it"},
  {"{\"a\":" T("U8", "[4]", "[1,5]") "}", 5, "tensor 'a': a hole of 1 bytes before it"},
  {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 9, "5 bytes after the last tensor belong to none"},
  {"{}", 1, "1 bytes after the last tensor belong to none"},
};

START_TEST(damage_in_the_header_is_named)
{
  write_file(strlen(damages[_i].header), damages[_i].header, damages[_i].data);
  refused(damages[_i].words);
}
END_TEST

START_TEST(damage_in_the_length_is_named)
{
  write_bytes("", 0);
  refused("is empty");
  write_bytes("\2\0\0", 3);
  refused("has 3 bytes, too few for the header's length (truncated?)");
  write_file(3, "{}", 0);
  refused("header: of 3 bytes, in a file of 10 (truncated?)");
  write_file(UINT64_MAX, "{}", 0);
  refused("header: its length, 18446744073709551615 bytes, is over the format's limit");
  write_file(OCT_SAFETENSORS_HEADER_MAX + 1, "{}", 0);
  refused("is over the format's limit of 100000000");
  write_file(OCT_SAFETENSORS_HEADER_MAX, "{}", 0);
  refused("(truncated?)");
  write_file(1, "{}", 0);
  refused("header: of 1 bytes, too short for an object");
  write_file(0, "{}", 0);
  refused("header: of 0 bytes, too short for an object");
}
END_TEST

START_TEST(every_truncation_of_a_sound_file_is_refused)
{
  const char *header = "{\"a\":" T("F32", "[2,2]", "[0,16]") ",\"b\":" T("U8", "[3]", "[16,19]") "}";
  size_t n = 8 + strlen(header) + 19;
  struct safetensors s;

  write_file(strlen(header), header, 19);
  open_ok(&s);
  oct_safetensors_close(&s);
  while (n-- > 0) {
    ck_assert_int_eq(truncate(path, (off_t)n), 0);
    refused(n == 0 ? "is empty" : "truncated?");
  }
}
END_TEST

/* Whatever one byte of the header becomes, opening ends, and what it accepts lies inside the file. */
START_TEST(every_flipped_bit_of_a_header_ends_well)
{
  const char *header = "{\"a\":" T("F32", "[2,2]", "[0,16]") ",\"b\":" T("U8", "[3]", "[16,19]") "}";
  size_t n = strlen(header);
  char *text = strdup(header);
  struct safetensors s;
  struct fault why;

  for (size_t bit = 0; bit < 8 * n; bit++) {
    text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    if (text[bit / 8] != '\0') {
      write_file(n, text, 19);
      if (oct_safetensors_open(path, &s, &why)) {
        for (size_t i = 0; i < s.tensors.count; i++)
          ck_assert_uint_le(s.tensors.at[i].offset + s.tensors.at[i].bytes, s.view.bytes);
        oct_safetensors_close(&s);
      }
    }
    text[bit / 8] = header[bit / 8];
  }
  free(text);
}
END_TEST

START_TEST(what_is_no_regular_file_is_named)
{
  refused("cannot be opened: No such file or directory");
  ck_assert_int_eq(mkdir(path, 0755), 0);
  refused("is a directory, not a regular file");
  ck_assert_int_eq(rmdir(path), 0);
  ck_assert_int_eq(mkfifo(path, 0644), 0);
  refused("is a pipe, not a regular file");      /* and does not hang without a writer */
  ck_assert_int_eq(unlink(path), 0);
}
END_TEST

START_TEST(an_unreadable_file_is_named)
{
  write_file(2, "{}", 0);
  ck_assert_int_eq(chmod(path, 0), 0);
  ck_assert_int_eq(chmod(folder, 0755), 0);
  /* Root reads everything; each test is a process of its own. */
  if (getuid() == 0)
    ck_assert_int_eq(setuid(65534), 0);
  refused("cannot be opened: Permission denied");
}
END_TEST

/* 1 TiB, all hole but for the header. */
START_TEST(a_huge_sparse_file_is_read)
{
  const char *header = "{\"a\":" T("U8", "[1099511627776]", "[0,1099511627776]") "}";
  off_t size = (off_t)(8 + strlen(header) + (UINT64_C(1) << 40));
  struct safetensors s;
  struct fault why;
  unsigned char last = 1;

  write_file(strlen(header), header, 0);
  refused("tensor 'a': ends at byte 1099511627776 of the data, which has 0 (truncated?)");
  if (truncate(path, size) != 0)
    return;     /* this file system has no files of that size */
  open_ok(&s);
  ck_assert_uint_eq(s.tensors.at[0].bytes, UINT64_C(1) << 40);
  ck_assert(oct_safetensors_read(&s, &s.tensors.at[0], (UINT64_C(1) << 40) - 1, &last, 1, &why));
  ck_assert_uint_eq(last, 0);
  oct_safetensors_close(&s);
}
END_TEST

START_TEST(a_file_that_shrinks_is_named_and_others_go_on)
{
  enum { DATA = 1 << 20 };
  const char *header = "{\"a\":" T("U8", "[1048576]", "[0,1048576]") "}";
  struct safetensors s;
  struct fault why;
  unsigned char *to = malloc(DATA), first;

  write_file(strlen(header), header, DATA);
  open_ok(&s);
  ck_assert_int_eq(truncate(path, 4096), 0);
  for (int round = 0; round < 2; round++) {
    ck_assert(!oct_safetensors_read(&s, &s.tensors.at[0], 0, to, DATA, &why));
    ck_assert_msg(strstr(why.text, "tensor 'a': was truncated, or its device failed, while it was read") != NULL,
                  "%s", why.text);
  }
  ck_assert(oct_safetensors_read(&s, &s.tensors.at[0], 0, &first, 1, &why));
  oct_safetensors_close(&s);
  free(to);
}
END_TEST

/* A SIGBUS that is not a copy's must still end the process. */
START_TEST(a_foreign_sigbus_still_kills)
{
  struct safetensors s;
  volatile char *map;
  int fd;

  write_file(2, "{}", 0);
  open_ok(&s);
  fd = open(path, O_RDWR);
  map = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
  ck_assert(map != MAP_FAILED);
  (void)map[4096];
}
END_TEST

START_TEST(names_are_fit_for_a_terminal)
{
  char *header;
  char name[600];

  write_file(strlen("{\"\\u001b[2J\\n\":7}"), "{\"\\u001b[2J\\n\":7}", 0);
  refused("tensor '\\x1b[2J\\x0a': its entry is not an object");
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  ck_assert_int_ge(asprintf(&header, "{\"%s\":7}", name), 0);
  write_file(strlen(header), header, 0);
  refused("nnn...nnn");
  free(header);
}
END_TEST

START_TEST(quoting_never_overruns)
{
  struct quoted q;
  char name[400];

  for (size_t n = 0; n < sizeof name; n++)
    for (int flavour = 0; flavour < 3; flavour++) {
      for (size_t i = 0; i < n; i++)
        name[i] = flavour == 0 ? 'a' : flavour == 1 ? '\n' : i % 2 ? '\xa4' : '\xc3';   // NOLINT(bugprone-narrowing-conversions): bytes
      name[n] = '\0';
      ck_assert_uint_lt(strlen(oct_quote(&q, name)), sizeof q.text);
    }
}
END_TEST

static void setup(void)
{
  strcpy(folder, "/tmp/oct-safetensors-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/f", folder);
}

static void teardown(void)
{
  unlink(path);
  rmdir(path);
  rmdir(folder);
}

int main(void)
{
  Suite *s = suite_create("safetensors");
  TCase *c = tcase_create("all");
  SRunner *r;
  int failed;

  tcase_set_timeout(c, 20);
  /* Unchecked: a test that gave its rights up, or was killed, leaves its folder to the parent. */
  tcase_add_unchecked_fixture(c, setup, teardown);
  tcase_add_test(c, what_is_no_regular_file_is_named);
  tcase_add_test(c, a_sound_file_is_read_in_the_order_of_its_bytes);
  tcase_add_test(c, a_file_without_tensors_is_sound);
  tcase_add_loop_test(c, damage_in_the_header_is_named, 0, sizeof damages / sizeof damages[0]);
  tcase_add_test(c, damage_in_the_length_is_named);
  tcase_add_test(c, every_truncation_of_a_sound_file_is_refused);
  tcase_add_test(c, every_flipped_bit_of_a_header_ends_well);
  tcase_add_test(c, a_huge_sparse_file_is_read);
  tcase_add_test(c, a_file_that_shrinks_is_named_and_others_go_on);
  tcase_add_test_raise_signal(c, a_foreign_sigbus_still_kills, SIGBUS);
  tcase_add_test(c, names_are_fit_for_a_terminal);
  tcase_add_test(c, quoting_never_overruns);
  tcase_add_test(c, an_unreadable_file_is_named);
  suite_add_tcase(s, c);
  r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
