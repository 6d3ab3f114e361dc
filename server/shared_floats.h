#ifndef BANDONEON_SERVER_SHARED_FLOATS_H_
#define BANDONEON_SERVER_SHARED_FLOATS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "common/base/buffer.h"

namespace bdn {

// float32[n] in a block that a frame may carry as it is. A value: copies share the block, and who
// changes one that others have gets a block of his own first. Not thread-safe; the other holders of
// bytes() may be on any thread.
class SharedFloats {
 public:
  using value_type = float;
  using const_iterator = const float*;

  const float* data() const { return reinterpret_cast<const float*>(block_.data()); }
  size_t size() const { return block_.size() / sizeof(float); }
  bool empty() const { return block_.empty(); }
  const float* begin() const { return data(); }
  const float* end() const { return data() + size(); }
  float operator[](size_t i) const { return data()[i]; }
  // The block, for reading only.
  const Buffer& bytes() const { return block_; }

  // To be written to until the next copy. Copies the block if others have it.
  float* Mutable() {
    if (!block_.IsUnique()) block_ = Buffer::CopyOf(block_.span());
    return reinterpret_cast<float*>(block_.data());
  }
  // Zeros; no change where it has this size already.
  void Resize(size_t n) {
    if (n == size()) return;
    block_ = Buffer::Allocate(n * sizeof(float));
    if (n > 0) std::memset(block_.data(), 0, block_.size());
  }

  bool operator==(std::span<const float> other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  bool operator==(const SharedFloats& other) const {
    return *this == std::span<const float>(other.begin(), other.size());
  }

 private:
  Buffer block_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARED_FLOATS_H_
