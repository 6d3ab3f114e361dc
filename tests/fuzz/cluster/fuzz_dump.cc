// Any messages of a dump are taken or refused; what a scheduler passes on of them stays within a
// dump's bounds, and each node ends once.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/cluster/control_messages.h"
#include "common/cluster/trace_dump.h"
#include "common/telemetry/trace_layout.h"
#include "proto/control.pb.h"
#include "scheduler/dump_state.h"
#include "tests/fuzz/fuzz_input.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

template <typename Message>
void ReadAndWrite(const uint8_t* data, size_t size) {
  Message message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return;
  const auto value = Read(message);
  if (!value.ok()) return;
  Message written;
  Write(*value, &written);
  fuzz::Require(Read(written).ok());
}

// Plays nodes that send pieces, right and wrong ones, and a caller that takes them.
void Play(fuzz::FuzzInput* input) {
  std::vector<NodeInfo> nodes;
  for (NodeId id = 1; id <= 3; ++id) nodes.push_back({.id = id, .rank = static_cast<Rank>(id)});
  absl::Time now = absl::UnixEpoch();
  DumpState state(5, {}, *DumpState::Choose({}, nodes), now);
  TraceHeader header{
      .byte_order = kTraceByteOrder, .version = kTraceVersion, .record_bytes = sizeof(TraceRecord)};
  memcpy(header.magic, kTraceMagic, sizeof(header.magic));
  std::string start(kTraceHeaderBytes, '\0');
  memcpy(start.data(), &header, sizeof(header));
  std::map<NodeId, uint64_t> bytes;
  std::map<NodeId, int> ends;
  while (!input->empty()) {
    const NodeId node = 1 + input->Get<uint8_t>() % 4;
    switch (input->Get<uint8_t>() % 4) {
      case 0:
      case 1: {
        TracePiece piece{.number = input->Get<uint8_t>() % 16 == 0 ? uint64_t{4} : uint64_t{5},
                         .piece = input->Get<uint8_t>() % 4u,
                         .is_last = input->Get<uint8_t>() % 4 == 0,
                         .content = start + std::string(input->Get<uint8_t>() * 256u, 'x')};
        if (input->Get<uint8_t>() % 8 == 0) {
          piece.failure = absl::InternalError("no");
          piece.content.clear();
          piece.is_last = true;
        }
        (void)state.OnPiece(node, std::move(piece));
        break;
      }
      case 2:
        now += absl::Seconds(input->Get<uint8_t>() % 4);
        state.OnTime(now);
        break;
      case 3:
        if (const auto news = state.Next()) {
          fuzz::Require(ends[news->node] == 0);
          if (news->content.empty()) ++ends[news->node];
          bytes[news->node] += news->content.size();
          fuzz::Require(bytes[news->node] <= kMostDumpBytes);
          if (!news->content.empty()) state.OnPassedOn(news->node, now);
        }
        break;
    }
  }
  state.OnTime(absl::InfiniteFuture());
  while (const auto news = state.Next()) {
    if (!news->content.empty()) state.OnPassedOn(news->node, now);
    state.OnTime(absl::InfiniteFuture());
  }
  fuzz::Require(state.is_over());
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::ReadAndWrite<bandoneon::control::DumpOrder>(data, size);
  bdn::ReadAndWrite<bandoneon::control::DumpRequest>(data, size);
  bdn::ReadAndWrite<bandoneon::control::TracePiece>(data, size);
  (void)bdn::ParseDumpNodes({reinterpret_cast<const char*>(data), size});
  bdn::fuzz::FuzzInput input(data, size);
  bdn::Play(&input);
  return 0;
}
