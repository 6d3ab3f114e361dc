#include "common/wire/message.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "common/wire/frame.h"

namespace bdn {
namespace {

// The layout of a hello: fixed fields, then the two strings.
enum HelloOffset : size_t {
  kNodeAt = 0,
  kRoleAt = 4,
  kHelloReservedAt = 5,  // 3 bytes
  kIncarnationAt = 8,
  kHelloMoreReservedAt = 12,  // 12 bytes
  kCapabilitiesAt = 24,
  kJobIdBytesAt = 32,
  kTokenBytesAt = 34,
  kHelloFixedBytes = 36,
};
constexpr size_t kMaxStringBytes = 255;

// The layout of an error: code, length of the message, message.
enum ErrorOffset : size_t { kCodeAt = 0, kMessageBytesAt = 4, kErrorFixedBytes = 8 };
constexpr size_t kMaxMessageBytes = 4096;
constexpr uint32_t kLargestCode = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);

// The layout of ranks: their number, then each.
constexpr size_t kRanksFixedBytes = 4;

// The layout of counters.
enum CountersOffset : size_t {
  kUpdatesAt = 0,
  kPreviousRateAt = 8,
  kCountersReservedAt = 12,
  kCountersBytes = 16,
};

void StoreText(MutableByteSpan out, size_t offset, std::string_view text) {
  if (!text.empty()) std::memcpy(out.data() + offset, text.data(), text.size());
}

std::string LoadText(ByteSpan bytes, size_t offset, size_t size) {
  return std::string(reinterpret_cast<const char*>(bytes.data()) + offset, size);
}

// Cuts a string that is too long so that its length fits the field and is still too long: the far
// end must refuse it, and not take half a token.
std::string_view CutJustTooLong(const std::string& text) {
  return std::string_view(text).substr(0, kMaxStringBytes + 1);
}

// Reserved bytes must be 0, so that a later version may give them a meaning.
absl::Status CheckHelloReserved(ByteSpan bytes, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (bytes[i] != std::byte{0}) return InvalidArgument("hello: reserved byte %d is not 0", i);
  }
  return absl::OkStatus();
}

absl::Status CheckHelloFields(const Hello& hello) {
  if (hello.node == 0) return InvalidArgument("hello: node is 0, which is nobody");
  if (hello.incarnation != 0) {
    return InvalidArgument("hello: incarnation is %d, must be 0", hello.incarnation);
  }
  if (hello.capabilities != 0) {
    return InvalidArgument("hello: capabilities are 0x%x, must be 0", hello.capabilities);
  }
  return absl::OkStatus();
}

}  // namespace

Buffer EncodeHello(const Hello& hello) {
  const std::string_view job_id = CutJustTooLong(hello.job_id);
  const std::string_view token = CutJustTooLong(hello.token);
  Buffer buffer = Buffer::Allocate(kHelloFixedBytes + job_id.size() + token.size());
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, kNodeAt, hello.node);
  // The role, and three reserved bytes of zero.
  StoreLittle(out, kRoleAt, uint32_t{static_cast<uint8_t>(hello.role)});
  StoreLittle(out, kIncarnationAt, hello.incarnation);
  StoreLittle(out, kHelloMoreReservedAt, uint32_t{0});
  StoreLittle(out, kHelloMoreReservedAt + sizeof(uint32_t), uint64_t{0});
  StoreLittle(out, kCapabilitiesAt, hello.capabilities);
  StoreLittle(out, kJobIdBytesAt, static_cast<uint16_t>(job_id.size()));
  StoreLittle(out, kTokenBytesAt, static_cast<uint16_t>(token.size()));
  StoreText(out, kHelloFixedBytes, job_id);
  StoreText(out, kHelloFixedBytes + job_id.size(), token);
  return buffer;
}

