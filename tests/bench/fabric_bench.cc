// Bytes a second and round trips of the transport over a fabric, next to a bare loop over the same
// libfabric calls (writes with immediate data of the same payloads, as many at once; messages there
// and back) and to ZeroMQ over TCP, in turns in one run, between threads of one process.
//
//   fabric_bench [--iterations N]     N rounds over all cases; medians are printed (default 5)

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/zmq/malloc_tuning.h"
#include "common/transport/zmq/zmq_transport.h"
#include "tests/bench/bench_tools.h"

namespace bdn {
namespace {

constexpr size_t kBytesASample = size_t{256} << 20;
constexpr size_t kBytesInFlight = size_t{32} << 20;
constexpr int kRoundTrips = 500;
constexpr size_t kEchoedBytes = 4096;

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Rate {
  double gb_per_s;
  double cpu_s_per_gb;
};
Rate Measure(size_t bytes, const std::function<void()>& work) {
  const double cpu = CpuSeconds();
  const absl::Time start = absl::Now();
  work();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return {static_cast<double>(bytes) / seconds / 1e9,
          (CpuSeconds() - cpu) / (static_cast<double>(bytes) / 1e9)};
}

Buffer PayloadOf(size_t bytes) {
  Buffer payload = Buffer::Allocate(bytes);
  std::memset(payload.data(), 1, bytes);
  return payload;
}

// What is measured: streams of payloads, and round trips.
class Way {
 public:
  virtual ~Way() = default;
  virtual void Stream(size_t payload_bytes, size_t count) = 0;
  // Microseconds, the median: between a thread of ours and the other end's handler,
  virtual double RoundTrip(size_t payload_bytes) = 0;
  // and between the handlers of both.
  virtual double HandledRoundTrip(size_t payload_bytes) { return RoundTrip(payload_bytes); }
};

class TransportWay final : public Way {
 public:
  TransportWay(std::unique_ptr<Transport> server, std::unique_ptr<Transport> client)
      : server_(std::move(server)), client_(std::move(client)) {
    server_->Start([this](ConnectionId from, Frame frame) {
      if (frame.payload.size() <= kEchoedBytes) {
        return server_->Send(from, std::move(frame), Ignore);
      }
      arrived_.Increment();
    });
    client_->Start([this](ConnectionId, Frame frame) { OnReturn(std::move(frame)); });
    to_server_ = client_->Connect({server_->Listen("tcp://127.0.0.1:0").value()}).value();
    RoundTrip(64);  // they have met
  }
  ~TransportWay() override {
    for (Transport* const each : {client_.get(), server_.get()}) {
      each->Close();
      each->Join();
    }
  }

  void Stream(size_t payload_bytes, size_t count) override {
    std::vector<Frame> frames;
    for (size_t i = 0; i < kBytesInFlight / payload_bytes; ++i) {
      frames.push_back(FrameOf(payload_bytes));
    }
    // What has left makes room for the next: no thread but the transports' own has a part in it.
    std::atomic<size_t> begun = 0;
    const std::function<void()> send = [&] {
      const size_t i = begun++;
      if (i >= count) return;
      client_->Send(to_server_, frames[i % frames.size()], [&](const absl::Status&) {
        send();
        left_.Increment();
      });
    };
    for (size_t i = 0; i < frames.size(); ++i) send();
    total_ += count;
    arrived_.WaitFor(total_);
    left_.WaitFor(total_);
  }
  double RoundTrip(size_t payload_bytes) override {
    const Frame frame = FrameOf(payload_bytes);
    std::vector<double> trips;
    for (int i = 0; i < kRoundTrips; ++i) {
      const absl::Time start = absl::Now();
      client_->Send(to_server_, frame, Ignore);
      returned_.WaitFor(++returns_);
      trips.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    }
    return Median(trips);
  }
  double HandledRoundTrip(size_t payload_bytes) override {
    trips_.clear();
    trips_left_ = kRoundTrips;
    sent_at_ = absl::Now();
    client_->Send(to_server_, FrameOf(payload_bytes), Ignore);
    returned_.WaitFor(++returns_);
    return Median(trips_);
  }

 private:
  static void Ignore(const absl::Status&) {}
  // On the client's thread.
  void OnReturn(Frame frame) {
    if (trips_left_ == 0) return returned_.Increment();
    const absl::Time now = absl::Now();
    trips_.push_back(absl::ToDoubleMicroseconds(now - sent_at_));
    if (--trips_left_ == 0) return returned_.Increment();
    sent_at_ = now;
    client_->Send(to_server_, std::move(frame), Ignore);
  }
  static Frame FrameOf(size_t bytes) {
    return MakeFrame({.type = FrameType::kPush}, PayloadOf(bytes));
  }

