#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "common/wire/headers.h"
#include "gtest/gtest.h"
#include "server/key_snapshot.h"
#include "tests/support/shard_rig.h"
#include "worker/pipeline/recovery_table.h"

// Random jobs of real shards and real recovery tables, over a network that loses frames and delays
// memberships, in which servers are lost at random moments: one of two, both, the one to which keys
// have just come, amid a rebuild, one that is only stopped and goes on. Every answer that a worker
// gets, and the servers' state in the end, must be those of a job that has lost no server.

namespace bdn::testing {
namespace {

constexpr NodeId kFirstServer = 100;

struct Op {
  enum Kind { kInit, kPush, kFetch, kMeet, kBoundary, kSetValue, kFetchValue } kind;
  Step step = 0;
  StatePart part = StatePart::kNone;
  size_t segment = 0;
};

struct Scene {
  std::string name;
  KeyOptions key;
  uint32_t snapshot_every = 0;
  int workers = 3;
  Step steps = 24;
  std::vector<Step> rules;     // after these steps rank 0 sets another rule
  Step uncompressed_from = 0;  // a push of this step asks for it
  uint32_t absent = 0;         // one push in so many is absent
  // All segments but the first have a gradient in one step of so many; 0: in each.
  uint32_t rarely = 0;
  Step boundary_every = 0;  // after so many steps lost workers may come back; 0: never
};

struct World {
  World(const Scene& scene, uint64_t seed, int losses, double drop, int lost_workers = 0)
      : scene_(scene),
        random_(seed),
        losses_(losses),
        lost_workers_(lost_workers),
        keeps_reply_(lost_workers > 0),
        drop_(drop) {
    plan_ = MakePlan(kKey, scene.key);
    membership_ = std::make_shared<Membership>();
    auto first = std::make_shared<Membership>();
    first->epoch = 1;
    for (Rank rank = 0; rank < scene.workers; ++rank) {
      first->workers.push_back({.id = WorkerNode(rank), .role = Role::kWorker, .rank = rank});
    }
    for (int i = 0; i < 2; ++i) AddServer(first.get());
    first->MakeIndex();
    membership_ = first;
    for (const NodeInfo& server : first->servers) Start(server.id);
    // So that newcomers move nobody.
    workers_.reserve(100);
    for (Rank rank = 0; rank < scene.workers; ++rank) {
      Worker& worker = AddWorker(rank, WorkerNode(rank));
      Perform(&worker, worker.table->SetMembership(membership_, now_));
      worker.membership = membership_;
      worker.script = ScriptOf(rank);
    }
  }

  static constexpr Key kKey = Key::Of(3, 1);

  struct Worker;
  Worker& AddWorker(Rank rank, NodeId node) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.rank = rank;
    worker.node = node;
    RequestTable::Options options{.self = node,
                                  .rank = rank,
                                  .probe_interval = absl::Seconds(1),
                                  .timeout = absl::Hours(100)};
    options.processes.assign(static_cast<size_t>(scene_.workers), 1);
    worker.table = std::make_unique<RecoveryTable>(options);
    worker.table->AddKey({.key = kKey,
                          .home = kFirstServer,
                          .declared_in = 1,
                          .catalogue_version = 1,
                          .is_dense = scene_.key.kind == KeyKind::kDense,
                          .elements = plan_->entry.elements,
                          .tensor = "tensor",
                          .snapshot_every = scene_.snapshot_every,
                          .keeps_reply = keeps_reply_,
                          .replica = KeepsReplica() ? worker.replica : nullptr,
                          .copy = KeepsCopy() ? worker.replica : nullptr});
    if (KeepsCopy()) worker.replica->values.assign(plan_->entry.elements, NAN);
    return worker;
  }

