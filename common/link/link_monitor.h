#ifndef BANDONEON_COMMON_LINK_LINK_MONITOR_H_
#define BANDONEON_COMMON_LINK_LINK_MONITOR_H_

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

// How a node watches the links that it encodes for: settings of servers and workers.
struct QualityOptions {
  uint64_t every = 128;  // measures each link in one of so many steps; 0: never
};
// By setting quality-every. InvalidArgument names it.
absl::StatusOr<QualityOptions> ReadQualityOptions(const Config& config);

// What a node watches its links by. Borrowed, and outlives the monitors.
struct QualityWatch {
  QualityOptions options;
  QualityTable table;
};

// Watches one key's link that has a memory, at the end that encodes. A value, of whoever has the key's
// state: not thread-safe. What does nothing is made by default.
class LinkMonitor {
 public:
  // Whether anything is watched; else Begin may be called.
  bool is_on() const { return link_ != nullptr; }
  // From now on the link of this key, whose first tensor is called so. `watch` may be null: nothing.
  void Begin(QualityWatch* watch, const KeyEntry& key, const std::string& tensor);

  // Whether the encoding of `step` is to be measured: at steps 1, 2, 4 and so on at first, later in one
  // of `every`, which differs from key to key.
  bool IsDue(Step step) const;
  // Every encoding, measured or not.
  void CountEncoding(bool is_finite);
  void Note(Step step, const LinkQuality& quality);

 private:
  QualityWatch* watch_ = nullptr;
  QualityTable::Link* link_ = nullptr;
  uint64_t phase_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_LINK_LINK_MONITOR_H_
