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

  // Exchanges with all servers at once, by exchanges of this size, and returns the bits a second of
  // one direction, the median of some repetitions. Calls `meet` before each of them, so that all
  // workers begin together.
  absl::StatusOr<double> MeasureAll(Size size, bool is_up,
                                    const std::function<absl::Status()>& meet);

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
  struct WayFigures {
    double rate = 0;
    double seconds = 0;  // of one exchange
  };
  // Exchanges tensors at once, and counts what that takes.
  absl::StatusOr<Timed> Exchange(std::span<const uint32_t> tensors);
  // Returns the shortest of some exchanges, and gives the median of their times.
  absl::StatusOr<Timed> MeasureRoundTrip(uint32_t tensor, double seconds, double* median);
  absl::StatusOr<WayFigures> MeasureWay(const Tensors& tensors, bool is_up, double seconds,
                                        const Timed& tiny);
  // Exchanges the tensor until its step is the highest of this worker, where that has not risen for
  // a while: the scheduler takes steps that stand still, while some workers exchange and others
  // wait at a barrier, for a stalled job.
  absl::Status KeepStepsRising(uint32_t tensor);
  // Returns Unavailable where another server has taken over the tensors of this one, which is lost.
  absl::Status CheckIsThere(int server) const;
  // Ends a step of these tensors without data, so that their server keeps no reply of theirs.
  absl::Status Forget(std::span<const uint32_t> tensors);
  absl::StatusOr<std::pair<double, double>> Traffic() const;

  bdn_worker* const worker_;
  const int servers_;
  int declared_ = 0;
  std::vector<Tensors> tensors_;  // by server
  struct Known {
    uint64_t elements = 0;
    uint64_t steps = 0;
  };
  std::map<uint32_t, Known> known_;  // by tensor
  uint64_t highest_step_ = 0;
  double rose_ = 0;  // when that has risen
  std::vector<float> buffer_;
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_LINK_METER_H_
