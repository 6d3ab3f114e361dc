// Bytes a second of each transport, one way, between threads of one process, next to memcpy in the
// same run; round trips of a header alone and of 4 KiB; and what an idle pair of transports costs.
//
//   transport_bench [--iterations N]     N rounds over all cases; medians are printed (default 5)

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/transport/loopback.h"
#include "common/transport/shm/shm_transport.h"
#include "common/transport/zmq/malloc_tuning.h"
#include "common/transport/zmq/zmq_transport.h"
#include "tests/bench/bench_tools.h"

namespace bdn {
namespace {

constexpr size_t kBytesASample = size_t{256} << 20;
constexpr size_t kBytesInFlight = size_t{8} << 20;
constexpr int kRoundTrips = 500;
constexpr size_t kEchoedBytes = 4096;

double Seconds(const std::function<void()>& work) {
  const absl::Time start = absl::Now();
  work();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

// A listener that counts, or echoes what is small; and connections to it.
class Pair {
 public:
  Pair(std::unique_ptr<Transport> server, std::unique_ptr<Transport> client,
       const std::string& address, int connections)
      : server_(std::move(server)), client_(std::move(client)) {
    server_->Start([this](ConnectionId from, Frame frame) {
      if (frame.payload.size() <= kEchoedBytes) {
        Own(&frame);  // what is echoed is the server's
        return server_->Send(from, std::move(frame), Ignore);
      }
      arrived_.Increment();
    });
    client_->Start([this](ConnectionId, Frame) { returned_.Increment(); });
    const Peer listener{server_->Listen(address).value()};
    for (int i = 0; i < connections; ++i) to_server_.push_back(client_->Connect(listener).value());
  }
  ~Pair() {
    client_.reset();
    server_.reset();
  }

  double StreamBytesPerSecond(size_t payload_bytes) {
    std::vector<Frame> frames;
    for (size_t i = 0; i < std::max<size_t>(2, kBytesInFlight / payload_bytes); ++i) {
      Buffer payload = Buffer::Allocate(payload_bytes);
      std::memset(payload.data(), 1, payload_bytes);
      frames.push_back(MakeFrame({.type = FrameType::kPush}, std::move(payload)));
    }
    const size_t window = frames.size();
    const size_t count = kBytesASample / payload_bytes;
    const double seconds = Seconds([&] {
      for (size_t i = 0; i < count; ++i) {
        if (i >= window) arrived_.WaitFor(total_ + i + 1 - window);
        client_->Send(to_server_[i % to_server_.size()], frames[i % window], Ignore);
      }
      arrived_.WaitFor(total_ + count);
    });
    total_ += count;
    return static_cast<double>(count * payload_bytes) / seconds;
  }

  // The median of them.
  double RoundTripMicroseconds(size_t payload_bytes) {
    Buffer payload = Buffer::Allocate(payload_bytes);
    std::memset(payload.data(), 1, payload_bytes);
    const Frame frame = MakeFrame({.type = FrameType::kPush}, payload);
    std::vector<double> trips;
    for (int i = 0; i < kRoundTrips; ++i) {
      trips.push_back(Seconds([&] {
        client_->Send(to_server_[0], frame, Ignore);
        returned_.WaitFor(++returns_);
      }));
    }
    return 1e6 * Median(trips);
  }

 private:
  static void Ignore(const absl::Status&) {}

  Counter arrived_;
  Counter returned_;
  size_t total_ = 0;
  size_t returns_ = 0;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::vector<ConnectionId> to_server_;
};

double MemcpyBytesPerSecond(size_t bytes) {
  Buffer from = Buffer::Allocate(bytes);
  Buffer to = Buffer::Allocate(bytes);
  std::memset(from.data(), 1, bytes);
  std::memset(to.data(), 1, bytes);
  const size_t count = kBytesASample / bytes;
  const double seconds = Seconds([&] {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");
    }
  });
  return static_cast<double>(count * bytes) / seconds;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The share of a core that this process uses while nothing happens.
double IdleShare() {
  Mutex mu;
  CondVar never;
  const absl::Duration wait = absl::Milliseconds(500);
  const double before = CpuSeconds();
  const SteadyClock clock;
  const absl::Time deadline = clock.Now() + wait;
  MutexLock lock(&mu);
  while (clock.WaitUntil(&never, &mu, deadline)) {
  }
  return (CpuSeconds() - before) / absl::ToDoubleSeconds(wait);
}

int Run(int iterations) {
  const std::vector<size_t> sizes = {size_t{64} << 10, size_t{1} << 20, size_t{4} << 20};
  LoopbackNetwork network;
  const std::string ipc = absl::StrCat("ipc:///tmp/bdn-transport-bench-", getpid());
  const auto zmq = [](int io_threads) {
    return MakeZmqTransport({.io_threads = io_threads, .security = LinkSecurity::kOpen}).value();
  };
  std::vector<std::pair<std::string, std::unique_ptr<Pair>>> pairs;
  pairs.emplace_back("loopback",
                     std::make_unique<Pair>(network.MakeTransport(), network.MakeTransport(),
                                            "loopback://bench", 1));
  const auto shm = [] { return ShmTransport::Make({.security = LinkSecurity::kOpen}).value(); };
  pairs.emplace_back("shared memory",
                     std::make_unique<Pair>(
                         shm(), shm(), absl::StrCat("shm://bdn-transport-bench-", getpid()), 1));
  pairs.emplace_back("zmq tcp", std::make_unique<Pair>(zmq(1), zmq(1), "tcp://127.0.0.1:0", 1));
  pairs.emplace_back("zmq ipc", std::make_unique<Pair>(zmq(1), zmq(1), ipc, 1));
  pairs.emplace_back("zmq ipc, 2 connections, 2 I/O threads",
                     std::make_unique<Pair>(zmq(2), zmq(2), ipc + "-2", 2));

  std::map<std::string, std::map<size_t, std::vector<double>>> rates;
  std::map<std::string, std::map<size_t, std::vector<double>>> trips;
  for (int i = 0; i < iterations; ++i) {
    for (const size_t size : sizes) {
      rates["memcpy"][size].push_back(MemcpyBytesPerSecond(size));
      for (const auto& [name, pair] : pairs) {
        rates[name][size].push_back(pair->StreamBytesPerSecond(size));
      }
    }
    for (const auto& [name, pair] : pairs) {
      for (const size_t bytes : {size_t{0}, kEchoedBytes}) {
        trips[name][bytes].push_back(pair->RoundTripMicroseconds(bytes));
      }
    }
  }

  std::printf("%-40s %9s %9s %9s %22s\n", "GB/s, median", "64 KiB", "1 MiB", "4 MiB",
              "us there and back: 0, 4 KiB");
  for (const auto& [name, by_size] : rates) {
    std::printf("%-40s", name.c_str());
    for (const auto& [size, samples] : by_size) std::printf(" %9.2f", Median(samples) / 1e9);
    if (trips.contains(name)) {
      for (const auto& [bytes, samples] : trips[name]) std::printf(" %9.1f", Median(samples));
    }
    std::printf("\n");
  }
  std::printf("idle: %.4f of a core\n", IdleShare());
  return 0;
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  int iterations = 5;
  if (argc == 3 && std::strcmp(argv[1], "--iterations") == 0) iterations = std::atoi(argv[2]);
  if (iterations < 1 || (argc != 1 && argc != 3)) {
    std::fprintf(stderr, "usage: transport_bench [--iterations N]\n");
    return 2;
  }
  bdn::TuneMallocForLargeBlocks();
  return bdn::Run(iterations);
}
