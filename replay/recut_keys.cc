#include "replay/recut_keys.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/cluster/catalogue.h"
#include "replay/key_places.h"
#include "scheduler/planner.h"

namespace bdn {
namespace {

// A tensor, or a group of tensors that shares a key, as the recording shows it.
struct Unit {
  uint32_t tensor = 0;
  std::vector<uint32_t> keys;  // places in ReplayModel::keys
  uint64_t bytes = 0;
  bool may_be_group = false;
};

// Keys that take the place of others: one unit that is cut, or several that are joined.
struct Recut {
  std::vector<uint32_t> new_keys;
  std::vector<double> shares;  // of the bytes, by new key
};

// The exchanges of one step that belong to one Recut and one step of the keys.
using GroupId = std::pair<size_t, Step>;

class Recutter {
 public:
  Recutter(const CodecCosts& costs, ReplayModel* model) : costs_(costs), model_(*model) {}

  absl::Status Apply(const JobConfig& config) {
    FindUnits();
    BDN_RETURN_IF_ERROR(CheckGroups(config));
    BDN_RETURN_IF_ERROR(FindWhatStaysApart());
    BDN_RETURN_IF_ERROR(CutKeys(config));
    model_.partition_bytes = config.partition_bytes;
    model_.fusion_bytes = config.fusion_bytes;
    if (recuts_.empty()) return absl::OkStatus();
    WarnOfWhatIsNotKnown();
    CutRounds();
    for (WorkerModel& worker : model_.workers) BDN_RETURN_IF_ERROR(CutWorker(&worker));
    PlaceKeys(&model_);
    return absl::OkStatus();
  }

 private:
  void FindUnits() {
    std::map<uint32_t, Unit> by_tensor;
    for (uint32_t i = 0; i < model_.keys.size(); ++i) {
      const KeyModel& key = model_.keys[i];
      if (key.value_bytes < kReplayValueBytes) continue;
      Unit& unit = by_tensor[key.key.tensor()];
      unit.tensor = key.key.tensor();
      unit.keys.push_back(i);
      unit.bytes += key.value_bytes;
      sizes_.insert(key.value_bytes);
    }
    for (auto& [tensor, unit] : by_tensor) units_.push_back(std::move(unit));
    // A key has the number of its first tensor, so behind a group numbers are missing. They are
    // missing, too, where a tensor is never pushed.
    for (size_t i = 0; i < units_.size(); ++i) {
      const bool is_last = i + 1 == units_.size();
      units_[i].may_be_group = units_[i].keys.size() == 1 &&
                               units_[i].bytes <= model_.fusion_bytes &&
                               (is_last || units_[i + 1].tensor != units_[i].tensor + 1);
    }
  }

