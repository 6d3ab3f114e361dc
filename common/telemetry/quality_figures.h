#ifndef BANDONEON_COMMON_TELEMETRY_QUALITY_FIGURES_H_
#define BANDONEON_COMMON_TELEMETRY_QUALITY_FIGURES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bdn {

// A measurement of one step of one link (compressors/memory/link_quality.h).
struct QualitySample {
  uint64_t step = 0;
  double ratio = 0;
  double cosine = 0;
  double owed_steps = 0;
};

// The actions that the guard of a link may have taken, for people to read; on the wire by their
// index here.
inline constexpr std::array<std::string_view, 3> kGuardStates = {"", "warned", "fallen back"};

// The worst of several links: the largest ratio and owed_steps, and the smallest cosine; NaN counts
// as worst. Encodings add up.
struct QualityFigures {
  uint64_t encodings = 0;
  uint64_t nonfinite = 0;
  bool is_measured = false;
  QualitySample worst;
  std::string_view guard = kGuardStates[0];  // one of kGuardStates

  double nonfinite_share() const;
  void Join(const QualityFigures& other);
};

// Returns a JSON object (docs/metrics.md), in which a number that is not finite is null.
std::string ToJson(const QualityFigures& figures);

// The figures of the tensors numbered `first` to `last`: their count is a power of two, of which
// `first` is a multiple. A node has at most kMostQualityGroups groups, all of one size, in rising
// order.
struct QualityGroup {
  uint32_t first = 0;
  uint32_t last = 0;
  QualityFigures figures;

  uint64_t size() const { return uint64_t{last} - first + 1; }
  std::string name() const;  // "7" or "8-15"
};
inline constexpr size_t kMostQualityGroups = 32;

// Joins the groups of several nodes into groups of the largest size among theirs, so that there are
// no more than one node may have.
std::vector<QualityGroup> JoinGroups(const std::vector<std::vector<QualityGroup>>& nodes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_QUALITY_FIGURES_H_
