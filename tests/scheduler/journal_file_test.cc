#include "scheduler/journal_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

using Records = std::vector<JournalRecord>;
// The generations of a directory: name and bytes.
using Files = std::map<std::string, std::string>;

constexpr const char* kFirst = "generation-0000000001";
constexpr const char* kSecond = "generation-0000000002";
const Records kOld = {{1, "configuration"}, {2, "membership"}, {3, "a key"}};
const Records kNew = {{1, "configuration"}, {2, "a later membership"}};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}
Files ReadGenerations(const fs::path& directory) {
  Files files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "generation-")) files[name] = ReadFile(entry.path());
  }
  return files;
}
std::set<std::string> NamesOf(const Files& files) {
  std::set<std::string> names;
  for (const auto& [name, bytes] : files) names.insert(name);
  return names;
}

// Fails one call of all, or each call of one name.
struct Fault {
  int fail_at = -1;
  std::string name;
  int error = EIO;
  int calls = 0;

  JournalFile::Fault AsFault() {
    return [this](std::string_view call) { return calls++ == fail_at || call == name ? error : 0; };
  }
};

// The states in which the machine may crash, with all that a disk may then show: of what was not
// made durable, any part.
class Crashes {
 public:
  explicit Crashes(fs::path directory)
      : directory_(std::move(directory)),
        durable_files_(ReadGenerations(directory_)),
        durable_names_(NamesOf(durable_files_)) {}

  JournalFile::Fault AsFault() {
    return [this](std::string_view call) {
      Look();
      call_ = call;
      return 0;
    };
  }
  // Adds the state after the last call.
  void Look() {
    const Files now = ReadGenerations(directory_);
    if (call_ == "fdatasync") durable_files_[now.rbegin()->first] = now.rbegin()->second;
    if (call_ == "fsync directory") durable_names_ = NamesOf(now);
    call_.clear();
    // Names that were made and removed since may be there or not.
    const std::set<std::string> names = NamesOf(now);
    std::set<std::string> both;
    std::set<std::string> either = names;
    for (const std::string& name : durable_names_) {
      if (names.contains(name)) both.insert(name);
      either.insert(name);
    }
    for (const auto& possible : {names, durable_names_, both, either}) AddDisks(possible, now);
  }
  // Returns the disks that were added since the last call of this function.
  std::set<Files> Take() { return std::exchange(disks_, {}); }

 private:
  void AddDisks(const std::set<std::string>& names, const Files& now) {
    Files disk;
    for (const std::string& name : names) disk[name] = durable_files_[name];
    disks_.insert(disk);
    const auto newest = now.rbegin();
    if (newest == now.rend() || !names.contains(newest->first)) return;
    const size_t durable = disk[newest->first].size();
    for (size_t size = durable; size <= newest->second.size(); ++size) {
      disk[newest->first] = newest->second.substr(0, size);  // cut
      disks_.insert(disk);
      std::string holed = newest->second;
      std::fill(holed.begin() + durable, holed.begin() + size, '\0');
      disk[newest->first] = holed;
      disks_.insert(disk);
    }
  }

  const fs::path directory_;
  Files durable_files_;  // also those that are removed since
  std::set<std::string> durable_names_;
  std::string call_;
  std::set<Files> disks_;
};

class JournalFileTest : public ::testing::Test {
 protected:
  JournalFileTest() {
    // In memory where that is possible: these tests make things durable some ten thousand times.
    const fs::path memory = "/dev/shm";
    const bool has_memory = access(memory.c_str(), W_OK) == 0;
    std::string pattern = (has_memory ? memory : fs::temp_directory_path()) / "bdn-journal-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    directory_ = folder_ / "journal";
  }
  ~JournalFileTest() override {
    if (is_mounted_) umount2(directory_.c_str(), MNT_DETACH);
    fs::remove_all(folder_);
  }

