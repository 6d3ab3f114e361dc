#include "cli/machine_speed.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "cli/kernel_roof.h"

namespace bdn::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr size_t kCopiedBytes = size_t{64} << 20;  // more than caches hold
constexpr Seconds kCopying{0.2};
constexpr size_t kMostCopies = 64;
constexpr size_t kTensorBytes = size_t{4} << 20;
constexpr int kCodecSteps = 3;
constexpr Seconds kLooping{0.1};

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void MeasureCopies(MachineFigures* figures) {
  std::vector<uint8_t> from(kCopiedBytes, 1);
  std::vector<uint8_t> to(kCopiedBytes, 2);
  std::vector<double> rates;
  const auto begin = Clock::now();
  const double cpu_begin = ThreadSeconds();
  do {
    const double before = ThreadSeconds();
    memcpy(to.data(), from.data(), kCopiedBytes);
    rates.push_back(static_cast<double>(kCopiedBytes) / std::max(ThreadSeconds() - before, 1e-9));
    std::swap(from, to);  // a copy that nobody reads could be left out
  } while (rates.size() < kMostCopies && Clock::now() - begin < kCopying);
  const Seconds wall = Clock::now() - begin;
  figures->memory = MedianOf(rates);
  figures->share = std::min(1.0, (ThreadSeconds() - cpu_begin) / wall.count());
}

double MeasureCodec(const std::string& push, const std::string& pull) {
  const std::unique_ptr<KernelRoof> roof = KernelRoof::Start({.workers = 1,
                                                              .tensors = 1,
                                                              .bytes = kTensorBytes,
                                                              .partition_bytes = kTensorBytes,
                                                              .push = push,
                                                              .pull = pull});
  if (roof == nullptr || !roof->Step()) return 0;  // the first step is slower: it fills caches
  std::vector<double> rates;
  for (int i = 0; i < kCodecSteps; ++i) {
    const auto cost = roof->Step();
    if (!cost || cost->cpu_seconds <= 0) return 0;
    rates.push_back(static_cast<double>(kTensorBytes) / cost->cpu_seconds);
  }
  return MedianOf(std::move(rates));
}

// Returns both ends of a TCP connection over loopback; -1 twice where there is none.
std::pair<int, int> ConnectedEnds() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int far = -1;
  if (listener >= 0 && near >= 0 && bind(listener, generic, size) == 0 &&
      listen(listener, 1) == 0 && getsockname(listener, generic, &size) == 0 &&
      connect(near, generic, size) == 0) {
    far = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  }
  if (listener >= 0) close(listener);
  if (far >= 0) return {near, far};
  if (near >= 0) close(near);
  return {-1, -1};
}

double MeasureLoopback() {
  const auto [sender, receiver] = ConnectedEnds();
  if (sender < 0) return 0;
  std::thread sending([sender = sender] {
    const std::vector<char> block(size_t{256} << 10);
    const auto begin = Clock::now();
    while (Clock::now() - begin < kLooping) {
      if (send(sender, block.data(), block.size(), MSG_NOSIGNAL) <= 0) break;
    }
    shutdown(sender, SHUT_WR);
  });
  std::vector<char> block(size_t{256} << 10);
  double bytes = 0;
  const auto begin = Clock::now();
  for (ssize_t got; (got = recv(receiver, block.data(), block.size(), 0)) > 0;) {
    bytes += static_cast<double>(got);
  }
  const Seconds taken = Clock::now() - begin;
  sending.join();
  close(sender);
  close(receiver);
  return 8 * bytes / taken.count();
}

}  // namespace

double LoadOfMachine() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

MachineFigures MeasureMachine(const std::string& push, const std::string& pull, double load) {
  MachineFigures figures = {.load = load};
  cpu_set_t set;
  CPU_ZERO(&set);
  figures.processors =
      sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
  MeasureCopies(&figures);
  figures.codec = MeasureCodec(push, pull);
  figures.loopback = MeasureLoopback();
  return figures;
}

}  // namespace bdn::cli
