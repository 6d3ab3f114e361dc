// Tables of rows on one thread, in CPU time: a server's part of a step by the row that a worker
// touches, beside a loop that looks up, adds and copies the same rows; and a worker's.
//
//   rows_bench [--iterations N] [--json]     N steps of each; medians are printed (default 21)
//
// Four workers push the rows of 16,384 look-ups each, of 200,000 rows of 64 elements, ids by Zipf
// 1.05, and want as many. Turns are interleaved, so that both loops have the same machine.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/check.h"
#include "common/wire/headers.h"
#include "common/wire/packed_ids.h"
#include "tests/bench/bench_tools.h"
#include "tests/support/shard_rig.h"
#include "worker/rows/row_requests.h"

namespace bdn {
namespace {

constexpr uint64_t kRows = 200000;
constexpr size_t kWidth = 64;
constexpr size_t kLookUps = 16384;
constexpr size_t kWorkerLookUps = 65536;
constexpr uint32_t kBuckets = 4;
constexpr int kWorkers = 4;
constexpr double kZipf = 1.05;

using Ids = std::vector<uint64_t>;

// Returns the seconds of this thread's CPU that a call takes.
double CpuOf(const std::function<void()>& call) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = now();
  call();
  return now() - start;
}

// A source of look-ups: few ids are often among them.
class ZipfIds {
 public:
  explicit ZipfIds(uint32_t seed) : engine_(seed), sums_(kRows) {
    double sum = 0;
    for (uint64_t id = 0; id < kRows; ++id) {
      sums_[id] = sum += std::pow(static_cast<double>(id + 1), -kZipf);
    }
  }
  Ids Next(size_t count) {
    std::uniform_real_distribution<double> draw(0, sums_.back());
    Ids ids(count);
    for (uint64_t& id : ids) {
      const auto at = std::upper_bound(sums_.begin(), sums_.end(), draw(engine_)) - sums_.begin();
      id = std::min<uint64_t>(static_cast<uint64_t>(at), kRows - 1);
    }
    return ids;
  }

 private:
  std::mt19937 engine_;
  std::vector<double> sums_;
};

Ids EachOnce(Ids ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<float> Gradients(size_t count) {
  std::vector<float> values(count * kWidth);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1e-3f * static_cast<float>(i % 97);
  return values;
}

// A table of one server, and the frames of a step of all workers.
class ServerSide {
 public:
  ServerSide(const std::string& rule, const std::string& codec)
      : shard_({.self = testing::kServerNode}) {
    shard_.SetMembership(testing::MakeMembership(kWorkers));
    for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      KeyEntry entry{.key = Key::Of(7, bucket),
                     .kind = KeyKind::kRows,
                     .push_spec = codec,
                     .pull_spec = codec,
                     .rule = rule,
                     .segments = {{7, 0, kWidth}},
                     .elements = kWidth,
                     .buckets = kBuckets};
      declared_ = {.name = "t",
                   .elements = kWidth,
                   .kind = KeyKind::kRows,
                   .push_spec = codec,
                   .pull_spec = codec,
                   .rule = rule,
                   .table = "table(rows=200000)"};
      links_.push_back(MakeRowLink(entry, std::vector{&std::as_const(declared_)}).value());
      shard_.AddKey(*MakeKeyPlan(entry, "t", std::vector{declared_}));
    }
    shard_.SetCatalogueVersion(1);
    // All rows are there from the first step on.
    Ids all(kRows);
    for (uint64_t id = 0; id < kRows; ++id) all[id] = id;
    const std::vector<float> gradients = Gradients(kRows);
    std::vector<Frame> frames = FramesOf(0, all, gradients, {});
    for (Rank rank = 1; rank < kWorkers; ++rank) {
      for (Frame& frame : FramesOf(rank, {}, {}, {})) frames.push_back(std::move(frame));
    }
    Take(frames);
  }

  // Makes the frames of one worker in the next step.
  std::vector<Frame> FramesOf(Rank rank, const Ids& ids, const std::vector<float>& gradients,
                              const Ids& wanted) {
    std::vector<float> out(wanted.size() * kWidth);
    TablesInCall tables;
    // An empty list of ids takes part, too.
    static const uint64_t kNone = 0;
    tables.push_back(SplitTable({.table = 7,
                                 .ids = ids.empty() ? std::span(&kNone, 0) : std::span(ids),
                                 .gradients = gradients.data(),
                                 .wanted = wanted,
                                 .out = out.data()},
                                kBuckets));
    std::vector<Frame> frames;
    for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      const RowLink& link = links_[bucket];
      FrameHeader header = PushHeader(Key::Of(7, bucket), step_ + 1, kWidth);
      header.codec = static_cast<uint8_t>(link.push->id());
      header.learning_rate = 1e-6f;
      StampHeader({.sender = testing::WorkerNode(rank), .epoch = 1}, &header);
      auto payload = EncodeRowPush(link, bucket, tables, 1.0f, step_ + 1, {.rank = rank});
      if (!payload.has_value()) FailCheck("a gradient that is finite is not");
      frames.push_back(MakeFrame(header, *std::move(payload)));
    }
    return frames;
  }

  // Has the server make the step.
  void Take(const std::vector<Frame>& frames) {
    for (const Frame& frame : frames) {
      for (const Outgoing& sent : shard_.OnFrame(frame.header.sender, frame)) {
        if (sent.frame.header.type != FrameType::kReply) {
          FailCheck(std::string(testing::ErrorOf(sent.frame).message()));
        }
      }
    }
    ++step_;
  }

