// A limit for `bandoneon bench pushpull`: the codecs' own calls of an exchange, and nothing else.
// Key by key, on `--threads` threads, it encodes as the workers do, adds and encodes as the servers
// do, and decodes as the workers do. `bandoneon bench pushpull` runs this program beside its job,
// with as many threads as there are processors, and interleaves the two; docs/journal/exchanges.md
// explains the figure. For each line on standard input the program does one step, and prints the
// seconds that it took and those of CPU time.
//
//   bandoneon-bench-roof --workers=2 --tensors=16 --elements=1048576 --partition=1048576
//       --push=none --pull=none --threads=2

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/draw.h"
#include "common/base/float_guard.h"
#include "common/base/status.h"
#include "compressors/codec_spec.h"

namespace bdn {
namespace {

// The job whose limit is measured.
struct Shape {
  size_t workers = 1;
  size_t tensors = 1;
  size_t elements = 1;   // of a tensor
  size_t partition = 1;  // elements of a key at most
  size_t threads = 1;
  LinkCodec push;
  LinkCodec pull;
};

// A key: a stretch of one tensor's elements.
struct KeyPart {
  size_t begin;  // among the elements of all tensors
  size_t n;
};

// The codecs' calls of all exchanges of a step. Used by one thread, which starts others for each
// step.
class Roof {
 public:
  explicit Roof(Shape shape) : shape_(std::move(shape)) {
    for (size_t t = 0; t < shape_.tensors; ++t) {
      for (size_t at = 0; at < shape_.elements; at += shape_.partition) {
        keys_.push_back(
            {t * shape_.elements + at, std::min(shape_.partition, shape_.elements - at)});
      }
    }
    const size_t all = shape_.tensors * shape_.elements;
    for (size_t w = 0; w < shape_.workers; ++w) {
      fresh_.emplace_back(all);
      for (size_t i = 0; i < all; ++i) fresh_[w][i] = Value(w * all + i);
      residuals_.emplace_back(shape_.push.error_feedback ? all : 0);
    }
    data_ = fresh_;
    pull_residual_.resize(shape_.pull.error_feedback ? all : 0);
    scratch_.resize(shape_.threads);
    for (Scratch& scratch : scratch_) {
      const size_t n = std::min(shape_.partition, shape_.elements);
      scratch.pushes.resize(
          shape_.workers,
          std::vector<std::byte>(shape_.push.codec->MaxEncodedBytes(n, DType::kFloat32)));
      scratch.reply.resize(shape_.pull.codec->MaxEncodedBytes(n, DType::kFloat32));
      scratch.sum.resize(n);
    }
  }

