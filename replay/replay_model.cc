#include "replay/replay_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/config.h"
#include "common/base/status.h"
#include "common/transport/link_schedule.h"
#include "common/wire/frame.h"
#include "trace/program_time.h"

namespace bdn {
namespace {

constexpr uint64_t kDefaultInFlight = 16 << 20;
constexpr uint64_t kDefaultPartition = 4 << 20;
constexpr uint64_t kDefaultFusion = 1 << 20;
constexpr uint64_t kDefaultMinCompress = 64 << 10;
constexpr uint32_t kDefaultThreads = 2;
// A round that closes so long after its last known push has waited for somebody else.
constexpr int64_t kForeignNs = 200'000;

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

// The time of a step in a worker's program.
struct Window {
  uint64_t number = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t queued_ns = 0;
};

// A worker with what its program did.
struct Source {
  uint32_t node = 0;
  std::vector<ProgramSpan> spans;                // empty without marks
  std::vector<Window> windows;                   // by time
  std::vector<std::vector<uint32_t>> exchanges;  // by window: indices in the job, by begin
};

int64_t LastEnd(const JobTrace& job, const std::vector<uint32_t>& exchanges, int64_t until) {
  int64_t last = kNoTime;
  for (const uint32_t index : exchanges) {
    const int64_t end = job.exchanges[index].End();
    if (end <= until) last = std::max(last, end);
  }
  return last;
}

// Returns whether the replay knows all of an exchange's costs.
bool IsWhole(const Exchange& exchange) {
  for (const ExchangePoint point :
       {ExchangePoint::kQueued, ExchangePoint::kEncoding, ExchangePoint::kSending,
        ExchangePoint::kReplyHere, ExchangePoint::kDecoding, ExchangePoint::kDecoded}) {
    if (exchange.At(point) == kNoTime) return false;
  }
  if (exchange.server < 0) return true;
  for (const ExchangePoint point : {ExchangePoint::kArrived, ExchangePoint::kTaken,
                                    ExchangePoint::kAccepted, ExchangePoint::kReplied}) {
    if (exchange.At(point) == kNoTime) return false;
  }
  return true;
}

// Windows of a program without marks: each step of its keys, from its first exchange on.
std::vector<Window> WindowsOfKeys(const JobTrace& job, const std::vector<uint32_t>& exchanges) {
  std::map<uint64_t, int64_t> begins;
  int64_t last = 0;
  for (const uint32_t index : exchanges) {
    const Exchange& exchange = job.exchanges[index];
    const auto [found, is_new] = begins.emplace(exchange.step, exchange.Begin());
    found->second = std::min(found->second, exchange.Begin());
    last = std::max(last, exchange.End());
  }
  std::vector<Window> windows;
  for (const auto& [number, begin] : begins) {
    if (!windows.empty()) windows.back().end_ns = std::max(begin, windows.back().begin_ns);
    windows.push_back({number, begin, last + 1, 0});
  }
  return windows;
}

class ModelMaker {
 public:
  explicit ModelMaker(const JobTrace& job) : job_(job) {}

  absl::StatusOr<ReplayModel> Make() {
    BDN_RETURN_IF_ERROR(FindSources());
    BDN_RETURN_IF_ERROR(ChooseSteps());
    ReadSettings();
    AddNodes();
    for (uint32_t i = 0; i < sources_.size(); ++i) AddExchanges(i);
    FillRounds();
    MeasureWakes();
    EstimateRates();
    Calibrate();
    for (uint32_t i = 0; i < sources_.size(); ++i) AddProgram(i);
    return std::move(model_);
  }

 private:
  // Where an exchange of the recording is in the model.
  struct Place {
    uint32_t worker = 0;
    uint32_t step = 0;
    uint32_t exchange = 0;
  };

