// What each codec costs, beside a memcpy of the same bytes in the same run. `bandoneon bench
// codecs` runs this and has the help text; docs/benchmarks.md explains each figure.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/base/draw.h"
#include "common/base/float_guard.h"
#include "common/base/status.h"
#include "compressors/codec_spec.h"

namespace bdn {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr const char* kDefaultCodecs[] = {
    "none",
    "fp16",
    "bf16",
    "onebit",
    "onebit(block=256)",
    "sign",
    "topk(ratio=0.01)",
    "topk(ratio=0.001,select=sampled)",
    "randomk(ratio=0.01)",
    "blocks(ratio=0.01)",
    "dither(levels=7)",
    "dither(levels=7,kind=natural)",
    "int4(group=128,round=nearest)",
    "int4(group=128)",
    "int4(group=128,hadamard=32)",
    "int8(group=128,round=nearest)",
    "sketch(columns=0.02)",
    "exactsketch(cells=0.1)",
};
constexpr size_t kDefaultElements[] = {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20};
constexpr size_t kMostElements = size_t{1} << 28;
constexpr size_t kMostThreads = 256;

constexpr size_t kPayloads = 4;        // of a multi-decode
constexpr size_t kPayloadOffset = 16;  // elements between their inputs, so that they differ
constexpr double kSparse = 0.05;       // share of non-zeros in the input of the sketches

// A sample is at least so long, and begins warm: with a call that is not timed, unless no cache
// could hold what it leaves there.
constexpr Seconds kSample{200e-6};
constexpr size_t kMostWarmElements = size_t{4} << 20;
constexpr Seconds kCaseTime{1.2};
constexpr size_t kLeastSamples = 3;
constexpr size_t kMostSamples = 301;

struct BenchOptions {
  std::vector<std::string> codecs;
  std::vector<size_t> elements;
  size_t threads = 1;
  bool json = false;
};

enum Operation : size_t { kMemcpy, kEncode, kEncodeFeedback, kDecodeAdd, kMultiDecode };
constexpr size_t kOperations = 5;
using Rates = std::array<double, kOperations>;  // fp32 GB/s

// An array on cache lines, every page touched.
template <typename T>
class AlignedArray {
 public:
  explicit AlignedArray(size_t size) : size_(size) {
    const size_t bytes = (size * sizeof(T) + 63) / 64 * 64 + 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) {
      fprintf(stderr, "bandoneon-bench-codecs: no memory for %zu bytes\n", bytes);
      std::exit(1);
    }
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
  }
  T* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  size_t size_;
  std::unique_ptr<T, Free> data_;
};

// Threads wait here for each other. They spin: a thread that had to be woken would start late.
class Barrier {
 public:
  explicit Barrier(size_t threads) : threads_(threads) {}
  void Wait() {
    const size_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store(0);
      round_.store(round + 1);
      return;
    }
    for (int spins = 0; round_.load() == round; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
  }

 private:
  const size_t threads_;
  std::atomic<size_t> arrived_{0};
  std::atomic<size_t> round_{0};
};

// What one thread works on. Not thread-safe.
class Partition {
 public:
  Partition(size_t n, size_t seed)
      : n_(n),
        normal_(n + kPayloads * kPayloadOffset),
        sparse_(normal_.size()),
        residual_(n),
        sum_(n),
        copy_(n) {
    std::minstd_rand random(static_cast<unsigned>(seed + 1));
    std::normal_distribution<float> normal;
    std::bernoulli_distribution kept(kSparse);
    for (size_t i = 0; i < normal_.size(); ++i) {
      normal_.data()[i] = normal(random);
      if (kept(random)) sparse_.data()[i] = normal_.data()[i];
    }
  }

