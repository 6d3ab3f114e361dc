#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/cluster/declaration_list.h"
#include "scheduler/job.h"
#include "tests/compressors/allocation_count.h"

// The life of whole jobs as state machines, to see what one more node and one more tensor cost.
// Counts allocations and answers, not time: code that copies a list or a roster for every node is
// seen.

namespace bdn {
namespace {

constexpr int kServers = 4;

std::vector<TensorDeclaration> Tensors(const std::string& prefix, int count) {
  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({.name = prefix + ".layers.weight." + std::to_string(i), .elements = 100000});
  }
  return tensors;
}

// Allocations of each part of a job's life.
using Cost = std::map<std::string, double>;

// A job whose nodes do everything in turn.
class SimulatedJob {
 public:
  SimulatedJob(int workers, int tensors) : workers_(workers), tensors_(tensors) {
    JobOptions options;
    options.config.num_workers = workers;
    options.config.num_servers = kServers;
    job_ = std::make_unique<Job>(options, now_);
  }

  // What it costs to declare the tensors in so many groups of as many workers, each its share.
  Cost DeclareInGroups(int groups) {
    JoinAll();
    const int members = workers_ / groups;
    Count("declare", [&] {
      for (int group = 0; group < groups; ++group) {
        std::vector<Rank> ranks;
        for (int i = 0; i < members; ++i) ranks.push_back(group + i * groups);
        std::vector<TensorDeclaration> tensors =
            Tensors("shard " + std::to_string(group), tensors_ / groups);
        const RankGroup among = groups > 1 ? *RankGroup::Of(ranks) : RankGroup();
        for (TensorDeclaration& tensor : tensors) tensor.ranks = among;
        DeclarationPart part{.ranks = tensors[0].ranks,
                             .digest = DigestOf(tensors),
                             .count = static_cast<uint32_t>(tensors.size()),
                             .tensors = tensors};
        for (const Rank rank : ranks) {
          job_->Declare(static_cast<NodeId>(rank + 1), part, absl::InfiniteFuture(), now_);
          part.tensors.clear();
        }
      }
      for (NodeId server = Workers() + 1; server <= Workers() + kServers; ++server) {
        EXPECT_TRUE(job_->AcknowledgePlacement(server, job_->declarations().version(), now_).ok());
      }
      EXPECT_EQ(job_->TakeCompletions().size(), Workers());
    });
    return cost_;
  }

  // By the part of its life.
  Cost Run() {
    Count("join", [this] { JoinAll(); });
    const std::vector<TensorDeclaration> model = Tensors("model", tensors_);
    Declare("declare", model);
    Declare("declare one more", Tensors("late", 1));
    Count("barrier", [this] {
      for (NodeId node = 1; node <= Workers(); ++node) {
        job_->ArriveAtBarrier(node, {"epoch"}, absl::InfiniteFuture(), now_);
      }
      EXPECT_EQ(job_->TakeCompletions().size(), Workers());
    });
    Count("heartbeat", [this] {
      for (int beat = 0; beat < 3; ++beat) {
        now_ += absl::Seconds(1);
        for (NodeId node = 1; node <= Workers() + kServers; ++node) {
          EXPECT_TRUE(job_->Heartbeat(node, {}, now_).ok());
          job_->Advance(now_);
        }
      }
    });
    Count("leave", [this] { LeaveAll(); });
    EXPECT_TRUE(job_->finished());
    EXPECT_TRUE(job_->failure().ok()) << job_->failure();
    return cost_;
  }

 private:
  NodeId Workers() const { return static_cast<NodeId>(workers_); }

  template <typename Run>
  void Count(const std::string& what, Run run) {
    const size_t before = AllocationCount();
    run();
    cost_[what] = static_cast<double>(AllocationCount() - before);
  }

  void JoinAll() {
    for (int i = 0; i < workers_ + kServers; ++i) {
      JoinRequest request;
      request.role = i < workers_ ? Role::kWorker : Role::kServer;
      request.host = "node" + std::to_string(i) + ":1";
      if (i >= workers_) request.endpoints = {EndpointOf("tcp://" + request.host)};
      job_->Join(request, kControlVersion, absl::InfiniteFuture(), now_);
    }
    EXPECT_EQ(job_->TakeCompletions().size(), static_cast<size_t>(workers_ + kServers));
    for (NodeId node = 1; node <= Workers() + kServers; ++node)
      EXPECT_TRUE(job_->ViewOf(node).failure.ok());
  }

