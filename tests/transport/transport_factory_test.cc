#include "common/transport/transport_factory.h"

#include "common/transport/loopback.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;
using TransportPtr = std::unique_ptr<Transport>;

TEST(TransportFactory, MakesWhatListensAtTheAddress) {
  const SteadyClock clock;
  for (const char* address : {"tcp://127.0.0.1:0", "tcp", "ipc"}) {
    auto transport = MakeTransport(address, {.clock = &clock});
    ASSERT_TRUE(transport.ok()) << transport.status();
    (*transport)->Start([](ConnectionId, Frame) {});
    EXPECT_TRUE((*transport)->Listen("tcp://127.0.0.1:0").ok());
  }
}

std::string WaysOf(const TransportOptions& options) {
  auto transport = MakeTransport("tcp", options);
  if (!transport.ok()) return std::string(transport.status().message());
  (*transport)->Start([](ConnectionId, Frame) {});
  return SchemesOf(*(*transport)->Listen("tcp://127.0.0.1:0"));
}

TEST(TransportFactory, ListensInEveryWayThatIsAskedForButTheFastOnesOfASlowLink) {
  const SteadyClock clock;
  TransportOptions options{.clock = &clock, .security = LinkSecurity::kAuthenticated};
  EXPECT_EQ(WaysOf(options), "tcp");
  options.use_shared_memory = Use::kWherePossible;
  EXPECT_EQ(WaysOf(options), "shm, tcp");
#ifdef BDN_HAS_FABRIC
  options.use_fabric = Use::kAlways;
  options.fabric = {.provider = "tcp;ofi_rxm", .interface = "127.0.0.1"};
  EXPECT_EQ(WaysOf(options), "shm, fabric, tcp");
  options.link_bytes_per_second = 1e9;
  EXPECT_EQ(WaysOf(options), "tcp");
  options.fabric.provider = "carrier-pigeon";
  EXPECT_THAT(WaysOf(options), HasSubstr("transport is rdma: no fabric provider 'carrier-pigeon'"));
  options.use_fabric = Use::kWherePossible;
  options.link_bytes_per_second = 0;
  EXPECT_EQ(WaysOf(options), "shm, tcp");
#endif
}

TEST(TransportFactory, AWorkerOnASlowLinkDoesNotTakeSharedMemory) {
  const SteadyClock clock;
  const TransportOptions plain{
      .clock = &clock, .security = LinkSecurity::kOpen, .use_shared_memory = Use::kWherePossible};
  TransportOptions slow = plain;
  slow.link_bytes_per_second = 1e9;
  for (const TransportOptions& options : {plain, slow}) {
    Inbox inbox;
    Completions sent;
    const auto server = *MakeTransport("tcp", plain);
    const auto client = *MakeTransport("tcp", options);
    server->Start(inbox.Handler());
    client->Start([](ConnectionId, Frame) {});
    const Peer peer{*server->Listen("tcp://127.0.0.1:0")};
    client->Send(*client->Connect(peer), FrameOf(1, 1000), sent.Expect());
    EXPECT_EQ(inbox.WaitFor(1).at(0).frame.is_of_host, options.link_bytes_per_second == 0);
    for (Transport* each : {client.get(), server.get()}) {
      each->Close();
      each->Join();
    }
  }
}

TEST(TransportFactory, TakesMoreRowsBehindThoseOfTheTable) {
  const SteadyClock clock;
  static int num_around;
  num_around = 0;
  const TransportRow more[] = {
      {"pigeon", [](TransportPtr*,
                    const TransportOptions& options) { return MakeTransport("ipc", options); }},
      {"hawk",
       [](TransportPtr* around, const TransportOptions&) -> absl::StatusOr<TransportPtr> {
         ++num_around;
         return std::move(*around);
       },
       [](const TransportOptions&) { return Use::kAlways; }},
  };
  EXPECT_TRUE(MakeTransport("pigeon://coop", {.clock = &clock}, more).ok());
  EXPECT_EQ(num_around, 1);
  const auto status = MakeTransport("owl", {.clock = &clock}, more).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("tcp://, ipc://, pigeon://"));
}

TEST(TransportFactory, MeetsOverSharedMemoryBesideANetworkWhoseTransportsHaveNoKeys) {
  const SteadyClock clock;
  static LoopbackNetwork* network;
  LoopbackNetwork here;
  network = &here;
  const TransportRow more[] = {
      {"loopback", [](TransportPtr*, const TransportOptions&) -> absl::StatusOr<TransportPtr> {
         return network->MakeTransport();
       }}};
  const TransportOptions options{.clock = &clock, .use_shared_memory = Use::kWherePossible};
  Inbox inbox;
  Completions sent;
  const auto server = *MakeTransport("loopback", options, more);
  const auto client = *MakeTransport("loopback", options, more);
  server->Start(inbox.Handler());
  client->Start([](ConnectionId, Frame) {});
  const Peer peer{.endpoints = *server->Listen("loopback://here"), .secret = "of the job"};
  server->Admit({{client->public_key()}, "of the job"});
  client->Send(*client->Connect(peer), FrameOf(1, 1000), sent.Expect());
  EXPECT_TRUE(inbox.WaitFor(1).at(0).frame.is_of_host);
  for (Transport* each : {client.get(), server.get()}) {
    each->Close();
    each->Join();
  }
}

TEST(TransportFactory, NamesTheSchemesThatThereAre) {
  const SteadyClock clock;
  const absl::Status status = MakeTransport("carrier-pigeon://coop", {.clock = &clock}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'carrier-pigeon://coop'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tcp://, ipc://"));
}

}  // namespace
}  // namespace bdn
