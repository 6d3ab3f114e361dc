// Whatever servers send a worker whose keys survive them, every request of the worker's caller has
// one answer, and every frame that the worker sends can be sent.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "tests/fuzz/fuzz_input.h"
#include "worker/pipeline/recovery_table.h"

namespace bdn {
namespace {

constexpr NodeId kSelf = 1;
constexpr NodeId kHome = 100;
constexpr size_t kElements = 4;
constexpr Key kDense = Key::Of(3, 1);
constexpr Key kBroadcast = Key::Of(4, 0);

class Job {
 public:
  explicit Job(fuzz::FuzzInput input)
      : input_(input),
        table_({.self = kSelf, .probe_interval = absl::Seconds(1), .timeout = absl::Minutes(10)}) {}

  void Run() {
    SetMembership();
    const bool has_replica = Less(2) == 0;
    replica_->values.assign(kElements, 0.5f);
    replica_->step = 0;
    table_.AddKey({.key = kDense,
                   .home = kHome,
                   .declared_in = 1,
                   .catalogue_version = 1,
                   .elements = kElements,
                   .tensor = "dense",
                   .snapshot_every = static_cast<uint32_t>(Less(3)),
                   .keeps_reply = Less(2) == 0,
                   .replica = has_replica ? replica_ : nullptr});
    table_.AddKey({.key = kBroadcast,
                   .home = kHome,
                   .declared_in = 1,
                   .catalogue_version = 1,
                   .is_dense = false,
                   .elements = kElements,
                   .tensor = "broadcast"});
    for (int moves = 0; !input_.empty() && moves < 300; ++moves) Move();
    Take(table_.Fail(absl::AbortedError("the end")));
    for (const bool is_open : is_open_) fuzz::Require(!is_open);
  }

 private:
  size_t Less(size_t bound) { return input_.Get<uint8_t>() % bound; }
  Step SmallStep() { return Less(8) == 7 ? input_.Get<uint64_t>() : Less(4); }

  void Move() {
    switch (Less(10)) {
      case 0:
        return Submit();
      case 1:
        return SetMembership();
      case 2:
        now_ += absl::Milliseconds(input_.Get<uint16_t>());
        return Take(table_.OnTick(now_));
      case 3:
        for (const auto& [key, request] : std::exchange(sent_, {})) {
          (void)table_.OnSent(key, request, now_);
        }
        return;
      case 4:
        if (Less(8) == 0) Retire();
        return;
      default:
        return Receive();
    }
  }

  bool& IsOpen(Key key) { return is_open_[key == kDense ? 0 : 1]; }

  void Submit() {
    const Key key = Less(4) == 0 ? kBroadcast : kDense;
    if (IsOpen(key) || is_retired_[key == kDense ? 0 : 1]) return;
    const std::vector<float> values(kElements, 1.0f);
    const Buffer payload = Buffer::CopyOf(std::as_bytes(std::span(values)));
    Frame frame;
    if (key == kBroadcast) {
      const bool is_root = Less(2) == 0;
      const FrameHeader header = BroadcastHeader(is_root ? FrameType::kInit : FrameType::kFetch,
                                                 key, ++broadcast_step_, kElements);
      frame = is_root ? MakeFrame(header, payload) : Frame{header, {}};
    } else if (Less(4) == 0) {
      const bool is_init = Less(2) == 0;
      const FrameHeader header = StateHeader(
          is_init ? FrameType::kInit : FrameType::kFetch,
          {.part = StatePart::kWeights, .key = key, .num_elements = kElements}, step_, ++request_);
      frame = is_init ? MakeFrame(header, payload) : Frame{header, {}};
    } else {
      frame = MakeFrame(PushHeader(key, ++step_, kElements), payload);
    }
    IsOpen(key) = true;
    auto actions = table_.Submit({.frame = frame,
                                  .server = kHome,
                                  .catalogue_version = 1,
                                  .tensor = "tensor",
                                  .of_exchange = Less(2) == 0,
                                  .is_patient = Less(2) == 0},
                                 now_);
    fuzz::Require(actions.ok());
    Take(*std::move(actions));
  }

  void Retire() {
    if (IsOpen(kDense)) return;
    is_retired_[0] = true;
    table_.Retire(kDense);
  }

