#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_set>

#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"
#include "worker/pipeline/request_table.h"

// Explicit-state search: the real shard and the real exchanges of two workers, of a dense key or of
// one of rows, and every order in which the network can deliver, lose and repeat their frames while
// the epoch changes once, or one of them leaves. In every state: what a worker is given for a step
// is, byte for byte, what an undisturbed run gives it.
// From every state: once faults stop, both workers finish.

namespace bdn::testing {
namespace {

constexpr Key kKey = Key::Of(1, 0);
constexpr int kWorkers = 2;

struct Limits {
  Step steps = 2;
  int drops = 1;
  int repeats = 1;
  int ticks = 2;
  int epochs = 1;
  int leaves = 0;
};

// The kind of the key. A key of rows answers each worker otherwise, with the rows that it wants.
enum class Of { kDense, kRows };

KeyOptions Spec() { return {.push = "none", .pull = "ef(onebit)", .segments = {3}}; }

std::vector<float> Gradient(Rank rank, Step step) {
  const float x = static_cast<float>(step * 3 + rank);
  return {x, -2 * x + 1, 0.5f};
}

// Both workers have gradients of row 5, and each wants a row that the other one has changed.
PushedRows RowsOf(Rank rank, Step step) {
  const float x = static_cast<float>(step * 3 + rank);
  if (rank == 0) return {{3, 5}, {x, 1, -x, 0.5f}, {5, 9}};
  return {{5, 9}, {2 * x, -1, x, x}, {3, 5}};
}

Frame PushOf(Of kind, Rank rank, Step step) {
  return kind == Of::kDense ? MakePush(kKey, step, rank, Gradient(rank, step), Spec())
                            : MakeRowsPush(kKey, step, rank, {RowsOf(rank, step)});
}

// Everything that is, as one copyable value.
class World {
 public:
  struct Flight {
    bool to_server;
    Rank rank;
    Frame frame;
  };

  explicit World(Of kind) : kind_(kind) {
    shard_.SetMembership(MakeMembership(kWorkers));
    shard_.AddKey(kind == Of::kDense ? MakePlan(kKey, Spec())
                                     : MakeRowsPlan(kKey, 1, "adagrad", "table(rows=100)"));
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      tables_.emplace_back(RequestTable::Options{
          .self = WorkerNode(rank), .rank = rank, .timeout = absl::InfiniteDuration()});
      // Greetings are tested elsewhere: both ends know each other.
      Perform(rank, tables_[rank].SetMembership(MakeMembership(kWorkers), now_));
      FrameHeader hello;
      hello.sender = kServerNode;
      Perform(rank, tables_[rank].OnFrame(kServerNode, Frame{hello, {}}, now_));
    }
    flights_.clear();
    for (Rank rank = 0; rank < kWorkers; ++rank) Submit(rank);
  }

  const std::vector<Flight>& flights() const { return flights_; }
  bool AllDone(Step steps) const { return given_[0].size() == steps && given_[1].size() == steps; }
  // By worker, by step: the payload's bytes.
  const std::vector<std::string>& given(Rank rank) const { return given_[rank]; }
  const std::string& trouble() const { return trouble_; }

  void Deliver(size_t i, Step steps, bool keep) {
    const Flight flight = flights_[i];
    if (!keep) flights_.erase(flights_.begin() + static_cast<long>(i));
    if (flight.to_server) {
      for (Outgoing& send : shard_.OnFrame(WorkerNode(flight.rank), flight.frame)) {
        flights_.push_back({false, static_cast<Rank>(send.to - 1), std::move(send.frame)});
      }
    } else {
      const size_t before = given_[flight.rank].size();
      Perform(flight.rank, tables_[flight.rank].OnFrame(kServerNode, flight.frame, now_));
      if (given_[flight.rank].size() > before && given_[flight.rank].size() < steps) {
        Submit(flight.rank);
      }
    }
    drop_same_flights();
  }
  void Drop(size_t i) { flights_.erase(flights_.begin() + static_cast<long>(i)); }
  bool Tick(Rank rank) {
    const absl::Time due = tables_[rank].NextTick();
    if (due == absl::InfiniteFuture()) return false;
    now_ = std::max(now_, due);
    Perform(rank, tables_[rank].OnTick(now_));
    drop_same_flights();
    return true;
  }
  // The server, or one worker, hears of the next epoch.
  bool EpochAtServer() {
    if (server_epoch_ == 2) return false;
    server_epoch_ = 2;
    leaving_ = -1;
    shard_.SetMembership(MakeMembership(kWorkers, 2));
    return true;
  }
  bool EpochAtWorker(Rank rank) {
    if (worker_epoch_[rank] == 2) return false;
    worker_epoch_[rank] = 2;
    Perform(rank, tables_[rank].SetMembership(MakeMembership(kWorkers, 2), now_));
    drop_same_flights();
    return true;
  }
  // The server, having said that it has the last push of a worker, hears that this
  // one is leaving.
  bool LeaveAtServer(Rank rank, Step steps) {
    const bool held = given_[rank].size() + 1 == steps && tables_[rank].IsAccepted(kKey) &&
                      worker_epoch_[rank] == server_epoch_;
    if (given_[rank].size() < steps && !held) return false;
    leaving_ = rank;
    if (!shard_.SetLeaving({rank}).empty())
      trouble_ += "nobody needs anything of a worker that leaves\n";
    return true;
  }
  bool EpochHasBegun() const {
    return server_epoch_ == 2 || worker_epoch_[0] == 2 || worker_epoch_[1] == 2;
  }

