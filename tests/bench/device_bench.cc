// Codecs on a device: GB of float32 gradient a second, with error feedback where the codec loses
// anything, and what part that is of the rate at which the device copies as many bytes.
//
//   device_bench [--iterations N] [--elements N] [--host]
//
// Medians of N steps (default 21) over N elements (64 Mi). --host runs the kernels on the host, to
// see that they run. Without a GPU, and without --host, it says so in a line and measures nothing.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "compressors/codec_spec.h"
#include "device/codecs/device_codec.h"
#include "device/cuda_device.h"
#include "device/device_budget.h"
#include "device/host_device.h"

namespace bdn {
namespace {

struct Options {
  int iterations = 21;
  size_t elements = size_t{1} << 26;
  bool host = false;
};

constexpr const char* kSpecs[] = {
    "none",
    "fp16",
    "bf16",
    "onebit",
    "onebit(block=256)",
    "twobit",
    "twobit(block=64)",
    "sign",
    "int8",
    "int4",
    "int4(hadamard=32)",
    "int4(group=8192)",
    "int2",
    "dither",
    "dither(kind=natural)",
    "dither(norm=l2)",
    "randomk(ratio=0.01)",
    "blocks(ratio=0.1)",
    "topk(ratio=0.01)",
    "topk(ratio=0.01,select=sampled)",
};

// The arrays of one codec, and what is done with them.
class Work {
 public:
  static absl::StatusOr<std::unique_ptr<Work>> Make(ComputeDevice& device, const std::string& spec,
                                                    size_t n) {
    std::unique_ptr<Work> work(new Work(device, n));
    BDN_ASSIGN_OR_RETURN(const LinkCodec link, ParseCodecSpec(spec));
    work->feedback_ = !link.codec->lossless();
    BDN_ASSIGN_OR_RETURN(work->codec_, MakeDeviceCodec(*link.codec));
    const size_t bytes = n * sizeof(float);
    for (DeviceMemory* memory : {&work->x_, &work->residual_, &work->y_}) {
      BDN_ASSIGN_OR_RETURN(*memory, DeviceMemory::Make(device, bytes));
    }
    BDN_ASSIGN_OR_RETURN(work->payload_, DeviceMemory::Make(device, link.codec->MaxEncodedBytes(
                                                                        n, DType::kFloat32)));
    BDN_ASSIGN_OR_RETURN(work->scratch_, DeviceMemory::Make(device, work->codec_->ScratchBytes(n)));
    BDN_ASSIGN_OR_RETURN(work->result_, DeviceMemory::Make(device, sizeof(EncodeResult)));
    // Gradients are of many sizes, and never all the same.
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 2654435761u % 65537) - 32768.0f;
    BDN_RETURN_IF_ERROR(device.CopyToDevice({}, std::as_bytes(std::span(x)), work->x_.get()));
    std::fill(x.begin(), x.end(), 0.0f);
    BDN_RETURN_IF_ERROR(device.Synchronize({}));
    BDN_RETURN_IF_ERROR(
        device.CopyToDevice({}, std::as_bytes(std::span(x)), work->residual_.get()));
    BDN_RETURN_IF_ERROR(device.Synchronize({}));
    return work;
  }

  absl::Status Encode() const {
    const DeviceSource source{
        .x = x_.get(),
        .n = n_,
        .options = {.decay = 0.5f},
        .residual = feedback_ ? static_cast<float*>(residual_.get()) : nullptr};
    return codec_->Encode(device_, {}, source, Draw(),
                          {.payload = payload_.get(),
                           .scratch = scratch_.get(),
                           .result = static_cast<EncodeResult*>(result_.get())});
  }
  absl::Status Decode() const {
    return codec_->Decode(device_, {}, payload_.get(), {.y = y_.get(), .n = n_});
  }
  absl::Status Copy() const {
    return device_.CopyOnDevice({}, x_.get(), y_.get(), n_ * sizeof(float));
  }

 private:
  Work(ComputeDevice& device, size_t n) : device_(device), n_(n) {}

  ComputeDevice& device_;
  const size_t n_;
  bool feedback_ = false;
  std::unique_ptr<DeviceCodec> codec_;
  DeviceMemory x_, residual_, y_, payload_, scratch_, result_;
};

// The median of GB of gradient a second.
absl::StatusOr<double> Speed(ComputeDevice& device, const Options& options,
                             const std::function<absl::Status()>& step) {
  std::vector<double> speeds;
  for (int i = 0; i < options.iterations; ++i) {
    const absl::Time start = absl::Now();
    BDN_RETURN_IF_ERROR(step());
    BDN_RETURN_IF_ERROR(device.Synchronize({}));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    speeds.push_back(static_cast<double>(options.elements * sizeof(float)) / 1e9 / seconds);
  }
  const auto middle = speeds.begin() + static_cast<ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

absl::Status Run(ComputeDevice& device, const Options& options) {
  std::printf("%s, %zu elements\n", device.name().c_str(), options.elements);
  std::printf("%-34s %11s %11s %11s %11s\n", "codec", "encode GB/s", "of a copy", "decode GB/s",
              "of a copy");
  for (const char* spec : kSpecs) {
    BDN_ASSIGN_OR_RETURN(const auto work, Work::Make(device, spec, options.elements));
    BDN_RETURN_IF_ERROR(work->Encode());  // not counted: a first launch takes longer
    BDN_ASSIGN_OR_RETURN(const double copy, Speed(device, options, [&] { return work->Copy(); }));
    BDN_ASSIGN_OR_RETURN(const double encode,
                         Speed(device, options, [&] { return work->Encode(); }));
    BDN_ASSIGN_OR_RETURN(const double decode,
                         Speed(device, options, [&] { return work->Decode(); }));
    std::printf("%-34s %11.2f %11.2f %11.2f %11.2f\n", spec, encode, encode / copy, decode,
                decode / copy);
  }
  return absl::OkStatus();
}

int Main(const Options& options) {
  HostDevice host;
  std::unique_ptr<CudaDevice> gpu;
  if (!options.host) {
    auto opened = CudaDevice::Open();
    const absl::Status status = opened.ok() ? (*opened)->kernels() : opened.status();
    if (!status.ok()) {
      std::printf("no GPU for codecs here, nothing was measured: %s\n",
                  std::string(status.message()).c_str());
      return 0;
    }
    gpu = std::move(*opened);
  }
  const absl::Status status =
      Run(gpu == nullptr ? static_cast<ComputeDevice&>(host) : *gpu, options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "device_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  bdn::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const long value = i + 1 < argc ? std::atol(argv[i + 1]) : 0;
    if (flag == "--host") {
      options.host = true;
    } else if (flag == "--iterations" && value > 0) {
      options.iterations = static_cast<int>(value);
      ++i;
    } else if (flag == "--elements" && value > 0) {
      options.elements = static_cast<size_t>(value);
      ++i;
    } else {
      std::fprintf(stderr, "usage: device_bench [--iterations N] [--elements N] [--host]\n");
      return 2;
    }
  }
  return bdn::Main(options);
}
