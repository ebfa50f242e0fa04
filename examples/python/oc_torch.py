# SPDX-License-Identifier: MIT
"""Makes PyTorch allocate its device memory from liboc: call install() before the first CUDA tensor."""
import ctypes
import subprocess

HOOKS = {
    "set_record_stream_fn": "oc_torch_record_stream",
    "set_reset_fn": "oc_torch_empty_cache",
    "set_begin_allocate_to_pool": "oc_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "oc_torch_end_allocate_to_pool",
    "set_release_pool": "oc_torch_release_pool",
}


def library():
    return subprocess.check_output(["pkg-config", "--variable=torch", "liboc"], text=True).strip()


def install(torch, path=None):
    path = path or library()
    lib = ctypes.CDLL(path)
    memory = torch.cuda.memory.CUDAPluggableAllocator(path, "oc_torch_alloc", "oc_torch_free")
    for setter, function in HOOKS.items():
        getattr(memory.allocator(), setter)(ctypes.cast(getattr(lib, function), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(memory)
    return memory
