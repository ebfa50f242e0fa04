// SPDX-License-Identifier: MIT
//! Safe wrappers of liboc: a model, its guard, its derived weights.
//!
//! The borrow checker holds what the C contract asks for: a model outlives its guards and builds, a backend its models,
//! and a value that a lookup returned cannot leave the guard that keeps it valid. Guards and builds belong to one thread.
use oc_sys as sys;
use std::ffi::{CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::os::raw::c_char;
use std::panic::Location;
use std::ptr;

/// A failure, with the library's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub status: sys::oc_status,
    words: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn text(s: *const c_char) -> String {
    // SAFETY: liboc's strings are NUL-terminated and live at least until this thread's next call.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// The status, unless it is a failure.
fn check(status: sys::oc_status) -> Result<sys::oc_status> {
    if status >= 0 {
        return Ok(status);
    }
    // SAFETY: both take any number and return a string.
    let (name, last) = unsafe { (text(sys::oc_status_name(status)), text(sys::oc_last_error())) };
    Err(Error { status, words: format!("{name}: {last}") })
}

fn name(s: &str) -> Result<CString> {
    CString::new(s).map_err(|_| Error { status: sys::OC_E_INVALID, words: format!("OC_E_INVALID: a NUL in {s:?}") })
}

/// A call site for the ledger, which copies it.
fn at<R>(place: &Location<'_>, call: impl FnOnce(*const sys::oc_site) -> R) -> R {
    let file = CString::new(place.file()).unwrap_or_default();
    call(&sys::oc_site { file: file.as_ptr(), line: place.line(), func: ptr::null() })
}

pub struct Backend(*mut sys::oc_backend);

// SAFETY: any thread may call anything (oc.h).
unsafe impl Send for Backend {}
unsafe impl Sync for Backend {}

impl Backend {
    /// The embedded device.
    pub fn host() -> Result<Backend> {
        let mut b = ptr::null_mut();
        // SAFETY: NULL options are the defaults; the output is ours.
        check(unsafe { sys::oc_backend_open_host(ptr::null(), &mut b) })?;
        Ok(Backend(b))
    }

    /// The first CUDA device.
    pub fn cuda() -> Result<Backend> {
        let mut b = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { sys::oc_backend_open_cuda(ptr::null(), &mut b) })?;
        Ok(Backend(b))
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: models borrow it, so none lives. Refused (in a guard, in a forked child): it stays, as a leak.
        let _ = unsafe { sys::oc_backend_close(self.0) };
    }
}

pub struct Model<'b> {
    m: *mut sys::oc_model,
    _backend: PhantomData<&'b Backend>,
}

// SAFETY: any thread may call anything (oc.h).
unsafe impl Send for Model<'_> {}
unsafe impl Sync for Model<'_> {}