absl::StatusOr<Hello> DecodeHello(ByteSpan bytes) {
  if (bytes.size() < kHelloFixedBytes) {
    return InvalidArgument("hello: %d bytes, at least %d", bytes.size(), size_t{kHelloFixedBytes});
  }
  const size_t job_id_bytes = LoadLittle<uint16_t>(bytes, kJobIdBytesAt);
  const size_t token_bytes = LoadLittle<uint16_t>(bytes, kTokenBytesAt);
  if (job_id_bytes > kMaxStringBytes) {
    return InvalidArgument("hello: job_id of %d bytes, at most %d", job_id_bytes, kMaxStringBytes);
  }
  if (token_bytes > kMaxStringBytes) {
    return InvalidArgument("hello: token of %d bytes, at most %d", token_bytes, kMaxStringBytes);
  }
  // Compared exactly: bytes behind the strings would be data that nobody checks.
  if (const size_t expected = kHelloFixedBytes + job_id_bytes + token_bytes;
      bytes.size() != expected) {
    return InvalidArgument("hello: %d bytes, expected %d", bytes.size(), expected);
  }
  const auto role = LoadLittle<uint8_t>(bytes, kRoleAt);
  if (role > static_cast<uint8_t>(Role::kWorker)) {
    return InvalidArgument("hello: unknown role %d", role);
  }
  BDN_RETURN_IF_ERROR(CheckHelloReserved(bytes, kHelloReservedAt, kIncarnationAt));
  BDN_RETURN_IF_ERROR(CheckHelloReserved(bytes, kHelloMoreReservedAt, kCapabilitiesAt));

  Hello hello;
  hello.node = LoadLittle<NodeId>(bytes, kNodeAt);
  hello.role = static_cast<Role>(role);
  hello.incarnation = LoadLittle<uint32_t>(bytes, kIncarnationAt);
  hello.capabilities = LoadLittle<uint64_t>(bytes, kCapabilitiesAt);
  hello.job_id = LoadText(bytes, kHelloFixedBytes, job_id_bytes);
  hello.token = LoadText(bytes, kHelloFixedBytes + job_id_bytes, token_bytes);
  BDN_RETURN_IF_ERROR(CheckHelloFields(hello));
  return hello;
}

Buffer EncodeError(const absl::Status& status) {
  const std::string_view message(status.message().data(),
                                 std::min(status.message().size(), kMaxMessageBytes));
  Buffer buffer = Buffer::Allocate(kErrorFixedBytes + message.size());
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, kCodeAt, static_cast<uint32_t>(status.code()));
  StoreLittle(out, kMessageBytesAt, static_cast<uint32_t>(message.size()));
  StoreText(out, kErrorFixedBytes, message);
  return buffer;
}

absl::Status DecodeError(ByteSpan bytes) {
  if (bytes.size() < kErrorFixedBytes) {
    return InvalidArgument("error frame: %d bytes, at least %d", bytes.size(),
                           size_t{kErrorFixedBytes});
  }
  const auto code = LoadLittle<uint32_t>(bytes, kCodeAt);
  const size_t message_bytes = LoadLittle<uint32_t>(bytes, kMessageBytesAt);
  // Code 0 is OK, which is no error.
  if (code == 0 || code > kLargestCode) {
    return InvalidArgument("error frame: unknown code %d", code);
  }
  if (message_bytes > kMaxMessageBytes) {
    return InvalidArgument("error frame: message of %d bytes, at most %d", message_bytes,
                           kMaxMessageBytes);
  }
  if (bytes.size() != kErrorFixedBytes + message_bytes) {
    return InvalidArgument("error frame: %d bytes, expected %d", bytes.size(),
                           kErrorFixedBytes + message_bytes);
  }
  return absl::Status(static_cast<absl::StatusCode>(code),
                      LoadText(bytes, kErrorFixedBytes, message_bytes));
}

Buffer EncodeRanks(const std::vector<Rank>& ranks) {
  Buffer buffer = Buffer::Allocate(kRanksFixedBytes + ranks.size() * sizeof(Rank));
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, 0, static_cast<uint32_t>(ranks.size()));
  for (size_t i = 0; i < ranks.size(); ++i) {
    StoreLittle(out, kRanksFixedBytes + i * sizeof(Rank), ranks[i]);
  }
  return buffer;
}