  struct Worker {
    Rank rank = 0;
    NodeId node = 0;
    std::unique_ptr<RecoveryTable> table;
    std::shared_ptr<const Membership> membership;
    std::deque<std::shared_ptr<const Membership>> news;
    std::vector<Op> script;
    size_t next = 0;
    bool is_waiting = false;
    bool is_lost = false;
    uint32_t requests = 0;
    Step begins_after = 0;  // of a newcomer: the step at which it must find the key
    std::vector<std::string> record;
    std::shared_ptr<Replica> replica = std::make_shared<Replica>();
    std::optional<Frame> undecoded;
  };
  struct Node {
    std::unique_ptr<ServerShard> shard;
    std::deque<std::shared_ptr<const Membership>> news;
    bool has_key = false;
    bool is_gone = false;
  };

  void AddServer(Membership* membership) {
    const auto rank = static_cast<Rank>(next_server_ - kFirstServer);
    membership->servers.push_back({.id = next_server_++, .role = Role::kServer, .rank = rank});
  }

  void Start(NodeId id) {
    Node& node = servers_[id];
    node.shard = std::make_unique<ServerShard>(ShardOptions{
        .self = id, .tells_roots = true, .on_failure = [this](const absl::Status& why) {
          Fail(why.message());
        }});
    node.news.push_back(membership_);
    Learn(id, &node);
  }

  // As Server::OnMembership and Server::TakeDelta do.
  void Learn(NodeId id, Node* node) {
    const auto membership = node->news.front();
    node->news.pop_front();
    if (membership->Find(id) == nullptr) {
      node->is_gone = true;
      return;
    }
    Deliver(id, node->shard->SetMembership(membership));
    const SlotOwner owner = membership->OwnerOf(kKey, kFirstServer);
    node->shard->SetCatalogueVersion(1);
    if (owner.server == id && !node->has_key) {
      node->has_key = true;
      node->shard->AddKey(MakePlan(kKey, scene_.key), owner.since > 1);
    }
  }

  std::vector<Op> ScriptOf(Rank rank) const {
    std::vector<Op> script;
    if (scene_.key.kind == KeyKind::kBroadcast) {
      for (Step step = 1; step <= scene_.steps; ++step) {
        const bool is_root = static_cast<Rank>(step / 2 % scene_.workers) == rank;
        script.push_back({is_root ? Op::kSetValue : Op::kFetchValue, step});
      }
      return script;
    }
    const bool has_weights = scene_.key.rule != "mean";
    const size_t segments = has_weights ? scene_.key.segments.size() : 0;
    for (size_t i = 0; i < segments && rank == 0; ++i) {
      script.push_back({Op::kInit, 0, StatePart::kWeights, i});
    }
    for (size_t i = 0; i < segments; ++i) {
      script.push_back({Op::kFetch, 0, StatePart::kWeights, i});
    }
    for (Step step = 1; step <= scene_.steps; ++step) {
      script.push_back({Op::kPush, step});
      if (scene_.boundary_every != 0 && step % scene_.boundary_every == 0) {
        script.push_back({Op::kBoundary, step});
      }
      const bool sets = std::ranges::find(scene_.rules, step) != scene_.rules.end();
      if (!sets) continue;
      script.push_back({Op::kMeet, step});
      if (rank == 0) script.push_back({Op::kInit, step, StatePart::kRule});
      if (rank == 0) script.push_back({Op::kInit, step, StatePart::kMoment0});
      script.push_back({Op::kMeet, step + 1000});
    }
    if (has_weights) script.push_back({Op::kFetch, scene_.steps, StatePart::kWeights});
    return script;
  }

  bool KeepsReplica() const {
    return scene_.key.kind == KeyKind::kDense && plan_->codecs.keeps_replica();
  }

  // As Worker::LetSurvive decides.
  bool KeepsCopy() const {
    return lost_workers_ > 0 && scene_.key.segments.size() > 1 &&
           plan_->codecs.reply == ReplyKind::kWeights;
  }

