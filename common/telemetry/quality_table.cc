#include "common/telemetry/quality_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

constexpr auto kGauge = Metric::Kind::kGauge;
constexpr const char* kLabel = "tensors";
constexpr Family kRatio = {"residual_ratio", kGauge,
                           "norm of what a link owes over that of what its codec was given: the "
                           "largest of these tensors' last samples",
                           kLabel};
constexpr Family kCosine = {"decoded_cosine", kGauge,
                            "of what a link's codec was given and what arrives: the smallest of "
                            "these tensors' last samples",
                            kLabel};
constexpr Family kOwed = {"owed_steps", kGauge,
                          "as many steps' input as a link owes: the largest of these tensors' last "
                          "samples",
                          kLabel};
constexpr Family kNonfinite = {"nonfinite_share", kGauge,
                               "of these tensors' encodings, those whose input was not finite",
                               kLabel};
constexpr Family kGuarded = {"guarded_tensors", kGauge,
                             "tensors whose residual grew: warned of, or uncompressed since",
                             "guard"};
constexpr const char* kWarned = "warned";
constexpr const char* kFallenBack = "fallen back";

// The worse of two, by `worse`; NaN is worst.
template <typename Worse>
double Worst(double a, double b, const Worse& worse) {
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  return worse(a, b) ? a : b;
}

// JSON has no other numbers.
nlohmann::ordered_json NumberOrNull(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json ToJson(const QualityTable::Figures& figures) {
  nlohmann::ordered_json json = {{"encodings", figures.encodings},
                                 {"nonfinite_share", figures.nonfinite_share()}};
  if (figures.is_measured) {
    json["step"] = figures.worst.step;
    json["residual_ratio"] = NumberOrNull(figures.worst.ratio);
    json["decoded_cosine"] = NumberOrNull(figures.worst.cosine);
    json["owed_steps"] = NumberOrNull(figures.worst.owed_steps);
  }
  if (*figures.guard != '\0') json["guard"] = figures.guard;
  return json;
}

// Nothing where nothing was encoded.
std::string QualityJson(const QualityTable& table) {
  const std::vector<QualityTable::Named> tensors = table.Tensors();
  if (tensors.empty()) return "";
  auto json = nlohmann::ordered_json::object();
  json["groups"] = nlohmann::ordered_json::object();
  json["tensors"] = nlohmann::ordered_json::object();
  for (const auto& group : table.Groups()) json["groups"][group.name] = ToJson(group.figures);
  for (const auto& tensor : tensors) json["tensors"][tensor.name] = ToJson(tensor.figures);
  return json.dump();
}

}  // namespace

void QualityTable::Link::CountEncoding(bool is_finite) {
  MutexLock lock(&mu_);
  ++encodings_;
  if (!is_finite) ++nonfinite_;
}

void QualityTable::Link::Note(const QualitySample& sample) {
  MutexLock lock(&mu_);
  is_measured_ = true;
  last_ = sample;
}

void QualityTable::Link::NoteGuard(const char* what) {
  MutexLock lock(&mu_);
  guard_ = what;
}

double QualityTable::Figures::nonfinite_share() const {
  return encodings == 0 ? 0 : static_cast<double>(nonfinite) / static_cast<double>(encodings);
}

void QualityTable::Figures::Join(const Figures& other) {
  encodings += other.encodings;
  nonfinite += other.nonfinite;
  if (*guard == '\0' || std::string_view(other.guard) == kFallenBack) guard = other.guard;
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

QualityTable::Link* QualityTable::Add(const std::string& tensor, uint32_t number) {
  MutexLock lock(&mu_);
  return &links_.emplace_back(tensor, number);
}

QualityTable::Figures QualityTable::Read(const Link& link) {
  MutexLock lock(&link.mu_);
  return {link.encodings_, link.nonfinite_, link.is_measured_, link.last_, link.guard_};
}

std::vector<QualityTable::Named> QualityTable::Groups() const {
  MutexLock lock(&mu_);
  uint64_t highest = 0;
  for (const Link& link : links_) highest = std::max<uint64_t>(highest, link.number_);
  const uint64_t width = std::bit_ceil(highest / kMostGroups + 1);
  std::map<uint64_t, Figures> by_group;
  for (const Link& link : links_) by_group[link.number_ / width].Join(Read(link));
  std::vector<Named> groups;
  for (const auto& [group, figures] : by_group) {
    if (figures.encodings == 0) continue;
    const uint64_t first = group * width;
    groups.push_back({width == 1 ? absl::StrFormat("%d", first)
                                 : absl::StrFormat("%d-%d", first, first + width - 1),
                      figures});
  }
  return groups;
}

std::vector<QualityTable::Named> QualityTable::Tensors() const {
  std::map<std::string, Figures> by_name;
  {
    MutexLock lock(&mu_);
    for (const Link& link : links_) by_name[link.tensor_].Join(Read(link));
  }
  std::vector<Named> tensors;
  for (const auto& [name, figures] : by_name) {
    if (figures.encodings > 0) tensors.push_back({name, figures});
  }
  if (tensors.size() <= kMostSeries) return tensors;
  std::stable_sort(tensors.begin(), tensors.end(), [](const Named& a, const Named& b) {
    const double mine = a.figures.worst.ratio, other = b.figures.worst.ratio;
    return std::isnan(mine) ? !std::isnan(other) : mine > other;
  });
  tensors.resize(kMostSeries);
  return tensors;
}

std::vector<std::unique_ptr<Registry::Source>> AddQuality(const QualityTable* table,
                                                          Registry* registry) {
  struct Shown {
    const Family* family;
    double (*value)(const QualityTable::Figures&);
  };
  using Figures = QualityTable::Figures;
  static constexpr Shown kShown[] = {
      {&kRatio, [](const Figures& figures) { return figures.worst.ratio; }},
      {&kCosine, [](const Figures& figures) { return figures.worst.cosine; }},
      {&kOwed, [](const Figures& figures) { return figures.worst.owed_steps; }},
      {&kNonfinite, [](const Figures& figures) { return figures.nonfinite_share(); }},
  };
  std::vector<std::unique_ptr<Registry::Source>> sources;
  for (const Shown& shown : kShown) {
    sources.push_back(registry->AddFamily(shown.family, [table, &shown] {
      std::vector<Series> all;
      for (const QualityTable::Named& group : table->Groups()) {
        if (!group.figures.is_measured && shown.family != &kNonfinite) continue;
        all.push_back({group.name, shown.value(group.figures)});
      }
      return all;
    }));
  }
  sources.push_back(registry->AddFamily(&kGuarded, [table] {
    double warned = 0, fallen_back = 0;
    for (const QualityTable::Named& tensor : table->Tensors()) {
      warned += std::string_view(tensor.figures.guard) == kWarned ? 1 : 0;
      fallen_back += std::string_view(tensor.figures.guard) == kFallenBack ? 1 : 0;
    }
    std::vector<Series> all;
    if (warned > 0) all.push_back({kWarned, warned});
    if (fallen_back > 0) all.push_back({kFallenBack, fallen_back});
    return all;
  }));
  sources.push_back(registry->AddObject("quality", [table] { return QualityJson(*table); }));
  return sources;
}

}  // namespace bdn
