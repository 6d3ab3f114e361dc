#ifndef BANDONEON_WORKER_PIPELINE_SERVER_LINKS_H_
#define BANDONEON_WORKER_PIPELINE_SERVER_LINKS_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/cluster/membership.h"
#include "common/transport/transport.h"

namespace bdn {

// A worker's connections to each server: which of them takes the next frame, and how many there
// are to be. One connection of TCP carries at most a window of some 3 MB in a round trip, so far
// from the server several carry more; near it one carries all. A state machine; not thread-safe.
class ServerLinks {
 public:
  static constexpr int kMost = 64;     // that the setting may ask for
  static constexpr int kMostAuto = 8;  // that are made unasked
  // Bytes in a round trip for which one connection is enough: half a window.
  static constexpr double kBytesOfOne = 1536 * 1024;
  static constexpr absl::Duration kNear = absl::Milliseconds(5);
  // There is a connection for each such part of a round trip, whatever is moved, divided among the
  // servers: they are ready when much is to be sent at once, begin faster than one, and a lost
  // packet slows one of them.
  static constexpr absl::Duration kRoundTripOfOne = absl::Microseconds(12'500);

  // `connections` to each server that is reached over a network; 0: as many as its distance and
  // what is moved ask for, up to kMostAuto.
  explicit ServerLinks(int connections = 0) : connections_(connections) {}

  // Sets a server's first connection, and returns those that it takes the place of. WantsMore then
  // asks for as many others as the server had.
  std::vector<ConnectionId> Set(NodeId server, ConnectionId first);
  // Adds a connection that WantsMore asked for. Returns false if `first` is no longer the server's
  // first connection; then nothing has changed.
  bool Add(NodeId server, ConnectionId first, ConnectionId more);
  // Forgets a server, and returns its connections.
  std::vector<ConnectionId> Remove(NodeId server);

  bool Has(NodeId server) const { return servers_.contains(server); }
  // Returns the server at the other end; 0 where the connection is none of these.
  NodeId ServerOf(ConnectionId connection) const;
  // Returns a server's connections, the first one first; none for an unknown server.
  std::vector<ConnectionId> Of(NodeId server) const;
  // Returns the number of all connections.
  size_t size() const { return server_of_.size(); }

  // Returns the connection for a frame: the one on which the fewest bytes wait, among those on
  // which the server has been heard. 0 for an unknown server.
  ConnectionId Choose(NodeId server) const;
  // Note a frame that was given to the transport, and that the transport has handed it over.
  void OnQueued(ConnectionId connection, uint64_t bytes);
  void OnSent(ConnectionId connection, uint64_t bytes);
  void OnHeard(ConnectionId connection);
  // Notes a hello: the connection takes no other frame before something is heard on it.
  void OnHello(ConnectionId connection);

  // Returns whether a server's connections are worth a look: then their facts, in the order of
  // Of, are to be given to WantsMore. At most one look runs at a time and server.
  bool IsDue(NodeId server, absl::Time now);
  // Returns the number of connections to be added now.
  int WantsMore(NodeId server, std::span<const ConnectionFacts> facts, absl::Time now);

 private:
  struct Link {
    ConnectionId connection = 0;
    uint64_t bytes_queued = 0;
    uint64_t frames = 0;  // given to it; the least is chosen among equally short queues
    bool is_heard = false;
  };
  struct Server {
    std::vector<Link> links;
    int asked_for = 1;  // connections that there are, or are being made
    int wanted = 1;     // never less than before
    bool is_looking = false;
    bool is_settled = false;  // nothing that a look could find would change the number
    // The last look: when, and what all connections had moved until then.
    absl::Time looked = absl::InfinitePast();
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  Link* Find(ConnectionId connection);
  // Returns the number that a look at one of so many servers asks for.
  static int Measured(size_t servers, std::span<const ConnectionFacts> facts, absl::Time now,
                      Server* server);

  const int connections_;
  absl::flat_hash_map<NodeId, Server> servers_;
  absl::flat_hash_map<ConnectionId, NodeId> server_of_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_SERVER_LINKS_H_
