#ifndef BANDONEON_SCHEDULER_DUMP_STATE_H_
#define BANDONEON_SCHEDULER_DUMP_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/cluster/membership.h"
#include "common/cluster/trace_dump.h"

namespace bdn {

// One dump: the nodes that are asked, how far each has come, and the news for the caller. Of each
// node it holds one piece at most, which the node sends the next one behind. Not thread-safe; time
// is an argument.
class DumpState {
 public:
  // The nodes of a dump, and how many more were asked for.
  struct Nodes {
    std::vector<NodeInfo> asked;
    size_t left_out = 0;
  };
  // Chooses of `nodes` those that a request asks for, servers first, each role by rank. NotFound
  // where it asks for none of them, and says which there are.
  static absl::StatusOr<Nodes> Choose(const DumpRequest& request, std::vector<NodeInfo> nodes);

  DumpState(uint64_t number, const DumpRequest& request, Nodes nodes, absl::Time now);

  const Nodes& nodes() const { return nodes_; }
  absl::Time begun() const { return begun_; }
  const DumpOrder& order() const { return order_; }
  // Returns whether the node has yet to hear of the dump, as far as is known: nothing of it came.
  bool AwaitsFirst(NodeId node) const;
  // Returns the nodes of which more is expected.
  std::vector<NodeId> Open() const;

  // The time at which the call that brought a piece is answered.
  enum class Answer {
    kNow,    // the piece holds nothing for the caller, or it came before
    kLater,  // once the piece was passed on
  };
  // Takes a piece. The error is the answer to the node. A node that sends what cannot be has ended
  // with it; a piece of another dump, or of a node that has ended, changes nothing.
  absl::StatusOr<Answer> OnPiece(NodeId node, TracePiece piece);
  // Ends a node of which nothing more will come; what it has sent stays. Does nothing where it has
  // ended.
  void OnGone(NodeId node, const absl::Status& why);
  // Ends the nodes of which nothing has come for the request's patience.
  void OnTime(absl::Time now);

  // A message to the caller: content of a node, or its end.
  struct News {
    NodeId node = 0;
    std::string content;  // empty: the end
    absl::Status end;     // OK: the recording is whole
  };
  // Returns the next message, of which none is on its way; nullopt where there is none now.
  std::optional<News> Next();
  // The content that Next returned last was passed on: the node may send more.
  void OnPassedOn(NodeId node, absl::Time now);
  // Returns whether the ends of all nodes were returned.
  bool is_over() const { return told_ == members_.size(); }

 private:
  struct Member {
    uint32_t next_piece = 0;
    uint64_t bytes = 0;
    absl::Time heard;      // since then the node could send more
    bool is_held = false;  // its piece is not passed on yet
    std::string held;      // the piece, until Next returns it
    std::optional<absl::Status> end;
  };

  absl::Status Check(const Member& member, const TracePiece& piece) const;
  void End(NodeId node, Member* member, absl::Status why);

  const Nodes nodes_;
  const DumpOrder order_;
  const absl::Duration patience_;
  const absl::Time begun_;
  std::map<NodeId, Member> members_;
  std::deque<NodeId> news_;  // a node stands here once for each piece, and once for its end
  size_t told_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DUMP_STATE_H_
