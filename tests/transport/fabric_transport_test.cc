// Tests of a fabric's transport beyond the conformance suite: it makes no copies, and trusts no
// peer.

#include "common/transport/fabric/fabric_transport.h"

#include <dirent.h>

#include <cstring>
#include <optional>
#include <random>

#include "common/base/endian.h"
#include "common/transport/fabric/fabric_list.h"
#include "common/transport/fabric/fabric_wire.h"
#include "common/transport/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kWindow = uint64_t{4} << 20;

std::unique_ptr<Transport> Network() {
  return *MakeZmqTransport({.security = LinkSecurity::kOpen});
}

std::unique_ptr<FabricTransport> MakeFabric(const std::string& provider, bool as_card = false,
                                            bool always = true) {
  FabricOptions options;
  options.endpoint.provider = provider;
  options.endpoint.as_card = as_card;
  options.always = always;
  options.window_bytes = kWindow;
  auto made = FabricTransport::Make(Network(), options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

size_t NumDescriptors() {
  size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

class FabricTransportTest : public ::testing::TestWithParam<const char*> {
 protected:
  FabricTransportTest() : server_(MakeFabric(GetParam())) {
    server_->Start(
        [this](ConnectionId from, Frame frame) { inbox_.Handler()(from, std::move(frame)); },
        [this](ConnectionId connection) {
          MutexLock lock(&mu_);
          gone_.push_back(connection);
        });
    peer_.endpoints = *server_->Listen("tcp://127.0.0.1:0");
    address_ = NetworkUrl(peer_.endpoints);
  }
  ~FabricTransportTest() override {
    server_->Close();
    server_->Join();
  }
  const Peer& Server() const { return peer_; }
  // Returns the same peer with another fabric, or without one.
  Peer ServerWith(const std::string& provider) const {
    Peer peer = PeerAt(address_);
    if (!provider.empty()) peer.endpoints.push_back({std::string(kFabricScheme), provider});
    return peer;
  }
  size_t num_gone() {
    MutexLock lock(&mu_);
    return gone_.size();
  }
  // Expects that a client of the same kind is served. Frames that were on their way when the
  // server's endpoint was opened anew are lost, and sent again as the users of a transport do.
  void ExpectServes() {
    const auto client = MakeFabric(GetParam());
    Inbox back;
    Completions done;
    client->Start(back.Handler());
    const ConnectionId to_server = *client->Connect(Server());
    const Frame ours = FrameOf(++last_step_, 100000);
    std::vector<Inbox::Item> come;
    absl::Time next = kClock.Now();
    AwaitTrue([&] {
      if (kClock.Now() >= next) {
        client->Send(to_server, ours, done.Expect());
        next = kClock.Now() + absl::Milliseconds(500);
      }
      come = inbox_.WaitFor(0);
      return !come.empty() && come.back().frame.header.step == ours.header.step;
    });
    ASSERT_FALSE(come.empty());
    ExpectSameFrame(come.back().frame, ours);
    done.WaitForAll();
    client->Close();
    client->Join();
  }

  Inbox inbox_;
  Step last_step_ = 1000;  // steps of ExpectServes, which no frame of a test has
  Mutex mu_;
  std::vector<ConnectionId> gone_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FabricTransport> server_;
  std::string address_;
  Peer peer_;  // the server
};

TEST_P(FabricTransportTest, CopiesNoPayload) {
  for (const bool as_card : {false, true}) {
    const auto client = MakeFabric(GetParam(), as_card);
    Inbox back;
    Completions done;
    client->Start(back.Handler());
    const ConnectionId to_server = *client->Connect(Server());
    BufferPool pool(client->memory());
    for (const size_t bytes : {size_t{100}, size_t{8192}, size_t{8193}, size_t{1} << 20}) {
      const Frame expected = FrameOf(bytes, bytes);
      Buffer payload = pool.Get(bytes);
      std::memcpy(payload.data(), expected.payload.data(), bytes);
      client->Send(to_server, MakeFrame(expected.header, std::move(payload)), done.Expect());
      ExpectSameFrame(inbox_.WaitFor(1).at(0).frame, expected);
      inbox_.Clear();
    }
    done.WaitForAll();
    EXPECT_EQ(client->bytes_copied(), 0u);
    EXPECT_EQ(server_->bytes_copied(), 0u);
    // Payloads of other memory are copied, where the provider needs its own.
    client->Send(to_server, FrameOf(1, 50000), done.Expect());
    ExpectSameFrame(inbox_.WaitFor(1).at(0).frame, FrameOf(1, 50000));
    inbox_.Clear();
    EXPECT_EQ(client->bytes_copied(), as_card ? 50000u : 0u);
    client->Close();
    client->Join();
  }
}

TEST_P(FabricTransportTest, CarriesMoreThanAWindowHoldsWhoeverHoldsIt) {
  const auto client = MakeFabric(GetParam());
  Inbox back;
  Completions done;
  client->Start(back.Handler());
  const ConnectionId to_server = *client->Connect(Server());
  // The inbox holds all frames: 24 MB, where a window has 4.
  constexpr size_t kFrames = 60;
  const auto size_of = [](Step step) { return 100000 + (step * 77777) % 600000; };
  for (Step step = 0; step < kFrames; ++step) {
    client->Send(to_server, FrameOf(step, size_of(step)), done.Expect());
  }
  const auto all = inbox_.WaitFor(kFrames);
  ASSERT_EQ(all.size(), kFrames);
  for (const auto& [from, frame] : all) {
    ExpectSameFrame(frame, FrameOf(frame.header.step, size_of(frame.header.step)));
  }
  EXPECT_GT(server_->bytes_copied(), 0u);
  done.WaitForAll();
  client->Close();
  client->Join();
}

TEST_P(FabricTransportTest, SendsWhatFitsNoWindowOverTheNetwork) {
  const auto client = MakeFabric(GetParam());
  Inbox back;
  Completions done;
  client->Start(back.Handler());
  const ConnectionId to_server = *client->Connect(Server());
  client->Send(to_server, FrameOf(1, kWindow), done.Expect());
  ExpectSameFrame(inbox_.WaitFor(1).at(0).frame, FrameOf(1, kWindow));
  done.WaitForAll();
  client->Close();
  client->Join();
}

TEST_P(FabricTransportTest, GivesBackAllThatAConnectionTook) {
  ExpectServes();
  AwaitTrue([this] { return server_->num_sessions() == 0; });
  const size_t before = NumDescriptors();
  for (int i = 0; i < 20; ++i) ExpectServes();
  AwaitTrue([this] { return server_->num_sessions() == 0; });
  AwaitTrue([before] { return NumDescriptors() <= before + 4; });
  inbox_.Clear();
}

TEST_P(FabricTransportTest, NamesAPeerWithoutOne) {
  const auto client = MakeFabric(GetParam());
  Inbox back;
  client->Start(back.Handler());
  EXPECT_THAT(client->Connect(ServerWith("")).status().message(), HasSubstr("offers no fabric"));
  const absl::Status other = client->Connect(ServerWith("efa")).status();
  EXPECT_THAT(other.message(), HasSubstr("has fabric-provider efa"));
  EXPECT_THAT(other.message(), HasSubstr(address_));
  client->Close();
  client->Join();
}

TEST_P(FabricTransportTest, TakesTheNetworkToAPeerWithoutOneWhereItMay) {
  const auto client = MakeFabric(GetParam(), false, /*always=*/false);
  Inbox back;
  Completions done;
  client->Start(back.Handler());
  client->Send(*client->Connect(ServerWith("")), FrameOf(1, 100000), done.Expect());
  const Inbox::Item arrived = inbox_.WaitFor(1).at(0);
  ExpectSameFrame(arrived.frame, FrameOf(1, 100000));
  server_->Send(arrived.from, FrameOf(2, 100000), done.Expect());
  ExpectSameFrame(back.WaitFor(1).at(0).frame, FrameOf(2, 100000));
  EXPECT_EQ(server_->num_sessions(), 0u);
  client->Close();
  client->Join();
}

// ---- A peer that writes what it likes

// A client that meets the server as a transport does, and then does everything by hand.
class Stranger {
 public:
  Stranger(const std::string& provider, const std::string& address)
      : endpoint_(*FabricEndpoint::Open({.provider = provider})) {
    network_->Start([this](ConnectionId, Frame frame) {
      MutexLock lock(&mu_);
      if (frame.header.type != FrameType::kTransport) return;
      answer_ = *DecodeFabricHandshake(frame.payload.span());
      changed_.SignalAll();
    });
    connection_ = *network_->Connect(PeerAt(address));
    hello_ = {.kind = FabricHandshake::Kind::kHello,
              .session = 11,
              .token = 12,
              .message_bytes = 8320,
              .grant = {.key = 1, .base = 0, .block_bytes = 4096, .num_blocks = 4},
              .provider = provider,
              .address = endpoint_->address()};
    Say(EncodeFabricHandshake(hello_));
  }
  ~Stranger() {
    network_->Close();
    network_->Join();
    endpoint_->Close();
  }

  void Say(Buffer payload) {
    network_->Send(connection_, MakeFrame({.type = FrameType::kTransport}, std::move(payload)),
                   [](const absl::Status&) {});
  }
  const FabricHandshake& hello() const { return hello_; }
  FabricHandshake Meet() {
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu_);
    while (!answer_.has_value() && kClock.WaitUntil(&changed_, &mu_, deadline)) {
    }
    EXPECT_TRUE(answer_.has_value());
    if (answer_->kind == FabricHandshake::Kind::kWelcome && !peer_.has_value()) {
      peer_ = *endpoint_->AddPeer(answer_->address);
    }
    return *answer_;
  }

  // Each returns when its operation has ended, well or not.
  void Message(const std::vector<std::byte>& bytes) {
    FabricOperation operation;
    Await(&operation, [&] { return endpoint_->Send(*peer_, {bytes, nullptr}, {}, &operation); });
  }
  void Message(const FabricPrefix& prefix, const std::vector<std::byte>& more = {}) {
    const auto head = EncodeFabricPrefix(prefix);
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), more.begin(), more.end());
    Message(bytes);
  }
  bool Write(const std::vector<std::byte>& bytes, uint64_t address, uint64_t key,
             uint32_t immediate) {
    FabricOperation operation;
    return Await(&operation, [&] {
      return endpoint_->Write(*peer_, {bytes, nullptr}, {}, address, key, immediate, &operation);
    });
  }

 private:
  template <typename Begin>
  bool Await(FabricOperation* operation, const Begin& begin) {
    const absl::Time deadline = PatienceEnds();
    std::vector<FabricEvent> events;
    absl::Status begun = begin();
    while (absl::IsUnavailable(begun) && kClock.Now() < deadline) {
      endpoint_->Poll(&events);
      begun = begin();
    }
    if (!begun.ok()) return false;
    while (kClock.Now() < deadline) {
      endpoint_->Poll(&events);
      for (const FabricEvent& event : events) {
        if (event.operation == operation) return event.kind == FabricEvent::Kind::kDone;
      }
      events.clear();
    }
    ADD_FAILURE() << "it never ended";
    return false;
  }

  std::unique_ptr<FabricEndpoint> endpoint_;
  std::unique_ptr<Transport> network_ = Network();
  ConnectionId connection_ = 0;
  FabricHandshake hello_;
  std::optional<FabricEndpoint::Peer> peer_;
  Mutex mu_;
  CondVar changed_;
  std::optional<FabricHandshake> answer_ ABSL_GUARDED_BY(mu_);
};

