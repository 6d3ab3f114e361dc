// Either end of a fabric is killed at any instant: the other goes on, and keeps nothing of it.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/base/file_descriptor.h"
#include "common/transport/fabric/fabric_host_names.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/zmq/zmq_transport.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

extern char** environ;

namespace bdn {
namespace {

// BDN_KILLS of the environment says how many; else few.
int NumKills() {
  const char* const asked = getenv("BDN_KILLS");
  return asked == nullptr ? 6 : atoi(asked);
}

// fabric_peer, and what it says. Killed when it goes.
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

  // Its first line; blocks until it comes, or the process has ended.
  std::string Line() {
    std::string line;
    char c;
    while (read(output_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Signal(int number) { kill(pid_, number); }
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

std::unique_ptr<FabricTransport> MakeFabric(const std::string& provider) {
  FabricOptions options;
  options.silence_timeout = absl::Seconds(1);
  options.endpoint.provider = provider;
  options.window_bytes = uint64_t{4} << 20;
  return *FabricTransport::Make(*MakeZmqTransport({.security = LinkSecurity::kOpen}), options);
}

class FabricKillTest : public ::testing::TestWithParam<const char*> {
 protected:
  ~FabricKillTest() override { RemoveFabricNamesOfTheDead(); }
};

// So long that any instant of a few frames' life is met.
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
  const std::string address = *server->Listen("tcp://127.0.0.1:0");
  size_t descriptors = 0;
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
    if (i == 1) descriptors = NumDescriptors();
  }
  AwaitTrue([&] { return NumDescriptors() <= descriptors + 4; });
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
  size_t descriptors = 0;
  for (int i = 0; i < NumKills(); ++i) {
    Completions done;
    PeerProcess server({"server", GetParam()});
    const ConnectionId to =
        *client->Connect(server.Line(), {LinkSecurity::kOpen, {}, "", "", GetParam()});
    size_t before;
    {
      MutexLock lock(&mu);
      before = num_back;
    }
    for (Step step = 0; step < 12; ++step) {
      client->Send(to, FrameOf(step, step % 2 == 0 ? 300000 : 2000), done.Expect());
    }
    {
      const absl::Time deadline = PatienceEnds();
      MutexLock lock(&mu);
      while (num_back == before && kClock.WaitUntil(&changed, &mu, deadline)) {
      }
      ASSERT_GT(num_back, before);
    }
    SpendUpTo(absl::Milliseconds(5), &random);
    server.Kill();
    for (Step step = 0; step < 4; ++step) client->Send(to, FrameOf(step, 300000), done.Expect());
    client->Disconnect(to);
    done.WaitForAll();
    AwaitTrue([&] { return client->num_sessions() == 0; });
    if (i == 1) descriptors = NumDescriptors();
  }
  AwaitTrue([&] { return NumDescriptors() <= descriptors + 4; });
  client->Close();
  client->Join();
}

bool HasNameInMemory(pid_t process) {
  const std::string end = absl::StrFormat("-%d:%d:0", process, geteuid());
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/dev/shm"), closedir);
  while (const dirent* const entry = readdir(directory.get())) {
    if (absl::StartsWith(entry->d_name, "bdn-") && absl::EndsWith(entry->d_name, end)) return true;
  }
  return false;
}

TEST(FabricKill, WhoComesNextRemovesWhatTheKilledHaveLeftInMemory) {
  PeerProcess lives({"server", "shm"});
  lives.Line();
  PeerProcess dies({"server", "shm"});
  dies.Line();
  const pid_t dead = dies.pid();
  dies.Kill();
  EXPECT_TRUE(HasNameInMemory(dead));
  const auto endpoint = FabricEndpoint::Open({.provider = "shm"});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_FALSE(HasNameInMemory(dead));
  EXPECT_TRUE(HasNameInMemory(lives.pid()));
  lives.Kill();
  EXPECT_GE(RemoveFabricNamesOfTheDead(), 1u);
  EXPECT_FALSE(HasNameInMemory(lives.pid()));
}

// A client whose server is away for a while, and what it does meanwhile.
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
    to_ = *client_->Connect(address, {LinkSecurity::kOpen, {}, "", "", GetParam()});
  }
  void Send(size_t bytes) { client_->Send(to_, FrameOf(1, bytes), done_.Expect()); }
  // What was on its way may be lost: so it is sent again, as those above a transport do.
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
  // The silence ends the meeting, and the next begins.
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

INSTANTIATE_TEST_SUITE_P(Providers, FabricAbsenceTest, ::testing::Values("tcp;ofi_rxm", "shm"),
                         [](const auto& info) {
                           return std::string(info.param) == "shm" ? "Shm" : "Tcp";
                         });
INSTANTIATE_TEST_SUITE_P(Providers, FabricKillTest, ::testing::Values("tcp;ofi_rxm", "shm"),
                         [](const auto& info) {
                           return std::string(info.param) == "shm" ? "Shm" : "Tcp";
                         });

}  // namespace
}  // namespace bdn
