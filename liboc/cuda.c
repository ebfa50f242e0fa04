/* SPDX-License-Identifier: MIT */
/* The CUDA backend. */
#include "config.h"

#include "liboc/oc.h"
#include "rcu/error.h"

oc_status oc_backend_open_cuda(const oc_cuda_options *opt, oc_backend **out) {
  (void)opt;
  if (!out) return oci_error(OC_E_INVALID, "oc_backend_open_cuda: out is NULL");
  return oci_error(OC_E_UNSUPPORTED, "oc_backend_open_cuda: this build has no CUDA backend");
}
