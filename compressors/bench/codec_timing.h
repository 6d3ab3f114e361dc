#ifndef BANDONEON_COMPRESSORS_BENCH_CODEC_TIMING_H_
#define BANDONEON_COMPRESSORS_BENCH_CODEC_TIMING_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "compressors/codec.h"

namespace bdn {

enum Operation : size_t { kMemcpy, kEncode, kEncodeFeedback, kDecodeAdd, kMultiDecode };
constexpr size_t kOperations = 5;
using Rates = std::array<double, kOperations>;  // fp32 GB/s

// How long codecs take on some threads, which do the same operation at the same time, each with
// data of its own. Owned by the benchmark's thread, which is the first of them.
class CodecTiming {
 public:
  static constexpr double kSparse = 0.05;  // share of non-zeros in the input of the sketches

  // Threads of n elements each.
  CodecTiming(size_t n, size_t threads);
  ~CodecTiming();

  // Measures `codec` from now on. Its error where it cannot encode the data.
  absl::Status Use(const Codec* codec);
  // Of all threads together: the medians of samples that are taken in turn.
  Rates Measure();

  // Of the first thread's payload and data. REQUIRES: Use.
  size_t encoded_bytes() const;
  bool sparse() const;

 private:
  class Barrier;
  class Partition;
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  struct Times {
    Clock::time_point begin;
    Clock::time_point end;
  };

  // From the first thread's begin to the last one's end.
  Seconds Sample(Operation operation, size_t calls);
  void Work(size_t i);
  size_t CallsOfSample(Operation operation);

  const size_t n_;
  // Publishes operation_ and calls_ to the threads, and times_ to the caller.
  const std::unique_ptr<Barrier> barrier_;
  std::vector<Times> times_;
  Operation operation_ = kMemcpy;
  size_t calls_ = 1;
  std::vector<std::unique_ptr<Partition>> partitions_;
  std::vector<std::thread> threads_;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_BENCH_CODEC_TIMING_H_
