#include "replay/replay_model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/base/config.h"
#include "common/base/status.h"
#include "replay/recorded_costs.h"
#include "replay/recorded_program.h"
#include "replay/recorded_steps.h"

namespace bdn {
namespace {

constexpr uint64_t kDefaultInFlight = 16 << 20;
constexpr uint64_t kDefaultPartition = 4 << 20;
constexpr uint64_t kDefaultFusion = 1 << 20;
constexpr uint64_t kDefaultMinCompress = 64 << 10;
constexpr uint32_t kDefaultThreads = 2;
constexpr uint32_t kMostShards = 1024;
// A round that closes so long after its last known push has waited for somebody else.
constexpr int64_t kForeignNs = 200'000;
// A share of the programs' time, above which waiting for something unknown is told.
constexpr double kUnexplainedShare = 0.02;

std::string SettingOf(const TraceFacts& facts, std::string_view name) {
  for (const auto& [key, value] : facts.settings) {
    if (key == name) return value;
  }
  return "";
}

// Returns a setting of any node.
std::string AnySetting(const JobTrace& job, std::string_view name) {
  for (const JobNode& node : job.nodes) {
    std::string text = SettingOf(node.trace.facts, name);
    if (!text.empty()) return text;
  }
  return "";
}

uint64_t BytesOr(const std::string& text, uint64_t otherwise) {
  const auto bytes = ParseBytes(text);
  return text.empty() || !bytes.ok() ? otherwise : *bytes;
}

class ModelMaker {
 public:
  explicit ModelMaker(const JobTrace& job) : job_(job) {}

  absl::StatusOr<ReplayModel> Make() {
    BDN_ASSIGN_OR_RETURN(steps_, ChooseSteps(job_));
    model_.step_numbers = std::move(steps_.numbers);
    model_.has_marks = steps_.has_marks;
    model_.warnings = std::move(steps_.warnings);
    ReadSettings();
    AddNodes();
    for (uint32_t i = 0; i < steps_.workers.size(); ++i) AddExchanges(i);
    std::sort(places_.begin(), places_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    FillRounds();
    MeasureCosts(job_, places_, &model_);
    int64_t unexplained_ns = 0;
    for (size_t i = 0; i < steps_.workers.size(); ++i) {
      unexplained_ns += AddProgram(job_, steps_.workers[i], model_.has_marks, &model_.workers[i]);
    }
    WarnOfUnexplainedWaits(unexplained_ns);
    return std::move(model_);
  }

 private:
  void ReadSettings() {
    model_.push_spec = AnySetting(job_, "push");
    model_.pull_spec = AnySetting(job_, "pull");
    model_.partition_bytes = BytesOr(AnySetting(job_, "partition-bytes"), kDefaultPartition);
    model_.fusion_bytes = BytesOr(AnySetting(job_, "fusion-bytes"), kDefaultFusion);
    model_.min_compress_bytes =
        BytesOr(AnySetting(job_, "min-compress-bytes"), kDefaultMinCompress);
    model_.has_link_rate = !AnySetting(job_, "link").empty();
  }

  double RateOf(uint32_t node) const {
    const auto rate = ParseRate(SettingOf(job_.nodes[node].trace.facts, "link"));
    return rate.ok() ? *rate : 0;
  }
  uint64_t InFlightOf(uint32_t node) const {
    return BytesOr(SettingOf(job_.nodes[node].trace.facts, "max-bytes-in-flight"),
                   kDefaultInFlight);
  }

  // Returns the shards that a server says to have. In recordings of older versions those that are
  // seen have to do.
  static uint32_t ShardsOf(const TraceFacts& facts) {
    uint32_t shards = 0;
    const bool is_said = absl::SimpleAtoi(SettingOf(facts, "shards"), &shards);
    return is_said ? std::clamp<uint32_t>(shards, 1, kMostShards) : 1;
  }

  void AddNodes() {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const WorkerSteps& source : steps_.workers)
      first = std::min(first, source.windows[0].begin_ns);
    for (const WorkerSteps& source : steps_.workers) {
      const TraceFacts& facts = job_.nodes[source.node].trace.facts;
      uint32_t threads = 0;
      if (!absl::SimpleAtoi(SettingOf(facts, "threads"), &threads) || threads == 0) {
        threads = kDefaultThreads;
      }
      model_.workers.push_back({.name = facts.Name(),
                                .rank = facts.rank,
                                .node = source.node,
                                .host = facts.host,
                                .link_rate = RateOf(source.node),
                                .threads = threads,
                                .max_bytes_in_flight = InFlightOf(source.node),
                                .begin_ns = source.windows[0].begin_ns - first,
                                .steps = std::vector<StepProgram>(source.windows.size())});
    }
    for (uint32_t i = 0; i < job_.nodes.size(); ++i) {
      const TraceFacts& facts = job_.nodes[i].trace.facts;
      if (facts.role != "server") continue;
      server_of_node_[i] = static_cast<uint32_t>(model_.servers.size());
      model_.servers.push_back({.name = facts.Name(),
                                .node = i,
                                .host = facts.host,
                                .link_rate = RateOf(i),
                                .shards = ShardsOf(facts),
                                .max_bytes_in_flight = InFlightOf(i)});
    }
    shards_.resize(model_.servers.size());
    // One without a recording takes as long as it did, and is no bottleneck.
    if (model_.servers.empty()) model_.servers.push_back({.name = "a server", .node = 0});
  }