  // Decodes a reply as a worker does, whenever it comes to that.
  void Decode(Worker* worker) {
    const Frame frame = *std::exchange(worker->undecoded, std::nullopt);
    Replica& replica = *worker->replica;
    MutexLock lock(&replica.mu);
    if (KeepsReplica() && replica.step != frame.header.base_step) {
      return Fail(absl::StrFormat("a reply of step %d builds on step %d, not on %d",
                                  frame.header.step, frame.header.base_step,
                                  replica.step.value_or(999)));
    }
    const SegmentedCodec& codec = plan_->codecs.Pull(frame.header.step);
    SegmentedCodec::Segments segments(codec, frame.payload.span());
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      const std::optional<ByteSpan> payload = segments.Next();
      if (!payload.has_value()) continue;
      const MutableView out{replica.values.data() + codec.segment_offset(i), DType::kFloat32,
                            codec.segment_elements(i)};
      if (KeepsReplica()) {
        codec.codec().DecodeAdd(*payload, 1.0f, out);
      } else {
        codec.codec().Decode(*payload, 1.0f, out);
      }
    }
    replica.step = frame.header.step;
  }

  // Takes the weights that a worker has fetched for its replica.
  void Adopt(Worker* worker, const Frame& value) {
    Replica& replica = *worker->replica;
    MutexLock lock(&replica.mu);
    replica.values.resize(plan_->entry.elements);
    DecodeFloats(value.payload.span(),
                 std::span(replica.values)
                     .subspan(value.header.element_offset, value.payload.size() / sizeof(float)));
    if (KeepsReplica()) replica.step = value.header.base_step;
  }

  void Fail(absl::string_view why) {
    if (trouble_.empty()) trouble_ = std::string(why);
  }

