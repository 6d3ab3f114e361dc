#ifndef BANDONEON_COMPRESSORS_ENCODE_SOURCE_H_
#define BANDONEON_COMPRESSORS_ENCODE_SOURCE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {

// Where a codec reads p, the values to encode, as float32, a tile at a time: small enough for the
// first-level cache, so that what is done to a tile costs no pass over memory. Codecs are written
// against this once, and thereby take every element type and every memory.
//
// Owned by one call. 16 KiB, for the stack.
class EncodeSource {
 public:
  static constexpr size_t kTile = 4096;

  // p = scale * x.
  EncodeSource(ConstView x, float scale);
  // p as memory/error_feedback.h has it; keeps a residual.
  explicit EncodeSource(const Feedback& feedback);
  // p = clamp(w - replica), of float32. The replica is only read.
  EncodeSource(ConstView w, const float* replica);

  EncodeSource(const EncodeSource&) = delete;
  EncodeSource& operator=(const EncodeSource&) = delete;

  size_t n() const { return x_.n; }
  DType dtype() const { return x_.dtype; }
  // Whether the codec must leave p - decoded behind, through Take.
  bool keeps_residual() const { return kind_ == Kind::kFeedback; }
  // p where it lies, null where it must be computed.
  const float* in_place() const {
    const bool as_is = kind_ == Kind::kScaled && x_.dtype == DType::kFloat32;
    return as_is && options_.scale == 1.0f ? x_.f32() : nullptr;
  }
  // Whether p = scale() * scaled_input(), and nothing else.
  bool is_scaled_input() const { return kind_ == Kind::kScaled; }
  // What p was given as. REQUIRES: is_scaled_input().
  ConstView scaled_input() const { return x_; }
  float scale() const { return options_.scale; }

  // p[offset, offset + count), nothing changed. Where x, g or w is not finite once scaled, so is p
  // (NaN or infinite); what overflows only when a memory is added becomes the largest finite
  // float of its sign. Valid until the next call. REQUIRES: offset + count <= n, count <= kTile,
  // and with a residual none of it was taken yet.
  const float* Peek(size_t offset, size_t count);

  // Puts p[offset, offset + count) where the residual is, and the momentum where the momentum is;
  // the codec subtracts what it decodes to. Valid until the source dies. Every element is taken
  // exactly once by the end of EncodeFrom. REQUIRES: as Peek; keeps_residual(); all of p was seen
  // to be finite (CheckFinite, or Peek of all of it): nothing may fail after the first Take.
  float* Take(size_t offset, size_t count);
  // The step of these elements alone, for a kernel that takes them itself. REQUIRES: as Take.
  Feedback Untaken(size_t offset, size_t count) const;
  // What was taken there.
  float* Taken(size_t offset) const { return residual_ + offset; }

  // InvalidArgument names the first element that is not finite. One pass over x, g or w alone.
  absl::Status CheckFinite() const;

 private:
  enum class Kind { kScaled, kFeedback, kDifference };

  const Kind kind_;
  const ConstView x_;  // g, w
  const FeedbackOptions options_;
  float* const residual_ = nullptr;
  float* const momentum_ = nullptr;
  const float* const replica_ = nullptr;
  alignas(64) float tile_[kTile];
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_ENCODE_SOURCE_H_
