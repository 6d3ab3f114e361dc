// Any bytes are a generation of a journal, or are refused. Cut anywhere, it has the first of its
// records, or is refused. Its records say the same when they are written again, and then a flipped
// bit leaves the first of them, or a refusal, too.

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "scheduler/journal_format.h"
#include "tests/fuzz/fuzz_input.h"

namespace bdn {
namespace {

const JournalHeader kHeader = {.user = 1000, .job = "job", .predecessor = 6};

absl::StatusOr<JournalGeneration> Read(const std::string& file) {
  return ReadGeneration(std::as_bytes(std::span(file)), kHeader);
}

// Returns a record with the right checksum and any type: the reader's records, and marks where none
// may be.
std::string WholeRecord(uint8_t type, const std::vector<std::byte>& payload) {
  std::vector<std::byte> record(9);
  record[8] = std::byte{type};
  record.insert(record.end(), payload.begin(), payload.end());
  StoreLittle(record, 0, static_cast<uint32_t>(payload.size()));
  StoreLittle(record, 4, Crc32c(ByteSpan(record).subspan(8)));
  return {reinterpret_cast<const char*>(record.data()), record.size()};
}

// Few inputs have right checksums by themselves, so the input says which parts get them.
std::string MakeFile(fuzz::FuzzInput* input) {
  std::string file;
  if (input->Get<uint8_t>() % 4 != 0) file = EncodeJournalHeader(kHeader);
  while (!input->empty()) {
    const auto kind = input->Get<uint8_t>();
    const auto type = input->Get<uint8_t>();
    const std::vector<std::byte> bytes = input->Bytes(input->Get<uint8_t>());
    if (kind % 4 != 0) {
      file += WholeRecord(type, bytes);
    } else {
      file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  return file;
}

void RequireFirstRecords(const std::string& file, const JournalGeneration& whole) {
  const auto read = Read(file);
  if (!read.ok()) return;
  fuzz::Require(
      read->records.size() <= whole.records.size() && (whole.is_complete || !read->is_complete) &&
      std::ranges::equal(read->records, std::span(whole.records).first(read->records.size())));
}

void Run(fuzz::FuzzInput input) {
  const size_t where = input.Get<uint16_t>();
  const auto bit = input.Get<uint8_t>();
  const std::string file = MakeFile(&input);
  const auto read = Read(file);
  if (!read.ok()) return;

  RequireFirstRecords(file.substr(0, where), *read);

  std::string again = EncodeJournalHeader(kHeader) + EncodeMark() + EncodeAppend(read->records);
  const auto read_again = Read(again);
  fuzz::Require(read_again.ok() && read_again->is_complete && read_again->records == read->records);
  // Not a bit of the input itself, whose last bytes may lack just that one to be a record.
  char& flipped = again[where % again.size()];
  flipped = static_cast<char>(flipped ^ (1 << (bit % 8)));
  RequireFirstRecords(again, *read_again);
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The bytes as they are, too: those of a file that somebody found, for one.
  (void)bdn::Read(std::string(reinterpret_cast<const char*>(data), size));
  bdn::Run({data, size});
  return 0;
}
