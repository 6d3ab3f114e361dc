// A peer of the same machine writes anything into the memory that it shares with us, and says
// anything by its packets. A frame that is handed over lies within a segment of the peer's, has the
// bytes that its header says, and has no other owner; a payload that was sent to the peer is kept
// until it was released.

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/transport/shm/shm_channel.h"
#include "common/transport/shm/shm_socket.h"
#include "tests/fuzz/fuzz_input.h"

namespace bdn {
namespace {

constexpr size_t kSegmentBytes = 8192;

class Ring {
 public:
  Ring() {
    int fds[2];
    fuzz::Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    peer_ = FileDescriptor(fds[1]);
    arena_->Enable();
    auto mine = ShmChannel::MakeControl();
    theirs_ = *ShmChannel::MakeControl();
    channel_ =
        std::make_shared<ShmChannel>(FileDescriptor(fds[0]), *std::move(mine), theirs_, arena_);
  }

  void Run(fuzz::FuzzInput input) {
    while (!input.empty() && Step(&input)) continue;
    held_.clear();
  }

 private:
  ShmControl& theirs() { return *reinterpret_cast<ShmControl*>(theirs_->data()); }

  bool Step(fuzz::FuzzInput* input) {
    const auto kind = input->Get<uint8_t>();
    switch (kind % 8) {
      case 0:
        return AddSegment(input);
      case 1:
      case 2:
        Publish(input, /*is_right=*/kind % 16 < 8);
        return Receive();
      case 3: {  // a count of its choice
        const auto by = input->Get<uint16_t>();
        auto& count = kind % 16 < 8 ? theirs().published : theirs().released;
        count.store(count.load() + (by == 0xffff ? input->Get<uint64_t>() : by % 4));
        return Receive() && channel_->Reap();
      }
      case 4: {  // gives one back that we sent
        const uint64_t number = theirs().released.load();
        theirs().tokens[number % kShmSlots].store(input->Get<uint16_t>());
        theirs().released.store(number + 1);
        return channel_->Reap();
      }
      case 5:
        if (!held_.empty()) held_.erase(held_.begin() + input->Get<uint8_t>() % held_.size());
        return true;
      case 6:
        return Send(input->Get<uint16_t>() % 4096);
      default:
        return Say(input->Bytes(input->Get<uint8_t>()));
    }
  }

  // Any packet, as the owner of the channel reads it.
  bool Say(const std::vector<std::byte>& bytes) {
    if (bytes.empty()) return true;
    (void)SendPacket(peer_.get(), bytes);
    const Packet packet = ReceivePacket(channel_->socket());
    if (packet.result != Packet::Result::kPacket) return false;
    fuzz::Require(packet.size == bytes.size());
    if (const auto hello = ReadAs<ShmHello>(packet, ShmPacket::kHello)) {
      fuzz::Require(bytes.size() == sizeof(ShmHello));
    }
    if (const auto segment = ReadAs<ShmSegment>(packet, ShmPacket::kSegment)) {
      fuzz::Require(!channel_->AddSegment(*segment, FileDescriptor()).ok());  // none came with it
    }
    return true;
  }

  bool AddSegment(fuzz::FuzzInput* input) {
    if (segments_.size() >= 8) return true;
    const auto changed = input->Get<uint8_t>();
    const size_t bytes = changed == 0 ? input->Get<uint16_t>() : kSegmentBytes;
    auto memory = SharedMemory::Create("fuzz", std::max<size_t>(bytes, 1));
    fuzz::Require(memory.ok());
    const ShmSegment packet{
        .index = changed == 1 ? input->Get<uint8_t>() : static_cast<uint32_t>(segments_.size()),
        .bytes = changed == 2 ? input->Get<uint64_t>() : bytes};
    if (!channel_->AddSegment(packet, FileDescriptor(dup((*memory)->fd()))).ok()) return false;
    segments_.push_back(*std::move(memory));
    return true;
  }

  void Publish(fuzz::FuzzInput* input, bool is_right) {
    ShmFrame entry = {};
    if (is_right) {
      entry.bytes = input->Get<uint16_t>() % 64 * 8;
      entry.offset = input->Get<uint16_t>() % 1024 * 8;
      entry.segment = input->Get<uint8_t>() % 9;
      entry.token = input->Get<uint16_t>() % (kShmSlots + 1);
      FrameHeader header{.type = FrameType::kInit};
      header.payload_bytes = static_cast<uint32_t>(entry.bytes);
      entry.header = EncodeHeader(header);
    } else {
      const std::vector<std::byte> bytes = input->Bytes(sizeof(entry));
      if (!bytes.empty()) std::memcpy(&entry, bytes.data(), bytes.size());
    }
    const uint64_t number = theirs().published.load();
    std::memcpy(static_cast<void*>(&theirs().frames[number % kShmSlots]), &entry, sizeof(entry));
    theirs().published.store(number + 1);
  }

  // False: the peer has broken the rules, and is cut.
  bool Receive() {
    for (int i = 0; i < 4; ++i) {
      Frame frame;
      switch (channel_->Receive(&frame)) {
        case ShmChannel::ReceiveResult::kNothing:
          return true;
        case ShmChannel::ReceiveResult::kMalformed:
          continue;
        case ShmChannel::ReceiveResult::kNeedsSegment:
        case ShmChannel::ReceiveResult::kBroken:
          return false;
        case ShmChannel::ReceiveResult::kFrame:
          break;
      }
      const ByteSpan bytes = frame.payload.span();
      fuzz::Require(bytes.size() == frame.header.payload_bytes);
      std::byte sum{};
      for (const std::byte each : bytes) sum ^= each;
      fuzz::Require(sum == std::byte{});  // their segments are all zeros
      held_.push_back(std::move(frame));
    }
    return true;
  }

  bool Send(size_t bytes) {
    FrameHeader header{.type = FrameType::kInit};
    Buffer payload;
    if (bytes > 0) {
      payload = pool_.Get(bytes);
      std::memset(payload.data(), 0, payload.size());
    }
    const Frame frame = MakeFrame(header, std::move(payload), false);
    return channel_->Send(frame) != ShmChannel::SendResult::kBroken;
  }

  std::shared_ptr<ShmArena> arena_ = std::make_shared<ShmArena>();
  BufferPool pool_{arena_};
  FileDescriptor peer_;
  std::shared_ptr<SharedMemory> theirs_;
  std::shared_ptr<ShmChannel> channel_;
  std::vector<std::shared_ptr<SharedMemory>> segments_;
  std::deque<Frame> held_;
};

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Ring().Run({data, size});
  return 0;
}