impl<'b> Model<'b> {
    pub fn new(backend: &'b Backend) -> Result<Model<'b>> {
        let mut m = ptr::null_mut();
        // SAFETY: the backend lives as long as 'b.
        check(unsafe { sys::oc_model_create(backend.0, ptr::null(), &mut m) })?;
        Ok(Model { m, _backend: PhantomData })
    }

    pub fn generation(&self) -> u64 {
        // SAFETY: the model lives.
        unsafe { sys::oc_model_generation(self.m) }
    }

    /// Ends the model, and returns what that did. Afterwards every call is OC_E_RELEASED.
    pub fn teardown(&self) -> Result<String> {
        let mut r = ptr::null_mut();
        // SAFETY: the report is ours, and so is its text.
        unsafe {
            check(sys::oc_model_teardown(self.m, &mut r))?;
            let s = sys::oc_report_text(r);
            let words = if s.is_null() { String::new() } else { text(s) };
            sys::oc_string_free(s);
            sys::oc_report_free(r);
            Ok(words)
        }
    }

    /// A read-side section: what is looked up in it stays valid until it is dropped. OC_E_RELEASED: the model's teardown
    /// has begun.
    pub fn enter(&self) -> Result<Guard<'_>> {
        // SAFETY: the guard borrows the model.
        check(unsafe { sys::oc_model_enter(self.m) })?;
        Ok(Guard { model: self, _thread: PhantomData })
    }

    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut p = 0;
        // SAFETY: outputs and site live through the call.
        at(Location::caller(), |s| check(unsafe { sys::oc_pool_alloc_at(sys::oc_model_pool(self.m), bytes, 0, s, &mut p) }))?;
        Ok(p)
    }

    pub fn free(&self, ptr: u64) -> Result<()> {
        // SAFETY: a stranger's address is refused.
        check(unsafe { sys::oc_pool_free(sys::oc_model_pool(self.m), ptr) }).map(drop)
    }

    /// Looks a pointer value up and, where it is not there, has `make` build it. One build a key, whatever the number of
    /// threads. An error of `make` aborts the build; its blocks go back.
    #[track_caller]
    pub fn get_or_build(&self, kind: sys::oc_kind, key: u64, make: impl FnOnce(&Build) -> Result<u64>) -> Result<u64> {
        let (mut b, mut found) = (ptr::null_mut(), [0u64; 2]);
        let status = at(Location::caller(), |s| {
            // SAFETY: outputs and site live through the call.
            check(unsafe { sys::oc_derived_begin_at(sys::oc_model_derived(self.m), kind, key, s, &mut b, found.as_mut_ptr()) })
        })?;
        if status != sys::OC_MISS {
            return Ok(found[0]);
        }
        let build = Build { b, _thread: PhantomData };
        let value = make(&build)?;   // or panics: dropped, it is aborted
        build.commit(value)
    }
}

impl Drop for Model<'_> {
    fn drop(&mut self) {
        // SAFETY: guards and builds borrow the model, so none is left of it. Refused: it stays, as a leak.
        let _ = unsafe { sys::oc_model_destroy(self.m) };
    }
}

/// Belongs to its thread (no Send).
pub struct Guard<'m> {
    model: &'m Model<'m>,
    _thread: PhantomData<*const ()>,
}

/// A device address that is valid as long as the guard it was looked up in.
#[derive(Clone, Copy)]
pub struct Valid<'g> {
    address: u64,
    _guard: PhantomData<&'g ()>,
}

impl Valid<'_> {
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Guard<'_> {
    /// The derived pointer of a source pointer.
    pub fn find(&self, kind: sys::oc_kind, key: u64) -> Result<Option<Valid<'_>>> {
        let mut address = 0;
        // SAFETY: in a guard, and the model lives.
        let status = check(unsafe { sys::oc_derived_get_ptr(sys::oc_model_derived(self.model.m), kind, key, &mut address) })?;
        Ok((status == sys::OC_OK).then_some(Valid { address, _guard: PhantomData }))
    }

    pub fn kernel(&self, module: &str, func: &str) -> Result<sys::oc_kernel> {
        let (module, func) = (name(module)?, name(func)?);
        let mut k = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { sys::oc_opcache_kernel(sys::oc_model_opcache(self.model.m), module.as_ptr(), func.as_ptr(), &mut k) })?;
        Ok(k)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: entered by enter(), on this thread.
        unsafe { sys::oc_model_leave(self.model.m) }
    }
}

/// A derived value on its way; belongs to its thread.
pub struct Build {
    b: *mut sys::oc_build,
    _thread: PhantomData<*const ()>,
}

impl Build {
    /// A block that goes back unless the value lies in it.
    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut p = 0;
        // SAFETY: the build is open.
        at(Location::caller(), |s| check(unsafe { sys::oc_build_alloc_at(self.b, bytes, 0, s, &mut p) }))?;
        Ok(p)
    }

    fn commit(self, value: u64) -> Result<u64> {
        let (v, mut kept) = ([value, 0], [value, 0]);
        // SAFETY: the build is open, and on its thread.
        let status = unsafe { sys::oc_build_commit(self.b, v.as_ptr(), kept.as_mut_ptr()) };
        if status != sys::OC_E_INVALID {
            std::mem::forget(self);   // ended, whatever it said
        }
        check(status).map(|_| kept[0])
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        // SAFETY: open, since commit forgets what it ended.
        unsafe { sys::oc_build_abort(self.b) }
    }
}

pub fn version() -> String {
    // SAFETY: a static string.
    text(unsafe { sys::oc_version() })
}