  size_t Pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }

  static std::vector<float> ValuesOfPush(Rank rank, Step step, size_t n) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) {
      values[i] = static_cast<float>((rank + 1) * 0.37 + step * 0.11 * ((i % 3) - 1.0) + i * 0.01);
    }
    return values;
  }

  uint64_t OffsetOf(size_t segment) const {
    return segment == 0 ? 0 : plan_->codecs.pull->segment_offset(segment);
  }

  // A push in which all segments but the first are absent.
  Frame PushOfFirst(FrameHeader header, Rank rank, Step step) const {
    const SegmentedCodec& codec = *plan_->codecs.push;
    const std::vector<float> values = ValuesOfPush(rank, step, codec.num_elements());
    std::vector<SegmentedCodec::Input> inputs;
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      inputs.push_back(
          {{values.data() + codec.segment_offset(i), DType::kFloat32, codec.segment_elements(i)},
           1.0f,
           i == 0});
    }
    Buffer payload = Buffer::Allocate(codec.MaxEncodedBytes());
    const size_t used = codec.Encode(inputs, Draw(), payload.mutable_span()).value();
    return MakeFrame(header, payload.Prefix(used));
  }

  Frame FrameOf(Worker* worker, const Op& op) {
    const uint64_t n = plan_->entry.elements;
    switch (op.kind) {
      case Op::kPush: {
        const bool is_absent =
            scene_.absent != 0 && (op.step + static_cast<Step>(worker->rank)) % scene_.absent == 0;
        const bool asks = op.step == scene_.uncompressed_from && worker->rank == 1;
        KeyOptions options = scene_.key;
        if (scene_.uncompressed_from != 0 && op.step > scene_.uncompressed_from) {
          options.push = "none";
        }
        Frame push = is_absent
                         ? MakeBare(FrameType::kPush, kKey, op.step, worker->rank, n, kFlagAbsent)
                         : MakePush(kKey, op.step, worker->rank,
                                    ValuesOfPush(worker->rank, op.step, n), options);
        const bool is_first_alone = scene_.rarely != 0 && op.step % scene_.rarely != 0;
        if (is_first_alone) push = PushOfFirst(push.header, worker->rank, op.step);
        if (asks) push.header.flags |= kFlagUncompressed;
        push.header.learning_rate = 0.1f;
        return push;
      }
      case Op::kInit: {
        Buffer payload;
        if (op.part == StatePart::kRule) {
          const std::string rule = absl::StrFormat("adamw(beta1=0.8%d)", op.step % 10);
          payload = Buffer::CopyOf(std::as_bytes(std::span(rule)));
        } else {
          payload = EncodeFloats(std::vector<float>(scene_.key.segments[op.segment],
                                                    0.25f + static_cast<float>(op.step)));
        }
        return MakeFrame(StateHeader(FrameType::kInit,
                                     {.part = op.part,
                                      .key = kKey,
                                      .num_elements = n,
                                      .element_offset = OffsetOf(op.segment)},
                                     op.step, ++worker->requests),
                         payload);
      }
      case Op::kFetch:
        return Frame{StateHeader(FrameType::kFetch,
                                 {.part = op.part,
                                  .key = kKey,
                                  .num_elements = n,
                                  .element_offset = OffsetOf(op.segment)},
                                 op.step, ++worker->requests),
                     {}};
      case Op::kSetValue: {
        const std::vector<float> values(n, static_cast<float>(op.step));
        return MakeFrame(BroadcastHeader(FrameType::kInit, kKey, op.step, n), EncodeFloats(values));
      }
      default:
        return Frame{BroadcastHeader(FrameType::kFetch, kKey, op.step, n), {}};
    }
  }

  // Lets a worker make its next call, if it can.
  bool Step1(Worker* worker) {
    if (worker->is_lost || worker->is_waiting || worker->next == worker->script.size()) {
      return false;
    }
    // Decoding takes its time.
    if (worker->undecoded.has_value() && Chance(0.8)) return true;
    if (worker->undecoded.has_value()) Decode(worker);
    const Op& op = worker->script[worker->next];
    if (op.kind == Op::kMeet || op.kind == Op::kBoundary) {
      std::set<NodeId>& met = met_[op.step + (op.kind == Op::kBoundary ? 2000 : 0)];
      met.insert(worker->node);
      const bool are_all_here = std::ranges::all_of(
          workers_, [&](const auto& other) { return other->is_lost || met.contains(other->node); });
      if (!are_all_here) return false;
      if (op.kind == Op::kBoundary) {
        const auto [began, is_first] = began_at_.emplace(op.step, 0);
        if (is_first) began->second = TakeIn(op.step, &met);
        // It pushes nothing more before it knows the newcomers.
        if (worker->membership->epoch < began->second) return false;
      }
      ++worker->next;
      return true;
    }
    worker->is_waiting = true;
    absl::StatusOr<RecoveryTable::Actions> actions =
        worker->table->Submit({.frame = FrameOf(worker, op),
                               .server = kFirstServer,
                               .catalogue_version = 1,
                               .tensor = "tensor",
                               .is_patient = true},
                              now_);
    if (!actions.ok()) {
      Fail(actions.status().message());
    } else {
      Perform(worker, *std::move(actions));
    }
    return true;
  }

  void Perform(Worker* worker, RecoveryTable::Actions actions) {
    for (RequestTable::Outgoing& send : actions.sends) {
      queues_[{worker->node, send.server}].push_back(send.frame);
      sent_.push_back({worker, send.frame.header.key, send.request});
    }
    for (RequestTable::Answer& answer : actions.answers) {
      const absl::StatusOr<Frame>& frame = answer.outcome.frame;
      worker->record.push_back(
          frame.ok() ? absl::StrFormat("%s %d flags %d base %d crc %08x",
                                       FrameTypeName(frame->header.type), frame->header.step,
                                       frame->header.flags & ~kFlagUnwanted,
                                       frame->header.base_step, Crc32c(frame->payload.span()))
                     : std::string(frame.status().message()));
      if (!frame.ok()) Fail(frame.status().message());
      if (frame.ok() && frame->header.part == StatePart::kPosition) {
        const absl::StatusOr<KeyPosition> position = DecodePosition(frame->payload.span());
        if (!position.ok() || position->step != worker->begins_after) {
          Fail(absl::StrFormat("a newcomer after step %d is told another one: %d",
                               worker->begins_after, position.ok() ? position->step : 0));
        } else {
          worker->table->BeginAt(kKey, *position);
        }
      } else if (frame.ok() && (KeepsReplica() || KeepsCopy())) {
        const FrameHeader& header = frame->header;
        const bool is_round = header.type == FrameType::kReply && header.request == 0;
        if (is_round && HasPayload(header.flags)) worker->undecoded = *frame;
        if (header.type == FrameType::kValue && header.step == 0) Adopt(worker, *frame);
      }
      worker->is_waiting = false;
      ++worker->next;
    }
  }

  void Deliver(NodeId from, Sends sends) {
    for (Outgoing& send : sends) queues_[{from, send.to}].push_back(std::move(send.frame));
  }

  void LoseServer() {
    auto next = std::make_shared<Membership>(*membership_);
    if (next->servers.empty()) return;
    const size_t which = Pick(next->servers.size());
    const NodeId lost = next->servers[which].id;
    next->servers.erase(next->servers.begin() + static_cast<ptrdiff_t>(which));
    ++next->epoch;
    // Another takes its place at once, later, or never.
    if (next->servers.empty() || Chance(0.5)) AddServer(next.get());
    const NodeId heir = next->servers[Pick(next->servers.size())].id;
    if (lost == kFirstServer) next->moved[kFirstServer].fill({lost, 0});
    for (auto& [home, slots] : next->moved) {
      for (SlotOwner& slot : slots) {
        if (slot.server == lost) slot = {heir, next->epoch};
      }
    }
    next->MakeIndex();
    // A server that was only stopped goes on for a while.
    servers_.at(lost).is_gone = Chance(0.7);
    Tell(next);
  }

  // The job goes on without a worker, whose frames under way may still arrive.
  void LoseWorker() {
    Worker& lost = *workers_[Pick(workers_.size())];
    // Without rank 0 nobody would set the weights.
    const bool is_needed = lost.rank == 0 && scene_.key.rule != "mean";
    if (lost.is_lost || is_needed || membership_->workers.size() < 2) return;
    lost.is_lost = true;
    auto next = std::make_shared<Membership>(*membership_);
    std::erase_if(next->workers, [&](const NodeInfo& node) { return node.id == lost.node; });
    next->vacant.push_back(lost.rank);
    std::ranges::sort(next->vacant);
    next->unsafe = ++next->epoch;
    next->MakeIndex();
    Tell(next);
  }

  // Other workers take vacant ranks, after this step. Returns the epoch that begins so; 0: none.
  Epoch TakeIn(Step step, std::set<NodeId>* met) {
    if (membership_->vacant.empty() || Chance(0.2)) return 0;
    auto next = std::make_shared<Membership>(*membership_);
    const size_t count = 1 + Pick(next->vacant.size());
    std::vector<NodeInfo> newcomers;
    for (size_t i = 0; i < count; ++i) {
      const Rank rank = next->vacant.front();
      next->vacant.erase(next->vacant.begin());
      newcomers.push_back({.id = next_newcomer_++, .role = Role::kWorker, .rank = rank});
      next->workers.push_back(newcomers.back());
    }
    std::ranges::sort(next->workers, {}, &NodeInfo::rank);
    next->unsafe = ++next->epoch;
    next->MakeIndex();
    Tell(next);
    for (const NodeInfo& node : newcomers) {
      ++taken_in_;
      met->insert(node.id);
      Worker& worker = AddWorker(node.rank, node.id);
      worker.membership = next;
      worker.script = ScriptOf(node.rank);
      const auto boundary = std::ranges::find_if(worker.script, [step](const Op& op) {
        return op.kind == Op::kBoundary && op.step == step;
      });
      worker.script.erase(worker.script.begin(), boundary + 1);
      if (KeepsReplica()) {
        worker.script.insert(worker.script.begin(), {Op::kFetch, 0, StatePart::kReplica});
      }
      worker.script.insert(worker.script.begin(), {Op::kFetch, 0, StatePart::kPosition});
      worker.begins_after = step;
      Perform(&worker, worker.table->SetMembership(next, now_));
    }
    return next->epoch;
  }

  void Tell(std::shared_ptr<const Membership> next) {
    membership_ = std::move(next);
    for (const NodeInfo& server : membership_->servers) {
      if (!servers_.contains(server.id)) {
        Start(server.id);
      } else {
        servers_.at(server.id).news.push_back(membership_);
      }
    }
    for (const auto& worker : workers_) {
      if (!worker->is_lost) worker->news.push_back(membership_);
    }
  }

  bool IsDone() const {
    return std::ranges::all_of(workers_, [](const auto& worker) {
      return worker->is_lost || worker->next == worker->script.size();
    });
  }

  bool IsWhole() const {
    const Node& node = servers_.at(membership_->OwnerOf(kKey, kFirstServer).server);
    const KeyState* const state = node.shard->Find(kKey);
    return state != nullptr && state->rebuild.is_over();
  }

  // Runs until all scripts are done and the key is whole; returns what is wrong.
  std::string Run() {
    for (int moves = 0; trouble_.empty() && (!IsDone() || !IsWhole()); ++moves) {
      if (moves > 200000) return "it does not end: " + Where();
      if (losses_ > 0 && !IsDone() && Chance(0.004)) {
        --losses_;
        if (lost_workers_ > 0 && Chance(0.4)) {
          --lost_workers_;
          LoseWorker();
          // As a host takes both with it.
          if (Chance(0.5)) LoseServer();
        } else {
          LoseServer();
        }
        continue;
      }
      if (!Move()) {
        now_ += absl::Seconds(1);
        for (const auto& worker : workers_) {
          if (!worker->is_lost) Perform(worker.get(), worker->table->OnTick(now_));
        }
      }
    }
    return trouble_;
  }

  // Makes one move of those that are possible now.
  bool Move() {
    for (const auto& [worker, key, request] : std::exchange(sent_, {})) {
      (void)worker->table->OnSent(key, request, now_);
    }
    std::vector<std::function<void()>> moves;
    for (const auto& worker : workers_) {
      Worker* const each = worker.get();
      if (!each->news.empty() && !each->is_lost) {
        moves.push_back([this, each] {
          each->membership = each->news.front();
          each->news.pop_front();
          Perform(each, each->table->SetMembership(each->membership, now_));
        });
      }
    }
    for (const auto& worker : workers_) {
      if (!worker->undecoded.has_value() || !Chance(0.02)) continue;
      moves.push_back([this, each = worker.get()] { Decode(each); });
    }
    for (auto& [id, node] : servers_) {
      if (!node.news.empty() && !node.is_gone) {
        moves.push_back([this, id = id, at = &node] { Learn(id, at); });
      }
    }
    for (auto& [ends, queue] : queues_) {
      if (queue.empty()) continue;
      moves.push_back([this, ends = ends, at = &queue] {
        const Frame frame = at->front();
        at->pop_front();
        if (Chance(drop_)) return;
        Receive(ends.first, ends.second, frame);
      });
    }
    const size_t before = moves.size();
    const size_t pick = Pick(before + 1);
    if (pick < before) {
      moves[pick]();
      return true;
    }
    bool any = false;
    for (const auto& worker : workers_) any |= Step1(worker.get());
    return any || before > 0;
  }

  void Receive(NodeId from, NodeId to, const Frame& frame) {
    if (const auto server = servers_.find(to); server != servers_.end()) {
      if (server->second.is_gone) return;
      if (frame.header.type == FrameType::kHello) {
        queues_[{to, from}].push_back(MakeFrame(HelloHeader(to), EncodeHello({.node = to})));
        return;
      }
      return Deliver(to, server->second.shard->OnFrame(from, frame));
    }
    const auto found =
        std::ranges::find_if(workers_, [to](const auto& each) { return each->node == to; });
    Worker& worker = **found;
    if (worker.is_lost) return;
    // Its connection to a server that is out is closed.
    if (worker.membership->Find(from) == nullptr) return;
    // Headers that could not be sent must not be made.
    const auto bytes = EncodeHeader(frame.header);
    const absl::StatusOr<FrameHeader> header = DecodeHeader(bytes);
    if (!header.ok()) Fail(header.status().message());
    Perform(&worker, worker.table->OnFrame(from, frame, now_));
  }

  std::string Where() const {
    std::string text;
    for (const auto& worker : workers_) {
      absl::StrAppendFormat(&text, "worker %d at %d of %d waits for %s; ", worker->rank,
                            worker->next, worker->script.size(), worker->table->WaitingFor(kKey));
    }
    return text;
  }

  std::string FinalState() {
    const SlotOwner owner = membership_->OwnerOf(kKey, kFirstServer);
    const KeyState* const state = servers_.at(owner.server).shard->Find(kKey);
    if (state == nullptr) return "no key";
    if (scene_.key.kind == KeyKind::kBroadcast) return "";
    const Buffer bytes = EncodeSnapshot(*state->plan, state->dense);
    return absl::StrFormat("step %d, %d bytes, crc %08x", state->dense.last_step, bytes.size(),
                           Crc32c(bytes.span()));
  }

  // Returns how many keys were estimated.
  uint64_t Estimated() const {
    uint64_t estimated = 0;
    for (const auto& [id, node] : servers_) estimated += node.shard->stats().estimated;
    return estimated;
  }

  // Returns whether the server and the workers that are left hold the same replica.
  bool ReplicasAgree() {
    const SlotOwner owner = membership_->OwnerOf(kKey, kFirstServer);
    const DenseState& state = servers_.at(owner.server).shard->Find(kKey)->dense;
    return std::ranges::all_of(workers_, [&](const auto& worker) {
      if (worker->is_lost) return true;
      if (worker->undecoded.has_value()) Decode(worker.get());
      return worker->replica->values == state.parts.replica;
    });
  }

  struct Sent {
    Worker* worker;
    Key key;
    uint64_t request;
  };

  const Scene scene_;
  std::mt19937_64 random_;
  int losses_;
  int lost_workers_;
  const bool keeps_reply_;
  double drop_;
  absl::Time now_ = absl::UnixEpoch();
  std::shared_ptr<const KeyPlan> plan_;
  std::shared_ptr<const Membership> membership_;
  NodeId next_server_ = kFirstServer;
  std::map<NodeId, Node> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::pair<NodeId, NodeId>, std::deque<Frame>> queues_;
  std::map<Step, std::set<NodeId>> met_;
  std::map<Step, Epoch> began_at_;  // by the step of a boundary that has ended; 0: nobody came
  NodeId next_newcomer_ = 1000;
  int taken_in_ = 0;
  std::vector<Sent> sent_;
  std::string trouble_;
};

