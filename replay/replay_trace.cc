#include "replay/replay_trace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/telemetry/stage_times.h"

namespace bdn {
namespace {

// The nodes' numbers in the replayed job.
NodeId NodeOfWorker(size_t worker) { return static_cast<NodeId>(worker + 1); }

class TraceWriter {
 public:
  TraceWriter(const JobTrace& job, const ReplayModel& model, const ReplayResult& result)
      : model_(model), result_(result), begin_ns_(job.FirstNs()) {
    std::vector<NodeId> workers;
    std::vector<NodeId> servers;
    for (size_t i = 0; i < model.workers.size(); ++i) {
      const auto rank = static_cast<size_t>(std::max<Rank>(model.workers[i].rank, 0));
      workers.resize(std::max(workers.size(), rank + 1));  // by rank; some may be left out
      workers[rank] = NodeOfWorker(i);
    }
    for (size_t i = 0; i < model.servers.size(); ++i) servers.push_back(NodeOfServer(i));
    const auto add = [&](uint32_t node, const char* role, Rank rank, NodeId number) {
      const NodeTrace& old = job.nodes[node].trace;
      NodeTrace& trace = traces_.emplace_back();
      trace.facts = old.facts;
      trace.facts.role = role;
      trace.facts.rank = rank;
      trace.facts.node = number;
      trace.facts.boot_id = "replay";  // all on one clock
      // Only servers know the workers, as in a recording. So the memory grows with their number,
      // and not with its square.
      trace.facts.workers.clear();
      if (trace.facts.role == "server") trace.facts.workers = workers;
      trace.facts.servers = servers;
      trace.threads = old.threads;
      trace.clocks = {{begin_ns_, begin_ns_ + job.nodes[node].real_minus_common_ns}};
    };
    for (size_t i = 0; i < model.workers.size(); ++i) {
      add(model.workers[i].node, "worker", model.workers[i].rank, NodeOfWorker(i));
    }
    for (size_t i = 0; i < model.servers.size(); ++i) {
      add(model.servers[i].node, "server", static_cast<Rank>(i), servers[i]);
    }
    // Any recording may tell the name of a key to all readers.
    for (const KeyModel& key : model.keys) traces_[0].names.emplace(key.key.value, key.name);
  }

  std::vector<NodeTrace> Write() {
    for (size_t worker = 0; worker < model_.workers.size(); ++worker) {
      if (model_.has_marks) WriteProgram(worker);
      for (size_t step = 0; step < model_.workers[worker].Steps().size(); ++step) {
        const auto& costs = model_.workers[worker].Steps()[step].exchanges;
        for (size_t i = 0; i < costs.size(); ++i) {
          WriteExchange(worker, costs[i], result_.exchanges[worker][step][i]);
        }
      }
    }
    for (NodeTrace& trace : traces_) {
      std::stable_sort(trace.records.begin(), trace.records.end(),
                       [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
      for (const TraceRecord& record : trace.records) {
        trace.ended_ns = std::max(trace.ended_ns, EndOf(record));
      }
    }
    return std::move(traces_);
  }

 private:
  NodeId NodeOfServer(size_t server) const {
    return static_cast<NodeId>(model_.workers.size() + server + 1);
  }

  void Add(size_t trace, TraceRecord record, int64_t begin, int64_t end) {
    record.begin_ns = begin_ns_ + begin;
    record.wall_ns = static_cast<uint64_t>(std::max<int64_t>(0, end - begin));
    traces_[trace].records.push_back(record);
  }

  void WriteProgram(size_t worker) {
    const WorkerModel& model = model_.workers[worker];
    int64_t begin = model.begin_ns;
    size_t at = 0;
    const auto& stretches = result_.programs[worker];
    for (size_t i = 0; i < model.Steps().size(); ++i) {
      const int64_t end = result_.step_ends[worker][i];
      const uint64_t number = model_.step_numbers[i];
      for (; at < stretches.size() && stretches[at].begin < end; ++at) {
        Add(worker, {.step = number, .kind = stretches[at].mark}, stretches[at].begin,
            stretches[at].end);
      }
      const auto queued = static_cast<uint64_t>(std::max<int64_t>(0, model.Steps()[i].queued_ns));
      Add(worker,
          {.step = number,
           .bytes = TraceField(queued / kTraceTickNs),
           .kind = static_cast<uint8_t>(TraceKind::kStep)},
          begin, end);
      begin = end;
    }
  }

  void WriteExchange(size_t worker, const ExchangeCosts& costs, const ExchangeTimes& times) {
    const RoundCosts& round = model_.rounds[costs.round];
    const KeyModel& key = model_.keys[costs.key];
    const auto values = TraceField(key.value_bytes);
    const auto add = [&](size_t trace, Stage stage, int64_t begin, int64_t end, uint32_t bytes,
                         NodeId peer) {
      Add(trace,
          {.key = key.key.value,
           .step = round.step,
           .bytes = bytes,
           .peer = peer,
           .kind = static_cast<uint8_t>(stage)},
          begin, end);
    };
    add(worker, Stage::kQueue, times.queued, times.encoding, values,
        static_cast<NodeId>(costs.priority));
    add(worker, Stage::kEncode, times.encoding, times.sending, values, 0);
    add(worker, Stage::kSend, times.sending, times.sent, costs.push_bytes, 0);
    // A reply may come before the last byte of its push is noted as sent.
    add(worker, Stage::kWait, std::min(times.sent, times.reply_here), times.reply_here,
        costs.push_bytes, 0);
    add(worker, Stage::kDecodeQueue, times.reply_here, times.decoding, costs.reply_bytes, 0);
    add(worker, Stage::kDecode, times.decoding, times.decoded, values, 0);
    if (costs.answer_ns >= 0) return;
    const size_t server = model_.workers.size() + key.server;
    const NodeId peer = NodeOfWorker(worker);
    const ReplayedRound& closing = result_.rounds[costs.round];
    add(server, Stage::kQueue, times.arrived, times.taken, costs.push_bytes, peer);
    add(server, Stage::kSum, times.taken, times.accepted, values, peer);
    add(server, Stage::kHold, times.accepted, closing.closed, costs.push_bytes, peer);
    add(server, Stage::kReply, times.replied, times.reply_sent, costs.reply_bytes, peer);
    if (closing.last_worker != worker) return;
    if (closing.ruled > closing.summed) {
      add(server, Stage::kRule, closing.summed, closing.ruled, values, peer);
    }
    add(server, Stage::kEncode, closing.ruled, times.replied, values, peer);
  }

  const ReplayModel& model_;
  const ReplayResult& result_;
  const int64_t begin_ns_;
  std::vector<NodeTrace> traces_;  // workers, then servers
};

}  // namespace

absl::StatusOr<JobTrace> ReplayTrace(const JobTrace& job, const ReplayModel& model,
                                     const ReplayResult& result) {
  return JoinTraces(TraceWriter(job, model, result).Write());
}

}  // namespace bdn
