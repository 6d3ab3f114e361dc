#ifndef BANDONEON_COMMON_TRANSPORT_FORWARDING_H_
#define BANDONEON_COMMON_TRANSPORT_FORWARDING_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/transport.h"

namespace bdn {

// A transport around another one, which it owns and to which it forwards every call. A class that
// changes some calls derives from it and overrides these; its destructor closes and joins, as that
// of every transport does. Thread-safe as the inner transport is.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  void Start(FrameHandler handler, GoneHandler gone = nullptr) override {
    inner_->Start(std::move(handler), std::move(gone));
  }
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override {
    return inner_->Listen(address);
  }
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override { return inner_->Connect(peer); }
  void Disconnect(ConnectionId connection) override { inner_->Disconnect(connection); }
  PublicKey public_key() const override { return inner_->public_key(); }
  LinkSecurity security() const override { return inner_->security(); }
  bool needs_checksums() const override { return inner_->needs_checksums(); }
  void Admit(Admission admission) override { inner_->Admit(std::move(admission)); }
  PublicKey KeyOf(ConnectionId connection) const override { return inner_->KeyOf(connection); }
  ConnectionFacts FactsOf(ConnectionId connection) const override {
    return inner_->FactsOf(connection);
  }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    inner_->Send(to, std::move(frame), std::move(done));
  }
  std::shared_ptr<MemoryDomain> memory() override { return inner_->memory(); }
  TransportStats stats() const override { return inner_->stats(); }
  void Close() override { inner_->Close(); }
  void Join() override { inner_->Join(); }

 protected:
  Transport* inner() const { return inner_.get(); }
  // Gives the inner transport back. Nothing may be forwarded from then on.
  std::unique_ptr<Transport> ReleaseInner() { return std::move(inner_); }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FORWARDING_H_