  // Every worker's call is made outside of what is counted: its list is the worker's.
  void Declare(const std::string& what, const std::vector<TensorDeclaration>& tensors) {
    const DeclarationPart digest{.digest = DigestOf(tensors),
                                 .count = static_cast<uint32_t>(tensors.size())};
    DeclarationPart list = digest;
    list.tensors = tensors;
    Count(what, [&] {
      job_->Declare(1, std::move(list), absl::InfiniteFuture(), now_);
      for (NodeId node = 2; node <= Workers(); ++node) {
        job_->Declare(node, digest, absl::InfiniteFuture(), now_);
      }
      for (NodeId server = Workers() + 1; server <= Workers() + kServers; ++server) {
        EXPECT_TRUE(job_->AcknowledgePlacement(server, job_->declarations().version(), now_).ok());
      }
      EXPECT_EQ(job_->TakeCompletions().size(), Workers());
    });
  }

  void LeaveAll() {
    for (NodeId node = 1; node <= Workers(); ++node) {
      job_->Leave(node, absl::OkStatus(), absl::InfiniteFuture(), now_);
      // Each server is told of each of them once.
      for (NodeId server = 1; server <= kServers; ++server) {
        EXPECT_TRUE(job_->ViewOf(Workers() + server).failure.ok());
      }
    }
    EXPECT_EQ(job_->TakeCompletions().size(), Workers());
    for (NodeId node = 1; node <= kServers; ++node) {
      job_->Leave(Workers() + node, absl::OkStatus(), absl::InfiniteFuture(), now_);
    }
  }

  const int workers_;
  const int tensors_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<Job> job_;
  Cost cost_;
};

// Expects that a part costs no more for each of n nodes and m tensors, besides a constant.
void ExpectLinear(const Cost& small, const Cost& large, double growth) {
  for (const auto& [what, cost] : large) {
    EXPECT_LE(cost, small.at(what) * growth * 1.25 + 200) << what << " grew " << growth << " times";
  }
}

TEST(Scale, TensorsOfManyGroupsCostAsMuchAsThoseOfOne) {
  const double one = SimulatedJob(1000, 10000).DeclareInGroups(1)["declare"];
  const double many = SimulatedJob(1000, 10000).DeclareInGroups(125)["declare"];
  EXPECT_LE(many, 1.2 * one);
}

TEST(Scale, TenTimesTheWorkersCostTenTimesAsMuch) {
  const Cost few = SimulatedJob(10, 100).Run();
  const Cost many = SimulatedJob(100, 100).Run();
  const Cost most = SimulatedJob(1000, 100).Run();
  ExpectLinear(few, many, 10);
  ExpectLinear(many, most, 10);
}

TEST(Scale, WhatADeclarationCostsDoesNotGrowByTensorsTimesWorkers) {
  const Cost base = SimulatedJob(100, 100).Run();
  const Cost more_tensors = SimulatedJob(100, 10000).Run();
  const Cost more_of_both = SimulatedJob(1000, 10000).Run();
  const double a_worker = base.at("declare") / 100;
  const double a_tensor = (more_tensors.at("declare") - base.at("declare")) / 9900;
  EXPECT_LE(more_of_both.at("declare"), 1.25 * (1000 * a_worker + 10000 * a_tensor));
}

TEST(Scale, OneTensorMoreCostsTheSameHoweverManyThereAre) {
  const Cost few = SimulatedJob(10, 10).Run();
  const Cost many = SimulatedJob(10, 20000).Run();
  EXPECT_LE(many.at("declare one more"), few.at("declare one more") + 50);
  EXPECT_LE(many.at("barrier"), few.at("barrier") + 50);
  EXPECT_LE(many.at("leave"), few.at("leave") + 50);
}

}  // namespace
}  // namespace bdn