std::vector<Scene> Scenes() {
  return {
      {.name = "Mean", .key = {}},
      {.name = "OneBit", .key = {.push = "ef(onebit)", .pull = "onebit"}},
      {.name = "FeedbackBothWays",
       .key = {.push = "ef(onebit)", .pull = "ef(onebit)"},
       .snapshot_every = 4},
      {.name = "Uncompressed",
       .key = {.push = "ef(onebit)", .pull = "ef(onebit)"},
       .snapshot_every = 5,
       .uncompressed_from = 7},
      {.name = "UncompressedWithoutState",
       .key = {.push = "ef(onebit)", .pull = "none"},
       .uncompressed_from = 7},
      {.name = "Absent",
       .key = {.push = "none", .pull = "ef(onebit)"},
       .snapshot_every = 2,
       .absent = 3},
      {.name = "Adam",
       .key = {.push = "int4", .pull = "delta(int4)", .rule = "adamw"},
       .snapshot_every = 6,
       .rules = {3, 4, 11}},
      {.name = "Momentum",
       .key = {.push = "none", .pull = "none", .segments = {3, 5}, .rule = "sgd(momentum=0.9)"},
       .snapshot_every = 3},
      {.name = "RareGradients",
       .key = {.push = "none", .pull = "none", .segments = {3, 5}, .rule = "sgd(momentum=0.9)"},
       .snapshot_every = 7,
       .rarely = 5},
      {.name = "Broadcast", .key = {.segments = {16}, .kind = KeyKind::kBroadcast}},
  };
}