  std::string Fingerprint() const {
    const KeyState& key = *shard_.Find(kKey);
    std::string text = absl::StrFormat("S%d,%d|", server_epoch_, leaving_);
    const auto add_state = [&text](const auto& state, const Round& round) {
      for (Rank rank = 0; rank < kWorkers; ++rank) {
        absl::StrAppendFormat(&text, "%d%d", round.HasRank(rank),
                              std::ranges::count(state.pushed_before, rank));
      }
      absl::StrAppendFormat(&text, "@%d,%d|", round.step(), state.last_step);
    };
    if (kind_ == Of::kDense) {
      add_state(key.dense, key.dense.round);
    } else {
      add_state(key.rows, key.rows.round.roster());
    }
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      absl::StrAppendFormat(&text, "W%d,%d,%s|", worker_epoch_[rank], given_[rank].size(),
                            tables_[rank].Fingerprint());
    }
    std::multiset<std::string> flights;
    for (const Flight& flight : flights_) flights.insert(Name(flight));
    for (const std::string& flight : flights) text += flight + ";";
    return text;
  }

 private:
  // Carries out what one worker's table asked for.
  void Perform(Rank rank, RequestTable::Actions actions) {
    for (RequestTable::Outgoing& out : actions.sends) {
      tables_[rank].OnSent(out.frame.header.key, out.request, now_);
      flights_.push_back({true, rank, std::move(out.frame)});
    }
    for (RequestTable::Answer& answer : actions.answers) {
      const absl::StatusOr<Frame>& frame = answer.outcome.frame;
      if (!frame.ok()) {
        trouble_ += std::string(frame.status().message()) + "\n";
        return;
      }
      std::vector<std::string>& given = given_[rank];
      if (given.size() + 1 != answer.step) trouble_ += "an answer for another step\n";
      given.emplace_back(reinterpret_cast<const char*>(frame->payload.data()),
                         frame->payload.size());
    }
  }
  void Submit(Rank rank) {
    const Step step = given_[rank].size() + 1;
    auto actions =
        tables_[rank].Submit({.frame = PushOf(kind_, rank, step), .server = kServerNode}, now_);
    ASSERT_TRUE(actions.ok()) << actions.status();
    Perform(rank, *std::move(actions));
  }
  static std::string Name(const Flight& flight) {
    const FrameHeader& h = flight.frame.header;
    return absl::StrFormat("%d%d t%d s%d e%d c%x f%d", flight.to_server, flight.rank,
                           static_cast<int>(h.type), h.step, h.epoch, h.payload_crc, h.flags);
  }
  // Two equal frames on their way lead nowhere that one and a repeat do not.
  void drop_same_flights() {
    std::set<std::string> seen;
    std::erase_if(flights_,
                  [&](const Flight& flight) { return !seen.insert(Name(flight)).second; });
  }

  Of kind_;
  ServerShard shard_{{.self = kServerNode}};
  std::vector<RequestTable> tables_;
  std::vector<Flight> flights_;
  std::vector<std::string> given_[kWorkers];
  Epoch server_epoch_ = 1;
  Rank leaving_ = -1;
  Epoch worker_epoch_[kWorkers] = {1, 1};
  std::string trouble_;
  absl::Time now_ = absl::UnixEpoch();
};

// No more faults: everything is delivered in order, and clocks run. True when both workers finish.
bool FinishesFairly(World world, Step steps) {
  for (int turn = 0; turn < 60; ++turn) {
    if (world.AllDone(steps)) return true;
    if (world.EpochHasBegun()) {
      world.EpochAtServer();
      world.EpochAtWorker(0);
      world.EpochAtWorker(1);
    }
    for (int i = 0; i < 40 && !world.flights().empty(); ++i) world.Deliver(0, steps, false);
    if (world.AllDone(steps)) return true;
    world.Tick(0);
    world.Tick(1);
  }
  return false;
}

struct Node {
  World world;
  Limits left;
};

