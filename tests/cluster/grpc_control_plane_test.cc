#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/cluster/health.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/status_fetch.h"
#include "scheduler/service.h"
#include "tests/cluster/control_plane_suite.h"
#include "tests/transport/silent_proxy.h"

namespace bdn {
namespace {

class OverGrpc final : public SchedulerUnderTest {
 public:
  explicit OverGrpc(const JobOptions& options) {
    auto service = SchedulerService::Start("127.0.0.1:0", options, &clock_);
    EXPECT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }
  std::unique_ptr<ControlPlane> Connect(const Credentials& credentials) override {
    return *SchedulerClient::Create("127.0.0.1:" + std::to_string(service_->port()), credentials,
                                    &clock_);
  }

 private:
  const SteadyClock clock_;
  std::unique_ptr<SchedulerService> service_;
};

std::unique_ptr<SchedulerUnderTest> Make(const JobOptions& options) {
  return std::make_unique<OverGrpc>(options);
}

using ::testing::HasSubstr;

constexpr WaitReports kSoon = {.first_of_join = absl::Milliseconds(20),
                               .interval = absl::Milliseconds(20)};
constexpr absl::Duration kShort = absl::Milliseconds(300);

TEST(GrpcWait, SaysWhatIsTriedWhereThereIsNoScheduler) {
  const SteadyClock clock;
  const auto control = *SchedulerClient::Create("127.0.0.1:1", {}, &clock, kSoon);
  ::testing::internal::CaptureStderr();
  const absl::Time begun = clock.Now();
  const absl::Status status = control->Join({.host = "h"}, kShort).status();
  EXPECT_LT(clock.Now() - begun, absl::Seconds(10)) << "the time to join is over";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("joining: no answer from a scheduler at 127.0.0.1:1"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  for (const char* fact : {"scheduler at 127.0.0.1:1 cannot be reached", "refused",
                           "is bandoneon-scheduler running there"}) {
    EXPECT_THAT(status.message(), HasSubstr(fact));
  }
}

TEST(GrpcWait, NamesWhatKeepsSilentAndWhatIsNoScheduler) {
  const SteadyClock clock;
  const auto join = [&](const std::string& address) {
    const absl::Status status = (*SchedulerClient::Create(address, {}, &clock, kSoon))
                                    ->Join({.host = "h"}, kShort)
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(address));
    return std::string(status.message());
  };
  const int fd = *OpenListeningSocket("127.0.0.1:0");
  sockaddr_in bound = {};
  socklen_t size = sizeof(bound);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size), 0);
  EXPECT_THAT(join("127.0.0.1:" + std::to_string(ntohs(bound.sin_port))),
              HasSubstr("nothing answers at that address"));
  close(fd);
  const auto other = *HealthServer::Start("127.0.0.1:0");
  EXPECT_THAT(join("127.0.0.1:" + std::to_string(other->port())),
              HasSubstr("is no bandoneon-scheduler"));
}

TEST(GrpcWait, SaysWhomItWaitsFor) {
  const SteadyClock clock;
  JobOptions options;
  options.config.num_workers = 2;
  options.config.num_servers = 1;
  const auto service = *SchedulerService::Start("127.0.0.1:0", options, &clock);
  const auto connect = [&] {
    return *SchedulerClient::Create("127.0.0.1:" + std::to_string(service->port()), {}, &clock,
                                    kSoon);
  };
  const auto first = connect();
  ::testing::internal::CaptureStderr();
  const absl::Status alone = first->Join({.wanted_rank = 0, .host = "h"}, kShort).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kDeadlineExceeded) << alone;
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("joining, by the scheduler at 127.0.0.1:" +
                        std::to_string(service->port()) + ": waiting for worker rank"));

  std::vector<std::unique_ptr<ControlPlane>> nodes;
  std::vector<std::thread> joins;
  for (const JoinRequest& request :
       {JoinRequest{.wanted_rank = 0, .host = "h"}, JoinRequest{.wanted_rank = 1, .host = "h"},
        JoinRequest{.role = Role::kServer, .endpoints = {EndpointOf("tcp://x")}, .host = "h"}}) {
    nodes.push_back(connect());
    joins.emplace_back([node = nodes.back().get(), request] {
      EXPECT_TRUE(node->Join(request, absl::Seconds(30)).ok());
    });
  }
  for (std::thread& join : joins) join.join();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(nodes[0]->Barrier("b", kShort).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("barrier 'b': waiting for worker 1"));
}

// So do threads that end two steps one after the other.
TEST(GrpcHeartbeat, SaysTheHighestStepThoughAnEarlierOneIsToldLater) {
  const SteadyClock clock;
  JobOptions options;
  options.config.num_workers = 1;
  options.config.num_servers = 1;
  options.config.heartbeat_interval = absl::Milliseconds(5);
  const auto service = *SchedulerService::Start("127.0.0.1:0", options, &clock);
  const std::string address = "127.0.0.1:" + std::to_string(service->port());
  const auto worker = *SchedulerClient::Create(address, {}, &clock, kSoon);
  const auto server = *SchedulerClient::Create(address, {}, &clock, kSoon);
  std::thread join([&] {
    EXPECT_TRUE(
        server
            ->Join({.role = Role::kServer, .endpoints = {EndpointOf("tcp://x")}, .host = "h"},
                   absl::Seconds(30))
            .ok());
  });
  EXPECT_TRUE(worker->Join({.host = "h"}, absl::Seconds(30)).ok());
  join.join();
  const auto told = [&](const char* what) {
    uint64_t most = 0;
    const auto status = nlohmann::json::parse(*FetchStatusJson(address, {}, absl::Seconds(30)));
    for (const auto& node : status.at("nodes")) most = std::max<uint64_t>(most, node.at(what));
    return most;
  };
  worker->ReportProgress({.step = 20, .bytes_sent = 1, .ended = 20});
  worker->ReportProgress({.step = 19, .bytes_sent = 2, .ended = 19});
  while (told("bytes_sent") < 2) std::this_thread::yield();
  EXPECT_EQ(told("step"), 20u);
}

