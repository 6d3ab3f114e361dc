#include "scheduler/journal_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "common/base/crc32c.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Records = std::vector<JournalRecord>;

const JournalHeader kHeader = {.user = 1000, .job = "gpt7", .predecessor = 6};

// A generation, append by append, and the content that each cut of it must have.
class Written {
 public:
  Written() : bytes_(EncodeJournalHeader(kHeader)) {}
  Written& Append(const Records& records) {
    last_append_ = bytes_.size();
    for (size_t i = 0; i < records.size(); ++i) {
      ends_.push_back(bytes_.size() + EncodeAppend({records.data(), i + 1}).size());
    }
    records_.insert(records_.end(), records.begin(), records.end());
    bytes_ += EncodeAppend(records);
    return *this;
  }
  Written& Mark() {
    last_append_ = bytes_.size();
    bytes_ += EncodeMark();
    mark_end_ = bytes_.size();
    return *this;
  }

  const std::string& bytes() const { return bytes_; }
  const Records& records() const { return records_; }
  size_t last_append() const { return last_append_; }
  bool IsCompleteAt(size_t size) const { return mark_end_ > 0 && size >= mark_end_; }
  // Returns the records that end within the first `size` bytes.
  Records RecordsAt(size_t size) const {
    Records whole;
    for (size_t i = 0; i < records_.size(); ++i) {
      if (ends_[i] <= size) whole.push_back(records_[i]);
    }
    return whole;
  }

 private:
  std::string bytes_;
  Records records_;
  std::vector<size_t> ends_;
  size_t last_append_ = 0;
  size_t mark_end_ = 0;
};

absl::StatusOr<JournalGeneration> Read(std::string_view bytes) {
  return ReadGeneration(std::as_bytes(std::span(bytes)), kHeader);
}

std::string Text(const absl::StatusOr<JournalGeneration>& read) {
  return std::string(read.status().message());
}

Written Example() {
  Written written;
  written.Append({{1, "configuration"}, {2, ""}}).Mark();
  written.Append({{3, std::string(300, '\0')}});
  written.Append({{127, "membership"}, {4, "a key"}, {4, "another"}});
  return written;
}

TEST(JournalFormat, HasTheseBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeJournalHeader(kHeader)),
            "62646e2d6a726e6c"  // bdn-jrnl
            "01000000"          // version
            "e8030000"          // user
            "0600000000000000"  // predecessor
            "0400000067707437"  // job
            "d158f149");        // CRC
  EXPECT_EQ(absl::BytesToHexString(EncodeAppend(Records{{1, "abc"}, {2, ""}})),
            "03000000"
            "8db4ad91"
            "81"
            "616263"
            "00000000"
            "a62346b3"
            "02");
  EXPECT_EQ(absl::BytesToHexString(EncodeMark()),
            "00000000"
            "29688bd0"
            "80");
}

TEST(JournalFormat, ReadsWhatWasWritten) {
  const Written written = Example();
  const auto read = Read(written.bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->is_complete);
  EXPECT_EQ(read->predecessor, 6u);
  EXPECT_EQ(read->records, written.records());
}

TEST(JournalFormat, TakesTheLongestRecordAndNoLongerOne) {
  Written written;
  written.Mark().Append({{1, std::string(kMostRecordBytes, 'x')}});
  ASSERT_TRUE(Read(written.bytes()).ok());
  EXPECT_EQ(Read(written.bytes())->records, written.records());
  Written longer;
  longer.Mark().Append({{1, std::string(kMostRecordBytes + 1, 'x')}});
  ASSERT_TRUE(Read(longer.bytes()).ok());
  EXPECT_EQ(Read(longer.bytes())->records, Records());
}

TEST(JournalFormat, EndsAtTheLastWholeRecordWhereverTheFileIsCut) {
  const Written written = Example();
  for (size_t size = 0; size <= written.bytes().size(); ++size) {
    const auto read = Read(written.bytes().substr(0, size));
    ASSERT_TRUE(read.ok()) << size << ": " << read.status();
    EXPECT_EQ(read->records, written.RecordsAt(size)) << size;
    EXPECT_EQ(read->is_complete, written.IsCompleteAt(size)) << size;
  }
}

TEST(JournalFormat, TakesNoByteBehindTheEndIntoARecord) {
  // The eight bytes, and the zero that ends a string, are a record of type 0.
  const auto read = Read(Written().bytes() + std::string("\0\0\0\0\x51\x53\x7d\x52", 8));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->is_complete);
}

