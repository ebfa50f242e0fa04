/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's device memory out of liboc's pool: the entry points that torch.cuda.memory.CUDAPluggableAllocator takes, by
 * the types that PyTorch calls them with (MempoolId_t is a std::pair, the filter a std::function).
 *
 * device:     one backend, model and pool a CUDA device, in the device's primary context, opened by the first allocation.
 *             Never closed: PyTorch frees until the process ends, and no destructor may call the driver then.
 * block:      what PyTorch has now. Its stream is the one that it was allocated for.
 * graph_pool: what a CUDA graph's captures allocated, by PyTorch's id. Its blocks go round inside of it until it is
 *             released, for a replay writes to all of them.
 * parked:     freed by PyTorch and not yet by us: other streams use it still, or a capture was on its way.
 *
 * A device's lock is held around the driver's event calls, and never while waiting.
 */
#include "torch/torch.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using address = uint64_t;
using filter_fn = std::function<bool(oc_stream)>;

/* ---- failures ---- */

std::atomic<uint64_t> refused_frees;

std::string words_of(const char *call, oc_status st) {
  return std::string(call) + ": " + oc_status_name(st) + ": " + oc_last_error();
}

/* What Python shows as MemoryError, with the library's words. */
class out_of_memory : public std::bad_alloc {
public:
  explicit out_of_memory(std::string words) : words_(std::make_shared<std::string>(std::move(words))) {}
  const char *what() const noexcept override { return words_->c_str(); }

private:
  std::shared_ptr<std::string> words_;   /* copies of an exception must not throw */
};

[[noreturn]] void refuse(const char *call, oc_status st) {
  if (st == OC_E_DEVICE_NOMEM || st == OC_E_HOST_NOMEM) throw out_of_memory(words_of(call, st));
  throw std::runtime_error(words_of(call, st));
}

/* ---- a device ---- */

struct graph_pool {
  struct spare { address at; size_t bytes; oc_stream stream; };
  int uses = 0;
  std::vector<spare> spares;      /* freed: the next one of this pool and stream takes it */
  std::vector<address> used_up;   /* freed, and used on other streams too: not again before the release */
};

struct block {
  size_t bytes;
  oc_stream stream;
  graph_pool *graphs;               /* NULL: no graph's */
  std::vector<oc_stream> others;    /* record_stream: those that use it beside its own */
};

struct parked {
  address at;
  oc_stream stream;
  std::vector<oc_stream> unmarked;  /* no event recorded there yet */
  std::vector<oc_event> events;     /* not yet passed */
};

using pool_id = oc_torch_pool_id;
struct allocating { pool_id id; filter_fn takes; };

class device {
public:
  explicit device(int ordinal) {
    oc_cuda_options o = {};
    o.struct_size = sizeof o;
    o.ordinal = ordinal;
    oc_status st = oc_backend_open_cuda(&o, &backend_);
    if (st) refuse("liboc-torch", st);
    open_model(ordinal);
    table_ = oc_backend_table(backend_);
    self_ = oc_backend_self(backend_);
  }

  oc_model *model() const { return model_; }

  void *alloc(size_t bytes, oc_stream stream) {
    std::lock_guard<std::mutex> hold(lock_);
    release_first_parked();
    graph_pool *graphs = pool_for(stream);
    address at = graphs ? take_spare(*graphs, bytes, stream) : 0;
    if (!at) at = carve(bytes);
    block b = {bytes, stream, graphs, {}};
    try {
      live_.emplace(at, std::move(b));
    } catch (...) {
      give(at, stream);
      throw;
    }
    return reinterpret_cast<void *>(static_cast<uintptr_t>(at));
  }

  bool free(address at) {
    std::lock_guard<std::mutex> hold(lock_);
    auto found = live_.find(at);
    if (found == live_.end()) return false;
    block b = std::move(found->second);
    live_.erase(found);
    if (b.graphs) {
      back_to_graphs(at, b);
    } else {
      release_first_parked();
      parked p = {at, b.stream, std::move(b.others), {}};
      if (!gone(p)) parked_.push_back(std::move(p));
    }
    return true;
  }

  bool record_stream(address at, oc_stream stream) {
    std::lock_guard<std::mutex> hold(lock_);
    auto found = live_.find(at);
    if (found == live_.end()) return false;
    block &b = found->second;
    if (stream == b.stream) return true;
    for (oc_stream s : b.others)
      if (s == stream) return true;
    b.others.push_back(stream);
    return true;
  }

  void begin(const pool_id &id, filter_fn takes) {
    std::lock_guard<std::mutex> hold(lock_);
    std::unique_ptr<graph_pool> &p = graphs_[id];
    if (!p) p.reset(new graph_pool);
    allocating_.push_back({id, std::move(takes)});
    p->uses++;
  }

