// SPDX-License-Identifier: MIT
// A C++ plugin that a C host opens after liboc (S24): what it makes with new it deletes, and throws through it.
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" int plugin(void);

namespace {

struct big {
  std::vector<std::string> lines;
  explicit big(int n) {
    for (int i = 0; i < n; i++) lines.push_back(std::string(static_cast<size_t>(i) * 37 % 5000, 'x'));
    if (n > 500) throw std::runtime_error("more than it holds");
  }
};

struct alignas(64) line {
  char bytes[64];
};

}  // namespace

int plugin(void) {
  std::vector<std::unique_ptr<big>> all;
  for (int i = 0; i < 40; i++) all.emplace_back(new big(i));
  char *p = new char[1 << 20];
  delete[] p;   // cppcheck-suppress uninitdata ; what pairs new with delete is looked at, no byte
  line *l = new line[100];
  delete[] l;   // cppcheck-suppress uninitdata ; as above
  int *few = new (std::nothrow) int(3);
  const int three = few ? *few : 0;
  delete few;
  try {
    big too(501);
  } catch (const std::runtime_error &) {
    return three == 3 ? 0 : 1;
  }
  return 2;
}
