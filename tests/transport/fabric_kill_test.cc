// Tests that kill either end of a fabric at any instant: the other end goes on, and keeps nothing
// of it.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/zmq/zmq_transport.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

extern char** environ;

namespace bdn {
namespace {

// Returns the number of kills: BDN_KILLS of the environment, or a few.
int NumKills() {
  const char* const asked = getenv("BDN_KILLS");
  return asked == nullptr ? 6 : atoi(asked);
}

// A process of fabric_peer, with its output. The destructor kills it.
class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> args) {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    output_ = FileDescriptor(fds[0]);
    const FileDescriptor input(fds[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
    args.insert(args.begin(), BDN_FABRIC_PEER);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, BDN_FABRIC_PEER, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~PeerProcess() { Kill(); }

  // Returns its first line; blocks until the line comes or the process has ended.
  std::string Line() {
    std::string line;
    char c;
    while (read(output_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Signal(int number) { kill(pid_, number); }
  // Stops the process, and returns once it stands still.
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  FileDescriptor output_;
};

size_t NumDescriptors() {
  size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// The resources of this process of which a peer's death must not leave more.
struct Held {
  size_t descriptors = NumDescriptors();
  size_t regions = FabricRegion::NumAlive();
};
void AwaitNoMoreThan(const Held& before) {
  AwaitTrue([&] {
    const Held now;
    return now.descriptors <= before.descriptors + 4 && now.regions <= before.regions;
  });
}

Peer PeerOver(const std::string& url, const std::string& provider) {
  Peer peer = PeerAt(url);
  peer.endpoints.push_back({std::string(kFabricScheme), provider});
  return peer;
}

std::unique_ptr<FabricTransport> MakeFabric(const std::string& provider) {
  FabricOptions options;
  options.silence_timeout = absl::Seconds(1);
  options.endpoint.provider = provider;
  options.window_bytes = uint64_t{4} << 20;
  return *FabricTransport::Make(*MakeZmqTransport({.security = LinkSecurity::kOpen}), options);
}

class FabricKillTest : public ::testing::TestWithParam<const char*> {
 protected:
  ~FabricKillTest() override {
    EXPECT_EQ(FabricRegion::NumAlive(), 0u);  // the test's transports are destroyed
  }
};

// Waits for a random time of `most` at most, so that kills meet any instant in the life of a few
// frames.
void SpendUpTo(absl::Duration most, std::mt19937_64* random) {
  const absl::Time until = kClock.Now() + most * (static_cast<double>((*random)() % 1000) / 1000);
  while (kClock.Now() < until) std::this_thread::yield();
}

TEST_P(FabricKillTest, AServerOutlivesItsClients) {
  std::mt19937_64 random(41);
  Mutex mu;
  size_t num_gone = 0;
  const auto server = MakeFabric(GetParam());
  server->Start(
      [&](ConnectionId from, Frame frame) {
        server->Send(from, std::move(frame), [](const absl::Status&) {});
      },
      [&](ConnectionId) {
        MutexLock lock(&mu);
        ++num_gone;
      });
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  Held held;
  for (int i = 0; i < NumKills(); ++i) {
    PeerProcess client({"client", GetParam(), address});
    ASSERT_EQ(client.Line(), "back") << i;
    SpendUpTo(absl::Milliseconds(20), &random);
    client.Kill();
    AwaitTrue([&] {
      MutexLock lock(&mu);
      return num_gone == static_cast<size_t>(i + 1);
    });
    AwaitTrue([&] { return server->num_sessions() == 0; });
    if (i == 1) held = Held();
  }
  AwaitNoMoreThan(held);
  server->Close();
  server->Join();
}

TEST_P(FabricKillTest, AClientOutlivesItsServers) {
  std::mt19937_64 random(43);
  const auto client = MakeFabric(GetParam());
  Mutex mu;
  CondVar changed;
  size_t num_back = 0;
  client->Start([&](ConnectionId, const Frame&) {
    MutexLock lock(&mu);
    ++num_back;
    changed.SignalAll();
  });
  Held held;
  for (int i = 0; i < NumKills(); ++i) {
    Completions done;
    PeerProcess server({"server", GetParam()});
    const ConnectionId to = *client->Connect(PeerOver(server.Line(), GetParam()));
    size_t before;
    {
      MutexLock lock(&mu);
      before = num_back;
    }
    // A frame on its way may be lost, so it is sent again, as the users of a transport do.
    const absl::Time deadline = PatienceEnds();
    for (bool is_back = false; !is_back;) {
      ASSERT_LT(kClock.Now(), deadline) << i;
      for (Step step = 0; step < 12; ++step) {
        client->Send(to, FrameOf(step, step % 2 == 0 ? 300000 : 2000), done.Expect());
      }
      const absl::Time again = kClock.Now() + absl::Milliseconds(500);
      MutexLock lock(&mu);
      while (num_back == before && kClock.WaitUntil(&changed, &mu, again)) {
      }
      is_back = num_back > before;
    }
    SpendUpTo(absl::Milliseconds(5), &random);
    server.Kill();
    for (Step step = 0; step < 4; ++step) client->Send(to, FrameOf(step, 300000), done.Expect());
    client->Disconnect(to);
    done.WaitForAll();
    AwaitTrue([&] { return client->num_sessions() == 0; });
    if (i == 1) held = Held();
  }
  AwaitNoMoreThan(held);
  client->Close();
  client->Join();
}

// One end with two peers. One of them is killed while a long write to it is on its way.
class FabricBystanderTest : public FabricKillTest {
 protected:
  FabricBystanderTest() : here_(MakeFabric(GetParam())) {
    here_->Start([this](ConnectionId from, const Frame&) {
      MutexLock lock(&mu_);
      ++num_from_[from];
    });
  }
  ~FabricBystanderTest() override {
    here_->Close();
    here_->Join();
  }
  size_t num_from(ConnectionId peer) {
    MutexLock lock(&mu_);
    return num_from_[peer];
  }
  // Returns a connection on which something came, other than `other`.
  ConnectionId AwaitPeer(ConnectionId other = 0) {
    ConnectionId found = 0;
    AwaitTrue([&] {
      MutexLock lock(&mu_);
      for (const auto& [peer, count] : num_from_) {
        if (peer != other) found = peer;
      }
      return found != 0;
    });
    return found;
  }
  // Sends a frame there, and waits until it has left and one has come back. Sends again where one
  // was lost.
  void ExpectExchange(ConnectionId peer) {
    const size_t before = num_from(peer);
    const auto num_sent = std::make_shared<std::atomic<int>>(0);
    absl::Time next = kClock.Now();
    AwaitTrue([&] {
      if (kClock.Now() >= next) {
        here_->Send(peer, FrameOf(1, 300000), [num_sent](const absl::Status& sent) {
          if (sent.ok()) ++*num_sent;
        });
        next = kClock.Now() + absl::Milliseconds(200);
      }
      return *num_sent > 0 && num_from(peer) > before;
    });
  }
  ConnectionId Meet(PeerProcess* server) {
    const ConnectionId connection = *here_->Connect(PeerOver(server->Line(), GetParam()));
    ExpectExchange(connection);
    return connection;
  }
  void KillInTheMiddle(PeerProcess* peer, ConnectionId connection) {
    Completions done;
    peer->Stop();
    here_->Send(connection, FrameOf(2, 300000), done.Expect());
    peer->Kill();
    done.WaitForAll();
  }

  Mutex mu_;
  std::map<ConnectionId, size_t> num_from_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FabricTransport> here_;
};

TEST_P(FabricBystanderTest, AClientGoesOnWithTheServersThatLive) {
  PeerProcess lives({"server", GetParam()});
  PeerProcess dies({"server", GetParam()});
  const ConnectionId to_living = Meet(&lives);
  const ConnectionId to_dying = Meet(&dies);
  KillInTheMiddle(&dies, to_dying);
  here_->Disconnect(to_dying);
  for (int i = 0; i < 4; ++i) ExpectExchange(to_living);
}

TEST_P(FabricBystanderTest, AServerGoesOnWithTheClientsThatLive) {
  const std::string address = ListenAt(here_.get(), "tcp://127.0.0.1:0");
  PeerProcess lives({"client", GetParam(), address});
  const ConnectionId living = AwaitPeer();
  PeerProcess dies({"client", GetParam(), address});
  const ConnectionId dying = AwaitPeer(living);
  KillInTheMiddle(&dies, dying);
  for (int i = 0; i < 4; ++i) ExpectExchange(living);
}

// A client whose server does not answer for a while.
class FabricAbsenceTest : public FabricKillTest {
 protected:
  FabricAbsenceTest() : client_(MakeFabric(GetParam())) {
    client_->Start([this](ConnectionId, const Frame&) {
      MutexLock lock(&mu_);
      ++num_back_;
    });
  }
  ~FabricAbsenceTest() override {
    client_->Close();
    client_->Join();
  }
  size_t num_back() {
    MutexLock lock(&mu_);
    return num_back_;
  }
  void Connect(const std::string& address) {
    to_ = *client_->Connect(PeerOver(address, GetParam()));
  }
  void Send(size_t bytes) { client_->Send(to_, FrameOf(1, bytes), done_.Expect()); }
  // A frame on its way may be lost, so it is sent again, as the users of a transport do.
  void ExpectComesThrough() {
    const size_t before = num_back();
    absl::Time next = kClock.Now();
    AwaitTrue([&] {
      if (kClock.Now() >= next) {
        Send(300000);
        next = kClock.Now() + absl::Milliseconds(200);
      }
      return num_back() > before;
    });
  }

  Completions done_;
  Mutex mu_;
  size_t num_back_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<FabricTransport> client_;
  ConnectionId to_ = 0;
};

TEST_P(FabricAbsenceTest, AServerThatIsStoppedIsMetAgainWhenItGoesOn) {
  PeerProcess server({"server", GetParam()});
  Connect(server.Line());
  ExpectComesThrough();
  server.Signal(SIGSTOP);
  const uint64_t met = client_->num_meetings();
  Send(300000);
  // The silence ends the meeting, and the next one begins.
  AwaitTrue([&] { return client_->num_meetings() > met; });
  server.Signal(SIGCONT);
  ExpectComesThrough();
}

TEST_P(FabricAbsenceTest, AServerThatIsStartedAgainAtItsAddressIsMetAnew) {
  std::string address;
  {
    PeerProcess first({"server", GetParam()});
    address = first.Line();
    Connect(address);
    ExpectComesThrough();
  }
  PeerProcess second({"server", GetParam(), address});
  ASSERT_EQ(second.Line(), address);
  ExpectComesThrough();
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricAbsenceTest, ::testing::Values("tcp;ofi_rxm"),
                         [](const auto&) { return "Tcp"; });
INSTANTIATE_TEST_SUITE_P(Providers, FabricBystanderTest, ::testing::Values("tcp;ofi_rxm"),
                         [](const auto&) { return "Tcp"; });
INSTANTIATE_TEST_SUITE_P(Providers, FabricKillTest, ::testing::Values("tcp;ofi_rxm"),
                         [](const auto&) { return "Tcp"; });

}  // namespace
}  // namespace bdn
