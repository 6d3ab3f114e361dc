// A peer over a fabric does anything that it can: says what it likes over the network, sends
// messages, writes to what was granted with immediate data of its choice, and gives credits. It is
// heard or cut; what is handed over lies where nobody else writes meanwhile, and no block of its
// own is written twice before it was given back. Over libfabric's shm, both ends in this process.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/endian.h"
#include "common/base/log.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/fabric/fabric_poller.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

using Input = fuzz::FuzzInput;

constexpr uint32_t kBlockBytes = 4096;
constexpr uint32_t kBlocks = 16;  // that the peer grants
constexpr size_t kMostMessage = 8320;
// By which the end that is tried has connected, too; its other connections are a listener's.
constexpr ConnectionId kConnector = ConnectionId{1} << 40;

// Over libfabric's provider shm, which moves bytes within the calls of one thread, as a test that
// is run again needs it; jobs may not choose it.
class Ends {
 public:
  Ends()
      : peer_(*FabricEndpoint::Open({.provider = "shm"})),
        memory_(*FabricMemory::Make(kBlocks * kBlockBytes, retired_)),
        region_(*peer_->Register(memory_->span(), /*peers_may_write=*/true)) {
    InitLog(LogLevel::kOff, "fuzz");
    options_.endpoint.provider = "shm";
    options_.window_bytes = uint64_t{1} << 20;
    poller_ = *FabricPoller::Make(
        {.options = &options_,
         .clock = &clock_,
         .mailbox = mailbox_,
         .counters = &counters_,
         .deliver = [this](ConnectionId, Frame frame) { Hold(std::move(frame)); },
         .say = [this](ConnectionId, const FabricHandshake& said) { Hear(said); },
         .send_by_network = [](FabricMailbox::Outgoing) {},
         .set_way = [](ConnectionId, bool) {},
         .cut = [this](ConnectionId) { is_cut_ = true; },
         .key_of = [](ConnectionId) { return PublicKey(); },
         .gone = [](ConnectionId) {}});
    Ask([](auto* requests) { requests->connectors.push_back(kConnector); });
    for (Received& each : received_) Check(peer_->Receive(each.bytes, nullptr, &each).ok());
  }

  void Run(Input input) {
    welcome_.reset();
    Meet({});
    Check(welcome_.has_value());
    while (!input.empty() && !is_cut_) Step(&input);
    held_.clear();
    Turn();
    if (is_cut_) Ask([this](auto* requests) { requests->gone.push_back(connection_); });
    if (std::exchange(is_cut_, false)) ++connection_;
    clock_.Advance(absl::Seconds(2));  // what was granted is dropped
    poller_->OnTime(clock_.Now());
  }

 private:
  struct Received : FabricOperation {
    Received() { is_receive = true; }
    std::vector<std::byte> bytes = std::vector<std::byte>(kMostMessage);
  };

  template <typename Change>
  void Ask(const Change& change) {
    mailbox_->Ask(change);
    FabricMailbox::Requests requests = mailbox_->Take();
    poller_->Apply(&requests);
  }

  void Step(Input* input) {
    const auto kind = input->Get<uint8_t>();
    const FabricGrant& grant = welcome_->grant;
    FabricPrefix prefix{.number = welcome_->number, .token = welcome_->token};
    switch (kind % 8) {
      case 0:
        return Message(input->Bytes(input->Get<uint8_t>()));
      case 1:
      case 2: {  // a message or a write that is the peer's, of any kind
        prefix.kind = static_cast<FabricPrefix::Kind>(1 + input->Get<uint8_t>() % 3);
        if (prefix.kind == FabricPrefix::Kind::kCredits)
          prefix.count = 1 + input->Get<uint8_t>() % 3;
        if (prefix.kind == FabricPrefix::Kind::kFrame)
          prefix.payload_bytes = input->Get<uint16_t>();
        FrameHeader header{.type = FrameType::kInit};
        header.payload_bytes = static_cast<uint32_t>(prefix.payload_bytes);
        std::vector<std::byte> bytes = Of(prefix);
        if (prefix.kind == FabricPrefix::Kind::kFrame) Append(&bytes, EncodeHeader(header));
        if (kind % 8 == 2) return Write(bytes, input->Get<uint8_t>(), grant.immediate);
        if (prefix.kind == FabricPrefix::Kind::kCredits) {
          return Credits(bytes, input->Bytes(prefix.count), input->Get<uint8_t>() % 8);
        }
        bytes.resize(std::min<size_t>(bytes.size() + prefix.payload_bytes, kMostMessage));
        return Message(bytes);
      }
      case 3: {
        const auto block = input->Get<uint8_t>();
        const auto immediate = input->Get<uint32_t>();
        return Write(input->Bytes(kFabricHeadBytes), block, immediate);
      }
      case 4:
        if (!held_.empty()) held_.erase(held_.begin() + input->Get<uint8_t>() % held_.size());
        return Turn();
      case 5: {  // what comes over the network, as it comes
        const std::vector<std::byte> said = input->Bytes(input->Get<uint8_t>());
        return Say(connection_, DecodeFabricHandshake(said));
      }
      case 6:
        if (input->Get<uint8_t>() % 2 == 0) return Meet(input->Bytes(2));
        return Answer(static_cast<FabricHandshake::Kind>(2 + input->Get<uint8_t>() % 2),
                      input->Bytes(2));
      default: {  // it is written to
        const size_t payload = 8193 + input->Get<uint16_t>() % 8000;
        Ask([&](auto* requests) {
          requests->frames.push_back(
              {connection_, MakeFrame({.type = FrameType::kInit}, Buffer::Allocate(payload), false),
               [](const absl::Status&) {}});
        });
        Turn();
      }
    }
  }

