// The contract of transports, tested for each of them.

#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "common/base/secret.h"
#include "common/transport/loopback.h"
#include "common/transport/shm/shm_transport.h"
#include "common/transport/throttled.h"
#include "common/transport/transport.h"
#include "common/transport/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "tests/support/scripted_loopback.h"
#include "tests/transport/test_transports.h"
#include "tests/transport/transport_fixture.h"

#ifdef BDN_HAS_FABRIC
#include "common/transport/fabric/fabric_transport.h"
#endif

namespace bdn {
namespace {

using ::testing::HasSubstr;

const std::string kSecret(32, 's');
constexpr double kTestRate = 1e9;  // bytes a second: throttled, and yet quick

// A world in which transports can meet.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::unique_ptr<Transport> MakeTransport() = 0;
  // To listen at; a new one each time.
  virtual std::string NewAddress() = 0;
  // Returns whether an address is known before anybody listens there.
  virtual bool has_names() const { return true; }
  // The security of its listeners.
  virtual LinkSecurity security() const { return LinkSecurity::kOpen; }
  // Of the fabric beside its network; empty where there is none.
  virtual std::string provider() const { return ""; }
};

class LoopbackFabric final : public Fabric {
 public:
  std::unique_ptr<Transport> MakeTransport() override { return network_.MakeTransport(); }
  std::string NewAddress() override { return absl::StrCat("loopback://", ++last_name_); }

 private:
  LoopbackNetwork network_;
  int last_name_ = 0;
};

class PumpedScriptFabric final : public Fabric {
 public:
  PumpedScriptFabric()
      : pump_([this] {
          while (network_.WaitAndStep()) {
          }
        }) {}
  ~PumpedScriptFabric() override {
    network_.Interrupt();
    pump_.join();
  }
  std::unique_ptr<Transport> MakeTransport() override { return network_.MakeTransport(); }
  std::string NewAddress() override { return absl::StrCat("loopback://", ++last_name_); }

 private:
  ScriptedLoopback network_;
  int last_name_ = 0;
  std::thread pump_;
};

template <LinkSecurity kSecurity>
class TcpFabric final : public Fabric {
 public:
  std::unique_ptr<Transport> MakeTransport() override {
    return *MakeZmqTransport({.security = kSecurity});
  }
  std::string NewAddress() override { return "tcp://127.0.0.1:0"; }
  bool has_names() const override { return false; }
  LinkSecurity security() const override { return kSecurity; }
};
using OpenTcpFabric = TcpFabric<LinkSecurity::kOpen>;
using AuthenticatedTcpFabric = TcpFabric<LinkSecurity::kAuthenticated>;
using EncryptedTcpFabric = TcpFabric<LinkSecurity::kEncrypted>;

template <LinkSecurity kSecurity>
class IpcFabric final : public Fabric {
 public:
  std::unique_ptr<Transport> MakeTransport() override {
    return *MakeZmqTransport({.security = kSecurity});
  }
  std::string NewAddress() override {
    return absl::StrCat("ipc://", directory_.path(), "/", ++last_name_);
  }
  LinkSecurity security() const override { return kSecurity; }

 private:
  TempDir directory_;
  int last_name_ = 0;
};

template <LinkSecurity kSecurity>
class ShmFabric final : public Fabric {
 public:
  std::unique_ptr<Transport> MakeTransport() override {
    return *ShmTransport::Make(
        {.security = kSecurity, .key = *PublicKey::FromBytes(RandomSecret())});
  }
  std::string NewAddress() override {
    return absl::StrCat("shm://bdn-test-", getpid(), "-", ++last_name);
  }
  LinkSecurity security() const override { return kSecurity; }

 private:
  static inline int last_name = 0;
};

template <typename Inner>
class ThrottledFabric final : public Fabric {
 public:
  std::unique_ptr<Transport> MakeTransport() override {
    return MakeThrottled(inner_.MakeTransport(), kTestRate, &clock_);
  }
  std::string NewAddress() override { return inner_.NewAddress(); }
  bool has_names() const override { return inner_.has_names(); }
  LinkSecurity security() const override { return inner_.security(); }

 private:
  const SteadyClock clock_;
  Inner inner_;
};

// The open transport of one row of the tables, which listens at a path.
class TabledFabric final : public Fabric {
 public:
  explicit TabledFabric(std::string scheme) : scheme_(std::move(scheme)) {}
  std::unique_ptr<Transport> MakeTransport() override {
    return *bdn::MakeTransport(scheme_, {.clock = &kClock, .security = LinkSecurity::kOpen},
                               kTestTransports);
  }
  std::string NewAddress() override {
    return absl::StrCat(scheme_, "://", directory_.path(), "/", ++last_name_);
  }