  absl::Status FindSources() {
    for (const JobNode& node : job_.nodes) {
      if (node.trace.facts.role != "process") continue;
      return Unimplemented(
          "%s takes part through its host's daemon, whose gathering of gradients the replay does "
          "not know: record the job without --hosts",
          node.trace.facts.Name());
    }
    bool any_marks = false;
    for (uint32_t i = 0; i < job_.nodes.size(); ++i) {
      const JobNode& node = job_.nodes[i];
      if (node.trace.facts.role != "worker") continue;
      const ProgramTime time(node.trace.records);
      Source source{.node = i, .spans = time.spans()};
      for (const ProgramTime::Step& step : time.steps()) {
        source.windows.push_back({step.number, step.begin_ns, step.end_ns, step.queued_ns});
      }
      if (source.windows.empty() && node.exchanges.empty()) {
        model_.warnings.push_back(absl::StrFormat(
            "%s has recorded no exchange: the replay is without it", job_.NodeName(i)));
        continue;
      }
      any_marks = any_marks || !source.windows.empty();
      sources_.push_back(std::move(source));
    }
    if (sources_.empty()) return NotFound("no worker has recorded an exchange");
    model_.has_marks = any_marks;
    if (!any_marks) {
      for (Source& source : sources_) {
        source.spans.clear();
        source.windows = WindowsOfKeys(job_, job_.nodes[source.node].exchanges);
      }
      return absl::OkStatus();
    }
    std::erase_if(sources_, [&](const Source& source) {
      if (!source.windows.empty()) return false;
      model_.warnings.push_back(absl::StrFormat(
          "the program of %s has marked no steps: others wait for it as long as they did",
          job_.NodeName(source.node)));
      return true;
    });
    return absl::OkStatus();
  }

  // Returns the numbers of the steps that all programs have recorded, each once.
  std::set<uint64_t> CommonSteps() const {
    std::map<uint64_t, size_t> seen;
    for (const Source& source : sources_) {
      std::set<uint64_t> of_source;
      for (const Window& window : source.windows) of_source.insert(window.number);
      for (const uint64_t number : of_source) ++seen[number];
    }
    std::set<uint64_t> common;
    for (const auto& [number, count] : seen) {
      if (count == sources_.size()) common.insert(number);
    }
    return common;
  }

  // Keeps the longest run of whole steps.
  absl::Status ChooseSteps() {
    const std::set<uint64_t> common = CommonSteps();
    std::set<uint64_t> broken;
    size_t kept = 0;
    for (Source& source : sources_) {
      std::erase_if(source.windows, [&](const Window& w) { return !common.contains(w.number); });
      std::vector<uint32_t> own = job_.nodes[source.node].exchanges;
      std::sort(own.begin(), own.end(), [&](uint32_t a, uint32_t b) {
        return std::pair(job_.exchanges[a].Begin(), a) < std::pair(job_.exchanges[b].Begin(), b);
      });
      source.exchanges.resize(source.windows.size());
      size_t at = 0;
      for (const uint32_t index : own) {
        const Exchange& exchange = job_.exchanges[index];
        const int64_t begin = exchange.Begin();
        while (at < source.windows.size() && source.windows[at].end_ns <= begin) ++at;
        if (at == source.windows.size()) break;
        if (begin < source.windows[at].begin_ns) continue;
        source.exchanges[at].push_back(index);
        if (!IsWhole(exchange)) broken.insert(source.windows[at].number);
      }
    }
    std::vector<uint64_t> best;
    std::vector<uint64_t> run;
    for (const uint64_t number : common) {
      if (broken.contains(number) || (!run.empty() && run.back() + 1 != number)) run.clear();
      if (!broken.contains(number)) run.push_back(number);
      if (run.size() > best.size()) best = run;
    }
    kept = best.size();
    if (kept == 0) {
      return NotFound(
          "no step is whole in these recordings: all workers' exchanges and the servers' part of "
          "them are needed");
    }
    if (kept < common.size()) {
      model_.warnings.push_back(absl::StrFormat(
          "of %d steps %d are replayed, from %d to %d: an exchange of the others is not recorded "
          "whole",
          common.size(), kept, best.front(), best.back()));
    }
    model_.step_numbers = best;
    const std::set<uint64_t> chosen(best.begin(), best.end());
    for (Source& source : sources_) {
      std::vector<Window> windows;
      std::vector<std::vector<uint32_t>> exchanges;
      for (size_t i = 0; i < source.windows.size(); ++i) {
        if (!chosen.contains(source.windows[i].number)) continue;
        windows.push_back(source.windows[i]);
        exchanges.push_back(std::move(source.exchanges[i]));
      }
      source.windows = std::move(windows);
      source.exchanges = std::move(exchanges);
      if (source.windows.size() != kept) {
        return Unimplemented("%s has recorded a step twice: two runs of a job are in one recording",
                             job_.NodeName(source.node));
      }
    }
    return absl::OkStatus();
  }

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

