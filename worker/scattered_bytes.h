#ifndef BANDONEON_WORKER_SCATTERED_BYTES_H_
#define BANDONEON_WORKER_SCATTERED_BYTES_H_

#include <cstddef>
#include <span>

#include "common/base/buffer.h"
#include "common/base/bytes.h"

namespace bdn {

// Bytes that lie in several places, and count as one run of bytes. Borrows the places. A value; not
// thread-safe where it is written to.
class ScatteredBytes {
 public:
  explicit ScatteredBytes(std::span<const MutableByteSpan> places) : places_(places) {}

  // Returns the number of bytes, in a pass over the places.
  size_t size() const;
  // Returns a copy of `size` bytes from `offset`. REQUIRES: they are inside.
  Buffer Copy(size_t offset, size_t size) const;
  // Returns `size` bytes from `offset`: themselves where they lie in one place, else a copy in
  // `scratch`. REQUIRES: they are inside.
  ByteSpan View(size_t offset, size_t size, Buffer* scratch) const;
  // Overwrites the bytes from `offset` on. REQUIRES: they are inside.
  void Write(size_t offset, ByteSpan from) const;

 private:
  // Calls visit(piece, bytes before it) for each piece of `size` bytes from `offset`, in order.
  template <typename Visit>
  void ForEach(size_t offset, size_t size, const Visit& visit) const;

  std::span<const MutableByteSpan> places_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_SCATTERED_BYTES_H_
