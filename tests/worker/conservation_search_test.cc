#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"
#include "worker/pipeline/key_exchange.h"
#include "worker/pipeline/request_table.h"

// Explicit-state search: the real shard and the real exchanges of two workers, with error feedback,
// and every order in which the network can deliver, lose and repeat their frames while their
// requests end by timeout at every point of an exchange, rounds fail, the epoch changes, or one of
// them leaves. In every state and for every worker, all that it has put in is the sum of what its
// server has counted, what its residual keeps, and what is under way. From one state in seven: once
// faults stop, all ends.

namespace bdn::testing {
namespace {

constexpr Key kKey = Key::Of(1, 0);
constexpr int kWorkers = 2;
constexpr size_t kElements = 4;
constexpr float kNotOurs = 12345.0f;  // in tensors that their callers have back
using Floats = std::vector<float>;

struct Scene {
  Step steps[kWorkers] = {2, 2};
  std::string push[kWorkers] = {"ef(onebit)", "ef(onebit)"};
  Step nonfinite_step = 0;  // of worker 1
  // Budgets of the search.
  int drops = 0;
  int repeats = 0;
  int ticks = 0;
  int epochs = 0;
  int leaves = 0;
};

struct Action {
  enum Kind { kDeliver, kRepeat, kDrop, kTick, kServerEpoch, kWorkerEpoch, kLeave } kind;
  int index;
};

class World {
 public:
  explicit World(const Scene& scene) : scene_(scene) {
    shard_.SetMembership(MakeMembership(kWorkers));
    shard_.AddKey(MakePlan(kKey, {.push = "ef(onebit)"}));
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      DeclaredKey key{.entry = MakeEntry(kKey, {.push = scene.push[rank]}),
                      .tensor_names = {"w"},
                      .server = kServerNode,
                      .catalogue_version = 1};
      key.link = MakeKeyLink(key.entry, "w").value();
      workers_.push_back({.exchange = std::make_unique<KeyExchange>(std::move(key)),
                          .table = RequestTable({.self = WorkerNode(rank),
                                                 .rank = rank,
                                                 .probe_interval = absl::Seconds(1),
                                                 .timeout = absl::Milliseconds(1500)})});
      FrameHeader hello;
      hello.sender = kServerNode;
      Perform(rank,
              workers_[rank].table.SetMembership(MakeMembership(kWorkers), workers_[rank].now));
      Perform(rank,
              workers_[rank].table.OnFrame(kServerNode, Frame{hello, {}}, workers_[rank].now));
    }
    flights_.clear();
    for (Rank rank = 0; rank < kWorkers; ++rank) Begin(rank);
  }

  // False: it cannot be done here.
  bool Do(const Action& action) {
    const auto at = static_cast<size_t>(action.index);
    switch (action.kind) {
      case Action::kDeliver:
      case Action::kRepeat:
        Deliver(at, action.kind == Action::kRepeat);
        break;
      case Action::kDrop:
        flights_.erase(flights_.begin() + action.index);
        break;
      case Action::kTick:
        return Tick(action.index);
      case Action::kServerEpoch:
        if (server_epoch_ == 2) return false;
        server_epoch_ = 2;
        shard_.SetMembership(MakeMembership(kWorkers, 2));
        break;
      case Action::kWorkerEpoch:
        if (workers_[at].epoch == 2) return false;
        workers_[at].epoch = 2;
        Perform(action.index,
                workers_[at].table.SetMembership(MakeMembership(kWorkers, 2), workers_[at].now));
        break;
      case Action::kLeave:
        if (!IsDone(action.index) || is_leaving_) return false;
        is_leaving_ = true;
        Receive(shard_.SetLeaving({action.index}));
        break;
    }
    DropSameFlights();
    return true;
  }

  size_t num_flights() const { return flights_.size(); }
  bool AllDone() const { return IsDone(0) && IsDone(1); }
  bool epoch_has_begun() const {
    return server_epoch_ == 2 || workers_[0].epoch == 2 || workers_[1].epoch == 2;
  }

  // "" or what is wrong.
  std::string Trouble() const {
    std::string trouble = trouble_;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      const WorkerState& worker = workers_[rank];
      Floats residual(kElements);
      EXPECT_TRUE(worker.exchange->CopyState(LinkState::kResidual, 0, residual).ok());
      const bool is_under_way = worker.exchange->is_in_flight() && !worker.sent.empty() &&
                                !counted_[rank].contains(worker.step);
      for (size_t i = 0; i < kElements; ++i) {
        const double under_way = is_under_way ? worker.sent[i] : 0;
        const double balance = worker.put_in[i] - worker.counted[i] - residual[i] - under_way;
        if (std::abs(balance) < 1e-4) continue;
        absl::StrAppendFormat(&trouble, "worker %d step %d element %d is off by %g\n", rank,
                              worker.step, i, balance);
      }
      for (const auto& data : worker.given_back) {
        for (const float x : *data) {
          if (x != kNotOurs) absl::StrAppendFormat(&trouble, "a tensor given back was touched\n");
        }
      }
    }
    return trouble;
  }

