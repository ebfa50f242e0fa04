/* SPDX-License-Identifier: MIT */
/* Numbers in text, strictly: the whole string, nothing before or after, no overflow. */
#ifndef OCTOOL_NUMBER_H
#define OCTOOL_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Decimal digits only. */
bool oct_parse_u64(const char *text, uint64_t *out);
/* "12", "0.25": finite, not negative. */
bool oct_parse_seconds(const char *text, double *out);

/* "17.9 GiB" */
struct human { char text[32]; };
const char *oct_human_bytes(struct human *h, uint64_t bytes);

#endif
