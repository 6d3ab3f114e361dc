#ifndef BANDONEON_CLI_LINK_METER_H_
#define BANDONEON_CLI_LINK_METER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/job_check.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {

// So long any one wait of a check lasts at most; then the error names whom it waits for.
inline constexpr double kCheckTimeoutSeconds = 120;

// A worker's measurements of its links to the servers of its job. They are exchanges of tensors
// that this worker alone has declared, so that nobody else has a part in them. Each direction is
// measured apart: one way goes all, the other way a thousandth of it, by codecs. Not thread-safe.
class LinkMeter {
 public:
  // The sizes of exchanges, in bytes of the direction that is measured.
  enum Size { kSmall, kBlock, kChunk, kChunks, kNumSizes };
  static constexpr int kChunksInFlight = 4;
  // Returns 4 KiB, 64 KiB, 1 MiB or kChunksInFlight MiB.
  static double BytesOf(Size size);
  // The number of tensors for each server.
  static constexpr uint64_t kTensorsPerServer = 7 + 2 * (kChunksInFlight - 1);

  // Borrows the worker.
  LinkMeter(bdn_worker* worker, int servers) : worker_(worker), servers_(servers) {}

  // Declares tensors until every server sums enough of them. FailedPrecondition: the job's settings
  // cut or do not compress them, and the error says what to set.
  absl::Status Prepare();
  // Measures the pair of this worker and a server within some `seconds`; over a slow link one small
  // exchange each way may take longer.
  absl::StatusOr<LinkFigures> Measure(int server, double seconds);

  // Bits a second, both directions at once.
  struct Rates {
    double up = 0;
    double down = 0;
  };
  // Exchanges with all servers at once, both ways, by exchanges of this size. Calls `meet` before
  // each of the repetitions, so that all workers begin together. Returns the medians.
  absl::StatusOr<Rates> MeasureAll(Size size, const std::function<absl::Status()>& meet);

 private:
  // The tensors for one direction with one server, by size; a larger size has several in flight.
  using Way = std::vector<std::vector<uint32_t>>;
  struct Tensors {
    uint32_t tiny = 0;
    Way up;
    Way down;
  };
  // A kind of tensors that each server needs some of.
  struct Kind;

  absl::Status DeclareKind(const Kind& kind, std::vector<std::vector<uint32_t>>* by_server,
                           std::vector<uint32_t>* spare);
  struct Timed {
    double seconds = 0;
    double up_bytes = 0;
    double down_bytes = 0;
  };
  // Exchanges tensors at once, and counts what that takes.
  absl::StatusOr<Timed> Exchange(std::span<const uint32_t> tensors);
  absl::StatusOr<Timed> MeasureRoundTrip(uint32_t tensor, double seconds);
  absl::StatusOr<double> MeasureWay(const Way& way, bool is_up, double seconds, const Timed& tiny);
  // Ends a step of these tensors without data, so that their server keeps no reply of theirs.
  absl::Status Forget(std::span<const uint32_t> tensors);
  absl::StatusOr<std::pair<double, double>> Traffic() const;

  bdn_worker* const worker_;
  const int servers_;
  int declared_ = 0;
  std::vector<Tensors> tensors_;  // by server
  std::map<uint32_t, uint64_t> elements_;
  std::vector<float> buffer_;
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_LINK_METER_H_