  std::string Fingerprint() const {
    const DenseState& state = shard_.Find(kKey)->dense;
    std::string text = absl::StrFormat("S%d,%d,%d,%d,%d|", server_epoch_, state.last_step,
                                       static_cast<int>(state.last_failure.header.type),
                                       is_leaving_, state.round.step());
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      absl::StrAppendFormat(&text, "%d%d", state.round.HasRank(rank),
                            std::ranges::count(state.pushed_before, rank));
    }
    text += state.round.has_nonfinite() ? "N" : "";
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      const WorkerState& worker = workers_[rank];
      absl::StrAppendFormat(&text, "W%d,%d,%d,%d,%s|", worker.epoch, worker.step,
                            worker.exchange->is_in_flight(), worker.given_back.size(),
                            worker.table.Fingerprint());
      if (worker.exchange->is_in_flight()) {
        absl::StrAppendFormat(&text, "%d", worker.exchange->claimed().counted);
      }
      Floats residual(kElements);
      EXPECT_TRUE(worker.exchange->CopyState(LinkState::kResidual, 0, residual).ok());
      for (const float x : residual) absl::StrAppendFormat(&text, "%g,", x);
      for (const Step step : counted_[rank]) absl::StrAppendFormat(&text, "c%d", step);
      absl::StrAppendFormat(&text, "ticks%d;", worker.ticks);
    }
    std::multiset<std::string> flights;
    for (const Flight& flight : flights_) flights.insert(Name(flight));
    for (const std::string& flight : flights) text += flight + ";";
    return text;
  }

 private:
  struct Flight {
    bool to_server;
    Rank rank;
    Frame frame;
  };
  struct WorkerState {
    std::unique_ptr<KeyExchange> exchange;
    RequestTable table;
    absl::Time now = absl::UnixEpoch();  // each has a clock of its own
    int ticks = 0;                       // since it last asked
    Epoch epoch = 1;
    Step step = 0;
    std::shared_ptr<Floats> data;  // of the step
    Floats gradient;
    Floats sent;  // what the step's push decodes to; empty: nothing
    std::vector<std::shared_ptr<Floats>> given_back;
    Floats put_in = Floats(kElements);
    Floats counted = Floats(kElements);
  };

  bool IsDone(Rank rank) const {
    return workers_[rank].step == scene_.steps[rank] && !workers_[rank].exchange->is_in_flight();
  }

  void Begin(Rank rank) {
    WorkerState& worker = workers_[rank];
    const Step step = ++worker.step;
    const auto x = static_cast<float>(step * 8 + static_cast<Step>(rank) * 4);
    worker.gradient = {x, -x, 3 * x, x / 2};
    if (step == scene_.nonfinite_step && rank == 1) worker.gradient[0] = INFINITY;
    worker.data = std::make_shared<Floats>(worker.gradient);
    worker.exchange->Deposit(0, 0, kElements, step, /*ticket=*/step,
                             {.data = {worker.data->data(), DType::kFloat32, kElements}});
    if (!worker.exchange->Claim()) trouble_ += "an exchange cannot be claimed\n";
    RequestTable::Request push = worker.exchange->Encode({.rank = rank, .pool = &pool_}).value();
    worker.sent.clear();
    if (push.frame.header.flags == 0) {
      worker.sent = ValuesOf(
          push.frame,
          {.pull = rank == 1 && step == 2 && !IsLikeOthers() ? "topk(ratio=0.5)" : "onebit"});
      for (size_t i = 0; i < kElements; ++i) worker.put_in[i] += worker.gradient[i];
    }
    Submit(rank, std::move(push));
  }
  bool IsLikeOthers() const { return scene_.push[0] == scene_.push[1]; }

  void Submit(Rank rank, RequestTable::Request request) {
    workers_[rank].ticks = 0;
    auto actions = workers_[rank].table.Submit(std::move(request), workers_[rank].now);
    if (!actions.ok()) {
      trouble_ += actions.status().ToString() + "\n";
      return;
    }
    Perform(rank, *std::move(actions));
  }

  void Perform(Rank rank, RequestTable::Actions actions) {
    for (RequestTable::Outgoing& out : actions.sends) {
      workers_[rank].table.OnSent(out.frame.header.key, out.request, workers_[rank].now);
      flights_.push_back({true, rank, std::move(out.frame)});
    }
    for (RequestTable::Answer& answer : actions.answers) OnAnswer(rank, answer.outcome);
  }

  void OnAnswer(Rank rank, const RequestTable::Outcome& outcome) {
    WorkerState& worker = workers_[rank];
    KeyExchange::Next next = worker.exchange->OnAnswer(outcome);
    if (next.request.has_value()) {
      if (!next.status.ok() && worker.exchange->GiveBack()) {
        std::fill(worker.data->begin(), worker.data->end(), kNotOurs);
        worker.given_back.push_back(worker.data);
      }
      return Submit(rank, *std::move(next.request));
    }
    const bool came_to_nothing = !next.status.ok() || worker.exchange->claimed().nonfinite;
    const bool is_ours = !worker.exchange->claimed().given_back;
    if (came_to_nothing && is_ours && !worker.sent.empty()) {
      for (size_t i = 0; i < kElements; ++i) worker.put_in[i] -= worker.gradient[i];
    }
    worker.exchange->Finish();
    if (worker.step < scene_.steps[rank]) Begin(rank);
  }

  void Deliver(size_t i, bool keep) {
    const Flight flight = flights_[i];
    if (!keep) flights_.erase(flights_.begin() + static_cast<long>(i));
    if (!flight.to_server) {
      return Perform(flight.rank, workers_[flight.rank].table.OnFrame(kServerNode, flight.frame,
                                                                      workers_[flight.rank].now));
    }
    const ShardStats before = shard_.stats();
    Sends sends = shard_.OnFrame(WorkerNode(flight.rank), flight.frame);
    const ShardStats& after = shard_.stats();
    if (after.rounds > before.rounds && after.rounds_nonfinite == before.rounds_nonfinite) {
      Count(flight.frame.header.step);
    }
    Receive(std::move(sends));
  }
  // The server has closed a round: both pushes are in it.
  void Count(Step step) {
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      WorkerState& worker = workers_[rank];
      if (worker.step != step || !counted_[rank].insert(step).second) {
        absl::StrAppendFormat(&trouble_, "worker %d was counted in step %d\n", rank, step);
      }
      for (size_t i = 0; i < kElements; ++i) worker.counted[i] += worker.sent[i];
    }
  }
  void Receive(Sends sends) {
    for (Outgoing& send : sends) {
      flights_.push_back({false, static_cast<Rank>(send.to - 1), std::move(send.frame)});
    }
  }

  bool Tick(Rank rank) {
    WorkerState& worker = workers_[rank];
    if (worker.table.NextTick() == absl::InfiniteFuture()) return false;
    worker.now = std::max(worker.now, worker.table.NextTick());
    ++worker.ticks;
    Perform(rank, worker.table.OnTick(worker.now));
    DropSameFlights();
    return true;
  }

  static std::string Name(const Flight& flight) {
    const FrameHeader& h = flight.frame.header;
    return absl::StrFormat("%d%d t%d s%d e%d c%x f%d", flight.to_server, flight.rank,
                           static_cast<int>(h.type), h.step, h.epoch, h.payload_crc, h.flags);
  }
  // Two equal frames on their way lead nowhere that one and a repeat do not.
  void DropSameFlights() {
    std::set<std::string> seen;
    std::erase_if(flights_,
                  [&](const Flight& flight) { return !seen.insert(Name(flight)).second; });
  }

  const Scene scene_;
  BufferPool pool_;
  ServerShard shard_{{.self = kServerNode}};
  std::vector<WorkerState> workers_;
  std::vector<Flight> flights_;
  std::set<Step> counted_[kWorkers];
  Epoch server_epoch_ = 1;
  bool is_leaving_ = false;
  std::string trouble_;
};

