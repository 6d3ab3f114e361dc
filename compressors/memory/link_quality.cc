#include "compressors/memory/link_quality.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compressors/scratch.h"
#include "kernels/accumulate_kernels.h"
#include "kernels/float_kernels.h"
#include "kernels/norm_kernels.h"

namespace bdn {
namespace {

constexpr size_t kTile = EncodeSource::kTile;

// Calls of_tile(begin, count) for runs that fit in the cache.
template <typename OfTile>
void ForTiles(size_t n, const OfTile& of_tile) {
  for (size_t at = 0; at < n; at += kTile) of_tile(at, std::min(kTile, n - at));
}

}  // namespace

LinkQuality& LinkQuality::operator+=(const LinkQuality& other) {
  input += other.input;
  offered += other.offered;
  decoded += other.decoded;
  residual += other.residual;
  return *this;
}

double LinkQuality::ratio() const { return residual == 0 ? 0 : std::sqrt(residual / offered); }

double LinkQuality::cosine() const {
  if (offered == 0 || decoded == 0) return 0;
  // The products of p and d need no pass of their own, as e = p - d:
  //   2 <p, d> = |p|^2 + |d|^2 - |p - d|^2
  const double cosine = (offered + decoded - residual) / (2 * std::sqrt(offered * decoded));
  return std::isnan(cosine) ? cosine : std::clamp(cosine, -1.0, 1.0);
}

double LinkQuality::owed_steps() const { return residual == 0 ? 0 : std::sqrt(residual / input); }

LinkQuality MeasureFeedback(const Codec& codec, const Feedback& after, ByteSpan payload) {
  const size_t n = after.g.n;
  const ScratchArray<float> decoded(n);
  codec.Decode(payload, 1.0f, {decoded.data(), DType::kFloat32, n});
  const FeedbackOptions& options = after.options;
  LinkQuality sums;
  ForTiles(n, [&](size_t at, size_t count) {
    alignas(64) std::array<float, kTile> tile;
    const float* const d = decoded.data() + at;
    const float* const e = after.residual + at;
    sums.decoded = AddSquares(sums.decoded, d, count);
    sums.residual = AddSquares(sums.residual, e, count);
    // p is no longer at hand: it is the sum of d, which was sent, and e, which was left.
    for (size_t i = 0; i < count; ++i) tile[i] = d[i] + e[i];
    sums.offered = AddSquares(sums.offered, tile.data(), count);
    // u is a * g, and mu * m with momentum, as EncodeFeedback left m.
    ConvertScaled(after.g.Sub(at, count), options.scale, {tile.data(), DType::kFloat32, count});
    if (options.momentum != 0.0f) {
      const float* const m = after.momentum + at;
      for (size_t i = 0; i < count; ++i) tile[i] += options.momentum * m[i];
    }
    sums.input = AddSquares(sums.input, tile.data(), count);
  });
  return sums;
}

LinkQuality MeasureDelta(const Codec& codec, ConstView w, const float* before, const float* replica,
                         ByteSpan payload) {
  const ScratchArray<float> decoded(w.n);
  codec.Decode(payload, 1.0f, {decoded.data(), DType::kFloat32, w.n});
  LinkQuality sums;
  ForTiles(w.n, [&](size_t at, size_t count) {
    alignas(64) std::array<float, kTile> tile;
    const float* const d = decoded.data() + at;
    const ConstView weights = w.Sub(at, count);
    sums.decoded = AddSquares(sums.decoded, d, count);
    SubtractInto(weights, before + at, tile.data());
    sums.input = AddSquares(sums.input, tile.data(), count);
    SubtractInto(weights, replica + at, tile.data());
    sums.residual = AddSquares(sums.residual, tile.data(), count);
    // The same sums as above, with e = w - replica.
    for (size_t i = 0; i < count; ++i) tile[i] += d[i];
    sums.offered = AddSquares(sums.offered, tile.data(), count);
  });
  return sums;
}

}  // namespace bdn
