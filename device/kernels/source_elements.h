#ifndef BANDONEON_DEVICE_KERNELS_SOURCE_ELEMENTS_H_
#define BANDONEON_DEVICE_KERNELS_SOURCE_ELEMENTS_H_

#include <cstdint>

#include "device/kernels/elements.h"
#include "device/kernels/portable.h"
#include "kernels/clamp_to_finite.h"

// The arrays that kernels read p, the values to encode, from, with the residual or replica that
// they update, and the arrays that they decode to. The formulas are those of
// kernels/accumulate_kernels.h.

namespace bdn::device_kernels {

// The formula of p. `memory` is the residual or the replica.
enum class SourceKind : uint32_t {
  kScaled,      // p = scale * x
  kFeedback,    // p of error feedback; leaves p - decoded in `memory`, and the momentum
  kDifference,  // p = clamp(x - memory); leaves memory + decoded
};

// The input of an encoding, as kernels take it.
struct Source {
  const void* x;
  float* memory;    // residual or replica, float32[n]
  float* momentum;  // float32[n], or null
  ElementType type;
  SourceKind kind;
  float scale;
  float decay;
  float momentum_factor;
  uint32_t n;
};

// The outcome of an encoding.
struct EncodeResult {
  static constexpr uint64_t kAllFinite = ~uint64_t{0};

  uint64_t used_bytes;
  // The number of the first bad input: twice the least i whose input is not finite, and 1 more
  // where it is NaN; or kAllFinite.
  uint64_t non_finite;
};

BDN_DEVICE float Input(const Source& source, uint32_t i) {
  return source.scale * LoadElement(source.type, source.x, i);
}

// Returns `value`, or NaN where the input is not finite, which clamping must not hide.
BDN_DEVICE float OrNaN(float input, float value) {
  return input - input == 0.0f ? value : FloatOf(0x7fc00000u);
}

// An element's p, and its new momentum.
struct Accumulated {
  float p;
  float momentum;
};

BDN_DEVICE Accumulated Accumulate(const Source& source, uint32_t i) {
  const float input = Input(source, i);
  if (source.kind == SourceKind::kScaled) return {input, 0.0f};
  if (source.kind == SourceKind::kDifference) {
    return {OrNaN(input, ClampToFinite(input - source.memory[i])), 0.0f};
  }
  float p = input;
  float m = 0.0f;
  if (source.momentum != nullptr) {
    m = ClampToFinite((source.momentum_factor * source.momentum[i]) + input);
    p = ClampToFinite(input + (source.momentum_factor * m));
  }
  return {OrNaN(input, ClampToFinite(p + ClampToFinite(source.decay * source.memory[i]))), m};
}

// Returns p[i], and changes nothing. It is not finite exactly where the input is not.
BDN_DEVICE float Peek(const Source& source, uint32_t i) { return Accumulate(source, i).p; }

// Returns p[i], and lets the momentum make its step; Leave follows. It is called once for each
// element, and not before all of the input was seen to be finite.
BDN_DEVICE float Take(const Source& source, uint32_t i) {
  const Accumulated accumulated = Accumulate(source, i);
  if (source.kind == SourceKind::kFeedback && source.momentum != nullptr) {
    source.momentum[i] = accumulated.momentum;
  }
  return accumulated.p;
}

// Updates the residual or replica after `decoded` was sent for p[i].
BDN_DEVICE void Leave(const Source& source, uint32_t i, float p, float decoded) {
  if (source.kind == SourceKind::kFeedback) source.memory[i] = p - decoded;
  if (source.kind == SourceKind::kDifference) source.memory[i] = source.memory[i] + decoded;
}
// Does the same where p - decoded can overflow.
BDN_DEVICE void LeaveClamped(const Source& source, uint32_t i, float p, float decoded) {
  if (source.kind == SourceKind::kFeedback) source.memory[i] = ClampToFinite(p - decoded);
  if (source.kind == SourceKind::kDifference) source.memory[i] = source.memory[i] + decoded;
}
// Does the same where nothing was sent.
BDN_DEVICE void LeaveAll(const Source& source, uint32_t i, float p) {
  if (source.kind == SourceKind::kFeedback) source.memory[i] = p;
}

BDN_DEVICE bool HasMemory(const Source& source) { return source.kind != SourceKind::kScaled; }

// Notes input i in the result. REQUIRES: input i is not finite.
BDN_DEVICE void NoteNonFinite(const Source& source, uint32_t i, EncodeResult* result) {
  const float input = Input(source, i);
  AtomicLeast(&result->non_finite, uint64_t{i} * 2 + (input != input ? 1 : 0));
}
BDN_DEVICE bool AllFinite(const EncodeResult* result) {
  return result->non_finite == EncodeResult::kAllFinite;
}

// The output of a decoding, as kernels take it.
struct Target {
  void* y;
  ElementType type;
  float scale;
  bool adds;  // y += decoded values; y is float32 then
  uint32_t n;
};

// Sets y[i] = scale * decoded, or y[i] += that.
BDN_DEVICE void Deliver(const Target& target, uint32_t i, float decoded) {
  const float value = target.scale * decoded;
  if (target.adds) {
    float* const y = static_cast<float*>(target.y);
    y[i] = y[i] + value;
  } else {
    StoreElement(target.type, target.y, i, value);
  }
}

// Handles an element that was not sent: sets y[i] = +0, or adds nothing.
BDN_DEVICE void DeliverNothing(const Target& target, uint32_t i) {
  if (!target.adds) StoreElement(target.type, target.y, i, 0.0f);
}

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_SOURCE_ELEMENTS_H_
