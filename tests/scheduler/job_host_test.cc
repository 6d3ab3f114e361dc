#include "scheduler/job_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// A host of one worker and one server, at a time that stands still until the test moves it.
class JobHostTest : public ::testing::Test {
 protected:
  static JobOptions Options() {
    JobOptions options;
    options.config.job_id = "host";
    options.config.num_workers = 1;
    options.config.num_servers = 1;
    options.join_timeout = absl::Seconds(60);
    return options;
  }

  std::future<Job::Completion> Join(Role role, absl::Duration timeout = absl::InfiniteDuration()) {
    JoinRequest request{.role = role, .host = "here"};
    if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
    const auto answer = std::make_shared<std::promise<Job::Completion>>();
    host_.Join(request, kControlVersion, timeout,
               [answer](const Job::Completion& done) { answer->set_value(done); });
    return answer->get_future();
  }

  ManualClock clock_;
  JobHost host_{Options(), &clock_};
};

TEST_F(JobHostTest, AWaitEndsByTheClockThatWasHandedDown) {
  auto joining = Join(Role::kWorker, absl::Seconds(10));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(joining.get().status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(JobHostTest, ALeaseEndsByTheClockThatWasHandedDown) {
  auto worker = Join(Role::kWorker);
  auto server = Join(Role::kServer);
  ASSERT_TRUE(worker.get().status.ok());
  const NodeId lost = server.get().join.node;
  std::promise<absl::Status> failed;
  host_.AddObserver(JobHost::Observed::kJob, [&, told = false]() mutable {
    const absl::Status failure = host_.ViewOf(lost).failure;
    if (failure.ok() || told) return;
    told = true;
    failed.set_value(failure);
  });
  // The other one is heard all the time.
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    (void)host_.Heartbeat(1, {});
  }
  EXPECT_THAT(std::string(failed.get_future().get().message()),
              ContainsRegex("server 0 .* stopped answering (5\\.[05]|6\\.0) s ago"));
  host_.Close();
}

// The clock jumps, as after a signal that stopped the process, or a pause of the machine.
TEST_F(JobHostTest, AfterAPauseOfItsOwnLeasesHaveTheirTimeAgain) {
  auto worker = Join(Role::kWorker);
  auto server = Join(Role::kServer);
  ASSERT_TRUE(worker.get().status.ok());
  const NodeId silent = server.get().join.node;
  for (const absl::Duration pause : {absl::Seconds(4.5), absl::Minutes(10)}) {
    clock_.Advance(absl::Seconds(0.9));  // since it was heard
    ASSERT_TRUE(host_.Heartbeat(1, {}).ok());
    clock_.Advance(pause);
    ASSERT_TRUE(host_.Heartbeat(1, {}).ok());
    for (int i = 0; i < 8; ++i) {  // within what was left
      ASSERT_TRUE(host_.ViewOf(silent).failure.ok()) << host_.ViewOf(silent).failure;
      clock_.Advance(absl::Milliseconds(500));
      ASSERT_TRUE(host_.Heartbeat(1, {}).ok());
    }
    ASSERT_TRUE(host_.Heartbeat(silent, {}).ok());
  }
  for (int i = 0; i < 11; ++i) {  // and not for longer
    clock_.Advance(absl::Milliseconds(500));
    (void)host_.Heartbeat(1, {});
  }
  std::promise<absl::Status> failed;
  host_.AddObserver(JobHost::Observed::kJob, [&, told = false]() mutable {
    if (host_.ViewOf(silent).failure.ok() || std::exchange(told, true)) return;
    failed.set_value(host_.ViewOf(silent).failure);
  });
  EXPECT_THAT(std::string(failed.get_future().get().message()), HasSubstr("stopped answering 5."));
  host_.Close();
}

TEST_F(JobHostTest, CloseEndsEveryWait) {
  auto joining = Join(Role::kWorker);
  host_.Close();
  EXPECT_EQ(joining.get().status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace bdn
