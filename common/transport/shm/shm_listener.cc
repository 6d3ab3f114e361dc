#include "common/transport/shm/shm_listener.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/transport/shm/shm_channel.h"
#include "common/transport/shm/shm_socket.h"

namespace bdn {
namespace {

// Connections accepted in one turn of the poller, which brings frames besides.
constexpr int kAcceptsPerTurn = 16;
// After so many connections that came to nothing, or where there is no descriptor for one, none is
// accepted for so long. Any process of the machine may connect to a socket of the abstract kind and
// hang up, again and again.
constexpr int kRefusalsBeforeRest = 16;
constexpr absl::Duration kRestDelay = absl::Milliseconds(50);

}  // namespace

void ShmListener::Add(ShmListeningSocket socket) {
  sockets_.push_back(std::move(socket));
  Watch(sockets_.back().get());
}

void ShmListener::Watch(int socket) {
  if (owner_.poller->Watches(socket)) return;
  owner_.poller->Watch(socket, [this, socket] { Accept(socket); });
}

void ShmListener::Close() {
  for (const ShmListeningSocket& socket : sockets_) owner_.poller->Forget(socket.get());
  sockets_.clear();
  while (!newcomers_.empty()) Refuse(newcomers_.begin());
}

absl::Time ShmListener::NextTime() const {
  absl::Time next = accept_at_;
  // Newcomers are in the order in which they came, and all have the same time.
  if (!newcomers_.empty()) next = std::min(next, newcomers_.front().deadline);
  return next;
}

void ShmListener::OnTime(absl::Time now) {
  if (accept_at_ <= now) {
    accept_at_ = absl::InfiniteFuture();
    refusals_ = 0;
    for (const ShmListeningSocket& socket : sockets_) Watch(socket.get());
  }
  while (!newcomers_.empty() && newcomers_.front().deadline <= now) Refuse(newcomers_.begin());
}

void ShmListener::Rest() {
  for (const ShmListeningSocket& socket : sockets_) owner_.poller->Forget(socket.get());
  accept_at_ = owner_.clock->Now() + kRestDelay;
}

void ShmListener::Accept(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (refusals_ >= kRefusalsBeforeRest) return Rest();
    absl::StatusOr<FileDescriptor> socket = AcceptFrom(listener);
    if (absl::IsPermissionDenied(socket.status())) {
      ++refusals_;
      owner_.counters->connections_refused.Add();
      owner_.log->Warning("refused a connection over shared memory: another user's");
      continue;
    }
    if (!socket.ok()) {
      // The socket stays ready while its connections wait for a descriptor: watched, it would keep
      // the poller busy.
      owner_.log->Warning("connections over shared memory wait: %s", socket.status().message());
      return Rest();
    }
    if (!socket->is_open()) return;
    if (newcomers_.size() >= static_cast<size_t>(owner_.options->max_newcomers)) {
      Refuse(newcomers_.begin());
    }
    const absl::Time deadline = owner_.clock->Now() + owner_.options->handshake_timeout;
    const Place newcomer =
        newcomers_.insert(newcomers_.end(), Newcomer{*std::move(socket), deadline, {}, {}});
    owner_.counters->connections_new.Set(newcomers_.size());
    owner_.poller->Watch(newcomer->socket.get(), [this, newcomer] { OnPacket(newcomer); });
  }
}

void ShmListener::Refuse(Place newcomer) {
  ++refusals_;
  owner_.counters->connections_refused.Add();
  owner_.poller->Forget(newcomer->socket.get());
  newcomers_.erase(newcomer);
  owner_.counters->connections_new.Set(newcomers_.size());
}

void ShmListener::OnPacket(Place newcomer) {
  Packet packet = ReceivePacket(newcomer->socket.get());
  if (packet.result == Packet::Result::kNothing) return;
  const auto hello = ReadAs<ShmHello>(packet, ShmPacket::kHello);
  // One hello and nothing else, in our version; all further packets are for an admitted connection.
  if (packet.result == Packet::Result::kEnd || !hello.has_value() || newcomer->hello.has_value() ||
      hello->magic != kShmMagic || hello->version != kShmVersion ||
      hello->secret_bytes > kMaxSecretBytes) {
    return Refuse(newcomer);
  }
  newcomer->hello = *hello;
  newcomer->control = std::move(packet.fd);
  LetIn();
}

void ShmListener::SetAdmission(Admission admission) {
  admission_ = std::move(admission);
  LetIn();
}

bool ShmListener::Admits(const PublicKey& key) const {
  if (owner_.options->security == LinkSecurity::kOpen) return true;
  return admission_.has_value() && !key.empty() &&
         std::find(admission_->keys.begin(), admission_->keys.end(), key) != admission_->keys.end();
}

bool ShmListener::MayCome(const ShmHello& hello) const {
  if (owner_.options->security == LinkSecurity::kOpen) return true;
  const std::string_view secret(hello.secret.data(), hello.secret_bytes);
  return !admission_->secret.empty() && IsSameSecret(secret, admission_->secret) &&
         Admits(PublicKey{hello.key});
}

// Admits or refuses the newcomers whose hello has come, once it is known which peers may connect.
void ShmListener::LetIn() {
  if (owner_.options->security != LinkSecurity::kOpen && !admission_.has_value()) return;
  for (Place newcomer = newcomers_.begin(); newcomer != newcomers_.end();) {
    // Both ways take the newcomer out of the list.
    const Place next = std::next(newcomer);
    if (newcomer->hello.has_value() && MayCome(*newcomer->hello)) {
      Welcome(newcomer);
    } else if (newcomer->hello.has_value()) {
      owner_.log->Warning("refused a connection over shared memory: not of this job");
      Refuse(newcomer);
    }
    newcomer = next;
  }
}

void ShmListener::Welcome(Place newcomer) {
  // The peer's memory is mapped only here, after the peer was admitted.
  auto peers = SharedMemory::MapPeers(std::move(newcomer->control), sizeof(ShmControl));
  auto mine = ShmChannel::MakeControl();
  const absl::Status status = peers.ok() ? mine.status() : peers.status();
  if (!status.ok()) {
    owner_.log->Warning("refused a connection over shared memory: %s", status.message());
    return Refuse(newcomer);
  }
  const ShmPacket welcome = ShmPacket::kWelcome;
  if (!SendPacket(newcomer->socket.get(), BytesOf(welcome), (*mine)->fd())) return Refuse(newcomer);
  const bool is_open = owner_.options->security == LinkSecurity::kOpen;
  const PublicKey key = is_open ? PublicKey() : PublicKey{newcomer->hello->key};
  owner_.poller->Forget(newcomer->socket.get());
  // The new owner watches the socket with a source of its own.
  Guest guest{std::move(newcomer->socket), key, *std::move(mine), *std::move(peers)};
  newcomers_.erase(newcomer);
  owner_.counters->connections_new.Set(newcomers_.size());
  owner_.on_guest(std::move(guest));
}

}  // namespace bdn
