/* SPDX-License-Identifier: MIT */
/*
 * liboc for C++11: scopes over <liboc/oc.h>, in this header alone. Contracts stand in oc.h; each member here is one call.
 *
 * backend, model   own what they hold; the destructor closes or destroys. Where that is refused (OC_E_BUSY, OC_E_GUARDED,
 *                  ...) the object stays alive and reachable for whoever still uses it, and `refused` is told.
 * guard, use, hold, capture, build, report   are entered by the constructor and left by the destructor, on one thread.
 *
 * Errors, as you like: every call that can fail has a form that returns oc_status and takes its output last, and one
 * that returns the value and throws oc::error. Under -fno-exceptions only the first is there. None of them
 * allocates, but for the words of an exception.
 *
 * Calls that enter the ledger note their caller's file, line and function (gcc, clang from 9 on).
 */
#ifndef LIBOC_OC_HPP
#define LIBOC_OC_HPP

#include <liboc/oc.h>

#include <cstddef>
#include <cstdint>
#include <new>
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define OC_HPP_EXCEPTIONS 1
#include <stdexcept>
#include <string>
#endif

namespace oc {

#ifdef OC_HPP_EXCEPTIONS
/* A failure: what() is the status's name and oc_last_error(). */
class error : public std::runtime_error {
public:
  explicit error(oc_status s)
      : std::runtime_error(std::string(oc_status_name(s)) + ": " + words(s)), status_(s) {}
  oc_status status() const noexcept { return status_; }

private:
  static const char *words(oc_status s) {
    const char *last = oc_last_error();
    return *last ? last : oc_status_text(s);
  }
  oc_status status_;
};

/* Throws unless the status is OC_OK, OC_MISS or OC_EXISTS, which it returns. */
inline oc_status check(oc_status s) {
  if (s < 0) throw error(s);
  return s;
}
#endif

/* Where the caller stands; a default argument, evaluated in its line. */
struct site {
  oc_site at;
  site(const char *file = __builtin_FILE(), uint32_t line = static_cast<uint32_t>(__builtin_LINE()),
       const char *func = __builtin_FUNCTION()) noexcept
      : at{file, line, func} {}
  const oc_site *get() const noexcept { return &at; }
};

/* Told what a destructor could not end, and why; silent by default. Process-wide, set before threads start. */
using refused_fn = void (*)(const char *what, oc_status why);
inline refused_fn &refused() noexcept {
  static refused_fn fn = nullptr;
  return fn;
}

namespace detail {
struct only_moves {
  only_moves() = default;
  only_moves(const only_moves &) = delete;
  only_moves &operator=(const only_moves &) = delete;
};
inline void ended(const char *what, oc_status s) noexcept {
  if (s < 0 && refused()) refused()(what, s);
}
}  // namespace detail

/* ---- what a teardown did ---- */

class report : detail::only_moves {
public:
  report() noexcept : r_(nullptr) {}
  report(report &&other) noexcept : r_(other.r_) { other.r_ = nullptr; }
  ~report() { oc_report_free(r_); }
  report &operator=(report &&other) noexcept {
    if (this == &other) return *this;
    oc_report_free(r_);
    r_ = other.r_;
    other.r_ = nullptr;
    return *this;
  }
  const oc_report *get() const noexcept { return r_; }
  oc_report **out() noexcept {
    oc_report_free(r_);
    r_ = nullptr;
    return &r_;
  }
  explicit operator bool() const noexcept { return r_ != nullptr; }
  size_t count() const noexcept { return oc_report_count(r_); }
  uint64_t blocks_swept() const noexcept { return oc_report_blocks_swept(r_); }
  uint64_t arenas_freed() const noexcept { return oc_report_arenas_freed(r_); }
#ifdef OC_HPP_EXCEPTIONS
  std::string text() const {
    char *s = oc_report_text(r_);
    std::string copy = s ? s : "";
    oc_string_free(s);
    return copy;
  }
#endif

private:
  oc_report *r_;
};

/* ---- a device's driver ---- */

class backend : detail::only_moves {
public:
  backend() noexcept : b_(nullptr) {}
  explicit backend(oc_backend *adopted) noexcept : b_(adopted) {}
  backend(backend &&other) noexcept : b_(other.release()) {}
  ~backend() { end(); }
  backend &operator=(backend &&other) noexcept {
    if (this == &other) return *this;
    end();
    b_ = other.release();
    return *this;
  }

  static oc_status open_host(backend &into, const oc_host_options *opt = nullptr) noexcept {
    oc_backend *b;
    return into.take(oc_backend_open_host(opt, &b), &b);
  }
  static oc_status open_cuda(backend &into, const oc_cuda_options *opt = nullptr) noexcept {
    oc_backend *b;
    return into.take(oc_backend_open_cuda(opt, &b), &b);
  }
  static oc_status create(backend &into, const oc_backend_ops &ops, void *self) noexcept {
    oc_backend *b;
    return into.take(oc_backend_create(&ops, self, &b), &b);
  }
#ifdef OC_HPP_EXCEPTIONS
  static backend host(const oc_host_options *opt = nullptr) {
    backend b;
    check(open_host(b, opt));
    return b;
  }
  static backend cuda(const oc_cuda_options *opt = nullptr) {
    backend b;
    check(open_cuda(b, opt));
    return b;
  }
  static backend of(const oc_backend_ops &ops, void *self) {
    backend b;
    check(create(b, ops, self));
    return b;
  }
#endif

