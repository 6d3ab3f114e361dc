#include "compressors/encode_source.h"

#include "compressors/payload.h"
#include "kernels/accumulate_kernels.h"
#include "kernels/float_kernels.h"

namespace bdn {

EncodeSource::EncodeSource(ConstView x, float scale)
    : kind_(Kind::kScaled), x_(x), options_{.scale = scale} {}

// Where mu is 0, kernels get no array for the momentum, so that one which is given is neither read
// nor changed.
EncodeSource::EncodeSource(const Feedback& feedback)
    : kind_(Kind::kFeedback),
      x_(feedback.g),
      options_(feedback.options),
      residual_(feedback.residual),
      momentum_(feedback.options.momentum == 0.0f ? nullptr : feedback.momentum) {}

EncodeSource::EncodeSource(ConstView w, const float* replica)
    : kind_(Kind::kDifference), x_(w), options_{}, replica_(replica) {}

const float* EncodeSource::Peek(size_t offset, size_t count) {
  switch (kind_) {
    case Kind::kScaled:
      if (x_.dtype == DType::kFloat32 && options_.scale == 1.0f) return x_.f32() + offset;
      ConvertScaled(x_.Sub(offset, count), options_.scale, {tile_, DType::kFloat32, count});
      break;
    case Kind::kFeedback:
      AccumulateInto(x_.Sub(offset, count), options_, residual_ + offset,
                     momentum_ == nullptr ? nullptr : momentum_ + offset, tile_);
      break;
    case Kind::kDifference:
      SubtractInto(x_.Sub(offset, count), replica_ + offset, tile_);
      break;
  }
  return tile_;
}

Feedback EncodeSource::Untaken(size_t offset, size_t count) const {
  return {.g = x_.Sub(offset, count),
          .options = options_,
          .residual = residual_ + offset,
          .momentum = momentum_ == nullptr ? nullptr : momentum_ + offset};
}

float* EncodeSource::Take(size_t offset, size_t count) {
  const Feedback step = Untaken(offset, count);
  AccumulateInPlace(step.g, step.options, step.residual, step.momentum);
  return step.residual;
}

// Residuals, momenta and replicas are kept finite by clamping, so only the input can be bad.
absl::Status EncodeSource::CheckFinite() const { return bdn::CheckFinite(x_, options_.scale); }

}  // namespace bdn