  // Encodes what the decoders get.
  absl::Status Use(const Codec* codec) {
    codec_ = codec;
    const bool sparse = codec->id() == CodecId::kSketch || codec->id() == CodecId::kExactSketch;
    x_ = sparse ? sparse_.data() : normal_.data();
    std::fill_n(residual_.data(), n_, 0.0f);
    std::fill_n(sum_.data(), n_, 0.0f);
    const size_t most = codec->MaxEncodedBytes(n_, DType::kFloat32);
    buffers_.clear();
    for (size_t i = 0; i <= kPayloads; ++i) buffers_.emplace_back(most);
    payloads_.clear();
    for (size_t i = 0; i < kPayloads; ++i) {
      const ConstView x{x_ + i * kPayloadOffset, DType::kFloat32, n_};
      BDN_ASSIGN_OR_RETURN(const size_t used, codec->Encode(x, 1.0f, Draw(), out(i)));
      payloads_.push_back(ByteSpan(out(i)).first(used));
    }
    return absl::OkStatus();
  }

  void Do(Operation operation) {
    const ConstView x{x_, DType::kFloat32, n_};
    const MutableView y{sum_.data(), DType::kFloat32, n_};
    switch (operation) {
      case kMemcpy:
        std::memcpy(copy_.data(), x_, n_ * sizeof(float));
        // Nobody reads the copy, which the compiler must not know.
        asm volatile("" : : "r"(copy_.data()) : "memory");
        break;
      case kEncode:
        Expect(codec_->Encode(x, 1.0f, NextDraw(), out(kPayloads)));
        break;
      case kEncodeFeedback:
        Expect(codec_->EncodeFeedback({.g = x, .residual = residual_.data()}, NextDraw(),
                                      out(kPayloads)));
        break;
      case kDecodeAdd:
        codec_->DecodeAddTransformed(payloads_[0], 1.0f, y);
        break;
      case kMultiDecode:
        codec_->DecodeSum(payloads_, 1.0f, y);
        break;
    }
  }

  size_t encoded_bytes() const { return payloads_[0].size(); }
  bool sparse() const { return x_ == sparse_.data(); }

 private:
  MutableByteSpan out(size_t i) const { return {buffers_[i].data(), buffers_[i].size()}; }
  Draw NextDraw() { return Draw({.step = ++step_}); }
  void Expect(const absl::StatusOr<size_t>& used) const {
    if (used.ok()) return;
    fprintf(stderr, "bandoneon-bench-codecs: %s: %s\n", codec_->spec().c_str(),
            std::string(used.status().message()).c_str());
    std::_Exit(1);  // other threads may be at work
  }