 private:
  const std::string scheme_;
  TempDir directory_;
  int last_name_ = 0;
};

std::function<std::unique_ptr<Fabric>()> Tabled(const std::string& scheme) {
  return [scheme] { return std::make_unique<TabledFabric>(scheme); };
}

struct FabricParam {
  const char* name;
  std::function<std::unique_ptr<Fabric>()> make;

  friend void PrintTo(const FabricParam& param, std::ostream* out) { *out << param.name; }
};

class TransportTest : public testing::TestWithParam<FabricParam> {
 protected:
  TransportTest()
      : fabric_(GetParam().make()),
        server_(fabric_->MakeTransport()),
        client_(fabric_->MakeTransport()) {}

  ~TransportTest() override {
    CloseAndJoin(client_.get());
    CloseAndJoin(server_.get());
  }

  static void CloseAndJoin(Transport* transport) {
    if (transport == nullptr) return;
    transport->Close();
    transport->Join();
  }

  // The client connected to the listening server.
  ConnectionId StartBoth() {
    StartServer(server_inbox_.Handler());
    return StartClient();
  }
  void StartServer(Transport::FrameHandler handler, Transport::GoneHandler gone = nullptr) {
    server_->Start(std::move(handler), std::move(gone));
    Listen();
    server_->Admit(Everybody());
  }
  ConnectionId StartClient() {
    client_->Start(client_inbox_.Handler());
    return *client_->Connect(Server());
  }
  void Listen() {
    endpoints_ = *server_->Listen(fabric_->NewAddress());
    const std::string url = NetworkUrl(endpoints_);
    address_ = url.empty() ? UrlOf(endpoints_.at(0)) : url;
  }
  // The client's knowledge of the server, and the server's of the client.
  Peer Server() const { return {endpoints_, server_->public_key(), kSecret}; }
  // The same before it listens at `address`.
  Peer ServerAt(const std::string& address) const {
    Peer peer = PeerAt(address, fabric_->security(), server_->public_key(), kSecret);
    const std::string provider = fabric_->provider();
    if (!provider.empty()) peer.endpoints.push_back({"fabric", provider});
    return peer;
  }
  Admission Everybody() const { return {{client_->public_key()}, kSecret}; }
  bool is_secured() const { return fabric_->security() != LinkSecurity::kOpen; }

  void Send(Transport* transport, ConnectionId to, Frame frame) {
    InsideCall inside;
    transport->Send(to, std::move(frame), completions_.Expect());
  }

