#ifndef BANDONEON_TESTS_TRACE_TRACE_MAKER_H_
#define BANDONEON_TESTS_TRACE_TRACE_MAKER_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/telemetry/stage_times.h"
#include "common/telemetry/trace_layout.h"
#include "trace/job_trace.h"
#include "trace/trace_file.h"

namespace bdn {

// A writer of recordings for tests, by the structs of the layout alone.
class TraceMaker {
 public:
  static constexpr uint32_t kBlockBytes = 1024;  // 20 records

  // A node of a job with so many workers, whose node numbers are rank + 1, and servers behind them.
  TraceMaker(std::string_view role, int rank, int workers = 2, int servers = 1,
             std::string_view boot = "boot") {
    facts = {{"job", "job"},
             {"role", role},
             {"host", "host-" + std::string(boot)},
             {"boot_id", boot},
             {"version", "0.1.0"},
             {"rank", rank},
             {"pid", 4000 + rank + (role == "server" ? 100 : 0)},
             {"cores", 2}};
    facts["node"] = role == "server" ? workers + rank + 1 : rank + 1;
    facts["workers"] = nlohmann::json::array();
    facts["servers"] = nlohmann::json::array();
    for (int i = 0; i < workers; ++i) facts["workers"].push_back(i + 1);
    for (int i = 0; i < servers; ++i) facts["servers"].push_back(workers + i + 1);
    facts["settings"] = nlohmann::json::object();
  }

  TraceMaker& Thread(uint32_t id, std::string_view name) {
    TraceThread& thread = threads.emplace_back();
    thread.id = id;
    memcpy(thread.name, name.data(), std::min(name.size(), sizeof(thread.name)));
    return *this;
  }
  TraceMaker& Name(uint64_t key, std::string_view name) {
    names.emplace_back(key, name);
    return *this;
  }
  TraceMaker& Clock(int64_t monotonic_ns, int64_t real_ns) {
    clocks.push_back({monotonic_ns, real_ns});
    return *this;
  }
  TraceMaker& Add(const TraceRecord& record) {
    records.push_back(record);
    return *this;
  }
  // Adds a phase of [begin, end] in us.
  TraceMaker& Phase(Stage stage, int64_t begin_us, int64_t end_us, uint64_t key, uint64_t step,
                    uint32_t peer = 0) {
    return Add({.begin_ns = begin_us * 1000,
                .wall_ns = static_cast<uint64_t>(end_us - begin_us) * 1000,
                .key = key,
                .step = step,
                .bytes = 100,
                .peer = peer,
                .kind = static_cast<uint8_t>(stage)});
  }
  TraceMaker& Mark(TraceKind kind, int64_t begin_us, int64_t end_us, uint64_t step,
                   int64_t queued_us = 0) {
    return Add({.begin_ns = begin_us * 1000,
                .wall_ns = static_cast<uint64_t>(end_us - begin_us) * 1000,
                .step = step,
                .bytes = static_cast<uint32_t>(queued_us * 1000 / kTraceTickNs),
                .kind = static_cast<uint8_t>(kind)});
  }

  std::string Bytes() const {
    TraceHeader header;
    memcpy(header.magic, kTraceMagic, sizeof(header.magic));
    header.byte_order = kTraceByteOrder;
    header.version = kTraceVersion;
    header.record_bytes = sizeof(TraceRecord);
    header.block_bytes = kBlockBytes;
    header.names_lost = names_lost;
    header.records_lost = records_lost;
    header.ended_ns = ended_ns;
    std::string body;
    const auto region = [&](std::string bytes) {
      bytes.resize((bytes.size() + 15) / 16 * 16);
      const TraceRegion place{kTraceHeaderBytes + body.size(), bytes.size()};
      body += bytes;
      return place;
    };
    header.facts = region(Facts());
    header.clocks = region(Clocks());
    header.threads = region(Threads());
    header.names = region(Names());
    header.blocks_offset = kTraceHeaderBytes + body.size();
    std::string bytes = Raw(header);
    bytes.resize(kTraceHeaderBytes);
    return bytes + body + Blocks();
  }

  // What reading the bytes gives; the test fails where that is an error.
  NodeTrace Read() const {
    const std::string bytes = Bytes();
    auto trace = ReadTrace(std::as_bytes(std::span(bytes)));
    if (!trace.ok()) throw std::runtime_error(std::string(trace.status().message()));
    return *std::move(trace);
  }

