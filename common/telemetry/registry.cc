#include "common/telemetry/registry.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_text.h"

namespace bdn {

std::unique_ptr<Registry::Source> Registry::Add(ReadFn read) {
  std::unique_ptr<Source> source(new Source(this, std::move(read)));
  MutexLock lock(&mu_);
  sources_.push_back(source.get());
  return source;
}

std::unique_ptr<Registry::Source> Registry::AddFamily(const Family* family, ReadSeriesFn read) {
  std::unique_ptr<Source> source(new Source(this, family, std::move(read)));
  MutexLock lock(&mu_);
  sources_.push_back(source.get());
  return source;
}

std::unique_ptr<Registry::Source> Registry::AddObject(const char* member, ReadObjectFn read) {
  std::unique_ptr<Source> source(new Source(this, member, std::move(read)));
  MutexLock lock(&mu_);
  sources_.push_back(source.get());
  return source;
}

Registry::Source::~Source() {
  // Waits for a reader: once this returns, the source's functions run no more.
  MutexLock lock(&registry_->mu_);
  registry_->sources_.remove(this);
}

std::vector<Sample> Registry::Collect() const {
  std::vector<Sample> samples;
  MutexLock lock(&mu_);
  for (const Source* source : sources_) {
    if (source->read_ != nullptr) source->read_(&samples);
  }
  return samples;
}

std::vector<FamilySamples> Registry::CollectFamilies() const {
  std::vector<FamilySamples> families;
  std::map<std::string_view, size_t> places;
  const auto samples_of = [&](const Family& family) -> std::vector<Series>& {
    const auto [place, is_new] = places.try_emplace(family.name, families.size());
    if (is_new) families.push_back({.family = family, .series = {}});
    return families[place->second].series;
  };
  MutexLock lock(&mu_);
  for (const Source* source : sources_) {
    if (source->family_ != nullptr) {
      for (Series& series : source->read_series_()) {
        samples_of(*source->family_).push_back(std::move(series));
      }
      continue;
    }
    if (source->read_ == nullptr) continue;
    std::vector<Sample> samples;
    source->read_(&samples);
    for (const Sample& sample : samples) {
      const Metric& metric = *sample.metric;
      if (metric.of == &kNotExported) continue;
      const Family own = {metric.name, metric.kind, metric.help};
      // Taken by name, so that series of one family from several sources end up together.
      const Family& family = metric.of == nullptr ? own : *metric.of;
      samples_of(family).push_back(
          {metric.label_value, static_cast<double>(sample.value) * family.unit});
    }
  }
  return families;
}

void KeepLargest(std::vector<Series>* series, size_t most) {
  if (series->size() <= most) return;
  // Stable, so that equal values keep their order from one look to the next.
  std::stable_sort(series->begin(), series->end(),
                   [](const Series& a, const Series& b) { return a.value > b.value; });
  series->resize(most);
}

namespace {

nlohmann::ordered_json JsonOf(std::span<const Sample> samples) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Sample& sample : samples) {
    nlohmann::ordered_json* place = &json;
    // Each "." of a name opens an object inside the last one.
    for (const absl::string_view part : absl::StrSplit(sample.metric->name, '.')) {
      place = &(*place)[std::string(part)];
    }
    *place = sample.value;
  }
  return json;
}

}  // namespace

std::string ToJson(std::span<const Sample> samples) { return JsonOf(samples).dump(); }

std::vector<std::pair<const char*, std::string>> Registry::Objects() const {
  std::vector<std::pair<const char*, std::string>> objects;
  MutexLock lock(&mu_);
  for (const Source* source : sources_) {
    if (source->member_ != nullptr) objects.emplace_back(source->member_, source->read_object_());
  }
  return objects;
}

std::string Registry::Json() const {
  nlohmann::ordered_json json = JsonOf(Collect());
  for (const auto& [member, text] : Objects()) {
    // A source's text is not trusted: one bad object must not lose all numbers.
    auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) json[member] = std::move(object);
  }
  return json.dump();
}

std::string ToText(std::span<const Sample> samples) {
  std::string text;
  for (const Sample& sample : samples) {
    const char* name = sample.metric->name;
    const bool is_counter = sample.metric->kind == Metric::Kind::kCounter;
    if (!is_counter || sample.value == 0 || absl::StrContains(name, '.')) continue;
    const bool is_bytes = absl::StrContains(name, "bytes");
    absl::StrAppendFormat(
        &text, "%s%s %s", text.empty() ? "" : ", ", name,
        is_bytes ? ByteText(static_cast<double>(sample.value)) : std::to_string(sample.value));
  }
  return text;
}

}  // namespace bdn
