// Any bytes are a recording, or are refused. Cut anywhere, a recording has no record that the whole
// one lacks. Whatever the records are, a job of them is joined and explained, and the explanation
// of a step adds up to its time.

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/telemetry/trace_layout.h"
#include "tests/fuzz/fuzz_input.h"
#include "trace/hang_report.h"
#include "trace/job_trace.h"
#include "trace/step_report.h"
#include "trace/trace_file.h"

namespace bdn {
namespace {

constexpr uint32_t kBlockBytes = 1024;
constexpr size_t kRecords = (kBlockBytes - kTraceBlockHeaderBytes) / sizeof(TraceRecord);

template <typename T>
void Append(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Few inputs have a right header by themselves, so the input says what stands behind one.
std::string MakeFile(const char* role, int rank, int node, fuzz::FuzzInput* input) {
  std::string facts =
      std::string(R"({"job":"j","host":"h","version":"1","pid":1,"cores":1,"workers":[1,2],)") +
      R"("servers":[3],"settings":{},"role":")" + role + R"(","boot_id":")" +
      (input->Get<uint8_t>() % 2 == 0 ? "a" : role) + R"(","rank":)" + std::to_string(rank) +
      R"(,"node":)" + std::to_string(node) + "}";
  std::string text;
  Append(static_cast<uint32_t>(facts.size()), &text);
  text += facts;
  text.resize((text.size() + 15) / 16 * 16);
  TraceHeader header;
  memcpy(header.magic, kTraceMagic, sizeof(header.magic));
  header.byte_order = kTraceByteOrder;
  header.version = kTraceVersion;
  header.record_bytes = sizeof(TraceRecord);
  header.block_bytes = kBlockBytes;
  header.facts = {kTraceHeaderBytes, text.size()};
  const auto behind = [](const TraceRegion& region, uint64_t bytes) {
    return TraceRegion{region.offset + region.bytes, bytes};
  };
  header.clocks = behind(header.facts, 16 + kTraceClockPairs * sizeof(TraceClockPair));
  header.threads = behind(header.clocks, 16 + kTraceThreads * sizeof(TraceThread));
  header.names = behind(header.threads, 64);
  header.blocks_offset = header.names.offset + header.names.bytes;
  std::string bytes;
  Append(header, &bytes);
  bytes.resize(kTraceHeaderBytes);
  bytes += text;
  bytes.resize(header.blocks_offset);
  const std::vector<std::byte> names = input->Bytes(32);
  if (!names.empty()) memcpy(bytes.data() + header.names.offset, names.data(), names.size());
  const size_t count = input->Get<uint8_t>() % kRecords;
  std::string block;
  Append(TraceBlockHeader{.sequence = 1, .records = static_cast<uint32_t>(count)}, &block);
  block.resize(kTraceBlockHeaderBytes);
  for (size_t i = 0; i < count; ++i) {
    // Small numbers meet each other.
    TraceRecord record{.begin_ns = input->Get<uint16_t>(),
                       .wall_ns = input->Get<uint16_t>(),
                       .key = input->Get<uint8_t>() % 4U,
                       .step = input->Get<uint8_t>() % 4U,
                       .peer = input->Get<uint8_t>() % 5U,
                       .kind = static_cast<uint8_t>(input->Get<uint8_t>() % 42),
                       .flags = input->Get<uint8_t>()};
    if (record.flags > 250) record.begin_ns = static_cast<int64_t>(input->Get<uint64_t>());
    Append(record, &block);
  }
  block.resize(kBlockBytes);
  return bytes + block;
}

absl::StatusOr<NodeTrace> Read(const std::string& bytes) {
  return ReadTrace(std::as_bytes(std::span(bytes)));
}

void CheckJob(std::vector<NodeTrace> traces) {
  const auto job = JoinTraces(std::move(traces));
  if (!job.ok()) return;
  for (const Exchange& exchange : job->exchanges) {
    int64_t at = exchange.Begin();
    for (const PartSpan& part : PartsOf(exchange)) {
      fuzz::Require(part.begin_ns == at && part.end_ns > at);
      at = part.end_ns;
    }
  }
  const JobReport report = ExplainJob(*job);
  for (const StepReport& step : report.steps) {
    int64_t at = step.begin_ns;
    for (const PathPiece& piece : step.path) {
      fuzz::Require(piece.begin_ns == at && piece.end_ns > at);
      at = piece.end_ns;
    }
    fuzz::Require(at == step.end_ns);
  }
  (void)ReportText(*job, report, std::nullopt);
  (void)HangText(*job, ExplainHang(*job));
}

void Run(fuzz::FuzzInput input) {
  const size_t where = input.Get<uint16_t>();
  std::vector<NodeTrace> traces;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = MakeFile("worker", rank, rank + 1, &input);
    const auto trace = Read(file);
    fuzz::Require(trace.ok());
    if (const auto part = Read(file.substr(0, where % file.size())); part.ok()) {
      fuzz::Require(part->records.size() <= trace->records.size());
    }
    traces.push_back(*trace);
  }
  const auto server = Read(MakeFile("server", 0, 3, &input));
  fuzz::Require(server.ok());
  traces.push_back(*server);
  CheckJob(std::move(traces));
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The bytes as they are, too.
  (void)bdn::ReadTrace(std::as_bytes(std::span(data, size)));
  bdn::Run({data, size});
  return 0;
}