  void AddNodes() {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const Source& source : sources_) first = std::min(first, source.windows[0].begin_ns);
    first_ns_ = first;
    for (const Source& source : sources_) {
      const TraceFacts& facts = job_.nodes[source.node].trace.facts;
      uint32_t threads = 0;
      if (!absl::SimpleAtoi(SettingOf(facts, "threads"), &threads) || threads == 0) {
        threads = kDefaultThreads;
      }
      model_.workers.push_back({.name = facts.Name(),
                                .rank = facts.rank,
                                .node = source.node,
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
                                .link_rate = RateOf(i),
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
      model_.servers[key.server].shards = static_cast<uint32_t>(shards_[key.server].size());
    }
    return found->second;
  }

  static int64_t Between(const Exchange& exchange, ExchangePoint from, ExchangePoint to) {
    if (exchange.At(from) == kNoTime || exchange.At(to) == kNoTime) return 0;
    return std::max<int64_t>(0, exchange.At(to) - exchange.At(from));
  }

  void AddExchanges(uint32_t worker) {
    const Source& source = sources_[worker];
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
        places_.emplace(index, Place{worker, step, static_cast<uint32_t>(exchanges.size())});
        exchanges.push_back(costs);
      }
    }
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
    bool waits_for_others = false;
    for (size_t i = 0; i < model_.rounds.size(); ++i) {
      if (any[i] == nullptr) continue;
      RoundCosts& round = model_.rounds[i];
      const Exchange& exchange = *any[i];
      const int64_t closed = exchange.At(ExchangePoint::kClosed);
      if (closed != kNoTime && closed > last_accepted[i] + kForeignNs) {
        round.foreign_ns = closed - last_accepted[i];
        waits_for_others = true;
      }
      round.sum_ns = Between(exchange, ExchangePoint::kClosed, ExchangePoint::kSummed);
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

  // The work of a pool of threads, for finding out whether one was free.
  struct PoolTimes {
    std::vector<int64_t> begins;
    std::vector<int64_t> ends;

    void Add(int64_t begin, int64_t end) {
      begins.push_back(begin);
      ends.push_back(end);
    }
    void Sort() {
      std::sort(begins.begin(), begins.end());
      std::sort(ends.begin(), ends.end());
    }
    // Returns how long a task that was queued at `queued`, and begun at `begun`, waited while one
    // of so many threads was free.
    int64_t Unexplained(int64_t queued, int64_t begun, uint32_t threads) const {
      const auto up_to = [](const std::vector<int64_t>& times, int64_t ns) {
        return std::upper_bound(times.begin(), times.end(), ns) - times.begin();
      };
      const auto running = up_to(begins, queued) - up_to(ends, queued);
      const auto ended = up_to(ends, begun);
      int64_t since = queued;
      if (running >= static_cast<int64_t>(threads) && ended > 0) {
        since = std::max(since, ends[static_cast<size_t>(ended - 1)]);
      }
      return std::max<int64_t>(0, begun - since);
    }
  };

  // Splits what exchanges waited for threads into what a replay finds out anew, because all threads
  // were busy, and the rest: a free thread took so long to begin.
  void MeasureWakes() {
    std::vector<PoolTimes> pools(model_.workers.size());
    std::map<std::pair<uint32_t, uint32_t>, PoolTimes> shards;
    std::vector<PoolTimes> sends(model_.workers.size());
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      const KeyModel& key = model_.keys[CostsAt(place).key];
      if (key.value_bytes > kReplayShortKey) {
        pools[place.worker].Add(exchange.At(ExchangePoint::kEncoding),
                                exchange.At(ExchangePoint::kSending));
        pools[place.worker].Add(exchange.At(ExchangePoint::kDecoding),
                                exchange.At(ExchangePoint::kDecoded));
        sends[place.worker].Add(
            exchange.At(ExchangePoint::kSending),
            std::max(exchange.At(ExchangePoint::kSending), exchange.At(ExchangePoint::kSent)));
      }
      if (exchange.server < 0) continue;
      const bool closes = exchange.last_worker == static_cast<int32_t>(exchange.worker);
      shards[{key.server, key.shard}].Add(
          exchange.At(ExchangePoint::kTaken),
          exchange.At(closes ? ExchangePoint::kReplied : ExchangePoint::kAccepted));
    }
    for (PoolTimes& pool : pools) pool.Sort();
    for (PoolTimes& pool : sends) pool.Sort();
    for (auto& [shard, pool] : shards) pool.Sort();
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      ExchangeCosts& costs = CostsAt(place);
      const KeyModel& key = model_.keys[costs.key];
      const bool is_short = key.value_bytes <= kReplayShortKey;
      const uint32_t threads =
          is_short ? std::numeric_limits<uint32_t>::max() : model_.workers[place.worker].threads;
      const int64_t queued = exchange.At(ExchangePoint::kQueued);
      const int64_t encoding = exchange.At(ExchangePoint::kEncoding);
      costs.encode_wake_ns = pools[place.worker].Unexplained(queued, encoding, threads);
      // It may have waited for room among the bytes in flight.
      if (!is_short) {
        costs.encode_wake_ns =
            std::min(costs.encode_wake_ns, sends[place.worker].Unexplained(queued, encoding, 1));
      }
      costs.decode_wake_ns = pools[place.worker].Unexplained(
          exchange.At(ExchangePoint::kReplyHere), exchange.At(ExchangePoint::kDecoding), threads);
      if (exchange.server < 0) continue;
      costs.accept_wake_ns = shards[{key.server, key.shard}].Unexplained(
          exchange.At(ExchangePoint::kArrived), exchange.At(ExchangePoint::kTaken), 1);
    }
  }