  /* On OC_OK it is empty. */
  oc_status close() noexcept {
    if (!b_) return OC_OK;
    oc_status s = oc_backend_close(b_);
    if (s == OC_OK) b_ = nullptr;
    return s;
  }
  oc_backend *get() const noexcept { return b_; }
  oc_backend *release() noexcept {
    oc_backend *b = b_;
    b_ = nullptr;
    return b;
  }
  explicit operator bool() const noexcept { return b_ != nullptr; }
  const oc_backend_ops &table() const noexcept { return *oc_backend_table(b_); }
  void *self() const noexcept { return oc_backend_self(b_); }

private:
  oc_status take(oc_status s, oc_backend **b) noexcept {
    if (s == OC_OK) *this = backend(*b);
    return s;
  }
  void end() noexcept {
    if (b_) detail::ended("backend", oc_backend_close(b_));
    b_ = nullptr;
  }
  oc_backend *b_;
};

/* ---- read sides ---- */

/* What a lookup returned inside stays valid until the outermost one ends. */
class guard : detail::only_moves {
public:
  guard() noexcept { oc_guard_enter(); }
  ~guard() { oc_guard_leave(); }
};

class model;

/* A guard, and the model lives; false where its teardown has begun, and then there is no guard. */
class use : detail::only_moves {
public:
  explicit use(oc_model *m) noexcept : m_(m) {
    status_ = oc_model_enter(m);
  }
  explicit inline use(const model &m) noexcept;
  ~use() {
    if (status_ == OC_OK) oc_model_leave(m_);
  }
  explicit operator bool() const noexcept { return status_ == OC_OK; }
  oc_status status() const noexcept { return status_; }

private:
  oc_model *m_;
  oc_status status_;
};

/* A named holder of the model's handles: teardown waits for it. */
class hold : detail::only_moves {
public:
  hold(oc_model *m, const char *who) noexcept : m_(m), who_(who), status_(oc_model_retain(m, who)) {}
  ~hold() {
    if (status_ == OC_OK) detail::ended(who_, oc_model_release_hold(m_, who_));
  }
  explicit operator bool() const noexcept { return status_ == OC_OK; }
  oc_status status() const noexcept { return status_; }

private:
  oc_model *m_;
  const char *who_;   /* must outlive the hold: a literal */
  oc_status status_;
};

/* Around a stream capture on this thread. */
class capture : detail::only_moves {
public:
  capture(oc_model *m, oc_stream s) noexcept : m_(m), status_(oc_capture_enter(m, s)) {}
  ~capture() {
    if (status_ == OC_OK) oc_capture_leave(m_);
  }
  explicit operator bool() const noexcept { return status_ == OC_OK; }
  oc_status status() const noexcept { return status_; }

private:
  oc_model *m_;
  oc_status status_;
};

/* ---- derived weights ---- */

struct pair {
  uint64_t first, second;
};

/* A value on its way: aborted unless committed. `found` says that it was there already. */
class build : detail::only_moves {
public:
  build(oc_derived *d, oc_kind kind, uint64_t key, const site &at = site()) noexcept : b_(nullptr), value_{0, 0} {
    status_ = oc_derived_begin_at(d, kind, key, at.get(), &b_, value_);
    if (status_ != OC_MISS) b_ = nullptr;
  }
  ~build() {
    if (b_) oc_build_abort(b_);
  }

  oc_status status() const noexcept { return status_; }
  bool found() const noexcept { return status_ == OC_OK; }
  bool failed() const noexcept { return status_ < 0; }
  /* Where found or committed: the value that every thread gets. */
  uint64_t value() const noexcept { return value_[0]; }
  pair values() const noexcept { return {value_[0], value_[1]}; }

  oc_status alloc(size_t bytes, size_t align, oc_devptr &out, const site &at = site()) noexcept {
    return oc_build_alloc_at(b_, bytes, align, at.get(), &out);
  }
  oc_status on_stream(oc_stream s) noexcept { return oc_build_on_stream(b_, s); }
  /* OC_OK and OC_EXISTS: value() is the one kept. */
  oc_status commit(uint64_t first, uint64_t second, std::nothrow_t) noexcept {
    const uint64_t v[2] = {first, second};
    uint64_t kept[2] = {first, second};
    oc_status s = oc_build_commit(b_, v, kept);
    if (s != OC_E_INVALID) b_ = nullptr;
    if (s >= 0) keep(kept, s);
    return s;
  }
#ifdef OC_HPP_EXCEPTIONS
  oc_devptr alloc(size_t bytes, size_t align = 0, const site &at = site()) {
    oc_devptr p;
    check(oc_build_alloc_at(b_, bytes, align, at.get(), &p));
    return p;
  }
  uint64_t commit(uint64_t first, uint64_t second = 0) {
    check(commit(first, second, std::nothrow_t()));
    return value_[0];
  }
#endif

private:
  void keep(const uint64_t kept[2], oc_status s) noexcept {
    value_[0] = kept[0];
    value_[1] = kept[1];
    status_ = s;
  }
  oc_build *b_;
  uint64_t value_[2];
  oc_status status_;
};

/* ---- a loaded checkpoint ---- */

class model : detail::only_moves {
public:
  model() noexcept : m_(nullptr) {}
  explicit model(oc_model *adopted) noexcept : m_(adopted) {}
  model(model &&other) noexcept : m_(other.release()) {}
  ~model() { end(); }
  model &operator=(model &&other) noexcept {
    if (this == &other) return *this;
    end();
    m_ = other.release();
    return *this;
  }

