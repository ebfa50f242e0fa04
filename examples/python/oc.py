# SPDX-License-Identifier: MIT
"""liboc for a plain Python interpreter, by ctypes: models, guards and builds as context managers.

Contracts stand in <liboc/oc.h>; this module adds none. Device addresses are integers. A failure is an oc.Error with
the library's own words. Everything else of the library is reachable as oc.lib.oc_NAME: the return type of those is int.
"""
import ctypes
import ctypes.util
import sys

OK, MISS, EXISTS = 0, 1, 2
ROWWISE_FP8, BF16, CUTLASS_NVFP4_T, CUTLASS_NVFP4_FROM_FP8 = range(4)

_u64, _ptr, _str, _size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_out = ctypes.byref

lib = ctypes.CDLL("liboc.so.0")


class _Site(ctypes.Structure):
    _fields_ = [("file", _str), ("line", ctypes.c_uint32), ("func", _str)]


def _declare(result, *functions):
    for name, *arguments in functions:
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments


# Without argtypes ctypes would cut handles and addresses to 32 bits.
_declare(ctypes.c_int,
         ("oc_backend_open_host", _ptr, _ptr), ("oc_backend_open_cuda", _ptr, _ptr), ("oc_backend_close", _ptr),
         ("oc_model_create", _ptr, _ptr, _ptr), ("oc_model_teardown", _ptr, _ptr), ("oc_model_destroy", _ptr),
         ("oc_model_enter", _ptr), ("oc_model_retain", _ptr, _str), ("oc_model_release_hold", _ptr, _str),
         ("oc_model_load_module", _ptr, _str, _ptr, _size), ("oc_opcache_kernel", _ptr, _str, _str, _ptr),
         ("oc_pool_alloc_at", _ptr, _size, _size, _ptr, _ptr), ("oc_pool_free", _ptr, _u64),
         ("oc_derived_get_ptr", _ptr, ctypes.c_uint32, _u64, _ptr),
         ("oc_derived_get_pair", _ptr, ctypes.c_uint32, _u64, _ptr),
         ("oc_derived_invalidate", _ptr, _u64),
         ("oc_derived_begin_at", _ptr, ctypes.c_uint32, _u64, _ptr, _ptr, _ptr),
         ("oc_build_alloc_at", _ptr, _size, _size, _ptr, _ptr), ("oc_build_on_stream", _ptr, _ptr),
         ("oc_build_commit", _ptr, _ptr, _ptr))
_declare(None, ("oc_guard_enter",), ("oc_guard_leave",), ("oc_model_leave", _ptr), ("oc_build_abort", _ptr),
         ("oc_report_free", _ptr), ("oc_string_free", _ptr))
_declare(_ptr, ("oc_model_opcache", _ptr), ("oc_model_derived", _ptr), ("oc_model_pool", _ptr), ("oc_report_text", _ptr))
_declare(_str, ("oc_version",), ("oc_last_error",), ("oc_status_name", ctypes.c_int), ("oc_status_text", ctypes.c_int))
_declare(_u64, ("oc_model_generation", _ptr), ("oc_report_blocks_swept", _ptr))


class Error(Exception):
    def __init__(self, status):
        self.status = status
        self.name = lib.oc_status_name(status).decode()
        words = lib.oc_last_error() or lib.oc_status_text(status)
        super().__init__(f"{self.name}: {words.decode(errors='replace')}")


def check(status):
    """The status, unless it is a failure."""
    if status < 0:
        raise Error(status)
    return status


def _caller():
    """The call site, for the ledger: the first frame outside of this module."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    code = frame.f_code
    return _out(_Site(code.co_filename.encode(), frame.f_lineno, code.co_name.encode()))


class guard:
    """What a lookup returned inside stays valid until the outermost guard is left. Don't await or yield in one."""

    def __enter__(self):
        lib.oc_guard_enter()
        return self

    def __exit__(self, *_):
        lib.oc_guard_leave()


