#include "replay/what_if.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "compressors/codec_spec.h"
#include "replay/key_places.h"
#include "replay/more_workers.h"
#include "replay/recut_keys.h"

namespace bdn {
namespace {

int64_t Median(std::vector<int64_t>* values) {
  const auto middle = values->begin() + static_cast<ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

// ---- median, drop ----

// The time from the end of what a wait waits for until the program goes on, by the number of the
// wait in its step.
void TakeMediansOfWaking(ReplayModel* model) {
  std::map<size_t, std::vector<int64_t>> of_wait;
  const auto for_each_wait = [model](const auto& action) {
    for (WorkerModel& worker : model->workers) {
      for (StepProgram& step : worker.steps) {
        size_t number = 0;
        for (ProgramItem& item : step.items) {
          if (item.kind == ProgramItem::Kind::kWait) action(number++, &item.ns);
        }
      }
    }
  };
  for_each_wait([&](size_t number, const int64_t* ns) { of_wait[number].push_back(*ns); });
  std::map<size_t, int64_t> medians;
  for (auto& [number, values] : of_wait) medians[number] = Median(&values);
  for_each_wait([&](size_t number, int64_t* ns) { *ns = medians[number]; });
}

// Gives a member of all records that have a key the median of that key.
template <typename Record, typename ForEach>
void TakeMedianByKey(int64_t Record::*field, const ForEach& for_each) {
  std::map<uint32_t, std::vector<int64_t>> of_key;
  for_each([&](Record* record) { of_key[record->key].push_back(record->*field); });
  std::map<uint32_t, int64_t> medians;
  for (auto& [key, values] : of_key) medians[key] = Median(&values);
  for_each([&](Record* record) { record->*field = medians[record->key]; });
}

void TakeMediansOfCosts(ReplayModel* model) {
  for (const auto field :
       {&ExchangeCosts::encode_wake_ns, &ExchangeCosts::accept_wake_ns,
        &ExchangeCosts::accept_gap_ns, &ExchangeCosts::decode_wake_ns, &ExchangeCosts::encode_ns,
        &ExchangeCosts::send_ns, &ExchangeCosts::accept_ns, &ExchangeCosts::reply_ns,
        &ExchangeCosts::decode_ns}) {
    TakeMedianByKey<ExchangeCosts>(field,
                                   [model](const auto& use) { ForEachExchange(model, use); });
  }
  for (const auto field : {&RoundCosts::sum_ns, &RoundCosts::rule_ns, &RoundCosts::encode_ns}) {
    TakeMedianByKey<RoundCosts>(field, [model](const auto& use) {
      for (RoundCosts& round : model->rounds) use(&round);
    });
  }
}

// Returns what a program computes in a step, by its marks.
std::map<uint8_t, int64_t> ComputingOf(const StepProgram& step) {
  std::map<uint8_t, int64_t> by_mark;
  for (const ProgramItem& item : step.items) {
    if (item.kind == ProgramItem::Kind::kCompute) by_mark[item.mark] += item.ns;
  }
  return by_mark;
}

// Has programs compute as long in each step as they do in the median. A step stays divided up as it
// was.
void TakeMediansOfComputing(ReplayModel* model) {
  std::map<uint8_t, std::vector<int64_t>> sums;
  size_t steps = 0;
  for (const WorkerModel& worker : model->workers) {
    for (const StepProgram& step : worker.steps) {
      ++steps;
      for (const auto& [mark, ns] : ComputingOf(step)) sums[mark].push_back(ns);
    }
  }
  std::map<uint8_t, int64_t> medians;
  for (auto& [mark, values] : sums) {
    values.resize(steps, 0);  // others did none of it
    medians[mark] = Median(&values);
  }
  for (WorkerModel& worker : model->workers) {
    for (StepProgram& step : worker.steps) {
      const auto of_step = ComputingOf(step);
      for (ProgramItem& item : step.items) {
        if (item.kind != ProgramItem::Kind::kCompute) continue;
        const auto sum = static_cast<double>(std::max<int64_t>(of_step.at(item.mark), 1));
        item.ns = static_cast<int64_t>(static_cast<double>(item.ns) *
                                       static_cast<double>(medians[item.mark]) / sum);
      }
    }
  }
}

absl::Status DropWorkers(const std::vector<Rank>& ranks, ReplayModel* model) {
  for (const Rank rank : ranks) {
    const size_t before = model->workers.size();
    std::erase_if(model->workers, [rank](const WorkerModel& one) { return one.rank == rank; });
    if (model->workers.size() == before) {
      return InvalidArgument("setting 'drop': no worker of rank %d is in the recording", rank);
    }
  }
  if (model->workers.empty()) return InvalidArgument("setting 'drop' leaves no worker");
  return absl::OkStatus();
}

// ---- servers ----

bool HasUnknownServer(const ReplayModel& model) {
  for (const WorkerModel& worker : model.workers) {
    for (const StepProgram& step : worker.steps) {
      for (const ExchangeCosts& costs : step.exchanges) {
        if (costs.answer_ns >= 0) return true;
      }
    }
  }
  return false;
}

void SetServers(uint32_t count, ReplayModel* model) {
  const size_t before = model->servers.size();
  if (count == before) return;  // the keys stay where they were
  model->servers.resize(std::min<size_t>(before, count));
  for (size_t i = before; i < count; ++i) {
    ServerModel server = model->servers[i % before];
    server.name = absl::StrFormat("server %d", i);
    model->servers.push_back(std::move(server));
  }
  PlaceKeys(model);
}

// ---- threads, shards ----

// Returns an error where a machine had fewer idle processors than are to have a thread more each:
// an operation would take longer than it took.
absl::Status CheckProcessors(const ReplayModel& model, const std::string& setting,
                             const std::map<std::string, int64_t>& more_threads) {
  for (const auto& [host, more] : more_threads) {
    if (more <= 0) continue;
    const auto idle = model.idle_processors.find(host);
    if (idle == model.idle_processors.end()) {
      return Unimplemented(
          "a replay cannot predict more '%s' here: the recording does not say how busy %s was, and "
          "a replay does not share its processors out",
          setting, host);
    }
    if (idle->second >= static_cast<double>(more)) continue;
    return Unimplemented(
        "a replay cannot predict so many '%s': %d more threads on %s, of whose processors %.1f "
        "were idle, would wait for each other, and a replay does not share processors out",
        setting, more, host, idle->second);
  }
  return absl::OkStatus();
}

absl::Status SetThreads(uint32_t count, ReplayModel* model) {
  std::map<std::string, int64_t> more;
  for (const WorkerModel& worker : model->workers)
    more[worker.host] += int64_t{count} - worker.threads;
  BDN_RETURN_IF_ERROR(CheckProcessors(*model, "threads", more));
  for (WorkerModel& worker : model->workers) worker.threads = count;
  return absl::OkStatus();
}

absl::Status SetShards(uint32_t count, ReplayModel* model) {
  std::map<std::string, int64_t> more;
  for (const ServerModel& server : model->servers)
    more[server.host] += int64_t{count} - server.shards;
  BDN_RETURN_IF_ERROR(CheckProcessors(*model, "shards", more));
  for (ServerModel& server : model->servers) server.shards = count;
  PlaceShards(model);
  return absl::OkStatus();
}

// ---- push, pull ----

// A change of the codec of one direction.
class CodecChange {
 public:
  // `spec` is canonical.
  CodecChange(const std::string& spec, bool is_push, const CodecCosts& costs, ReplayModel* model)
      : spec_(spec), is_push_(is_push), costs_(costs), model_(*model) {}

  absl::Status Apply() {
    std::string& recorded = is_push_ ? model_.push_spec : model_.pull_spec;
    const auto was = ParseCodecSpec(recorded.empty() ? "none" : recorded);
    const bool is_same = !recorded.empty() && was.ok() && was->spec() == spec_;
    recorded = spec_;
    if (is_same) return absl::OkStatus();
    absl::Status status;
    ForEachExchange(&model_, [&](ExchangeCosts* one) {
      if (status.ok()) status = ChangeOne(one);
    });
    for (const std::string& spec : by_measurement_) {
      model_.warnings.push_back(absl::StrFormat(
          "payloads of '%s' are taken to have as many bytes as on the data of the costs: gradients "
          "may need more or fewer",
          spec));
    }
    return status;
  }

 private:
  // The costs of one key.
  struct Times {
    uint32_t bytes = 0;
    int64_t encode_ns = 0;
    int64_t decode_ns = 0;
  };

  absl::Status ChangeOne(ExchangeCosts* one) {
    uint32_t* const payload = is_push_ ? &one->push_bytes : &one->reply_bytes;
    if (*payload == 0) return absl::OkStatus();  // it was not wanted
    const uint64_t value_bytes = model_.keys[one->key].value_bytes;
    const std::string& spec = value_bytes < model_.min_compress_bytes ? none_ : spec_;
    if (spec == none_ && IsUncompressed(*payload, value_bytes)) return absl::OkStatus();
    auto known = times_.find(one->key);
    if (known == times_.end()) {
      BDN_ASSIGN_OR_RETURN(const Times times, TimesOf(spec, value_bytes));
      known = times_.emplace(one->key, times).first;
    }
    const Times& times = known->second;
    *payload = times.bytes;
    RoundCosts& round = model_.rounds[one->round];
    if (is_push_) {
      one->encode_ns = times.encode_ns;
      one->accept_ns = times.decode_ns;
      round.sum_ns = 0;  // each push counts what it takes to be added
    } else {
      one->decode_ns = times.decode_ns;
      round.encode_ns = times.encode_ns;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Times> TimesOf(const std::string& spec, uint64_t value_bytes) {
    Times times;
    BDN_ASSIGN_OR_RETURN(const LinkCodec link, ParseCodecSpec(spec));
    auto bytes = static_cast<double>(
        link.codec->MaxEncodedBytes(value_bytes / kReplayValueBytes, DType::kFloat32));
    if (spec != none_) {
      const auto share = costs_.PayloadShareOf(spec, value_bytes);
      bytes *= share.share;
      if (share.is_of_measurement) by_measurement_.insert(spec);
    }
    times.bytes = static_cast<uint32_t>(std::llround(bytes));
    const CodecStep encodes = is_push_ ? CodecStep::kEncodePush : CodecStep::kEncodeReply;
    const CodecStep decodes = is_push_ ? CodecStep::kAddPush : CodecStep::kDecodeReply;
    BDN_ASSIGN_OR_RETURN(const double encode, costs_.TimeOf(encodes, spec, value_bytes));
    BDN_ASSIGN_OR_RETURN(const double decode, costs_.TimeOf(decodes, spec, value_bytes));
    times.encode_ns = static_cast<int64_t>(encode);
    times.decode_ns = static_cast<int64_t>(decode);
    return times;
  }

  const std::string none_ = "none";
  const std::string spec_;
  const bool is_push_;
  const CodecCosts& costs_;
  ReplayModel& model_;
  std::map<uint32_t, Times> times_;       // by key
  std::set<std::string> by_measurement_;  // specs whose payloads have the bytes of the measurement
};

// ---- link, max-bytes-in-flight ----

void SetLink(double rate, ReplayModel* model) {
  double seen = 0;
  const auto set = [&](double* old) {
    // An estimated rate is that of what lies under the emulated link.
    const bool is_limit = !model->has_link_rate && *old > 0 && *old < rate;
    if (is_limit) seen = seen == 0 ? *old : std::min(seen, *old);
    if (!is_limit) *old = rate;
  };
  for (WorkerModel& worker : model->workers) set(&worker.link_rate);
  for (ServerModel& server : model->servers) set(&server.link_rate);
  if (seen == 0) return;
  model->warnings.push_back(absl::StrFormat(
      "links of the recorded job were not seen to carry more than %.0f Mbit/s, and are not taken "
      "to be faster",
      seen * 8e-6));
}

}  // namespace

absl::StatusOr<ReplayModel> WithSettings(ReplayModel model, const ReplaySettings& settings,
                                         const CodecCosts& costs) {
  const bool has_more_workers = settings.workers && *settings.workers != model.workers.size();
  const bool changes_keys =
      settings.servers || settings.shards || settings.partition_bytes || settings.fusion_bytes;
  if ((changes_keys || has_more_workers || !settings.drop.empty()) && HasUnknownServer(model)) {
    return Unimplemented(
        "a server has no recording, so what its answers would take with other keys, servers or "
        "workers is not known");
  }
  if (settings.median) {
    TakeMediansOfCosts(&model);
    TakeMediansOfWaking(&model);
    TakeMediansOfComputing(&model);
  }
  BDN_RETURN_IF_ERROR(DropWorkers(settings.drop, &model));
  if (settings.partition_bytes || settings.fusion_bytes) {
    BDN_RETURN_IF_ERROR(RecutKeys(settings.partition_bytes.value_or(model.partition_bytes),
                                  settings.fusion_bytes.value_or(model.fusion_bytes), costs,
                                  &model));
  }
  for (const bool is_push : {true, false}) {
    const std::string& spec = is_push ? settings.push : settings.pull;
    if (spec.empty()) continue;
    BDN_RETURN_IF_ERROR(CodecChange(spec, is_push, costs, &model).Apply());
  }
  if (settings.threads) BDN_RETURN_IF_ERROR(SetThreads(*settings.threads, &model));
  if (settings.shards) BDN_RETURN_IF_ERROR(SetShards(*settings.shards, &model));
  if (settings.servers) SetServers(*settings.servers, &model);
  if (settings.link) SetLink(*settings.link, &model);
  if (settings.max_bytes_in_flight) {
    for (WorkerModel& one : model.workers) one.max_bytes_in_flight = *settings.max_bytes_in_flight;
    for (ServerModel& one : model.servers) one.max_bytes_in_flight = *settings.max_bytes_in_flight;
  }
  if (settings.workers) BDN_RETURN_IF_ERROR(SetWorkers(*settings.workers, &model));
  return model;
}

}  // namespace bdn