// A disk may have written the end of an append before its middle, and a file system shows zeros for
// the rest.
TEST(JournalFormat, EndsAtTheLastWholeRecordWhereALastAppendHasHoles) {
  const Written written = Example();
  for (size_t begin = written.last_append(); begin < written.bytes().size(); ++begin) {
    std::string bytes = written.bytes();
    const size_t hole = std::min<size_t>(12, bytes.size() - begin);
    bytes.replace(begin, hole, std::string(hole, '\0'));
    const auto read = Read(bytes);
    ASSERT_TRUE(read.ok()) << begin << ": " << read.status();
    EXPECT_EQ(read->records, written.RecordsAt(begin)) << begin;
  }
}

TEST(JournalFormat, RefusesEveryFlippedBitInFrontOfTheLastAppendAndDropsThoseInIt) {
  const Written written = Example();
  for (size_t at = 0; at < written.bytes().size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = written.bytes();
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      const auto read = Read(bytes);
      ASSERT_EQ(read.ok(), at >= written.last_append()) << at << " " << bit;
      if (!read.ok()) continue;
      EXPECT_EQ(read->records, written.RecordsAt(at)) << at << " " << bit;
    }
  }
}

TEST(JournalFormat, NamesTheOffsetOfADamagedRecord) {
  Written written;
  written.Append({{1, "first"}}).Mark();
  const size_t at = written.bytes().size();
  written.Append({{2, ""}});
  const size_t next = written.bytes().size();
  std::string bytes = written.Append({{3, "third"}}).bytes();
  bytes[at + 4] ^= 1;
  const auto read = Read(bytes);
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(Text(read), AllOf(HasSubstr("record at offset " + std::to_string(at) + " is damaged"),
                                HasSubstr("a later one at offset " + std::to_string(next)),
                                HasSubstr("remove it to begin the job anew")));
}

TEST(JournalFormat, RefusesADamagedEndThatIsTooMuchToSearch) {
  // Every fourth byte looks like the head of a record of 8 MiB.
  std::string end;
  while (end.size() < (size_t{9} << 20)) end.append("\x80\x00\x80\x00", 4);
  const auto read = Read(Written().Mark().bytes() + end);
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(Text(read), HasSubstr("too many bytes follow"));
}

TEST(JournalFormat, RefusesASecondMark) {
  const auto read = Read(Written().Mark().Mark().bytes());
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(Text(read), HasSubstr("second mark"));
}

TEST(JournalFormat, RefusesAnotherVersionThoughTheRestIsLaidOutDifferently) {
  for (const size_t size : {size_t{12}, size_t{40}, size_t{400}}) {
    std::string bytes = Example().bytes().substr(0, size);
    bytes[8] = 2;
    const auto read = Read(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status()));
    EXPECT_THAT(Text(read), AllOf(HasSubstr("it has version 2, and this scheduler reads version 1"),
                                  HasSubstr("start the release that wrote it")));
  }
}

TEST(JournalFormat, RefusesAnotherJobAndAnotherUser) {
  JournalHeader other = kHeader;
  other.job = "bert\n";
  const auto of_job = Read(EncodeJournalHeader(other));
  EXPECT_TRUE(absl::IsInvalidArgument(of_job.status()));
  EXPECT_THAT(Text(of_job), AllOf(HasSubstr("the job \"bert\\n\""), HasSubstr("the job \"gpt7\""),
                                  HasSubstr("a directory of its own")));
  other = kHeader;
  other.user = 7;
  const auto of_user = Read(EncodeJournalHeader(other));
  EXPECT_TRUE(absl::IsInvalidArgument(of_user.status()));
  EXPECT_THAT(Text(of_user), AllOf(HasSubstr("user 7 made it"), HasSubstr("as user 1000")));
}

TEST(JournalFormat, TakesAHeaderThatACrashHasLeftForAnIncompleteGeneration) {
  const size_t size = EncodeJournalHeader(kHeader).size();
  for (const std::string& bytes : {std::string(), std::string(size, '\0')}) {
    const auto read = Read(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_FALSE(read->is_complete);
    EXPECT_EQ(read->predecessor, 0u);
  }
  // Nothing is written behind a header that is not whole.
  for (const std::string& bytes : {std::string(size + 1, '\0'), std::string(3000, 'x')}) {
    EXPECT_TRUE(absl::IsDataLoss(Read(bytes).status()));
  }
  std::string foreign = EncodeJournalHeader(kHeader).substr(0, size - 4);
  foreign[0] = 'x';
  const uint32_t crc = Crc32c(std::as_bytes(std::span(foreign)));
  foreign.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  EXPECT_TRUE(absl::IsDataLoss(Read(foreign + "x").status()));
  // The length of the job's id is no index before it is checked.
  std::string bytes = Example().bytes();
  bytes.replace(24, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(Text(Read(bytes)), HasSubstr("header at offset 0 is damaged"));
}

}  // namespace
}  // namespace bdn