// After a link was cut for a while, TCP may wait for as long again before it sends on: to a caller
// that waits for it, the connection is silent for good.
TEST(GrpcHeartbeat, ALeaseOutlivesALinkThatWasCutForLessThanIt) {
  const SteadyClock clock;
  JobOptions options;
  options.config.num_workers = 1;
  options.config.num_servers = 1;
  options.config.heartbeat_interval = absl::Milliseconds(100);
  options.config.lease_timeout = absl::Seconds(2);
  const auto service = *SchedulerService::Start("127.0.0.1:0", options, &clock);
  const std::string address = "127.0.0.1:" + std::to_string(service->port());
  SilentProxy proxy("tcp://" + address);
  const auto worker =
      *SchedulerClient::Create(proxy.address().substr(std::string("tcp://").size()), {}, &clock);
  const auto server = *SchedulerClient::Create(address, {}, &clock);
  std::thread join([&] {
    EXPECT_TRUE(
        server
            ->Join({.role = Role::kServer, .endpoints = {EndpointOf("tcp://x")}, .host = "h"},
                   absl::Seconds(30))
            .ok());
  });
  const NodeId node = worker->Join({.host = "h"}, absl::Seconds(30))->node;
  join.join();
  std::promise<absl::Status> failed;
  worker->Watch({.on_failure = [&](const absl::Status& status) { failed.set_value(status); }});
  std::future<absl::Status> failure = failed.get_future();
  proxy.GoSilent();
  const absl::Time cut = clock.Now();
  // It is heard again, and still after several leases.
  absl::Time heard;
  do {
    ASSERT_EQ(failure.wait_for(std::chrono::milliseconds(10)), std::future_status::timeout)
        << failure.get();
    service->host()->Read([&](const Job& job, absl::Time) {
      ASSERT_TRUE(job.failure().ok()) << job.failure();
      heard = job.table().Find(node)->last_heard;
    });
  } while (heard < cut + 2 * options.config.lease_timeout);
  EXPECT_GE(proxy.num_accepted(), 2);
  // A call on the first connection would wait for ever: a dead connection ends the worker's part.
  ASSERT_EQ(failure.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_THAT(std::string(failure.get().message()), HasSubstr("has carried nothing for"));
}

TEST(GrpcDeclare, IsRepeatedWhenItsConnectionBreaks) {
  const SteadyClock clock;
  JobOptions options;
  options.config.num_workers = 2;
  options.config.num_servers = 1;
  options.broken_connection_grace = absl::Minutes(1);
  const auto service = *SchedulerService::Start("127.0.0.1:0", options, &clock);
  const std::string address = "127.0.0.1:" + std::to_string(service->port());
  SilentProxy proxy("tcp://" + address);
  const std::string behind_proxy = proxy.address().substr(std::string("tcp://").size());
  std::unique_ptr<ControlPlane> nodes[3];
  std::vector<std::thread> joins;
  for (int i = 0; i < 3; ++i) {
    nodes[i] = *SchedulerClient::Create(i == 0 ? behind_proxy : address, {}, &clock);
    joins.emplace_back([node = nodes[i].get(), i] {
      const JoinRequest worker{.wanted_rank = i, .host = "h"};
      const JoinRequest server{
          .role = Role::kServer, .endpoints = {EndpointOf("tcp://x")}, .host = "h"};
      EXPECT_TRUE(node->Join(i < 2 ? worker : server, absl::Seconds(30)).ok());
    });
  }
  for (std::thread& join : joins) join.join();
  nodes[2]->Watch({.on_catalogue = [&](const SharedDelta& delta) {
    EXPECT_TRUE(nodes[2]->AcknowledgePlacement(delta->version).ok());
  }});
  const std::vector<TensorDeclaration> tensors = {{.name = "w", .elements = 5}};
  std::thread first([&] {
    const auto declared = nodes[0]->Declare(tensors, absl::Seconds(30));
    EXPECT_TRUE(declared.ok()) << declared.status();
  });
  const auto is_waiting = [&] {
    std::string waits;
    service->host()->Read([&](const Job& job, absl::Time) {
      for (const NodeId node : {1, 2, 3}) waits += job.WaitsOf(node);
    });
    return !waits.empty();
  };
  while (!is_waiting()) std::this_thread::yield();
  proxy.Cut();
  while (proxy.num_accepted() < 2) std::this_thread::yield();
  const auto declared = nodes[1]->Declare(tensors, absl::Seconds(30));
  EXPECT_TRUE(declared.ok()) << declared.status();
  first.join();
}

INSTANTIATE_TEST_SUITE_P(Grpc, ControlPlaneSuite, ::testing::Values(SchedulerKind{"Grpc", &Make}));

}  // namespace
}  // namespace bdn
