#include "common/transport/shm/shm_transport.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "common/base/secret.h"
#include "common/transport/shm/shm_socket.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

const std::string kSecret(32, 's');

std::string NewAddress() {
  static int last = 0;
  return absl::StrCat("shm://bdn-test-of-shm-", getpid(), "-", ++last);
}

class ShmTransportTest : public ::testing::Test {
 protected:
  ~ShmTransportTest() override {
    for (Transport* transport : {client_.get(), server_.get()}) {
      if (transport == nullptr) continue;
      transport->Close();
      transport->Join();
    }
  }
  ConnectionId Start(ShmOptions server_options = {}) {
    server_options.key = *PublicKey::FromBytes(RandomSecret());
    server_ = *ShmTransport::Make(server_options);
    client_ = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
    server_->Start(inbox_.Handler());
    client_->Start(back_.Handler());
    address_ = *server_->Listen(NewAddress());
    server_->Admit({{client_->public_key()}, kSecret});
    return *client_->Connect(address_, {.secret = kSecret});
  }

  Completions completions_;
  Inbox inbox_;
  Inbox back_;
  std::string address_;
  std::unique_ptr<ShmTransport> server_;
  std::unique_ptr<ShmTransport> client_;
};

TEST_F(ShmTransportTest, SendsOnceThereIsOneWhereNoDescriptorIsLeft) {
  const ConnectionId to_server = Start();
  client_->Send(to_server, FrameOf(1, 0), completions_.Expect());
  inbox_.WaitFor(1);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;  // those that are open stay
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  client_->Send(to_server, FrameOf(2, 100000), completions_.Expect());
  client_->Send(to_server, FrameOf(3, 0), completions_.Expect());
  EXPECT_GT(client_->stats().bytes_queued, 100000u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto arrived = inbox_.WaitFor(3);
  ExpectSameFrame(arrived.at(1).frame, FrameOf(2, 100000));
  ExpectSameFrame(arrived.at(2).frame, FrameOf(3, 0));
  for (const absl::Status& status : completions_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(client_->stats().bytes_queued, 0u);
}

TEST_F(ShmTransportTest, CopiesAPayloadOfOtherMemoryOnceForAllWhoGetIt) {
  const ConnectionId to_server = Start();
  Inbox others;
  auto other = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
  other->Start(others.Handler());
  server_->Admit({{client_->public_key(), other->public_key()}, kSecret});
  client_->Send(to_server, FrameOf(1, 0), completions_.Expect());
  other->Send(*other->Connect(address_, {.secret = kSecret}), FrameOf(2, 0), completions_.Expect());
  constexpr size_t kBytes = 100'000;
  const Frame value = FrameOf(3, kBytes);
  // Those who have got it keep it, in their inboxes.
  for (const Inbox::Item& from : inbox_.WaitFor(2)) {
    server_->Send(from.from, value, completions_.Expect());
  }
  ExpectSameFrame(back_.WaitFor(1).at(0).frame, value);
  ExpectSameFrame(others.WaitFor(1).at(0).frame, value);
  EXPECT_EQ(server_->bytes_copied(), kBytes);

  Frame lent = value;
  lent.payload = BufferPool(server_->memory()).Get(kBytes);
  std::memcpy(lent.payload.data(), value.payload.data(), kBytes);
  server_->Send(inbox_.WaitFor(2).at(0).from, lent, completions_.Expect());
  server_->Send(inbox_.WaitFor(2).at(0).from, FrameOf(4, kBytes), completions_.Expect());
  completions_.WaitForAll();
  EXPECT_EQ(server_->bytes_copied(), 2 * kBytes) << "the last one's, and not what the arena has";
  other->Close();
  other->Join();
}

TEST_F(ShmTransportTest, CutsWhoSendsMoreThanIsTaken) {
  const ConnectionId to_server = Start({.max_payload_bytes = 1000});
  client_->Send(to_server, FrameOf(1, 1000), completions_.Expect());
  inbox_.WaitFor(1);
  client_->Send(to_server, FrameOf(2, 1001), completions_.Expect());
  AwaitTrue([&] { return server_->stats().connections_cut == 1; });
  // It comes back, and what it sends then is taken; what it sent meanwhile may be lost.
  AwaitTrue([&] {
    client_->Send(to_server, FrameOf(3, 10), completions_.Expect());
    return inbox_.size() > 1;
  });
  EXPECT_EQ(inbox_.WaitFor(2).at(1).frame.header.step, 3u);
}

TEST_F(ShmTransportTest, RefusesWhoDoesNotKnowTheSecretOrIsNotOfTheRoster) {
  Start();
  auto stranger = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
  stranger->Start(back_.Handler());
  Completions ends;
  for (const std::string& secret : {kSecret, std::string(32, 'x'), std::string()}) {
    stranger->Send(*stranger->Connect(address_, {.secret = secret}), FrameOf(9, 10), ends.Expect());
  }
  AwaitTrue([&] { return server_->stats().connections_refused >= 6; });
  EXPECT_EQ(inbox_.size(), 0u);
  stranger->Close();
  stranger->Join();
  for (const absl::Status& status : ends.WaitForAll()) EXPECT_TRUE(absl::IsUnavailable(status));
}

TEST_F(ShmTransportTest, OutlivesGarbageOnItsSocket) {
  const ConnectionId to_server = Start();
  const std::string name = *ParseShmAddress(address_);
  for (size_t size : {size_t{1}, size_t{4}, sizeof(ShmHello) - 1, sizeof(ShmHello), size_t{5000}}) {
    const FileDescriptor socket = *ConnectTo(name);
    const std::vector<std::byte> garbage(size, std::byte{0x5a});
    EXPECT_TRUE(SendPacket(socket.get(), garbage));
    AwaitTrue([&] { return ReceivePacket(socket.get()).result == Packet::Result::kEnd; });
  }
  // One that would be let in, but without its memory.
  ShmHello hello{.secret_bytes = static_cast<uint32_t>(kSecret.size()),
                 .key = client_->public_key().bytes};
  std::copy(kSecret.begin(), kSecret.end(), hello.secret.begin());
  const FileDescriptor socket = *ConnectTo(name);
  EXPECT_TRUE(SendPacket(socket.get(), BytesOf(hello)));
  AwaitTrue([&] { return ReceivePacket(socket.get()).result == Packet::Result::kEnd; });
  client_->Send(to_server, FrameOf(1, 10), completions_.Expect());
  inbox_.WaitFor(1);
}

TEST_F(ShmTransportTest, GivesUpAHandshakeThatIsNotGoneOnWith) {
  Start({.handshake_timeout = absl::Milliseconds(20)});
  const FileDescriptor silent = *ConnectTo(*ParseShmAddress(address_));
  AwaitTrue([&] { return ReceivePacket(silent.get()).result == Packet::Result::kEnd; });
  EXPECT_GE(server_->stats().connections_refused, 1u);
}

TEST_F(ShmTransportTest, SaysWhoIsNotThere) {
  Start();
  EXPECT_TRUE(absl::IsNotFound(client_->ConnectNow("shm://bdn-test-nobody", {}).status()));
  const ConnectionId now = *client_->ConnectNow(address_, {.secret = kSecret});
  client_->Send(now, FrameOf(1, 10), completions_.Expect());
  inbox_.WaitFor(1);
  EXPECT_TRUE(client_->WasUp(now));
  const ConnectionId never = *client_->Connect("shm://bdn-test-nobody", {});
  EXPECT_FALSE(client_->WasUp(never));
}

}  // namespace
}  // namespace bdn
