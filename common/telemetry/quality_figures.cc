#include "common/telemetry/quality_figures.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

// Returns the worse of two by `worse`; NaN is the worst.
template <typename Worse>
double Worst(double a, double b, const Worse& worse) {
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  return worse(a, b) ? a : b;
}

// Returns null for a number that is not finite, which JSON cannot write.
nlohmann::ordered_json NumberOrNull(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

double QualityFigures::nonfinite_share() const {
  return encodings == 0 ? 0 : static_cast<double>(nonfinite) / static_cast<double>(encodings);
}

void QualityFigures::Join(const QualityFigures& other) {
  encodings += other.encodings;
  nonfinite += other.nonfinite;
  // A group shows the gravest action of its links: "fallen back" outranks "warned".
  if (guard.empty() || other.guard == kGuardStates.back()) guard = other.guard;
  if (!other.is_measured) return;
  if (!std::exchange(is_measured, true)) {
    worst = other.worst;
    return;
  }
  worst.step = std::max(worst.step, other.worst.step);
  worst.ratio = Worst(worst.ratio, other.worst.ratio, std::greater<>());
  worst.cosine = Worst(worst.cosine, other.worst.cosine, std::less<>());
  worst.owed_steps = Worst(worst.owed_steps, other.worst.owed_steps, std::greater<>());
}

std::string ToJson(const QualityFigures& figures) {
  nlohmann::ordered_json json = {{"encodings", figures.encodings},
                                 {"nonfinite_share", figures.nonfinite_share()}};
  if (figures.is_measured) {
    json["step"] = figures.worst.step;
    json["residual_ratio"] = NumberOrNull(figures.worst.ratio);
    json["decoded_cosine"] = NumberOrNull(figures.worst.cosine);
    json["owed_steps"] = NumberOrNull(figures.worst.owed_steps);
  }
  if (!figures.guard.empty()) json["guard"] = figures.guard;
  return json.dump();
}

std::string QualityGroup::name() const {
  return first == last ? absl::StrFormat("%d", first) : absl::StrFormat("%d-%d", first, last);
}

std::vector<QualityGroup> JoinGroups(const std::vector<std::vector<QualityGroup>>& nodes) {
  uint64_t size = 1;
  for (const auto& groups : nodes) {
    for (const QualityGroup& group : groups) size = std::max(size, group.size());
  }
  std::map<uint64_t, QualityFigures> by_group;
  for (const auto& groups : nodes) {
    // Sizes are powers of two, so every smaller group lies inside one of the largest size.
    for (const QualityGroup& group : groups) by_group[group.first / size].Join(group.figures);
  }
  std::vector<QualityGroup> joined;
  for (const auto& [group, figures] : by_group) {
    joined.push_back({static_cast<uint32_t>(group * size),
                      static_cast<uint32_t>(group * size + size - 1), figures});
  }
  return joined;
}

}  // namespace bdn