  Completions completions_;  // outlive the transports, whose threads use them
  Inbox server_inbox_;
  Inbox client_inbox_;
  std::string address_;
  std::vector<Endpoint> endpoints_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
};

TEST_P(TransportTest, CarriesFramesBothWays) {
  const ConnectionId to_server = StartBoth();
  const std::vector<size_t> sizes = {0, 1, 100, size_t{64} << 10, size_t{4} << 20};
  for (size_t i = 0; i < sizes.size(); ++i) Send(client_.get(), to_server, FrameOf(i, sizes[i]));
  const auto arrived = server_inbox_.WaitFor(sizes.size());
  ASSERT_EQ(arrived.size(), sizes.size());
  for (const auto& [from, frame] : arrived) {
    ExpectSameFrame(frame, FrameOf(frame.header.step, sizes.at(frame.header.step)));
    Send(server_.get(), from, frame);
  }

  const auto back = client_inbox_.WaitFor(sizes.size());
  ASSERT_EQ(back.size(), sizes.size());
  for (const auto& [from, frame] : back) {
    EXPECT_EQ(from, to_server);
    ExpectSameFrame(frame, FrameOf(frame.header.step, sizes.at(frame.header.step)));
  }
  for (const absl::Status& status : completions_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(TransportTest, CarriesBuffersOfTheMemoryThatItLends) {
  const ConnectionId to_server = StartBoth();
  BufferPool pool(client_->memory());
  for (Step step = 1; step <= 3; ++step) {
    const Frame expected = FrameOf(step, 100000);
    Buffer payload = pool.Get(expected.payload.size());
    std::memcpy(payload.data(), expected.payload.data(), payload.size());
    Send(client_.get(), to_server, MakeFrame(expected.header, std::move(payload)));
  }
  for (const auto& [from, frame] : server_inbox_.WaitFor(3)) {
    ExpectSameFrame(frame, FrameOf(frame.header.step, 100000));
  }
}

TEST_P(TransportTest, TellsConnectionsApart) {
  const ConnectionId first = StartBoth();
  const ConnectionId second = *client_->Connect(Server());
  EXPECT_NE(first, second);
  Send(client_.get(), first, FrameOf(1, 10));
  Send(client_.get(), second, FrameOf(2, 10));
  for (const auto& [from, frame] : server_inbox_.WaitFor(2)) Send(server_.get(), from, frame);
  for (const auto& [from, frame] : client_inbox_.WaitFor(2)) {
    EXPECT_EQ(from, frame.header.step == 1 ? first : second);
  }
}

TEST_P(TransportTest, MayBeUsedFromItsCallbacks) {
  constexpr Step kRounds = 100;
  StartServer([this](ConnectionId from, Frame frame) {
    server_->Send(from, std::move(frame), completions_.Expect());
  });
  Completions pings;
  Mutex mu;
  CondVar changed;
  Step last = 0;
  client_->Start([&](ConnectionId from, Frame frame) {
    if (frame.header.step < kRounds) {
      client_->Send(from, FrameOf(frame.header.step + 1, 1000), pings.Expect());
    }
    MutexLock lock(&mu);
    last = frame.header.step;
    changed.SignalAll();
  });
  client_->Send(*client_->Connect(Server()), FrameOf(1, 1000), pings.Expect());
  {
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu);
    while (last < kRounds && kClock.WaitUntil(&changed, &mu, deadline)) {
    }
    EXPECT_EQ(last, kRounds);
  }
  pings.WaitForAll();
}

TEST_P(TransportTest, RunsNoCallbackInsideACall) {
  // The callbacks take a mutex that the caller holds: inline they would never return.
  Mutex mu;
  StartServer([&](ConnectionId from, Frame frame) {
    MutexLock lock(&mu);
    server_->Send(from, std::move(frame), completions_.Expect());
  });
  Completions done;
  const auto locking = [&] {
    return [&mu, inner = done.Expect()](const absl::Status& status) {
      MutexLock lock(&mu);
      inner(status);
    };
  };
  client_->Start(client_inbox_.Handler());
  {
    MutexLock lock(&mu);
    const ConnectionId to_server = *client_->Connect(Server());
    for (int i = 0; i < 20; ++i) client_->Send(to_server, FrameOf(i, 5000), locking());
    client_->Send(999, FrameOf(1, 10), locking());
  }
  client_inbox_.WaitFor(20);
  {
    MutexLock lock(&mu);
    client_->Close();
    server_->Close();
  }
  done.WaitForAll();
  client_->Join();
  server_->Join();
}

TEST_P(TransportTest, EndsASendToAnUnknownConnectionInNotFound) {
  StartBoth();
  Send(client_.get(), 12345, FrameOf(1, 10));
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kNotFound) << completions_.Last();
  Send(client_.get(), 0, FrameOf(1, 0));
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kNotFound) << completions_.Last();
}

TEST_P(TransportTest, LetsFramesWaitForTheListener) {
  if (!fabric_->has_names()) GTEST_SKIP() << "no address before there is a listener";
  const std::string address = fabric_->NewAddress();
  client_->Start(client_inbox_.Handler());
  const ConnectionId to_server = *client_->Connect(ServerAt(address));
  Send(client_.get(), to_server, FrameOf(1, 1000));
  server_->Start(server_inbox_.Handler());
  ASSERT_TRUE(server_->Listen(address).ok());
  server_->Admit(Everybody());
  const auto arrived = server_inbox_.WaitFor(1);
  ExpectSameFrame(arrived.at(0).frame, FrameOf(1, 1000));
}

TEST_P(TransportTest, RefusesAnAddressInUse) {
  StartBoth();
  auto other = fabric_->MakeTransport();
  other->Start(client_inbox_.Handler());
  const absl::Status status = other->Listen(address_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address_));
  // And its owner still has it.
  Send(client_.get(), *client_->Connect(Server()), FrameOf(1, 10));
  server_inbox_.WaitFor(1);
}