class Backend:
    def __init__(self, device="host"):
        opening = {"host": lib.oc_backend_open_host, "cuda": lib.oc_backend_open_cuda}[device]
        self._b = _ptr()
        check(opening(None, _out(self._b)))

    def close(self):
        if self._b:
            check(lib.oc_backend_close(self._b))
            self._b = _ptr()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Model:
    """A loaded checkpoint. As a context manager it is torn down at the end, with the report in .report."""

    def __init__(self, backend):
        self._m = _ptr()
        check(lib.oc_model_create(backend._b, None, _out(self._m)))
        self.opcache = lib.oc_model_opcache(self._m)
        self.derived = lib.oc_model_derived(self._m)
        self.pool = lib.oc_model_pool(self._m)
        self.generation = lib.oc_model_generation(self._m)
        self.report = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def destroy(self):
        if not self._m:
            return
        report = _ptr()
        check(lib.oc_model_teardown(self._m, _out(report)))
        text = lib.oc_report_text(report)
        self.report = ctypes.string_at(text).decode(errors="replace") if text else ""
        lib.oc_string_free(text)
        lib.oc_report_free(report)
        check(lib.oc_model_destroy(self._m))
        self._m = _ptr()

    def use(self):
        """A guard, and the model lives; else oc.Error with .name 'OC_E_RELEASED'."""
        return _Use(self._m)

    def hold(self, who):
        """Teardown waits for whoever holds the model, and names them where they don't let go."""
        return _Hold(self._m, who.encode())

    def kernel(self, module, function):
        handle = _ptr()
        check(lib.oc_opcache_kernel(self.opcache, module.encode(), function.encode(), _out(handle)))
        return handle.value

    def alloc(self, size, align=0):
        address = _u64()
        check(lib.oc_pool_alloc_at(self.pool, size, align, _caller(), _out(address)))
        return address.value

    def free(self, address):
        check(lib.oc_pool_free(self.pool, address))

    def find(self, kind, key):
        """The derived pointer of a source pointer, or None."""
        value = _u64()
        return value.value if check(lib.oc_derived_get_ptr(self.derived, kind, key, _out(value))) == OK else None

    def find_pair(self, kind, key):
        value = (_u64 * 2)()
        return tuple(value) if check(lib.oc_derived_get_pair(self.derived, kind, key, value)) == OK else None

    def build(self, kind, key):
        """`with model.build(kind, key) as b:` where b.found says that the value is there already; else end it with
        b.commit(value). Left without a commit, it is aborted and its blocks go back."""
        return Build(self, kind, key, _caller())

    def invalidate(self, key):
        check(lib.oc_derived_invalidate(self.derived, key))


class _Use:
    def __init__(self, m):
        self._m = m

    def __enter__(self):
        check(lib.oc_model_enter(self._m))
        return self

    def __exit__(self, *_):
        lib.oc_model_leave(self._m)


class _Hold:
    def __init__(self, m, who):
        self._m, self._who = m, who

    def __enter__(self):
        check(lib.oc_model_retain(self._m, self._who))
        return self

    def __exit__(self, *_):
        check(lib.oc_model_release_hold(self._m, self._who))


class Build:
    def __init__(self, model, kind, key, site):
        self._b, values = _ptr(), (_u64 * 2)()
        status = check(lib.oc_derived_begin_at(model.derived, kind, key, site, _out(self._b), values))
        self.found = status == OK
        self.values = tuple(values) if self.found else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._b:
            lib.oc_build_abort(self._b)
            self._b = _ptr()

    def alloc(self, size, align=0):
        address = _u64()
        check(lib.oc_build_alloc_at(self._b, size, align, _caller(), _out(address)))
        return address.value

    def on_stream(self, stream):
        check(lib.oc_build_on_stream(self._b, stream))

    def commit(self, first, second=0):
        """Returns the value that every thread gets: another's, where that was first."""
        b, self._b = self._b, _ptr()
        kept = (_u64 * 2)()
        check(lib.oc_build_commit(b, (_u64 * 2)(first, second), kept))
        self.values = tuple(kept)
        return self.values[0]


def version():
    return lib.oc_version().decode()
