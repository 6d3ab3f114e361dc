#include "server/reply_queue.h"

#include <utility>

namespace bdn {
namespace {

uint64_t WireBytes(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

}  // namespace

void ReplyQueue::Send(ConnectionId to, NodeId node, int32_t priority, Frame reply) {
  std::vector<Sending> sends;
  {
    MutexLock lock(&mu_);
    if (is_closed_) return;
    Peer& peer = peers_[to];
    if (IsOnItsWay(peer, reply.header)) return;
    const Key key = reply.header.key;
    // A worker that gets a reply of another step has gone on, so one of an earlier step has no
    // reader.
    Drop(&peer, key);
    const ArrivalUrgency order{priority, ++last_number_};
    bytes_waiting_ += WireBytes(reply);
    peer.waiting.emplace(order, Waiting{std::move(reply), node, StageSpan(stages_)});
    peer.order_of[key] = order;
    sends = Take(to, &peer);
  }
  Perform(std::move(sends));
}

void ReplyQueue::Close() {
  MutexLock lock(&mu_);
  is_closed_ = true;
  bytes_waiting_ = 0;
  for (auto& [to, peer] : peers_) {
    // Peers stay: the transport still calls OnSent for the bytes in flight.
    peer.waiting.clear();
    peer.order_of.clear();
  }
}

uint64_t ReplyQueue::bytes_waiting() const {
  MutexLock lock(&mu_);
  return bytes_waiting_;
}

bool ReplyQueue::IsOnItsWay(const Peer& peer, const FrameHeader& reply) const {
  const auto in_flight = peer.in_flight.find(reply.key);
  if (in_flight != peer.in_flight.end() && in_flight->second == reply.step) return true;
  const auto order = peer.order_of.find(reply.key);
  if (order == peer.order_of.end()) return false;
  return peer.waiting.at(order->second).reply.header.step == reply.step;
}

void ReplyQueue::Drop(Peer* peer, Key key) {
  const auto order = peer->order_of.find(key);
  if (order == peer->order_of.end()) return;
  const auto waiting = peer->waiting.find(order->second);
  bytes_waiting_ -= WireBytes(waiting->second.reply);
  peer->waiting.erase(waiting);
  peer->order_of.erase(order);
}

std::vector<ReplyQueue::Sending> ReplyQueue::Take(ConnectionId to, Peer* peer) {
  std::vector<Sending> sends;
  while (!peer->waiting.empty()) {
    const auto first = peer->waiting.begin();
    Frame& reply = first->second.reply;
    const uint64_t bytes = WireBytes(reply);
    // A shorter, less urgent reply does not overtake this one, or it might never find room.
    if (peer->bytes_in_flight > 0 && peer->bytes_in_flight + bytes > max_bytes_in_flight_) break;
    peer->bytes_in_flight += bytes;
    bytes_waiting_ -= bytes;
    // Noted until the transport has sent it, so that a probe that asks in the meantime does not
    // send it twice.
    peer->in_flight[reply.header.key] = reply.header.step;
    peer->order_of.erase(reply.header.key);
    sends.push_back({to, std::move(reply), first->second.node, first->second.span});
    peer->waiting.erase(first);
  }
  return sends;
}

void ReplyQueue::Perform(std::vector<Sending> sends) {
  for (Sending& send : sends) {
    const FrameHeader& header = send.reply.header;
    auto sent = [this, to = send.to, key = header.key, step = header.step, node = send.node,
                 span = send.span,
                 payload_bytes = send.reply.payload.size()](const absl::Status& status) {
      if (status.ok()) {
        span.End(Stage::kReply, payload_bytes, {.key = key, .step = step, .peer = node});
      }
      OnSent(to, key, step, kHeaderBytes + payload_bytes);
    };
    // Without the lock: the transport may call `sent` at once, and that takes it.
    transport_->Send(send.to, std::move(send.reply), std::move(sent));
  }
}

void ReplyQueue::OnSent(ConnectionId to, Key key, Step step, uint64_t bytes) {
  std::vector<Sending> sends;
  {
    MutexLock lock(&mu_);
    const auto found = peers_.find(to);
    Peer& peer = found->second;
    peer.bytes_in_flight -= bytes;
    const auto in_flight = peer.in_flight.find(key);
    // A reply of a later step may be in flight by now; then the entry is that one's.
    if (in_flight != peer.in_flight.end() && in_flight->second == step) {
      peer.in_flight.erase(in_flight);
    }
    sends = Take(to, &peer);
    if (peer.bytes_in_flight == 0) peers_.erase(found);
  }
  Perform(std::move(sends));
}

}  // namespace bdn