std::vector<std::byte> HeadOf(const FabricHandshake& server, uint64_t payload_bytes) {
  const auto prefix = EncodeFabricPrefix(
      {.number = server.number, .token = server.token, .payload_bytes = payload_bytes});
  const auto header = EncodeHeader(FrameOf(1, 10).header);
  std::vector<std::byte> bytes(prefix.begin(), prefix.end());
  bytes.insert(bytes.end(), header.begin(), header.end());
  return bytes;
}

TEST_P(FabricTransportTest, DropsWhatIsNoFrameOfAPeers) {
  Stranger stranger(GetParam(), address_);
  const FabricHandshake server = stranger.Meet();
  const uint64_t before = server_->stats().frames_malformed;
  stranger.Message({.number = server.number, .token = server.token + 1});
  stranger.Message({.number = server.number + 1, .token = server.token});
  stranger.Message({.number = ~0u, .token = server.token});
  stranger.Message(std::vector<std::byte>(5));
  stranger.Message({.number = server.number, .token = server.token, .payload_bytes = 3});
  const std::vector<std::byte> head = HeadOf(server, 10);
  const FabricGrant& grant = server.grant;
  const uint32_t next_generation = grant.immediate + (1u << 14);
  for (const uint32_t immediate :
       {next_generation, grant.immediate | (kMostFabricBlocks - 1), ~0u, 0x7fffffffu}) {
    EXPECT_TRUE(stranger.Write(head, grant.base, grant.key, immediate));
  }
  AwaitTrue([&] { return server_->stats().frames_malformed >= before + 9; });
  EXPECT_EQ(num_gone(), 0u);
  ExpectServes();
}