  // The home, and another server to which its slots may move.
  void SetMembership() {
    auto next = std::make_shared<Membership>();
    next->epoch = ++epoch_;
    if (Less(4) == 0) next->vacant = {1};
    next->unsafe = next->vacant.empty() ? 0 : static_cast<Epoch>(1 + Less(epoch_));
    const bool has_home = epoch_ == 1;
    owner_ = has_home ? kHome : static_cast<NodeId>(kHome + 1 + Less(2));
    if (has_home) next->servers.push_back({.id = kHome, .role = Role::kServer, .rank = 0});
    for (NodeId id = kHome + 1; id <= kHome + 2; ++id) {
      next->servers.push_back(
          {.id = id, .role = Role::kServer, .rank = static_cast<Rank>(id - kHome)});
    }
    if (!has_home) {
      if (owner_ != last_owner_) since_ = epoch_;
      last_owner_ = owner_;
      next->moved[kHome].fill({owner_, since_});
    }
    next->MakeIndex();
    Take(table_.SetMembership(std::move(next), now_));
  }

  void Receive() {
    const FrameType types[] = {FrameType::kReply, FrameType::kRebuild, FrameType::kHello,
                               FrameType::kError, FrameType::kWaiting, FrameType::kValue};
    FrameHeader header;
    header.type = types[Less(std::size(types))];
    // Mostly an answer to what was sent last.
    if (last_sent_.type != FrameType::kHello && Less(4) != 0) {
      header = AnswerTo(last_sent_, header.type);
    } else {
      header.key = Less(4) == 0 ? kBroadcast : kDense;
      header.step = SmallStep();
      header.num_elements = kElements;
      header.request = static_cast<uint32_t>(Less(4));
    }
    header.flags = Less(4) == 0 ? input_.Get<uint8_t>() % 32 : 0;
    if (header.type == FrameType::kReply) header.saved_step = SmallStep();
    if (header.type == FrameType::kReply) header.base_step = Less(4);
    header.epoch = epoch_;
    header.sender = owner_;
    const Frame frame = MakeFrame(header, PayloadOf(header));
    const auto decoded = DecodeHeader(EncodeHeader(frame.header));
    if (!decoded.ok()) return;
    const NodeId from = Less(8) == 0 ? kHome + static_cast<NodeId>(Less(3)) : owner_;
    Take(table_.OnFrame(from, {*decoded, frame.payload}, now_));
  }

  Buffer PayloadOf(const FrameHeader& header) {
    if (Less(8) == 0) return Buffer::CopyOf(input_.Bytes(input_.Get<uint8_t>()));
    switch (header.type) {
      case FrameType::kHello:
        return EncodeHello({.node = owner_});
      case FrameType::kRebuild: {
        const Step start = Less(4);
        return EncodeOrder({.what = static_cast<RebuildOrder::What>(Less(4)),
                            .start = start,
                            .target = start + SmallStep() % 8});
      }
      case FrameType::kError:
        return EncodeError(absl::Status(static_cast<absl::StatusCode>(1 + Less(16)), "no"));
      case FrameType::kWaiting:
        return EncodeRanks({0});
      default: {
        if (header.type == FrameType::kReply && (Less(4) == 0 || !HasPayload(header.flags))) {
          return {};
        }
        const std::vector<float> values(kElements, 2.0f);
        return Buffer::CopyOf(std::as_bytes(std::span(values)));
      }
    }
  }

  void Take(RecoveryTable::Actions actions) {
    for (const RequestTable::Outgoing& send : actions.sends) {
      fuzz::Require(DecodeHeader(EncodeHeader(send.frame.header)).ok());
      fuzz::Require(CheckPayload(send.frame).ok());
      if (send.request != 0) sent_.push_back({send.frame.header.key, send.request});
      last_sent_ = send.frame.header;
    }
    for (const RequestTable::Answer& answer : actions.answers) {
      fuzz::Require(IsOpen(answer.key));
      IsOpen(answer.key) = false;
    }
  }

  fuzz::FuzzInput input_;
  RecoveryTable table_;
  std::shared_ptr<Replica> replica_ = std::make_shared<Replica>();
  absl::Time now_ = absl::UnixEpoch();
  Epoch epoch_ = 0;
  Epoch since_ = 0;
  NodeId owner_ = kHome;
  NodeId last_owner_ = kHome;
  Step step_ = 0;
  Step broadcast_step_ = 0;
  uint32_t request_ = 0;
  bool is_open_[2] = {false, false};
  bool is_retired_[2] = {false, false};
  FrameHeader last_sent_;
  std::vector<std::pair<Key, uint64_t>> sent_;
};

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  bdn::InitLog(bdn::LogLevel::kOff, "fuzz");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Job(bdn::fuzz::FuzzInput(data, size)).Run();
  return 0;
}
