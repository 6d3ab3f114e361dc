#include "replay/more_workers.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// More exchanges than this are replayed only where fewer would not make kFewestSteps.
constexpr uint64_t kManyExchanges = 3'000'000;
// A replay without its first step has a median of two.
constexpr size_t kFewestSteps = 3;
constexpr uint64_t kMostMade = 20'000'000;

using Steps = std::vector<StepProgram>;

// Returns the places of a step's exchanges in the order of their keys.
std::vector<uint32_t> ByKey(const ReplayModel& model, const StepProgram& step) {
  std::vector<uint32_t> order(step.exchanges.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const ExchangeCosts& one = step.exchanges[a];
    const ExchangeCosts& other = step.exchanges[b];
    return std::pair(one.key, model.rounds[one.round].step) <
           std::pair(other.key, model.rounds[other.round].step);
  });
  return order;
}

absl::Status CheckThatStepsAreAlike(const ReplayModel& model) {
  for (const WorkerModel& worker : model.workers) {
    const std::vector<uint32_t> a = ByKey(model, worker.steps[0]);
    for (size_t j = 1; j < worker.steps.size(); ++j) {
      const std::vector<uint32_t> b = ByKey(model, worker.steps[j]);
      const auto same = [&](uint32_t x, uint32_t y) {
        return worker.steps[0].exchanges[x].key == worker.steps[j].exchanges[y].key;
      };
      if (std::equal(a.begin(), a.end(), b.begin(), b.end(), same)) continue;
      return Unimplemented(
          "--workers needs steps that exchange the same tensors, and step %d of %s has others than "
          "step %d",
          model.step_numbers[j], worker.name, model.step_numbers[0]);
    }
  }
  return absl::OkStatus();
}

// Has a step take as long as another one. It keeps its rounds, and what it waits for.
void TakeTimes(const ReplayModel& model, const StepProgram& from, StepProgram* to) {
  const std::vector<uint32_t> a = ByKey(model, *to);
  const std::vector<uint32_t> b = ByKey(model, from);
  for (size_t k = 0; k < a.size(); ++k) {
    const uint32_t round = to->exchanges[a[k]].round;
    to->exchanges[a[k]] = from.exchanges[b[k]];
    to->exchanges[a[k]].round = round;
  }
  if (to->items.size() != from.items.size()) return;
  for (size_t k = 0; k < to->items.size(); ++k) {
    if (to->items[k].kind == from.items[k].kind && to->items[k].mark == from.items[k].mark) {
      to->items[k].ns = from.items[k].ns;
    }
  }
}

// Returns how many of the recorded steps so many workers are to have.
absl::StatusOr<size_t> CountSteps(const ReplayModel& model, uint32_t count) {
  const size_t recorded = model.step_numbers.size();
  const uint64_t of_step =
      std::max<uint64_t>(1, model.CountExchanges() / model.workers.size() / recorded);
  const uint64_t of_all = of_step * count;
  if (of_all > kMostMade) {
    return ResourceExhausted("a replay of %d workers with %d exchanges each is too large", count,
                             of_step);
  }
  const uint64_t wanted = std::max<uint64_t>(kManyExchanges / of_all, kFewestSteps);
  return std::min({wanted, kMostMade / of_all, uint64_t{recorded}});
}

}  // namespace

absl::Status SetWorkers(uint32_t count, ReplayModel* model) {
  const size_t recorded = model->workers.size();
  if (count <= recorded) {
    model->workers.resize(count);
    return absl::OkStatus();
  }
  BDN_RETURN_IF_ERROR(CheckThatStepsAreAlike(*model));
  BDN_ASSIGN_OR_RETURN(const size_t kept, CountSteps(*model, count));
  const size_t steps = model->step_numbers.size();
  if (kept < steps) {
    model->warnings.push_back(absl::StrFormat(
        "so many workers are replayed for %d of the %d recorded steps", kept, steps));
  }
  Rank rank = 0;
  for (const WorkerModel& worker : model->workers) rank = std::max(rank, worker.rank);
  // Those with the same steps in the same order share them.
  std::vector<std::vector<std::shared_ptr<const Steps>>> orders(
      recorded, std::vector<std::shared_ptr<const Steps>>(steps));
  model->workers.reserve(count);
  for (size_t i = recorded; i < count; ++i) {
    const WorkerModel& source = model->workers[i % recorded];
    const size_t shift = i / recorded % steps;
    std::shared_ptr<const Steps>& order = orders[i % recorded][shift];
    if (order == nullptr) {
      const auto first = source.steps.begin();
      Steps shifted(first, first + static_cast<ptrdiff_t>(kept));
      for (size_t j = 0; j < kept; ++j) {
        TakeTimes(*model, source.steps[(j + shift) % steps], &shifted[j]);
      }
      order = std::make_shared<const Steps>(std::move(shifted));
    }
    WorkerModel worker{.name = absl::StrFormat("worker %d", rank + 1),
                       .rank = rank + 1,
                       .node = source.node,
                       .host = source.host,
                       .link_rate = source.link_rate,
                       .threads = source.threads,
                       .max_bytes_in_flight = source.max_bytes_in_flight,
                       .begin_ns = source.begin_ns,
                       .shared_steps = order};
    ++rank;
    model->workers.push_back(std::move(worker));
  }
  for (size_t i = 0; i < recorded; ++i) model->workers[i].steps.resize(kept);
  model->step_numbers.resize(kept);
  return absl::OkStatus();
}

}  // namespace bdn
