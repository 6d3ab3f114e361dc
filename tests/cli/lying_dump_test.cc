#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/cluster/scheduler_client.h"
#include "scheduler/service.h"

// `bandoneon trace dump` of a job whose nodes send recordings that are not theirs.

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A recording of worker 1 of job "golden", which is its node 2.
std::string Golden() {
  std::ifstream file(BDN_GOLDEN_DIR "/recording.bdntrace", std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

std::string Replaced(std::string bytes, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  bytes.replace(bytes.find(from), from.size(), to);
  return bytes;
}

class LyingDumpTest : public ::testing::Test {
 protected:
  using Recording = std::function<std::string()>;

  void SetUp() override {
    std::string name = testing::TempDir() + "/lying-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    JobOptions options;
    options.config.job_id = "golden";
    options.config.num_workers = 2;
    options.config.num_servers = 1;
    auto service = SchedulerService::Start("127.0.0.1:0", options, &clock_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }
  void TearDown() override {
    for (auto& node : nodes_) node->Close();
    std::filesystem::remove_all(directory_);
  }

  // Lets a node join. Its number is one more than that of the node before.
  void Join(Role role, Rank rank, Recording recording) {
    auto* const node =
        nodes_.emplace_back(*SchedulerClient::Create(address(), Credentials(), &clock_)).get();
    JoinRequest request{.role = role, .wanted_rank = rank, .host = "evil\x1b[2J\n:1"};
    if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
    joins_.push_back(std::async(std::launch::async, [=, this] {
      EXPECT_TRUE(node->Join(request, absl::Seconds(60)).ok());
      node->Watch({.on_dump = [recording](const DumpOrder&) { return recording(); }});
    }));
    for (size_t here = 0; here < joins_.size();) {
      service_->host()->Read(
          [&](const Job& job, absl::Time) { here = job.table().members().size(); });
    }
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(service_->port()); }

  // Runs the command, whose output it returns.
  std::string Dump(const std::string& name) {
    for (auto& join : joins_) join.wait();
    const std::string command = std::string(BDN_COMMAND_BINARY) + " trace dump --scheduler " +
                                address() + " -o " + directory_ + "/" + name + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> some;
    while (const size_t count = fread(some.data(), 1, some.size(), pipe)) {
      output.append(some.data(), count);
    }
    EXPECT_EQ(pclose(pipe), 0) << output;
    return output;
  }
  bool IsThere(const std::string& file) const {
    return std::filesystem::exists(directory_ + "/" + file);
  }

  const SteadyClock clock_;
  std::string directory_;
  std::unique_ptr<SchedulerService> service_;
  std::vector<std::unique_ptr<ControlPlane>> nodes_;
  std::vector<std::future<void>> joins_;
};

TEST_F(LyingDumpTest, ANodeSpeaksForItselfAlone) {
  std::string of_worker_1 = Golden();
  Join(Role::kWorker, 0, Golden);
  Join(Role::kWorker, 1, [&] { return of_worker_1; });
  // It begins as a recording does.
  Join(Role::kServer, 0, [] { return Golden().substr(0, 256) + std::string(9000, 'x'); });
  const std::string output = Dump("first");
  EXPECT_THAT(output, AllOf(HasSubstr("1 of 3 recordings of job 'golden' are in"),
                            HasSubstr("worker 0 (evil?[2J?:1): no recording: its recording is not "
                                      "taken: it is one of worker 1 of job 'golden' (node 2)\n"),
                            HasSubstr("server 0 (evil?[2J?:1): no recording: its recording is not "
                                      "taken: it"),
                            Not(HasSubstr("\x1b"))));
  EXPECT_TRUE(IsThere("first/worker-1.bdntrace"));
  EXPECT_FALSE(IsThere("first/worker-0.bdntrace"));
  EXPECT_FALSE(IsThere("first/server-0.bdntrace"));
}

TEST_F(LyingDumpTest, ARecordingOfAnotherJobIsNotTaken) {
  Join(Role::kWorker, 0,
       [] { return Replaced(Golden(), "\"rank\": 1, \"node\": 2", "\"rank\": 0, \"node\": 1"); });
  Join(Role::kWorker, 1, [] { return Replaced(Golden(), "\"golden\"", "\"gilded\""); });
  Join(Role::kServer, 0,
       [] { return Replaced(Golden(), "\"role\": \"worker\"", "\"role\": \"server\""); });
  const std::string output = Dump("second");
  EXPECT_THAT(output, AllOf(HasSubstr("1 of 3 recordings of job 'golden' are in"),
                            HasSubstr("it is one of worker 1 of job 'gilded' (node 2)\n"),
                            HasSubstr("it is one of server 1 of job 'golden' (node 2)\n")));
  EXPECT_TRUE(IsThere("second/worker-0.bdntrace"));
  EXPECT_FALSE(IsThere("second/worker-1.bdntrace"));
}

}  // namespace
}  // namespace bdn