absl::StatusOr<std::vector<Rank>> DecodeRanks(ByteSpan bytes) {
  if (bytes.size() < kRanksFixedBytes) {
    return InvalidArgument("waiting frame: %d bytes, at least %d", bytes.size(), kRanksFixedBytes);
  }
  const uint64_t count = LoadLittle<uint32_t>(bytes);
  // The payload's own size bounds the count, and so the allocation.
  if (const uint64_t expected = kRanksFixedBytes + count * sizeof(Rank); bytes.size() != expected) {
    return InvalidArgument("waiting frame: %d bytes, expected %d for %d ranks", bytes.size(),
                           expected, count);
  }
  std::vector<Rank> ranks(count);
  // Rising ranks are distinct, so none is counted twice.
  Rank last = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i] = LoadLittle<Rank>(bytes, kRanksFixedBytes + i * sizeof(Rank));
    if (ranks[i] <= last) {
      return InvalidArgument("waiting frame: rank %d after %d, must rise from 0", ranks[i], last);
    }
    last = ranks[i];
  }
  return ranks;
}

Buffer EncodeFloats(std::span<const float> values) {
  Buffer buffer = Buffer::Allocate(values.size_bytes());
  const MutableByteSpan out = buffer.mutable_span();
  for (size_t i = 0; i < values.size(); ++i) StoreLittle(out, i * sizeof(float), values[i]);
  return buffer;
}

void DecodeFloats(ByteSpan bytes, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadLittle<float>(bytes, i * sizeof(float));
  }
}

Buffer EncodeCounters(const StateCounters& counters) {
  Buffer buffer = Buffer::Allocate(kCountersBytes);
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, kUpdatesAt, counters.updates);
  StoreLittle(out, kPreviousRateAt, counters.previous_learning_rate);
  StoreLittle(out, kCountersReservedAt, uint32_t{0});
  return buffer;
}

absl::StatusOr<StateCounters> DecodeCounters(ByteSpan bytes) {
  if (bytes.size() != kCountersBytes) {
    return InvalidArgument("counters: %d bytes, expected %d", bytes.size(), kCountersBytes);
  }
  const StateCounters counters{LoadLittle<uint64_t>(bytes, kUpdatesAt),
                               LoadLittle<float>(bytes, kPreviousRateAt)};
  // Counts are added to later: a larger one could overflow.
  if (counters.updates > kMaxStep) {
    return InvalidArgument("counters: %d updates, at most %d", counters.updates, kMaxStep);
  }
  if (!std::isfinite(counters.previous_learning_rate)) {
    return InvalidArgument("counters: learning rate %g", counters.previous_learning_rate);
  }
  if (LoadLittle<uint32_t>(bytes, kCountersReservedAt) != 0) {
    return InvalidArgument("counters: reserved is not 0");
  }
  return counters;
}

// ---- positions

namespace {
constexpr size_t kPositionBytes = 16;
constexpr size_t kPositionStepAt = 0;
constexpr size_t kPositionFlagsAt = 8;
}  // namespace

Buffer EncodePosition(const KeyPosition& position) {
  Buffer buffer = Buffer::Allocate(kPositionBytes);
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle<uint64_t>(out, kPositionStepAt, position.step);
  StoreLittle<uint64_t>(out, kPositionFlagsAt, position.is_uncompressed ? 1 : 0);
  return buffer;
}

absl::StatusOr<KeyPosition> DecodePosition(ByteSpan bytes) {
  if (bytes.size() != kPositionBytes) {
    return InvalidArgument("position: %d bytes, expected %d", bytes.size(), kPositionBytes);
  }
  const auto step = LoadLittle<uint64_t>(bytes, kPositionStepAt);
  const auto flags = LoadLittle<uint64_t>(bytes, kPositionFlagsAt);
  if (step > kMaxStep) return InvalidArgument("position: step %d, at most %d", step, kMaxStep);
  if (flags > 1) return InvalidArgument("position: flags %d, at most 1", flags);
  return KeyPosition{step, flags == 1};
}

// ---- rebuilding