  static oc_status create(model &into, const backend &b, const oc_model_options *opt = nullptr) noexcept {
    oc_model *m;
    oc_status s = oc_model_create(b.get(), opt, &m);
    if (s == OC_OK) into = model(m);
    return s;
  }
  /* On OC_OK and OC_E_TEARDOWN it is empty. */
  oc_status destroy() noexcept {
    if (!m_) return OC_OK;
    oc_status s = oc_model_destroy(m_);
    if (s == OC_OK || s == OC_E_TEARDOWN) m_ = nullptr;
    return s;
  }
  oc_status teardown(report &into) noexcept { return oc_model_teardown(m_, into.out()); }

  oc_model *get() const noexcept { return m_; }
  oc_model *release() noexcept {
    oc_model *m = m_;
    m_ = nullptr;
    return m;
  }
  explicit operator bool() const noexcept { return m_ != nullptr; }
  uint64_t generation() const noexcept { return oc_model_generation(m_); }
  oc_opcache *opcache() const noexcept { return oc_model_opcache(m_); }
  oc_derived *derived() const noexcept { return oc_model_derived(m_); }
  oc_pool *pool() const noexcept { return oc_model_pool(m_); }

  oc_status load_module(const char *name, const void *image, size_t bytes, std::nothrow_t) noexcept {
    return oc_model_load_module(m_, name, image, bytes);
  }
  oc_status kernel(const char *module, const char *func, oc_kernel &out) const noexcept {
    return oc_opcache_kernel(opcache(), module, func, &out);
  }
  oc_status kernel(oc_kernel_key &key, oc_kernel &out) const noexcept {
    return oc_opcache_kernel_k(opcache(), &key, &out);
  }
  oc_status scratch_on(const char *tag, oc_stream s, size_t bytes, oc_devptr &out, const site &at = site()) noexcept {
    return oc_opcache_scratch_on_at(opcache(), tag, s, bytes, at.get(), &out);
  }
  oc_status alloc(size_t bytes, size_t align, oc_devptr &out, const site &at = site()) noexcept {
    return oc_pool_alloc_at(pool(), bytes, align, at.get(), &out);
  }
  oc_status free(oc_devptr p) noexcept { return oc_pool_free(pool(), p); }
  oc_status free_on(oc_devptr p, oc_stream s) noexcept { return oc_pool_free_on(pool(), p, s); }
  /* OC_MISS: not there. */
  oc_status find(oc_kind kind, uint64_t key, uint64_t &out) const noexcept {
    return oc_derived_get_ptr(derived(), kind, key, &out);
  }
  oc_status find(oc_kind kind, uint64_t key, pair &out) const noexcept {
    uint64_t v[2];
    oc_status s = oc_derived_get_pair(derived(), kind, key, v);
    if (s == OC_OK) out = {v[0], v[1]};
    return s;
  }
#ifdef OC_HPP_EXCEPTIONS
  explicit model(const backend &b, const oc_model_options *opt = nullptr) : m_(nullptr) { check(create(*this, b, opt)); }
  oc_status load_module(const char *name, const void *image, size_t bytes) {
    return check(oc_model_load_module(m_, name, image, bytes));
  }
  oc_kernel kernel(const char *module, const char *func) const {
    oc_kernel k;
    check(oc_opcache_kernel(opcache(), module, func, &k));
    return k;
  }
  oc_kernel kernel(oc_kernel_key &key) const {
    oc_kernel k;
    check(oc_opcache_kernel_k(opcache(), &key, &k));
    return k;
  }
  oc_devptr scratch_on(const char *tag, oc_stream s, size_t bytes, const site &at = site()) {
    oc_devptr p;
    check(oc_opcache_scratch_on_at(opcache(), tag, s, bytes, at.get(), &p));
    return p;
  }
  oc_devptr alloc(size_t bytes, size_t align = 0, const site &at = site()) {
    oc_devptr p;
    check(oc_pool_alloc_at(pool(), bytes, align, at.get(), &p));
    return p;
  }
#endif

private:
  void end() noexcept {
    if (m_) detail::ended("model", oc_model_destroy(m_));
    m_ = nullptr;
  }
  oc_model *m_;
};

inline use::use(const model &m) noexcept : use(m.get()) {}

}  // namespace oc

#endif
