// A connector over shared memory says anything, with any descriptor: one that is admitted has shown
// a CURVE key and the secret, and has given memory that can be read as an end's is.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/transport/shm/shm_channel.h"
#include "common/transport/shm/shm_listener.h"
#include "common/transport/shm/shm_socket.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

constexpr char kSecret[] = "the secret";

PublicKey Key() {
  PublicKey key;
  key.bytes.fill(7);
  return key;
}

class Door {
 public:
  Door() {
    InitLog(LogLevel::kOff, "fuzz");
    options_.security = LinkSecurity::kAuthenticated;
    auto socket = ListenAt(name_);
    fuzz::Require(socket.ok());
    listener_.Add(*std::move(socket));
    listener_.SetAdmission({.keys = {Key()}, .secret = kSecret});
  }

  void Run(fuzz::FuzzInput input) {
    clock_.Advance(absl::Minutes(1));  // the door rests after refusals
    listener_.OnTime(clock_.Now());
    auto peer = ConnectTo(name_);
    fuzz::Require(peer.ok());
    guests_.clear();
    while (!input.empty()) {
      const auto kind = input.Get<uint8_t>();
      ShmHello hello;
      hello.key = Key().bytes;
      hello.secret_bytes = sizeof(kSecret) - 1;
      std::memcpy(hello.secret.data(), kSecret, sizeof(kSecret) - 1);
      std::vector<std::byte> said(BytesOf(hello).begin(), BytesOf(hello).end());
      bool is_right = true;
      if (kind % 2 != 0) {  // one byte is another
        const size_t at = input.Get<uint8_t>() % said.size();
        const auto value = static_cast<std::byte>(input.Get<uint8_t>());
        // The bytes behind the secret have no meaning.
        is_right = said[at] == value || at >= offsetof(ShmHello, secret) + sizeof(kSecret) - 1;
        said[at] = value;
      }
      if (kind % 8 == 7) {
        said = input.Bytes(input.Get<uint16_t>() % 512);
        is_right = false;
      }
      FileDescriptor memory;
      const bool has_memory = kind % 4 < 2;
      uint64_t bytes = sizeof(ShmControl);
      if (has_memory) {
        if (kind % 32 < 16) bytes += input.Get<uint16_t>();
        memory = FileDescriptor(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        fuzz::Require(ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
        if (kind % 64 < 32) fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
      }
      if (!said.empty()) (void)SendPacket(peer->get(), said, memory.get());
      Turn();
      fuzz::Require(guests_.empty() || (is_right && has_memory));
      if (!guests_.empty()) break;
    }
    for (const ShmListener::Guest& guest : guests_) {
      fuzz::Require(guest.key == Key() && guest.peers->size() == sizeof(ShmControl));
      std::byte sum{};
      for (size_t i = 0; i < guest.peers->size(); i += 4096) sum ^= guest.peers->data()[i];
      fuzz::Require(sum == std::byte{});
    }
    guests_.clear();
    peer = FileDescriptor();
    Turn();
  }

 private:
  void Turn() {
    for (int i = 0; i < 3; ++i) {
      poller_.Wait(0);
      poller_.Run();
    }
  }

  const std::string name_ = absl::StrFormat("bdn-fuzz-hello-%d", getpid());
  ManualClock clock_;
  ShmOptions options_;
  TransportCounters counters_;
  LimitedLog log_{&clock_};
  FdPoller poller_{FileDescriptor(epoll_create1(EPOLL_CLOEXEC))};
  std::vector<ShmListener::Guest> guests_;
  ShmListener listener_{
      {.options = &options_,
       .clock = &clock_,
       .poller = &poller_,
       .counters = &counters_,
       .log = &log_,
       .on_guest = [this](ShmListener::Guest guest) { guests_.push_back(std::move(guest)); }}};
};

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const door = new bdn::Door;
  door->Run({data, size});
  return 0;
}