namespace {

// The layout of a report: fixed fields, then the inits.
enum ReportOffset : size_t {
  kDoneAt = 0,
  kCompleteFromAt = 8,
  kOpenAt = 16,
  kUncompressedFromAt = 24,
  kSnapshotsAt = 32,  // two of 8 bytes
  kKeepsValueAt = 48,
  kNewestSnapshotAt = 56,
  kReportFlagsAt = 64,
  kNumInitsAt = 68,
  kReportFixedBytes = 72,
};
constexpr size_t kInitBytes = 12;
constexpr uint32_t kRootFlag = 1;
constexpr uint32_t kBrokenFlag = 2;
constexpr uint32_t kRetiredFlag = 4;
constexpr uint32_t kRedoneFlag = 8;
constexpr uint32_t kNeedsSnapshotFlag = 16;
constexpr uint32_t kHasReplyFlag = 32;
static_assert(kReportFixedBytes + kMostLoggedInits * kInitBytes <= kMaxReportBytes);

// The layout of an order.
enum OrderOffset : size_t { kWhatAt = 0, kStartAt = 8, kTargetAt = 16, kOrderBytes = 24 };

// The layout of a given reply: fixed fields, then the payload, padded with zeros to a multiple of
// four bytes, then the replica.
enum GivenOffset : size_t {
  kGivenStepAt = 0,
  kPayloadStepAt = 8,
  kGivenBaseStepAt = 16,
  kGivenFlagsAt = 24,
  kGivenCodecAt = 25,
  kRefusalAt = 26,
  kGivenReservedAt = 27,  // 5 bytes
  kGivenPayloadBytesAt = 32,
  kReplicaBytesAt = 36,
  kGivenFixedBytes = 40,
};

static_assert(kGivenFixedBytes + 3 <= kGivenReplyRoom);

size_t PaddedToFour(size_t bytes) { return (bytes + 3) / 4 * 4; }

absl::StatusOr<Step> LoadStep(ByteSpan bytes, size_t offset, const char* field) {
  const auto step = LoadLittle<uint64_t>(bytes, offset);
  if (step > kMaxStep) return InvalidArgument("%s: step %d is over %d", field, step, kMaxStep);
  return step;
}

}  // namespace

Buffer EncodeReport(const KeyReport& report) {
  Buffer buffer = Buffer::Allocate(kReportFixedBytes + report.inits.size() * kInitBytes);
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle<uint64_t>(out, kDoneAt, report.done);
  StoreLittle<uint64_t>(out, kCompleteFromAt, report.complete_from);
  StoreLittle<uint64_t>(out, kOpenAt, report.open);
  StoreLittle<uint64_t>(out, kUncompressedFromAt, report.uncompressed_from);
  StoreLittle<uint64_t>(out, kSnapshotsAt, report.snapshots[0]);
  StoreLittle<uint64_t>(out, kSnapshotsAt + 8, report.snapshots[1]);
  StoreLittle<uint64_t>(out, kKeepsValueAt, report.keeps_value);
  StoreLittle<uint64_t>(out, kNewestSnapshotAt, report.newest_snapshot);
  const uint32_t flags =
      (report.is_root ? kRootFlag : 0) | (report.is_broken ? kBrokenFlag : 0) |
      (report.is_retired ? kRetiredFlag : 0) | (report.is_redone ? kRedoneFlag : 0) |
      (report.needs_snapshot ? kNeedsSnapshotFlag : 0) | (report.has_reply ? kHasReplyFlag : 0);
  StoreLittle<uint32_t>(out, kReportFlagsAt, flags);
  StoreLittle<uint32_t>(out, kNumInitsAt, static_cast<uint32_t>(report.inits.size()));
  size_t at = kReportFixedBytes;
  for (const LoggedInit& init : report.inits) {
    StoreLittle<uint64_t>(out, at, init.after);
    StoreLittle<uint32_t>(out, at + 8, init.request);
    at += kInitBytes;
  }
  return buffer;
}