class RecoverySearch : public ::testing::TestWithParam<int> {};

TEST_P(RecoverySearch, EveryAnswerIsThatOfAJobWithoutALoss) {
  Scene scene = Scenes()[static_cast<size_t>(GetParam())];
  World undisturbed(scene, 1, 0, 0);
  ASSERT_EQ(undisturbed.Run(), "") << scene.name;
  const std::string final_state = undisturbed.FinalState();
  uint64_t recoveries = 0;
  uint64_t repeated = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    World world(scene, seed, 1 + static_cast<int>(seed % 7), seed % 2 == 0 ? 0 : 0.05);
    ASSERT_EQ(world.Run(), "") << scene.name << " seed " << seed << "\n" << world.Where();
    for (size_t i = 0; i < world.workers_.size(); ++i) {
      ASSERT_EQ(world.workers_[i]->record, undisturbed.workers_[i]->record)
          << scene.name << " seed " << seed << " worker " << i;
      recoveries += world.workers_[i]->table->recovery_stats().recoveries;
      repeated += world.workers_[i]->table->recovery_stats().pushes_repeated;
    }
    if (world.losses_ == 0) {
      ASSERT_EQ(world.FinalState(), final_state) << scene.name << " seed " << seed;
    }
  }
  EXPECT_GT(recoveries, 100u) << scene.name;
  if (scene.snapshot_every > 0) {
    EXPECT_GT(repeated, 100u) << scene.name;
  }
}

