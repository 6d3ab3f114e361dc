#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/certs/certificates.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/health.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/status_fetch.h"
#include "common/cluster/trace_fetch.h"
#include "proto/control.grpc.pb.h"
#include "scheduler/service.h"

// The answers of a scheduler to strangers and liars, over real sockets.

namespace bdn {
namespace {

namespace fs = std::filesystem;
namespace wire = bandoneon::control;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);

// Certificates of a job's roles, made when they are first asked for.
class Certificates {
 public:
  explicit Certificates(const std::string& job) : job_(job) {
    std::string pattern = (fs::temp_directory_path() / "bdn-security-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    EXPECT_TRUE(MakeAuthority(folder_, job_, {absl::Now(), absl::Hours(24)}).ok());
  }
  ~Certificates() { fs::remove_all(folder_); }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  TlsFiles Files(const std::string& role, absl::Time now = absl::Now()) const {
    const auto files = IssueCertificate(folder_, role, {role}, {now, absl::Hours(1)});
    EXPECT_TRUE(files.ok()) << files.status();
    return *files;
  }
  Credentials Of(const std::string& role, const std::string& token = "") const {
    return Credentials(token, Files(role), job_);
  }

 private:
  const std::string job_;
  std::string folder_;
};

class SchedulerSecurityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { RouteGrpcLog(); }  // which has much to say of strangers

