#ifndef BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_
#define BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/telemetry/registry.h"

namespace bdn {

// What was measured of one step of one link (compressors/memory/link_quality.h).
struct QualitySample {
  uint64_t step = 0;
  double ratio = 0;
  double cosine = 0;
  double owed_steps = 0;
};

// The quality of a node's links that have a memory, at the end that encodes: the last sample of each,
// and how many of its encodings were not finite. Tensors are shown in at most kMostGroups runs of their
// numbers, which count in the order of declaration, so that a job of any size has as many numbers.
// Thread-safe.
class QualityTable {
 public:
  static constexpr size_t kMostGroups = 32;

  // One link. The table's; thread-safe.
  class Link {
   public:
    Link(std::string tensor, uint32_t number) : tensor_(std::move(tensor)), number_(number) {}

    void CountEncoding(bool is_finite);
    void Note(const QualitySample& sample);
    // What the guard has done about it: "", "warned" or "fallen back".
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
    const char* guard_ ABSL_GUARDED_BY(mu_) = "";
  };

  QualityTable() = default;
  QualityTable(const QualityTable&) = delete;
  QualityTable& operator=(const QualityTable&) = delete;

  // Of a key whose first tensor has that name and number. Lives as long as the table.
  Link* Add(const std::string& tensor, uint32_t number);

  // The worst of several links: the largest ratio and owed_steps, the smallest cosine; NaN counts as
  // worst. Encodings add up.
  struct Figures {
    uint64_t encodings = 0;
    uint64_t nonfinite = 0;
    bool is_measured = false;
    QualitySample worst;
    const char* guard = "";

    double nonfinite_share() const;
    void Join(const Figures& other);
  };
  struct Named {
    std::string name;
    Figures figures;
  };
  // By the run of tensors' numbers, "7" or "8-15", rising; without those of which nothing was encoded.
  std::vector<Named> Groups() const;
  // By tensor, of more than kMostSeries those of the largest ratio.
  std::vector<Named> Tensors() const;

 private:
  static Figures Read(const Link& link);

  mutable Mutex mu_;
  std::deque<Link> links_ ABSL_GUARDED_BY(mu_);
};

// Reports the table, while the sources live: to exporters as residual_ratio, decoded_cosine, owed_steps,
// nonfinite_share and guarded_tensors, and in JSON as the member "quality" (docs/metrics.md). Both are borrowed and
// outlive them.
std::vector<std::unique_ptr<Registry::Source>> AddQuality(const QualityTable* table,
                                                          Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_QUALITY_TABLE_H_