  // ---- What the peer does

  // `changed`: where one of the first bytes of what it says is another, and which.
  void Meet(const std::vector<std::byte>& changed) {
    Say(connection_, Changed({.kind = FabricHandshake::Kind::kHello,
                              .session = ++last_session_,
                              .token = 12,
                              .message_bytes = kMostMessage,
                              .grant = Grant(),
                              .provider = "shm",
                              .address = peer_->address()},
                             changed));
    if (welcome_.has_value()) to_poller_ = *peer_->AddPeer(welcome_->address);
  }
  // To who has connected.
  void Answer(FabricHandshake::Kind kind, const std::vector<std::byte>& changed) {
    FabricHandshake answer{.kind = kind, .session = hello_->session};
    if (kind == FabricHandshake::Kind::kWelcome) {
      answer.token = 13;
      answer.message_bytes = kMostMessage;
      answer.grant = Grant();
      answer.provider = "shm";
      answer.address = peer_->address();
    } else {
      answer.refusal = "no";
    }
    Say(kConnector, Changed(answer, changed));
  }
  FabricGrant Grant() const {
    return {.key = region_->key(),
            .base = region_->base(),
            .block_bytes = kBlockBytes,
            .num_blocks = kBlocks};
  }
  static absl::StatusOr<FabricHandshake> Changed(const FabricHandshake& said,
                                                 const std::vector<std::byte>& changed) {
    const Buffer bytes = EncodeFabricHandshake(said);
    if (changed.size() == 2) bytes.data()[std::to_integer<size_t>(changed[0]) % 32] = changed[1];
    return DecodeFabricHandshake(bytes.span());
  }
  void Say(ConnectionId from, const absl::StatusOr<FabricHandshake>& handshake) {
    // Over shm the sender writes: told of other memory than is there, it would write to that.
    const bool has_grant = handshake.ok() && !handshake->address.empty();
    if (has_grant && (handshake->address != peer_->address() || handshake->grant != Grant()))
      return;
    Ask([&](auto* requests) { requests->handshakes.emplace_back(from, handshake); });
    Turn();
  }
  void Hear(const FabricHandshake& said) {
    if (said.kind == FabricHandshake::Kind::kHello) hello_ = said;
    if (said.kind != FabricHandshake::Kind::kWelcome) return;
    if (!welcome_.has_value() || welcome_->grant.immediate != said.grant.immediate)
      written_.clear();
    welcome_ = said;
  }

  static std::vector<std::byte> Of(const FabricPrefix& prefix) {
    const auto encoded = EncodeFabricPrefix(prefix);
    return {encoded.begin(), encoded.end()};
  }
  template <typename More>
  static void Append(std::vector<std::byte>* bytes, const More& more) {
    bytes->insert(bytes->end(), more.begin(), more.end());
  }