  const size_t n_;
  const AlignedArray<float> normal_;
  const AlignedArray<float> sparse_;
  const AlignedArray<float> residual_;
  const AlignedArray<float> sum_;
  const AlignedArray<float> copy_;
  const Codec* codec_ = nullptr;
  const float* x_ = nullptr;
  std::vector<AlignedArray<std::byte>> buffers_;
  std::vector<ByteSpan> payloads_;
  uint64_t step_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Threads with a partition each, which do the same operation at the same time.
class Crew {
 public:
  Crew(size_t n, size_t threads) : n_(n), barrier_(threads), times_(threads) {
    for (size_t i = 0; i < threads; ++i) partitions_.push_back(std::make_unique<Partition>(n, i));
    for (size_t i = 1; i < threads; ++i) {
      threads_.emplace_back([this, i] {
        const FloatGuard guard;
        for (barrier_.Wait(); calls_ > 0; barrier_.Wait()) Work(i);
      });
    }
  }
  ~Crew() {
    calls_ = 0;
    barrier_.Wait();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Use(const Codec* codec) {
    for (const auto& partition : partitions_) BDN_RETURN_IF_ERROR(partition->Use(codec));
    return absl::OkStatus();
  }

  Rates Measure() {
    std::array<size_t, kOperations> calls;
    for (size_t i = 0; i < kOperations; ++i) calls[i] = CallsOfSample(static_cast<Operation>(i));
    std::array<std::vector<double>, kOperations> seconds;
    const auto begin = Clock::now();
    while (seconds[0].size() < kLeastSamples ||
           (seconds[0].size() < kMostSamples && Clock::now() - begin < kCaseTime)) {
      for (size_t i = 0; i < kOperations; ++i) {
        const auto operation = static_cast<Operation>(i);
        if (n_ <= kMostWarmElements) Sample(operation, 1);
        seconds[i].push_back(Sample(operation, calls[i]).count() / static_cast<double>(calls[i]));
      }
    }
    Rates rates;
    const double bytes = static_cast<double>(partitions_.size() * n_ * sizeof(float));
    for (size_t i = 0; i < kOperations; ++i) {
      rates[i] = (i == kMultiDecode ? kPayloads : 1) * bytes / Median(seconds[i]) / 1e9;
    }
    return rates;
  }

  const Partition& first() const { return *partitions_[0]; }

 private:
  struct Times {
    Clock::time_point begin;
    Clock::time_point end;
  };

  // From the first thread's begin to the last one's end.
  Seconds Sample(Operation operation, size_t calls) {
    operation_ = operation;
    calls_ = calls;
    barrier_.Wait();
    Work(0);
    Times all = times_[0];
    for (const Times& times : times_) {
      all.begin = std::min(all.begin, times.begin);
      all.end = std::max(all.end, times.end);
    }
    return all.end - all.begin;
  }

  void Work(size_t i) {
    const Operation operation = operation_;
    times_[i].begin = Clock::now();
    for (size_t left = calls_; left > 0; --left) partitions_[i]->Do(operation);
    times_[i].end = Clock::now();
    barrier_.Wait();
  }

  size_t CallsOfSample(Operation operation) {
    Sample(operation, 1);  // scratch is allocated, pages are touched
    size_t calls = 1;
    while (Sample(operation, calls) < kSample) calls *= 2;
    return calls;
  }

  const size_t n_;
  Barrier barrier_;  // publishes operation_ and calls_ to the threads, and times_ to the caller
  std::vector<Times> times_;
  Operation operation_ = kMemcpy;
  size_t calls_ = 1;
  std::vector<std::unique_ptr<Partition>> partitions_;
  std::vector<std::thread> threads_;
};

// Says on a terminal what is being measured, on a line that goes away again.
class Progress {
 public:
  explicit Progress(size_t cases) : cases_(cases), shown_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { Clear(); }
  void Show(const std::string& codec, size_t elements) {
    ++done_;
    if (shown_)
      fprintf(stderr, "\r\x1b[K[%zu/%zu] %s, %zu elements", done_, cases_, codec.c_str(), elements);
  }
  void Clear() const {
    if (shown_) fputs("\r\x1b[K", stderr);
  }