  uint32_t KeyIndex(const Exchange& exchange) {
    const auto [found, is_new] =
        key_of_.emplace(exchange.key, static_cast<uint32_t>(model_.keys.size()));
    if (is_new) {
      model_.keys.push_back({.key = Key{exchange.key}, .name = job_.NameOf(exchange.key)});
    }
    KeyModel& key = model_.keys[found->second];
    key.value_bytes = std::max<uint64_t>(key.value_bytes, exchange.value_bytes);
    if (exchange.server >= 0) {
      key.server = server_of_node_.at(static_cast<uint32_t>(exchange.server));
      const auto place = static_cast<uint32_t>(shards_[key.server].size());
      key.shard = shards_[key.server].emplace(exchange.shard, place).first->second;
      uint32_t& shards = model_.servers[key.server].shards;
      shards = std::max(shards, static_cast<uint32_t>(shards_[key.server].size()));
    }
    return found->second;
  }

  static int64_t Between(const Exchange& exchange, ExchangePoint from, ExchangePoint to) {
    if (exchange.At(from) == kNoTime || exchange.At(to) == kNoTime) return 0;
    return std::max<int64_t>(0, exchange.At(to) - exchange.At(from));
  }

  void AddExchanges(uint32_t worker) {
    const WorkerSteps& source = steps_.workers[worker];
    for (uint32_t step = 0; step < source.windows.size(); ++step) {
      for (const uint32_t index : source.exchanges[step]) {
        const Exchange& exchange = job_.exchanges[index];
        const uint32_t key = KeyIndex(exchange);
        const auto [round, is_new] = round_of_.emplace(std::pair(exchange.key, exchange.step),
                                                       static_cast<uint32_t>(model_.rounds.size()));
        if (is_new) model_.rounds.push_back({.key = key, .step = exchange.step});
        ExchangeCosts costs{.key = key,
                            .round = round->second,
                            .priority = exchange.priority,
                            .push_bytes = exchange.push_bytes,
                            .reply_bytes = exchange.reply_bytes};
        costs.encode_ns = Between(exchange, ExchangePoint::kEncoding, ExchangePoint::kSending);
        costs.decode_ns = Between(exchange, ExchangePoint::kDecoding, ExchangePoint::kDecoded);
        costs.accept_ns = Between(exchange, ExchangePoint::kTaken, ExchangePoint::kAccepted);
        auto& exchanges = model_.workers[worker].steps[step].exchanges;
        places_.emplace_back(index,
                             ExchangePlace{worker, step, static_cast<uint32_t>(exchanges.size())});
        exchanges.push_back(costs);
      }
    }
  }