TEST_P(FabricTransportTest, CutsWhoGivesCreditsForNothing) {
  Stranger stranger(GetParam(), address_);
  const FabricHandshake server = stranger.Meet();
  stranger.Message({.kind = FabricPrefix::Kind::kCredits,
                    .number = server.number,
                    .count = 1,
                    .token = server.token},
                   std::vector<std::byte>(4));
  AwaitTrue([this] { return num_gone() == 1; });
  EXPECT_EQ(server_->num_sessions(), 0u);
  EXPECT_EQ(server_->stats().connections_cut, 1u);
  EXPECT_EQ(server_->stats().connections_open, 0u);
  stranger.Say(EncodeFabricHandshake(stranger.hello()));  // it is not met again
  ExpectServes();
  AwaitTrue([this] { return server_->num_sessions() == 0; });
}

TEST_P(FabricTransportTest, CutsWhoseFrameLeavesItsWindow) {
  Stranger stranger(GetParam(), address_);
  const FabricHandshake server = stranger.Meet();
  const FabricGrant& grant = server.grant;
  EXPECT_TRUE(
      stranger.Write(HeadOf(server, grant.bytes()), grant.base, grant.key, grant.immediate));
  AwaitTrue([this] { return num_gone() == 1; });
  ExpectServes();
}