 private:
  const size_t cases_;
  const bool shown_;
  size_t done_ = 0;
};

void PrintHead(size_t elements, size_t threads) {
  printf("%zu thread%s of %zu elements (%.4g MiB of float32); GB/s, and x memcpy\n", threads,
         threads == 1 ? "" : "s, each", elements, static_cast<double>(elements) / (1 << 18));
  printf("%-34s%12s%17s%17s%17s%17s%9s\n", "codec", "bytes", "encode", "encode + ef", "decode-add",
         "multi-decode", "memcpy");
}

void PrintRow(const std::string& codec, const Partition& partition, const Rates& rates) {
  printf("%-34s%12zu", (codec + (partition.sparse() ? " *" : "")).c_str(),
         partition.encoded_bytes());
  for (const Operation operation : {kEncode, kEncodeFeedback, kDecodeAdd, kMultiDecode}) {
    printf("%9.2f%7.2fx", rates[operation], rates[operation] / rates[kMemcpy]);
  }
  printf("%9.2f\n", rates[kMemcpy]);
}

void PrintJson(const std::string& codec, size_t elements, size_t threads,
               const Partition& partition, const Rates& rates) {
  printf(R"({"codec": "%s", "elements": %zu, "threads": %zu, "data": "%s", "encoded_bytes": %zu, )"
         R"("encode_gb_s": %.4f, "encode_ef_gb_s": %.4f, "decode_add_gb_s": %.4f, )"
         R"("multi_decode_gb_s": %.4f, "memcpy_gb_s": %.4f})"
         "\n",
         codec.c_str(), elements, threads, partition.sparse() ? "sparse" : "normal",
         partition.encoded_bytes(), rates[kEncode], rates[kEncodeFeedback], rates[kDecodeAdd],
         rates[kMultiDecode], rates[kMemcpy]);
}

// A codec and how it was asked for.
struct NamedCodec {
  std::string name;
  std::shared_ptr<const Codec> codec;
};

absl::Status Run(const BenchOptions& options, const std::vector<NamedCodec>& codecs) {
  Progress progress(options.elements.size() * codecs.size());
  bool any_sparse = false;
  for (const size_t elements : options.elements) {
    progress.Clear();
    if (!options.json) PrintHead(elements, options.threads);
    Crew crew(elements, options.threads);
    for (const auto& [name, codec] : codecs) {
      progress.Show(name, elements);
      BDN_RETURN_IF_ERROR(crew.Use(codec.get()));
      const Rates rates = crew.Measure();
      progress.Clear();
      any_sparse |= crew.first().sparse();
      if (options.json) {
        PrintJson(name, elements, options.threads, crew.first(), rates);
      } else {
        PrintRow(name, crew.first(), rates);
      }
      fflush(stdout);
    }
    if (!options.json) printf("\n");
  }
  if (any_sparse && !options.json)
    printf("* on data of which %.0f %% are not zero\n", 100 * kSparse);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(const std::string& spec) {
  BDN_ASSIGN_OR_RETURN(LinkCodec link, ParseCodecSpec(spec));
  if (link.error_feedback || link.delta) {
    return InvalidArgument(
        "'%s' has a memory: give the codec alone, which is measured with and "
        "without error feedback",
        spec);
  }
  return std::move(link.codec);
}

absl::StatusOr<size_t> ParseCount(std::string_view name, std::string_view text, size_t most) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    return InvalidArgument("option --%s is '%s': expected a whole number from 1 to %d",
                           std::string(name), std::string(text), most);
  }
  return value;
}

// Only --name=VALUE: the command in front of this takes the other forms.
absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string_view>& args) {
  BenchOptions options;
  for (const std::string_view arg : args) {
    const size_t equals = std::min(arg.find('='), arg.size());
    const std::string_view name = arg.substr(0, equals);
    const std::string_view value = arg.substr(std::min(equals + 1, arg.size()));
    if (arg == "--json") {
      options.json = true;
    } else if (name == "--codec") {
      options.codecs.emplace_back(value);
    } else if (name == "--elements") {
      BDN_ASSIGN_OR_RETURN(const size_t elements, ParseCount("elements", value, kMostElements));
      options.elements.push_back(elements);
    } else if (name == "--threads") {
      BDN_ASSIGN_OR_RETURN(options.threads, ParseCount("threads", value, kMostThreads));
    } else {
      return InvalidArgument(
          "unknown option %s; expected --codec=SPEC, --elements=N, --threads=T or --json",
          std::string(arg));
    }
  }
  if (options.codecs.empty()) {
    options.codecs.assign(std::begin(kDefaultCodecs), std::end(kDefaultCodecs));
  }
  if (options.elements.empty()) {
    options.elements.assign(std::begin(kDefaultElements), std::end(kDefaultElements));
  }
  return options;
}

constexpr int kUsage = 2;

int Fail(int code, const absl::Status& status) {
  fprintf(stderr, "bandoneon bench codecs: %s\n", std::string(status.message()).c_str());
  if (code == kUsage) fputs("See bandoneon bench codecs --help.\n", stderr);
  return code;
}

int Main(const std::vector<std::string_view>& args) {
  const FloatGuard guard;
  const auto options = ParseOptions(args);
  if (!options.ok()) return Fail(kUsage, options.status());
  std::vector<NamedCodec> codecs;
  for (std::string spec : options->codecs) {
    auto codec = MakeCodec(spec);
    if (!codec.ok()) return Fail(kUsage, codec.status());
    spec.erase(std::remove_if(spec.begin(), spec.end(), absl::ascii_isspace), spec.end());
    codecs.push_back({spec, *std::move(codec)});
  }
  const absl::Status status = Run(*options, codecs);
  return status.ok() ? 0 : Fail(1, status);
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  return bdn::Main(std::vector<std::string_view>(argv + 1, argv + argc));
}
