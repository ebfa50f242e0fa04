// SPDX-License-Identifier: MIT
// A model, a guard and a build as scopes; failures as exceptions, or as codes where an outcome is ordinary.
// c++ -std=c++11 scopes.cpp $(pkg-config --cflags --libs liboc)
#include <liboc/oc.hpp>

#include <iostream>

namespace {

// The value of `weight`, built where it is not there. A throw in between aborts the build: its block goes back.
uint64_t doubled(oc::model &m, uint64_t weight, size_t bytes) {
  oc::build build(m.derived(), OC_BF16, weight);
  if (build.failed()) throw oc::error(build.status());
  if (build.found()) return build.value();
  oc_devptr block = build.alloc(2 * bytes);
  // ... launch the kernel that fills it, and build.on_stream(stream) ...
  return build.commit(block);
}

uint64_t blocks(const oc::model &m) {
  oc_pool_stats s{};
  s.struct_size = sizeof s;
  oc::check(oc_pool_get_stats(m.pool(), &s));
  return s.live_blocks;
}

// An exception in a build's scope leaves nothing behind.
bool abandoned_build_goes_back(oc::model &m, uint64_t weight) {
  const uint64_t before = blocks(m);
  try {
    oc::build build(m.derived(), OC_BF16, weight);
    build.alloc(4096);
    throw std::runtime_error("the engine changed its mind");
  } catch (const std::runtime_error &) {
  }
  return blocks(m) == before;
}

bool run() {
  oc::backend device = oc::backend::host();
  oc::model m(device);
  const oc_devptr weight = m.alloc(4096);

  if (!abandoned_build_goes_back(m, weight)) return false;
  const uint64_t value = doubled(m, weight, 4096);
  {
    oc::use use(m);   // a guard, and the model lives
    if (!use) throw oc::error(use.status());
    uint64_t seen = 0;
    if (m.find(OC_BF16, weight, seen) != OC_OK || seen != value) return false;
    if (m.destroy() != OC_E_GUARDED) return false;   // the model can't be pulled from under a guard
  }

  try {
    m.kernel("no module", "no function");
    return false;
  } catch (const oc::error &e) {
    std::cout << e.what() << '\n';
    if (e.status() != OC_E_NOT_FOUND) return false;
  }

  oc::report report;
  oc::check(m.teardown(report));
  std::cout << report.text() << '\n';
  return report.blocks_swept() == 1 && oc_model_enter(m.get()) == OC_E_RELEASED;
}   // the model goes first, then its backend

}  // namespace

int main() {
  try {
    return run() ? 0 : 1;
  } catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
