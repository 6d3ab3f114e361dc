#ifndef BANDONEON_LINK_LINK_MONITOR_H_
#define BANDONEON_LINK_LINK_MONITOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "common/base/ids.h"
#include "common/cluster/catalogue.h"
#include "common/telemetry/quality_table.h"
#include "compressors/memory/link_quality.h"

namespace bdn {

// What a node does about a link whose residual grows without bound.
enum class QualityGuard : uint8_t {
  kOff,
  kWarn,      // says so once
  kFallBack,  // and has the key sent uncompressed from a step on that all agree on
};

// How a node watches the links that it encodes for: settings of servers and workers.
struct QualityOptions {
  uint64_t every = 256;  // measures each link in one of so many steps; 0: never
  QualityGuard guard = QualityGuard::kWarn;
};
// By settings quality-every and quality-guard. InvalidArgument names the one that is wrong.
absl::StatusOr<QualityOptions> ReadQualityOptions(const Config& config);

// What a node watches its links by. Borrowed, and outlives the monitors.
struct QualityWatch {
  QualityOptions options;
  const char* what = "push";  // which way is encoded here, for people
  QualityTable table;
};

// What was measured of the segments of a key, and which of them leaves out the largest part.
struct WorstOf {
  void Add(size_t of_segment, const LinkQuality& quality);

  LinkQuality all;
  size_t segment = 0;
  double ratio = -1;
};

// Watches one key's link that has a memory, at the end that encodes. A value, of whoever has the key's
// state: not thread-safe. What does nothing is made by default.
//
// A residual grows without bound where a codec adds more than it takes away: one that leaves out less than it
// was given, |e| < |p|, owes a bounded number of steps. So the guard acts once, kLeastOver samples running,
// |e| was above |p| and no smaller than before, and over a thousand steps are owed: there are codecs that
// settle further down. Once a sample is over, every step is measured until one is not.
class LinkMonitor {
 public:
  // Whether anything is watched; else Begin may be called.
  bool is_on() const { return link_ != nullptr; }
  // From now on the link of this key, whose first tensor is called so. `watch` may be null: nothing.
  void Begin(QualityWatch* watch, const KeyEntry& key, const std::string& tensor);
  // The link is no more, nor is what was measured of it. Not of a copy.
  void End();

  // Whether the encoding of `step` is to be measured: at steps 1, 2, 4 and so on at first, later in one
  // of `every`, which differs from key to key.
  bool IsDue(Step step) const;
  // Every encoding, measured or not.
  void CountEncoding(bool is_finite);
  // `tensor` is whose part of the key does worst, for people.
  void Note(Step step, const LinkQuality& quality, const std::string& tensor);

  // Whether the guard has found that the key had better go uncompressed.
  bool WantsUncompressed() const { return wants_uncompressed_; }
  // It was agreed that it does.
  void NoteUncompressed();

  static constexpr int kLeastOver = 8;

 private:
  void Guard(Step step, const LinkQuality& quality, const std::string& tensor);

  QualityWatch* watch_ = nullptr;
  QualityTable::Link* link_ = nullptr;
  uint64_t phase_ = 0;
  int num_over_ = 0;
  double last_residual_ = 0;
  bool has_acted_ = false;
  bool wants_uncompressed_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_LINK_LINK_MONITOR_H_