// Where workers are lost, too, no job without a loss says what is right. All must get the same
// bytes, and go on to the end.
struct Found {
  uint64_t estimated = 0;
  int taken_in = 0;
};

void FindDisagreement(const Scene& scene, int lost_workers, Found* found) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    World world(scene, seed, lost_workers + static_cast<int>(seed % 5), seed % 2 == 0 ? 0 : 0.05,
                lost_workers);
    const std::string trouble = world.Run();
    ASSERT_EQ(trouble, "") << scene.name << " seed " << seed << "\n" << world.Where();
    const bool agree = !world.KeepsReplica() || world.ReplicasAgree();
    ASSERT_TRUE(agree) << scene.name << " seed " << seed;
    found->estimated += world.Estimated();
    found->taken_in += world.taken_in_;
    std::map<std::string, std::string> of_step;
    for (const auto& worker : world.workers_) {
      if (worker->is_lost) continue;  // what it alone has had, nobody has
      for (const std::string& record : worker->record) {
        const size_t flags = record.find(" flags");
        if (!record.starts_with("reply") || flags == std::string::npos) continue;
        // An init's answer has a step, too, and no payload.
        if (record.ends_with("crc 00000000")) continue;
        const auto [known, is_new] = of_step.emplace(record.substr(0, flags), record);
        ASSERT_EQ(known->second, record) << scene.name << " seed " << seed;
      }
    }
  }
}