absl::StatusOr<KeyReport> DecodeReport(ByteSpan bytes) {
  if (bytes.size() < kReportFixedBytes) {
    return InvalidArgument("report: %d bytes, at least %d", bytes.size(), kReportFixedBytes);
  }
  KeyReport report;
  BDN_ASSIGN_OR_RETURN(report.done, LoadStep(bytes, kDoneAt, "report: done"));
  BDN_ASSIGN_OR_RETURN(report.complete_from,
                       LoadStep(bytes, kCompleteFromAt, "report: complete_from"));
  BDN_ASSIGN_OR_RETURN(report.open, LoadStep(bytes, kOpenAt, "report: open"));
  BDN_ASSIGN_OR_RETURN(report.uncompressed_from,
                       LoadStep(bytes, kUncompressedFromAt, "report: uncompressed_from"));
  for (size_t i = 0; i < 2; ++i) {
    BDN_ASSIGN_OR_RETURN(report.snapshots[i],
                         LoadStep(bytes, kSnapshotsAt + 8 * i, "report: snapshot"));
  }
  BDN_ASSIGN_OR_RETURN(report.keeps_value, LoadStep(bytes, kKeepsValueAt, "report: keeps_value"));
  BDN_ASSIGN_OR_RETURN(report.newest_snapshot,
                       LoadStep(bytes, kNewestSnapshotAt, "report: newest_snapshot"));
  const auto flags = LoadLittle<uint32_t>(bytes, kReportFlagsAt);
  if (flags >= 2 * kHasReplyFlag) {
    return InvalidArgument("report: unknown flags 0x%x", flags);
  }
  report.is_root = (flags & kRootFlag) != 0;
  report.is_broken = (flags & kBrokenFlag) != 0;
  report.is_retired = (flags & kRetiredFlag) != 0;
  report.is_redone = (flags & kRedoneFlag) != 0;
  report.needs_snapshot = (flags & kNeedsSnapshotFlag) != 0;
  report.has_reply = (flags & kHasReplyFlag) != 0;
  const auto num_inits = LoadLittle<uint32_t>(bytes, kNumInitsAt);
  if (num_inits > kMostLoggedInits || bytes.size() != kReportFixedBytes + num_inits * kInitBytes) {
    return InvalidArgument("report: %d bytes for %d inits", bytes.size(), num_inits);
  }
  for (size_t i = 0; i < num_inits; ++i) {
    const size_t at = kReportFixedBytes + i * kInitBytes;
    LoggedInit init{.request = LoadLittle<uint32_t>(bytes, at + 8)};
    BDN_ASSIGN_OR_RETURN(init.after, LoadStep(bytes, at, "report: init"));
    const bool rises = report.inits.empty() || (init.after > report.inits.back().after &&
                                                init.request > report.inits.back().request);
    if (!rises || init.request == 0) {
      return InvalidArgument("report: init %d after step %d is not in order", init.request,
                             init.after);
    }
    report.inits.push_back(init);
  }
  return report;
}

Buffer EncodeOrder(const RebuildOrder& order) {
  Buffer buffer = Buffer::Allocate(kOrderBytes);
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle<uint64_t>(out, kWhatAt, static_cast<uint64_t>(order.what));
  StoreLittle<uint64_t>(out, kStartAt, order.start);
  StoreLittle<uint64_t>(out, kTargetAt, order.target);
  return buffer;
}

absl::StatusOr<RebuildOrder> DecodeOrder(ByteSpan bytes) {
  if (bytes.size() != kOrderBytes) {
    return InvalidArgument("rebuild: %d bytes, expected %d", bytes.size(), kOrderBytes);
  }
  const auto what = LoadLittle<uint64_t>(bytes, kWhatAt);
  if (what > static_cast<uint64_t>(RebuildOrder::What::kGive)) {
    return InvalidArgument("rebuild: unknown order %d", what);
  }
  RebuildOrder order{.what = static_cast<RebuildOrder::What>(what)};
  BDN_ASSIGN_OR_RETURN(order.start, LoadStep(bytes, kStartAt, "rebuild: start"));
  BDN_ASSIGN_OR_RETURN(order.target, LoadStep(bytes, kTargetAt, "rebuild: target"));
  if (order.start > order.target) {
    return InvalidArgument("rebuild: from step %d to step %d", order.start, order.target);
  }
  return order;
}