TEST_P(FabricTransportTest, DropsAndCountsATransportFrameOfAnotherSubType) {
  Stranger stranger(GetParam(), address_);
  stranger.Meet();
  const uint64_t before = server_->stats().frames_malformed;
  Buffer other = EncodeFabricHandshake(stranger.hello());
  other.data()[0] = std::byte{4};
  stranger.Say(std::move(other));
  stranger.Say(Buffer());
  AwaitTrue([&] { return server_->stats().frames_malformed == before + 2; });
  EXPECT_EQ(inbox_.size(), 0u);
  ExpectServes();
}

TEST_P(FabricTransportTest, NobodyWritesOutsideOfAWindow) {
  Stranger stranger(GetParam(), address_);
  const FabricHandshake server = stranger.Meet();
  const FabricGrant& grant = server.grant;
  const std::vector<std::byte> head = HeadOf(server, 10);
  stranger.Write(head, grant.base + grant.bytes() - 8, grant.key, grant.immediate);
  stranger.Write(head, grant.base, grant.key + 1, grant.immediate);
  ExpectServes();
  EXPECT_EQ(inbox_.size(), 1u);
}

TEST_P(FabricTransportTest, TellsAStrangerOfAnotherProviderWhy) {
  Stranger stranger(GetParam(), address_);
  FabricHandshake hello = stranger.hello();
  stranger.Meet();
  hello.provider = "efa";
  hello.session = 99;
  stranger.Say(EncodeFabricHandshake(hello));
  FabricHandshake answer;
  AwaitTrue([&] {
    answer = stranger.Meet();
    return answer.kind == FabricHandshake::Kind::kRefusal;
  });
  EXPECT_THAT(answer.refusal, HasSubstr(GetParam()));
  EXPECT_EQ(server_->num_sessions(), 0u);
}

