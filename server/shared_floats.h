#ifndef BANDONEON_SERVER_SHARED_FLOATS_H_
#define BANDONEON_SERVER_SHARED_FLOATS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "common/base/buffer.h"

namespace bdn {

// An array float32[n] in a block that a frame may carry without a copy. A value: copies share the
// block, and Mutable copies a shared block before it is changed. Not thread-safe, but other holders
// of bytes() may be on any thread.
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
  // Returns the block, for reading only.
  const Buffer& bytes() const { return block_; }

  // Returns the elements for writing, until the next copy of this object. Copies the block first if
  // it is shared.
  float* Mutable() {
    if (!block_.IsUnique()) block_ = Buffer::CopyOf(block_.span());
    return reinterpret_cast<float*>(block_.data());
  }
  // Makes it n zeros, unless it has this size already: then nothing changes.
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
