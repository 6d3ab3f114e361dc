#include "replay/simulator.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/transport/link_schedule.h"
#include "common/wire/frame.h"
#include "link/urgency.h"

namespace bdn {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

enum class Event : uint8_t {
  kProgram,       // a worker's program goes on
  kStart,         // an exchange begins
  kEncoded,       // a thread of the worker has encoded it
  kSent,          // its push has left
  kReached,       // the push is at the server's end of the link
  kArrived,       // the server has it
  kForeignCame,   // workers without a recording have pushed, too
  kShardDone,     // a shard's thread has handled a push
  kReplySent,     // a reply has left
  kReplyReached,  // it is at the worker's end of the link
  kReplyHere,     // the worker has it
  kDecoded,
};

struct Scheduled {
  int64_t at;
  uint64_t number;  // equal times in the order in which they were planned
  uint32_t subject;
  Event event;

  bool operator>(const Scheduled& other) const {
    return at != other.at ? at > other.at : number > other.number;
  }
};

// One direction of a node's link, or none where the rate is 0.
class Link {
 public:
  explicit Link(double rate) {
    if (rate > 0) schedule_.emplace(rate);
  }
  int64_t Depart(int64_t now, uint64_t payload_bytes) {
    if (!schedule_) return now;
    return ToNs(schedule_->Depart(absl::FromUnixNanos(now), kHeaderBytes + payload_bytes));
  }
  int64_t Arrive(int64_t now, uint64_t payload_bytes) {
    if (!schedule_) return now;
    return ToNs(schedule_->Arrive(absl::FromUnixNanos(now), kHeaderBytes + payload_bytes));
  }

 private:
  static int64_t ToNs(absl::Time time) { return absl::ToUnixNanos(time); }
  std::optional<LinkSchedule> schedule_;
};

// A heap whose front is the most urgent.
template <typename Urgency>
struct Waiting {
  Urgency urgency;
  uint32_t exchange = 0;
  uint32_t round = kNone;  // of a shard's queue: a round that only has to close
  int64_t came = 0;        // of a shard's queue: the time

  friend bool LessUrgent(const Waiting& a, const Waiting& b) {
    return IsLessUrgent(a.urgency, b.urgency);
  }
};
template <typename Urgency>
using WaitingHeap = std::vector<Waiting<Urgency>>;

template <typename Urgency>
void Push(WaitingHeap<Urgency>* heap, Waiting<Urgency> waiting) {
  heap->push_back(waiting);
  std::push_heap(heap->begin(), heap->end(),
                 [](const auto& a, const auto& b) { return LessUrgent(a, b); });
}
template <typename Urgency>
Waiting<Urgency> Pop(WaitingHeap<Urgency>* heap) {
  std::pop_heap(heap->begin(), heap->end(),
                [](const auto& a, const auto& b) { return LessUrgent(a, b); });
  const Waiting<Urgency> first = heap->back();
  heap->pop_back();
  return first;
}

class Simulator {
 public:
  Simulator(const ReplayModel& model, bool keep_times)
      : model_(model), keep_times_(keep_times), rounds_(model.rounds.size()) {
    for (const ServerModel& server : model.servers) {
      servers_.push_back({Link(server.link_rate), Link(server.link_rate),
                          std::vector<Shard>(std::max<uint32_t>(server.shards, 1))});
    }
    for (uint32_t i = 0; i < model.workers.size(); ++i) AddWorker(i);
    result_.step_ends.resize(model.workers.size());
    result_.exchange_spans.resize(model.step_numbers.size());
    if (keep_times_) {
      times_.resize(exchanges_.size());
      result_.rounds.resize(model.rounds.size());
      result_.programs.resize(model.workers.size());
    }
  }

