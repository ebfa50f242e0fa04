/* SPDX-License-Identifier: MIT */
/*
 * What liboc-torch.so exports, by the names that a program gives to PyTorch (see README.md). Any thread may call
 * anything. Streams are CUDA's own handles (cudaStream_t).
 */
#ifndef OC_TORCH_H
#define OC_TORCH_H

#include <functional>
#include <utility>

#include "liboc/oc.h"

/* PyTorch's MempoolId_t. */
using oc_torch_pool_id = std::pair<unsigned long long, unsigned long long>;

#pragma GCC visibility push(default)
extern "C" {

/* A block; NULL for 0 bytes. Throws std::bad_alloc where memory is out, and std::runtime_error, with liboc's words: PyTorch
   hands both on to Python. While a graph pool is filled, from that pool. */
void *oc_torch_alloc(size_t size, int device, oc_stream stream);
/* Reusable once what is queued now on the stream that it was allocated for, and on those recorded, is done; never waits.
   Size and stream are not read: the allocation's count. What is no block is counted as refused. */
void oc_torch_free(void *ptr, size_t size, int device, oc_stream stream);

/* set_record_stream_fn: the block is used on that stream too. */
void oc_torch_record_stream(void *ptr, oc_stream stream);
/* set_reset_fn: memory that nobody uses goes back to the driver. */
void oc_torch_empty_cache(void);
/* set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool: in between, what streams allocate that the
   filter takes is the graph pool's. Freed, it goes round within the pool, until the last user has released it. */
void oc_torch_begin_allocate_to_pool(int device, oc_torch_pool_id id, std::function<bool(oc_stream)> filter);
void oc_torch_end_allocate_to_pool(int device, oc_torch_pool_id id);
void oc_torch_release_pool(int device, oc_torch_pool_id id);

/* The device's model, for figures and reports; NULL before its first allocation. Not to be torn down. */
oc_model *oc_torch_model(int device);
/* Frees of what was no block, so far: PyTorch's frees can't fail. */
uint64_t oc_torch_refused_frees(void);

}
#pragma GCC visibility pop

#endif