Buffer EncodeGivenReply(const GivenReply& reply) {
  const size_t replica_at = kGivenFixedBytes + PaddedToFour(reply.payload.size());
  Buffer buffer = Buffer::Allocate(replica_at + reply.replica.size());
  const MutableByteSpan out = buffer.mutable_span();
  std::memset(out.data(), 0, replica_at);
  StoreLittle<uint64_t>(out, kGivenStepAt, reply.step);
  StoreLittle<uint64_t>(out, kPayloadStepAt, reply.payload_step);
  StoreLittle<uint64_t>(out, kGivenBaseStepAt, reply.base_step);
  StoreLittle<uint8_t>(out, kGivenFlagsAt, reply.flags);
  StoreLittle<uint8_t>(out, kGivenCodecAt, reply.codec);
  StoreLittle<uint8_t>(out, kRefusalAt, reply.is_refusal ? 1 : 0);
  StoreLittle<uint32_t>(out, kGivenPayloadBytesAt, static_cast<uint32_t>(reply.payload.size()));
  StoreLittle<uint32_t>(out, kReplicaBytesAt, static_cast<uint32_t>(reply.replica.size()));
  const auto put = [&](size_t at, ByteSpan bytes) {
    if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
  };
  put(kGivenFixedBytes, reply.payload);
  put(replica_at, reply.replica);
  return buffer;
}

absl::StatusOr<GivenReply> DecodeGivenReply(ByteSpan bytes) {
  if (bytes.size() < kGivenFixedBytes) {
    return InvalidArgument("given reply: %d bytes, at least %d", bytes.size(), kGivenFixedBytes);
  }
  GivenReply reply;
  BDN_ASSIGN_OR_RETURN(reply.step, LoadStep(bytes, kGivenStepAt, "given reply: step"));
  BDN_ASSIGN_OR_RETURN(reply.payload_step,
                       LoadStep(bytes, kPayloadStepAt, "given reply: payload_step"));
  BDN_ASSIGN_OR_RETURN(reply.base_step,
                       LoadStep(bytes, kGivenBaseStepAt, "given reply: base_step"));
  reply.flags = LoadLittle<uint8_t>(bytes, kGivenFlagsAt);
  reply.codec = LoadLittle<uint8_t>(bytes, kGivenCodecAt);
  const auto refusal = LoadLittle<uint8_t>(bytes, kRefusalAt);
  reply.is_refusal = refusal == 1;
  const auto payload_bytes = LoadLittle<uint32_t>(bytes, kGivenPayloadBytesAt);
  const auto replica_bytes = LoadLittle<uint32_t>(bytes, kReplicaBytesAt);
  const size_t replica_at = kGivenFixedBytes + PaddedToFour(payload_bytes);
  if (bytes.size() != replica_at + replica_bytes) {
    return InvalidArgument("given reply: %d bytes, expected %d", bytes.size(),
                           replica_at + replica_bytes);
  }
  bool is_zero = refusal <= 1;
  for (size_t i = kGivenReservedAt; i < kGivenPayloadBytesAt; ++i) {
    is_zero = is_zero && bytes[i] == std::byte{0};
  }
  for (size_t i = kGivenFixedBytes + payload_bytes; i < replica_at; ++i) {
    is_zero = is_zero && bytes[i] == std::byte{0};
  }
  if (!is_zero) return InvalidArgument("given reply: reserved bytes are not 0");
  const bool is_ordered = reply.base_step <= reply.payload_step && reply.payload_step <= reply.step;
  if (!is_ordered || (reply.payload_step == 0 && payload_bytes + replica_bytes > 0)) {
    return InvalidArgument("given reply: step %d, with a payload of step %d on step %d", reply.step,
                           reply.payload_step, reply.base_step);
  }
  reply.payload = bytes.subspan(kGivenFixedBytes, payload_bytes);
  reply.replica = bytes.subspan(replica_at, replica_bytes);
  return reply;
}

}  // namespace bdn