  absl::StatusOr<ReplayResult> Run() {
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      At(model_.workers[i].begin_ns, Event::kProgram, i);
    }
    while (!events_.empty()) {
      const Scheduled next = events_.top();
      events_.pop();
      now_ = next.at;
      ++result_.events;
      Handle(next.event, next.subject);
    }
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].step == model_.workers[i].Steps().size()) continue;
      return Internal(
          "the replay stands still: %s waits in step %d for an exchange that never ends",
          model_.workers[i].name, model_.step_numbers[workers_[i].step]);
    }
    result_.end_ns = now_;
    HandOver();
    return std::move(result_);
  }

 private:
  struct ExchangeState {
    const ExchangeCosts* costs;
    uint32_t worker;
    uint32_t step;                   // of the program that begins it
    uint32_t next_of_key = kNone;    // the next step's, which waits for this one's end
    uint32_t next_of_round = kNone;  // of those whose pushes were accepted
    bool is_started = false;
    bool is_awaited = false;
    bool is_over = false;
  };
  struct Worker {
    Link egress, ingress;
    uint32_t free_threads;
    uint64_t bytes_in_flight = 0;
    WaitingHeap<TaskUrgency> encoding, decoding;
    size_t step = 0;
    size_t item = 0;
    uint32_t awaited = 0;  // exchanges that its program waits for
    int64_t after_wait_ns = 0;
    int64_t wait_begin = 0;
    std::vector<uint32_t> first_of_step;  // the number of its first exchange, by step
    std::vector<uint32_t> last_of_key;    // the exchange that began last, by key
  };
  struct Shard {
    WaitingHeap<ArrivalUrgency> queue;
    bool is_busy = false;
    Waiting<ArrivalUrgency> now;
    bool closes = false;  // what it does now closes the round
  };
  struct Server {
    Link egress, ingress;
    std::vector<Shard> shards;
  };
  struct Round {
    uint32_t expected = 0;
    uint32_t accepted = 0;
    uint32_t first = kNone;  // a list by next_of_round
  };
  // The replies of a server to one worker.
  struct Connection {
    uint64_t bytes_in_flight = 0;
    WaitingHeap<ArrivalUrgency> waiting;
  };

  void AddWorker(uint32_t index) {
    const WorkerModel& model = model_.workers[index];
    Worker worker{Link(model.link_rate), Link(model.link_rate),
                  std::max<uint32_t>(model.threads, 1)};
    worker.last_of_key.assign(model_.keys.size(), kNone);
    const auto& steps = model.Steps();
    for (uint32_t number = 0; number < steps.size(); ++number) {
      const StepProgram& step = steps[number];
      worker.first_of_step.push_back(static_cast<uint32_t>(exchanges_.size()));
      for (const ExchangeCosts& costs : step.exchanges) {
        exchanges_.push_back({.costs = &costs, .worker = index, .step = number});
        // A push whose server has no recording is answered without its round.
        if (costs.answer_ns < 0) ++rounds_[costs.round].expected;
      }
    }
    workers_.push_back(std::move(worker));
  }

  void At(int64_t at, Event event, uint32_t subject) {
    events_.push({at, number_++, subject, event});
  }
  ExchangeTimes* TimesOf(uint32_t exchange) { return keep_times_ ? &times_[exchange] : nullptr; }
  const KeyModel& KeyOf(const ExchangeState& state) const { return model_.keys[state.costs->key]; }
  bool IsShort(const ExchangeState& state) const {
    return KeyOf(state).value_bytes <= kReplayShortKey;
  }

  void Handle(Event event, uint32_t subject) {
    switch (event) {
      case Event::kProgram:
        return RunProgram(subject);
      case Event::kStart:
        return Start(subject);
      case Event::kEncoded:
        return OnEncoded(subject);
      case Event::kSent:
        return OnSent(subject);
      case Event::kReached:
        return OnReached(subject);
      case Event::kArrived:
        return OnArrived(subject);
      case Event::kForeignCame:
        return OnForeignCame(subject);
      case Event::kShardDone:
        return OnShardDone(subject);
      case Event::kReplySent:
        return OnReplySent(subject);
      case Event::kReplyReached:
        return OnReplyReached(subject);
      case Event::kReplyHere:
        return OnReplyHere(subject);
      case Event::kDecoded:
        return OnDecoded(subject);
    }
  }

  // ---- Programs ----

  void NoteProgram(uint32_t index, uint8_t mark, int64_t begin, int64_t end) {
    if (keep_times_ && mark != 0 && end > begin) {
      result_.programs[index].push_back({mark, begin, end});
    }
  }

  void RunProgram(uint32_t index) {
    Worker& worker = workers_[index];
    const auto& steps = model_.workers[index].Steps();
    while (worker.step < steps.size()) {
      const StepProgram& step = steps[worker.step];
      if (worker.item == step.items.size()) {
        result_.step_ends[index].push_back(now_);
        ++worker.step;
        worker.item = 0;
        continue;
      }
      const ProgramItem& item = step.items[worker.item++];
      if (item.kind == ProgramItem::Kind::kStart) {
        const uint32_t exchange = worker.first_of_step[worker.step] + item.first;
        if (item.ns > 0) {
          At(now_ + item.ns, Event::kStart, exchange);
        } else {
          Start(exchange);
        }
      } else if (item.kind == ProgramItem::Kind::kCompute) {
        if (item.ns <= 0) continue;
        NoteProgram(index, item.mark, now_, now_ + item.ns);
        return At(now_ + item.ns, Event::kProgram, index);
      } else {
        return Wait(index, step, item);
      }
    }
  }

  void Wait(uint32_t index, const StepProgram& step, const ProgramItem& item) {
    Worker& worker = workers_[index];
    worker.wait_begin = now_;
    worker.after_wait_ns = item.ns;
    for (uint32_t i = item.first; i < item.first + item.count; ++i) {
      const AwaitedExchange& awaited = step.awaited[i];
      if (awaited.steps_back > worker.step) continue;  // it began before the replay
      ExchangeState& state =
          exchanges_[worker.first_of_step[worker.step - awaited.steps_back] + awaited.exchange];
      if (state.is_over || state.is_awaited) continue;
      state.is_awaited = true;
      ++worker.awaited;
    }
    if (worker.awaited == 0) EndWait(index);
  }
  void EndWait(uint32_t index) {
    const Worker& worker = workers_[index];
    const int64_t end = now_ + worker.after_wait_ns;
    NoteProgram(index, static_cast<uint8_t>(TraceKind::kWaiting), worker.wait_begin, end);
    At(end, Event::kProgram, index);
  }

  // ---- The worker's way out ----

  void Start(uint32_t exchange) {
    ExchangeState& state = exchanges_[exchange];
    Worker& worker = workers_[state.worker];
    if (!state.is_started) {
      state.is_started = true;
      const uint32_t before = std::exchange(worker.last_of_key[state.costs->key], exchange);
      if (before != kNone && !exchanges_[before].is_over) {
        exchanges_[before].next_of_key = exchange;
        return;
      }
    }
    ExchangeSpan& span = result_.exchange_spans[state.step];
    span.begin = std::min(span.begin, now_);
    if (ExchangeTimes* times = TimesOf(exchange)) times->queued = now_;
    if (IsShort(state)) {
      // By the program's own thread, whose recorded time has that.
      const int64_t begin = now_ + state.costs->encode_wake_ns;
      if (ExchangeTimes* times = TimesOf(exchange)) times->encoding = begin;
      return At(begin + state.costs->encode_ns, Event::kEncoded, exchange);
    }
    const RoundCosts& round = model_.rounds[state.costs->round];
    Push(&worker.encoding, {{state.costs->priority, round.step,
                             RotatedKey(KeyOf(state).key, model_.workers[state.worker].rank)},
                            exchange});
    RunThreads(state.worker);
  }

  // Has free threads take tasks by the rule of StageQueue::MostUrgent: among equals the later lane
  // goes first, and one push always has room.
  void RunThreads(uint32_t index) {
    Worker& worker = workers_[index];
    const uint64_t most = model_.workers[index].max_bytes_in_flight;
    while (worker.free_threads > 0) {
      const auto fits = [&] {
        const uint64_t bytes = exchanges_[worker.encoding.front().exchange].costs->push_bytes;
        return worker.bytes_in_flight == 0 ||
               (bytes <= most && worker.bytes_in_flight <= most - bytes);
      };
      const bool encodes = !worker.encoding.empty() && fits();
      const bool decodes =
          !worker.decoding.empty() && (!encodes || !IsLessUrgent(worker.decoding.front().urgency,
                                                                 worker.encoding.front().urgency));
      if (!encodes && !decodes) return;
      --worker.free_threads;
      const uint32_t exchange = Pop(decodes ? &worker.decoding : &worker.encoding).exchange;
      const ExchangeCosts& costs = *exchanges_[exchange].costs;
      ExchangeTimes* const times = TimesOf(exchange);
      if (decodes) {
        const int64_t begin = now_ + costs.decode_wake_ns;
        if (times != nullptr) times->decoding = begin;
        At(begin + costs.decode_ns, Event::kDecoded, exchange);
      } else {
        const int64_t begin = now_ + costs.encode_wake_ns;
        if (times != nullptr) times->encoding = begin;
        worker.bytes_in_flight += costs.push_bytes;
        At(begin + costs.encode_ns, Event::kEncoded, exchange);
      }
    }
  }

  void OnEncoded(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    Worker& worker = workers_[state.worker];
    if (ExchangeTimes* times = TimesOf(exchange)) times->sending = now_;
    const int64_t sent = worker.egress.Depart(now_, state.costs->push_bytes);
    At(sent, Event::kSent, exchange);
    if (state.costs->answer_ns < 0) At(sent + state.costs->send_ns, Event::kReached, exchange);
    if (!IsShort(state)) {
      ++worker.free_threads;
      RunThreads(state.worker);
    }
  }

  void OnSent(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    if (ExchangeTimes* times = TimesOf(exchange)) times->sent = now_;
    if (!IsShort(state)) {
      workers_[state.worker].bytes_in_flight -= state.costs->push_bytes;
      RunThreads(state.worker);
    }
    if (state.costs->answer_ns >= 0) At(now_ + state.costs->answer_ns, Event::kReplyHere, exchange);
  }

  // ---- The server ----

  Server& ServerOf(const ExchangeState& state) { return servers_[KeyOf(state).server]; }

  void OnReached(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    At(ServerOf(state).ingress.Arrive(now_, state.costs->push_bytes), Event::kArrived, exchange);
  }

  void OnArrived(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    if (ExchangeTimes* times = TimesOf(exchange)) times->arrived = now_;
    Shard& shard = ServerOf(state).shards[KeyOf(state).shard];
    Push(&shard.queue, {{state.costs->priority, number_++}, exchange, kNone, now_});
    RunShard(state.costs->key);
  }

  void OnForeignCame(uint32_t round) {
    const uint32_t exchange = rounds_[round].first;
    const ExchangeState& state = exchanges_[exchange];
    Shard& shard = ServerOf(state).shards[KeyOf(state).shard];
    Push(&shard.queue, {{state.costs->priority, number_++}, exchange, round});
    RunShard(state.costs->key);
  }

  // Has the shard of a key take its next push, if it is free. A thread that is idle when a push
  // comes has to wake; one that is busy for longer than that does not.
  void RunShard(uint32_t key) {
    Shard& shard = servers_[model_.keys[key].server].shards[model_.keys[key].shard];
    if (shard.is_busy || shard.queue.empty()) return;
    shard.is_busy = true;
    shard.now = Pop(&shard.queue);
    const ExchangeState& state = exchanges_[shard.now.exchange];
    const uint32_t index = state.costs->round;
    Round& round = rounds_[index];
    const RoundCosts& costs = model_.rounds[index];
    int64_t at = now_;
    const bool is_push = shard.now.round == kNone;
    if (is_push) {
      const int64_t awake = std::max(now_, shard.now.came + state.costs->accept_wake_ns);
      const int64_t taken = awake + state.costs->accept_gap_ns;
      at = taken + state.costs->accept_ns;
      ++round.accepted;
      exchanges_[shard.now.exchange].next_of_round = std::exchange(round.first, shard.now.exchange);
      if (ExchangeTimes* times = TimesOf(shard.now.exchange)) {
        times->taken = taken;
        times->accepted = at;
      }
    }
    const bool is_complete = round.accepted == round.expected;
    shard.closes = is_complete && (!is_push || costs.foreign_ns == 0);
    if (is_complete && !shard.closes) At(at + costs.foreign_ns, Event::kForeignCame, index);
    if (shard.closes) {
      if (keep_times_) {
        result_.rounds[index] = {.closed = at,
                                 .summed = at + costs.sum_ns,
                                 .ruled = at + costs.sum_ns + costs.rule_ns,
                                 .last_worker = state.worker};
      }
      at += costs.sum_ns + costs.rule_ns + costs.encode_ns;
    }
    At(at, Event::kShardDone, shard.now.exchange);
  }

  void OnShardDone(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    Shard& shard = ServerOf(state).shards[KeyOf(state).shard];
    shard.is_busy = false;
    if (shard.closes) Reply(rounds_[state.costs->round].first);
    RunShard(state.costs->key);
  }

  // Queues the replies of a round, in the order of the ranks.
  void Reply(uint32_t first) {
    replying_.clear();
    for (uint32_t one = first; one != kNone; one = exchanges_[one].next_of_round) {
      replying_.push_back(one);
    }
    std::sort(replying_.begin(), replying_.end(),
              [&](uint32_t a, uint32_t b) { return exchanges_[a].worker < exchanges_[b].worker; });
    for (const uint32_t exchange : replying_) {
      const ExchangeState& state = exchanges_[exchange];
      if (ExchangeTimes* times = TimesOf(exchange)) times->replied = now_;
      Connection& connection = connections_[ConnectionOf(state)];
      Push(&connection.waiting, {{state.costs->priority, number_++}, exchange});
      TakeReplies(state, &connection);
    }
  }

  uint64_t ConnectionOf(const ExchangeState& state) const {
    return uint64_t{KeyOf(state).server} << 32 | state.worker;
  }

  // Sends replies by the rule of ReplyQueue::Take.
  void TakeReplies(const ExchangeState& any, Connection* connection) {
    const uint32_t index = KeyOf(any).server;
    const uint64_t most = model_.servers[index].max_bytes_in_flight;
    while (!connection->waiting.empty()) {
      const uint32_t exchange = connection->waiting.front().exchange;
      const ExchangeCosts& costs = *exchanges_[exchange].costs;
      const uint64_t bytes = kHeaderBytes + costs.reply_bytes;
      if (connection->bytes_in_flight > 0 && connection->bytes_in_flight + bytes > most) return;
      connection->bytes_in_flight += bytes;
      Pop(&connection->waiting);
      const int64_t sent = servers_[index].egress.Depart(now_, costs.reply_bytes);
      At(sent, Event::kReplySent, exchange);
      At(sent + costs.reply_ns, Event::kReplyReached, exchange);
    }
  }

  void OnReplySent(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    if (ExchangeTimes* times = TimesOf(exchange)) times->reply_sent = now_;
    const auto found = connections_.find(ConnectionOf(state));
    found->second.bytes_in_flight -= kHeaderBytes + state.costs->reply_bytes;
    TakeReplies(state, &found->second);
    // There may be as many of them as workers times servers.
    if (found->second.bytes_in_flight == 0) connections_.erase(found);
  }

  // ---- The worker's way back ----

  void OnReplyReached(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    At(workers_[state.worker].ingress.Arrive(now_, state.costs->reply_bytes), Event::kReplyHere,
       exchange);
  }

  void OnReplyHere(uint32_t exchange) {
    const ExchangeState& state = exchanges_[exchange];
    if (ExchangeTimes* times = TimesOf(exchange)) times->reply_here = now_;
    if (IsShort(state)) {
      const int64_t begin = now_ + state.costs->decode_wake_ns;
      if (ExchangeTimes* times = TimesOf(exchange)) times->decoding = begin;
      return At(begin + state.costs->decode_ns, Event::kDecoded, exchange);
    }
    const RoundCosts& round = model_.rounds[state.costs->round];
    Push(&workers_[state.worker].decoding,
         {{state.costs->priority, round.step, KeyOf(state).key}, exchange});
    RunThreads(state.worker);
  }

  void OnDecoded(uint32_t exchange) {
    ExchangeState& state = exchanges_[exchange];
    Worker& worker = workers_[state.worker];
    ExchangeSpan& span = result_.exchange_spans[state.step];
    span.end = std::max(span.end, now_);
    if (ExchangeTimes* times = TimesOf(exchange)) times->decoded = now_;
    state.is_over = true;
    if (!IsShort(state)) ++worker.free_threads;
    if (state.is_awaited && --worker.awaited == 0) EndWait(state.worker);
    if (state.next_of_key != kNone) Start(state.next_of_key);
    RunThreads(state.worker);
  }

  void HandOver() {
    if (!keep_times_) return;
    result_.exchanges.resize(workers_.size());
    size_t at = 0;
    for (size_t i = 0; i < workers_.size(); ++i) {
      for (const StepProgram& step : model_.workers[i].Steps()) {
        const auto first = times_.begin() + static_cast<ptrdiff_t>(at);
        at += step.exchanges.size();
        result_.exchanges[i].emplace_back(first, times_.begin() + static_cast<ptrdiff_t>(at));
      }
    }
  }

  const ReplayModel& model_;
  const bool keep_times_;
  ReplayResult result_;
  std::vector<Worker> workers_;
  std::vector<Server> servers_;
  std::vector<Round> rounds_;
  std::vector<ExchangeState> exchanges_;
  std::vector<ExchangeTimes> times_;
  absl::flat_hash_map<uint64_t, Connection> connections_;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> events_;
  std::vector<uint32_t> replying_;
  uint64_t number_ = 0;
  int64_t now_ = 0;
};

}  // namespace

absl::StatusOr<ReplayResult> Simulate(const ReplayModel& model, bool keep_times) {
  const uint64_t exchanges = model.CountExchanges();
  if (exchanges > kMostExchanges) {
    return ResourceExhausted(
        "a replay of %d exchanges is too large, the most are %d: read less of the recording by "
        "--last",
        exchanges, kMostExchanges);
  }
  return Simulator(model, keep_times).Run();
}

}  // namespace bdn
