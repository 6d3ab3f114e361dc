#include "common/base/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "common/base/daemon.h"
#include "tests/support/manual_clock.h"

// The messages to a supervisor, at a socket such as systemd's, and the effect of end signals on the
// loop.

namespace bdn {
namespace {

// A listener at the socket that NOTIFY_SOCKET names.
class Listener {
 public:
  explicit Listener(const std::string& address) {
    sockaddr_un place = {};
    place.sun_family = AF_UNIX;
    std::memcpy(place.sun_path, address.data(), address.size());
    socklen_t length = sizeof(place);
    if (address[0] == '@') {
      place.sun_path[0] = '\0';
      length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    }
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&place), length), 0);
  }
  ~Listener() { close(fd_); }

  // The next message; "" where there is none.
  std::string Next() const {
    char message[256];
    const ssize_t size = recv(fd_, message, sizeof(message), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(message, static_cast<size_t>(size));
  }

 private:
  const int fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
};

std::string AbstractAddress() { return "@bdn-supervisor-test-" + std::to_string(getpid()); }

TEST(Supervisor, HearsOneMessageACall) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("bdn-notify-" + std::to_string(getpid())))
          .string();
  for (const std::string& address : {AbstractAddress(), path}) {
    const Listener listener(address);
    const Supervisor supervisor({.notify_socket = address});
    supervisor.Ready();
    supervisor.Status("waiting for server 1\nREADY=1");
    supervisor.Alive();
    supervisor.Stopping();
    EXPECT_EQ(listener.Next(), "READY=1");
    EXPECT_EQ(listener.Next(), "STATUS=waiting for server 1");
    EXPECT_EQ(listener.Next(), "WATCHDOG=1");
    EXPECT_EQ(listener.Next(), "STOPPING=1");
    EXPECT_EQ(supervisor.alive_interval(), absl::InfiniteDuration());
  }
  std::filesystem::remove(path);
}

TEST(Supervisor, IsToldTwiceAsOftenAsItWaits) {
  const Listener listener(AbstractAddress());
  const auto interval = [](const std::string& microseconds, const std::string& pid) {
    return Supervisor({AbstractAddress(), microseconds, pid}).alive_interval();
  };
  EXPECT_EQ(interval("30000000", ""), absl::Seconds(15));
  EXPECT_EQ(interval("30000000", std::to_string(getpid())), absl::Seconds(15));
  EXPECT_EQ(interval("30000000", "1"), absl::InfiniteDuration()) << "another process's watchdog";
  for (const char* wrong : {"", "0", "-5", "soon"}) {
    EXPECT_EQ(interval(wrong, ""), absl::InfiniteDuration()) << wrong;
  }
}

TEST(Supervisor, WhoIsNotThereIsToldNothing) {
  for (const std::string& address : {std::string(), std::string("@"), std::string("relative"),
                                     std::string("/nonexistent/notify"), std::string(200, '/')}) {
    const Supervisor supervisor({.notify_socket = address, .watchdog_usec = "1000000"});
    supervisor.Ready();
    EXPECT_EQ(supervisor.alive_interval(), absl::InfiniteDuration()) << address;
  }
}

// The loop changes the process's signals, so each of these tests runs in a process of its own,
// whose exit code is the number of its last expectation.
class MainLoopDeathTest : public ::testing::Test {
 protected:
  MainLoopDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void Expect(bool holds, int line) {
  if (!holds) _exit(line % 256);
}
#define BDN_EXPECT(condition) Expect(condition, __LINE__)

TEST_F(MainLoopDeathTest, WakesByEventByTimeAndByTheFirstSignal) {
  const auto body = [] {
    const SteadyClock clock;
    MainLoop loop(&clock);
    const int event_fd = eventfd(0, EFD_CLOEXEC);
    BDN_EXPECT(loop.Wait(event_fd, clock.Now(), nullptr) == MainLoop::Woken::kByTime);
    eventfd_write(event_fd, 1);
    BDN_EXPECT(loop.Wait(event_fd, absl::InfiniteFuture(), nullptr) == MainLoop::Woken::kByEvent);
    BDN_EXPECT(loop.signal() == nullptr);
    eventfd_t count;
    eventfd_read(event_fd, &count);
    kill(getpid(), SIGTERM);
    BDN_EXPECT(loop.Wait(event_fd, absl::InfiniteFuture(), nullptr) == MainLoop::Woken::kBySignal);
    BDN_EXPECT(std::string(loop.signal()) == "SIGTERM");
    BDN_EXPECT(loop.Wait(event_fd, clock.Now(), nullptr) == MainLoop::Woken::kByTime);
    _exit(0);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

TEST_F(MainLoopDeathTest, TheSecondSignalEndsTheProcess) {
  const auto body = [](int first, int second) {
    const SteadyClock clock;
    MainLoop loop(&clock);
    const int event_fd = eventfd(0, EFD_CLOEXEC);
    kill(getpid(), first);
    BDN_EXPECT(loop.Wait(event_fd, absl::InfiniteFuture(), nullptr) == MainLoop::Woken::kBySignal);
    kill(getpid(), second);
    _exit(0);
  };
  EXPECT_EXIT(body(SIGTERM, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_EXIT(body(SIGINT, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
  EXPECT_EXIT(body(SIGTERM, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "");
}

TEST_F(MainLoopDeathTest, TheSupervisorHearsOfItOnlyWhileThePulseReturns) {
  const auto body = [] {
    const std::string address = AbstractAddress();
    const Listener listener(address);
    setenv("NOTIFY_SOCKET", address.c_str(), 1);
    setenv("WATCHDOG_USEC", "2000000", 1);
    ManualClock clock;
    MainLoop loop(&clock);
    const int event_fd = eventfd(1, EFD_CLOEXEC);
    int pulses = 0;
    const auto turn = [&] {
      loop.Wait(event_fd, absl::InfiniteFuture(), [&] {
        BDN_EXPECT(listener.Next().empty());  // not before it has returned
        ++pulses;
      });
    };
    turn();
    BDN_EXPECT(pulses == 1 && listener.Next() == "WATCHDOG=1");
    clock.Advance(absl::Milliseconds(999));
    turn();
    BDN_EXPECT(pulses == 1 && listener.Next().empty());
    clock.Advance(absl::Milliseconds(1));
    turn();
    BDN_EXPECT(pulses == 2 && listener.Next() == "WATCHDOG=1");
    _exit(0);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace bdn