  // The frames of one direction, by the time at which they were given to the transport.
  struct FrameTime {
    int64_t given;
    int64_t arrived;
    uint64_t bytes;
  };

  // Returns the bytes a second of the longest stretches of time in which a frame was on its way: at
  // least what a link carried. 0 where too little went over it.
  static double BusyRate(std::vector<FrameTime> frames) {
    constexpr uint64_t kLeastBytes = 256 << 10;
    std::sort(frames.begin(), frames.end(),
              [](const FrameTime& a, const FrameTime& b) { return a.given < b.given; });
    double best = 0;
    for (size_t i = 0; i < frames.size();) {
      int64_t end = frames[i].arrived;
      const int64_t begin = frames[i].given;
      uint64_t bytes = 0;
      for (; i < frames.size() && frames[i].given <= end; ++i) {
        end = std::max(end, frames[i].arrived);
        bytes += frames[i].bytes;
      }
      if (bytes < kLeastBytes || end <= begin) continue;
      best = std::max(best, static_cast<double>(bytes) / (static_cast<double>(end - begin) * 1e-9));
    }
    return best;
  }

  // Where no setting says the rate of the links, takes what they were seen to carry.
  void EstimateRates() {
    if (model_.has_link_rate) return;
    std::vector<std::vector<FrameTime>> by_worker(model_.workers.size());
    std::vector<std::vector<FrameTime>> by_server(model_.servers.size());
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      if (exchange.server < 0) continue;
      const uint32_t server = server_of_node_.at(static_cast<uint32_t>(exchange.server));
      const FrameTime push{exchange.At(ExchangePoint::kSending),
                           exchange.At(ExchangePoint::kArrived),
                           kHeaderBytes + exchange.push_bytes};
      const FrameTime reply{exchange.At(ExchangePoint::kReplied),
                            exchange.At(ExchangePoint::kReplyHere),
                            kHeaderBytes + exchange.reply_bytes};
      by_worker[place.worker].push_back(push);
      by_server[server].push_back(push);
      by_server[server].push_back(reply);
    }
    for (size_t i = 0; i < by_worker.size(); ++i) {
      model_.workers[i].link_rate = BusyRate(std::move(by_worker[i]));
    }
    for (size_t i = 0; i < by_server.size(); ++i) {
      model_.servers[i].link_rate = BusyRate(std::move(by_server[i]));
    }
  }

  // One direction of a link, as in the replay.
  struct CalibratedLink {
    explicit CalibratedLink(double rate) : has_rate(rate > 0), schedule(has_rate ? rate : 1) {}
    int64_t Depart(int64_t now, uint64_t bytes) {
      if (!has_rate) return now;
      return absl::ToUnixNanos(schedule.Depart(absl::FromUnixNanos(now), kHeaderBytes + bytes));
    }
    int64_t Arrive(int64_t now, uint64_t bytes) {
      if (!has_rate) return now;
      return absl::ToUnixNanos(schedule.Arrive(absl::FromUnixNanos(now), kHeaderBytes + bytes));
    }
    bool has_rate;
    LinkSchedule schedule;
  };

