#include "scheduler/dump_state.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/base/log_limit.h"
#include "common/base/status.h"
#include "common/telemetry/trace_layout.h"

namespace bdn {
namespace {

constexpr size_t kMostReasonBytes = 1000;

// Checks that bytes begin as a recording does. The rest is checked by its reader, who trusts
// nothing of it either.
bool BeginsRecording(const std::string& content) {
  TraceHeader header;
  if (content.size() < kTraceHeaderBytes) return false;
  std::memcpy(&header, content.data(), sizeof(header));
  return std::memcmp(header.magic, kTraceMagic, sizeof(header.magic)) == 0 &&
         header.byte_order == kTraceByteOrder && header.version == kTraceVersion &&
         header.record_bytes == sizeof(TraceRecord);
}

// Returns the reason that a node gave, as text of one line.
absl::Status PlainReason(const absl::Status& reason) {
  const std::string text(reason.message().substr(0, kMostReasonBytes));
  return absl::Status(reason.code(), Printable(text));
}

std::string CountsOf(const std::vector<NodeInfo>& nodes) {
  const auto workers = std::count_if(
      nodes.begin(), nodes.end(), [](const NodeInfo& node) { return node.role == Role::kWorker; });
  return absl::StrFormat("%d workers and %d servers", workers,
                         static_cast<int64_t>(nodes.size()) - workers);
}

}  // namespace

absl::StatusOr<DumpState::Nodes> DumpState::Choose(const DumpRequest& request,
                                                   std::vector<NodeInfo> nodes) {
  const std::string all = CountsOf(nodes);
  std::erase_if(nodes, [&](const NodeInfo& node) { return !request.Wants(node); });
  if (nodes.empty()) return NotFound("the job has none of these nodes: %s are in it", all);
  const auto place = [](const NodeInfo& node) {
    return std::tuple(node.role == Role::kWorker, node.rank, node.id);
  };
  std::sort(nodes.begin(), nodes.end(),
            [&](const auto& a, const auto& b) { return place(a) < place(b); });
  Nodes chosen;
  chosen.left_out = nodes.size() - std::min(nodes.size(), kMostDumpNodes);
  nodes.resize(nodes.size() - chosen.left_out);
  chosen.asked = std::move(nodes);
  return chosen;
}

DumpState::DumpState(uint64_t number, const DumpRequest& request, Nodes nodes, absl::Time now)
    : nodes_(std::move(nodes)),
      order_{.number = number, .last = request.last},
      patience_(request.patience),
      begun_(now) {
  for (const NodeInfo& node : nodes_.asked) members_[node.id].heard = now;
}

bool DumpState::AwaitsFirst(NodeId node) const {
  const auto found = members_.find(node);
  return found != members_.end() && found->second.next_piece == 0 && !found->second.end;
}

std::vector<NodeId> DumpState::Open() const {
  std::vector<NodeId> open;
  for (const auto& [node, member] : members_) {
    if (!member.end) open.push_back(node);
  }
  return open;
}

absl::Status DumpState::Check(const Member& member, const TracePiece& piece) const {
  if (piece.piece != member.next_piece) {
    return InvalidArgument("piece %d came, and piece %d was expected", piece.piece,
                           member.next_piece);
  }
  if (piece.content.size() > order_.most_bytes - member.bytes) {
    return InvalidArgument("its recording has more than %d bytes", order_.most_bytes);
  }
  if (piece.failure.ok() && piece.piece == 0 && !BeginsRecording(piece.content)) {
    return InvalidArgument("it sent what is no recording of this version");
  }
  return absl::OkStatus();
}

absl::StatusOr<DumpState::Answer> DumpState::OnPiece(NodeId node, TracePiece piece) {
  const auto found = members_.find(node);
  if (piece.number != order_.number || found == members_.end()) {
    return NotFound("nobody waits for a recording of node %d by that number", node);
  }
  Member& member = found->second;
  // The answer to the latest piece was lost, and the node sends it again.
  const bool is_repeated = member.next_piece > 0 && piece.piece == member.next_piece - 1;
  if (is_repeated) return member.is_held ? Answer::kLater : Answer::kNow;
  if (member.end) {
    return FailedPrecondition("the recording of node %d is not waited for any more: %s", node,
                              member.end->message());
  }
  if (member.is_held) {
    return FailedPrecondition("node %d sends piece %d before piece %d was taken", node, piece.piece,
                              member.next_piece - 1);
  }
  if (const absl::Status status = Check(member, piece); !status.ok()) {
    End(node, &member, status);
    return status;
  }
  ++member.next_piece;
  if (!piece.failure.ok()) {
    End(node, &member, PlainReason(piece.failure));
    return Answer::kNow;
  }
  member.bytes += piece.content.size();
  member.is_held = true;
  member.held = std::move(piece.content);
  news_.push_back(node);
  if (piece.is_last) End(node, &member, absl::OkStatus());
  return Answer::kLater;
}

void DumpState::End(NodeId node, Member* member, absl::Status why) {
  member->end = std::move(why);
  news_.push_back(node);
}

void DumpState::OnGone(NodeId node, const absl::Status& why) {
  const auto found = members_.find(node);
  if (found != members_.end() && !found->second.end) End(node, &found->second, PlainReason(why));
}

void DumpState::OnTime(absl::Time now) {
  for (auto& [node, member] : members_) {
    if (member.end || member.is_held || now - member.heard < patience_) continue;
    const std::string time = absl::FormatDuration(patience_);
    End(node, &member,
        member.bytes == 0 ? DeadlineExceeded("it did not answer for %s", time)
                          : DeadlineExceeded("it sent no more for %s", time));
  }
}

std::optional<DumpState::News> DumpState::Next() {
  if (news_.empty()) return std::nullopt;
  const NodeId node = news_.front();
  news_.pop_front();
  Member& member = members_.at(node);
  News next{.node = node};
  if (member.is_held) {
    next.content = std::move(member.held);
    return next;
  }
  ++told_;
  next.end = *member.end;
  return next;
}

void DumpState::OnPassedOn(NodeId node, absl::Time now) {
  Member& member = members_.at(node);
  member.is_held = false;
  member.held.clear();
  member.heard = now;
}

}  // namespace bdn
