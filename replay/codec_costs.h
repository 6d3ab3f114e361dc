#ifndef BANDONEON_REPLAY_CODEC_COSTS_H_
#define BANDONEON_REPLAY_CODEC_COSTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "compressors/codec_spec.h"
#include "replay/replay_model.h"

namespace bdn {

// A time that grows with bytes: a + b bytes, both at least 0.
struct LinearTime {
  double ns = 0;
  double ns_per_byte = 0;

  double At(uint64_t bytes) const { return ns + ns_per_byte * static_cast<double>(bytes); }
};
// Returns the line of least squares through pairs of bytes and ns; nothing without pairs. Of one
// size alone all is put down to its bytes.
std::optional<LinearTime> FitLinearTime(const std::vector<std::pair<uint64_t, int64_t>>& pairs);

// The operations on a key whose time depends on a codec.
enum class CodecStep : uint8_t {
  kEncodePush,   // at a worker
  kAddPush,      // at the server
  kEncodeReply,  // at the server
  kDecodeReply,  // at a worker
};
inline constexpr size_t kNumCodecSteps = 4;

// The costs of codecs, as recorded, and as measured by `bandoneon bench codecs --json`.
class CodecCosts {
 public:
  // Adds what a file of measurements says. InvalidArgument where a line is none.
  absl::Status AddFile(std::string_view text);
  // Adds what the recorded exchanges took, whose codec the settings say, or their bytes: `none`.
  void AddRecorded(const ReplayModel& model);

  // Returns the ns that a step takes for a key of so many bytes of values, by a canonical spec.
  // NotFound names the command that measures it.
  absl::StatusOr<double> TimeOf(CodecStep step, const std::string& spec,
                                uint64_t value_bytes) const;
  // Returns the bytes of a payload for so many bytes of values, by a canonical spec other than
  // `none`, as a share of the most that its codec may need: as recorded, else as on the data of the
  // measurement, else 1.
  struct PayloadShare {
    double share = 1;
    bool is_of_measurement = false;
  };
  PayloadShare PayloadShareOf(const std::string& spec, uint64_t value_bytes) const;
  // Returns the recorded line of a step of the job, by whether the key went uncompressed.
  std::optional<LinearTime> RecordedOf(CodecStep step, bool is_uncompressed) const;

 private:
  struct Measured {
    uint64_t value_bytes = 0;
    // ns a byte of values
    double encode = 0;
    double encode_feedback = 0;
    double decode_add = 0;
    double payload_share = 1;
  };
  void AddRecordedBytes(const ReplayModel& model, const std::string& push_spec,
                        const std::string& pull_spec);
  // Returns the measurement of the spec's codec whose size is nearest by ratio; null without one.
  const Measured* NearestMeasurement(const LinkCodec& link, uint64_t value_bytes) const;
  std::optional<double> MeasuredTime(CodecStep step, const std::string& spec,
                                     uint64_t value_bytes) const;

  std::map<std::string, std::vector<Measured>> measured_;  // by the codec's canonical spec
  std::map<std::pair<CodecStep, std::string>, LinearTime> recorded_;  // by the link's spec
  std::map<std::pair<CodecStep, bool>, LinearTime> of_job_;
  // By the link's spec: the bytes of all its recorded payloads, and the most that they might have.
  std::map<std::string, std::pair<double, double>> recorded_bytes_;
};

// Returns whether a key's payloads had as many bytes as its values, as `none` makes them.
bool IsUncompressed(uint64_t payload_bytes, uint64_t value_bytes);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_CODEC_COSTS_H_
