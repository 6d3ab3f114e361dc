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

// The action of a node on a link whose residual grows without bound.
enum class QualityGuard : uint8_t {
  kOff,
  kWarn,      // logs it once
  kFallBack,  // logs it, and has the key sent uncompressed from a step on that all agree on
};

// The settings by which a server or a worker watches the links that it encodes for.
struct QualityOptions {
  uint64_t every = 256;  // each link is measured in one of so many steps; 0: never
  QualityGuard guard = QualityGuard::kWarn;
};
// Reads the settings quality-every and quality-guard. InvalidArgument names the one that is wrong.
absl::StatusOr<QualityOptions> ReadQualityOptions(const Config& config);

// The settings and the table with which a node watches its links. Borrowed by the monitors, and
// outlives them.
struct QualityWatch {
  QualityOptions options;
  const char* what = "push";  // the direction that is encoded here, for people to read
  QualityTable table;
};

// The measurements of the segments of a key joined, and the segment that leaves out the largest
// part.
struct WorstOf {
  void Add(size_t of_segment, const LinkQuality& quality);

  LinkQuality all;
  size_t segment = 0;
  double ratio = -1;
};

// A watch of one key's link with ef(...) or delta(...), at the end that encodes. A value, kept by
// the owner of the key's state: not thread-safe. A default-constructed monitor does nothing.
//
// A residual e grows without bound where a codec adds more to it than it takes away; a codec that
// leaves out less than the p that it was given, |e| < |p|, owes a bounded number of steps. So the
// guard acts once, when in kLeastOver samples in a row |e| was above |p| and no smaller than
// before, and over a thousand steps are owed: some codecs settle while they owe fewer. Once a
// sample is over, every step is measured until one is not, or the guard has acted.
class LinkMonitor {
 public:
  // Returns whether a link is watched; if not, Begin may be called.
  bool is_on() const { return link_ != nullptr; }
  // Begins to watch the link of this key, whose first tensor is `tensor`. Does nothing where
  // `watch` is null or measures nothing.
  void Begin(QualityWatch* watch, const KeyEntry& key, const std::string& tensor);
  // Forgets the link and its measurements. Not to be called on a copy, because that shares the
  // link's row of the table.
  void End();

  // Returns whether the encoding of `step` is to be measured: at steps 1, 2, 4 and so on at first,
  // later in one of `every`, at a remainder that differs from key to key.
  bool IsDue(Step step) const;
  // Counts an encoding, whether it is measured or not.
  void CountEncoding(bool is_finite);
  // Notes the measurement of a step. `tensor` names the tensor whose part of the key does worst,
  // for people to read.
  void Note(Step step, const LinkQuality& quality, const std::string& tensor);

  // Returns whether the guard has found that the key should go uncompressed.
  bool WantsUncompressed() const { return findings_.wants_uncompressed; }
  // Notes that all have agreed that it does.
  void NoteUncompressed();

  // The findings on which later decisions of the guard rest, apart from figures for people.
  struct Findings {
    int num_over = 0;
    double last_residual = 0;
    bool has_acted = false;
    bool wants_uncompressed = false;

    bool operator==(const Findings&) const = default;
  };
  Findings findings() const { return findings_; }
  void set_findings(const Findings& findings) { findings_ = findings; }

  static constexpr int kLeastOver = 8;

 private:
  void Guard(Step step, const LinkQuality& quality, const std::string& tensor);

  QualityWatch* watch_ = nullptr;
  QualityTable::Link* link_ = nullptr;
  uint64_t phase_ = 0;
  Findings findings_;
};

}  // namespace bdn

#endif  // BANDONEON_LINK_LINK_MONITOR_H_