  absl::Status CheckGroups(const JobConfig& config) const {
    if (config.fusion_bytes >= model_.fusion_bytes) return absl::OkStatus();
    for (const Unit& unit : units_) {
      if (!unit.may_be_group || unit.bytes <= config.fusion_bytes) continue;
      return Unimplemented(
          "a replay cannot predict smaller 'fusion-bytes' here: the recording does not say which "
          "tensors share the key of '%s', which has %d bytes",
          model_.keys[unit.keys[0]].name, unit.bytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<KeyEntry>> Plan(const JobConfig& config) const {
    std::vector<TensorDeclaration> tensors;
    for (size_t i = 0; i < units_.size(); ++i) {
      tensors.push_back({.name = std::to_string(i),
                         .elements = units_[i].bytes / kReplayValueBytes,
                         .fuse = !stays_apart_.contains(i)});
    }
    return PlanKeys(tensors, 0, config);
  }

  // Finds the units that the recorded settings would have joined. Something keeps these apart: they
  // were not declared to be fused, or differ in a codec, a rule or a group.
  absl::Status FindWhatStaysApart() {
    JobConfig recorded;
    recorded.partition_bytes = model_.partition_bytes;
    recorded.fusion_bytes = model_.fusion_bytes;
    BDN_ASSIGN_OR_RETURN(const std::vector<KeyEntry> keys, Plan(recorded));
    for (const KeyEntry& key : keys) {
      if (key.segments.size() < 2) continue;
      for (const KeySegment& segment : key.segments) stays_apart_.insert(segment.tensor);
    }
    return absl::OkStatus();
  }

  absl::Status CutKeys(const JobConfig& config) {
    BDN_ASSIGN_OR_RETURN(const std::vector<KeyEntry> keys, Plan(config));
    std::map<uint32_t, std::vector<const KeyEntry*>> of_unit;  // by the first unit in them
    for (const KeyEntry& key : keys) of_unit[key.segments[0].tensor].push_back(&key);
    for (const auto& [first, entries] : of_unit) {
      const KeySegments& segments = entries[0]->segments;
      const bool joins = segments.size() > 1;
      if (!joins && entries.size() == units_[first].keys.size()) continue;
      Recut recut;
      uint64_t bytes = 0;
      for (const KeyEntry* entry : entries) bytes += entry->elements * kReplayValueBytes;
      for (const KeyEntry* entry : entries) {
        const uint64_t part = entry->elements * kReplayValueBytes;
        recut.new_keys.push_back(static_cast<uint32_t>(model_.keys.size()));
        recut.shares.push_back(static_cast<double>(part) / static_cast<double>(bytes));
        KeyModel key = model_.keys[units_[first].keys[0]];
        key.key = Key::Of(units_[first].tensor, entry->key.partition());
        key.value_bytes = part;
        model_.keys.push_back(std::move(key));
      }
      for (const KeySegment& segment : segments) {
        for (const uint32_t key : units_[segment.tensor].keys) recut_of_[key] = recuts_.size();
        if (units_[segment.tensor].may_be_group) changes_groups_ = true;
      }
      if (joins) joined_keys_.insert(recut.new_keys[0]);
      recuts_.push_back(std::move(recut));
    }
    return absl::OkStatus();
  }

  void WarnOfWhatIsNotKnown() {
    if (sizes_.size() == 1) {
      model_.warnings.push_back(
          "all keys of the recording are of one size, so what a key costs apart from its bytes is "
          "not known: smaller partitions may take longer than is said");
    }
    if (!joined_keys_.empty()) {
      model_.warnings.push_back(
          "the recording does not say which tensors may share a key: neighbours that fit are taken "
          "to");
    }
    if (changes_groups_) {
      model_.warnings.push_back(
          "the recording does not say which tensors share a key: groups of small tensors are cut "
          "and joined as if each were one tensor");
    }
  }

  // Divides a time up among the new keys. The line says how it grows with the bytes; what the
  // recorded time had more or less than that, each part has, too.
  std::vector<int64_t> Divide(const Recut& recut, double total, uint64_t old_bytes,
                              size_t old_count, const std::optional<LinearTime>& line) const {
    double scale = 0;
    if (line) {
      const double fitted = line->ns * static_cast<double>(old_count) +
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

  // Returns the rounds whose replies went uncompressed.
  std::vector<bool> UncompressedReplies() {
    std::vector<bool> uncompressed(model_.rounds.size(), true);
    ForEachExchange(&model_, [&](const ExchangeCosts* costs) {
      if (!IsUncompressed(costs->reply_bytes, model_.keys[costs->key].value_bytes)) {
        uncompressed[costs->round] = false;
      }
    });
    return uncompressed;
  }

  void CutRounds() {
    const std::vector<bool> uncompressed = UncompressedReplies();
    std::map<GroupId, std::vector<uint32_t>> groups;
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
                 costs_.RecordedOf(CodecStep::kEncodeReply, uncompressed[old_rounds[0]]));
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

  // The costs of some exchanges together: sums of what grows with the bytes, means of the rest.
  struct Together {
    ExchangeCosts costs;
    uint64_t push_bytes = 0;
    uint64_t reply_bytes = 0;
    uint64_t value_bytes = 0;
  };
  Together Add(const std::vector<const ExchangeCosts*>& old) const {
    Together sum{.costs = {.priority = old[0]->priority}};
    const auto count = static_cast<int64_t>(old.size());
    for (const ExchangeCosts* one : old) {
      sum.costs.priority = std::max(sum.costs.priority, one->priority);
      sum.costs.encode_ns += one->encode_ns;
      sum.costs.accept_ns += one->accept_ns;
      sum.costs.decode_ns += one->decode_ns;
      sum.costs.encode_wake_ns += one->encode_wake_ns / count;
      sum.costs.accept_wake_ns += one->accept_wake_ns / count;
      sum.costs.accept_gap_ns += one->accept_gap_ns / count;
      sum.costs.decode_wake_ns += one->decode_wake_ns / count;
      sum.costs.send_ns += one->send_ns / count;
      sum.costs.reply_ns += one->reply_ns / count;
      sum.push_bytes += one->push_bytes;
      sum.reply_bytes += one->reply_bytes;
      sum.value_bytes += model_.keys[one->key].value_bytes;
    }
    return sum;
  }

  // Returns the exchanges that take the place of those of one Recut in one step.
  std::vector<ExchangeCosts> CutExchanges(const Recut& recut, const std::vector<uint32_t>& rounds,
                                          const std::vector<const ExchangeCosts*>& old) const {
    const Together sum = Add(old);
    const auto divide = [&](int64_t total, CodecStep step, uint64_t payload_bytes) {
      return Divide(recut, static_cast<double>(total), sum.value_bytes, old.size(),
                    costs_.RecordedOf(step, IsUncompressed(payload_bytes, sum.value_bytes)));
    };
    const auto encode = divide(sum.costs.encode_ns, CodecStep::kEncodePush, sum.push_bytes);
    const auto accept = divide(sum.costs.accept_ns, CodecStep::kAddPush, sum.push_bytes);
    const auto decode = divide(sum.costs.decode_ns, CodecStep::kDecodeReply, sum.reply_bytes);
    const auto share_of = [](uint64_t bytes, double share) {
      return static_cast<uint32_t>(std::llround(static_cast<double>(bytes) * share));
    };
    std::vector<ExchangeCosts> cut;
    for (size_t i = 0; i < recut.new_keys.size(); ++i) {
      ExchangeCosts costs = sum.costs;
      costs.key = recut.new_keys[i];
      costs.round = rounds[i];
      costs.push_bytes = share_of(sum.push_bytes, recut.shares[i]);
      costs.reply_bytes = share_of(sum.reply_bytes, recut.shares[i]);
      costs.encode_ns = encode[i];
      costs.accept_ns = accept[i];
      costs.decode_ns = decode[i];
      cut.push_back(costs);
    }
    return cut;
  }

  // By the old exchanges of a step: the new ones.
  using Moves = std::vector<std::vector<uint32_t>>;

  absl::Status CutWorker(WorkerModel* worker) const {
    std::vector<Moves> moves;  // by step
    for (StepProgram& step : worker->steps) moves.push_back(CutExchangesOf(&step));
    for (uint32_t i = 0; i < worker->steps.size(); ++i) {
      MoveStarts(moves[i], &worker->steps[i]);
      MoveWaits(moves, i, &worker->steps[i]);
      if (!WaitsAreBehindStarts(worker->steps[i])) {
        return Unimplemented(
            "a replay cannot predict such 'fusion-bytes': in step %d the program of %s waits for a "
            "tensor before it pushes another one that would share its key",
            model_.step_numbers[i], worker->name);
      }
    }
    return absl::OkStatus();
  }

  Moves CutExchangesOf(StepProgram* step) const {
    const std::vector<ExchangeCosts> old = std::move(step->exchanges);
    step->exchanges.clear();
    std::map<GroupId, std::vector<uint32_t>> groups;
    Moves moves(old.size());
    for (uint32_t i = 0; i < old.size(); ++i) {
      const auto recut = recut_of_.find(old[i].key);
      if (recut != recut_of_.end()) {
        groups[{recut->second, model_.rounds[old[i].round].step}].push_back(i);
        continue;
      }
      moves[i] = {static_cast<uint32_t>(step->exchanges.size())};
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
      for (const uint32_t member : members) moves[member] = places;
    }
    return moves;
  }

  // The first partition of a tensor begins them all; tensors that share a key begin it together,
  // when the last one is there.
  void MoveStarts(const Moves& moves, StepProgram* step) const {
    std::map<uint32_t, uint32_t> old_starts;  // by new exchange: those that are still to come
    for (const ProgramItem& item : step->items) {
      if (item.kind != ProgramItem::Kind::kStart) continue;
      for (const uint32_t exchange : moves[item.first]) ++old_starts[exchange];
    }
    std::set<uint32_t> begun;
    std::vector<ProgramItem> items;
    for (const ProgramItem& item : step->items) {
      if (item.kind != ProgramItem::Kind::kStart) {
        items.push_back(item);
        continue;
      }
      for (const uint32_t exchange : moves[item.first]) {
        const bool is_last = --old_starts[exchange] == 0;
        if (joined_keys_.contains(step->exchanges[exchange].key) && !is_last) continue;
        if (!begun.insert(exchange).second) continue;
        items.push_back(item);
        items.back().first = exchange;
      }
    }
    step->items = std::move(items);
  }
  static void MoveWaits(const std::vector<Moves>& moves, uint32_t number, StepProgram* step) {
    std::vector<AwaitedExchange> awaited;
    for (ProgramItem& item : step->items) {
      if (item.kind != ProgramItem::Kind::kWait) continue;
      std::set<std::pair<uint32_t, uint32_t>> wanted;
      for (uint32_t j = item.first; j < item.first + item.count; ++j) {
        const AwaitedExchange& one = step->awaited[j];
        if (one.steps_back > number) continue;
        for (const uint32_t exchange : moves[number - one.steps_back][one.exchange]) {
          wanted.emplace(one.steps_back, exchange);
        }
      }
      item.first = static_cast<uint32_t>(awaited.size());
      item.count = static_cast<uint32_t>(wanted.size());
      for (const auto& [steps_back, exchange] : wanted) awaited.push_back({steps_back, exchange});
    }
    step->awaited = std::move(awaited);
  }

  static bool WaitsAreBehindStarts(const StepProgram& step) {
    std::set<uint32_t> begun;
    for (const ProgramItem& item : step.items) {
      if (item.kind == ProgramItem::Kind::kStart) begun.insert(item.first);
      if (item.kind != ProgramItem::Kind::kWait) continue;
      for (uint32_t j = item.first; j < item.first + item.count; ++j) {
        const AwaitedExchange& one = step.awaited[j];
        if (one.steps_back == 0 && !begun.contains(one.exchange)) return false;
      }
    }
    return true;
  }

  const CodecCosts& costs_;
  ReplayModel& model_;
  std::vector<Unit> units_;       // by tensor
  std::set<size_t> stays_apart_;  // places of units
  std::set<uint64_t> sizes_;      // of recorded keys
  std::vector<Recut> recuts_;
  std::set<uint32_t> joined_keys_;                   // places of new keys that several units share
  std::map<uint32_t, size_t> recut_of_;              // by old key
  std::map<GroupId, std::vector<uint32_t>> rounds_;  // the new ones
  bool changes_groups_ = false;
};

}  // namespace

absl::Status RecutKeys(uint64_t partition_bytes, uint64_t fusion_bytes, const CodecCosts& costs,
                       ReplayModel* model) {
  JobConfig config;
  config.partition_bytes = partition_bytes;
  config.fusion_bytes = fusion_bytes;
  return Recutter(costs, model).Apply(config);
}

}  // namespace bdn
