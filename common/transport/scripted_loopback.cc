#include "common/transport/scripted_loopback.h"

#include <string>
#include <utility>

#include "common/transport/loopback_core.h"

namespace bdn {

// One transport: an identity in the network, and nothing else.
class ScriptedLoopback::Endpoint final : public Transport {
 public:
  explicit Endpoint(LoopbackCore* core) : core_(core), id_(core->AddEndpoint()) {}
  ~Endpoint() override {
    core_->Close(id_);
    core_->Join(id_);
    core_->RemoveEndpoint(id_);
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    core_->Start(id_, std::move(handler), std::move(gone));
  }
  absl::StatusOr<std::string> Listen(const std::string& address) override {
    return core_->Listen(id_, address);
  }
  absl::StatusOr<ConnectionId> Connect(const std::string& address, const PeerSecurity&) override {
    return core_->Connect(id_, address);
  }
  void Disconnect(ConnectionId connection) override { core_->Disconnect(id_, connection); }
  PublicKey public_key() const override { return {}; }
  LinkSecurity security() const override { return LinkSecurity::kOpen; }
  std::string host_address() const override { return {}; }
  std::string fabric_provider() const override { return {}; }
  bool needs_checksums() const override { return true; }
  void Admit(Admission) override {}
  PublicKey KeyOf(ConnectionId) const override { return {}; }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    core_->Send(id_, to, std::move(frame), std::move(done));
  }
  std::shared_ptr<MemoryDomain> memory() override { return HostMemory(); }
  TransportStats stats() const override { return core_->stats(id_); }
  void Close() override { core_->Close(id_); }
  void Join() override { core_->Join(id_); }

 private:
  LoopbackCore* const core_;
  const LoopbackCore::EndpointId id_;
};

ScriptedLoopback::ScriptedLoopback() : core_(std::make_unique<LoopbackCore>()) {}
ScriptedLoopback::~ScriptedLoopback() = default;

std::unique_ptr<Transport> ScriptedLoopback::MakeTransport() {
  return std::make_unique<Endpoint>(core_.get());
}

bool ScriptedLoopback::Step() { return core_->Step(); }
bool ScriptedLoopback::StepFrame(const Match& match) { return core_->StepFrame(match); }
size_t ScriptedLoopback::DeliverAll(size_t most) {
  size_t steps = 0;
  while (steps < most && core_->Step()) ++steps;
  return steps;
}
size_t ScriptedLoopback::num_pending() const { return core_->num_pending(); }
std::vector<FrameHeader> ScriptedLoopback::PendingFrames() const { return core_->PendingFrames(); }
bool ScriptedLoopback::WaitAndStep() { return core_->WaitAndStep(); }
void ScriptedLoopback::Interrupt() { core_->Interrupt(); }

void ScriptedLoopback::Drop(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kDrop, times);
}
void ScriptedLoopback::Duplicate(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kDuplicate, times);
}
void ScriptedLoopback::Hold(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kHold, times);
}
void ScriptedLoopback::CorruptPayload(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kCorrupt, times);
}
void ScriptedLoopback::Cut(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kCut, times);
}
size_t ScriptedLoopback::Release() { return core_->Release(); }
void ScriptedLoopback::ClearFaults() { core_->ClearFaults(); }
void ScriptedLoopback::Randomize(uint64_t seed, const RandomFaults& faults) {
  core_->Randomize(seed, faults);
}

}  // namespace bdn