TEST_P(RecoverySearch, WorkersThatAreLeftAgree) {
  const Scene scene = Scenes()[static_cast<size_t>(GetParam())];
  // A broadcast whose root is lost ends with an error, which its program handles; and these scripts
  // do not know when a worker is lost that was to ask for an uncompressed key.
  if (scene.key.kind == KeyKind::kBroadcast || scene.uncompressed_from != 0) return;
  Found found;
  FindDisagreement(scene, 2, &found);
  if (scene.snapshot_every > 0) {
    EXPECT_GT(found.estimated, 100u) << scene.name;
  } else {
    EXPECT_EQ(found.estimated, 0u) << scene.name;
  }
}

TEST_P(RecoverySearch, WorkersThatComeBackAgreeWithThem) {
  Scene scene = Scenes()[static_cast<size_t>(GetParam())];
  if (scene.key.kind == KeyKind::kBroadcast || scene.uncompressed_from != 0) return;
  scene.boundary_every = 3;
  Found found;
  FindDisagreement(scene, 4, &found);
  EXPECT_GT(found.taken_in, 300) << scene.name;
}

INSTANTIATE_TEST_SUITE_P(Scenes, RecoverySearch, ::testing::Range(0, 10), [](const auto& of) {
  return Scenes()[static_cast<size_t>(of.param)].name;
});

}  // namespace
}  // namespace bdn::testing
