#include "replay/plan_search.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kMostPlans = 3;
constexpr int kMostPasses = 5;
constexpr double kLeastGain = 0.005;

constexpr const char* kPartitions[] = {"128KiB", "256KiB", "512KiB", "1MiB",
                                       "2MiB",   "4MiB",   "8MiB",   "16MiB"};
constexpr const char* kFusion[] = {"256KiB", "1MiB", "4MiB", "16MiB"};
constexpr const char* kInFlight[] = {"1MiB", "4MiB", "16MiB", "64MiB"};

// Values by setting. A setting without one stays as it was recorded.
using Choice = std::map<std::string, std::string>;

absl::StatusOr<ReplaySettings> SettingsOf(const Choice& choice) {
  ReplaySettings settings;
  for (const auto& [name, value] : choice) {
    BDN_RETURN_IF_ERROR(AddReplaySetting(absl::StrCat(name, "=", value), &settings));
  }
  return settings;
}

class Search {
 public:
  Search(const Replayer& replayer, const PlanSpace& space) : replayer_(replayer) {
    axes_.emplace_back("partition-bytes",
                       std::vector<std::string>(std::begin(kPartitions), std::end(kPartitions)));
    axes_.emplace_back("fusion-bytes",
                       std::vector<std::string>(std::begin(kFusion), std::end(kFusion)));
    axes_.emplace_back("max-bytes-in-flight",
                       std::vector<std::string>(std::begin(kInFlight), std::end(kInFlight)));
    std::vector<std::string> servers;
    for (uint32_t i = 1; i <= space.most_servers; ++i) servers.push_back(absl::StrCat(i));
    axes_.emplace_back("servers", std::move(servers));
    axes_.emplace_back("push", space.codecs);
    axes_.emplace_back("pull", space.codecs);
  }

  absl::StatusOr<PlanSearch> Run() {
    Choice now;
    BDN_ASSIGN_OR_RETURN(int64_t best, TimeOf(now));
    for (int pass = 0; pass < kMostPasses; ++pass) {
      const Choice before = now;
      for (const auto& [name, values] : axes_) {
        Choice next = now;
        for (const std::string& value : values) {
          Choice tried = now;
          tried[name] = value;
          const absl::StatusOr<int64_t> tried_ns = TimeOf(tried);
          if (absl::IsUnimplemented(tried_ns.status())) {
            unknown_.try_emplace(name, tried_ns.status().message());
            continue;
          }
          BDN_ASSIGN_OR_RETURN(const int64_t ns, tried_ns);
          if (static_cast<double>(ns) >= static_cast<double>(best) * (1 - kLeastGain)) continue;
          best = ns;
          next = std::move(tried);
        }
        now = std::move(next);
      }
      if (now == before) break;
    }
    return Best();
  }

 private:
  absl::StatusOr<int64_t> TimeOf(const Choice& choice) {
    const auto known = times_.find(choice);
    if (known != times_.end()) return known->second.median_ns;
    BDN_ASSIGN_OR_RETURN(const ReplaySettings settings, SettingsOf(choice));
    BDN_ASSIGN_OR_RETURN(times_[choice], replayer_.Predict(settings));
    return times_[choice].median_ns;
  }

  absl::StatusOr<PlanSearch> Best() const {
    PlanSearch search{.recorded = times_.at(Choice()), .replays = times_.size()};
    const double most = static_cast<double>(search.recorded.median_ns) * (1 - kLeastGain);
    std::vector<std::pair<int64_t, const Choice*>> order;
    for (const auto& [choice, step] : times_) {
      if (static_cast<double>(step.median_ns) < most) order.emplace_back(step.median_ns, &choice);
    }
    // Among equal plans the one with the fewest changes comes first.
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second->size()) < std::pair(b.first, b.second->size());
    });
    std::vector<std::pair<int64_t, const Choice*>> taken;
    for (const auto& [ns, choice] : order) {
      if (search.plans.size() == kMostPlans) break;
      // A setting that changes nothing makes no other plan.
      const auto has_it = [&, ns = ns, choice = choice](const auto& plan) {
        return plan.first == ns && std::includes(choice->begin(), choice->end(),
                                                 plan.second->begin(), plan.second->end());
      };
      if (std::any_of(taken.begin(), taken.end(), has_it)) continue;
      taken.emplace_back(ns, choice);
      BDN_ASSIGN_OR_RETURN(ReplaySettings settings, SettingsOf(*choice));
      search.plans.push_back({std::move(settings), times_.at(*choice)});
    }
    for (const auto& [name, why] : unknown_) {
      search.notes.push_back(absl::StrCat("not all values of ", name, " were tried: ", why));
    }
    return search;
  }

  const Replayer& replayer_;
  std::vector<std::pair<std::string, std::vector<std::string>>> axes_;
  std::map<Choice, StepPrediction> times_;
  std::map<std::string, std::string> unknown_;  // by setting: why a value could not be tried
};

}  // namespace

absl::StatusOr<PlanSearch> SearchPlans(const Replayer& replayer, const PlanSpace& space) {
  return Search(replayer, space).Run();
}

}  // namespace bdn
