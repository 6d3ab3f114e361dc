#include "common/telemetry/registry.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace bdn {

std::unique_ptr<Registry::Source> Registry::Add(std::span<const Metric> metrics, ReadFn read) {
  std::unique_ptr<Source> source(new Source(this, metrics, std::move(read)));
  MutexLock lock(&mu_);
  sources_.push_back(source.get());
  return source;
}

Registry::Source::~Source() {
  MutexLock lock(&registry_->mu_);
  registry_->sources_.remove(this);
}

std::vector<Sample> Registry::Collect() const {
  std::vector<Sample> samples;
  MutexLock lock(&mu_);
  for (const Source* source : sources_) {
    std::vector<uint64_t> values(source->metrics_.size(), 0);
    source->read_(values);
    for (size_t i = 0; i < values.size(); ++i) {
      samples.push_back({&source->metrics_[i], values[i]});
    }
  }
  return samples;
}

std::string ToJson(std::span<const Sample> samples) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Sample& sample : samples) {
    nlohmann::ordered_json* place = &json;
    for (const absl::string_view part : absl::StrSplit(sample.metric->name, '.')) {
      place = &(*place)[std::string(part)];
    }
    *place = sample.value;
  }
  return json.dump();
}

std::string ToText(std::span<const Sample> samples) {
  std::string text;
  for (const Sample& sample : samples) {
    if (absl::StrContains(sample.metric->name, '.')) continue;
    absl::StrAppendFormat(&text, "%s%s %d", text.empty() ? "" : ", ", sample.metric->name,
                          sample.value);
  }
  return text;
}

}  // namespace bdn
