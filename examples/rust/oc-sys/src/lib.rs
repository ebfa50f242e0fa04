// SPDX-License-Identifier: MIT
//! What the safe wrappers need of <liboc/oc.h>. Contracts stand there.
#![allow(non_camel_case_types)]
use std::os::raw::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(oc_backend oc_model oc_opcache oc_derived oc_pool oc_report oc_build oc_kernel_s oc_stream_s);

pub type oc_status = c_int;
pub type oc_kind = u32;
pub type oc_devptr = u64;
pub type oc_kernel = *mut oc_kernel_s;
pub type oc_stream = *mut oc_stream_s;

pub const OC_OK: oc_status = 0;
pub const OC_MISS: oc_status = 1;
pub const OC_EXISTS: oc_status = 2;
pub const OC_E_INVALID: oc_status = -1;
pub const OC_E_KIND: oc_status = -2;
pub const OC_E_NOT_FOUND: oc_status = -3;
pub const OC_E_GUARDED: oc_status = -5;
pub const OC_E_RELEASED: oc_status = -20;
pub const OC_E_BUSY: oc_status = -21;
pub const OC_E_TEARDOWN: oc_status = -23;

pub const OC_ROWWISE_FP8: oc_kind = 0;
pub const OC_BF16: oc_kind = 1;

#[repr(C)]
pub struct oc_site {
    pub file: *const c_char,
    pub line: u32,
    pub func: *const c_char,
}

extern "C" {
    pub fn oc_status_name(s: oc_status) -> *const c_char;
    pub fn oc_last_error() -> *const c_char;
    pub fn oc_version() -> *const c_char;
    pub fn oc_backend_open_host(opt: *const c_void, out: *mut *mut oc_backend) -> oc_status;
    pub fn oc_backend_open_cuda(opt: *const c_void, out: *mut *mut oc_backend) -> oc_status;
    pub fn oc_backend_close(b: *mut oc_backend) -> oc_status;
    pub fn oc_model_create(b: *mut oc_backend, opt: *const c_void, out: *mut *mut oc_model) -> oc_status;
    pub fn oc_model_generation(m: *const oc_model) -> u64;
    pub fn oc_model_opcache(m: *mut oc_model) -> *mut oc_opcache;
    pub fn oc_model_derived(m: *mut oc_model) -> *mut oc_derived;
    pub fn oc_model_pool(m: *mut oc_model) -> *mut oc_pool;
    pub fn oc_model_enter(m: *mut oc_model) -> oc_status;
    pub fn oc_model_leave(m: *mut oc_model);
    pub fn oc_model_teardown(m: *mut oc_model, report: *mut *mut oc_report) -> oc_status;
    pub fn oc_model_destroy(m: *mut oc_model) -> oc_status;
    pub fn oc_report_text(r: *const oc_report) -> *mut c_char;
    pub fn oc_report_free(r: *mut oc_report);
    pub fn oc_string_free(s: *mut c_char);
    pub fn oc_opcache_kernel(c: *mut oc_opcache, module: *const c_char, func: *const c_char, out: *mut oc_kernel) -> oc_status;
    pub fn oc_pool_alloc_at(p: *mut oc_pool, bytes: usize, align: usize, site: *const oc_site, out: *mut oc_devptr) -> oc_status;
    pub fn oc_pool_free(p: *mut oc_pool, ptr: oc_devptr) -> oc_status;
    pub fn oc_derived_get_ptr(d: *mut oc_derived, kind: oc_kind, key: u64, out: *mut u64) -> oc_status;
    pub fn oc_derived_get_pair(d: *mut oc_derived, kind: oc_kind, key: u64, out: *mut u64) -> oc_status;
    pub fn oc_derived_begin_at(d: *mut oc_derived, kind: oc_kind, key: u64, site: *const oc_site,
                               build: *mut *mut oc_build, out: *mut u64) -> oc_status;
    pub fn oc_build_alloc_at(b: *mut oc_build, bytes: usize, align: usize, site: *const oc_site, out: *mut oc_devptr) -> oc_status;
    pub fn oc_build_on_stream(b: *mut oc_build, s: oc_stream) -> oc_status;
    pub fn oc_build_commit(b: *mut oc_build, value: *const u64, kept: *mut u64) -> oc_status;
    pub fn oc_build_abort(b: *mut oc_build);
}
