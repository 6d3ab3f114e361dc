#ifndef BANDONEON_COMPRESSORS_SCRATCH_H_
#define BANDONEON_COMPRESSORS_SCRATCH_H_

#include <cstddef>
#include <span>

// Working memory of one call, which the calling thread lends and keeps: a second call of the same
// size allocates nothing. Internal to compressors/.

namespace bdn {

// A piece of the thread's working memory, lent for the life of the object. Not thread-safe: used by
// the thread that made it.
class Scratch {
 public:
  // Borrows `bytes` bytes, uninitialized and aligned to 64 bytes. The scratches of a thread must be
  // returned in the reverse order.
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

// A Scratch as an array of a trivial type.
template <typename T>
class ScratchArray {
 public:
  explicit ScratchArray(size_t size) : scratch_(size * sizeof(T)), size_(size) {}
  T* data() const { return reinterpret_cast<T*>(scratch_.data()); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data()[i]; }
  std::span<T> span() const { return {data(), size_}; }

 private:
  Scratch scratch_;
  size_t size_;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SCRATCH_H_
