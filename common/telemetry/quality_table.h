#ifndef BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_
#define BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "common/telemetry/quality_figures.h"
#include "common/telemetry/registry.h"

namespace bdn {

// The table of the quality of a node's links with ef(...) or delta(...), at the end that encodes:
// the last sample of each, and how many of its encodings were not finite. Tensors are shown in at
// most kMostQualityGroups runs of their numbers, which count in the order of declaration, so that
// the size of a job does not change how many series it has. Thread-safe.
class QualityTable {
 public:
  // One link. Owned by the table; thread-safe.
  class Link {
   public:
    Link(std::string tensor, uint32_t number) : tensor_(std::move(tensor)), number_(number) {}

    void CountEncoding(bool is_finite);
    void Note(const QualitySample& sample);
    // Notes what the guard has done about the link: one of kGuardStates.
    void NoteGuard(std::string_view what);

   private:
    friend class QualityTable;
    const std::string tensor_;
    const uint32_t number_;
    mutable Mutex mu_;
    uint64_t encodings_ ABSL_GUARDED_BY(mu_) = 0;
    uint64_t nonfinite_ ABSL_GUARDED_BY(mu_) = 0;
    bool is_measured_ ABSL_GUARDED_BY(mu_) = false;
    QualitySample last_ ABSL_GUARDED_BY(mu_);
    std::string_view guard_ ABSL_GUARDED_BY(mu_) = kGuardStates[0];
  };

  QualityTable() = default;
  QualityTable(const QualityTable&) = delete;
  QualityTable& operator=(const QualityTable&) = delete;

  // Adds the link of a key whose first tensor has this name and number. It lives until Remove, or
  // as long as the table.
  Link* Add(const std::string& tensor, uint32_t number);
  void Remove(Link* link);

  // The figures of one tensor, with its name.
  struct Named {
    std::string name;
    QualityFigures figures;
  };
  // Returns the figures by runs of tensor numbers, rising; leaves out runs of which nothing was
  // encoded.
  std::vector<QualityGroup> Groups() const;
  // Returns the figures by tensor; where there are more than kMostSeries, those of the largest
  // ratio.
  std::vector<Named> Tensors() const;

 private:
  static QualityFigures Read(const Link& link);

  mutable Mutex mu_;
  std::map<const Link*, std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
};

// Reports the table as long as the sources live: to exporters as residual_ratio, decoded_cosine,
// owed_steps, nonfinite_share and guarded_tensors, and in JSON as the member "quality"
// (docs/metrics.md). Both arguments are borrowed and outlive the sources.
std::vector<std::unique_ptr<Registry::Source>> AddQuality(const QualityTable* table,
                                                          Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_