  // A frame on its way, for finding out what it took beyond the links' rates.
  struct Travel {
    uint32_t exchange = 0;  // of the job
    Place place;
    int64_t given = 0;
    int64_t left = 0;  // as its sender has recorded it
    int64_t departs = 0;
  };

  ExchangeCosts& CostsAt(const Place& place) {
    return model_.workers[place.worker].steps[place.step].exchanges[place.exchange];
  }

  void Calibrate() {
    std::vector<Travel> pushes;
    std::vector<Travel> replies;
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      const int64_t sending = exchange.At(ExchangePoint::kSending);
      int64_t sent = exchange.At(ExchangePoint::kSent);
      if (sent == kNoTime) sent = sending;
      pushes.push_back({index, place, sending, sent, 0});
      if (exchange.server < 0) continue;
      const int64_t replied = exchange.At(ExchangePoint::kReplied);
      int64_t reply_sent = exchange.At(ExchangePoint::kReplySent);
      if (reply_sent == kNoTime) reply_sent = replied;
      replies.push_back({index, place, replied, reply_sent, 0});
    }
    const auto by_left = [](const Travel& a, const Travel& b) {
      return std::tie(a.left, a.exchange) < std::tie(b.left, b.exchange);
    };
    const auto by_departure = [](const Travel& a, const Travel& b) {
      return std::tie(a.departs, a.exchange) < std::tie(b.departs, b.exchange);
    };
    std::vector<CalibratedLink> worker_out, worker_in, server_out, server_in;
    for (const WorkerModel& worker : model_.workers) {
      worker_out.emplace_back(worker.link_rate);
      worker_in.emplace_back(worker.link_rate);
    }
    for (const ServerModel& server : model_.servers) {
      server_out.emplace_back(server.link_rate);
      server_in.emplace_back(server.link_rate);
    }
    std::sort(pushes.begin(), pushes.end(), by_left);
    for (Travel& push : pushes) {
      push.departs =
          worker_out[push.place.worker].Depart(push.given, CostsAt(push.place).push_bytes);
    }
    std::sort(pushes.begin(), pushes.end(), by_departure);
    for (const Travel& push : pushes) {
      const Exchange& exchange = job_.exchanges[push.exchange];
      ExchangeCosts& costs = CostsAt(push.place);
      if (exchange.server < 0) {
        costs.answer_ns =
            std::max<int64_t>(0, exchange.At(ExchangePoint::kReplyHere) - push.departs);
        continue;
      }
      const int64_t arrives =
          server_in[model_.keys[costs.key].server].Arrive(push.departs, costs.push_bytes);
      costs.send_ns = std::max<int64_t>(0, exchange.At(ExchangePoint::kArrived) - arrives);
    }
    std::sort(replies.begin(), replies.end(), by_left);
    for (Travel& reply : replies) {
      const ExchangeCosts& costs = CostsAt(reply.place);
      reply.departs =
          server_out[model_.keys[costs.key].server].Depart(reply.given, costs.reply_bytes);
    }
    std::sort(replies.begin(), replies.end(), by_departure);
    for (const Travel& reply : replies) {
      ExchangeCosts& costs = CostsAt(reply.place);
      const int64_t arrives =
          worker_in[reply.place.worker].Arrive(reply.departs, costs.reply_bytes);
      costs.reply_ns = std::max<int64_t>(
          0, job_.exchanges[reply.exchange].At(ExchangePoint::kReplyHere) - arrives);
    }
  }

  // ---- Programs ----

  // A wait of a program.
  struct WaitTime {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    uint32_t step = 0;
    uint32_t number = 0;                                 // in its step
    std::vector<std::pair<uint32_t, uint32_t>> awaited;  // step and exchange
    int64_t last_end_ns = kNoTime;                       // of those
  };

  std::vector<WaitTime> WaitsOf(const Source& source) const {
    std::vector<WaitTime> waits;
    size_t at = 0;
    for (uint32_t step = 0; step < source.windows.size(); ++step) {
      const Window& window = source.windows[step];
      uint32_t number = 0;
      for (; at < source.spans.size() && source.spans[at].begin_ns < window.end_ns; ++at) {
        const ProgramSpan& span = source.spans[at];
        if (span.kind != TraceKind::kWaiting || span.begin_ns < window.begin_ns) continue;
        waits.push_back({span.begin_ns, span.end_ns, step, number++, {}, kNoTime});
      }
    }
    return waits;
  }

  // Finds out which wait of the program waits for which exchange: the recording does not say that.
  // The wait that a key is awaited in ends behind its exchange in each step, so it is the first one
  // that does so in all of them, where steps have equally many waits.
  void AssignExchanges(const Source& source, std::vector<WaitTime>* waits) {
    std::vector<uint32_t> counts(source.windows.size(), 0);
    for (const WaitTime& wait : *waits) ++counts[wait.step];
    const bool is_even =
        std::all_of(counts.begin(), counts.end(), [&](uint32_t c) { return c == counts[0]; });
    std::vector<uint32_t> first(source.windows.size() + 1, 0);
    for (size_t i = 0; i < counts.size(); ++i) first[i + 1] = first[i] + counts[i];
    using Distance = std::pair<uint32_t, uint32_t>;  // steps later, and the wait's number there
    std::map<std::pair<uint64_t, size_t>, Distance> of_key;
    const auto find = [&](uint32_t index) {
      const int64_t end = job_.exchanges[index].End();
      return static_cast<size_t>(
          std::lower_bound(waits->begin(), waits->end(), end,
                           [](const WaitTime& wait, int64_t ns) { return wait.end_ns < ns; }) -
          waits->begin());
    };
    // Of a key that is pushed several times in a step, each one by itself.
    const auto key_of = [&](uint32_t step, size_t place) {
      const uint64_t key = job_.exchanges[source.exchanges[step][place]].key;
      size_t before = 0;
      for (size_t i = 0; i < place && is_even; ++i) {
        before += job_.exchanges[source.exchanges[step][i]].key == key ? 1 : 0;
      }
      return std::pair(key, before);
    };
    for (uint32_t step = 0; is_even && step < source.windows.size(); ++step) {
      for (size_t i = 0; i < source.exchanges[step].size(); ++i) {
        const size_t wait = find(source.exchanges[step][i]);
        if (wait == waits->size()) continue;
        Distance& distance = of_key[key_of(step, i)];
        distance = std::max(distance, {(*waits)[wait].step - step, (*waits)[wait].number});
      }
    }
    for (uint32_t step = 0; step < source.windows.size(); ++step) {
      for (uint32_t i = 0; i < source.exchanges[step].size(); ++i) {
        size_t wait = find(source.exchanges[step][i]);
        if (is_even) {
          const auto found = of_key.find(key_of(step, i));
          if (found == of_key.end() || step + found->second.first >= source.windows.size())
            continue;
          wait = first[step + found->second.first] + found->second.second;
        }
        if (wait >= waits->size()) continue;
        WaitTime& one = (*waits)[wait];
        one.awaited.emplace_back(step, i);
        one.last_end_ns =
            std::max(one.last_end_ns, job_.exchanges[source.exchanges[step][i]].End());
      }
    }
  }

  // A cursor that turns a worker's recorded time into items.
  class ItemWriter {
   public:
    ItemWriter(int64_t at, StepProgram* step) : at_(at), step_(step) {}
    void Compute(int64_t until, uint8_t mark) {
      if (until <= at_) return;
      step_->items.push_back({ProgramItem::Kind::kCompute, mark, 0, 0, until - at_});
      at_ = until;
    }
    void Start(uint32_t exchange, int64_t at) {
      step_->items.push_back(
          {ProgramItem::Kind::kStart, 0, exchange, 0, std::max<int64_t>(0, at - at_)});
    }
    void Wait(const std::vector<std::pair<uint32_t, uint32_t>>& awaited, uint32_t step,
              int64_t until, int64_t after_ns) {
      const auto first = static_cast<uint32_t>(step_->awaited.size());
      for (const auto& [of_step, exchange] : awaited) {
        step_->awaited.push_back({step - of_step, exchange});
      }
      step_->items.push_back(
          {ProgramItem::Kind::kWait, 0, first, static_cast<uint32_t>(awaited.size()), after_ns});
      at_ = std::max(at_, until);
    }
    int64_t at() const { return at_; }

   private:
    int64_t at_;
    StepProgram* step_;
  };

  void AddProgram(uint32_t worker) {
    const Source& source = sources_[worker];
    for (size_t i = 0; i < source.windows.size(); ++i) {
      StepProgram& step = model_.workers[worker].steps[i];
      step.wall_ns = source.windows[i].end_ns - source.windows[i].begin_ns;
      step.queued_ns = source.windows[i].queued_ns;
    }
    if (model_.has_marks) {
      AddMarkedProgram(source, &model_.workers[worker]);
    } else {
      AddUnmarkedProgram(source, &model_.workers[worker]);
    }
  }

  void AddMarkedProgram(const Source& source, WorkerModel* worker) {
    std::vector<WaitTime> waits = WaitsOf(source);
    AssignExchanges(source, &waits);
    size_t next_wait = 0;
    size_t span = 0;
    for (uint32_t number = 0; number < source.windows.size(); ++number) {
      const Window& window = source.windows[number];
      ItemWriter writer(window.begin_ns, &worker->steps[number]);
      uint32_t next = 0;
      const auto& exchanges = source.exchanges[number];
      const auto begin_of = [&](uint32_t i) { return job_.exchanges[exchanges[i]].Begin(); };
      // Computes until `until`, and starts what began meanwhile.
      const auto compute = [&](int64_t until, uint8_t mark) {
        while (next < exchanges.size() && begin_of(next) < until) {
          writer.Compute(begin_of(next), mark);
          writer.Start(next, begin_of(next));
          ++next;
        }
        writer.Compute(until, mark);
      };
      for (; span < source.spans.size() && source.spans[span].begin_ns < window.end_ns; ++span) {
        const ProgramSpan& one = source.spans[span];
        const auto mark = static_cast<uint8_t>(one.kind.value_or(TraceKind{}));
        compute(std::max(one.begin_ns, writer.at()), 0);
        const int64_t end = std::min(one.end_ns, window.end_ns);
        const bool is_wait = one.kind == TraceKind::kWaiting && next_wait < waits.size() &&
                             waits[next_wait].begin_ns == one.begin_ns;
        if (!is_wait) {
          compute(end, mark);
          // A span that goes on belongs to the next step, too.
          if (one.end_ns > window.end_ns) break;
          continue;
        }
        const WaitTime& wait = waits[next_wait++];
        if (wait.awaited.empty()) {
          compute(end, mark);
          continue;
        }
        while (next < exchanges.size() && begin_of(next) < end) {
          writer.Start(next, begin_of(next));
          ++next;
        }
        writer.Wait(wait.awaited, number, end,
                    std::max<int64_t>(0, end - std::max(wait.begin_ns, wait.last_end_ns)));
      }
      compute(window.end_ns, 0);
    }
  }

  // Of a program without marks it is known when its exchanges began. A step's first one is taken to
  // follow the last exchange that had ended by then.
  void AddUnmarkedProgram(const Source& source, WorkerModel* worker) {
    int64_t at = source.windows[0].begin_ns;
    for (uint32_t number = 0; number < source.windows.size(); ++number) {
      ItemWriter writer(at, &worker->steps[number]);
      const auto& exchanges = source.exchanges[number];
      const int64_t begin = source.windows[number].begin_ns;
      std::vector<std::pair<uint32_t, uint32_t>> awaited;
      if (number > 0) {
        const auto& before = source.exchanges[number - 1];
        for (uint32_t i = 0; i < before.size(); ++i) {
          if (job_.exchanges[before[i]].End() <= begin) awaited.emplace_back(number - 1, i);
        }
        const int64_t last = LastEnd(job_, before, begin);
        if (!awaited.empty() && last >= at) writer.Wait(awaited, number, last, 0);
      }
      for (uint32_t i = 0; i < exchanges.size(); ++i) {
        const int64_t start = job_.exchanges[exchanges[i]].Begin();
        writer.Compute(start, 0);
        writer.Start(i, start);
      }
      at = writer.at();
    }
  }

  const JobTrace& job_;
  ReplayModel model_;
  std::vector<Source> sources_;
  int64_t first_ns_ = 0;
  std::map<uint32_t, uint32_t> server_of_node_;
  std::vector<std::map<uint16_t, uint32_t>> shards_;  // by server: the shard of a thread
  absl::flat_hash_map<uint64_t, uint32_t> key_of_;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, uint32_t> round_of_;
  std::map<uint32_t, Place> places_;  // of exchanges of the job
};

}  // namespace

uint64_t ReplayModel::CountExchanges() const {
  uint64_t count = 0;
  for (const WorkerModel& worker : workers) {
    for (const StepProgram& step : worker.steps) count += step.exchanges.size();
  }
  return count;
}

absl::StatusOr<ReplayModel> MakeReplayModel(const JobTrace& job) { return ModelMaker(job).Make(); }

}  // namespace bdn
