// A process sends any bytes to its host daemon, and a daemon to its processes: in any pieces, with
// descriptors or without. Each message is one of proto/host.proto or ends the connection; blocks
// that are taken lie within memory that is mapped, and a message that was read says the same when
// it is written again.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cluster/control_messages.h"
#include "common/cluster/membership.h"
#include "proto/host.pb.h"
#include "tests/fuzz/fuzz_input.h"
#include "worker/host/host_channel.h"
#include "worker/host/host_messages.h"

namespace bdn {
namespace {

namespace host = bandoneon::host;

// A sealed memfd, as peers make them, or one that is not.
FileDescriptor MakeMemory(uint64_t bytes, bool is_sealed) {
  FileDescriptor fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  fuzz::Require(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (is_sealed) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fd;
}

class Process {
 public:
  Process() {
    int fds[2];
    fuzz::Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    peer_ = FileDescriptor(fds[1]);
    channel_ = std::make_unique<HostChannel>(FileDescriptor(fds[0]), std::make_shared<ShmArena>(),
                                             EncodeSegmentToProcess);
  }

  void Run(fuzz::FuzzInput input) {
    const bool is_daemon = input.Get<uint8_t>() % 2 == 0;
    while (!input.empty()) {
      const auto kind = input.Get<uint8_t>();
      FileDescriptor fd;
      if (kind % 4 == 0) fd = MakeMemory(input.Get<uint16_t>(), kind % 8 == 0);
      std::vector<std::byte> bytes = input.Bytes(input.Get<uint16_t>());
      if (kind % 3 != 0) {  // with the length that it has
        std::vector<std::byte> framed(4);
        StoreLittle(framed, 0, static_cast<uint32_t>(bytes.size()));
        framed.insert(framed.end(), bytes.begin(), bytes.end());
        bytes = std::move(framed);
      }
      if (!Say(bytes, fd)) return;
      for (;;) {
        const auto message = channel_->Receive();
        if (!message.ok()) return;
        if (!message->has_value()) break;
        if (is_daemon ? !TakeAs<host::ToDaemon>(**message) : !TakeAs<host::ToProcess>(**message)) {
          return;
        }
      }
    }
  }

 private:
  bool Say(const std::vector<std::byte>& bytes, const FileDescriptor& fd) const {
    iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd.is_open() && !bytes.empty()) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int number = fd.get();
      std::memcpy(CMSG_DATA(header), &number, sizeof(number));
    }
    return bytes.empty() || sendmsg(peer_.get(), &message, MSG_NOSIGNAL) >= 0;
  }

  template <typename Message>
  bool TakeAs(const std::string& text) {
    Message message;
    if (!message.ParseFromString(text)) return false;
    Message again;
    fuzz::Require(again.ParseFromString(message.SerializeAsString()));
    return Take(message);
  }
  bool Take(const host::ToDaemon& message) {
    if (message.has_hello()) (void)ParseHostCodec(message.hello().codec());
    if (message.has_segment()) return AddSegment(message.segment());
    for (const host::Push& push : message.pushes().pushes()) Look(push.data());
    const host::Call& call = message.call();
    Look(call.broadcast().data());
    Look(call.state().data());
    const auto asked = Read(call.state());
    if (asked.ok()) {  // and says the same when it is written again
      host::StateCall message_again;
      Write(*asked, &message_again);
      const auto again = Read(message_again);
      fuzz::Require(again.ok() && again->what == asked->what && again->where == asked->where &&
                    again->link_part == asked->link_part &&
                    again->server_part == asked->server_part && again->step == asked->step &&
                    again->rule == asked->rule &&
                    std::ranges::equal(again->subjects(), asked->subjects()));
    }
    if (call.has_declare()) (void)Read(call.declare());
    return true;
  }
  bool Take(const host::ToProcess& message) {
    if (message.has_segment()) return AddSegment(message.segment());
    Look(message.ended().left_out());
    const Rank rank = message.welcome().rank();
    const int joined = static_cast<int>(message.welcome().size() % (kMostProcesses + 1));
    for (const host::Presence& who : {message.presence(), message.welcome().presence()}) {
      const auto presence = Read(who, rank, joined);
      if (!presence.ok()) continue;
      fuzz::Require(presence->size > 0 && presence->first_rank >= 0 &&
                    presence->first_rank <= rank &&
                    presence->size <= joined - presence->first_rank);
      host::Presence again;
      Write(*presence, &again);
      fuzz::Require(*Read(again, rank, joined) == *presence);
    }
    Look(message.answer().data());
    for (const auto& tensor : message.answer().tensors()) Look(tensor.result());
    for (const host::Status& status : {message.failed(), message.ended().status(),
                                       message.answer().status(), message.welcome().refused()}) {
      host::Status again;
      Write(Read(status), &again);
      fuzz::Require(Read(again) == Read(status));
    }
    return true;
  }
  bool AddSegment(const host::Segment& segment) {
    return channel_->AddSegment(segment.index(), segment.bytes()).ok();
  }
  // All of it can be read.
  void Look(const host::Place& message) {
    const HostPlace place = Read(message);
    const auto bytes = channel_->Resolve(place, place.bytes);
    if (!bytes.ok()) return;
    fuzz::Require(bytes->span.size() == place.bytes);
    std::byte sum{};
    for (const std::byte each : bytes->span) sum ^= each;
    fuzz::Require(sum == std::byte{});
  }

  FileDescriptor peer_;
  std::unique_ptr<HostChannel> channel_;
};

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Process().Run({data, size});
  return 0;
}
