#include "common/telemetry/quality_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace bdn {
namespace {

constexpr auto kGauge = Metric::Kind::kGauge;
constexpr const char* kLabel = "tensors";
constexpr Family kRatio = {
    "residual_ratio", kGauge,
    "The norm of what a link owes is this many times the norm of what its codec was given: the "
    "largest of these tensors' last samples.",
    kLabel};
constexpr Family kCosine = {
    "decoded_cosine", kGauge,
    "What a link's codec was given and what arrives have this cosine: the smallest of these "
    "tensors' last samples.",
    kLabel};
constexpr Family kOwed = {
    "owed_steps", kGauge,
    "A link owes as much as so many steps bring in: the largest of these tensors' last samples.",
    kLabel};
constexpr Family kNonfinite = {
    "nonfinite_share", kGauge,
    "This share of these tensors' encodings had input that was not finite.", kLabel};
constexpr Family kGuarded = {
    "guarded_tensors", kGauge,
    "So many tensors have a residual that grew: the guard warned of them, or sends them "
    "uncompressed since.",
    "guard"};
constexpr std::string_view kWarned = kGuardStates[1];
constexpr std::string_view kFallenBack = kGuardStates[2];

// Returns an empty text where nothing was encoded.
std::string QualityJson(const QualityTable& table) {
  const std::vector<QualityTable::Named> tensors = table.Tensors();
  if (tensors.empty()) return "";
  auto json = nlohmann::ordered_json::object();
  json["groups"] = nlohmann::ordered_json::object();
  json["tensors"] = nlohmann::ordered_json::object();
  const auto parse = [](const QualityFigures& figures) {
    return nlohmann::ordered_json::parse(ToJson(figures));
  };
  for (const auto& group : table.Groups()) json["groups"][group.name()] = parse(group.figures);
  for (const auto& tensor : tensors) json["tensors"][tensor.name] = parse(tensor.figures);
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

void QualityTable::Link::NoteGuard(std::string_view what) {
  MutexLock lock(&mu_);
  guard_ = what;
}

QualityTable::Link* QualityTable::Add(const std::string& tensor, uint32_t number) {
  auto link = std::make_unique<Link>(tensor, number);
  Link* const added = link.get();
  MutexLock lock(&mu_);
  links_.emplace(added, std::move(link));
  return added;
}

void QualityTable::Remove(Link* link) {
  MutexLock lock(&mu_);
  links_.erase(link);
}

QualityFigures QualityTable::Read(const Link& link) {
  MutexLock lock(&link.mu_);
  return {link.encodings_, link.nonfinite_, link.is_measured_, link.last_, link.guard_};
}

std::vector<QualityGroup> QualityTable::Groups() const {
  MutexLock lock(&mu_);
  uint32_t highest = 0;
  for (const auto& [link, owned] : links_) highest = std::max(highest, link->number_);
  // The least power of two that puts the highest number into one of kMostQualityGroups groups.
  const uint32_t size = std::bit_ceil(highest / uint32_t{kMostQualityGroups} + 1);
  std::map<uint32_t, QualityFigures> by_group;
  for (const auto& [link, owned] : links_) by_group[link->number_ / size].Join(Read(*link));
  std::vector<QualityGroup> groups;
  for (const auto& [group, figures] : by_group) {
    if (figures.encodings == 0) continue;
    groups.push_back({group * size, group * size + (size - 1), figures});
  }
  return groups;
}

std::vector<QualityTable::Named> QualityTable::Tensors() const {
  std::map<std::string, QualityFigures> by_name;
  {
    MutexLock lock(&mu_);
    // A tensor may have several keys, and so several links.
    for (const auto& [link, owned] : links_) by_name[link->tensor_].Join(Read(*link));
  }
  std::vector<Named> tensors;
  for (const auto& [name, figures] : by_name) {
    if (figures.encodings > 0) tensors.push_back({name, figures});
  }
  if (tensors.size() <= kMostSeries) return tensors;
  // NaN sorts first, as it is the worst.
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
    double (*value)(const QualityFigures&);
  };
  static constexpr Shown kShown[] = {
      {&kRatio, [](const QualityFigures& figures) { return figures.worst.ratio; }},
      {&kCosine, [](const QualityFigures& figures) { return figures.worst.cosine; }},
      {&kOwed, [](const QualityFigures& figures) { return figures.worst.owed_steps; }},
      {&kNonfinite, [](const QualityFigures& figures) { return figures.nonfinite_share(); }},
  };
  std::vector<std::unique_ptr<Registry::Source>> sources;
  for (const Shown& shown : kShown) {
    sources.push_back(registry->AddFamily(shown.family, [table, &shown] {
      std::vector<Series> all;
      for (const QualityGroup& group : table->Groups()) {
        // A group may have encodings before its first measurement: then only the share that was not
        // finite is known.
        if (!group.figures.is_measured && shown.family != &kNonfinite) continue;
        all.push_back({group.name(), shown.value(group.figures)});
      }
      return all;
    }));
  }
  sources.push_back(registry->AddFamily(&kGuarded, [table] {
    double warned = 0, fallen_back = 0;
    for (const QualityTable::Named& tensor : table->Tensors()) {
      warned += tensor.figures.guard == kWarned ? 1 : 0;
      fallen_back += tensor.figures.guard == kFallenBack ? 1 : 0;
    }
    std::vector<Series> all;
    if (warned > 0) all.push_back({std::string(kWarned), warned});
    if (fallen_back > 0) all.push_back({std::string(kFallenBack), fallen_back});
    return all;
  }));
  sources.push_back(registry->AddObject("quality", [table] { return QualityJson(*table); }));
  return sources;
}

}  // namespace bdn
