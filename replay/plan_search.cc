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
constexpr const char* kInFlight[] = {"1MiB", "4MiB", "16MiB", "64MiB"};

// Values by setting; what has none stays as it was recorded.
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
    const int64_t recorded = best;
    for (int pass = 0; pass < kMostPasses; ++pass) {
      const Choice before = now;
      for (const auto& [name, values] : axes_) {
        Choice next = now;
        for (const std::string& value : values) {
          Choice tried = now;
          tried[name] = value;
          BDN_ASSIGN_OR_RETURN(const int64_t ns, TimeOf(tried));
          if (static_cast<double>(ns) >= static_cast<double>(best) * (1 - kLeastGain)) continue;
          best = ns;
          next = std::move(tried);
        }
        now = std::move(next);
      }
      if (now == before) break;
    }
    return Best(recorded);
  }

 private:
  absl::StatusOr<int64_t> TimeOf(const Choice& choice) {
    const auto known = times_.find(choice);
    if (known != times_.end()) return known->second;
    BDN_ASSIGN_OR_RETURN(const ReplaySettings settings, SettingsOf(choice));
    BDN_ASSIGN_OR_RETURN(const int64_t ns, replayer_.MedianStepNs(settings));
    times_[choice] = ns;
    return ns;
  }

  absl::StatusOr<PlanSearch> Best(int64_t recorded) const {
    PlanSearch search{.recorded_ns = recorded, .replays = times_.size()};
    std::vector<std::pair<int64_t, const Choice*>> order;
    for (const auto& [choice, ns] : times_) {
      if (static_cast<double>(ns) < static_cast<double>(recorded) * (1 - kLeastGain)) {
        order.emplace_back(ns, &choice);
      }
    }
    // Of equal ones that with the fewest changes.
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second->size()) < std::pair(b.first, b.second->size());
    });
    for (const auto& [ns, choice] : order) {
      if (search.plans.size() == kMostPlans) break;
      BDN_ASSIGN_OR_RETURN(ReplaySettings settings, SettingsOf(*choice));
      search.plans.push_back({std::move(settings), ns});
    }
    return search;
  }

  const Replayer& replayer_;
  std::vector<std::pair<std::string, std::vector<std::string>>> axes_;
  std::map<Choice, int64_t> times_;
};

}  // namespace

absl::StatusOr<PlanSearch> SearchPlans(const Replayer& replayer, const PlanSpace& space) {
  return Search(replayer, space).Run();
}

}  // namespace bdn