 private:
  TensorDeclaration declared_;
  std::vector<RowLink> links_;
  ServerShard shard_;
  Step step_ = 0;
};

// The loop that the server is measured by: a table in one array, whose rows are looked up, added
// to and copied out.
class PlainTable {
 public:
  PlainTable() : rows_(kRows * kWidth) {
    for (uint64_t id = 0; id < kRows; ++id) places_[id] = id;
  }
  void Take(const Ids& ids, const std::vector<float>& gradients, std::vector<float>* out) {
    for (size_t i = 0; i < ids.size(); ++i) {
      float* const row = rows_.data() + places_.find(ids[i])->second * kWidth;
      const float* const more = gradients.data() + i * kWidth;
      for (size_t j = 0; j < kWidth; ++j) row[j] += more[j];
      std::memcpy(out->data() + i * kWidth, row, kWidth * sizeof(float));
    }
  }

 private:
  absl::flat_hash_map<uint64_t, uint64_t> places_;
  std::vector<float> rows_;
};

struct ServerFigures {
  double server_ns = 0;  // a touched row and worker
  double plain_ns = 0;
};

ServerFigures MeasureServer(const std::string& rule, const std::string& codec, int iterations) {
  ServerSide server(rule, codec);
  PlainTable plain;
  ZipfIds zipf(1);
  std::vector<double> took, plainly;
  for (int turn = 0; turn <= iterations; ++turn) {
    std::vector<Frame> frames;
    std::vector<Ids> ids;
    size_t touched = 0;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      ids.push_back(EachOnce(zipf.Next(kLookUps)));
      touched += ids.back().size();
    }
    const std::vector<float> gradients = Gradients(kLookUps);
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      const Ids& next = ids[static_cast<size_t>(rank + 1) % kWorkers];
      for (Frame& frame : server.FramesOf(rank, ids[static_cast<size_t>(rank)], gradients, next)) {
        frames.push_back(std::move(frame));
      }
    }
    std::vector<float> out(kLookUps * kWidth);
    const auto rows = static_cast<double>(touched);
    const double server_cpu = CpuOf([&] { server.Take(frames); });
    const double plain_cpu = CpuOf([&] {
      for (const Ids& of : ids) plain.Take(of, gradients, &out);
    });
    if (turn == 0) continue;  // warms up
    took.push_back(server_cpu / rows * 1e9);
    plainly.push_back(plain_cpu / rows * 1e9);
  }
  return {Median(took), Median(plainly)};
}

// Returns the milliseconds in which a worker merges, splits and encodes a batch.
double MeasureWorker(const std::string& codec, int iterations) {
  ServerSide side("sgd", codec);
  ZipfIds zipf(2);
  std::vector<double> took;
  const std::vector<float> gradients = Gradients(kWorkerLookUps);
  for (int turn = 0; turn <= iterations; ++turn) {
    const Ids ids = zipf.Next(kWorkerLookUps);
    const double cpu = CpuOf([&] { side.FramesOf(0, ids, gradients, {}); });
    if (turn > 0) took.push_back(cpu * 1e3);
  }
  return Median(took);
}

int Run(int iterations, bool as_json) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"sgd", "none"},  {"adagrad", "none"}, {"rowwise_adagrad", "none"}, {"adamw", "none"},
      {"ftrl", "none"}, {"adagrad", "int8"}, {"adagrad", "int4"}};
  if (!as_json) {
    std::printf("%-28s %14s %14s %8s\n", "server, a row and worker", "ns", "plain loop", "times");
  }
  std::string json = "{\"server\": [";
  for (const auto& [rule, codec] : cases) {
    const ServerFigures of = MeasureServer(rule, codec, iterations);
    const std::string name = rule + ", " + codec;
    const double times = of.server_ns / of.plain_ns;
    if (!as_json) {
      std::printf("%-28s %14.0f %14.0f %8.2f\n", name.c_str(), of.server_ns, of.plain_ns, times);
    }
    char line[160];
    std::snprintf(line, sizeof line,
                  "%s{\"rule\": \"%s\", \"codec\": \"%s\", \"ns\": %.1f, \"plain_ns\": %.1f}",
                  json.back() == '[' ? "" : ", ", rule.c_str(), codec.c_str(), of.server_ns,
                  of.plain_ns);
    json += line;
  }
  json += "], \"worker_ms\": {";
  for (const char* codec : {"none", "int8", "int4"}) {
    const double ms = MeasureWorker(codec, iterations);
    if (!as_json) std::printf("worker, 65,536 look-ups, %-4s %8.2f ms\n", codec, ms);
    char line[64];
    std::snprintf(line, sizeof line, "%s\"%s\": %.3f", json.back() == '{' ? "" : ", ", codec, ms);
    json += line;
  }
  if (as_json) std::printf("%s}}\n", json.c_str());
  return 0;
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  int iterations = 21;
  bool as_json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      as_json = true;
    } else if (std::strcmp(argv[i], "--iterations") == 0 && i + 1 < argc) {
      iterations = std::max(1, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: rows_bench [--iterations N] [--json]\n");
      return 2;
    }
  }
  return bdn::Run(iterations, as_json);
}