class Search {
 public:
  explicit Search(Limits limits, Of kind = Of::kDense) : limits_(limits) {
    World calm(kind);
    while (!calm.AllDone(limits.steps)) calm.Deliver(0, limits.steps, false);
    for (Rank rank = 0; rank < kWorkers; ++rank) golden_[rank] = calm.given(rank);
    Add({World(kind), limits});
  }

  // The number of states.
  size_t Run() {
    while (!open_.empty() && !::testing::Test::HasFailure()) {
      const Node node = std::move(open_.front());
      open_.pop_front();
      Expand(node);
    }
    return seen_.size();
  }

 private:
  void Expand(const Node& node) {
    for (size_t i = 0; i < node.world.flights().size(); ++i) {
      Next(node, [i](Node& n) {
        n.world.Deliver(i, n.left.steps, false);
        return true;
      });
      if (node.left.drops > 0) {
        Next(node, [i](Node& n) {
          --n.left.drops;
          n.world.Drop(i);
          return true;
        });
      }
      if (node.left.repeats > 0) {
        Next(node, [i](Node& n) {
          --n.left.repeats;
          n.world.Deliver(i, n.left.steps, true);
          return true;
        });
      }
    }
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      if (node.left.ticks > 0) {
        Next(node, [rank](Node& n) {
          --n.left.ticks;
          return n.world.Tick(rank);
        });
      }
      if (node.left.epochs > 0) Next(node, [rank](Node& n) { return n.world.EpochAtWorker(rank); });
      if (node.left.leaves > 0) {
        Next(node, [rank](Node& n) {
          --n.left.leaves;
          return n.world.LeaveAtServer(rank, n.left.steps);
        });
      }
    }
    if (node.left.epochs > 0) Next(node, [](Node& n) { return n.world.EpochAtServer(); });
  }
  template <typename Action>
  void Next(Node node, Action action) {
    if (action(node)) Add(std::move(node));
  }
  void Add(Node node) {
    const Limits& left = node.left;
    const std::string name = absl::StrFormat("%d%d%d|%s", left.drops, left.repeats, left.ticks,
                                             node.world.Fingerprint());
    if (!seen_.insert(name).second) return;
    Check(node.world, name);
    open_.push_back(std::move(node));
  }
  void Check(const World& world, const std::string& name) {
    ASSERT_EQ(world.trouble(), "") << name;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      for (size_t i = 0; i < world.given(rank).size(); ++i) {
        ASSERT_EQ(world.given(rank)[i], golden_[rank][i])
            << "worker " << rank << " step " << i + 1 << name;
      }
    }
    if (seen_.size() % 7 == 0) {
      ASSERT_TRUE(FinishesFairly(world, limits_.steps)) << name;
    }
  }

  const Limits limits_;
  std::vector<std::string> golden_[kWorkers];
  std::unordered_set<std::string> seen_;
  std::deque<Node> open_;
};

TEST(ProtocolSearch, EveryOrderOfLossAndRepetitionGivesTheSameBytes) {
  const size_t states =
      Search({.steps = 3, .drops = 2, .repeats = 2, .ticks = 2, .epochs = 0}).Run();
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 30000u);
}

TEST(ProtocolSearch, EveryOrderOfAnEpochChangeGivesTheSameBytes) {
  const size_t states =
      Search({.steps = 2, .drops = 1, .repeats = 1, .ticks = 1, .epochs = 1}).Run();
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 30000u);
}

TEST(ProtocolSearch, AWorkerThatLeavesAfterItsLastStepTakesNothingFromTheOther) {
  const size_t states =
      Search({.steps = 2, .drops = 1, .repeats = 1, .ticks = 2, .epochs = 0, .leaves = 1}).Run() +
      Search({.steps = 1, .drops = 1, .repeats = 1, .ticks = 1, .epochs = 1, .leaves = 1}).Run();
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 3000u);
}

TEST(ProtocolSearch, RowsAreTheSameInEveryOrderOfLossAndRepetition) {
  const size_t states =
      Search({.steps = 3, .drops = 1, .repeats = 2, .ticks = 2, .epochs = 0}, Of::kRows).Run();
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 10000u);
}

TEST(ProtocolSearch, RowsAreTheSameInEveryOrderOfAnEpochChange) {
  const size_t states =
      Search({.steps = 2, .drops = 1, .repeats = 0, .ticks = 1, .epochs = 1}, Of::kRows).Run();
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 10000u);
}

TEST(ProtocolSearch, AWorkerThatLeavesTakesNoRowsFromTheOther) {
  const Limits steps = {.drops = 1, .repeats = 1, .ticks = 2, .epochs = 0, .leaves = 1};
  const Limits epoch = {.steps = 1, .ticks = 1, .leaves = 1};
  const size_t states = Search(steps, Of::kRows).Run() + Search(epoch, Of::kRows).Run();
  RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 3000u);
}

}  // namespace
}  // namespace bdn::testing
