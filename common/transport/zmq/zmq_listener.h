#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_LISTENER_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_LISTENER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/transport/transport_counters.h"
#include "common/transport/zmq/peer_table.h"
#include "common/transport/zmq/zap_handler.h"
#include "common/transport/zmq/zmq_keys.h"
#include "common/transport/zmq/zmq_socket.h"

namespace bdn {

// A listening socket with its peers. It reads their frames, follows which of them are connected,
// and cuts those that may not be, or that break the rules. Not thread-safe: used by one thread at a
// time, the poller's once it is open.
class ZmqListener {
 public:
  // The parts of a transport that its listeners use, and its callbacks. The pointers are borrowed.
  struct Owner {
    void* context;
    const ZmqOptions* options;
    const KeyPair* keys;
    const Clock* clock;
    const Admissions* admissions;
    TransportCounters* counters;
    LimitedLog* log;
    // Runs when the first frame of a connection has come; returns the connection's name.
    std::function<ConnectionId(ZmqListener* listener, const FrameOrigin& origin)> on_new;
    std::function<void(ConnectionId from, Frame frame)> on_frame;
    std::function<void(ConnectionId connection)> on_gone;
  };

  // Opens a listener, with the errors of Transport::Listen.
  static absl::StatusOr<std::unique_ptr<ZmqListener>> Open(const Owner* owner,
                                                           const std::string& address);
  // Closes the socket, on the thread that has it then.
  ~ZmqListener();
  ZmqListener(const ZmqListener&) = delete;
  ZmqListener& operator=(const ZmqListener&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  LinkSecurity security() const { return security_; }
  // The sockets to poll. The monitor tells of connections, and is read first.
  void* socket() const { return socket_; }
  void* monitor() const { return monitor_; }

  // Reads some of the events and messages that have come.
  void OnReady(bool monitor_is_ready, bool socket_is_ready);
  // Cuts newcomers (connections that have brought no frame, and may be anybody's) where they are
  // too many or send too much. To be called every few milliseconds while there are any.
  void LimitNewcomers();
  size_t num_newcomers() const { return peers_.newcomers().size(); }
  // Returns whether LimitNewcomers has something to look at.
  bool has_newcomers() const { return num_newcomers() > 0 || peers_.has_untold(); }
  // Returns whether connections have ended for which on_gone was not called: OnReady calls it.
  bool has_ended() const { return peers_.has_closed(); }
  // Cuts connections that have sent more than a frame without ending a message: ZeroMQ hands over
  // no part of a message before it has all parts, however many they are. To be called ten times a
  // second while there are messages to limit, and every few milliseconds while some are watched.
  void LimitMessages();
  bool has_messages_to_limit() const { return socket_file_.empty() && peers_.has_connections(); }
  bool has_messages_to_watch() const { return has_messages_to_limit() && peers_.has_watched(); }
  // Cuts connections whose CURVE key is no longer admitted.
  void ApplyAdmissions();

  // Writes a frame's header. The caller then writes the payload to the socket, and counts it in the
  // returned queue meanwhile. Unavailable: the connection is gone; ResourceExhausted: too much
  // waits for it already.
  absl::StatusOr<std::shared_ptr<SendQueue>> BeginFrame(ConnectionId to, const Frame& frame);

 private:
  explicit ZmqListener(const Owner* owner) : owner_(owner) {}

  // The time between two weighings of newcomers, and of messages that are watched: each costs some
  // system calls a connection. In that time ZeroMQ reads up to 300 KB of empty parts, for which it
  // takes 10 MB of memory.
  static constexpr absl::Duration kWeighingInterval = absl::Milliseconds(10);
  // The time between two weighings of all connections, which may be a thousand.
  static constexpr absl::Duration kMessageWeighingInterval = absl::Milliseconds(100);

  void ReadFrom(const std::string& name);
  PeerTable::Peer* AddPeer(const std::string& name, const FrameOrigin& origin);
  void FollowConnections();
  void EndTurn();
  void Forget(const std::vector<PeerTable::Peer>& closed);
  void CutNewcomer(int fd);
  void Cut(PeerTable::Peer* peer, const std::string& why);
  bool HasStalled(const SendQueue& queue) const;

  const Owner* const owner_;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  LinkSecurity security_ = LinkSecurity::kEncrypted;
  std::string endpoint_;
  std::string socket_file_;  // over ipc; removed by the destructor
  PeerTable peers_;
  uint64_t read_in_turn_ = 0;
  int turns_since_weighing_ = 0;  // since the last weighing of messages
  absl::Time next_weighing_ = absl::InfinitePast();
  absl::Time next_watched_weighing_ = absl::InfinitePast();  // of messages
  absl::Time next_message_weighing_ = absl::InfinitePast();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_LISTENER_H_