  void WriteTo(const std::string& path) const { std::ofstream(path, std::ios::binary) << Bytes(); }

  nlohmann::json facts;
  std::vector<TraceThread> threads;
  std::vector<std::pair<uint64_t, std::string>> names;
  std::vector<TraceClockPair> clocks;
  std::vector<TraceRecord> records;
  uint64_t names_lost = 0;
  uint64_t records_lost = 0;
  int64_t ended_ns = 0;

 private:
  template <typename T>
  static std::string Raw(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  std::string Facts() const {
    const std::string text = facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
    return Raw(static_cast<uint32_t>(text.size())) + text;
  }
  std::string Clocks() const {
    std::string bytes = Raw(uint64_t{clocks.size()}) + Raw(uint64_t{0});
    std::vector<TraceClockPair> ring(kTraceClockPairs);
    for (size_t i = 0; i < clocks.size(); ++i) ring[i % kTraceClockPairs] = clocks[i];
    for (const TraceClockPair& pair : ring) bytes += Raw(pair);
    return bytes;
  }
  std::string Threads() const {
    std::string bytes = Raw(static_cast<uint32_t>(threads.size())) + std::string(12, '\0');
    for (const TraceThread& thread : threads) bytes += Raw(thread);
    bytes.resize(16 + kTraceThreads * sizeof(TraceThread));
    return bytes;
  }
  std::string Names() const {
    std::string entries;
    for (const auto& [key, name] : names) {
      entries += Raw(key) + Raw(static_cast<uint32_t>(name.size())) + name;
    }
    return Raw(uint64_t{entries.size()}) + Raw(uint64_t{0}) + entries;
  }
  std::string Blocks() const {
    std::string bytes;
    constexpr size_t kPerBlock = (kBlockBytes - kTraceBlockHeaderBytes) / sizeof(TraceRecord);
    for (size_t i = 0; i < records.size(); i += kPerBlock) {
      const size_t count = std::min(kPerBlock, records.size() - i);
      std::string block = Raw(
          TraceBlockHeader{.sequence = i / kPerBlock + 1, .records = static_cast<uint32_t>(count)});
      block.resize(kTraceBlockHeaderBytes);
      for (size_t j = i; j < i + count; ++j) block += Raw(records[j]);
      block.resize(kBlockBytes);
      bytes += block;
    }
    return bytes;
  }
};

// Adds one exchange of `worker` with a server, in us from `at`: 10 us a phase of the worker, 10 a
// phase of the server, which holds it for `hold_us`. Returns when it is done. `ahead_us` is what
// the server's clock is ahead of the worker's.
inline int64_t AddExchange(TraceMaker* worker, TraceMaker* server, int64_t at, uint64_t key,
                           uint64_t step, int64_t hold_us, int64_t ahead_us = 0) {
  const auto node = worker->facts["node"].get<uint32_t>();
  const int64_t there = at + 30 + ahead_us;  // when the push arrives
  worker->Phase(Stage::kQueue, at, at + 10, key, step)
      .Phase(Stage::kEncode, at + 10, at + 20, key, step)
      .Phase(Stage::kSend, at + 20, at + 25, key, step);
  server->Phase(Stage::kQueue, there, there + 10, key, step, node)
      .Phase(Stage::kSum, there + 10, there + 20, key, step, node)
      .Phase(Stage::kHold, there + 20, there + 20 + hold_us, key, step, node)
      .Phase(Stage::kReply, there + 40 + hold_us, there + 45 + hold_us, key, step, node);
  const int64_t back = at + 30 + 50 + hold_us;  // when the reply is here
  worker->Phase(Stage::kWait, at + 25, back, key, step)
      .Phase(Stage::kDecodeQueue, back, back + 10, key, step)
      .Phase(Stage::kDecode, back + 10, back + 20, key, step)
      .Phase(Stage::kDeliver, back + 20, back + 21, key, step);
  return back + 20;
}
// Adds what a server does once in a round that closes at `closed_us` of its clock.
inline void AddRound(TraceMaker* server, int64_t closed_us, uint64_t key, uint64_t step) {
  server->Phase(Stage::kRule, closed_us, closed_us + 10, key, step)
      .Phase(Stage::kEncode, closed_us + 10, closed_us + 20, key, step);
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_TRACE_TRACE_MAKER_H_
