#include "tests/reference/wire_reference.h"

#include <cmath>
#include <cstddef>

namespace wire_reference {
namespace {

// `count` bytes from `offset` as one little-endian number.
uint64_t Number(const Bytes& bytes, size_t offset, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i > 0; --i) value = value * 256 + bytes.at(offset + i - 1);
  return value;
}

// IEEE 754 binary32, from its parts.
float Float(uint32_t bits) {
  const bool negative = (bits >> 31) != 0;
  const int exponent = static_cast<int>((bits >> 23) & 0xff);
  const uint32_t fraction = bits & 0x7fffff;
  float value;
  if (exponent == 255) {
    value = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -149);
  } else {
    value = std::ldexp(static_cast<float>(fraction | 0x800000), exponent - 150);
  }
  return negative ? -value : value;
}

std::string Text(const Bytes& bytes, size_t offset, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text.push_back(static_cast<char>(bytes.at(offset + i)));
  return text;
}

bool AllZero(const Bytes& bytes, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (bytes.at(i) != 0) return false;
  }
  return true;
}

}  // namespace

uint32_t Crc32c(const Bytes& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = (crc & 1) != 0;
      crc >>= 1;
      if (low) crc ^= 0x82f63b78u;  // the Castagnoli polynomial, reflected
    }
  }
  return crc ^ 0xffffffffu;
}

