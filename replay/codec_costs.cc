#include "replay/codec_costs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/status.h"
#include "compressors/codec_spec.h"

namespace bdn {
namespace {

constexpr uint64_t kValueBytes = sizeof(float);

// The step at the other end of a link, which does the same to a codec's payload.
CodecStep OtherEnd(CodecStep step) {
  switch (step) {
    case CodecStep::kEncodePush:
      return CodecStep::kEncodeReply;
    case CodecStep::kAddPush:
      return CodecStep::kDecodeReply;
    case CodecStep::kEncodeReply:
      return CodecStep::kEncodePush;
    case CodecStep::kDecodeReply:
      break;
  }
  return CodecStep::kAddPush;
}

bool Encodes(CodecStep step) {
  return step == CodecStep::kEncodePush || step == CodecStep::kEncodeReply;
}

// Returns what a setting is called where it is not said.
std::string CanonicalOf(const std::string& spec, bool all_uncompressed) {
  if (spec.empty()) return all_uncompressed ? "none" : "";
  const auto codec = ParseCodecSpec(spec);
  return codec.ok() ? codec->spec() : "";
}

// Returns the most bytes of a payload.
double MostBytes(const LinkCodec& link, uint64_t value_bytes) {
  return static_cast<double>(
      link.codec->MaxEncodedBytes(value_bytes / kValueBytes, DType::kFloat32));
}

}  // namespace

bool IsUncompressed(uint64_t payload_bytes, uint64_t value_bytes) {
  return payload_bytes >= value_bytes;
}

std::optional<LinearTime> FitLinearTime(const std::vector<std::pair<uint64_t, int64_t>>& pairs) {
  if (pairs.empty()) return std::nullopt;
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [bytes, ns] : pairs) {
    const auto b = static_cast<double>(bytes);
    const auto t = static_cast<double>(ns);
    n += 1;
    x += b;
    y += t;
    xx += b * b;
    xy += b * t;
  }
  const double spread = n * xx - x * x;
  LinearTime line;
  if (spread > 1e-9 * n * xx) {
    line.ns_per_byte = (n * xy - x * y) / spread;
    line.ns = (y - line.ns_per_byte * x) / n;
  }
  if (spread <= 1e-9 * n * xx || line.ns < 0) {
    line = {0, x > 0 ? y / x : 0};
  } else if (line.ns_per_byte < 0) {
    line = {y / n, 0};
  }
  return line;
}

absl::Status CodecCosts::AddFile(std::string_view text) {
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    const auto bad = [number](const std::string& why) {
      return InvalidArgument(
          "line %d of the costs is not one of `bandoneon bench codecs --json`: %s", number, why);
    };
    if (!json.is_object()) return bad("it is no JSON object");
    const auto rate = [&json](const char* name) {
      const auto found = json.find(name);
      return found == json.end() || !found->is_number() ? 0.0 : found->get<double>();
    };
    const auto name = json.find("codec");
    if (name == json.end() || !name->is_string()) return bad("it has no codec");
    const auto codec = ParseCodecSpec(name->get<std::string>());
    if (!codec.ok()) return bad(std::string(codec.status().message()));
    const double elements = rate("elements");
    Measured measured{.value_bytes =
                          static_cast<uint64_t>(std::clamp(elements, 0.0, 1e12)) * kValueBytes};
    for (const auto& [field, to] : {std::pair("encode_gb_s", &measured.encode),
                                    std::pair("encode_ef_gb_s", &measured.encode_feedback),
                                    std::pair("decode_add_gb_s", &measured.decode_add)}) {
      const double gb_s = rate(field);
      if (!(gb_s > 0) || !std::isfinite(gb_s)) return bad(std::string("it has no ") + field);
      *to = 1 / gb_s;
    }
    if (measured.value_bytes == 0) return bad("it has no elements");
    const double most = MostBytes(*codec, measured.value_bytes);
    // Files of older versions lack it.
    const double encoded = rate("encoded_bytes");
    if (encoded > 0 && encoded < most) measured.payload_share = encoded / most;
    measured_[codec->codec->spec()].push_back(measured);
  }
  return absl::OkStatus();
}

