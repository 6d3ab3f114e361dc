#include "scheduler/journal_format.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/crc32c.h"
#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kMagic = "bdn-jrnl";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytes = 28;       // of the header in front of the job's id
constexpr size_t kRecordHeadBytes = 9;  // of a record in front of its payload
constexpr uint8_t kMarkType = 0;
constexpr uint8_t kFirstOfAppend = 0x80;
// The most bytes of which checksums are computed in search of a record behind a damaged one: less
// than a second. Text and numbers hardly ever look like the head of a record, so a torn append of
// them ends the search far below it.
constexpr size_t kMostSearchedBytes = size_t{1} << 30;
constexpr const char* kBeginAnew =
    "restore the directory from a copy, or remove it to begin the job anew";

ByteSpan Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

template <typename Number>
void Add(Number number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void AddRecord(uint8_t type, std::string_view payload, std::string* out) {
  Add(static_cast<uint32_t>(payload.size()), out);
  const size_t at = out->size();
  Add(uint32_t{0}, out);
  Add(type, out);
  out->append(payload);
  const uint32_t crc = Crc32c(Bytes(*out).subspan(at + sizeof(crc)));
  StoreLittle(std::as_writable_bytes(std::span(*out)), at, crc);
}

// Returns the length of the payload of the whole record at the offset, or nothing where none is.
// Adds the number of bytes that it looked at to *searched.
std::optional<size_t> WholeRecordAt(ByteSpan file, size_t at, size_t* searched) {
  if (file.size() - at < kRecordHeadBytes) return std::nullopt;
  const size_t length = LoadLittle<uint32_t>(file, at);
  if (length > kMostRecordBytes || length > file.size() - at - kRecordHeadBytes) {
    return std::nullopt;
  }
  *searched += 1 + length;
  if (LoadLittle<uint32_t>(file, at + 4) != Crc32c(file.subspan(at + 8, 1 + length))) {
    return std::nullopt;
  }
  return length;
}

// Returns OK if the bytes from the offset on can be the remainder of the last append: no later
// append begins behind them. The end of the damaged record is not known, so a later one may begin
// at every offset behind its head.
absl::Status CheckRemainder(ByteSpan file, size_t at) {
  size_t searched = 0;
  for (size_t next = at + kRecordHeadBytes; next + kRecordHeadBytes <= file.size(); ++next) {
    if ((LoadLittle<uint8_t>(file, next + 8) & kFirstOfAppend) == 0) continue;
    if (WholeRecordAt(file, next, &searched).has_value()) {
      return DataLoss("the record at offset %d is damaged, and a later one at offset %d is not: %s",
                      at, next, kBeginAnew);
    }
    if (searched > kMostSearchedBytes) {
      return DataLoss(
          "the record at offset %d is damaged, and too many bytes follow it to tell whether they "
          "hold later records: %s",
          at, kBeginAnew);
    }
  }
  return absl::OkStatus();
}

// Returns the header's length, and sets *header. Nothing: a crash has left no whole header. Nothing
// is written behind a header before it is durable, so such a file ends with it.
absl::StatusOr<std::optional<size_t>> ReadHeader(ByteSpan file, const JournalHeader& expected,
                                                 JournalHeader* header) {
  // The version comes first, because the rest of another one may be laid out differently.
  if (file.size() >= kMagic.size() + 4 &&
      std::ranges::equal(file.first(kMagic.size()), Bytes(kMagic))) {
    const auto version = LoadLittle<uint32_t>(file, kMagic.size());
    if (version != kVersion) {
      return InvalidArgument(
          "it has version %d, and this scheduler reads version %d: start the release that wrote "
          "it, or remove the directory to begin the job anew",
          version, kVersion);
    }
  }
  size_t job_bytes = 0;
  if (file.size() >= kHeadBytes) job_bytes = LoadLittle<uint32_t>(file, kHeadBytes - 4);
  const size_t length = kHeadBytes + job_bytes + 4;
  if (file.size() < length ||
      LoadLittle<uint32_t>(file, length - 4) != Crc32c(file.first(length - 4)) ||
      !std::ranges::equal(file.first(kMagic.size()), Bytes(kMagic))) {
    if (file.size() <= EncodeJournalHeader(expected).size()) return std::nullopt;
    return DataLoss("the header at offset 0 is damaged, or the file is none of a journal: %s",
                    kBeginAnew);
  }
  header->user = LoadLittle<uint32_t>(file, 12);
  header->predecessor = LoadLittle<uint64_t>(file, 16);
  header->job.assign(reinterpret_cast<const char*>(file.data()) + kHeadBytes, job_bytes);
  return length;
}

absl::Status CheckHeader(const JournalHeader& header, const JournalHeader& expected) {
  if (header.job != expected.job) {
    return InvalidArgument(
        "it is of the job \"%s\", and this scheduler is of the job \"%s\": give each job a "
        "directory of its own",
        absl::CHexEscape(header.job), absl::CHexEscape(expected.job));
  }
  if (header.user != expected.user) {
    return InvalidArgument(
        "user %d made it, and this scheduler runs as user %d: start the scheduler as that user, or "
        "name another directory",
        header.user, expected.user);
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeJournalHeader(const JournalHeader& header) {
  std::string out(kMagic);
  Add(kVersion, &out);
  Add(header.user, &out);
  Add(header.predecessor, &out);
  Add(static_cast<uint32_t>(header.job.size()), &out);
  out += header.job;
  Add(Crc32c(Bytes(out)), &out);
  return out;
}

std::string EncodeAppend(std::span<const JournalRecord> records) {
  size_t bytes = 0;
  for (const JournalRecord& record : records) bytes += kRecordHeadBytes + record.payload.size();
  std::string out;
  out.reserve(bytes);
  for (const JournalRecord& record : records) {
    const uint8_t first = out.empty() ? kFirstOfAppend : 0;
    AddRecord(record.type | first, record.payload, &out);
  }
  return out;
}

std::string EncodeMark() {
  std::string out;
  AddRecord(kMarkType | kFirstOfAppend, {}, &out);
  return out;
}

absl::StatusOr<JournalGeneration> ReadGeneration(ByteSpan file, const JournalHeader& expected) {
  JournalGeneration generation;
  JournalHeader header;
  BDN_ASSIGN_OR_RETURN(const auto header_bytes, ReadHeader(file, expected, &header));
  if (!header_bytes.has_value()) return generation;
  BDN_RETURN_IF_ERROR(CheckHeader(header, expected));
  generation.predecessor = header.predecessor;
  size_t at = *header_bytes;
  size_t searched = 0;
  while (const auto length = WholeRecordAt(file, at, &searched)) {
    const uint8_t type = LoadLittle<uint8_t>(file, at + 8) & ~kFirstOfAppend;
    const auto* const payload = reinterpret_cast<const char*>(file.data()) + at + kRecordHeadBytes;
    if (type != kMarkType) {
      generation.records.push_back({type, std::string(payload, *length)});
    } else if (std::exchange(generation.is_complete, true)) {
      return DataLoss("the record at offset %d is a second mark: %s", at, kBeginAnew);
    }
    at += kRecordHeadBytes + *length;
  }
  BDN_RETURN_IF_ERROR(CheckRemainder(file, at));
  return generation;
}

}  // namespace bdn
