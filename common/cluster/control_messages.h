#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_MESSAGES_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_MESSAGES_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/declaration_list.h"
#include "common/cluster/trace_dump.h"

namespace grpc {
class Status;
}
namespace bandoneon::control {
class CataloguePiece;
class DeclareReply;
class DeclareRequest;
class DumpOrder;
class DumpRequest;
class Failure;
class HeartbeatRequest;
class HeldBytes;
class JobConfig;
class JoinReply;
class JoinRequest;
class Leaving;
class Membership;
class NodeInfo;
class PlacementVersion;
class QualityGroup;
class RowCounts;
class TableCounts;
class TracePiece;
class StageCounts;
class WorkCounts;
}  // namespace bandoneon::control
namespace google::protobuf {
template <typename Element>
class RepeatedPtrField;
}

// The conversions between our types and the generated messages, for both ends of the control plane.
// Reading checks each message by itself: InvalidArgument names the field that is wrong. What only
// several messages together can show is checked by their reader, such as ReadDelta.

namespace bdn {

// The most bytes of one message, in either direction. Larger data goes in pieces.
inline constexpr int kMaxMessageBytes = 4 << 20;
// The most tensors that one heartbeat says are retired; they fit any limit on requests.
inline constexpr size_t kMostRetired = 4096;

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// Converts a timeout; a negative number is infinite.
absl::Duration TimeoutFromMilliseconds(int64_t milliseconds);
int64_t TimeoutToMilliseconds(absl::Duration timeout);

void Write(const JobConfig& config, bandoneon::control::JobConfig* message);
void Write(const NodeInfo& node, bandoneon::control::NodeInfo* message);
void Write(const Membership& membership, bandoneon::control::Membership* message);
void Write(const HeldBytes& held, bandoneon::control::HeldBytes* message);
void Write(const RowCounts& counts, bandoneon::control::RowCounts* message);
void Write(const TableCounts& counts, bandoneon::control::TableCounts* message);
void Write(const StageCounts& counts, bandoneon::control::StageCounts* message);
void Write(const WorkCounts& counts, bandoneon::control::WorkCounts* message);
// Writes the reports of a heartbeat, and nothing else of it.
void Write(const std::vector<ReportedValue>& reports,
           bandoneon::control::HeartbeatRequest* message);
void Write(const QualityGroup& group, bandoneon::control::QualityGroup* message);
void Write(PlacementVersion version, bandoneon::control::PlacementVersion* message);
// Writes the one piece that has all of `delta`. PiecesOf (catalogue_pieces.h) cuts a delta into
// several.
void Write(const CatalogueDelta& delta, bandoneon::control::CataloguePiece* message);
void Write(const DeclarationPart& part, bandoneon::control::DeclareRequest* message);
void Write(const DeclarationAnswer& answer, bandoneon::control::DeclareReply* message);
void Write(const std::vector<Rank>& leaving, bandoneon::control::Leaving* message);
void Write(const JoinRequest& request, bandoneon::control::JoinRequest* message);
void Write(const absl::Status& status, bandoneon::control::Failure* message);
void Write(const DumpOrder& order, bandoneon::control::DumpOrder* message);
void Write(const DumpRequest& request, bandoneon::control::DumpRequest* message);
void Write(const TracePiece& piece, bandoneon::control::TracePiece* message);

absl::StatusOr<JobConfig> Read(const bandoneon::control::JobConfig& message);
absl::StatusOr<NodeInfo> Read(const bandoneon::control::NodeInfo& message);
absl::StatusOr<Membership> Read(const bandoneon::control::Membership& message);
HeldBytes Read(const bandoneon::control::HeldBytes& message);
RowCounts Read(const bandoneon::control::RowCounts& message);
absl::StatusOr<StageCounts> Read(const bandoneon::control::StageCounts& message);
absl::StatusOr<WorkCounts> Read(const bandoneon::control::WorkCounts& message);
absl::StatusOr<std::vector<ReportedValue>> ReadReports(
    const bandoneon::control::HeartbeatRequest& message);
// Returns ranks that rise. InvalidArgument: they do not, or one is negative.
absl::StatusOr<std::vector<Rank>> ReadRising(std::span<const int32_t> ranks);
// Reads the answer to an arrival at a barrier. InvalidArgument: ranks do not rise, or there are
// newcomers without an epoch, or an epoch without newcomers.
absl::StatusOr<Met> ReadMet(std::span<const int32_t> vacant, uint32_t epoch,
                            std::span<const int32_t> newcomers);
void Write(const std::vector<NodeWait>& waits, bandoneon::control::HeartbeatRequest* message);
absl::StatusOr<std::vector<NodeWait>> ReadWaits(
    const bandoneon::control::HeartbeatRequest& message);
absl::StatusOr<std::vector<QualityGroup>> ReadQuality(
    const google::protobuf::RepeatedPtrField<bandoneon::control::QualityGroup>& message);
absl::StatusOr<std::vector<uint32_t>> ReadRetired(
    const bandoneon::control::HeartbeatRequest& message);
// Reads the counts of a server's tables. InvalidArgument: there are too many, names do not rise, or
// one is longer than a name may be.
absl::StatusOr<std::vector<TableCounts>> ReadTables(
    const bandoneon::control::HeartbeatRequest& message);
PlacementVersion Read(const bandoneon::control::PlacementVersion& message);
// Adds the content of one piece to that of the pieces before. Checks the piece by itself; ReadDelta
// calls CheckDelta once all pieces are there. After an error part of the piece may have been added,
// so the delta is to be thrown away.
absl::Status ReadMore(const bandoneon::control::CataloguePiece& message, CatalogueDelta* delta);
absl::StatusOr<DeclarationPart> Read(const bandoneon::control::DeclareRequest& message);
DeclarationAnswer Read(const bandoneon::control::DeclareReply& message);
absl::StatusOr<std::vector<Rank>> Read(const bandoneon::control::Leaving& message);
absl::StatusOr<JoinRequest> Read(const bandoneon::control::JoinRequest& message);
// Returns the number of processes of each worker, by rank.
absl::StatusOr<std::vector<int>> ReadProcesses(const bandoneon::control::JoinReply& message);
absl::StatusOr<DumpOrder> Read(const bandoneon::control::DumpOrder& message);
absl::StatusOr<DumpRequest> Read(const bandoneon::control::DumpRequest& message);
absl::StatusOr<TracePiece> Read(const bandoneon::control::TracePiece& message);
// Returns the failure that was sent. A code that is none, or OK, becomes Unknown, because it is a
// failure all the same.
absl::Status ReadFailure(const bandoneon::control::Failure& message);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_MESSAGES_H_
