#include "link/link_monitor.h"

#include <bit>
#include <cmath>

#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr int64_t kMostEvery = int64_t{1} << 40;
// Some codecs leave out more than they are given until they have settled: those with few levels
// come to owe tens of steps on the way. A thousand is far above that.
constexpr double kMostOwedSteps = 1000;

}  // namespace

absl::StatusOr<QualityOptions> ReadQualityOptions(const Config& config) {
  QualityOptions options;
  BDN_ASSIGN_OR_RETURN(options.every, config.Int("quality-every", 0, kMostEvery));
  const std::string& guard = config.Text("quality-guard");
  if (guard == "off") {
    options.guard = QualityGuard::kOff;
  } else if (guard == "fall-back") {
    options.guard = QualityGuard::kFallBack;
  } else if (guard != "warn") {
    return InvalidArgument("setting quality-guard is '%s': expected off, warn or fall-back", guard);
  }
  if (options.guard == QualityGuard::kFallBack && options.every == 0) {
    return InvalidArgument(
        "setting quality-guard is fall-back, and quality-every 0 measures nothing to go by: leave "
        "one of them out");
  }
  return options;
}

void WorstOf::Add(size_t of_segment, const LinkQuality& quality) {
  all += quality;
  const double one = quality.ratio();
  if (one <= ratio || std::isnan(ratio)) return;
  ratio = one;
  segment = of_segment;
}

void LinkMonitor::Begin(QualityWatch* watch, const KeyEntry& key, const std::string& tensor) {
  if (watch == nullptr || watch->options.every == 0) return;
  watch_ = watch;
  link_ = watch->table.Add(tensor, key.segments[0].tensor);
  // Spread by key, so that the measurements of a job's keys do not all fall into one step.
  phase_ = key.key.value % watch->options.every;
}

void LinkMonitor::End() {
  if (link_ != nullptr) watch_->table.Remove(link_);
  *this = LinkMonitor();
}

bool LinkMonitor::IsDue(Step step) const {
  if (!is_on()) return false;
  if (findings_.num_over > 0 && !findings_.has_acted) return true;
  const uint64_t every = watch_->options.every;
  return step < every ? std::has_single_bit(step) : step % every == phase_;
}

void LinkMonitor::CountEncoding(bool is_finite) {
  if (is_on()) link_->CountEncoding(is_finite);
}

void LinkMonitor::Note(Step step, const LinkQuality& quality, const std::string& tensor) {
  link_->Note({.step = step,
               .ratio = quality.ratio(),
               .cosine = quality.cosine(),
               .owed_steps = quality.owed_steps()});
  if (watch_->options.guard == QualityGuard::kOff || findings_.has_acted) return;
  Guard(step, quality, tensor);
}

void LinkMonitor::Guard(Step step, const LinkQuality& quality, const std::string& tensor) {
  const double ratio = quality.ratio();
  const bool is_over = !(ratio <= 1);  // also true for NaN, after an overflow
  const bool grows = !(quality.residual < findings_.last_residual);
  findings_.last_residual = quality.residual;
  findings_.num_over = is_over && grows ? findings_.num_over + 1 : 0;
  if (findings_.num_over < kLeastOver || quality.owed_steps() <= kMostOwedSteps) return;
  findings_.has_acted = true;
  findings_.wants_uncompressed = watch_->options.guard == QualityGuard::kFallBack;
  link_->NoteGuard(kGuardStates[1]);
  LogWarning(
      "tensor '%s' step %d: what its %s leaves out grows without bound: %.3g times as much as it "
      "was given, for %d samples in a row, and as much as %.3g steps bring in; %s",
      tensor, step, watch_->what, ratio, findings_.num_over, quality.owed_steps(),
      findings_.wants_uncompressed
          ? "all of its key goes uncompressed soon"
          : "use a codec that leaves out less than it is given, or quality-guard=fall-back");
}

void LinkMonitor::NoteUncompressed() {
  findings_.has_acted = true;
  findings_.wants_uncompressed = false;
  if (is_on()) link_->NoteGuard(kGuardStates[2]);
}

}  // namespace bdn