  void end(const pool_id &id) {
    std::lock_guard<std::mutex> hold(lock_);
    for (size_t i = allocating_.size(); i-- > 0;) {
      if (allocating_[i].id != id) continue;
      allocating_.erase(allocating_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    release_all();
  }

  void release(const pool_id &id) {
    std::lock_guard<std::mutex> hold(lock_);
    auto found = graphs_.find(id);
    if (found == graphs_.end() || --found->second->uses > 0) return;
    graph_pool &p = *found->second;
    for (const graph_pool::spare &s : p.spares) leftovers_.push_back(s.at);
    leftovers_.insert(leftovers_.end(), p.used_up.begin(), p.used_up.end());
    /* What PyTorch still has is an ordinary block from now on. */
    for (auto &entry : live_)
      if (entry.second.graphs == &p) entry.second.graphs = nullptr;
    graphs_.erase(found);
    release_leftovers();
  }

  void empty_cache() {
    std::lock_guard<std::mutex> hold(lock_);
    release_all();
    (void)!oc_pool_trim(pool_);
  }

private:
  void open_model(int ordinal) {
    const std::string name = "torch:" + std::to_string(ordinal);
    oc_model_options o = {};
    o.struct_size = sizeof o;
    o.name = name.c_str();
    oc_status st = oc_model_create(backend_, &o, &model_);
    if (st) {
      const std::string words = words_of("liboc-torch", st);
      (void)!oc_backend_close(backend_);
      throw std::runtime_error(words);
    }
    pool_ = oc_model_pool(model_);
  }

  /* ---- getting ---- */

  address carve(size_t bytes) {
    address at;
    oc_status st = oc_pool_alloc_at(pool_, bytes, 0, nullptr, &at);
    if (st == OC_E_DEVICE_NOMEM && release_all()) st = oc_pool_alloc_at(pool_, bytes, 0, nullptr, &at);
    if (st) refuse("liboc-torch", st);
    return at;
  }

  /* The pool that a capture on this stream fills, the newest first. */
  graph_pool *pool_for(oc_stream stream) {
    for (size_t i = allocating_.size(); i-- > 0;)
      if (!allocating_[i].takes || allocating_[i].takes(stream)) return graphs_[allocating_[i].id].get();
    return nullptr;
  }

  /* The smallest that fits, and not twice too large. The same stream's work is in order. */
  static address take_spare(graph_pool &p, size_t bytes, oc_stream stream) {
    size_t best = p.spares.size();
    for (size_t i = 0; i < p.spares.size(); i++) {
      const graph_pool::spare &s = p.spares[i];
      if (s.stream != stream || s.bytes < bytes || s.bytes / 2 > bytes) continue;
      if (best == p.spares.size() || s.bytes < p.spares[best].bytes) best = i;
    }
    if (best == p.spares.size()) return 0;
    const address at = p.spares[best].at;
    p.spares.erase(p.spares.begin() + static_cast<std::ptrdiff_t>(best));
    return at;
  }

  /* ---- giving back ---- */

  static void back_to_graphs(address at, const block &b) {
    if (b.others.empty()) b.graphs->spares.push_back({at, b.bytes, b.stream});
    else b.graphs->used_up.push_back(at);
  }

  /* Reusable once the stream has passed. False: a capture is in the way, and the block is still ours. */
  bool give(address at, oc_stream stream) {
    oc_status st = oc_pool_free_on(pool_, at, stream);
    if (st == OC_E_CAPTURING) return false;
    if (st == OC_E_NOT_OWNED || st == OC_E_INTERIOR) refused_frees++;
    else if (st) leftovers_.push_back(at);   /* still ours: the stream takes no event, it may be gone */
    return true;
  }

  /* An event on a stream that is captured would be the graph's, and to ask for it would break the capture. */
  bool record(oc_stream s, oc_event *e) {
    bool captured;
    if (table_->capturing(self_, s, &captured) != OC_OK || captured) return false;
    if (table_->event_create(self_, e) != OC_OK) return false;
    if (table_->event_record(self_, *e, s) == OC_OK) return true;
    (void)!table_->event_destroy(self_, *e);
    return false;
  }

  /* An event where each stream is now. A stream that takes none now is asked again later. */
  void mark(parked &p) {
    std::vector<oc_stream> left;
    for (oc_stream s : p.unmarked) {
      oc_event e;
      if (record(s, &e)) p.events.push_back(e);
      else left.push_back(s);
    }
    p.unmarked = std::move(left);
  }

  /* Any answer but "not yet" ends the wait for an event, or a lost device would keep them all. */
  void ask(parked &p) {
    std::vector<oc_event> left;
    for (oc_event e : p.events) {
      const oc_status st = table_->event_query(self_, e);
      if (st == OC_MISS || st == OC_E_CAPTURING) left.push_back(e);
      else (void)!table_->event_destroy(self_, e);
    }
    p.events = std::move(left);
  }

  bool gone(parked &p) {
    if (!p.unmarked.empty()) mark(p);
    if (!p.events.empty()) ask(p);
    return p.unmarked.empty() && p.events.empty() && give(p.at, p.stream);
  }

  /* On the way of every call: no more events are asked for than have passed, and one. */
  void release_first_parked() {
    while (!parked_.empty() && gone(parked_.front())) parked_.pop_front();
  }

  bool release_parked() {
    const size_t before = parked_.size();
    for (size_t n = before; n-- > 0;) {
      parked p = std::move(parked_.front());
      parked_.pop_front();
      if (!gone(p)) parked_.push_back(std::move(p));
    }
    return parked_.size() < before;
  }

  /* True: some went back. */
  bool release_all() {
    const bool some = release_parked();
    return release_leftovers() || some;
  }

  /* Of released graph pools, and of streams that took no event. Nobody knows on which streams the graphs ran: the whole
     device must have passed, and a wait for all of it would break a capture. True: some went back. */
  bool release_leftovers() {
    if (leftovers_.empty() || !allocating_.empty()) return false;
    if (table_->synchronize_all(self_) != OC_OK) return false;
    for (address at : leftovers_)
      if (oc_pool_free(pool_, at) != OC_OK) refused_frees++;
    leftovers_.clear();
    return true;
  }

  std::mutex lock_;
  oc_backend *backend_ = nullptr;
  oc_model *model_ = nullptr;
  oc_pool *pool_ = nullptr;
  const oc_backend_ops *table_ = nullptr;
  void *self_ = nullptr;
  std::unordered_map<address, block> live_;
  std::map<pool_id, std::unique_ptr<graph_pool>> graphs_;
  std::vector<allocating> allocating_;
  std::deque<parked> parked_;   /* the oldest first */
  std::vector<address> leftovers_;
};

/* ---- all devices ---- */

constexpr int DEVICES_MAX = 64;
std::atomic<device *> devices[DEVICES_MAX];
std::mutex opening;

device *known(int ordinal) {
  return ordinal >= 0 && ordinal < DEVICES_MAX ? devices[ordinal].load(std::memory_order_acquire) : nullptr;
}

device &opened(int ordinal) {
  if (ordinal < 0 || ordinal >= DEVICES_MAX)
    throw std::invalid_argument("liboc-torch: there is no device " + std::to_string(ordinal));
  if (device *d = known(ordinal)) return *d;
  std::lock_guard<std::mutex> hold(opening);
  device *d = known(ordinal);
  if (!d) {
    d = new device(ordinal);
    devices[ordinal].store(d, std::memory_order_release);
  }
  return *d;
}

address number(const void *p) { return reinterpret_cast<uintptr_t>(p); }

}  // namespace

/* ---- what PyTorch calls ---- */

void *oc_torch_alloc(size_t size, int ordinal, oc_stream stream) {
  return size ? opened(ordinal).alloc(size, stream) : nullptr;
}

void oc_torch_free(void *ptr, size_t, int ordinal, oc_stream) {
  if (!ptr) return;
  device *d = known(ordinal);
  if (!d || !d->free(number(ptr))) refused_frees++;
}

void oc_torch_record_stream(void *ptr, oc_stream stream) {
  for (int i = 0; ptr && i < DEVICES_MAX; i++)
    if (device *d = known(i))
      if (d->record_stream(number(ptr), stream)) return;
}

void oc_torch_empty_cache(void) {
  for (int i = 0; i < DEVICES_MAX; i++)
    if (device *d = known(i)) d->empty_cache();
}

void oc_torch_begin_allocate_to_pool(int ordinal, oc_torch_pool_id id, std::function<bool(oc_stream)> filter) {
  opened(ordinal).begin(id, std::move(filter));
}

void oc_torch_end_allocate_to_pool(int ordinal, oc_torch_pool_id id) {
  if (device *d = known(ordinal)) d->end(id);
}

void oc_torch_release_pool(int ordinal, oc_torch_pool_id id) {
  if (device *d = known(ordinal)) d->release(id);
}

oc_model *oc_torch_model(int ordinal) {
  device *d = known(ordinal);
  return d ? d->model() : nullptr;
}

uint64_t oc_torch_refused_frees(void) { return refused_frees; }
