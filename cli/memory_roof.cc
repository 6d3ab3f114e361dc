#include "cli/memory_roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <thread>
#include <vector>

namespace bdn::cli {
namespace {

using Floats = std::vector<float>;
using Tensors = std::vector<Floats>;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] += x[i];
}

// A pass that only reads; the answer keeps the compiler from leaving it out.
float ReadAll(const float* x, size_t n) {
  float lanes[16] = {};
  for (size_t i = 0; i + 16 <= n; i += 16) {
    for (size_t lane = 0; lane < 16; ++lane) lanes[lane] += x[i + lane];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Plain passes over one array of n floats; what is not a copy writes `payload` floats of it.
class Passes {
 public:
  Passes(size_t n, double fraction, bool memory)
      : n_(n),
        payload_(std::min(n, static_cast<size_t>(static_cast<double>(n) * fraction))),
        memory_(memory) {}

  void Encode(const float* x, float* residual, float* payload) {
    if (memory_) Add(x, n_, residual);
    if (payload_ < n_ && !memory_) seen_ += ReadAll(x, n_);
    if (payload_ < n_) x = residual;
    memcpy(payload, x, payload_ * sizeof(float));
  }
  void DecodeAdd(const float* payload, float* sum) {
    if (payload_ == n_) return Add(payload, n_, sum);
    const float value = payload_ == 0 ? 1.0f : ReadAll(payload, payload_);
    for (size_t i = 0; i < n_; ++i) sum[i] += value;
  }
  void Decode(const float* payload, float* x) {
    if (payload_ == n_) {
      memcpy(x, payload, n_ * sizeof(float));
    } else {
      std::fill(x, x + n_, payload_ == 0 ? 1.0f : ReadAll(payload, payload_));
    }
  }
  float seen() const { return seen_; }

 private:
  const size_t n_;
  const size_t payload_;
  const bool memory_;
  float seen_ = 0;
};

}  // namespace

double MeasureRoof(const RoofOptions& options) {
  const size_t n = options.bytes / sizeof(float);
  const size_t share = n / static_cast<size_t>(options.servers);
  std::latch ready(options.workers + options.servers + 1);
  std::atomic<float> seen{0};  // read by nobody: makes the passes' results needed
  std::vector<std::jthread> threads;
  for (int w = 0; w < options.workers; ++w) {
    threads.emplace_back([&] {
      Tensors data(options.tensors, Floats(n, 1));
      Tensors residuals(options.push_memory ? options.tensors : 1, Floats(n, 1));
      Tensors payloads(options.tensors, Floats(n, 1));
      Passes push(n, options.push_fraction, options.push_memory);
      Passes pull(n, options.pull_fraction, options.pull_memory);
      ready.arrive_and_wait();
      for (size_t t = 0; t < options.tensors; ++t) {
        push.Encode(data[t].data(), residuals[t % residuals.size()].data(), payloads[t].data());
        pull.Decode(payloads[t].data(), data[t].data());
      }
      seen = push.seen() + data.back().back();
    });
  }
  for (int s = 0; s < options.servers; ++s) {
    threads.emplace_back([&] {
      Tensors payloads(options.tensors, Floats(share, 1));
      Tensors residuals(options.pull_memory ? options.tensors : 1, Floats(share, 1));
      Tensors replies(options.tensors, Floats(share, 1));
      Floats sum(share, 0);
      Passes push(share, options.push_fraction, options.push_memory);
      Passes pull(share, options.pull_fraction, options.pull_memory);
      ready.arrive_and_wait();
      for (size_t t = 0; t < options.tensors; ++t) {
        for (int w = 0; w < options.workers; ++w) push.DecodeAdd(payloads[t].data(), sum.data());
        pull.Encode(sum.data(), residuals[t % residuals.size()].data(), replies[t].data());
      }
      seen = pull.seen() + sum.back();
    });
  }
  ready.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  threads.clear();  // joins
  return static_cast<double>(options.tensors * options.bytes) / SecondsSince(begin) / 1e9;
}

double MeasureMemcpy(size_t tensors, size_t bytes) {
  const Tensors from(tensors, Floats(bytes / sizeof(float), 1));
  Tensors to(tensors, Floats(bytes / sizeof(float), 2));
  const auto begin = std::chrono::steady_clock::now();
  for (size_t t = 0; t < tensors; ++t) memcpy(to[t].data(), from[t].data(), bytes);
  return static_cast<double>(tensors * bytes) / SecondsSince(begin) / 1e9;
}

}  // namespace bdn::cli