TEST_P(FabricTransportTest, OutlivesAnything) {
  std::mt19937_64 random(977);
  Stranger stranger(GetParam(), address_);
  const FabricHandshake server = stranger.Meet();
  const FabricGrant& grant = server.grant;
  for (int i = 0; i < 600; ++i) {
    std::vector<std::byte> bytes = HeadOf(server, random() % 64);
    bytes.resize(bytes.size() + random() % 64);
    for (uint64_t changes = random() % 4; changes > 0; --changes) {
      // Behind the fields that only say whose it is.
      const size_t at = random() % 8 == 0 ? random() % bytes.size() : 32 + random() % 96;
      if (at < bytes.size()) bytes[at] = static_cast<std::byte>(random());
    }
    if (random() % 2 == 0) {
      stranger.Message(bytes);
    } else {
      const uint64_t block = random() % grant.num_blocks;
      const uint64_t there = random() % 16 == 0 ? random() : grant.immediate + block;
      stranger.Write(bytes, grant.base + block * grant.block_bytes, grant.key,
                     static_cast<uint32_t>(there));
    }
    if (random() % 32 == 0) {
      const Buffer said = EncodeFabricHandshake(stranger.hello());
      said.data()[random() % said.size()] = static_cast<std::byte>(random());
      stranger.Say(said);
    }
    if (server_->num_sessions() == 0) break;  // it was cut
  }
  inbox_.Clear();
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricTransportTest, ::testing::Values("tcp;ofi_rxm"),
                         [](const auto&) { return "Tcp"; });

// ---- Errors

TEST(FabricProvidersTest, SaysWhichThereAreAndWhyOthersAreNot) {
  const auto providers = ListFabricProviders();
  ASSERT_TRUE(providers.ok()) << providers.status();
  bool has_tcp = false;
  for (const FabricProvider& each : *providers) {
    EXPECT_NE(each.is_usable, !each.why_not.empty()) << each.provider;
    has_tcp |= each.provider == "tcp;ofi_rxm" && each.is_usable;
    EXPECT_NE(each.provider, "shm");
  }
  EXPECT_TRUE(has_tcp);
}

TEST(FabricProvidersTest, AProviderThatIsNotThereIsNamedWithThoseThatAre) {
  const absl::Status status = FabricEndpoint::Open({.provider = "carrier-pigeon"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("carrier-pigeon"));
  EXPECT_THAT(status.message(), HasSubstr("tcp;ofi_rxm"));
  EXPECT_THAT(
      FabricEndpoint::Open({.provider = "tcp;ofi_rxm", .domain = "eth77"}).status().message(),
      HasSubstr("eth77"));
}

TEST(FabricProvidersTest, AMissingLibrarySaysWhatToInstall) {
  const absl::Status status = FabricLibrary::Open("libfabric-of-nobody.so").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("libfabric1"));
}

TEST(FabricProvidersTest, ALimitOfLockedMemorySaysWhatItNeeds) {
  const absl::Status status = DescribeRegistrationFailure("efa", "Cannot allocate memory", ENOMEM,
                                                          uint64_t{64} << 20, 65536);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* said : {"67108864", "65536", "ulimit -l unlimited", "IPC_LOCK", "efa"}) {
    EXPECT_THAT(status.message(), HasSubstr(said));
  }
  EXPECT_EQ(DescribeRegistrationFailure("efa", "x", EINVAL, 1, 1).code(),
            absl::StatusCode::kInternal);
}

TEST(FabricTransportOptionsTest, RefusesAWindowThatIsNone) {
  std::unique_ptr<Transport> network = Network();
  FabricOptions options;
  options.window_bytes = 100;
  const auto made = FabricTransport::Make(std::move(network), options);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(network, nullptr);  // it is still the caller's
}

}  // namespace
}  // namespace bdn
