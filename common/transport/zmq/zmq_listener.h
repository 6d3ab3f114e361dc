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

// A socket that listens: reads what its peers send, follows who is connected, and cuts who may not
// be or breaks the rules. Used by one thread at a time: the poller's, once it is opened.
class ZmqListener {
 public:
  // What a transport lends to its listeners, and is told by them.
  struct Owner {
    void* context;
    const ZmqOptions* options;
    const KeyPair* keys;
    const Clock* clock;
    const Admissions* admissions;
    TransportCounters* counters;
    LimitedLog* log;
    // A connection's first frame has come: gives it a name.
    std::function<ConnectionId(ZmqListener* listener, const PublicKey& key)> on_new;
    std::function<void(ConnectionId from, Frame frame)> on_frame;
    std::function<void(ConnectionId connection)> on_gone;
  };

  // As Transport::Listen.
  static absl::StatusOr<std::unique_ptr<ZmqListener>> Open(const Owner* owner,
                                                           const std::string& address);
  // Closes it, on whatever thread has it then.
  ~ZmqListener();
  ZmqListener(const ZmqListener&) = delete;
  ZmqListener& operator=(const ZmqListener&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  LinkSecurity security() const { return security_; }
  // To poll; something can be read from the second, or the first.
  void* socket() const { return socket_; }
  void* monitor() const { return monitor_; }

  // Reads some of what there is.
  void OnReady(bool monitor_is_ready, bool socket_is_ready);
  // Connections that have brought no frame may be anybody's: cuts those that are too many or send
  // too much. To be called every few milliseconds while there are any.
  void LimitNewcomers();
  size_t num_newcomers() const { return peers_.newcomers().size(); }
  // Whether LimitNewcomers has something to look at.
  bool has_newcomers() const { return num_newcomers() > 0 || peers_.has_untold(); }
  // Whether connections have ended that on_gone was not called for: OnReady does it.
  bool has_ended() const { return peers_.has_closed(); }
  // ZeroMQ hands over no part of a message before it has all, however many there are: cuts those
  // that have sent more than a frame without ending a message. To be called ten times a second while
  // there are messages to limit, and every few milliseconds while some are watched.
  void LimitMessages();
  bool has_messages_to_limit() const { return socket_file_.empty() && peers_.has_connections(); }
  bool has_messages_to_watch() const { return has_messages_to_limit() && peers_.has_watched(); }
  // Cuts whose key is not admitted any more.
  void ApplyAdmissions();

  // Begins a frame; its payload is to be written to the socket, and counted in the queue meanwhile.
  // Unavailable: the connection is gone; ResourceExhausted: too much waits for it already.
  absl::StatusOr<std::shared_ptr<SendQueue>> BeginFrame(ConnectionId to, const Frame& frame);

 private:
  explicit ZmqListener(const Owner* owner) : owner_(owner) {}

  // Of what newcomers have sent, and of messages that are watched: some system calls for each of them. ZeroMQ
  // reads up to 300 KB of empty parts meanwhile, which take 10 MB of memory.
  static constexpr absl::Duration kWeighingInterval = absl::Milliseconds(10);
  // Of the messages of all, which may be a thousand connections.
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
  std::string socket_file_;  // over ipc: ours to remove
  PeerTable peers_;
  uint64_t read_in_turn_ = 0;
  int turns_since_weighing_ = 0;  // of messages
  absl::Time next_weighing_ = absl::InfinitePast();
  absl::Time next_watched_weighing_ = absl::InfinitePast();  // of messages
  absl::Time next_message_weighing_ = absl::InfinitePast();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_LISTENER_H_