  absl::StatusOr<JournalFile::Opened> TryOpen(JournalFile::Fault fault = {}) {
    return JournalFile::Open(directory_.string(), "gpt7", std::move(fault));
  }
  JournalFile::Opened Open(JournalFile::Fault fault = {}) {
    auto opened = TryOpen(std::move(fault));
    if (!opened.ok()) throw std::runtime_error(opened.status().ToString());
    return *std::move(opened);
  }
  // Acts as a scheduler that lives, is given records and dies.
  void Leave(const Records& begun, const Records& appended = {}) {
    const auto opened = Open();
    ASSERT_TRUE(opened.journal->Begin(begun).ok());
    for (const JournalRecord& record : appended) {
      ASSERT_TRUE(opened.journal->Append(record.type, record.payload).ok());
    }
  }
  Records Left() { return Open().records; }
  // Returns what a scheduler finds in such a directory, by a way that goes on where this leads on.
  absl::StatusOr<Records> LeftIn(const Files& files) {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
    fs::permissions(directory_, fs::perms::owner_all);
    for (const auto& [name, bytes] : files) WriteFile(directory_ / name, bytes);
    Records found;
    {
      BDN_ASSIGN_OR_RETURN(const auto opened, TryOpen());
      found = opened.records;
      BDN_RETURN_IF_ERROR(opened.journal->Begin(found));
    }
    EXPECT_EQ(Left(), found);
    return found;
  }
  std::string OpenError() {
    const auto opened = TryOpen();
    return opened.ok() ? "it was opened" : opened.status().ToString();
  }
  static mode_t ModeOf(const fs::path& path) {
    struct stat found = {};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 0777;
  }
  // Lets a further scheduler in, as if locks did not reach from one machine to another.
  void LoseLock() const { fs::remove(directory_ / "lock"); }
  // Puts a file system with so much room at the directory; false: this user may not.
  bool MountSmall(const char* size) {
    fs::create_directory(directory_);
    is_mounted_ = mount("none", directory_.c_str(), "tmpfs", 0, size) == 0;
    return is_mounted_;
  }