std::optional<Header> ReadHeader(const Bytes& bytes) {
  if (bytes.size() != 96) return std::nullopt;
  if (Number(bytes, 0, 4) != 0x464e4442) return std::nullopt;
  if (Number(bytes, 4, 2) != 3) return std::nullopt;
  if (Number(bytes, 6, 2) != 96) return std::nullopt;
  if (Number(bytes, 92, 4) != Crc32c(Bytes(bytes.begin(), bytes.begin() + 92))) return std::nullopt;

  Header header;
  header.type = static_cast<uint8_t>(Number(bytes, 8, 1));
  header.codec = static_cast<uint8_t>(Number(bytes, 9, 1));
  header.flags = static_cast<uint8_t>(Number(bytes, 10, 1));
  header.part = static_cast<uint8_t>(Number(bytes, 11, 1));
  header.sender = static_cast<uint32_t>(Number(bytes, 12, 4));
  header.key = Number(bytes, 16, 8);
  header.step = Number(bytes, 24, 8);
  header.base_step = Number(bytes, 32, 8);
  header.num_elements = Number(bytes, 40, 8);
  const bool is_of_round = header.type == 2 || header.type == 3;
  (is_of_round ? header.saved_step : header.element_offset) = Number(bytes, 48, 8);
  if (header.saved_step != 0 && header.saved_step >= header.step) return std::nullopt;
  header.epoch = static_cast<uint32_t>(Number(bytes, 56, 4));
  header.catalogue_version = static_cast<uint32_t>(Number(bytes, 60, 4));
  header.weight = Float(static_cast<uint32_t>(Number(bytes, 64, 4)));
  header.learning_rate = Float(static_cast<uint32_t>(Number(bytes, 68, 4)));
  header.payload_bytes = static_cast<uint32_t>(Number(bytes, 72, 4));
  header.payload_crc = static_cast<uint32_t>(Number(bytes, 76, 4));
  header.program_steps = static_cast<uint32_t>(Number(bytes, 80, 4));
  const auto priority = static_cast<int64_t>(Number(bytes, 84, 4));
  header.priority = static_cast<int32_t>(priority < 0x80000000 ? priority : priority - 0x100000000);
  header.request = static_cast<uint32_t>(Number(bytes, 88, 4));

  constexpr uint8_t kHello = 1, kPush = 2, kReply = 3, kProbe = 4, kInit = 5, kFetch = 6,
                    kValue = 7, kError = 8, kTransport = 10, kReport = 11, kRebuild = 12;
  if (header.type < 1 || header.type > 12) return std::nullopt;
  constexpr uint8_t kAbsent = 1, kNonFinite = 2, kUnwanted = 4, kUncompressed = 8, kSame = 16;
  const uint8_t beside = header.flags & ~kUncompressed;
  const bool has_legal_flags =
      header.flags == 0 ||
      (header.type == kPush && (beside == 0 || beside == kAbsent || beside == kNonFinite ||
                                beside == kAbsent + kUnwanted)) ||
      (header.type == kReply &&
       (beside == 0 || beside == kAbsent || beside == kNonFinite || beside == kUnwanted)) ||
      (header.type == kValue && header.flags == kSame) ||
      (header.type == kProbe && header.flags == kUnwanted) ||
      (header.type == kFetch && header.flags == kUnwanted && Number(bytes, 11, 1) == 0);
  if (!has_legal_flags) return std::nullopt;
  const bool is_state = header.type == kInit || header.type == kFetch || header.type == kValue;
  const bool may_have_codec = header.type == kPush || header.type == kReply;
  const bool may_have_base = header.type == kReply || header.type == kValue;
  const bool may_have_request = header.type != kHello && header.type != kPush &&
                                header.type != kProbe && header.type != kTransport;
  if (header.codec != 0 && !may_have_codec) return std::nullopt;
  if (header.part > (is_state ? 12 : 0)) return std::nullopt;
  if (header.base_step != 0 && !may_have_base) return std::nullopt;
  if (header.element_offset != 0 && !is_state) return std::nullopt;
  if (header.program_steps != 0 && header.type != kPush) return std::nullopt;
  if (header.priority != 0 && header.type != kPush) return std::nullopt;
  if (header.request != 0 && !may_have_request) return std::nullopt;
  if (!std::isfinite(header.weight) || header.weight < 0) return std::nullopt;
  if (!std::isfinite(header.learning_rate)) return std::nullopt;
  const bool is_short = header.type == kHello || header.type == kTransport;
  const uint32_t most = is_short                                            ? 1024
                        : header.type == kError                             ? 4104
                        : header.type == kReport || header.type == kRebuild ? 4096
                        : header.type == kFetch && header.part != 11        ? 32
                                                                            : 1073741824;
  if (header.payload_bytes > most) return std::nullopt;
  const bool has_no_payload = header.type == kProbe || beside != 0;
  if (has_no_payload && header.payload_bytes != 0) return std::nullopt;
  if (header.type == kFetch && header.part != 11 && header.payload_bytes != 0 &&
      header.payload_bytes != (header.part == 12 ? 24u : 32u)) {
    return std::nullopt;
  }
  if (header.payload_bytes == 0 && header.payload_crc != 0) return std::nullopt;
  return header;
}

std::optional<Hello> ReadHello(const Bytes& bytes) {
  if (bytes.size() < 36) return std::nullopt;
  const size_t job_id_bytes = Number(bytes, 32, 2);
  const size_t token_bytes = Number(bytes, 34, 2);
  if (job_id_bytes > 255 || token_bytes > 255) return std::nullopt;
  if (bytes.size() != 36 + job_id_bytes + token_bytes) return std::nullopt;
  Hello hello;
  hello.node = static_cast<uint32_t>(Number(bytes, 0, 4));
  hello.role = static_cast<uint8_t>(Number(bytes, 4, 1));
  hello.job_id = Text(bytes, 36, job_id_bytes);
  hello.token = Text(bytes, 36 + job_id_bytes, token_bytes);
  if (hello.node == 0 || hello.role > 2) return std::nullopt;
  const bool reserved_is_zero = AllZero(bytes, 5, 32);
  if (!reserved_is_zero) return std::nullopt;
  return hello;
}

