#ifndef BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_
#define BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/telemetry/quality_figures.h"
#include "common/telemetry/registry.h"

namespace bdn {

// The quality of a node's links that have a memory, at the end that encodes: the last sample of each,
// and how many of its encodings were not finite. Tensors are shown in at most kMostQualityGroups runs of their
// numbers, which count in the order of declaration, so that a job of any size has as many numbers.
// Thread-safe.
class QualityTable {
 public:
  // One link. The table's; thread-safe.
  class Link {
   public:
    Link(std::string tensor, uint32_t number) : tensor_(std::move(tensor)), number_(number) {}

    void CountEncoding(bool is_finite);
    void Note(const QualitySample& sample);
    // What the guard has done about it: one of kGuardStates.
    void NoteGuard(const char* what);

   private:
    friend class QualityTable;
    const std::string tensor_;
    const uint32_t number_;
    mutable Mutex mu_;
    uint64_t encodings_ ABSL_GUARDED_BY(mu_) = 0;
    uint64_t nonfinite_ ABSL_GUARDED_BY(mu_) = 0;
    bool is_measured_ ABSL_GUARDED_BY(mu_) = false;
    QualitySample last_ ABSL_GUARDED_BY(mu_);
    const char* guard_ ABSL_GUARDED_BY(mu_) = kGuardStates[0];
  };

  QualityTable() = default;
  QualityTable(const QualityTable&) = delete;
  QualityTable& operator=(const QualityTable&) = delete;

  // Of a key whose first tensor has that name and number. Lives until it is removed, or as long as the table.
  Link* Add(const std::string& tensor, uint32_t number);
  void Remove(Link* link);

  struct Named {
    std::string name;
    QualityFigures figures;
  };
  // By the run of tensors' numbers, rising; without those of which nothing was encoded.
  std::vector<QualityGroup> Groups() const;
  // By tensor, of more than kMostSeries those of the largest ratio.
  std::vector<Named> Tensors() const;

 private:
  static QualityFigures Read(const Link& link);

  mutable Mutex mu_;
  std::map<const Link*, std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
};

// Reports the table, while the sources live: to exporters as residual_ratio, decoded_cosine, owed_steps,
// nonfinite_share and guarded_tensors, and in JSON as the member "quality" (docs/metrics.md). Both are borrowed and
// outlive them.
std::vector<std::unique_ptr<Registry::Source>> AddQuality(const QualityTable* table,
                                                          Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_