// A state is what a list of actions leads to: exchanges cannot be copied.
class Search {
 public:
  explicit Search(const Scene& scene) : scene_(scene) {}

  // The number of states.
  size_t Run() {
    Add({{}, scene_});
    while (!open_.empty() && !::testing::Test::HasFailure()) {
      const Node node = std::move(open_.front());
      open_.pop_front();
      Expand(node);
    }
    return seen_.size();
  }

 private:
  struct Node {
    std::vector<Action> actions;
    Scene left;
  };

  std::unique_ptr<World> Replay(const std::vector<Action>& actions) const {
    auto world = std::make_unique<World>(scene_);
    for (const Action& action : actions) {
      if (!world->Do(action)) return nullptr;
    }
    return world;
  }

  void Expand(const Node& node) {
    const auto flights = static_cast<int>(Replay(node.actions)->num_flights());
    for (int i = 0; i < flights; ++i) {
      Next(node, {Action::kDeliver, i}, nullptr);
      Next(node, {Action::kRepeat, i}, &Scene::repeats);
      Next(node, {Action::kDrop, i}, &Scene::drops);
    }
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      Next(node, {Action::kTick, rank}, &Scene::ticks);
      Next(node, {Action::kLeave, rank}, &Scene::leaves);
      if (node.left.epochs > 0) Next(node, {Action::kWorkerEpoch, rank}, nullptr);
    }
    if (node.left.epochs > 0) Next(node, {Action::kServerEpoch, 0}, nullptr);
  }
  void Next(const Node& node, Action action, int Scene::*budget) {
    Node next = node;
    if (budget != nullptr && (next.left.*budget)-- <= 0) return;
    next.actions.push_back(action);
    Add(std::move(next));
  }
  void Add(Node node) {
    const std::unique_ptr<World> world = Replay(node.actions);
    if (world == nullptr) return;
    const Scene& left = node.left;
    const std::string name =
        absl::StrFormat("%d%d%d|%s", left.drops, left.repeats, left.ticks, world->Fingerprint());
    if (!seen_.insert(name).second) return;
    ASSERT_EQ(world->Trouble(), "") << Story(node);
    if (seen_.size() % 7 == 0) EndsFairly(world.get(), node);
    open_.push_back(std::move(node));
  }
  // No more faults: everything is delivered in order, and clocks run.
  void EndsFairly(World* world, const Node& node) const {
    for (int turn = 0; turn < 60 && !world->AllDone(); ++turn) {
      if (world->epoch_has_begun()) {
        world->Do({Action::kServerEpoch, 0});
        for (Rank rank = 0; rank < kWorkers; ++rank) world->Do({Action::kWorkerEpoch, rank});
      }
      for (Rank rank = 0; scene_.leaves > 0 && rank < kWorkers; ++rank) {
        world->Do({Action::kLeave, rank});
      }
      for (int i = 0; i < 40 && world->num_flights() > 0; ++i) world->Do({Action::kDeliver, 0});
      if (world->AllDone()) break;
      for (Rank rank = 0; rank < kWorkers; ++rank) world->Do({Action::kTick, rank});
    }
    ASSERT_TRUE(world->AllDone()) << Story(node);
    ASSERT_EQ(world->Trouble(), "") << Story(node);
  }
  static std::string Story(const Node& node) {
    std::string story;
    for (const Action& action : node.actions) {
      absl::StrAppendFormat(&story, "%c%d ", "DRXTSEL"[action.kind], action.index);
    }
    return story;
  }

  const Scene scene_;
  std::unordered_set<std::string> seen_;
  std::deque<Node> open_;
};