std::optional<Error> ReadError(const Bytes& bytes) {
  if (bytes.size() < 8) return std::nullopt;
  const size_t message_bytes = Number(bytes, 4, 4);
  if (message_bytes > 4096 || bytes.size() != 8 + message_bytes) return std::nullopt;
  Error error;
  error.code = static_cast<uint32_t>(Number(bytes, 0, 4));
  error.message = Text(bytes, 8, message_bytes);
  if (error.code < 1 || error.code > 16) return std::nullopt;
  return error;
}

std::optional<std::vector<int32_t>> ReadRanks(const Bytes& bytes) {
  if (bytes.size() < 4) return std::nullopt;
  const uint64_t count = Number(bytes, 0, 4);
  if (bytes.size() != 4 + 4 * count) return std::nullopt;
  std::vector<int32_t> ranks;
  for (uint64_t i = 0; i < count; ++i) {
    const auto rank = static_cast<int64_t>(Number(bytes, 4 + 4 * i, 4));
    if (rank > 0x7fffffff) return std::nullopt;  // below 0 in two's complement
    if (!ranks.empty() && rank <= ranks.back()) return std::nullopt;
    ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

std::optional<Counters> ReadCounters(const Bytes& bytes) {
  if (bytes.size() != 16 || !AllZero(bytes, 12, 16)) return std::nullopt;
  const Counters counters{Number(bytes, 0, 8), Float(static_cast<uint32_t>(Number(bytes, 8, 4)))};
  if (!std::isfinite(counters.previous_learning_rate)) return std::nullopt;
  if (counters.updates > uint64_t{1} << 62) return std::nullopt;
  return counters;
}

constexpr uint64_t kMostStep = uint64_t{1} << 62;

std::optional<Report> ReadReport(const Bytes& bytes) {
  if (bytes.size() < 72) return std::nullopt;
  for (size_t at = 0; at < 64; at += 8) {
    if (Number(bytes, at, 8) > kMostStep) return std::nullopt;
  }
  Report report;
  report.done = Number(bytes, 0, 8);
  report.complete_from = Number(bytes, 8, 8);
  report.open = Number(bytes, 16, 8);
  report.uncompressed_from = Number(bytes, 24, 8);
  report.snapshots = {Number(bytes, 32, 8), Number(bytes, 40, 8)};
  report.keeps_value = Number(bytes, 48, 8);
  report.newest_snapshot = Number(bytes, 56, 8);
  report.flags = static_cast<uint32_t>(Number(bytes, 64, 4));
  const uint64_t count = Number(bytes, 68, 4);
  if (report.flags > 63 || count > 256 || bytes.size() != 72 + 12 * count) return std::nullopt;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t after = Number(bytes, 72 + 12 * i, 8);
    const auto request = static_cast<uint32_t>(Number(bytes, 80 + 12 * i, 4));
    if (after > kMostStep || request == 0) return std::nullopt;
    if (i > 0 && (after <= report.inits.back().first || request <= report.inits.back().second)) {
      return std::nullopt;
    }
    report.inits.emplace_back(after, request);
  }
  return report;
}

std::optional<Order> ReadOrder(const Bytes& bytes) {
  if (bytes.size() != 24) return std::nullopt;
  const Order order{Number(bytes, 0, 8), Number(bytes, 8, 8), Number(bytes, 16, 8)};
  if (order.what > 3 || order.start > order.target) return std::nullopt;
  if (order.target > kMostStep) return std::nullopt;
  return order;
}

std::optional<Given> ReadGiven(const Bytes& bytes) {
  if (bytes.size() < 40) return std::nullopt;
  const Given given{.step = Number(bytes, 0, 8),
                    .payload_step = Number(bytes, 8, 8),
                    .base_step = Number(bytes, 16, 8),
                    .flags = Number(bytes, 24, 1),
                    .codec = Number(bytes, 25, 1),
                    .refusal = Number(bytes, 26, 1),
                    .payload_bytes = Number(bytes, 32, 4),
                    .replica_bytes = Number(bytes, 36, 4)};
  uint64_t replica_at = 40 + given.payload_bytes;
  while (replica_at % 4 != 0) ++replica_at;
  if (bytes.size() != replica_at + given.replica_bytes) return std::nullopt;
  if (given.refusal > 1 || !AllZero(bytes, 27, 32)) return std::nullopt;
  if (!AllZero(bytes, 40 + given.payload_bytes, replica_at)) return std::nullopt;
  if (given.step > kMostStep || given.payload_step > given.step) return std::nullopt;
  if (given.base_step > given.payload_step) return std::nullopt;
  const bool is_empty = given.payload_bytes == 0 && given.replica_bytes == 0;
  if (given.payload_step == 0 && !is_empty) return std::nullopt;
  return given;
}

std::optional<FabricHandshake> ReadFabricHandshake(const Bytes& bytes) {
  if (bytes.size() < 64 || Number(bytes, 4, 4) != 1) return std::nullopt;
  FabricHandshake said;
  said.kind = static_cast<uint32_t>(Number(bytes, 0, 4));
  said.session = Number(bytes, 8, 8);
  const uint64_t text_bytes = Number(bytes, 60, 2);
  const uint64_t address_bytes = Number(bytes, 62, 2);
  if (said.kind < 1 || said.kind > 3 || said.session == 0) return std::nullopt;
  if (bytes.size() != 64 + text_bytes + address_bytes) return std::nullopt;
  said.text = Text(bytes, 64, text_bytes);
  said.address = Text(bytes, 64 + text_bytes, address_bytes);
  if (said.kind == 3) {
    const bool is_plain = AllZero(bytes, 16, 60) && address_bytes == 0 && text_bytes <= 512;
    return is_plain ? std::optional(said) : std::nullopt;
  }
  said.token = Number(bytes, 16, 8);
  said.number = static_cast<uint32_t>(Number(bytes, 24, 4));
  said.message_bytes = static_cast<uint32_t>(Number(bytes, 28, 4));
  said.key = Number(bytes, 32, 8);
  said.base = Number(bytes, 40, 8);
  said.block_bytes = static_cast<uint32_t>(Number(bytes, 48, 4));
  said.num_blocks = static_cast<uint32_t>(Number(bytes, 52, 4));
  said.immediate = static_cast<uint32_t>(Number(bytes, 56, 4));
  bool is_power = false;
  for (uint32_t power = 4096; power <= 1048576; power *= 2) is_power |= said.block_bytes == power;
  if (said.token == 0 || said.message_bytes < 128 || !is_power) return std::nullopt;
  if (said.num_blocks < 1 || said.num_blocks > 16384) return std::nullopt;
  if (said.immediate % 16384 != 0 || said.number != said.immediate / 16384) return std::nullopt;
  const uint64_t window = uint64_t{said.block_bytes} * said.num_blocks;
  if (said.base > UINT64_MAX - window) return std::nullopt;
  if (text_bytes < 1 || text_bytes > 64 || address_bytes < 1 || address_bytes > 256) {
    return std::nullopt;
  }
  return said;
}

std::optional<FabricPrefix> ReadFabricPrefix(const Bytes& bytes) {
  if (bytes.size() < 32 || Text(bytes, 0, 4) != "BDFM") return std::nullopt;
  FabricPrefix prefix;
  prefix.kind = static_cast<uint32_t>(Number(bytes, 4, 4));
  prefix.number = static_cast<uint32_t>(Number(bytes, 8, 4));
  prefix.count = static_cast<uint32_t>(Number(bytes, 12, 4));
  prefix.token = Number(bytes, 16, 8);
  prefix.payload_bytes = Number(bytes, 24, 8);
  if (prefix.kind < 1 || prefix.kind > 3) return std::nullopt;
  if ((prefix.count != 0) != (prefix.kind == 2)) return std::nullopt;
  if (prefix.payload_bytes != 0 && prefix.kind != 1) return std::nullopt;
  return prefix;
}

}  // namespace wire_reference
