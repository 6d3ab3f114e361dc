#include "compressors/bench/codec_timing.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "common/base/draw.h"
#include "common/base/float_guard.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kPayloads = 4;        // payloads of one multi-decode
constexpr size_t kPayloadOffset = 16;  // elements between their inputs, so that they differ

// A sample takes at least kSample. It begins warm, after a call that is not timed, unless the
// arrays are so large that no cache could hold what that call leaves there.
constexpr std::chrono::duration<double> kSample{200e-6};
constexpr size_t kMostWarmElements = size_t{4} << 20;
constexpr std::chrono::duration<double> kCaseTime{1.2};
constexpr size_t kLeastSamples = 3;
constexpr size_t kMostSamples = 301;

// An array on cache lines. Every page of it is touched, so that no page fault is timed.
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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace

// A barrier of the threads. They spin while they wait: a thread that had to be woken would start
// late.
class CodecTiming::Barrier {
 public:
  explicit Barrier(size_t threads) : threads_(threads) {}
  void Wait() {
    const size_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      // The count is reset before the round ends: a thread that sees the new round may come to the
      // next barrier at once.
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

// The data of one thread. Not thread-safe.
class CodecTiming::Partition {
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

  // Measures `codec` from now on. Encodes the payloads for the decoders.
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
        // Nobody reads the copy. The compiler must not know that, or it would leave the memcpy out.
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
        // A server adds in this way: it transforms the sum back once, and not each payload.
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
    std::_Exit(1);  // no destructors: other threads may be at work
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

CodecTiming::CodecTiming(size_t n, size_t threads)
    : n_(n), barrier_(std::make_unique<Barrier>(threads)), times_(threads) {
  for (size_t i = 0; i < threads; ++i) partitions_.push_back(std::make_unique<Partition>(n, i));
  for (size_t i = 1; i < threads; ++i) {
    threads_.emplace_back([this, i] {
      const FloatGuard guard;
      for (barrier_->Wait(); calls_ > 0; barrier_->Wait()) Work(i);
    });
  }
}

CodecTiming::~CodecTiming() {
  // Calls of 0 tell the threads to end.
  calls_ = 0;
  barrier_->Wait();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status CodecTiming::Use(const Codec* codec) {
  for (const auto& partition : partitions_) BDN_RETURN_IF_ERROR(partition->Use(codec));
  return absl::OkStatus();
}

Rates CodecTiming::Measure() {
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

size_t CodecTiming::encoded_bytes() const { return partitions_[0]->encoded_bytes(); }
bool CodecTiming::sparse() const { return partitions_[0]->sparse(); }

CodecTiming::Seconds CodecTiming::Sample(Operation operation, size_t calls) {
  operation_ = operation;
  calls_ = calls;
  barrier_->Wait();
  Work(0);
  Times all = times_[0];
  for (const Times& times : times_) {
    all.begin = std::min(all.begin, times.begin);
    all.end = std::max(all.end, times.end);
  }
  return all.end - all.begin;
}

void CodecTiming::Work(size_t i) {
  const Operation operation = operation_;
  times_[i].begin = Clock::now();
  for (size_t left = calls_; left > 0; --left) partitions_[i]->Do(operation);
  times_[i].end = Clock::now();
  barrier_->Wait();
}

size_t CodecTiming::CallsOfSample(Operation operation) {
  Sample(operation, 1);  // the first call allocates scratch and touches pages
  size_t calls = 1;
  while (Sample(operation, calls) < kSample) calls *= 2;
  return calls;
}

}  // namespace bdn