// No state that can be reached from the scene loses gradient or counts it twice; and there are more
// than `least` of them, so that the scene is what it was meant to be.
void ExpectConserved(const Scene& scene, size_t least) {
  const size_t states = Search(scene).Run();
  ::testing::Test::RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, least);
}

TEST(ConservationSearch, TimeoutsLossAndRepetitionAtEveryPoint) {
  Scene scene;
  scene.drops = 1;
  scene.repeats = 1;
  scene.ticks = 3;
  ExpectConserved(scene, 3000u);
}

TEST(ConservationSearch, ARoundThatIsNotFinite) {
  Scene scene;
  scene.nonfinite_step = 1;
  scene.drops = 1;
  scene.ticks = 3;
  ExpectConserved(scene, 500u);
}

TEST(ConservationSearch, ARoundThatFailsForAllBeforeTheOneBeforeWasHeard) {
  Scene scene;
  scene.push[1] = "ef(onebit) for 1; ef(topk(ratio=0.5))";
  scene.drops = 1;
  scene.ticks = 2;
  ExpectConserved(scene, 500u);
}

TEST(ConservationSearch, AWorkerThatLeaves) {
  Scene scene;
  scene.steps[1] = 1;
  scene.drops = 1;
  scene.ticks = 4;
  scene.leaves = 1;
  ExpectConserved(scene, 500u);
}

TEST(ConservationSearch, AnEpochChange) {
  Scene scene;
  scene.steps[0] = scene.steps[1] = 1;
  scene.ticks = 2;
  scene.epochs = 1;
  ExpectConserved(scene, 500u);
}

}  // namespace
}  // namespace bdn::testing
