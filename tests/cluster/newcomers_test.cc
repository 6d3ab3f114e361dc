#include "common/cluster/newcomers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/cluster/listen_address.h"
#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

// Connections over this machine, each with both of its ends.
class NewcomersTest : public testing::TestWithParam<const char*> {
 protected:
  struct Connection {
    FileDescriptor ours;
    FileDescriptor theirs;
    std::string peer;  // as gRPC has it
  };
  struct Address {
    sockaddr_storage bytes = {};
    socklen_t size = sizeof(bytes);
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  };

  NewcomersTest() : listener_(*OpenListeningSocket(std::string(GetParam()) + ":0")) {}

  Connection Connect() const {
    Address to;
    EXPECT_EQ(getsockname(listener_.get(), to.get(), &to.size), 0);
    Connection made;
    made.theirs = FileDescriptor(socket(to.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(made.theirs.get(), to.get(), to.size), 0);
    pollfd ready = {listener_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, -1), 1);
    made.ours = FileDescriptor(accept(listener_.get(), nullptr, nullptr));
    Address from;
    EXPECT_EQ(getsockname(made.theirs.get(), from.get(), &from.size), 0);
    in_port_t port = 0;  // at the same place in both kinds
    std::memcpy(&port, reinterpret_cast<char*>(&from.bytes) + sizeof(sa_family_t), sizeof(port));
    made.peer = absl::StrFormat(
        "%s:%d", from.bytes.ss_family == AF_INET ? "ipv4:127.0.0.1" : "ipv6:%5B::1%5D",
        ntohs(port));
    return made;
  }
  static bool IsCut(const Connection& connection) {
    pollfd cut = {connection.theirs.get(), POLLRDHUP, 0};
    return poll(&cut, 1, 0) == 1;
  }

  const FileDescriptor listener_;
  ManualClock clock_;
  Newcomers newcomers_{{.most = 2}, &clock_};
};

TEST_P(NewcomersTest, CutsTheOldestThatHasSaidNothingForTheNext) {
  std::vector<Connection> all;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(newcomers_.MakeRoom());
    all.push_back(Connect());
    newcomers_.Add(all.back().ours.get());
  }
  EXPECT_FALSE(newcomers_.MakeRoom()) << "none has had its time";
  clock_.Advance(absl::Milliseconds(600));
  EXPECT_TRUE(newcomers_.MakeRoom());
  EXPECT_TRUE(IsCut(all[0]));
  EXPECT_FALSE(IsCut(all[1]));
  EXPECT_EQ(newcomers_.counts().cut, 1u);
}

TEST_P(NewcomersTest, WaitsForWhoseTurnIsOurs) {
  std::vector<Connection> all;
  for (int i = 0; i < 2; ++i) {
    all.push_back(Connect());
    newcomers_.Add(all.back().ours.get());
    EXPECT_EQ(send(all.back().theirs.get(), "hello", 5, 0), 5);
    char said[5];
    EXPECT_EQ(recv(all.back().ours.get(), said, sizeof(said), MSG_WAITALL), 5);
  }
  clock_.Advance(absl::Milliseconds(600));
  EXPECT_FALSE(newcomers_.MakeRoom());
  clock_.Advance(absl::Milliseconds(1400));
  EXPECT_TRUE(newcomers_.MakeRoom());
}

TEST_P(NewcomersTest, WhoseCallWasLetInIsNone) {
  const Connection first = Connect();
  newcomers_.Add(first.ours.get());
  newcomers_.OnCall(first.peer, false);
  EXPECT_FALSE(newcomers_.empty());
  newcomers_.OnCall(first.peer, true);
  EXPECT_TRUE(newcomers_.empty());
}

TEST_P(NewcomersTest, CountsWhoEndsWithoutACall) {
  Connection first = Connect();
  Connection second = Connect();
  newcomers_.Add(first.ours.get());
  newcomers_.Add(second.ours.get());
  newcomers_.OnCall(second.peer, false);  // which is counted as what it is
  newcomers_.Sweep();
  EXPECT_EQ(newcomers_.counts().ended, 0u);
  first.theirs = FileDescriptor();
  second.theirs = FileDescriptor();
  while (!newcomers_.empty()) newcomers_.Sweep();
  EXPECT_EQ(newcomers_.counts().ended, 1u);
}

INSTANTIATE_TEST_SUITE_P(Of, NewcomersTest, testing::Values("127.0.0.1", "[::1]"));

}  // namespace
}  // namespace bdn