  // `blocks` may be too few for the count, and there may be more bytes.
  void Credits(std::vector<std::byte> bytes, const std::vector<std::byte>& blocks, size_t more) {
    for (const std::byte each : blocks) {
      const auto block = std::to_integer<uint32_t>(each) % (kBlocks + 1);
      std::array<std::byte, sizeof(block)> encoded;
      StoreLittle(encoded, 0, block);
      Append(&bytes, encoded);
      written_.erase(block);
    }
    if (more < 4) bytes.resize(bytes.size() + more);
    Message(bytes);
  }
  void Message(const std::vector<std::byte>& bytes) {
    Await([&](FabricOperation* operation) {
      return peer_->Send(to_poller_, {bytes, nullptr}, {}, operation);
    });
  }
  // `immediate` without a block is of this one.
  void Write(const std::vector<std::byte>& bytes, uint32_t block, uint32_t immediate) {
    if (bytes.empty()) return;
    const FabricGrant grant = welcome_->grant;
    block %= grant.num_blocks;
    if (immediate == grant.immediate) immediate |= block;
    Await([&](FabricOperation* operation) {
      return peer_->Write(to_poller_, {bytes, nullptr}, {},
                          grant.base + uint64_t{block} * grant.block_bytes, grant.key, immediate,
                          operation);
    });
  }
  template <typename Begin>
  void Await(const Begin& begin) {
    FabricOperation operation;
    waits_for_ = &operation;
    absl::Status begun = begin(&operation);
    while (absl::IsUnavailable(begun)) {
      Turn();
      begun = begin(&operation);
    }
    Check(begun.ok());
    while (waits_for_ != nullptr) Turn();
    Turn();
  }

  // ---- What both see

  void Turn() {
    do {
      FabricMailbox::Requests requests = mailbox_->Take();
      poller_->Apply(&requests);
    } while (poller_->Progress() || Poll());
  }
  bool Poll() {
    std::vector<FabricEvent> events;
    const bool any = peer_->Poll(&events);
    for (const FabricEvent& event : events) {
      Check(event.kind != FabricEvent::Kind::kFailed);
      if (event.kind == FabricEvent::Kind::kWritten) {
        OnWritten(event.immediate);
      } else if (event.operation->is_receive) {
        auto* const received = static_cast<Received*>(event.operation);
        Check(peer_->Receive(received->bytes, nullptr, received).ok());
      } else if (event.operation == waits_for_) {
        waits_for_ = nullptr;
      }
    }
    return any;
  }
  void OnWritten(uint32_t first) {
    Check(first < kBlocks);
    const auto prefix = DecodeFabricPrefix(
        ByteSpan(memory_->span()).subspan(size_t{first} * kBlockBytes, kFabricPrefixBytes));
    Check(prefix.ok());
    const uint32_t count = BlocksOf(kFabricHeadBytes + prefix->payload_bytes, kBlockBytes);
    for (const auto& [block, blocks] : written_) {
      Check(first + count <= block || block + blocks <= first);
    }
    written_[first] = count;
  }
  void Hold(Frame frame) {
    const ByteSpan ours = frame.payload.span();
    Check(ours.size() == frame.header.payload_bytes);
    for (const Frame& other : held_) {
      const ByteSpan theirs = other.payload.span();
      Check(ours.empty() || theirs.empty() || ours.data() + ours.size() <= theirs.data() ||
            theirs.data() + theirs.size() <= ours.data());
    }
    held_.push_back(std::move(frame));
  }

  ManualClock clock_;
  const std::shared_ptr<RetiredAddresses> retired_ = std::make_shared<RetiredAddresses>();
  std::unique_ptr<FabricEndpoint> peer_;
  std::unique_ptr<FabricMemory> memory_;
  std::unique_ptr<FabricRegion> region_;
  std::vector<Received> received_ = std::vector<Received>(64);
  FabricOptions options_;
  FabricCounters counters_;
  const std::shared_ptr<FabricMailbox> mailbox_ = std::make_shared<FabricMailbox>(FileDescriptor());
  std::unique_ptr<FabricPoller> poller_;

  ConnectionId connection_ = 1;
  uint64_t last_session_ = 0;
  std::optional<FabricHandshake> welcome_;  // the last
  std::optional<FabricHandshake> hello_;    // the same, by kConnector
  FabricEndpoint::Peer to_poller_ = 0;
  FabricOperation* waits_for_ = nullptr;
  bool is_cut_ = false;
  std::deque<Frame> held_;
  std::map<uint32_t, uint32_t> written_;  // that it did not give back: blocks by the first
};

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const ends = new bdn::Ends();
  ends->Run({data, size});
  return 0;
}