  struct Cost {
    double seconds;
    double cpu_seconds;
  };
  absl::StatusOr<Cost> Step() {
    data_ = fresh_;  // not timed, as in the job
    std::atomic<size_t> next{0};
    std::vector<absl::Status> statuses(shape_.threads);
    const double cpu = CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (size_t t = 0; t < shape_.threads; ++t) {
      threads.emplace_back([&, t] {
        const FloatGuard guard;
        for (size_t key; statuses[t].ok() && (key = next++) < keys_.size();) {
          statuses[t] = Exchange(keys_[key], &scratch_[t]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double cpu_seconds = CpuSeconds() - cpu;
    for (const absl::Status& status : statuses) BDN_RETURN_IF_ERROR(status);
    ++step_;
    return Cost{took.count(), cpu_seconds};
  }

 private:
  // The buffers of one thread. They are as warm as can be, since this measures a limit.
  struct Scratch {
    std::vector<std::vector<std::byte>> pushes;  // by worker
    std::vector<std::byte> reply;
    std::vector<float> sum;
  };

  static double CpuSeconds() {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  // Returns a small value from a nearly normal distribution, the same in every run.
  static float Value(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    int32_t sum = -2 * 65535;
    for (int part = 0; part < 4; ++part) sum += static_cast<int32_t>((x >> (16 * part)) & 0xffff);
    return static_cast<float>(sum) * 1e-6f;
  }

  static absl::StatusOr<size_t> Encode(const LinkCodec& link, ConstView x, float scale,
                                       float* residual, const Draw& draw,
                                       std::vector<std::byte>* out) {
    if (!link.error_feedback) return link.codec->Encode(x, scale, draw, *out);
    return link.codec->EncodeFeedback(
        {.g = x,
         .options = {.scale = scale, .decay = static_cast<float>(link.decay)},
         .residual = residual},
        draw, *out);
  }

  absl::Status Exchange(const KeyPart& key, Scratch* scratch) {
    std::vector<ByteSpan> payloads;
    const Draw draw({.run_seed = 1,
                     .tensor_name_hash = key.begin,
                     .partition = 0,
                     .step = step_,
                     .purpose = DrawPurpose::kShared});
    for (size_t w = 0; w < shape_.workers; ++w) {
      float* const residual =
          shape_.push.error_feedback ? residuals_[w].data() + key.begin : nullptr;
      BDN_ASSIGN_OR_RETURN(
          const size_t used,
          Encode(shape_.push, {data_[w].data() + key.begin, DType::kFloat32, key.n}, 1.0f, residual,
                 draw, &scratch->pushes[w]));
      payloads.push_back(ByteSpan(scratch->pushes[w]).first(used));
    }
    const float mean = 1.0f / static_cast<float>(shape_.workers);
    const Codec& push = *shape_.push.codec;
    size_t used = 0;
    // A server adds such payloads without decoding them, and replies with the sum.
    if (push.linear() && push.spec() == shape_.pull.codec->spec() && !shape_.pull.error_feedback) {
      BDN_ASSIGN_OR_RETURN(used,
                           push.AddEncoded(payloads, mean, key.n, DType::kFloat32, scratch->reply));
    } else {
      const MutableView sum{scratch->sum.data(), DType::kFloat32, key.n};
      push.DecodeSum(payloads, 1.0f, sum);
      float* const residual =
          shape_.pull.error_feedback ? pull_residual_.data() + key.begin : nullptr;
      BDN_ASSIGN_OR_RETURN(used, Encode(shape_.pull, sum, mean, residual, draw, &scratch->reply));
    }
    for (size_t w = 0; w < shape_.workers; ++w) {
      shape_.pull.codec->Decode(ByteSpan(scratch->reply).first(used), 1.0f,
                                {data_[w].data() + key.begin, DType::kFloat32, key.n});
    }
    return absl::OkStatus();
  }

  const Shape shape_;
  std::vector<KeyPart> keys_;
  std::vector<std::vector<float>> fresh_;  // by worker
  std::vector<std::vector<float>> data_;
  std::vector<std::vector<float>> residuals_;
  std::vector<float> pull_residual_;
  std::vector<Scratch> scratch_;  // by thread
  uint64_t step_ = 0;
};

absl::StatusOr<size_t> ReadCount(const std::map<std::string, std::string>& options,
                                 const std::string& name, size_t most) {
  const auto found = options.find(name);
  const std::string text = found == options.end() ? "" : found->second;
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    return InvalidArgument("--%s is '%s': expected a whole number from 1 to %d", name, text, most);
  }
  return value;
}

absl::StatusOr<Shape> ReadShape(const std::vector<std::string_view>& args) {
  std::map<std::string, std::string> options;
  for (const std::string_view arg : args) {
    const size_t equals = std::min(arg.find('='), arg.size());
    if (!arg.starts_with("--") || equals == arg.size()) {
      return InvalidArgument("%s: expected --name=value", std::string(arg));
    }
    options[std::string(arg.substr(2, equals - 2))] = std::string(arg.substr(equals + 1));
  }
  Shape shape;
  BDN_ASSIGN_OR_RETURN(shape.workers, ReadCount(options, "workers", 256));
  BDN_ASSIGN_OR_RETURN(shape.tensors, ReadCount(options, "tensors", size_t{1} << 20));
  BDN_ASSIGN_OR_RETURN(shape.elements, ReadCount(options, "elements", size_t{1} << 32));
  BDN_ASSIGN_OR_RETURN(shape.partition, ReadCount(options, "partition", size_t{1} << 32));
  BDN_ASSIGN_OR_RETURN(shape.threads, ReadCount(options, "threads", 1024));
  BDN_ASSIGN_OR_RETURN(shape.push, ParseCodecSpec(options["push"]));
  BDN_ASSIGN_OR_RETURN(shape.pull, ParseCodecSpec(options["pull"]));
  if (shape.push.delta || shape.pull.delta) {
    return InvalidArgument("a delta is of weights, which no roof is made for");
  }
  return shape;
}

absl::Status Run(const std::vector<std::string_view>& args) {
  BDN_ASSIGN_OR_RETURN(Shape shape, ReadShape(args));
  Roof roof(std::move(shape));
  for (std::string line; std::getline(std::cin, line);) {
    BDN_ASSIGN_OR_RETURN(const Roof::Cost cost, roof.Step());
    std::printf("%.9f %.9f\n", cost.seconds, cost.cpu_seconds);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  const absl::Status status = bdn::Run(std::vector<std::string_view>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::fprintf(stderr, "bandoneon-bench-roof: %s\n", std::string(status.message()).c_str());
  return 1;
}