  // Returns the number of the job's workers, as its nodes know it.
  size_t CountWorkers() const {
    size_t count = 0;
    for (const JobNode& node : job_.nodes) {
      const auto& workers = node.trace.facts.workers;
      const auto vacant = std::count(workers.begin(), workers.end(), NodeId{0});
      count = std::max(count, workers.size() - static_cast<size_t>(vacant));
    }
    return count;
  }

  void FillRounds() {
    std::vector<int64_t> last_accepted(model_.rounds.size(), kNoTime);
    std::vector<const Exchange*> any(model_.rounds.size(), nullptr);
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      const uint32_t round =
          model_.workers[place.worker].steps[place.step].exchanges[place.exchange].round;
      last_accepted[round] = std::max(last_accepted[round], exchange.At(ExchangePoint::kAccepted));
      if (exchange.server >= 0) any[round] = &exchange;
    }
    const bool is_whole = CountWorkers() <= model_.workers.size();
    bool waits_for_others = false;
    for (size_t i = 0; i < model_.rounds.size(); ++i) {
      if (any[i] == nullptr) continue;
      RoundCosts& round = model_.rounds[i];
      const Exchange& exchange = *any[i];
      const int64_t closed = exchange.At(ExchangePoint::kClosed);
      round.sum_ns = Between(exchange, ExchangePoint::kClosed, ExchangePoint::kSummed);
      if (closed != kNoTime && closed > last_accepted[i] + kForeignNs) {
        // Without anybody else it was the server's own thread that was late.
        (is_whole ? round.sum_ns : round.foreign_ns) += closed - last_accepted[i];
        waits_for_others = !is_whole;
      }
      round.rule_ns = Between(exchange, ExchangePoint::kSummed, ExchangePoint::kRuled);
      round.encode_ns = Between(exchange, ExchangePoint::kRuled, ExchangePoint::kReplied);
    }
    if (waits_for_others) {
      model_.warnings.push_back(
          "rounds waited for workers whose recording is missing: the replay has them wait as long");
    }
    if (std::any_of(places_.begin(), places_.end(),
                    [&](const auto& one) { return job_.exchanges[one.first].server < 0; })) {
      model_.warnings.push_back(
          "a server has no recording: its answers take as long as they did, whatever is changed");
    }
  }

  // Says how much of the programs' time passes in waits that no exchange ends: a replay cannot make
  // them shorter or longer.
  void WarnOfUnexplainedWaits(int64_t unexplained_ns) {
    int64_t wall_ns = 0;
    for (const WorkerModel& worker : model_.workers) {
      for (const StepProgram& step : worker.steps) wall_ns += step.wall_ns;
    }
    const double share =
        static_cast<double>(unexplained_ns) / static_cast<double>(std::max<int64_t>(wall_ns, 1));
    if (share < kUnexplainedShare) return;
    model_.warnings.push_back(absl::StrFormat(
        "for %.0f %% of their steps programs wait, and the recording does not say what for: these "
        "waits stay as they were",
        100 * share));
  }

  const JobTrace& job_;
  ReplayModel model_;
  RecordedSteps steps_;
  std::map<uint32_t, uint32_t> server_of_node_;
  std::vector<std::map<uint16_t, uint32_t>> shards_;  // by server: the shard of a thread
  absl::flat_hash_map<uint64_t, uint32_t> key_of_;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, uint32_t> round_of_;
  ExchangePlaces places_;
};

}  // namespace

uint64_t ReplayModel::CountExchanges() const {
  uint64_t count = 0;
  for (const WorkerModel& worker : workers) {
    for (const StepProgram& step : worker.Steps()) count += step.exchanges.size();
  }
  return count;
}

absl::StatusOr<ReplayModel> MakeReplayModel(const JobTrace& job) { return ModelMaker(job).Make(); }

}  // namespace bdn