  fs::path folder_;
  fs::path directory_;
  bool is_mounted_ = false;
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(JournalFileTest, GivesEachSchedulerWhatItsPredecessorLeft) {
  EXPECT_EQ(Left(), Records());
  Leave({{1, "a"}}, {{2, std::string("\0\xff", 2)}, {3, ""}});
  EXPECT_EQ(Left(), (Records{{1, "a"}, {2, std::string("\0\xff", 2)}, {3, ""}}));
  EXPECT_EQ(Left(), (Records{{1, "a"}, {2, std::string("\0\xff", 2)}, {3, ""}}));  // without Begin
  Leave({{4, "all in one"}}, {{127, std::string(100'000, 'x')}});
  EXPECT_EQ(Left(), (Records{{4, "all in one"}, {127, std::string(100'000, 'x')}}));
  Leave({});
  EXPECT_EQ(Left(), Records());
}

TEST_F(JournalFileTest, AppendsSeveralRecordsByOneSync) {
  Leave(kOld);
  int syncs = 0;
  const auto opened = Open([&](std::string_view call) {
    if (call == "fdatasync") ++syncs;
    return 0;
  });
  ASSERT_TRUE(opened.journal->Begin({}).ok());
  const uint64_t empty = opened.journal->bytes();
  syncs = 0;
  ASSERT_TRUE(opened.journal->AppendAll(kNew).ok());
  EXPECT_EQ(syncs, 1);
  ASSERT_TRUE(opened.journal->AppendAll({}).ok());
  EXPECT_EQ(opened.journal->bytes(), empty + EncodeAppend(kNew).size());
  LoseLock();
  EXPECT_EQ(Left(), kNew);
}

TEST_F(JournalFileTest, IsForItsUserAlone) {
  const mode_t before = umask(0);
  Leave(kOld);
  umask(before);
  EXPECT_EQ(ModeOf(directory_), 0700u);
  EXPECT_EQ(ModeOf(directory_ / "lock"), 0600u);
  EXPECT_EQ(ModeOf(directory_ / kFirst), 0600u);
}

TEST_F(JournalFileTest, MakesItsDirectorysNameDurable) {
  Fault fault = {.name = "fsync parent"};
  EXPECT_THAT(Text(TryOpen(fault.AsFault()).status()), HasSubstr("cannot flush the directory"));
  EXPECT_TRUE(TryOpen(fault.AsFault()).ok());  // which is there now
}

TEST_F(JournalFileTest, KeepsOneGenerationAndOtherPeoplesFiles) {
  Leave(kOld);
  for (const char* other : {"generation-3", "generation-00000000x4", "generation-0000000005~"}) {
    WriteFile(directory_ / other, "other");
  }
  Leave(kNew);
  Files files = ReadGenerations(directory_);
  EXPECT_THAT(NamesOf(files), UnorderedElementsAre(kSecond, "generation-3", "generation-00000000x4",
                                                   "generation-0000000005~"));
  EXPECT_EQ(Left(), kNew);
}

TEST_F(JournalFileTest, MakesALongJournalShort) {
  const auto opened = Open();
  ASSERT_TRUE(opened.journal->Begin(kOld).ok());
  ASSERT_TRUE(opened.journal->Append(9, std::string(5000, 'x')).ok());
  ASSERT_TRUE(opened.journal->Begin(kNew).ok());
  ASSERT_TRUE(opened.journal->Append(9, "end").ok());
  EXPECT_LT(opened.journal->bytes(), 1000u);
  EXPECT_THAT(NamesOf(ReadGenerations(directory_)), ElementsAre(kSecond));
  LoseLock();
  EXPECT_EQ(Left(), (Records{kNew[0], kNew[1], {9, "end"}}));
}

TEST_F(JournalFileTest, LetsOneSchedulerInAtATime) {
  {
    const auto opened = Open();
    const auto second = TryOpen();
    EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
    EXPECT_THAT(Text(second.status()),
                AllOf(HasSubstr(directory_.string()),
                      HasSubstr("another scheduler of this job is using it")));
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    EXPECT_TRUE(opened.journal->Append(1, "x").ok());
  }
  EXPECT_TRUE(TryOpen().ok());
}

TEST_F(JournalFileTest, AppendsNothingOnceAnotherSchedulerHasTakenOver) {
  Fault calls;
  const auto first = Open(calls.AsFault());
  ASSERT_TRUE(first.journal->Begin(kOld).ok());
  LoseLock();
  const auto second = Open();
  const Files before = ReadGenerations(directory_);
  const int calls_before = calls.calls;
  for (const absl::Status& status : {first.journal->Append(1, "x"), first.journal->AppendAll({}),
                                     first.journal->Append(1, "x")}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(Text(status), AllOf(HasSubstr("another scheduler has taken over the journal"),
                                    HasSubstr(directory_.string()), HasSubstr(kSecond)));
  }
  EXPECT_EQ(calls.calls, calls_before);  // it was not tried
  EXPECT_EQ(ReadGenerations(directory_), before);
  EXPECT_EQ(second.records, kOld);
  ASSERT_TRUE(second.journal->Begin(kNew).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(first.journal->Append(1, "x")));
}

TEST_F(JournalFileTest, DoesNotBeginBeneathANewerScheduler) {
  Leave(kOld);
  const auto first = Open();
  LoseLock();
  const auto second = Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(first.journal->Begin(kNew)));
  EXPECT_EQ(second.records, kOld);
  ASSERT_TRUE(second.journal->Begin(kOld).ok());
  LoseLock();
  EXPECT_EQ(Left(), kOld);
}

// A successor that comes amid an append has either read its record, or the append fails.
TEST_F(JournalFileTest, AppendsNothingThatASuccessorHasNotRead) {
  for (const std::string when : {"pwrite", "fdatasync", "after"}) {
    fs::remove_all(directory_);
    std::optional<JournalFile::Opened> successor;
    bool is_armed = false;
    const auto take_over = [&](std::string_view call) {
      if (is_armed && call == when) {
        is_armed = false;
        LoseLock();
        successor = Open();
      }
      return 0;
    };
    const auto first = Open(take_over);
    ASSERT_TRUE(first.journal->Begin(kOld).ok());
    is_armed = true;
    const absl::Status status = first.journal->Append(9, "late");
    take_over("after");
    Records with_it = kOld;
    with_it.push_back({9, "late"});
    if (when == "after") {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(successor->records, with_it);
    } else {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << when << status;
      EXPECT_THAT(successor->records, AnyOf(kOld, with_it)) << when;
    }
  }
}

TEST_F(JournalFileTest, ReadsARecordThatIsAppendedWhileItIsOpened) {
  const auto first = Open();
  ASSERT_TRUE(first.journal->Begin(kOld).ok());
  LoseLock();
  absl::Status appended = absl::UnknownError("never");
  const auto second = Open([&](std::string_view call) {
    if (call == "create") appended = first.journal->Append(9, "late");
    return 0;
  });
  ASSERT_TRUE(appended.ok()) << appended;
  ASSERT_EQ(second.records.size(), kOld.size() + 1);
  EXPECT_EQ(second.records.back(), (JournalRecord{9, "late"}));
}

TEST_F(JournalFileTest, IsNotOpenedWhileAnotherSchedulerBegins) {
  Leave(kOld);
  const auto first = Open();
  LoseLock();
  const auto second = TryOpen([&](std::string_view call) {
    if (call == "create") {
      EXPECT_TRUE(first.journal->Begin(kNew).ok());
    }
    return 0;
  });
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_TRUE(first.journal->Append(9, "still here").ok());
}

TEST_F(JournalFileTest, SaysThatItsFilesWereRemoved) {
  const auto opened = Open();
  ASSERT_TRUE(opened.journal->Begin(kOld).ok());
  fs::remove_all(directory_);
  const absl::Status status = opened.journal->Append(1, "x");
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(Text(status), AllOf(HasSubstr(kFirst), HasSubstr("was removed")));
}

TEST_F(JournalFileTest, HasTheFirstRecordsWhereverTheNewerOfTwoGenerationsIsCut) {
  Leave(kOld, {{4, "appended"}});
  Records old = kOld;
  old.push_back({4, "appended"});
  Files files;
  std::vector<std::pair<uint64_t, Records>> ends;  // and the records up to there
  {
    const auto opened = Open([&](std::string_view call) {
      if (call == "unlink") files = ReadGenerations(directory_);
      return 0;
    });
    ASSERT_TRUE(opened.journal->Begin(kNew).ok());
    ASSERT_EQ(files.size(), 2u);
    Records records = kNew;
    ends.emplace_back(opened.journal->bytes(), records);
    for (const char* text : {"one", "", "three"}) {
      ASSERT_TRUE(opened.journal->Append(9, text).ok());
      records.push_back({9, text});
      ends.emplace_back(opened.journal->bytes(), records);
    }
  }
  const std::string newer = ReadFile(directory_ / kSecond);
  ASSERT_EQ(newer.size(), ends.back().first);
  for (size_t size = 0; size <= newer.size(); ++size) {
    Records expected = old;
    for (const auto& [end, records] : ends) {
      if (end <= size) expected = records;
    }
    files[kSecond] = newer.substr(0, size);
    const auto left = LeftIn(files);
    ASSERT_TRUE(left.ok()) << size << ": " << left.status();
    EXPECT_EQ(*left, expected) << size;
    // Without the older one a generation that is not complete shows that something is lost, as soon
    // as its header is there to say so.
    const auto alone = LeftIn({{kSecond, files[kSecond]}});
    const size_t header = EncodeJournalHeader({.job = "gpt7"}).size();
    if (size < header) {
      EXPECT_EQ(*alone, Records()) << size;
    } else if (size < ends.front().first) {
      EXPECT_TRUE(absl::IsDataLoss(alone.status())) << size;
      EXPECT_THAT(Text(alone.status()), AllOf(HasSubstr(kFirst), HasSubstr("is gone")));
    } else {
      EXPECT_EQ(*alone, expected) << size;
    }
  }
}

TEST_F(JournalFileTest, HasTheSameRecordsOrAnErrorWhereverABitFlips) {
  Leave(kOld, {{4, "appended"}, {5, "last"}});
  Records all = kOld;
  all.push_back({4, "appended"});
  all.push_back({5, "last"});
  const std::string bytes = ReadFile(directory_ / kFirst);
  const size_t last = bytes.size() - EncodeAppend(Records{{5, "last"}}).size();
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    const auto left = LeftIn({{kFirst, flipped}});
    ASSERT_EQ(left.ok(), at >= last) << at;
    if (left.ok()) {
      EXPECT_EQ(*left, Records(all.begin(), all.end() - 1)) << at;
    } else {
      EXPECT_THAT(Text(left.status()), HasSubstr((directory_ / kFirst).string())) << at;
    }
  }
}

TEST_F(JournalFileTest, HasTheOldRecordsOrTheNewOnesWhereverABeginCrashes) {
  for (const bool is_first : {true, false}) {
    fs::remove_all(directory_);
    if (!is_first) Leave(kOld);
    const Records old = is_first ? Records() : kOld;
    { (void)Open(); }  // so that an incomplete generation is there, too
    Crashes crashes(directory_);
    std::set<Files> amid;
    {
      const auto opened = Open(crashes.AsFault());
      ASSERT_TRUE(opened.journal->Begin(kNew).ok());
      amid = crashes.Take();
      crashes.Look();
    }
    const std::set<Files> after = crashes.Take();
    EXPECT_GT(amid.size(), 100u);
    std::set<size_t> found;
    for (const Files& disk : amid) {
      const auto left = LeftIn(disk);
      ASSERT_TRUE(left.ok()) << left.status();
      ASSERT_THAT(*left, AnyOf(old, kNew));
      found.insert(left->size());
    }
    EXPECT_EQ(found.size(), 2u);
    for (const Files& disk : after) {
      const auto left = LeftIn(disk);
      ASSERT_TRUE(left.ok()) << left.status();
      EXPECT_EQ(*left, kNew);
    }
  }
}

TEST_F(JournalFileTest, HasTheFirstOfTheNewRecordsWhereverAnAppendCrashes) {
  fs::create_directory(directory_);
  fs::permissions(directory_, fs::perms::owner_all);
  Records all = kOld;
  std::optional<Crashes> crashes;
  {
    const auto opened = Open(
        [&](std::string_view call) { return crashes.has_value() ? crashes->AsFault()(call) : 0; });
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    crashes.emplace(directory_);
    ASSERT_TRUE(opened.journal->AppendAll(kNew).ok());
  }
  const std::set<Files> amid = crashes->Take();
  crashes->Look();
  all.insert(all.end(), kNew.begin(), kNew.end());
  EXPECT_GT(amid.size(), 50u);
  for (const Files& disk : amid) {
    const auto left = LeftIn(disk);
    ASSERT_TRUE(left.ok()) << left.status();
    ASSERT_GE(left->size(), kOld.size());
    EXPECT_EQ(*left, Records(all.begin(), all.begin() + left->size()));
  }
  for (const Files& disk : crashes->Take()) EXPECT_EQ(*LeftIn(disk), all);
}

TEST_F(JournalFileTest, AppendsAndBeginsAfterAnyCallHasFailed) {
  for (const int error : {EIO, ENOSPC, EROFS}) {
    bool is_done = false;
    for (int fail_at = 0; !is_done; ++fail_at) {
      ASSERT_LT(fail_at, 40);
      fs::remove_all(directory_);
      Leave(kOld);
      Fault fault = {.fail_at = fail_at, .error = error};
      auto opened = TryOpen(fault.AsFault());
      absl::Status failed = opened.status();
      if (!opened.ok()) {
        EXPECT_THAT(NamesOf(ReadGenerations(directory_)), ElementsAre(kFirst));
        opened = TryOpen(fault.AsFault());
      }
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_EQ(opened->records, kOld);
      JournalFile& journal = *opened->journal;
      const auto again = [&](const auto& call) {
        absl::Status status = call();
        if (status.ok()) return;
        ASSERT_TRUE(failed.ok()) << failed << status;
        failed = status;
        status = call();
        ASSERT_TRUE(status.ok()) << status;
      };
      again([&] { return journal.Begin(kOld); });
      again([&] { return journal.Append(5, "five"); });
      again([&] { return journal.Begin(kNew); });
      again([&] { return journal.Append(6, "six"); });
      opened = absl::UnknownError("dead");
      EXPECT_EQ(Left(), (Records{kNew[0], kNew[1], {6, "six"}})) << fail_at;
      is_done = fault.calls <= fail_at;
      if (is_done || failed.ok()) continue;  // that an old file is not removed is no error
      EXPECT_THAT(Text(failed),
                  AllOf(HasSubstr(directory_.string()), HasSubstr(std::strerror(error))));
      EXPECT_EQ(absl::IsResourceExhausted(failed), error == ENOSPC) << failed;
      EXPECT_FALSE(absl::IsFailedPrecondition(failed)) << failed;
    }
  }
}

TEST_F(JournalFileTest, TakesAFailedAppendBackBeforeTheNextOne) {
  Fault fault;
  {
    const auto opened = Open(fault.AsFault());
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    fault.name = "fdatasync";  // of the append and of its roll-back
    EXPECT_FALSE(opened.journal->Append(7, "longer than the next one").ok());
    fault.name = "ftruncate";
    const absl::Status status = opened.journal->Append(8, "next");
    EXPECT_THAT(Text(status), HasSubstr("take a failed append back"));
    fault.name = "";
    ASSERT_TRUE(opened.journal->Append(8, "next").ok());
    EXPECT_EQ(fs::file_size(directory_ / kFirst), opened.journal->bytes());
  }
  EXPECT_EQ(Left(), (Records{kOld[0], kOld[1], kOld[2], {8, "next"}}));
}

TEST_F(JournalFileTest, TakesAFailedBeginBackBeforeTheNextOne) {
  Fault fault;
  {
    const auto opened = Open(fault.AsFault());
    const uint64_t header = opened.journal->bytes();
    fault.name = "fsync directory";  // when all else is written
    EXPECT_FALSE(opened.journal->Begin(kOld).ok());
    EXPECT_EQ(fs::file_size(directory_ / kFirst), header);
    fault.name = "fdatasync";  // of the records and of their roll-back
    EXPECT_FALSE(opened.journal->Begin(kOld).ok());
    fault.name = "ftruncate";
    EXPECT_THAT(Text(opened.journal->Begin(kNew)), HasSubstr("take a failed append back"));
    fault.name = "";
    ASSERT_TRUE(opened.journal->Begin(Records{{8, "next"}}).ok());
    EXPECT_EQ(fs::file_size(directory_ / kFirst), opened.journal->bytes());
  }
  EXPECT_EQ(Left(), (Records{{8, "next"}}));
}

TEST_F(JournalFileTest, KeepsTheFormerGenerationInUseWhereNoFurtherOneCanBeMade) {
  Fault fault;
  {
    const auto opened = Open(fault.AsFault());
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    fault.name = "create";
    EXPECT_FALSE(opened.journal->Begin(kNew).ok());
    ASSERT_TRUE(opened.journal->Append(8, "next").ok());
    fault.name = "fdatasync";
    EXPECT_FALSE(opened.journal->Begin(kNew).ok());
    fault.name = "";
  }
  EXPECT_EQ(Left(), (Records{kOld[0], kOld[1], kOld[2], {8, "next"}}));
}

TEST_F(JournalFileTest, GoesOnOnceAFullDiskHasRoom) {
  if (!MountSmall("size=128k,mode=700")) GTEST_SKIP() << "this user may not mount file systems";
  {
    const auto opened = Open();
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    WriteFile(directory_ / "filler", std::string(65'536, 'x'));
    const std::string payload(100'000, 'y');
    const absl::Status status = opened.journal->Append(4, payload);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr((directory_ / kFirst).string()),
                                    HasSubstr("No space left on device")));
    EXPECT_EQ(fs::file_size(directory_ / kFirst), opened.journal->bytes());
    ASSERT_TRUE(opened.journal->Append(5, "a little").ok());
    EXPECT_TRUE(absl::IsResourceExhausted(opened.journal->Begin(Records{{4, payload}})));
    EXPECT_TRUE(absl::IsFailedPrecondition(opened.journal->Append(5, "not begun")));
    fs::remove(directory_ / "filler");
    ASSERT_TRUE(opened.journal->Begin(Records{{4, payload}}).ok());
    ASSERT_TRUE(opened.journal->Append(5, "end").ok());
  }
  EXPECT_EQ(Left(), (Records{{4, std::string(100'000, 'y')}, {5, "end"}}));
}

TEST_F(JournalFileTest, GoesOnBelowALimitOfTheLengthOfFiles) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    const auto opened = Open();
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    const rlimit small = {4096, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status status = opened.journal->Append(4, std::string(5000, 'y'));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("File too large"));
    EXPECT_EQ(fs::file_size(directory_ / kFirst), opened.journal->bytes());
    EXPECT_TRUE(opened.journal->Append(5, "a little").ok());
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_TRUE(opened.journal->Append(4, std::string(5000, 'y')).ok());
  }
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(Left().size(), kOld.size() + 2);
}

TEST_F(JournalFileTest, SaysThatADirectoryIsReadOnly) {
  Leave(kOld);
  constexpr uid_t kNobody = 65534;
  const bool is_root = geteuid() == 0;
  if (is_root) {
    for (const auto& entry : fs::directory_iterator(directory_)) {
      ASSERT_EQ(chown(entry.path().c_str(), kNobody, kNobody), 0);
    }
    ASSERT_EQ(chown(directory_.c_str(), kNobody, kNobody), 0);
    fs::permissions(folder_, fs::perms::group_exec | fs::perms::others_exec, fs::perm_options::add);
    // What user 0 began, user 65534 may not take over: so the file says that it was theirs.
    const std::string header = EncodeJournalHeader({.user = kNobody, .job = "gpt7"});
    std::string bytes = ReadFile(directory_ / kFirst);
    bytes.replace(0, header.size(), header);
    std::ofstream(directory_ / kFirst, std::ios::binary) << bytes;
  }
  fs::permissions(directory_, fs::perms::owner_read | fs::perms::owner_exec);
  ASSERT_EQ(is_root ? seteuid(kNobody) : 0, 0);
  const std::string error = OpenError();
  ASSERT_EQ(is_root ? seteuid(0) : 0, 0);
  fs::permissions(directory_, fs::perms::owner_all);  // so that it can be removed
  EXPECT_THAT(error, AllOf(HasSubstr("cannot make " + (directory_ / kSecond).string()),
                           HasSubstr("Permission denied")));
}

TEST_F(JournalFileTest, NamesADirectoryThatCannotBeMadeOrOpened) {
  directory_ = folder_ / "none" / "journal";
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("cannot make the directory " + directory_.string()),
                                 HasSubstr("No such file")));
  directory_ = folder_ / "file";
  WriteFile(directory_, "x");
  EXPECT_THAT(OpenError(), HasSubstr("Not a directory"));
}

TEST_F(JournalFileTest, RefusesTheJournalOfAnotherJobAndLeavesItAsItIs) {
  Leave(kOld);
  const auto other = JournalFile::Open(directory_.string(), "bert");
  EXPECT_TRUE(absl::IsInvalidArgument(other.status()));
  EXPECT_THAT(Text(other.status()),
              AllOf(HasSubstr((directory_ / kFirst).string()),
                    HasSubstr("it is of the job \"gpt7\""), HasSubstr("a directory of its own")));
  EXPECT_THAT(NamesOf(ReadGenerations(directory_)), ElementsAre(kFirst));
  EXPECT_EQ(Left(), kOld);
  const std::string long_job(kMostJobIdBytes + 1, 'x');
  EXPECT_THAT(Text(JournalFile::Open((folder_ / "other").string(), long_job).status()),
              HasSubstr("the job's id has 1025 bytes"));
}

TEST_F(JournalFileTest, LeavesNoGenerationWhereItCannotBeOpened) {
  Leave(kOld);
  const auto opened = TryOpen([&](std::string_view call) {
    if (call == "create") WriteFile(directory_ / kFirst, std::string(1000, 'x'));
    return 0;
  });
  EXPECT_TRUE(absl::IsDataLoss(opened.status()));
  EXPECT_THAT(NamesOf(ReadGenerations(directory_)), ElementsAre(kFirst));
}

TEST_F(JournalFileTest, RefusesAnotherVersionAndAnotherUser) {
  Leave(kOld);
  std::string bytes = ReadFile(directory_ / kFirst);
  bytes[8] = 9;
  WriteFile(directory_ / kFirst, bytes);
  EXPECT_THAT(OpenError(),
              AllOf(HasSubstr((directory_ / kFirst).string()), HasSubstr("it has version 9")));
  WriteFile(directory_ / kFirst, EncodeJournalHeader({.user = geteuid() + 1, .job = "gpt7"}));
  EXPECT_THAT(OpenError(), HasSubstr("made it, and this scheduler runs as user"));
}

TEST_F(JournalFileTest, RefusesWhatBelongsToAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  Leave(kOld);
  ASSERT_EQ(chown((directory_ / kFirst).c_str(), 65534, 65534), 0);
  EXPECT_THAT(OpenError(),
              AllOf(HasSubstr((directory_ / kFirst).string()), HasSubstr("belongs to user 65534")));
  ASSERT_EQ(chown(directory_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(OpenError(), HasSubstr("journal belongs to user 65534"));
}

TEST_F(JournalFileTest, RefusesWhatOtherUsersMayReadOrWrite) {
  Leave(kOld);
  for (const auto rights : {fs::perms::group_read, fs::perms::others_write}) {
    for (const char* name : {kFirst, "lock"}) {
      const fs::path file = directory_ / name;
      fs::permissions(file, rights, fs::perm_options::add);
      EXPECT_THAT(OpenError(), AllOf(HasSubstr(file.string()), HasSubstr("has mode 06"),
                                     HasSubstr("chmod 600")));
      fs::permissions(file, rights, fs::perm_options::remove);
    }
  }
  fs::permissions(directory_, fs::perms::group_write, fs::perm_options::add);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("mode 0720"), HasSubstr("chmod 700")));
  fs::permissions(directory_, fs::perms::group_write, fs::perm_options::remove);
  fs::permissions(directory_, fs::perms::group_read, fs::perm_options::add);
  EXPECT_EQ(Left(), kOld);
}

TEST_F(JournalFileTest, RefusesWhatIsNoRegularFile) {
  Leave(kOld);
  fs::rename(directory_ / kFirst, folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", directory_ / kFirst);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr((directory_ / kFirst).string()),
                                 HasSubstr("is a symbolic link"), HasSubstr("remove it")));
  fs::remove(directory_ / kFirst);
  ASSERT_EQ(mkfifo((directory_ / kFirst).c_str(), 0600), 0);
  EXPECT_THAT(OpenError(), HasSubstr("is no regular file"));
  fs::remove(directory_ / kFirst);
  fs::create_directory(directory_ / kFirst);
  EXPECT_THAT(OpenError(), HasSubstr("is no regular file"));
  fs::remove(directory_ / kFirst);
  fs::remove(directory_ / "lock");
  fs::create_symlink(folder_ / "elsewhere", directory_ / "lock");
  EXPECT_THAT(OpenError(), HasSubstr("lock is a symbolic link"));
}

TEST_F(JournalFileTest, DoesNotGoBackBehindAGenerationThatIsLost) {
  Leave(kOld);
  const std::string old = ReadFile(directory_ / kFirst);
  Leave(kNew);
  // The third one follows the second, which is gone; the first is there again.
  { (void)Open(); }
  const Files files = ReadGenerations(directory_);
  const auto left = LeftIn({{kFirst, old}, *files.rbegin()});
  EXPECT_TRUE(absl::IsDataLoss(left.status()));
  EXPECT_THAT(Text(left.status()), AllOf(HasSubstr(directory_.string()), HasSubstr(kSecond)));
  // The same for a generation that shortens a journal.
  fs::remove_all(directory_);
  {
    const auto opened = Open();
    ASSERT_TRUE(opened.journal->Begin(kOld).ok());
    ASSERT_TRUE(opened.journal->Begin(kNew).ok());
  }
  std::string bytes = ReadFile(directory_ / kSecond);
  bytes.back() ^= 1;  // of the mark
  EXPECT_TRUE(absl::IsDataLoss(LeftIn({{kSecond, bytes}}).status()));
}

TEST_F(JournalFileTest, RefusesTooLongRecordsAndFilesAndChangesNothing) {
  {
    const auto opened = Open();
    EXPECT_TRUE(absl::IsFailedPrecondition(opened.journal->Append(1, "before Begin")));
    const Records longest = {{1, std::string(kMostRecordBytes, 'x')}};
    Records longer = longest;
    longer[0].payload += 'x';
    EXPECT_TRUE(absl::IsInvalidArgument(opened.journal->Begin(longer)));
    ASSERT_TRUE(opened.journal->Begin(longest).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(opened.journal->AppendAll(longer)));
    ASSERT_TRUE(opened.journal->Append(2, "end").ok());
  }
  EXPECT_EQ(Left().size(), 2u);
  fs::resize_file(directory_ / kFirst, kMostGenerationBytes + 1);  // a hole
  EXPECT_THAT(OpenError(), HasSubstr("no generation of a journal has more than"));
}

TEST_F(JournalFileTest, SaysThatItsNumbersAreUsedUp) {
  Leave(kOld);
  fs::rename(directory_ / kFirst, directory_ / "generation-9999999999");
  EXPECT_THAT(OpenError(), HasSubstr("is the last number of all"));
}

}  // namespace
}  // namespace bdn
