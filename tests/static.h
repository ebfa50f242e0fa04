/* SPDX-License-Identifier: MIT */
/* Macros of other libraries' headers, which cppcheck does not read (tests/static.sh). */
#define START_TEST(name) static void name(int _i)
#define END_TEST
#define json_array_foreach(array, i, value) \
  for (i = 0; i < json_array_size(array) && (value = json_array_get(array, i)); i++)