  Counter arrived_;
  Counter returned_;
  size_t total_ = 0;
  size_t returns_ = 0;
  Counter left_;
  // Of HandledRoundTrip, while trips are left.
  std::vector<double> trips_;
  std::atomic<int> trips_left_ = 0;
  absl::Time sent_at_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  ConnectionId to_server_ = 0;
};

// The calls that the transport makes, and nothing else: one thread an end, no frames, no checks.
class BareWay final : public Way {
 public:
  explicit BareWay(const std::string& provider)
      : receiver_(*FabricEndpoint::Open({.provider = provider})),
        sender_(*FabricEndpoint::Open({.provider = provider})),
        target_(*FabricMemory::Make(kBytesInFlight, retired_)),
        region_(*receiver_->Register(target_->span(), true)),
        to_receiver_(*sender_->AddPeer(receiver_->address())),
        to_sender_(*receiver_->AddPeer(sender_->address())) {
    for (Received& each : posted_) Post(receiver_.get(), &each);
    for (Received& each : posted_back_) Post(sender_.get(), &each);
    RoundTrip(64);
  }
  ~BareWay() override {
    sender_->Close();
    receiver_->Close();
    region_.reset();
  }

  void Stream(size_t payload_bytes, size_t count) override {
    const Receiving receiving(this);
    const size_t slots = kBytesInFlight / payload_bytes;
    std::vector<Buffer> payloads;
    for (size_t i = 0; i < slots; ++i) payloads.push_back(PayloadOf(payload_bytes));
    std::vector<FabricOperation> operations(slots);
    const size_t start = num_written_.load();
    size_t begun = 0;
    size_t done = 0;
    while (done < count) {
      // A slot is written again once what was in it has come.
      while (begun < count && begun - (num_written_.load() - start) < slots &&
             begun - done < slots) {
        const size_t slot = begun % slots;
        const absl::Status status =
            sender_->Write(to_receiver_, {payloads[slot].span(), nullptr}, {},
                           region_->base() + slot * payload_bytes, region_->key(),
                           static_cast<uint32_t>(slot), &operations[slot]);
        if (!status.ok()) break;
        ++begun;
      }
      done += Poll(sender_.get(), nullptr);
    }
    while (num_written_.load() - start < count) Poll(sender_.get(), nullptr);
  }
  double RoundTrip(size_t payload_bytes) override {
    const Receiving receiving(this);
    const Buffer payload = PayloadOf(payload_bytes);
    FabricOperation operation;
    std::vector<double> trips;
    for (int i = 0; i < kRoundTrips; ++i) {
      const absl::Time start = absl::Now();
      size_t back = 0;
      while (!sender_->Send(to_receiver_, {payload.span(), nullptr}, {}, &operation).ok()) {
        Poll(sender_.get(), &back);
      }
      size_t done = 0;
      while (back == 0 || done == 0) done += Poll(sender_.get(), &back);
      trips.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    }
    return Median(trips);
  }

 private:
  // The receiver's thread, which must take nothing from who is measured in turn.
  class Receiving {
   public:
    explicit Receiving(BareWay* way) : way_(way), thread_([way] { way->RunReceiver(); }) {}
    ~Receiving() {
      way_->is_over_ = true;
      thread_.join();
      way_->is_over_ = false;
    }

   private:
    BareWay* const way_;
    std::thread thread_;
  };
  struct Received : FabricOperation {
    Received() { is_receive = true; }
    std::vector<std::byte> bytes = std::vector<std::byte>(kEchoedBytes);
  };

  static void Post(FabricEndpoint* endpoint, Received* received) {
    if (!endpoint->Receive(received->bytes, nullptr, received).ok()) std::abort();
  }
  static void Wait(FabricEndpoint* endpoint) {
    if (endpoint->wait_fd() < 0) return std::this_thread::yield();
    if (!endpoint->MayWait()) return;
    pollfd fd = {endpoint->wait_fd(), POLLIN, 0};
    poll(&fd, 1, 1);
  }
  // How many of the sender's own have ended; `back` counts what came.
  size_t Poll(FabricEndpoint* endpoint, size_t* back) {
    std::vector<FabricEvent> events;
    if (!endpoint->Poll(&events)) Wait(endpoint);
    size_t done = 0;
    for (const FabricEvent& event : events) {
      if (event.kind == FabricEvent::Kind::kFailed) std::abort();
      if (event.kind == FabricEvent::Kind::kReceived) {
        if (back != nullptr) ++*back;
        Post(endpoint, static_cast<Received*>(event.operation));
      } else {
        ++done;
      }
    }
    return done;
  }
  void RunReceiver() {
    FabricOperation reply;
    std::vector<std::byte> bytes(kEchoedBytes);
    std::vector<FabricEvent> events;
    while (!is_over_) {
      events.clear();
      if (!receiver_->Poll(&events)) {
        Wait(receiver_.get());
        continue;
      }
      for (const FabricEvent& event : events) {
        if (event.kind == FabricEvent::Kind::kWritten) ++num_written_;
        if (event.kind != FabricEvent::Kind::kReceived) continue;
        const size_t size = event.bytes;
        Post(receiver_.get(), static_cast<Received*>(event.operation));
        while (
            !receiver_->Send(to_sender_, {ByteSpan(bytes).first(size), nullptr}, {}, &reply).ok()) {
        }
      }
    }
  }