  void Start(const Credentials& credentials, int workers = 1) {
    JobOptions options;
    options.config.job_id = "job";
    options.config.num_workers = workers;
    options.config.num_servers = 1;
    options.config.heartbeat_interval = absl::Milliseconds(100);
    options.config.lease_timeout = absl::Seconds(5);
    options.credentials = credentials;
    auto service = SchedulerService::Start("127.0.0.1:0", options, &clock_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(service_->port()); }

  std::unique_ptr<ControlPlane> Connect(const Credentials& credentials) const {
    return *SchedulerClient::Create(address(), credentials, &clock_);
  }
  absl::Status Ask(const Credentials& credentials) const {
    return FetchStatusJson(address(), credentials, kLong).status();
  }
  std::unique_ptr<wire::Scheduler::Stub> Stub(const Credentials& credentials) const {
    return wire::Scheduler::NewStub(ConnectChannel(address(), credentials));
  }
  static JoinRequest Request(Role role) {
    JoinRequest request{.role = role, .host = RoleName(role)};
    if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://127.0.0.1:1")};
    return request;
  }
  // Both nodes of a job join and watch.
  void Fill(const Credentials& server, const Credentials& worker) {
    server_ = Connect(server);
    worker_ = Connect(worker);
    auto joining = std::async(std::launch::async,
                              [this] { return server_->Join(Request(Role::kServer), kLong); });
    const auto joined = worker_->Join(Request(Role::kWorker), kLong);
    ASSERT_TRUE(joined.ok()) << joined.status();
    ASSERT_TRUE(joining.get().ok());
    for (ControlPlane* node : {server_.get(), worker_.get()}) {
      node->Watch({.on_failure = [this](const absl::Status& failure) { failed_ = failure; }});
    }
  }
  // The job does what jobs do, to its end.
  void FinishWell() {
    EXPECT_TRUE(worker_->Barrier("b", kLong).ok());
    EXPECT_TRUE(worker_->Leave(absl::OkStatus(), kLong).ok());
    EXPECT_TRUE(server_->Leave(absl::OkStatus(), kLong).ok());
    worker_->Close();
    server_->Close();
    EXPECT_TRUE(failed_.ok()) << failed_;
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }

  const SteadyClock clock_;
  std::unique_ptr<SchedulerService> service_;
  std::unique_ptr<ControlPlane> server_;
  std::unique_ptr<ControlPlane> worker_;
  absl::Status failed_;  // read once both are closed
};

// ---- certificates

TEST_F(SchedulerSecurityTest, AJobRunsWithCertificatesOfItsRoles) {
  const Certificates certs("job");
  Start(certs.Of("scheduler"));
  Fill(certs.Of("server"), certs.Of("worker"));
  EXPECT_TRUE(Ask(certs.Of("observer")).ok());
  FinishWell();
}

TEST_F(SchedulerSecurityTest, RecordingsAreForMembersAndObserversAlone) {
  const Certificates certs("job");
  const Certificates others("job");
  Start(certs.Of("scheduler", "secret"));
  Fill(certs.Of("server", "secret"), certs.Of("worker", "secret"));
  const DumpRequest request = {.patience = kLong};
  size_t nodes = 0;
  const auto dump = [&](const Credentials& credentials) {
    return FetchTraces(address(), credentials, request, [&](const DumpedNode& node) {
      EXPECT_EQ(node.end.message(), "it records nothing");
      ++nodes;
    });
  };
  EXPECT_EQ(dump(others.Of("observer", "secret")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(dump(certs.Of("observer")).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(dump(certs.Of("observer", "wrong")).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(nodes, 0u);
  EXPECT_TRUE(dump(certs.Of("observer", "secret")).ok());
  EXPECT_EQ(nodes, 2u);
  // A piece of a recording, too, comes of members alone.
  const auto stub = Stub(certs.Of("observer"));
  grpc::ClientContext context;
  wire::Empty reply;
  EXPECT_EQ(stub->UploadTrace(&context, wire::TracePiece(), &reply).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  FinishWell();
}

TEST_F(SchedulerSecurityTest, WhoHasNoCertificateOfTheJobGetsNothing) {
  const Certificates certs("job");
  const Certificates others("job");
  Start(certs.Of("scheduler"));
  EXPECT_EQ(Ask({}).code(), absl::StatusCode::kUnavailable);  // in the clear
  EXPECT_EQ(Ask(others.Of("worker")).code(), absl::StatusCode::kUnavailable);
  // Trusts the scheduler, and has itself been certified by another.
  TlsFiles mixed = others.Files("worker");
  mixed.authority = certs.Files("worker").authority;
  EXPECT_EQ(Ask(Credentials("", mixed, "job")).code(), absl::StatusCode::kUnavailable);
  const TlsFiles expired = certs.Files("observer", absl::Now() - absl::Hours(2));
  EXPECT_EQ(Ask(Credentials("", expired, "job")).code(), absl::StatusCode::kUnavailable);

  // And with none at all.
  std::ifstream authority(mixed.authority);
  const std::string root((std::istreambuf_iterator<char>(authority)), {});
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = root;
  const auto stub =
      wire::Scheduler::NewStub(grpc::CreateChannel(address(), grpc::SslCredentials(options)));
  grpc::ClientContext context;
  wire::StatusReply reply;
  EXPECT_EQ(stub->Status(&context, wire::Empty(), &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_->counts().requests_read, 0u);
  EXPECT_TRUE(Ask(certs.Of("worker")).ok());
}

TEST_F(SchedulerSecurityTest, ACertificateIsGoodForItsRoleAlone) {
  const Certificates certs("job");
  Start(certs.Of("scheduler"));
  const auto refused = [&](const std::string& certified, Role role) {
    return Connect(certs.Of(certified))->Join(Request(role), kLong).status();
  };
  for (const absl::Status& status :
       {refused("worker", Role::kServer), refused("server", Role::kWorker),
        refused("observer", Role::kWorker), refused("scheduler", Role::kServer)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(Text(status), HasSubstr("the certificate of"));
  }
  Fill(certs.Of("server"), certs.Of("worker"));  // no rank was taken meanwhile
  FinishWell();
}

TEST_F(SchedulerSecurityTest, ACertificateOfAnotherJobIsRefusedByBothEnds) {
  const Certificates certs("job");
  Start(certs.Of("scheduler"));
  // The certificate is of the same authority: the job that is asked for decides.
  const Credentials theirs("", certs.Files("worker"), "another");
  EXPECT_THAT(Text(Ask(theirs)), HasSubstr("not of a scheduler of this job"));
  service_.reset();
  Start(Credentials("", certs.Files("scheduler"), "another"));
  EXPECT_EQ(Ask(certs.Of("worker")).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SchedulerSecurityTest, NobodyElseIsTakenForTheScheduler) {
  const Certificates certs("job");
  Start(certs.Of("worker", "secret"));  // a worker that poses as one
  EXPECT_THAT(Text(Ask(certs.Of("server", "secret"))), HasSubstr("not of a scheduler"));
  const auto joined =
      Connect(certs.Of("server", "secret"))->Join(Request(Role::kServer), absl::Milliseconds(1));
  EXPECT_THAT(Text(joined.status()), AllOf(HasSubstr(address()), HasSubstr("not of a scheduler")));
  EXPECT_EQ(service_->counts().requests_read, 0u);
}

TEST_F(SchedulerSecurityTest, FilesThatChangeAreReadAgain) {
  const Certificates old_certs("job");
  const Certificates new_certs("job");
  const TlsFiles files = old_certs.Files("scheduler");
  Start(Credentials("", files, "job"));
  const Credentials asks = new_certs.Of("observer");
  EXPECT_FALSE(Ask(asks).ok());
  const TlsFiles next = new_certs.Files("scheduler");
  for (const auto& [from, to] :
       {std::pair(next.authority, files.authority), std::pair(next.certificate, files.certificate),
        std::pair(next.key, files.key)}) {
    fs::rename(from, to);
  }
  const absl::Time deadline = clock_.Now() + kLong;
  while (!Ask(asks).ok()) ASSERT_LT(clock_.Now(), deadline) << "the new files were not read";
}

// ---- tokens

// Returns a request of `bytes` of declarations that say nothing.
wire::DeclareRequest EmptyDeclarations(int bytes) {
  wire::DeclareRequest request;
  for (int i = 0; i < bytes / 2; ++i) request.add_tensors();
  return request;
}

TEST_F(SchedulerSecurityTest, WithoutTheTokenNothingIsReadHoweverLarge) {
  Start(Credentials("secret"));
  const wire::DeclareRequest large = EmptyDeclarations(4 << 20);
  for (const char* token : {"", "guess", "Secret"}) {
    const auto stub = Stub(Credentials(token));
    grpc::ClientContext context;
    if (*token != '\0') context.AddMetadata("bandoneon-token", token);
    wire::DeclareReply reply;
    const grpc::Status status = stub->Declare(&context, large, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  }
  EXPECT_EQ(service_->counts().requests_read, 0u);
  EXPECT_EQ(service_->counts().calls_refused, 3u);
}

TEST_F(SchedulerSecurityTest, AStrangersJoinAsServerTakesNoRank) {
  Start(Credentials("secret"));
  for (const char* token : {"", "guess"}) {
    const absl::Status status =
        Connect(Credentials(token))->Join(Request(Role::kServer), kLong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(Text(status), Not(HasSubstr("'job'")));  // what the asker did not say
  }
  Fill(Credentials("secret"), Credentials("secret"));
  FinishWell();
}

TEST_F(SchedulerSecurityTest, AReplayedJoinIsRefused) {
  Start(Credentials(), 3);
  wire::JoinRequest join;
  Write(Request(Role::kWorker), &join);
  join.set_nonce(77);
  join.set_join_id(77);
  join.set_timeout_ms(-1);
  const auto first = Stub({});
  const auto second = Stub({});
  grpc::ClientContext waiting;
  auto joined = std::async(std::launch::async, [&] {
    wire::JoinReply reply;
    return first->Join(&waiting, join, &reply);
  });
  // Whichever comes second is refused, at once; the other one waits for the rest of the job.
  grpc::ClientContext replayed;
  auto again = std::async(std::launch::async, [&] {
    wire::JoinReply reply;
    return second->Join(&replayed, join, &reply);
  });
  std::string seen;
  const absl::Time deadline = clock_.Now() + kLong;
  while (joined.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready &&
         again.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    ASSERT_LT(clock_.Now(), deadline) << "neither was refused";
  }
  waiting.TryCancel();
  replayed.TryCancel();
  const grpc::Status ends[] = {joined.get(), again.get()};
  EXPECT_EQ(std::count_if(std::begin(ends), std::end(ends),
                          [](const grpc::Status& end) {
                            return end.error_code() == grpc::StatusCode::ALREADY_EXISTS;
                          }),
            1);
}

// ---- connections

int ConnectRaw(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

// Returns the number of raw connections that fit into this process, which has both ends of each.
size_t ConnectionsThatFit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(10000, (limit.rlim_cur - 300) / 2);
}

TEST_F(SchedulerSecurityTest, AJobSurvivesScannersAndThousandsOfConnectionsThatSayNothing) {
  Start(Credentials("secret"));
  Fill(Credentials("secret"), Credentials("secret"));
  const std::string openings[] = {
      "",                    // says nothing
      "PRI * HTTP/2.0\r\n",  // half of what HTTP/2 begins with
      std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(3, '\0'),
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",            // a scanner
      std::string("\x16\x03\x01\x02\x00\x01\x00", 7)  // half a TLS greeting
  };
  std::vector<int> connections;
  const size_t count = ConnectionsThatFit();
  ASSERT_GE(count, 300u);
  while (connections.size() < count) {
    const int fd = ConnectRaw(service_->port());
    ASSERT_GE(fd, 0) << "after " << connections.size();
    const std::string& opening = openings[connections.size() % std::size(openings)];
    if (!opening.empty()) (void)!write(fd, opening.data(), opening.size());
    connections.push_back(fd);
    // In steps that the system's queue of new connections holds, each of which the job outlives.
    if (connections.size() % 100 == 0) {
      const absl::Status met = worker_->Barrier("b", kLong);
      ASSERT_TRUE(met.ok()) << met;
    }
  }
  // A caller that comes now waits among them for the first answer, and gets it.
  absl::Status asked = Ask(Credentials("secret"));
  for (const absl::Time deadline = clock_.Now() + kLong; !asked.ok() && clock_.Now() < deadline;) {
    asked = Ask(Credentials("secret"));
  }
  EXPECT_TRUE(asked.ok()) << asked;
  // A connection that never says what it wants is cut off.
  for (size_t i = 0; i < std::size(openings); ++i) {
    pollfd cut = {connections[i], POLLRDHUP, 0};
    EXPECT_EQ(poll(&cut, 1, 30000), 1) << "connection " << i << " is still open";
  }
  for (const int fd : connections) close(fd);
  FinishWell();
}

// A client's greeting of TLS 1.3, in hex.
constexpr char kGreeting[] =
    "16030100e5010000e10303247b9d4c733da81e8fb1b780197307d01306fe66d9d76537a1a238f2041a8a9d20"
    "2c0c22cab01b7d61d0a041fb6a797c6289dc0fa261616fed81df3a7273f042ed000813021303130100ff0100"
    "0090000b000403000102000a00160014001d0017001e00190018010001010102010301040023000000100005"
    "00030268320016000000170000000d001e001c040305030603080708080809080a080b080408050806040105"
    "010601002b0003020304002d00020101003300260024001d002045b70da0fc9f81c1d72b8957cec0b70892ed"
    "e5e778932bd8cbeb86e25d32d932";

// Returns the bytes on the heap; 0 where a sanitizer has another heap.
size_t BytesAllocated() { return mallinfo2().uordblks; }

TEST_F(SchedulerSecurityTest, HandshakesThatNobodyGoesOnWithTakeBoundedMemory) {
  const Certificates certs("job");
  Start(certs.Of("scheduler"));
  Fill(certs.Of("server"), certs.Of("worker"));
  const std::string greeting = absl::HexStringToBytes(kGreeting);
  ConnectionsThatFit();  // raises the limit
  const size_t before = BytesAllocated();
  size_t most = 0;
  for (uint64_t wave = 1; wave <= 2; ++wave) {
    std::vector<int> connections;
    while (connections.size() < 1500) {
      const int fd = ConnectRaw(service_->port());
      ASSERT_GE(fd, 0) << "after " << connections.size();
      (void)!write(fd, greeting.data(), greeting.size());
      connections.push_back(fd);
    }
    const absl::Time deadline = clock_.Now() + kLong;
    while (service_->counts().connections_cut + service_->counts().connections_without_call <
           wave * 900) {
      ASSERT_LT(clock_.Now(), deadline) << service_->counts().connections_cut << " were cut";
      most = std::max(most, BytesAllocated() - std::min(before, BytesAllocated()));
      std::this_thread::yield();
    }
    EXPECT_TRUE(Ask(certs.Of("observer")).ok()) << "who comes in good faith comes among them";
    for (const int fd : connections) close(fd);
  }
  EXPECT_LT(most, size_t{80} << 20);
  FinishWell();
}

TEST_F(SchedulerSecurityTest, CountsWhoCameToNothing) {
  const Certificates certs("job");
  const Certificates others("job");
  Start(certs.Of("scheduler"));
  EXPECT_TRUE(Ask(certs.Of("observer")).ok());
  EXPECT_EQ(service_->counts().connections_without_call, 0u);
  EXPECT_FALSE(Ask(others.Of("observer")).ok());
  for (const absl::Time deadline = clock_.Now() + kLong;
       service_->counts().connections_without_call == 0;) {
    ASSERT_LT(clock_.Now(), deadline);
    std::this_thread::yield();
  }
}

// The time of a handshake is of the whole, however often a byte of it comes.
TEST_F(SchedulerSecurityTest, WhoGoesOnByteByByteIsCutOff) {
  Start(Credentials("secret"));
  // The beginning of HTTP/2, and settings of 16,380 bytes that never end.
  const std::string opening = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") +
                              std::string("\x00\x3f\xfc\x04\x00\x00\x00\x00\x00", 9);
  const int fd = ConnectRaw(service_->port());
  ASSERT_GE(fd, 0);
  ASSERT_EQ(write(fd, opening.data(), opening.size()), static_cast<ssize_t>(opening.size()));
  const absl::Time deadline = clock_.Now() + absl::Seconds(30);
  pollfd cut = {fd, POLLRDHUP, 0};
  int sent = 0;
  while (poll(&cut, 1, /*milliseconds=*/100) == 0) {
    ASSERT_LT(clock_.Now(), deadline) << "it is still open after " << sent << " bytes";
    sent += static_cast<int>(send(fd, "\0", 1, MSG_NOSIGNAL));
  }
  EXPECT_GT(sent, 10) << "it was cut for what it sent";
  close(fd);
}

}  // namespace
}  // namespace bdn
