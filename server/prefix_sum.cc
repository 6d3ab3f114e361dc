#include "server/prefix_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace bdn {
namespace {

// Once there is a sum, payloads wait until they have this share of its bytes, and are then added
// together: each addition is a pass over the sum.
constexpr size_t kShareOfSum = 8;

Buffer NewBlock(BufferPool* pool, size_t bytes) {
  return pool != nullptr ? pool->Get(bytes) : Buffer::Allocate(bytes);
}

}  // namespace

void PrefixSum::Add(const Context& context, Buffer payload) {
  const SegmentedCodec& codec = context.plan.codecs.Push(context.step);
  present_.resize(codec.num_segments());
  for (size_t i = 0; i < present_.size(); ++i) {
    present_[i] |= codec.Present(payload.span(), i) ? 1 : 0;
  }
  payload_bytes_ += payload.size();
  payloads_.push_back(std::move(payload));
}

void PrefixSum::Fold(const Context& context) {
  const bool encoded = context.plan.codecs.AddsEncoded(context.step);
  const SegmentedCodec& codec = context.plan.codecs.Push(context.step);
  const size_t sum_bytes =
      encoded ? codec.MaxEncodedBytes() : codec.num_elements() * DTypeSize(context.plan.sum_dtype);
  const size_t most = sum_.empty() ? sum_bytes : sum_bytes / kShareOfSum;
  if (payload_bytes_ <= most) return;
  encoded ? FoldEncoded(context) : FoldDecoded(context);
  payloads_.clear();
  payload_bytes_ = 0;
}

void PrefixSum::FoldDecoded(const Context& context) {
  const SegmentedCodec& codec = context.plan.codecs.Push(context.step);
  const DType dtype = context.plan.sum_dtype;
  const size_t bytes = codec.num_elements() * DTypeSize(dtype);
  if (sum_.empty()) {
    sum_ = NewBlock(context.pool, bytes);
    const MutableView y{sum_.data(), dtype, codec.num_elements()};
    // Without a transform, the first sum needs no zeros. A codec with a transform adds in the
    // transformed domain, so that the inverse is computed once, in Finish.
    if (!codec.codec().Transforms()) return codec.DecodeSum(Spans(), y);
    std::memset(sum_.data(), 0, bytes);
  } else if (!sum_.IsUnique()) {
    // A copy of this object, as a snapshot of the shard, shares the block.
    const Buffer own = NewBlock(context.pool, bytes);
    std::memcpy(own.data(), sum_.data(), bytes);
    sum_ = own;
  }
  codec.DecodeAddTransformed(Spans(), MutableView{sum_.data(), dtype, codec.num_elements()});
}

void PrefixSum::FoldEncoded(const Context& context) {
  // A sum that is not finite stays so; Finish returns the error.
  if (!error_.ok()) return;
  const SegmentedCodec& codec = context.plan.codecs.Push(context.step);
  const Buffer out = NewBlock(context.pool, codec.MaxEncodedBytes());
  const auto used = codec.AddEncoded(SpansWithSum(), 1.0f, out.mutable_span());
  sum_ = used.ok() ? out.Prefix(*used) : Buffer();
  error_ = used.status();
}

std::vector<ByteSpan> PrefixSum::Spans() const {
  std::vector<ByteSpan> spans;
  for (const Buffer& payload : payloads_) spans.push_back(payload.span());
  return spans;
}

std::vector<ByteSpan> PrefixSum::SpansWithSum() const {
  std::vector<ByteSpan> spans = Spans();
  if (!sum_.empty()) spans.insert(spans.begin(), sum_.span());
  return spans;
}

MutableView PrefixSum::Finish(const Context& context, std::vector<double>* scratch) {
  const SegmentedCodec& codec = context.plan.codecs.Push(context.step);
  const size_t n = codec.num_elements();
  const DType dtype = context.plan.sum_dtype;
  // All payloads are still held. The sum is made in scratch memory that all keys share, so that it
  // stays in the cache.
  if (sum_.empty()) {
    const size_t doubles = (n * DTypeSize(dtype) + sizeof(double) - 1) / sizeof(double);
    if (scratch->size() < doubles) scratch->resize(doubles);
    const MutableView sum{scratch->data(), dtype, n};
    codec.DecodeSum(Spans(), sum);
    return sum;
  }
  FoldDecoded(context);
  const MutableView sum{sum_.data(), dtype, n};
  codec.InverseTransform(sum);
  return sum;
}

absl::StatusOr<size_t> PrefixSum::FinishEncoded(const Context& context, float scale,
                                                MutableByteSpan out) const {
  if (!error_.ok()) return error_;
  return context.plan.codecs.Push(context.step).AddEncoded(SpansWithSum(), scale, out);
}

}  // namespace bdn