void CodecCosts::AddRecorded(const ReplayModel& model) {
  using Pairs = std::vector<std::pair<uint64_t, int64_t>>;
  std::map<std::pair<CodecStep, bool>, Pairs> pairs;
  bool push_uncompressed = true;
  bool pull_uncompressed = true;
  std::set<uint32_t> seen;
  for (const WorkerModel& worker : model.workers) {
    for (const StepProgram& step : worker.steps) {
      for (const ExchangeCosts& costs : step.exchanges) {
        const uint64_t bytes = model.keys[costs.key].value_bytes;
        const bool push = IsUncompressed(costs.push_bytes, bytes);
        const bool pull = IsUncompressed(costs.reply_bytes, bytes);
        push_uncompressed = push_uncompressed && push;
        pull_uncompressed = pull_uncompressed && pull;
        pairs[{CodecStep::kEncodePush, push}].emplace_back(bytes, costs.encode_ns);
        pairs[{CodecStep::kDecodeReply, pull}].emplace_back(bytes, costs.decode_ns);
        if (costs.answer_ns >= 0) continue;
        // Each push has an equal share of the sum at the end of its round.
        const RoundCosts& round = model.rounds[costs.round];
        const auto share = static_cast<int64_t>(model.workers.size());
        pairs[{CodecStep::kAddPush, push}].emplace_back(
            bytes, costs.accept_ns + round.sum_ns / std::max<int64_t>(share, 1));
        if (seen.insert(costs.round).second) {
          pairs[{CodecStep::kEncodeReply, pull}].emplace_back(bytes, round.encode_ns);
        }
      }
    }
  }
  const std::string push_spec = CanonicalOf(model.push_spec, push_uncompressed);
  const std::string pull_spec = CanonicalOf(model.pull_spec, pull_uncompressed);
  for (const auto& [which, of_step] : pairs) {
    const auto& [step, is_uncompressed] = which;
    const LinearTime line = *FitLinearTime(of_step);
    of_job_[which] = line;
    const bool is_push = step == CodecStep::kEncodePush || step == CodecStep::kAddPush;
    const std::string spec = is_uncompressed ? "none" : is_push ? push_spec : pull_spec;
    if (!spec.empty()) recorded_[{step, spec}] = line;
  }
  AddRecordedBytes(model, push_spec, pull_spec);
}

void CodecCosts::AddRecordedBytes(const ReplayModel& model, const std::string& push_spec,
                                  const std::string& pull_spec) {
  for (const bool is_push : {true, false}) {
    const std::string& spec = is_push ? push_spec : pull_spec;
    const auto link = ParseCodecSpec(spec);
    if (spec.empty() || spec == "none" || !link.ok()) continue;
    std::map<uint32_t, double> most;  // by key
    auto& [bytes, of_most] = recorded_bytes_[spec];
    for (const WorkerModel& worker : model.workers) {
      for (const StepProgram& step : worker.steps) {
        for (const ExchangeCosts& costs : step.exchanges) {
          const uint32_t payload = is_push ? costs.push_bytes : costs.reply_bytes;
          const uint64_t values = model.keys[costs.key].value_bytes;
          if (payload == 0 || IsUncompressed(payload, values)) continue;
          const auto [found, is_new] = most.emplace(costs.key, 0);
          if (is_new) found->second = MostBytes(*link, values);
          bytes += payload;
          of_most += found->second;
        }
      }
    }
  }
}

CodecCosts::PayloadShare CodecCosts::PayloadShareOf(const std::string& spec,
                                                    uint64_t value_bytes) const {
  const auto recorded = recorded_bytes_.find(spec);
  if (recorded != recorded_bytes_.end() && recorded->second.second > 0) {
    return {std::min(1.0, recorded->second.first / recorded->second.second), false};
  }
  const auto link = ParseCodecSpec(spec);
  const Measured* const nearest = link.ok() ? NearestMeasurement(*link, value_bytes) : nullptr;
  if (nearest == nullptr) return {};
  return {nearest->payload_share, nearest->payload_share < 1};
}

std::optional<LinearTime> CodecCosts::RecordedOf(CodecStep step, bool is_uncompressed) const {
  const auto found = of_job_.find({step, is_uncompressed});
  if (found == of_job_.end()) return std::nullopt;
  return found->second;
}

const CodecCosts::Measured* CodecCosts::NearestMeasurement(const LinkCodec& link,
                                                           uint64_t value_bytes) const {
  const auto found = measured_.find(link.codec->spec());
  if (found == measured_.end()) return nullptr;
  const auto distance = [&](const Measured& one) {
    return std::abs(std::log(static_cast<double>(one.value_bytes)) -
                    std::log(static_cast<double>(std::max<uint64_t>(value_bytes, 1))));
  };
  return &*std::min_element(
      found->second.begin(), found->second.end(),
      [&](const Measured& a, const Measured& b) { return distance(a) < distance(b); });
}

std::optional<double> CodecCosts::MeasuredTime(CodecStep step, const std::string& spec,
                                               uint64_t value_bytes) const {
  const auto link = ParseCodecSpec(spec);
  if (!link.ok()) return std::nullopt;
  const Measured* const nearest = NearestMeasurement(*link, value_bytes);
  if (nearest == nullptr) return std::nullopt;
  const double encode =
      link->error_feedback || link->delta ? nearest->encode_feedback : nearest->encode;
  return static_cast<double>(value_bytes) * (Encodes(step) ? encode : nearest->decode_add);
}

absl::StatusOr<double> CodecCosts::TimeOf(CodecStep step, const std::string& spec,
                                          uint64_t value_bytes) const {
  for (const CodecStep same : {step, OtherEnd(step)}) {
    const auto found = recorded_.find({same, spec});
    if (found != recorded_.end()) return found->second.At(value_bytes);
  }
  const auto measured = MeasuredTime(step, spec, value_bytes);
  if (measured) return *measured;
  const auto link = ParseCodecSpec(spec);
  const std::string codec = link.ok() ? link->codec->spec() : spec;
  return NotFound(
      "what '%s' costs is not in the recording. Measure it on the machines of the job, and give "
      "the file by --costs:\n  bandoneon bench codecs --codec '%s' --json > costs.jsonl",
      codec, codec);
}

}  // namespace bdn
