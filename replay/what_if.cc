#include "replay/what_if.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/cluster/catalogue.h"
#include "compressors/codec_spec.h"
#include "scheduler/placer.h"
#include "scheduler/planner.h"

namespace bdn {
namespace {

constexpr size_t kValueBytes = 4;  // values count as float32

int64_t Median(std::vector<int64_t>* values) {
  const auto middle = values->begin() + static_cast<ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

template <typename Do>
void ForEachExchange(ReplayModel* model, const Do& action) {
  for (WorkerModel& worker : model->workers) {
    for (StepProgram& step : worker.steps) {
      for (ExchangeCosts& costs : step.exchanges) action(&costs);
    }
  }
}

// ---- median, drop ----

void TakeMedians(ReplayModel* model) {
  using Field = int64_t ExchangeCosts::*;
  for (const Field field :
       {&ExchangeCosts::encode_wake_ns, &ExchangeCosts::accept_wake_ns,
        &ExchangeCosts::decode_wake_ns, &ExchangeCosts::encode_ns, &ExchangeCosts::send_ns,
        &ExchangeCosts::accept_ns, &ExchangeCosts::reply_ns, &ExchangeCosts::decode_ns}) {
    std::map<uint32_t, std::vector<int64_t>> of_key;
    ForEachExchange(model,
                    [&](ExchangeCosts* costs) { of_key[costs->key].push_back(costs->*field); });
    std::map<uint32_t, int64_t> medians;
    for (auto& [key, values] : of_key) medians[key] = Median(&values);
    ForEachExchange(model, [&](ExchangeCosts* costs) { costs->*field = medians[costs->key]; });
  }
  for (const auto field : {&RoundCosts::sum_ns, &RoundCosts::rule_ns, &RoundCosts::encode_ns}) {
    std::map<uint32_t, std::vector<int64_t>> of_key;
    for (const RoundCosts& round : model->rounds) of_key[round.key].push_back(round.*field);
    std::map<uint32_t, int64_t> medians;
    for (auto& [key, values] : of_key) medians[key] = Median(&values);
    for (RoundCosts& round : model->rounds) round.*field = medians[round.key];
  }
  // What a program computes in a step, by kind; a step keeps how it is divided up.
  std::map<uint8_t, std::vector<int64_t>> of_mark;
  const auto sum_of = [](const StepProgram& step, uint8_t mark) {
    int64_t sum = 0;
    for (const ProgramItem& item : step.items) {
      if (item.kind == ProgramItem::Kind::kCompute && item.mark == mark) sum += item.ns;
    }
    return sum;
  };
  std::set<uint8_t> marks;
  for (const WorkerModel& worker : model->workers) {
    for (const StepProgram& step : worker.steps) {
      for (const ProgramItem& item : step.items) {
        if (item.kind == ProgramItem::Kind::kCompute) marks.insert(item.mark);
      }
    }
  }
  for (const uint8_t mark : marks) {
    std::vector<int64_t> sums;
    for (const WorkerModel& worker : model->workers) {
      for (const StepProgram& step : worker.steps) sums.push_back(sum_of(step, mark));
    }
    const int64_t median = Median(&sums);
    for (WorkerModel& worker : model->workers) {
      for (StepProgram& step : worker.steps) {
        const int64_t sum = sum_of(step, mark);
        for (ProgramItem& item : step.items) {
          if (item.kind != ProgramItem::Kind::kCompute || item.mark != mark || sum == 0) continue;
          item.ns = static_cast<int64_t>(static_cast<double>(item.ns) *
                                         static_cast<double>(median) / static_cast<double>(sum));
        }
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

// Gives all keys to the servers by the scheduler's own rule, and to shards by their bytes.
void PlaceKeys(ReplayModel* model) {
  std::vector<NodeInfo> servers(model->servers.size());
  for (size_t i = 0; i < servers.size(); ++i) servers[i].id = static_cast<NodeId>(i + 1);
  std::set<size_t> used;
  ForEachExchange(model, [&](const ExchangeCosts* costs) { used.insert(costs->key); });
  std::vector<size_t> order(used.begin(), used.end());
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return model->keys[a].key < model->keys[b].key; });
  std::vector<KeyEntry> entries;
  for (const size_t i : order) {
    entries.push_back({.key = model->keys[i].key,
                       .kind = KeyKind::kDense,
                       .elements = model->keys[i].value_bytes / kValueBytes});
  }
  const std::vector<NodeId> owners = Placer(servers).Place(entries);
  std::vector<std::vector<uint64_t>> shard_bytes;
  for (const ServerModel& server : model->servers) {
    shard_bytes.emplace_back(std::max<uint32_t>(server.shards, 1), 0);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    KeyModel& key = model->keys[order[i]];
    key.server = owners[i] - 1;
    auto& bytes = shard_bytes[key.server];
    const auto least = std::min_element(bytes.begin(), bytes.end());
    key.shard = static_cast<uint32_t>(least - bytes.begin());
    *least += key.value_bytes;
  }
}

void SetServers(uint32_t count, ReplayModel* model) {
  const size_t before = model->servers.size();
  while (model->servers.size() > count) model->servers.pop_back();
  for (size_t i = before; i < count; ++i) {
    ServerModel server = model->servers[i % before];
    server.name = absl::StrFormat("server %d", i);
    model->servers.push_back(std::move(server));
  }
  PlaceKeys(model);
}

// ---- partition-bytes ----

// What a tensor, or group of tensors, becomes when it is cut anew.
struct Recut {
  std::vector<uint32_t> old_keys;
  std::vector<uint32_t> new_keys;
  std::vector<double> shares;  // of the bytes, by new key
};

class Partitions {
 public:
  Partitions(uint64_t partition_bytes, const CodecCosts& costs, ReplayModel* model)
      : partition_bytes_(partition_bytes), costs_(costs), model_(*model) {}

  absl::Status Apply() {
    const std::vector<KeyModel> before = model_.keys;
    BDN_RETURN_IF_ERROR(CutKeys(before));
    if (recuts_.empty()) return absl::OkStatus();
    if (sizes_.size() == 1) {
      model_.warnings.push_back(
          "all keys of the recording are of one size, so what a key costs apart from its bytes is "
          "not known: smaller partitions may take longer than is said");
    }
    CutRounds();
    for (WorkerModel& worker : model_.workers) CutWorker(&worker);
    PlaceKeys(&model_);
    model_.partition_bytes = partition_bytes_;
    return absl::OkStatus();
  }

 private:
  absl::Status CutKeys(const std::vector<KeyModel>& before) {
    std::map<uint32_t, std::vector<uint32_t>> of_tensor;
    for (uint32_t i = 0; i < before.size(); ++i) {
      of_tensor[before[i].key.tensor()].push_back(i);
      sizes_.insert(before[i].value_bytes);
    }
    for (const auto& [tensor, old_keys] : of_tensor) {
      uint64_t bytes = 0;
      for (const uint32_t key : old_keys) bytes += before[key].value_bytes;
      if (bytes < kValueBytes) continue;
      JobConfig config;
      config.partition_bytes = partition_bytes_;
      config.fusion_bytes = 0;
      const TensorDeclaration declaration{.name = before[old_keys[0]].name,
                                          .elements = bytes / kValueBytes,
                                          .push_spec = "none",
                                          .pull_spec = "none",
                                          .rule = "mean"};
      BDN_ASSIGN_OR_RETURN(const std::vector<KeyEntry> cut,
                           PlanKeys({&declaration, 1}, tensor, config));
      if (cut.size() == old_keys.size()) continue;
      Recut recut{.old_keys = old_keys};
      for (const KeyEntry& entry : cut) {
        const uint64_t part = entry.elements * kValueBytes;
        recut.new_keys.push_back(static_cast<uint32_t>(model_.keys.size()));
        recut.shares.push_back(static_cast<double>(part) / static_cast<double>(bytes));
        KeyModel key = before[old_keys[0]];
        key.key = entry.key;
        key.value_bytes = part;
        model_.keys.push_back(std::move(key));
      }
      for (const uint32_t key : old_keys) recut_of_[key] = recuts_.size();
      recuts_.push_back(std::move(recut));
    }
    return absl::OkStatus();
  }

  // Divides a time up among the new keys. The line says how it grows with the bytes; what the
  // recorded time had more or less than that, each part has, too.
  std::vector<int64_t> Divide(const Recut& recut, double total, uint64_t old_bytes,
                              size_t old_count, const std::optional<LinearTime>& line) const {
    double fitted = 0;
    double scale = 0;
    if (line) {
      fitted = line->ns * static_cast<double>(old_count) +
               line->ns_per_byte * static_cast<double>(old_bytes);
      scale = fitted > 0 ? total / fitted : 0;
    }
    std::vector<int64_t> parts;
    for (size_t i = 0; i < recut.new_keys.size(); ++i) {
      const double part = scale > 0 ? scale * line->At(model_.keys[recut.new_keys[i]].value_bytes)
                                    : total * recut.shares[i];
      parts.push_back(static_cast<int64_t>(part));
    }
    return parts;
  }

  void CutRounds() {
    std::map<std::pair<size_t, Step>, std::vector<uint32_t>> groups;
    for (uint32_t i = 0; i < model_.rounds.size(); ++i) {
      const auto recut = recut_of_.find(model_.rounds[i].key);
      if (recut == recut_of_.end()) continue;
      groups[{recut->second, model_.rounds[i].step}].push_back(i);
    }
    for (const auto& [which, old_rounds] : groups) {
      const Recut& recut = recuts_[which.first];
      RoundCosts sum;
      uint64_t bytes = 0;
      for (const uint32_t old : old_rounds) {
        const RoundCosts& round = model_.rounds[old];
        sum.foreign_ns = std::max(sum.foreign_ns, round.foreign_ns);
        sum.sum_ns += round.sum_ns;
        sum.rule_ns += round.rule_ns;
        sum.encode_ns += round.encode_ns;
        bytes += model_.keys[round.key].value_bytes;
      }
      const auto encode =
          Divide(recut, static_cast<double>(sum.encode_ns), bytes, old_rounds.size(),
                 costs_.RecordedOf(CodecStep::kEncodeReply, pull_uncompressed_));
      std::vector<uint32_t>& new_rounds = rounds_[which];
      for (size_t i = 0; i < recut.new_keys.size(); ++i) {
        new_rounds.push_back(static_cast<uint32_t>(model_.rounds.size()));
        model_.rounds.push_back(
            {.key = recut.new_keys[i],
             .step = which.second,
             .foreign_ns = sum.foreign_ns,
             .sum_ns = static_cast<int64_t>(static_cast<double>(sum.sum_ns) * recut.shares[i]),
             .rule_ns = static_cast<int64_t>(static_cast<double>(sum.rule_ns) * recut.shares[i]),
             .encode_ns = encode[i]});
      }
    }
  }

  // Returns the exchanges that take the place of those of one tensor's keys in one step.
  std::vector<ExchangeCosts> CutExchanges(const Recut& recut, const std::vector<uint32_t>& rounds,
                                          const std::vector<const ExchangeCosts*>& old) const {
    ExchangeCosts sum;
    uint64_t bytes = 0;
    uint64_t push_bytes = 0;
    uint64_t reply_bytes = 0;
    const auto count = static_cast<int64_t>(old.size());
    for (const ExchangeCosts* one : old) {
      push_bytes += one->push_bytes;
      reply_bytes += one->reply_bytes;
      sum.encode_ns += one->encode_ns;
      sum.accept_ns += one->accept_ns;
      sum.decode_ns += one->decode_ns;
      sum.encode_wake_ns += one->encode_wake_ns / count;
      sum.accept_wake_ns += one->accept_wake_ns / count;
      sum.decode_wake_ns += one->decode_wake_ns / count;
      sum.send_ns += one->send_ns / count;
      sum.reply_ns += one->reply_ns / count;
      sum.answer_ns = std::max(sum.answer_ns, one->answer_ns);
      bytes += model_.keys[one->key].value_bytes;
    }
    const bool push = IsUncompressed(push_bytes, bytes);
    const bool pull = IsUncompressed(reply_bytes, bytes);
    const auto divide = [&](int64_t total, CodecStep step, bool is_uncompressed) {
      return Divide(recut, static_cast<double>(total), bytes, old.size(),
                    costs_.RecordedOf(step, is_uncompressed));
    };
    const auto encode = divide(sum.encode_ns, CodecStep::kEncodePush, push);
    const auto accept = divide(sum.accept_ns, CodecStep::kAddPush, push);
    const auto decode = divide(sum.decode_ns, CodecStep::kDecodeReply, pull);
    std::vector<ExchangeCosts> cut;
    for (size_t i = 0; i < recut.new_keys.size(); ++i) {
      ExchangeCosts costs = sum;
      costs.key = recut.new_keys[i];
      costs.round = rounds[i];
      costs.priority = old[0]->priority;
      costs.push_bytes =
          static_cast<uint32_t>(std::lround(static_cast<double>(push_bytes) * recut.shares[i]));
      costs.reply_bytes =
          static_cast<uint32_t>(std::lround(static_cast<double>(reply_bytes) * recut.shares[i]));
      costs.encode_ns = encode[i];
      costs.accept_ns = accept[i];
      costs.decode_ns = decode[i];
      cut.push_back(costs);
    }
    return cut;
  }

  void CutWorker(WorkerModel* worker) const {
    std::vector<std::vector<std::vector<uint32_t>>>
        moved;  // by step and old exchange: the new ones
    for (StepProgram& step : worker->steps) moved.push_back(CutStep(&step));
    for (size_t i = 0; i < worker->steps.size(); ++i) {
      StepProgram& step = worker->steps[i];
      std::vector<AwaitedExchange> awaited;
      for (ProgramItem& item : step.items) {
        if (item.kind != ProgramItem::Kind::kWait) continue;
        std::set<std::pair<uint32_t, uint32_t>> wanted;
        for (uint32_t j = item.first; j < item.first + item.count; ++j) {
          const AwaitedExchange& one = step.awaited[j];
          if (one.steps_back > i) continue;
          for (const uint32_t exchange : moved[i - one.steps_back][one.exchange]) {
            wanted.emplace(one.steps_back, exchange);
          }
        }
        item.first = static_cast<uint32_t>(awaited.size());
        item.count = static_cast<uint32_t>(wanted.size());
        for (const auto& [steps_back, exchange] : wanted) awaited.push_back({steps_back, exchange});
      }
      step.awaited = std::move(awaited);
    }
  }

  std::vector<std::vector<uint32_t>> CutStep(StepProgram* step) const {
    const std::vector<ExchangeCosts> old = std::move(step->exchanges);
    step->exchanges.clear();
    std::map<std::pair<size_t, Step>, std::vector<uint32_t>> groups;
    std::vector<std::vector<uint32_t>> moved(old.size());
    for (uint32_t i = 0; i < old.size(); ++i) {
      const auto recut = recut_of_.find(old[i].key);
      if (recut != recut_of_.end()) {
        groups[{recut->second, model_.rounds[old[i].round].step}].push_back(i);
        continue;
      }
      moved[i] = {static_cast<uint32_t>(step->exchanges.size())};
      step->exchanges.push_back(old[i]);
    }
    for (const auto& [which, members] : groups) {
      std::vector<const ExchangeCosts*> costs;
      for (const uint32_t member : members) costs.push_back(&old[member]);
      std::vector<uint32_t> places;
      for (const ExchangeCosts& cut :
           CutExchanges(recuts_[which.first], rounds_.at(which), costs)) {
        places.push_back(static_cast<uint32_t>(step->exchanges.size()));
        step->exchanges.push_back(cut);
      }
      for (const uint32_t member : members) moved[member] = places;
    }
    // The first partition of a tensor begins them all.
    std::set<uint32_t> begun;
    std::vector<ProgramItem> items;
    for (const ProgramItem& item : step->items) {
      if (item.kind != ProgramItem::Kind::kStart) {
        items.push_back(item);
        continue;
      }
      for (const uint32_t exchange : moved[item.first]) {
        if (!begun.insert(exchange).second) continue;
        items.push_back(item);
        items.back().first = exchange;
      }
    }
    step->items = std::move(items);
    return moved;
  }

  const uint64_t partition_bytes_;
  const CodecCosts& costs_;
  ReplayModel& model_;
  bool pull_uncompressed_ = true;
  std::set<uint64_t> sizes_;
  std::vector<Recut> recuts_;
  std::map<uint32_t, size_t> recut_of_;                              // by old key
  std::map<std::pair<size_t, Step>, std::vector<uint32_t>> rounds_;  // the new ones
};

// ---- push, pull ----

// Sets the codecs of both directions where they are given.
absl::Status SetCodecs(const ReplaySettings& settings, const CodecCosts& costs,
                       ReplayModel* model) {
  struct Times {
    std::string spec;
    size_t bytes = 0;
    int64_t encode_ns = 0;
    int64_t decode_ns = 0;
  };
  const auto times_of = [&](const std::string& wanted, bool is_push,
                            uint64_t value_bytes) -> absl::StatusOr<Times> {
    Times times;
    times.spec = value_bytes < model->min_compress_bytes ? "none" : wanted;
    BDN_ASSIGN_OR_RETURN(const LinkCodec codec, ParseCodecSpec(times.spec));
    times.bytes = codec.codec->MaxEncodedBytes(value_bytes / kValueBytes, DType::kFloat32);
    BDN_ASSIGN_OR_RETURN(const double encode,
                         costs.TimeOf(is_push ? CodecStep::kEncodePush : CodecStep::kEncodeReply,
                                      times.spec, value_bytes));
    BDN_ASSIGN_OR_RETURN(const double decode,
                         costs.TimeOf(is_push ? CodecStep::kAddPush : CodecStep::kDecodeReply,
                                      times.spec, value_bytes));
    times.encode_ns = static_cast<int64_t>(encode);
    times.decode_ns = static_cast<int64_t>(decode);
    return times;
  };
  for (const bool is_push : {true, false}) {
    const std::string& wanted = is_push ? settings.push : settings.pull;
    if (wanted.empty()) continue;
    const std::string& recorded = is_push ? model->push_spec : model->pull_spec;
    const auto was = ParseCodecSpec(recorded.empty() ? "none" : recorded);
    std::map<uint32_t, Times> of_key;
    for (uint32_t key = 0; key < model->keys.size(); ++key) {
      const uint64_t bytes = model->keys[key].value_bytes;
      BDN_ASSIGN_OR_RETURN(of_key[key], times_of(wanted, is_push, bytes));
    }
    const bool is_same = !recorded.empty() && was.ok() && was->spec() == wanted;
    std::set<uint32_t> rounds;
    ForEachExchange(model, [&](ExchangeCosts* one) {
      const Times& times = of_key[one->key];
      const uint64_t bytes = model->keys[one->key].value_bytes;
      uint32_t* const payload = is_push ? &one->push_bytes : &one->reply_bytes;
      // Without a payload it is one that was not wanted.
      if (is_same || *payload == 0) return;
      if (times.spec == "none" && IsUncompressed(*payload, bytes)) return;
      *payload = static_cast<uint32_t>(times.bytes);
      if (is_push) {
        one->encode_ns = times.encode_ns;
        one->accept_ns = times.decode_ns;
      } else {
        one->decode_ns = times.decode_ns;
      }
      if (!rounds.insert(one->round).second) return;
      RoundCosts& round = model->rounds[one->round];
      if (is_push) {
        round.sum_ns = 0;  // each push counts what it takes to be added
      } else {
        round.encode_ns = times.encode_ns;
      }
    });
    (is_push ? model->push_spec : model->pull_spec) = wanted;
  }
  return absl::OkStatus();
}

// ---- link, max-bytes-in-flight ----

void SetLink(double rate, ReplayModel* model) {
  // An estimated rate is that of what lies under the emulated link.
  const auto set = [&](double* old) {
    *old = model->has_link_rate || *old == 0 ? rate : std::min(rate, *old);
  };
  for (WorkerModel& worker : model->workers) set(&worker.link_rate);
  for (ServerModel& server : model->servers) set(&server.link_rate);
}

// ---- workers ----

// Returns the places of a step's exchanges in the order of their keys.
std::vector<uint32_t> ByKey(const ReplayModel& model, const StepProgram& step) {
  std::vector<uint32_t> order(step.exchanges.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const ExchangeCosts& one = step.exchanges[a];
    const ExchangeCosts& other = step.exchanges[b];
    return std::pair(one.key, model.rounds[one.round].step) <
           std::pair(other.key, model.rounds[other.round].step);
  });
  return order;
}

// Adds workers, each with the steps of a recorded one in another order, so that they differ as the
// recorded ones do.
absl::Status SetWorkers(uint32_t count, ReplayModel* model) {
  const size_t recorded = model->workers.size();
  if (count <= recorded) {
    model->workers.resize(count);
    return absl::OkStatus();
  }
  for (size_t i = 0; i < recorded; ++i) {
    const auto& steps = model->workers[i].steps;
    for (size_t j = 1; j < steps.size(); ++j) {
      const std::vector<uint32_t> a = ByKey(*model, steps[0]);
      const std::vector<uint32_t> b = ByKey(*model, steps[j]);
      const auto same = [&](uint32_t x, uint32_t y) {
        return steps[0].exchanges[x].key == steps[j].exchanges[y].key;
      };
      if (std::equal(a.begin(), a.end(), b.begin(), b.end(), same)) continue;
      return Unimplemented(
          "--workers needs steps that exchange the same tensors, and step %d of %s has others than "
          "step %d",
          model->step_numbers[j], model->workers[i].name, model->step_numbers[0]);
    }
  }
  Rank rank = 0;
  for (const WorkerModel& worker : model->workers) rank = std::max(rank, worker.rank);
  for (size_t i = recorded; i < count; ++i) {
    const WorkerModel& source = model->workers[i % recorded];
    WorkerModel worker = source;
    worker.rank = ++rank;
    worker.name = absl::StrFormat("worker %d", worker.rank);
    const size_t steps = source.steps.size();
    const size_t shift = i / recorded % steps;
    for (size_t j = 0; j < steps && shift > 0; ++j) {
      const StepProgram& from = source.steps[(j + shift) % steps];
      StepProgram& to = worker.steps[j];
      // Which exchanges a step waits for stays as in the step whose place it takes.
      const std::vector<uint32_t> a = ByKey(*model, source.steps[j]);
      const std::vector<uint32_t> b = ByKey(*model, from);
      for (size_t k = 0; k < a.size(); ++k) {
        const uint32_t round = to.exchanges[a[k]].round;
        to.exchanges[a[k]] = from.exchanges[b[k]];
        to.exchanges[a[k]].round = round;
      }
      // Its computing takes as long as in the other step.
      if (to.items.size() != from.items.size()) continue;
      for (size_t k = 0; k < to.items.size(); ++k) {
        if (to.items[k].kind == from.items[k].kind && to.items[k].mark == from.items[k].mark) {
          to.items[k].ns = from.items[k].ns;
        }
      }
    }
    model->workers.push_back(std::move(worker));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReplayModel> WithSettings(ReplayModel model, const ReplaySettings& settings,
                                         const CodecCosts& costs) {
  if (settings.median) TakeMedians(&model);
  BDN_RETURN_IF_ERROR(DropWorkers(settings.drop, &model));
  const bool moves = settings.servers.has_value() || settings.partition_bytes.has_value();
  if (moves && HasUnknownServer(model)) {
    return Unimplemented(
        "a server has no recording, so what other keys or servers would take is not known");
  }
  if (settings.partition_bytes && *settings.partition_bytes != model.partition_bytes) {
    if (*settings.partition_bytes < model.fusion_bytes ||
        model.partition_bytes < model.fusion_bytes) {
      model.warnings.push_back(
          "which tensors share a key changes with partitions under fusion-bytes: the replay cuts "
          "and joins keys, but not groups of small tensors");
    }
    BDN_RETURN_IF_ERROR(Partitions(*settings.partition_bytes, costs, &model).Apply());
  }
  BDN_RETURN_IF_ERROR(SetCodecs(settings, costs, &model));
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
