#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>

#include "common/cluster/control_messages.h"
#include "common/cluster/status_fetch.h"
#include "proto/control.grpc.pb.h"
#include "scheduler/service.h"
#include "tests/support/manual_clock.h"

// A scheduler of which one call keeps the thread of work to itself.

namespace bdn {
namespace {

namespace wire = bandoneon::control;

TEST(BusyScheduler, HeartbeatsAndLeasesGoOn) {
  ManualClock clock;
  JobOptions options;
  options.config.num_workers = 1;
  options.config.num_servers = 1;
  options.config.lease_timeout = absl::Seconds(5);
  const auto service = *SchedulerService::Start("127.0.0.1:0", options, &clock);
  const std::string address = "127.0.0.1:" + std::to_string(service->port());
  const auto stub =
      wire::Scheduler::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto join = [&](Role role, uint64_t nonce) {
    wire::JoinRequest request;
    Write(JoinRequest{.role = role, .endpoints = {EndpointOf("tcp://x")}, .host = "h"}, &request);
    request.set_timeout_ms(-1);
    request.set_nonce(nonce);
    request.set_join_id(nonce);
    wire::JoinReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub->Join(&context, request, &reply).ok());
    return reply.caller();
  };
  auto server = std::async(std::launch::async, [&] { return join(Role::kServer, 1); });
  const wire::Caller worker = join(Role::kWorker, 2);
  const auto heartbeat = [&](const wire::Caller& caller) {
    wire::HeartbeatRequest request;
    *request.mutable_caller() = caller;
    wire::Empty reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return stub->Heartbeat(&context, request, &reply).ok();
  };
  const wire::Caller callers[] = {worker, server.get()};

  std::promise<void> done;
  service->PostWork([is_done = done.get_future().share()] { is_done.wait(); });
  auto status = std::async(std::launch::async,
                           [&] { return FetchStatusJson(address, {}, absl::Minutes(1)).ok(); });
  // A longer step would be a pause of the scheduler itself.
  constexpr absl::Duration kStep = absl::Milliseconds(500);
  for (int i = 0; i < 40; ++i) {
    clock.Advance(kStep);
    for (const wire::Caller& caller : callers) ASSERT_TRUE(heartbeat(caller));
  }
  service->host()->Read(
      [](const Job& job, absl::Time) { EXPECT_EQ(job.state(), Job::State::kRunning); });
  // A node that is silent meanwhile is lost.
  for (int i = 0; i < 9; ++i) {
    clock.Advance(kStep);
    EXPECT_TRUE(heartbeat(worker));
  }
  for (int i = 0; i < 2; ++i) {
    clock.Advance(kStep);
    (void)heartbeat(worker);
  }
  while (heartbeat(worker)) std::this_thread::yield();
  service->host()->Read([](const Job& job, absl::Time) {
    EXPECT_EQ(job.failure().message().substr(0, 8), "server 0") << job.failure();
  });
  EXPECT_EQ(status.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  done.set_value();
  EXPECT_TRUE(status.get());
}

}  // namespace
}  // namespace bdn
