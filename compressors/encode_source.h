#ifndef BANDONEON_COMPRESSORS_ENCODE_SOURCE_H_
#define BANDONEON_COMPRESSORS_ENCODE_SOURCE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {

// A reader of p, the values to encode, which are float32. It gives them a tile at a time: a tile
// fits in the first-level cache, so that work on it costs no pass over memory. Codecs are written
// against this class once, and thereby take every element type, with error feedback, delta or
// neither.
//
// Owned by one call; not thread-safe. It takes 16 KiB, and belongs on the stack.
class EncodeSource {
 public:
  static constexpr size_t kTile = 4096;

  // Reads p = scale * x.
  EncodeSource(ConstView x, float scale);
  // Reads p as memory/error_feedback.h defines it; keeps a residual.
  explicit EncodeSource(const Feedback& feedback);
  // Reads p = clamp(w - replica), of float32. The replica is only read.
  EncodeSource(ConstView w, const float* replica);

  EncodeSource(const EncodeSource&) = delete;
  EncodeSource& operator=(const EncodeSource&) = delete;

  size_t n() const { return x_.n; }
  DType dtype() const { return x_.dtype; }
  // Returns whether the codec must leave p - decoded behind, through Take.
  bool keeps_residual() const { return kind_ == Kind::kFeedback; }
  // Returns p where it lies in memory, or null where it must be computed.
  const float* in_place() const {
    const bool as_is = kind_ == Kind::kScaled && x_.dtype == DType::kFloat32;
    return as_is && options_.scale == 1.0f ? x_.f32() : nullptr;
  }
  // Returns whether p is just scale() * scaled_input().
  bool is_scaled_input() const { return kind_ == Kind::kScaled; }
  // Returns x, of which p is a multiple. REQUIRES: is_scaled_input().
  ConstView scaled_input() const { return x_; }
  float scale() const { return options_.scale; }

  // Returns p[offset, offset + count) and changes nothing. Where x, g or w is not finite once
  // scaled, neither is p (it is NaN or infinite); a value that overflows only when a residual,
  // momentum or replica is added becomes the largest finite float of its sign. Valid until the next
  // call. REQUIRES: offset + count <= n, count <= kTile, and with a residual none of these elements
  // was taken yet.
  const float* Peek(size_t offset, size_t count);

  // Writes p[offset, offset + count) over the residual, and the new momentum over the momentum; the
  // codec then subtracts the values that its payload decodes to. Valid until the source dies. Every
  // element is taken exactly once by the end of EncodeFrom. REQUIRES: as Peek; keeps_residual();
  // all of p was seen to be finite (CheckFinite, or Peek of all of it): nothing may fail after the
  // first Take.
  float* Take(size_t offset, size_t count);
  // Returns the step of these elements alone, for a kernel that takes them itself. REQUIRES: as
  // Take.
  Feedback Untaken(size_t offset, size_t count) const;
  // Returns the elements that were taken, from `offset` on.
  float* Taken(size_t offset) const { return residual_ + offset; }

  // Returns InvalidArgument, which names the first element that is not finite, if there is one. One
  // pass over x, g or w alone.
  absl::Status CheckFinite() const;

 private:
  enum class Kind { kScaled, kFeedback, kDifference };

  const Kind kind_;
  const ConstView x_;  // x, g or w
  const FeedbackOptions options_;
  float* const residual_ = nullptr;
  float* const momentum_ = nullptr;
  const float* const replica_ = nullptr;
  alignas(64) float tile_[kTile];
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_ENCODE_SOURCE_H_
