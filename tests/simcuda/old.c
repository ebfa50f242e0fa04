/* SPDX-License-Identifier: MIT */
/* A libcuda.so.1 that lacks almost everything, as one that is older than the symbols' versions. */
int cuInit(unsigned flags);

int cuInit(unsigned flags) {
  return flags ? 1 : 0;
}
