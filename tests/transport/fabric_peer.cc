// One end of a fabric as a process of its own, for tests that kill it.
//
//   fabric_peer server PROVIDER [ADDRESS]  prints its address, and sends back each frame
//   fabric_peer client PROVIDER ADDRESS    prints a line once a frame came back, and sends for ever
//
// The client also sends again when nothing comes back, because a frame on its way may be lost.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

#include "common/base/mutex.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/zmq/zmq_transport.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

constexpr size_t kInFlight = 8;
constexpr absl::Duration kSilence = absl::Milliseconds(500);

int RunServer(FabricTransport* transport, const std::string& address) {
  transport->Start([transport](ConnectionId from, Frame frame) {
    transport->Send(from, std::move(frame), [](const absl::Status&) {});
  });
  printf("%s\n", ListenAt(transport, address).c_str());
  fflush(stdout);
  while (true) pause();
}

int RunClient(FabricTransport* transport, const std::string& provider, const std::string& address) {
  std::atomic<Step> step = 0;
  Mutex mu;
  CondVar changed;
  uint64_t num_back = 0;
  const auto send = [&](ConnectionId to) {
    const Step next = ++step;
    transport->Send(to, FrameOf(next, next % 2 == 0 ? 300000 : 2000), [](const absl::Status&) {});
  };
  transport->Start([&](ConnectionId from, const Frame&) {
    {
      MutexLock lock(&mu);
      if (++num_back == 1) {
        printf("back\n");
        fflush(stdout);
      }
      changed.SignalAll();
    }
    send(from);
  });
  Peer peer = PeerAt(address);
  peer.endpoints.push_back({std::string(kFabricScheme), provider});
  const ConnectionId to = *transport->Connect(peer);
  while (true) {
    for (size_t i = 0; i < kInFlight; ++i) send(to);
    MutexLock lock(&mu);
    for (uint64_t before = ~num_back; before != num_back;) {
      before = num_back;
      const absl::Time until = kClock.Now() + kSilence;
      while (num_back == before && kClock.WaitUntil(&changed, &mu, until)) {
      }
    }
  }
}

int Run(int argc, char** argv) {
  if (argc < 3) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string provider = argv[2];
  FabricOptions options;
  options.endpoint.provider = provider;
  options.window_bytes = uint64_t{4} << 20;
  auto transport =
      FabricTransport::Make(*MakeZmqTransport({.security = LinkSecurity::kOpen}), options);
  if (!transport.ok()) {
    fprintf(stderr, "%s\n", transport.status().ToString().c_str());
    return 1;
  }
  const std::string address = argc > 3 ? argv[3] : "tcp://127.0.0.1:0";
  return std::string(argv[1]) == "server" ? RunServer(transport->get(), address)
                                          : RunClient(transport->get(), provider, address);
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) { return bdn::Run(argc, argv); }
