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

// An operation that is timed. kMultiDecode is Codec::DecodeSum of several payloads.
enum Operation : size_t { kMemcpy, kEncode, kEncodeFeedback, kDecodeAdd, kMultiDecode };
constexpr size_t kOperations = 5;
using Rates = std::array<double, kOperations>;  // GB of float32 a second, by Operation

// A stopwatch for codecs. Its threads do the same operation at the same time, each with data of its
// own. Owned by the benchmark's thread, which is the first of them. Not thread-safe.
class CodecTiming {
 public:
  static constexpr double kSparse = 0.05;  // the share of non-zeros in the input of the sketches

  // Makes the data: n elements for each thread.
  CodecTiming(size_t n, size_t threads);
  ~CodecTiming();

  // Measures `codec` from now on. Returns the codec's error where it cannot encode the data.
  absl::Status Use(const Codec* codec);
  // Returns the rates of all threads together: medians of samples, which are taken of each
  // operation in turn, so that a disturbance of the machine meets all of them alike.
  Rates Measure();

  // The size of the first thread's payload, and whether its data are sparse. REQUIRES: Use.
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

  // Returns the time from the moment at which the first thread begins to the one at which the last
  // ends.
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