TEST_P(TransportTest, FreesItsAddressWhenItIsJoined) {
  StartBoth();
  CloseAndJoin(server_.get());
  auto other = fabric_->MakeTransport();
  other->Start(server_inbox_.Handler());
  EXPECT_EQ(other->Listen(address_).status(), absl::OkStatus());
}

TEST_P(TransportTest, NamesABadAddress) {
  server_->Start(server_inbox_.Handler());
  for (const std::string address : {"", "nonsense", "udp://1.2.3.4:5", "tcp://1.2.3.4",
                                    "tcp://host:notaport", "loopback://", "ipc://", "shm://"}) {
    const absl::Status listening = server_->Listen(address).status();
    EXPECT_EQ(listening.code(), absl::StatusCode::kInvalidArgument) << address << ": " << listening;
    EXPECT_THAT(std::string(listening.message()), HasSubstr(address));
    const absl::Status connecting = server_->Connect(PeerAt(address)).status();
    if (absl::IsUnimplemented(connecting)) {  // a scheme of others
      EXPECT_THAT(std::string(connecting.message()),
                  HasSubstr(PeerAt(address).endpoints[0].scheme));
    } else {
      EXPECT_EQ(connecting.code(), absl::StatusCode::kInvalidArgument) << connecting;
      EXPECT_THAT(std::string(connecting.message()), HasSubstr(address));
    }
  }
}

TEST_P(TransportTest, ConnectsByTheFirstWayThatItCanUse) {
  StartServer(server_inbox_.Handler());
  client_->Start(client_inbox_.Handler());
  Peer peer = Server();
  const Endpoint stranger{"pigeon", "coop", LinkSecurity::kOpen, "coop"};
  peer.endpoints.insert(peer.endpoints.begin(), stranger);
  peer.endpoints.insert(peer.endpoints.end(), endpoints_.begin(), endpoints_.end());  // again
  Send(client_.get(), *client_->Connect(peer), FrameOf(1, 10));
  ExpectSameFrame(server_inbox_.WaitFor(1).at(0).frame, FrameOf(1, 10));
  for (const std::vector<Endpoint>& none : {std::vector<Endpoint>{}, {stranger, stranger}}) {
    const absl::Status refused = client_->Connect({none}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(none.empty() ? "nothing" : "pigeon, pigeon"));
  }
}

