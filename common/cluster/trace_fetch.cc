#include "common/cluster/trace_fetch.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/listen_address.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

// The scheduler ends the wait for a silent node by itself; this is for when it does not.
constexpr absl::Duration kAnswerGrace = absl::Seconds(10);

// The nodes of a dump while their recordings come. Checks the messages of the scheduler.
class DumpReader {
 public:
  explicit DumpReader(const std::function<void(DumpedNode)>& take) : take_(take) {}

  absl::Status OnMessage(const wire::DumpPiece& message) {
    if (message.has_nodes()) return OnNodes(message.nodes());
    if (message.has_content()) return OnContent(message.content());
    if (message.has_end()) return OnEnd(message.end());
    return Internal("it sent a message that is none of a dump");
  }
  bool is_begun() const { return is_begun_; }
  // To be called when the stream has ended in order.
  absl::Status CheckEnd() const {
    if (is_begun_ && open_.empty()) return absl::OkStatus();
    return Internal("it ended the dump before %d nodes had ended", open_.size());
  }

 private:
  absl::Status OnNodes(const wire::DumpPiece::Nodes& message) {
    const auto count = static_cast<size_t>(message.nodes_size());
    if (is_begun_ || count == 0 || count > kMostDumpNodes) {
      return Internal("it named %d nodes of a dump%s", count, is_begun_ ? " a second time" : "");
    }
    is_begun_ = true;
    for (const wire::NodeInfo& node : message.nodes()) {
      BDN_ASSIGN_OR_RETURN(NodeInfo info, Read(node));
      if (info.rank < 0) return Internal("it named a node of rank %d", info.rank);
      DumpedNode dumped{.job = message.job_id(),
                        .node = std::move(info),
                        .asked = count,
                        .left_out = message.left_out()};
      if (!open_.emplace(node.id(), std::move(dumped)).second) {
        return Internal("it named node %d twice", node.id());
      }
    }
    return absl::OkStatus();
  }

  absl::Status OnContent(const wire::DumpPiece::Content& message) {
    const auto found = open_.find(message.node());
    if (found == open_.end()) return Internal("it sent records of node %d", message.node());
    std::string& recording = found->second.recording;
    if (message.content().size() > kMostDumpBytes - recording.size()) {
      return Internal("it sent more than %d bytes of node %d", kMostDumpBytes, message.node());
    }
    recording += message.content();
    return absl::OkStatus();
  }

  absl::Status OnEnd(const wire::DumpPiece::End& message) {
    auto ended = open_.extract(message.node());
    if (ended.empty()) return Internal("it sent the end of node %d", message.node());
    DumpedNode& node = ended.mapped();
    if (message.failure().code() != 0) node.end = ReadFailure(message.failure());
    take_(std::move(node));
    return absl::OkStatus();
  }

  const std::function<void(DumpedNode)>& take_;
  bool is_begun_ = false;
  std::map<NodeId, DumpedNode> open_;
};

}  // namespace

absl::Status FetchTraces(const std::string& address, const Credentials& credentials,
                         const DumpRequest& request,
                         const std::function<void(DumpedNode node)>& take) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  const auto stub = wire::Scheduler::NewStub(ConnectChannel(address, credentials));
  grpc::ClientContext context;
  ShowToken(credentials, &context);
  wire::DumpRequest asked;
  Write(request, &asked);
  BDN_RETURN_IF_ERROR(Read(asked).status());
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  bool is_late = false;
  // Waits for the operation that was begun last. A scheduler that is silent for too long is given
  // up.
  const auto await = [&] {
    if (queue.AsyncNext(&tag, &ok, GrpcDeadline(request.patience + kAnswerGrace)) ==
        grpc::CompletionQueue::TIMEOUT) {
      is_late = true;
      context.TryCancel();
      (void)queue.Next(&tag, &ok);
    }
    return ok;
  };
  const auto stream = stub->AsyncDump(&context, asked, &queue, &context);
  DumpReader reader(take);
  absl::Status heard;
  wire::DumpPiece message;
  bool goes_on = await();
  while (goes_on) {
    stream->Read(&message, &context);
    goes_on = await();
    if (goes_on && heard.ok()) heard = reader.OnMessage(message);
    if (!heard.ok()) context.TryCancel();
  }
  grpc::Status status;
  stream->Finish(&status, &context);
  (void)await();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) continue;
  if (heard.ok() && status.ok()) heard = reader.CheckEnd();
  if (heard.ok() && is_late) {
    heard = DeadlineExceeded("nothing came of it for %s",
                             absl::FormatDuration(request.patience + kAnswerGrace));
  }
  if (heard.ok()) heard = FromGrpc(status);
  if (absl::IsUnavailable(heard) && reader.is_begun()) {
    heard = Unavailable("it ended amid the dump, or the way to it broke: %s", heard.message());
  }
  if (absl::IsUnimplemented(heard)) {
    heard = Unimplemented("it is of a version that has no dumps: %s", heard.message());
  }
  return Annotate(heard, absl::StrFormat("a dump from the scheduler at %s", address));
}

}  // namespace bdn