  const std::shared_ptr<RetiredAddresses> retired_ = std::make_shared<RetiredAddresses>();
  std::unique_ptr<FabricEndpoint> receiver_;
  std::unique_ptr<FabricEndpoint> sender_;
  std::unique_ptr<FabricMemory> target_;
  std::unique_ptr<FabricRegion> region_;
  const FabricEndpoint::Peer to_receiver_;
  const FabricEndpoint::Peer to_sender_;
  std::vector<Received> posted_ = std::vector<Received>(16);
  std::vector<Received> posted_back_ = std::vector<Received>(16);
  std::atomic<size_t> num_written_ = 0;
  std::atomic<bool> is_over_ = false;
};

std::unique_ptr<Transport> Zmq() {
  return MakeZmqTransport({.security = LinkSecurity::kOpen}).value();
}

std::unique_ptr<Transport> Fabric(const std::string& provider) {
  FabricOptions options;
  options.endpoint.provider = provider;
  return FabricTransport::Make(Zmq(), options).value();
}

int Run(int iterations) {
  const std::vector<size_t> sizes = {size_t{64} << 10, size_t{1} << 20, size_t{4} << 20};
  const std::vector<size_t> small = {64, 1024, kEchoedBytes};
  std::vector<std::pair<std::string, std::unique_ptr<Way>>> ways;
  ways.emplace_back("zmq tcp", std::make_unique<TransportWay>(Zmq(), Zmq()));
  {
    const std::string provider = "tcp;ofi_rxm";
    ways.emplace_back(provider + ", bare", std::make_unique<BareWay>(provider));
    ways.emplace_back(provider + ", transport",
                      std::make_unique<TransportWay>(Fabric(provider), Fabric(provider)));
  }
  std::map<std::string, std::map<size_t, std::vector<double>>> rates;
  std::map<std::string, std::map<size_t, std::vector<double>>> cpu;
  std::map<std::string, std::map<size_t, std::vector<double>>> trips;
  std::map<std::string, std::map<size_t, std::vector<double>>> handled_trips;
  for (int i = 0; i < iterations; ++i) {
    for (const size_t size : sizes) {
      const size_t count = kBytesASample / size;
      for (const auto& [name, owned] : ways) {
        Way* const way = owned.get();
        const Rate rate = Measure(kBytesASample, [&] { way->Stream(size, count); });
        rates[name][size].push_back(rate.gb_per_s);
        cpu[name][size].push_back(rate.cpu_s_per_gb);
      }
    }
    for (const size_t size : small) {
      for (const auto& [name, way] : ways) {
        trips[name][size].push_back(way->RoundTrip(size));
        handled_trips[name][size].push_back(way->HandledRoundTrip(size));
      }
    }
  }
  std::printf("%-24s %23s %23s %23s %23s\n", "medians", "GB/s: 64 KiB, 1, 4 MiB",
              "CPU s/GB: the same", "us: 64 B, 1 KiB, 4 KiB", "us: handler to handler");
  for (const auto& [name, way] : ways) {
    std::printf("%-24s", name.c_str());
    for (const auto& [size, samples] : rates[name]) std::printf(" %7.2f", Median(samples));
    for (const auto& [size, samples] : cpu[name]) std::printf(" %7.2f", Median(samples));
    for (const auto* const each : {&trips[name], &handled_trips[name]}) {
      for (const auto& [size, samples] : *each) std::printf(" %7.1f", Median(samples));
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  int iterations = 5;
  if (argc == 3 && std::strcmp(argv[1], "--iterations") == 0) iterations = std::atoi(argv[2]);
  if (iterations < 1 || (argc != 1 && argc != 3)) {
    std::fprintf(stderr, "usage: fabric_bench [--iterations N]\n");
    return 2;
  }
  bdn::TuneMallocForLargeBlocks();
  return bdn::Run(iterations);
}
