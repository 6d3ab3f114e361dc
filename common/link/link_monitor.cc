#include "common/link/link_monitor.h"

#include <bit>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr int64_t kMostEvery = int64_t{1} << 40;

}  // namespace

absl::StatusOr<QualityOptions> ReadQualityOptions(const Config& config) {
  QualityOptions options;
  BDN_ASSIGN_OR_RETURN(options.every, config.Int("quality-every", 0, kMostEvery));
  return options;
}

void LinkMonitor::Begin(QualityWatch* watch, const KeyEntry& key, const std::string& tensor) {
  if (watch == nullptr || watch->options.every == 0) return;
  watch_ = watch;
  link_ = watch->table.Add(tensor, key.segments[0].tensor);
  phase_ = key.key.value % watch->options.every;
}

bool LinkMonitor::IsDue(Step step) const {
  if (!is_on()) return false;
  const uint64_t every = watch_->options.every;
  return step < every ? std::has_single_bit(step) : step % every == phase_;
}

void LinkMonitor::CountEncoding(bool is_finite) {
  if (is_on()) link_->CountEncoding(is_finite);
}

void LinkMonitor::Note(Step step, const LinkQuality& quality) {
  link_->Note({.step = step,
               .ratio = quality.ratio(),
               .cosine = quality.cosine(),
               .owed_steps = quality.owed_steps()});
}

}  // namespace bdn
