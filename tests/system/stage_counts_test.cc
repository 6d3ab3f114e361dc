#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/loopback.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"

// The counts of workers and servers of the phases through which keys pass.

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr uint64_t kWorkers = 2;
constexpr uint64_t kSteps = 5;
constexpr uint64_t kElements = 1000;
constexpr uint64_t kDenseBytes = kElements * sizeof(float);
constexpr uint64_t kHalfBytes = kElements * 2;

// Later by one each time that it is read.
class CountingClock final : public StageClock {
 public:
  int64_t WallNs() const override { return ++wall_; }
  int64_t ThreadCpuNs() const override { return ++cpu_; }

 private:
  mutable std::atomic<int64_t> wall_ = 0;
  mutable std::atomic<int64_t> cpu_ = 0;
};

uint64_t ValueOf(const Registry& registry, const std::string& name) {
  for (const Sample& sample : registry.Collect()) {
    if (sample.metric->name == name) return sample.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

// A server and two workers of this process. Three tensors: one goes as it is, one as halves there
// and whole back, and one has its weights on the server.
class StageCountsTest : public ::testing::Test {
 protected:
  struct Node {
    Registry telemetry;
    std::unique_ptr<Worker> worker;
  };

  void Start(const StageClock* clock) {
    server_ = std::make_unique<Server>(
        Server::Options{.listen = "loopback://server", .num_shards = 2, .stage_clock = clock},
        &telemetry_, control_.get(), transport_.get());
    std::vector<std::thread> starts;
    starts.emplace_back([&] { ASSERT_TRUE(server_->Start().ok()); });
    for (Node& node : nodes_) {
      starts.emplace_back([&] {
        Worker::Options options;
        options.stage_clock = clock;
        options.probe_interval = kLong;  // nothing is asked for twice
        options.join.wanted_rank = static_cast<Rank>(&node - nodes_);
        node.worker = *Worker::Create(options, &clock_, &node.telemetry, scheduler_.Connect(),
                                      network_.MakeTransport());
      });
    }
    for (std::thread& start : starts) start.join();
  }

  void RunSteps() {
    std::vector<std::thread> threads;
    for (Node& node : nodes_) {
      threads.emplace_back([&] { RunSteps(*node.worker); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static void RunSteps(Worker& worker) {
    std::vector<TensorDeclaration> tensors = {Tensor("whole", kElements),
                                              Tensor("half", kElements, "fp16"),
                                              Tensor("weights", kElements)};
    tensors[2].rule = "sgd";
    for (TensorDeclaration& tensor : tensors) tensor.fuse = false;
    const auto ids = worker.Declare(tensors, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<float> data(kElements, 1.0f);
    if (worker.rank() == 0) {
      ASSERT_TRUE(SetServerState(worker, (*ids)[2], StatePart::kWeights, data, 0, kLong).ok());
    }
    ASSERT_TRUE(worker.Barrier("set", kLong).ok());
    ASSERT_TRUE(FetchWeights(worker, (*ids)[2], data, kLong).ok());
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (const uint32_t id : *ids) {
        const auto result = PushPull(worker, id, data);
        ASSERT_TRUE(result.ok()) << result.status();
      }
    }
  }

  // Both are counted after the tickets of the last step have ended.
  void AwaitTheLast() {
    while (server_->stats().stages[Stage::kReply].items < kWorkers * 3 * kSteps) {
      std::this_thread::yield();
    }
    for (const Node& node : nodes_) {
      while (ValueOf(node.telemetry, "stages.deliver.items") < 3 * kSteps) {
        std::this_thread::yield();
      }
    }
  }

  const SteadyClock clock_;
  const CountingClock stage_clock_;  // read until the last thread of a worker has ended
  LoopbackNetwork network_;
  LocalScheduler scheduler_{{.job_id = "job",
                             .num_workers = static_cast<int>(kWorkers),
                             .num_servers = 1,
                             .min_compress_bytes = 1},
                            &clock_};
  Registry telemetry_;
  const std::unique_ptr<ControlPlane> control_ = scheduler_.Connect();
  const std::unique_ptr<Transport> transport_ = network_.MakeTransport();
  std::unique_ptr<Server> server_;
  Node nodes_[kWorkers];
};

TEST_F(StageCountsTest, EveryKeyIsOneItemOfEachStageInEachStep) {
  Start(&stage_clock_);
  RunSteps();
  AwaitTheLast();

  const auto expect = [](const Registry& registry, const std::string& stage, uint64_t items,
                         uint64_t bytes, bool works) {
    const std::string name = "stages." + stage;
    EXPECT_EQ(ValueOf(registry, name + ".items"), items) << stage;
    EXPECT_EQ(ValueOf(registry, name + ".bytes"), bytes) << stage;
    EXPECT_GE(ValueOf(registry, name + ".wall_ns"), items) << stage;
    const uint64_t cpu_ns = ValueOf(registry, name + ".cpu_ns");
    EXPECT_GE(cpu_ns, works ? items : 0) << stage;
    if (!works) {
      EXPECT_EQ(cpu_ns, 0u) << stage;
    }
  };
  constexpr uint64_t kItems = 3 * kSteps;
  constexpr uint64_t kDense = kItems * kDenseBytes;
  constexpr uint64_t kPushed = kSteps * (2 * kDenseBytes + kHalfBytes);
  for (const Node& node : nodes_) {
    expect(node.telemetry, "queue", kItems, kDense, false);
    expect(node.telemetry, "encode", kItems, kDense, true);
    expect(node.telemetry, "send", kItems, kPushed, false);
    expect(node.telemetry, "wait", kItems, kDense, false);
    expect(node.telemetry, "decode_queue", kItems, kDense, false);
    expect(node.telemetry, "decode", kItems, kDense, true);
    expect(node.telemetry, "deliver", kItems, kDense, true);
  }
  expect(telemetry_, "queue", kWorkers * kItems, kWorkers * kPushed, false);
  expect(telemetry_, "hold", kWorkers * kItems, kWorkers * kPushed, false);
  expect(telemetry_, "sum", kWorkers * kItems, kWorkers * kDense, true);
  expect(telemetry_, "rule", kSteps, kSteps * kDenseBytes, true);
  expect(telemetry_, "encode", kItems, kDense, true);
  expect(telemetry_, "reply", kWorkers * kItems, kWorkers * kDense, false);
}

TEST_F(StageCountsTest, TheSchedulerIsTold) {
  Start(&stage_clock_);
  RunSteps();
  scheduler_.host()->Read([](const Job& job, absl::Time) {
    for (const auto& [id, member] : job.table().members()) {
      const uint64_t items = member.progress.stages[Stage::kEncode].items;
      // A worker's last report may be on its way.
      const bool is_server = member.info.role == Role::kServer;
      EXPECT_GE(items, is_server ? 3 * kSteps : 1);
    }
  });
}

TEST_F(StageCountsTest, NothingIsCountedWithoutAClock) {
  Start(nullptr);
  RunSteps();
  EXPECT_EQ(server_->stats().stages, StageCounts());
  EXPECT_THAT(ToJson(telemetry_.Collect()), Not(HasSubstr("stages")));
  EXPECT_THAT(ToJson(nodes_[0].telemetry.Collect()), Not(HasSubstr("stages")));
}

}  // namespace
}  // namespace bdn::testing