TEST_P(TransportTest, CarriesTheFramesOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kFrames = 200;
  const ConnectionId to_server = StartBoth();
  const auto size_of = [](Step step) { return (step * 7919) % 40000; };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kFrames; ++i) {
        const Step step = static_cast<Step>(t * kFrames + i);
        Send(client_.get(), to_server, FrameOf(step, size_of(step)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  const auto arrived = server_inbox_.WaitFor(kThreads * kFrames);
  std::vector<bool> seen(kThreads * kFrames);
  for (const auto& [from, frame] : arrived) {
    EXPECT_FALSE(seen.at(frame.header.step));
    seen.at(frame.header.step) = true;
    ExpectSameFrame(frame, FrameOf(frame.header.step, size_of(frame.header.step)));
  }
  completions_.WaitForAll();
}

// Each end writes more than the way between them holds while the other does: an end that writes
// before it reads would wait for ever.
TEST_P(TransportTest, CarriesLongFramesBothWaysAtOnce) {
  const ConnectionId to_server = StartBoth();
  Send(client_.get(), to_server, FrameOf(0, 10));
  const ConnectionId to_client = server_inbox_.WaitFor(1).at(0).from;
  const Frame frame = FrameOf(1, size_t{4} << 20);
  for (int i = 0; i < 4; ++i) {
    Send(client_.get(), to_server, frame);
    Send(server_.get(), to_client, frame);
  }
  ExpectSameFrame(server_inbox_.WaitFor(5).back().frame, frame);
  ExpectSameFrame(client_inbox_.WaitFor(4).back().frame, frame);
  for (const absl::Status& status : completions_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(TransportTest, LosesNothingOfManyConnectorsAtOnce) {
  constexpr size_t kConnectors = 4;
  constexpr size_t kFrames = 100;
  StartServer(server_inbox_.Handler());
  Admission admission = Everybody();
  std::vector<std::unique_ptr<Transport>> others;
  for (size_t i = 0; i < kConnectors; ++i) {
    others.push_back(fabric_->MakeTransport());
    admission.keys.push_back(others.back()->public_key());
  }
  server_->Admit(admission);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kConnectors; ++i) {
    threads.emplace_back([&, i] {
      others[i]->Start([](ConnectionId, Frame) {});
      const ConnectionId to_server = *others[i]->Connect(Server());
      for (Step step = 0; step < kFrames; ++step) {
        Send(others[i].get(), to_server, FrameOf(i * kFrames + step, step * 300));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<bool> seen(kConnectors * kFrames);
  for (const auto& [from, frame] : server_inbox_.WaitFor(seen.size())) {
    EXPECT_FALSE(seen.at(frame.header.step));
    seen.at(frame.header.step) = true;
    ExpectSameFrame(frame, FrameOf(frame.header.step, frame.header.step % kFrames * 300));
  }
  completions_.WaitForAll();
  for (const auto& other : others) CloseAndJoin(other.get());
}

TEST_P(TransportTest, EndsEverySendOnceWhenItIsClosed) {
  const ConnectionId to_server = StartBoth();
  const Frame frame = FrameOf(1, size_t{1} << 20);
  for (int i = 0; i < 50; ++i) Send(client_.get(), to_server, frame);
  {
    InsideCall inside;
    client_->Close();
    client_->Close();
  }
  Send(client_.get(), to_server, frame);
  for (const absl::Status& status : completions_.WaitForAll()) {
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_EQ(completions_.size(), 51u);
  client_->Join();
  client_->Join();
}

TEST_P(TransportTest, EndsASendAfterCloseInUnavailable) {
  const ConnectionId to_server = StartBoth();
  client_->Close();
  Send(client_.get(), to_server, FrameOf(1, 100));
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(client_->Connect(Server()).ok());
  EXPECT_FALSE(client_->Listen(fabric_->NewAddress()).ok());
}

TEST_P(TransportTest, CallsNoHandlerAfterJoin) {
  const ConnectionId to_server = StartBoth();
  std::thread sender([&] {
    for (int i = 0; i < 300; ++i) Send(client_.get(), to_server, FrameOf(i, 2000));
  });
  server_inbox_.WaitFor(10);
  CloseAndJoin(server_.get());
  server_inbox_.Seal();
  sender.join();
  CloseAndJoin(client_.get());
  completions_.WaitForAll();
}

TEST_P(TransportTest, MayBeClosedFromItsHandler) {
  Completions done;
  Mutex mu;
  CondVar changed;
  bool closed = false;
  StartServer([&](ConnectionId, Frame) {
    server_->Close();
    MutexLock lock(&mu);
    closed = true;
    changed.SignalAll();
  });
  const ConnectionId to_server = StartClient();
  client_->Send(to_server, FrameOf(1, 10), done.Expect());
  const absl::Time deadline = PatienceEnds();
  {
    MutexLock lock(&mu);
    while (!closed && kClock.WaitUntil(&changed, &mu, deadline)) {
    }
    EXPECT_TRUE(closed);
  }
  server_->Join();
  CloseAndJoin(client_.get());
  done.WaitForAll();
}

TEST_P(TransportTest, EndsSendsToAPeerThatWentInUnavailable) {
  const ConnectionId to_server = StartBoth();
  Send(client_.get(), to_server, FrameOf(1, 10));
  const ConnectionId to_client = server_inbox_.WaitFor(1).at(0).from;
  CloseAndJoin(client_.get());
  // The news may need a moment; a sender learns of it.
  const absl::Time deadline = PatienceEnds();
  absl::Status status;
  while (status.ok() && kClock.Now() < deadline) {
    Send(server_.get(), to_client, FrameOf(2, 10));
    status = completions_.Last();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(TransportTest, TellsWhenAConnectionIsGoneAfterItsFrames) {
  Mutex mu;
  CondVar changed;
  std::vector<ConnectionId> came;
  std::vector<ConnectionId> gone;
  StartServer(
      [&](ConnectionId from, Frame) {
        MutexLock lock(&mu);
        EXPECT_TRUE(gone.empty());
        came.push_back(from);
      },
      [&](ConnectionId connection) {
        MutexLock lock(&mu);
        gone.push_back(connection);
        changed.SignalAll();
      });
  const ConnectionId to_server = StartClient();
  for (Step step = 1; step <= 200; ++step) Send(client_.get(), to_server, FrameOf(step, 1000));
  completions_.WaitForAll();
  CloseAndJoin(client_.get());
  {
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu);
    while (gone.empty() && kClock.WaitUntil(&changed, &mu, deadline)) {
    }
    ASSERT_EQ(gone.size(), 1u);
    ASSERT_EQ(came.size(), 200u);
    EXPECT_EQ(came[0], gone[0]);
  }
  Send(server_.get(), gone[0], FrameOf(1, 0));
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kUnavailable) << completions_.Last();
  EXPECT_TRUE(server_->KeyOf(gone[0]).empty());
  EXPECT_EQ(server_->stats().connections_open, 0u);
  CloseAndJoin(server_.get());
}

TEST_P(TransportTest, EndsAConnectionThatItsConnectorGivesUp) {
  Mutex mu;
  CondVar changed;
  std::vector<ConnectionId> gone;
  StartServer(server_inbox_.Handler(), [&](ConnectionId connection) {
    MutexLock lock(&mu);
    gone.push_back(connection);
    changed.SignalAll();
  });
  const ConnectionId given_up = StartClient();
  const ConnectionId kept = *client_->Connect(Server());
  Send(client_.get(), given_up, FrameOf(1, 1000));
  const ConnectionId from = server_inbox_.WaitFor(1).at(0).from;
  client_->Disconnect(given_up);
  client_->Disconnect(given_up);
  client_->Disconnect(98765);
  {
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu);
    while (gone.empty() && kClock.WaitUntil(&changed, &mu, deadline)) {
    }
    EXPECT_EQ(gone, std::vector<ConnectionId>{from});
  }
  Send(client_.get(), given_up, FrameOf(2, 1000));
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kUnavailable) << completions_.Last();
  Send(client_.get(), kept, FrameOf(3, 1000));
  const auto arrived = server_inbox_.WaitFor(2);
  ExpectSameFrame(arrived.at(1).frame, FrameOf(3, 1000));
  // A listener's own is not for it to end.
  server_->Disconnect(arrived.at(1).from);
  Send(server_.get(), arrived.at(1).from, FrameOf(4, 1000));
  ExpectSameFrame(client_inbox_.WaitFor(1).at(0).frame, FrameOf(4, 1000));
  CloseAndJoin(server_.get());
}

TEST_P(TransportTest, EndsWhatWaitsForAListenerOnAConnectionThatIsGivenUp) {
  if (!fabric_->has_names()) GTEST_SKIP() << "no address before there is a listener";
  client_->Start(client_inbox_.Handler());
  const ConnectionId given_up = *client_->Connect(ServerAt(fabric_->NewAddress()));
  Send(client_.get(), given_up, FrameOf(1, 1000));
  client_->Disconnect(given_up);
  completions_.WaitForAll();
}

TEST_P(TransportTest, KnowsWhoseAConnectionIs) {
  const ConnectionId to_server = StartBoth();
  Send(client_.get(), to_server, FrameOf(1, 10));
  const ConnectionId from = server_inbox_.WaitFor(1).at(0).from;
  EXPECT_EQ(server_->KeyOf(from), is_secured() ? client_->public_key() : PublicKey());
  EXPECT_EQ(server_->security(), fabric_->security());
}

TEST_P(TransportTest, AdmitsNobodyBeforeItIsToldWhom) {
  if (!is_secured()) GTEST_SKIP() << "an open listener admits everybody";
  std::atomic<bool> is_told = false;
  server_->Start([&](ConnectionId from, Frame frame) {
    EXPECT_TRUE(is_told);
    server_inbox_.Handler()(from, std::move(frame));
  });
  Listen();
  const ConnectionId to_server = StartClient();
  Send(client_.get(), to_server, FrameOf(1, 10));
  AwaitTrue([&] { return server_->stats().connections_new > 0; });
  is_told = true;
  server_->Admit(Everybody());
  EXPECT_EQ(server_inbox_.WaitFor(1).at(0).frame.header.step, 1u);
}

// No refusal that a connection would not come back from.
TEST_P(TransportTest, AdmitsFromTheMomentOnWhenAdmitReturns) {
  if (!is_secured()) GTEST_SKIP() << "an open listener admits everybody";
  StartServer(server_inbox_.Handler());
  Admission admission = Everybody();
  std::vector<std::unique_ptr<Transport>> others;
  Completions sent;
  for (Step step = 1; step <= 8; ++step) {
    Transport* const other = others.emplace_back(fabric_->MakeTransport()).get();
    other->Start([](ConnectionId, Frame) {});
    admission.keys.push_back(other->public_key());
    server_->Admit(admission);
    other->Send(*other->Connect(Server()), FrameOf(step, 10), sent.Expect());
  }
  EXPECT_EQ(server_inbox_.WaitFor(8).size(), 8u);
  EXPECT_EQ(server_->stats().connections_refused, 0u);
  for (const auto& other : others) CloseAndJoin(other.get());
  sent.WaitForAll();
}

TEST_P(TransportTest, CutsWhoIsNoLongerAdmitted) {
  if (!is_secured()) GTEST_SKIP() << "an open listener admits everybody";
  auto other = fabric_->MakeTransport();
  Inbox other_inbox;
  Completions others;
  other->Start(other_inbox.Handler());
  const ConnectionId to_server = StartBoth();
  server_->Admit({{client_->public_key(), other->public_key()}, kSecret});
  const ConnectionId others_way = *other->Connect(Server());
  other->Send(others_way, FrameOf(7, 10), others.Expect());
  server_inbox_.WaitFor(1);
  Send(client_.get(), to_server, FrameOf(8, 10));
  server_inbox_.WaitFor(2);
  EXPECT_EQ(server_->stats().connections_open, 2u);

  server_->Admit({{other->public_key()}, kSecret});
  AwaitTrue([&] { return server_->stats().connections_open == 1; });
  EXPECT_EQ(server_->stats().connections_cut, 1u);
  Send(client_.get(), to_server, FrameOf(9, 10));  // it may come back, and is refused
  AwaitTrue([&] { return server_->stats().connections_refused > 0; });
  other->Send(others_way, FrameOf(10, 10), others.Expect());
  EXPECT_EQ(server_inbox_.WaitFor(3).at(2).frame.header.step, 10u);
  EXPECT_EQ(server_inbox_.size(), 3u);
  CloseAndJoin(other.get());
  others.WaitForAll();
}

TEST_P(TransportTest, DropsAndCountsAFrameThatIsNotWhatItSays) {
  const ConnectionId to_server = StartBoth();
  Frame longer = FrameOf(1, 10);
  longer.header.payload_bytes = 9;
  Frame missing = FrameOf(2, 10);
  missing.payload = Buffer();
  Frame unasked = FrameOf(3, 10);
  unasked.header.payload_bytes = 0;
  unasked.header.payload_crc = 0;
  Frame flagged = FrameOf(4, 10);
  flagged.header.flags = 0x80;
  for (const Frame& bad : {longer, missing, unasked, flagged}) {
    Send(client_.get(), to_server, bad);
  }
  Send(client_.get(), to_server, FrameOf(5, 10));
  EXPECT_EQ(server_inbox_.WaitFor(1).at(0).frame.header.step, 5u);
  EXPECT_EQ(server_->stats().frames_malformed, 4u);
}

TEST_P(TransportTest, LeavesAWrongPayloadToItsReader) {
  // The transport reads no payload: a CRC that does not match arrives.
  const ConnectionId to_server = StartBoth();
  Frame frame = FrameOf(1, 10);
  frame.header.payload_crc ^= 1;
  Send(client_.get(), to_server, frame);
  const Frame arrived = server_inbox_.WaitFor(1).at(0).frame;
  // A frame that never left the machine's memory has no checksum to check.
  EXPECT_EQ(CheckPayload(arrived).code(),
            arrived.is_of_host ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
}

TEST_P(TransportTest, CountsFramesAndBytes) {
  const ConnectionId to_server = StartBoth();
  Send(client_.get(), to_server, FrameOf(1, 1000));
  Send(client_.get(), to_server, FrameOf(2, 0));
  Send(client_.get(), 999, FrameOf(2, 0));
  server_inbox_.WaitFor(2);
  completions_.WaitForAll();
  EXPECT_EQ(client_->stats().frames_sent, 2u);
  EXPECT_EQ(client_->stats().bytes_sent, 1000 + 2 * kHeaderBytes);
  EXPECT_EQ(client_->stats().sends_failed, 1u);
  EXPECT_EQ(server_->stats().frames_received, 2u);
  EXPECT_EQ(server_->stats().bytes_received, 1000 + 2 * kHeaderBytes);
  EXPECT_EQ(server_->stats().frames_malformed, 0u);
}

TEST_P(TransportTest, ReleasesEachPayloadOnce) {
  std::atomic<int> released{0};  // read after Join: nothing races
  std::vector<std::byte> memory(100000);
  {
    const ConnectionId to_server = StartBoth();
    Frame frame =
        MakeFrame(FrameOf(1, 0).header, Buffer::Wrap(memory, [&released] { ++released; }));
    Send(client_.get(), to_server, std::move(frame));
    server_inbox_.WaitFor(1);
    server_inbox_.Clear();
    completions_.WaitForAll();
  }
  CloseAndJoin(client_.get());
  CloseAndJoin(server_.get());
  EXPECT_EQ(released, 1);
}

template <typename T>
std::unique_ptr<Fabric> Make() {
  return std::make_unique<T>();
}

INSTANTIATE_TEST_SUITE_P(
    All, TransportTest,
    testing::Values(FabricParam{"Loopback", Make<LoopbackFabric>},
                    FabricParam{"ScriptedLoopback", Make<PumpedScriptFabric>},
                    FabricParam{"ZmqTcp", Make<OpenTcpFabric>},
                    FabricParam{"ZmqTcpAuthenticated", Make<AuthenticatedTcpFabric>},
                    FabricParam{"ZmqTcpEncrypted", Make<EncryptedTcpFabric>},
                    FabricParam{"ZmqIpc", Make<IpcFabric<LinkSecurity::kOpen>>},
                    FabricParam{"ZmqIpcAuthenticated",
                                Make<IpcFabric<LinkSecurity::kAuthenticated>>},
                    FabricParam{"ZmqIpcEncrypted", Make<IpcFabric<LinkSecurity::kEncrypted>>},
                    FabricParam{"IpcOfTheTable", Tabled("ipc")},
                    FabricParam{"Pipe", Tabled("pipe")},
                    FabricParam{"Shm", Make<ShmFabric<LinkSecurity::kOpen>>},
                    FabricParam{"ShmAuthenticated", Make<ShmFabric<LinkSecurity::kAuthenticated>>},
                    FabricParam{"ThrottledLoopback", Make<ThrottledFabric<LoopbackFabric>>},
                    FabricParam{"ThrottledZmqTcp", Make<ThrottledFabric<OpenTcpFabric>>}),
    [](const auto& info) { return std::string(info.param.name); });

#ifdef BDN_HAS_FABRIC
// A fabric of libfabric's beside ZeroMQ's `Network`.
template <typename Network>
class RdmaFabric final : public Fabric {
 public:
  explicit RdmaFabric(std::string provider, bool as_card = false)
      : provider_(std::move(provider)), as_card_(as_card) {}
  std::unique_ptr<Transport> MakeTransport() override {
    FabricOptions options;
    options.endpoint.provider = provider_;
    options.endpoint.as_card = as_card_;
    auto made = FabricTransport::Make(network_.MakeTransport(), options);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  std::string NewAddress() override { return network_.NewAddress(); }
  bool has_names() const override { return network_.has_names(); }
  LinkSecurity security() const override { return network_.security(); }
  std::string provider() const override { return provider_; }

 private:
  Network network_;
  const std::string provider_;
  const bool as_card_;
};

std::unique_ptr<Fabric> MakeRdmaTcp() {
  return std::make_unique<RdmaFabric<EncryptedTcpFabric>>("tcp;ofi_rxm");
}
// Memory as providers of cards ask for it.
std::unique_ptr<Fabric> MakeRdmaTcpAsCard() {
  return std::make_unique<RdmaFabric<OpenTcpFabric>>("tcp;ofi_rxm", /*as_card=*/true);
}

std::unique_ptr<Fabric> MakeRdmaBesideIpcAsCard() {
  return std::make_unique<RdmaFabric<IpcFabric<LinkSecurity::kAuthenticated>>>("tcp;ofi_rxm",
                                                                               /*as_card=*/true);
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportTest,
                         testing::Values(FabricParam{"Tcp", MakeRdmaTcp},
                                         FabricParam{"TcpAsCard", MakeRdmaTcpAsCard},
                                         FabricParam{"BesideIpcAsCard", MakeRdmaBesideIpcAsCard}),
                         [](const auto& info) { return std::string(info.param.name); });

// Beside a network without libzmq, whose build the thread sanitizer does not know.
std::unique_ptr<Fabric> MakeOverLoopback() {
  return std::make_unique<RdmaFabric<LoopbackFabric>>("tcp;ofi_rxm");
}
INSTANTIATE_TEST_SUITE_P(LibfabricOverLoopback, TransportTest,
                         testing::Values(FabricParam{"OfiRxm", MakeOverLoopback}),
                         [](const auto& info) { return std::string(info.param.name); });
#endif

}  // namespace
}  // namespace bdn
