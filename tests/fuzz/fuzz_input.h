#ifndef BANDONEON_TESTS_FUZZ_FUZZ_INPUT_H_
#define BANDONEON_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/endian.h"

namespace bdn::fuzz {

inline void Require(bool holds) {
  if (!holds) std::abort();
}

// An input of libFuzzer, taken piece by piece. Not thread-safe.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::vector<std::byte> Bytes(size_t most) {
    const size_t count = std::min(most, size_);
    const ByteSpan taken = std::as_bytes(std::span(data_, count));
    std::vector<std::byte> bytes(taken.begin(), taken.end());
    data_ += count;
    size_ -= count;
    return bytes;
  }
  // Returns the next number; zeros behind the end.
  template <typename Number>
  Number Get() {
    std::vector<std::byte> bytes = Bytes(sizeof(Number));
    bytes.resize(sizeof(Number));
    return LoadLittle<Number>(bytes, 0);
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace bdn::fuzz

#endif  // BANDONEON_TESTS_FUZZ_FUZZ_INPUT_H_
