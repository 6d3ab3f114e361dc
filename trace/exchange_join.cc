#include "trace/exchange_join.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "common/telemetry/stage_times.h"

namespace bdn {
namespace {

using ExchangeId = std::tuple<uint64_t, uint64_t, uint32_t>;  // key, step, worker's index

// A step of a key at one server.
struct RoundTimes {
  int64_t summed = kNoTime;
  int64_t rule_begin = kNoTime;
  int64_t ruled = kNoTime;
  int64_t encode_begin = kNoTime;
  int64_t replied = kNoTime;
  int32_t last_worker = -1;  // as the encoding says
  int32_t last_to_be_held = -1;
  int64_t last_held = kNoTime;
};
using RoundId = std::tuple<uint64_t, uint64_t, uint32_t>;  // key, step, server's index

class Joiner {
 public:
  explicit Joiner(const std::vector<JobNode>& nodes) : nodes_(nodes) {
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].trace.facts.node != 0) index_of_[nodes[i].trace.facts.node] = i;
    }
  }

  std::vector<Exchange> Join() {
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      const NodeTrace& trace = nodes_[i].trace;
      if (trace.facts.role == "worker") JoinWorker(i, trace);
      if (trace.facts.role == "server") JoinServer(i, trace);
    }
    for (Exchange& exchange : exchanges_) FinishRound(&exchange);
    // What a server alone has recorded has no worker to show it at.
    std::erase_if(exchanges_, [](const Exchange& exchange) {
      return exchange.At(ExchangePoint::kQueued) == kNoTime &&
             exchange.At(ExchangePoint::kEncoding) == kNoTime &&
             exchange.At(ExchangePoint::kSending) == kNoTime &&
             exchange.At(ExchangePoint::kReplyHere) == kNoTime &&
             exchange.At(ExchangePoint::kDecoded) == kNoTime;
    });
    return std::move(exchanges_);
  }

 private:
  Exchange* ExchangeOf(uint64_t key, uint64_t step, uint32_t worker) {
    const auto [found, is_new] = by_id_.emplace(ExchangeId{key, step, worker}, exchanges_.size());
    if (is_new) {
      Exchange& exchange = exchanges_.emplace_back();
      exchange.key = key;
      exchange.step = step;
      exchange.worker = worker;
      exchange.points.fill(kNoTime);
    }
    return &exchanges_[found->second];
  }

  // A repeated push is recorded again. Its exchange begins with the first and ends with the last.
  static void First(Exchange* exchange, ExchangePoint point, int64_t ns) {
    int64_t& at = exchange->points[static_cast<size_t>(point)];
    if (at == kNoTime || ns < at) at = ns;
  }
  static void Last(Exchange* exchange, ExchangePoint point, int64_t ns) {
    int64_t& at = exchange->points[static_cast<size_t>(point)];
    at = std::max(at, ns);
  }

  void JoinWorker(uint32_t worker, const NodeTrace& trace) {
    for (const TraceRecord& record : trace.records) {
      const auto stage = FindStage(record.kind);
      if (!stage || record.step == 0) continue;
      Exchange* const exchange = ExchangeOf(record.key, record.step, worker);
      const int64_t begin = record.begin_ns;
      const int64_t end = EndOf(record);
      switch (*stage) {
        case Stage::kQueue:
          First(exchange, ExchangePoint::kQueued, begin);
          exchange->priority = static_cast<int32_t>(record.peer);
          First(exchange, ExchangePoint::kEncoding, end);
          break;
        case Stage::kEncode:
          First(exchange, ExchangePoint::kEncoding, begin);
          First(exchange, ExchangePoint::kSending, end);
          exchange->value_bytes = std::max(exchange->value_bytes, record.bytes);
          break;
        case Stage::kSend:
          First(exchange, ExchangePoint::kSending, begin);
          First(exchange, ExchangePoint::kSent, end);
          exchange->push_bytes = std::max(exchange->push_bytes, record.bytes);
          break;
        case Stage::kWait:
          First(exchange, ExchangePoint::kSent, begin);
          First(exchange, ExchangePoint::kReplyHere, end);
          break;
        case Stage::kDecodeQueue:
          First(exchange, ExchangePoint::kReplyHere, begin);
          First(exchange, ExchangePoint::kDecoding, end);
          exchange->reply_bytes = std::max(exchange->reply_bytes, record.bytes);
          break;
        case Stage::kDecode:
          First(exchange, ExchangePoint::kDecoding, begin);
          Last(exchange, ExchangePoint::kDecoded, end);
          break;
        case Stage::kDeliver:
          Last(exchange, ExchangePoint::kEnded, end);
          break;
        default:
          break;  // a server's
      }
    }
  }

  void JoinServer(uint32_t server, const NodeTrace& trace) {
    for (const TraceRecord& record : trace.records) {
      const auto stage = FindStage(record.kind);
      if (!stage || record.step == 0) continue;
      RoundTimes& round = rounds_[{record.key, record.step, server}];
      if (*stage == Stage::kRule) {
        round.rule_begin = record.begin_ns;
        round.ruled = EndOf(record);
      } else if (*stage == Stage::kEncode) {
        round.encode_begin = record.begin_ns;
        round.replied = EndOf(record);
      } else if (*stage == Stage::kSum) {
        round.summed = std::max(round.summed, EndOf(record));
      }
      server_of_key_[record.key] = trace.facts.node;
      const auto worker = index_of_.find(record.peer);
      if (worker == index_of_.end()) continue;
      if (*stage == Stage::kEncode) round.last_worker = static_cast<int32_t>(worker->second);
      JoinPush(*stage, record, worker->second, server, &round);
    }
  }

  void JoinPush(Stage stage, const TraceRecord& record, uint32_t worker, uint32_t server,
                RoundTimes* round) {
    if (nodes_[worker].trace.facts.role != "worker") return;
    Exchange* const exchange = ExchangeOf(record.key, record.step, worker);
    exchange->server = static_cast<int32_t>(server);
    exchange->server_node = nodes_[server].trace.facts.node;
    const int64_t begin = record.begin_ns;
    const int64_t end = EndOf(record);
    switch (stage) {
      case Stage::kQueue:
        First(exchange, ExchangePoint::kArrived, begin);
        First(exchange, ExchangePoint::kTaken, end);
        break;
      case Stage::kSum:
        if ((record.flags & kTraceCountedElsewhere) != 0) break;
        exchange->shard = record.thread;
        First(exchange, ExchangePoint::kTaken, begin);
        First(exchange, ExchangePoint::kAccepted, end);
        break;
      case Stage::kHold:
        First(exchange, ExchangePoint::kAccepted, begin);
        First(exchange, ExchangePoint::kClosed, end);
        if (begin > round->last_held) {
          round->last_held = begin;
          round->last_to_be_held = static_cast<int32_t>(worker);
        }
        break;
      case Stage::kReply:
        First(exchange, ExchangePoint::kReplied, begin);
        First(exchange, ExchangePoint::kReplySent, end);
        break;
      default:
        break;  // of the round, or a worker's
    }
  }

  void FinishRound(Exchange* exchange) {
    if (exchange->server < 0) {
      // A push that has not arrived is on its way to where earlier ones of its key went.
      const auto server = server_of_key_.find(exchange->key);
      if (server != server_of_key_.end()) exchange->server_node = server->second;
      return;
    }
    const auto found =
        rounds_.find({exchange->key, exchange->step, static_cast<uint32_t>(exchange->server)});
    if (found == rounds_.end()) return;
    const RoundTimes& round = found->second;
    exchange->last_worker = round.last_worker >= 0 ? round.last_worker : round.last_to_be_held;
    const auto set = [exchange](ExchangePoint point, int64_t ns) {
      exchange->points[static_cast<size_t>(point)] = ns;
    };
    // `mean` has no rule, so that its reply is encoded from the sum on.
    set(ExchangePoint::kSummed,
        round.rule_begin != kNoTime ? round.rule_begin : round.encode_begin);
    set(ExchangePoint::kRuled, round.ruled != kNoTime ? round.ruled : round.encode_begin);
    if (round.replied != kNoTime) set(ExchangePoint::kReplied, round.replied);
  }

  const std::vector<JobNode>& nodes_;
  absl::flat_hash_map<NodeId, uint32_t> index_of_;
  absl::flat_hash_map<ExchangeId, size_t> by_id_;
  absl::flat_hash_map<RoundId, RoundTimes> rounds_;
  absl::flat_hash_map<uint64_t, NodeId> server_of_key_;  // the node that had it last
  std::vector<Exchange> exchanges_;
};

}  // namespace

std::vector<Exchange> JoinExchanges(const std::vector<JobNode>& nodes) {
  return Joiner(nodes).Join();
}

std::vector<ClockBound> BoundsOf(const std::vector<Exchange>& exchanges,
                                 const std::vector<uint32_t>& clock_of) {
  std::vector<ClockBound> bounds;
  for (const Exchange& exchange : exchanges) {
    if (exchange.server < 0) continue;
    const uint32_t worker = clock_of[exchange.worker];
    const uint32_t server = clock_of[static_cast<size_t>(exchange.server)];
    if (worker == server) continue;
    const int64_t sent = exchange.At(ExchangePoint::kSending);
    const int64_t arrived = exchange.At(ExchangePoint::kArrived);
    if (sent != kNoTime && arrived != kNoTime) {
      bounds.push_back({worker, server, sent, arrived});
    }
    const int64_t replied = exchange.At(ExchangePoint::kReplied);
    const int64_t reply_here = exchange.At(ExchangePoint::kReplyHere);
    if (replied != kNoTime && reply_here != kNoTime) {
      bounds.push_back({server, worker, replied, reply_here});
    }
  }
  return bounds;
}

}  // namespace bdn
