#include "tests/device/device_link.h"

#include <span>

#include "common/base/status.h"
#include "compressors/memory/delta.h"
#include "device/device_budget.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// A block of device memory. The program ends where there is none, as the test cannot go on.
class OnDevice {
 public:
  OnDevice(ComputeDevice& device, size_t bytes)
      : device_(device), bytes_(bytes), memory_(*DeviceMemory::Make(device, bytes)) {}
  OnDevice(ComputeDevice& device, ByteSpan from) : OnDevice(device, from.size()) {
    EXPECT_TRUE(device_.CopyToDevice({}, from, memory_.get()).ok());
  }
  // Null where there are no bytes.
  void* get() const { return memory_.get(); }
  float* f32() const { return static_cast<float*>(memory_.get()); }
  void CopyTo(MutableByteSpan to) const {
    EXPECT_LE(to.size(), bytes_);
    EXPECT_TRUE(device_.CopyToHost({}, memory_.get(), to).ok());
    EXPECT_TRUE(device_.Synchronize({}).ok());
  }

 private:
  ComputeDevice& device_;
  size_t bytes_;
  DeviceMemory memory_;
};

ByteSpan BytesOf(ConstView view) {
  return {static_cast<const std::byte*>(view.data), view.n * DTypeSize(view.dtype)};
}
MutableByteSpan BytesOf(MutableView view) {
  return {static_cast<std::byte*>(view.data), view.n * DTypeSize(view.dtype)};
}
ByteSpan BytesOf(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

}  // namespace

LinkInput MakeInput(const std::string& kind, size_t n, DType dtype, Memory memory) {
  LinkInput input{.x = TypedArray::Of(dtype, MakeData(kind, n, 1)), .options = {.scale = 0.75f}};
  if (memory == Memory::kReplica) input.replica = MakeData("normal", n, 2);
  if (memory == Memory::kResidual || memory == Memory::kMomentum) {
    input.residual = MakeData(kind, n, 3);
    input.options.decay = 0.9f;
  }
  if (memory == Memory::kMomentum) {
    input.momentum = MakeData(kind, n, 4);
    input.options.momentum = 0.9f;
  }
  return input;
}

absl::StatusOr<std::vector<uint8_t>> EncodeOnHost(const Codec& codec, const LinkInput& input,
                                                  const Draw& draw, LinkOutput* after) {
  const ConstView x = input.x.view();
  std::vector<uint8_t> out(codec.MaxEncodedBytes(x.n, x.dtype));
  const MutableByteSpan to = std::as_writable_bytes(std::span(out));
  *after = {.residual = input.residual, .momentum = input.momentum, .replica = input.replica};
  absl::StatusOr<size_t> used = 0;
  if (!input.replica.empty()) {
    used = EncodeDelta(codec, x, draw, after->replica.data(), to);
  } else if (!input.residual.empty()) {
    float* const momentum = input.momentum.empty() ? nullptr : after->momentum.data();
    used = codec.EncodeFeedback({x, input.options, after->residual.data(), momentum}, draw, to);
  } else {
    used = codec.Encode(x, input.options.scale, draw, to);
  }
  if (!used.ok()) return used.status();
  out.resize(*used);
  return out;
}

absl::StatusOr<std::vector<uint8_t>> EncodeOnDevice(ComputeDevice& device, const Codec& codec,
                                                    const LinkInput& input, const Draw& draw,
                                                    LinkOutput* after) {
  const ConstView view = input.x.view();
  BDN_ASSIGN_OR_RETURN(const auto device_codec, MakeDeviceCodec(codec));
  const OnDevice x(device, BytesOf(view));
  const OnDevice residual(device, BytesOf(input.residual));
  const OnDevice momentum(device, BytesOf(input.momentum));
  const OnDevice replica(device, BytesOf(input.replica));
  const OnDevice payload(device, codec.MaxEncodedBytes(view.n, view.dtype));
  const OnDevice scratch(device, device_codec->ScratchBytes(view.n));
  const OnDevice result(device, sizeof(EncodeResult));
  const DeviceSource source{.x = x.get(),
                            .dtype = view.dtype,
                            .n = view.n,
                            .options = input.options,
                            .residual = residual.f32(),
                            .momentum = momentum.f32(),
                            .replica = replica.f32()};
  BDN_RETURN_IF_ERROR(device_codec->Encode(device, {}, source, draw,
                                           {.payload = payload.get(),
                                            .scratch = scratch.get(),
                                            .result = static_cast<EncodeResult*>(result.get())}));
  EncodeResult outcome;
  result.CopyTo(std::as_writable_bytes(std::span(&outcome, 1)));
  *after = {.residual = input.residual, .momentum = input.momentum, .replica = input.replica};
  residual.CopyTo(std::as_writable_bytes(std::span(after->residual)));
  momentum.CopyTo(std::as_writable_bytes(std::span(after->momentum)));
  replica.CopyTo(std::as_writable_bytes(std::span(after->replica)));
  BDN_ASSIGN_OR_RETURN(const size_t used, Outcome(outcome));
  std::vector<uint8_t> bytes(used);
  payload.CopyTo(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TypedArray DecodeOnHost(const Codec& codec, const std::vector<uint8_t>& payload, float scale,
                        bool adds, TypedArray y) {
  adds ? codec.DecodeAdd(AsBytes(payload), scale, y.view())
       : codec.Decode(AsBytes(payload), scale, y.view());
  return y;
}

TypedArray DecodeOnDevice(ComputeDevice& device, const Codec& codec,
                          const std::vector<uint8_t>& payload, float scale, bool adds,
                          TypedArray y) {
  const MutableView view = y.view();
  const auto device_codec = MakeDeviceCodec(codec);
  EXPECT_TRUE(device_codec.ok()) << device_codec.status();
  const OnDevice from(device, AsBytes(payload));
  const OnDevice to(device, BytesOf(ConstView(view)));
  const absl::Status status =
      (*device_codec)
          ->Decode(device, {}, from.get(),
                   {.y = to.get(), .dtype = view.dtype, .n = view.n, .scale = scale, .adds = adds});
  EXPECT_TRUE(status.ok()) << status;
  to.CopyTo(BytesOf(view));
  return y;
}

}  // namespace bdn
