#ifndef BANDONEON_SCHEDULER_JOURNAL_FILE_H_
#define BANDONEON_SCHEDULER_JOURNAL_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "scheduler/journal_format.h"

namespace bdn {

// The journal of a scheduler, so that one that starts again knows all that its predecessor has
// announced: records in a directory, each durable before the call that appends it returns. Not
// thread-safe, and every call may block for as long as the disk needs: the owner calls it on a
// thread that may wait.
//
// The directory has a file named `lock`, which the scheduler holds locked while it lives, and
// generations: files whose names are numbered, `generation-0000000007`. Each scheduler makes a
// generation of its own, with the next number. The newest complete generation is the journal; it
// is complete when its mark is there (journal_format.h). Other files are left alone.
//
// A crash, of the process or of the machine, leaves the following:
//
//   in Open                the former generation, as it was. The new one is there or not; it is not
//                          complete, so it does not count, and a later Begin removes it.
//   in Begin, before the   the same. The new generation has some of its records, or none.
//   mark is durable
//   in Begin, after that   the new generation, complete: exactly the records that Begin was given.
//                          Older ones may be there still; they do not count, and a later Begin
//                          removes them. At no moment are both of them lost.
//   in Append, AppendAll   all records appended before, and the first of the new ones: none to all,
//                          each of them whole.
//   at any other moment    exactly the records given to Begin, and appended with success since.
//
// One exception: where an append fails, and the file cannot be shortened again either, the next
// scheduler may find some of its records, until a later append has shortened the file.
//
// Several machines may share the directory. Where their locks fail, a scheduler that was stopped
// and goes on beside its successor appends nothing more with success: an append looks for a newer
// generation after its records are durable, and Open makes its generation before it reads the older
// ones. So either the append fails, or the successor has its records.
class JournalFile final {
 public:
  // Is asked before each system call that changes the directory or a file of it, by the call's
  // name. Returns 0, or the errno with which that call is to fail. For tests.
  using Fault = std::function<int(std::string_view call)>;

  struct Opened;

  // Opens the journal of the job in the directory, which is made (0700) if it is not there; its
  // parent must be. Returns the records that a former scheduler of the job left.
  //
  // AlreadyExists: another scheduler uses the journal. InvalidArgument: the directory or a file is
  // of another job, version or user, is open to other users, or is no regular file. DataLoss: a
  // file is damaged, or the newest complete generation is gone. Others as for Append. Each error
  // names the file; one about its rights or content says what to do. After an error no generation
  // of this call is left.
  static absl::StatusOr<Opened> Open(const std::string& directory, const std::string& job,
                                     Fault fault = {});
  // Leaves all generations as they are, and gives the lock back.
  ~JournalFile() = default;
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  // Begins this scheduler's generation with the records, which say all that is to be kept of the
  // older ones, and removes those. A later call does the same with a further generation, to make a
  // long journal short. Errors as for Append; where one of the older files cannot be removed, that
  // is none. After an error the older generations count as before, and nothing can be appended
  // until a call succeeds; only a further generation that cannot even be made leaves the current
  // one in use.
  absl::Status Begin(std::span<const JournalRecord> records);

  // Appends one record, or several at the cost of one. REQUIRES: types from 1 to kMostRecordType.
  //
  // FailedPrecondition: another scheduler has taken the journal over, or its directory was removed,
  // so that nothing may be announced any more; or Begin has not succeeded. InvalidArgument: a
  // payload has more than kMostRecordBytes. ResourceExhausted: there is no room, on the disk or
  // within kMostGenerationBytes. Internal: the system refuses it for another reason. After an
  // error the file ends with the records in front of these, and a later call may succeed; where it
  // cannot even be shortened to that, the later call does that first.
  absl::Status Append(uint8_t type, std::string payload);
  absl::Status AppendAll(std::span<const JournalRecord> records);

  // Returns the length of this scheduler's generation.
  uint64_t bytes() const { return size_; }

 private:
  // The records of the newest complete generation, and its number; 0: there is none.
  struct Found {
    uint64_t number = 0;
    std::vector<JournalRecord> records;
  };

  JournalFile(std::string directory, JournalHeader header, Fault fault);

  absl::Status OpenDirectory();
  absl::Status Lock();
  // Looks only at generations with numbers below `limit`.
  absl::StatusOr<Found> FindNewest(uint64_t limit) const;
  absl::StatusOr<std::string> ReadWhole(const std::string& name) const;
  absl::StatusOr<std::vector<uint64_t>> ListGenerations() const;  // the newest first
  // Makes the next generation, with header_, and writes into that from now on.
  absl::Status MakeGeneration();
  absl::Status WriteGeneration(std::span<const JournalRecord> records);
  // Writes the bytes at the offset, and returns when they are durable.
  absl::Status WriteDurably(int fd, const std::string& name, uint64_t offset,
                            std::string_view bytes) const;
  absl::Status SyncDirectory() const;
  // Shortens the file to size_.
  absl::Status RollBack();
  void RemoveOlder() const;
  // Returns FailedPrecondition if the own generation is no longer the newest.
  absl::Status CheckNewest() const;

  std::string PathOf(const std::string& name) const { return directory_ + "/" + name; }
  bool Fails(std::string_view call) const;

  const std::string directory_;
  const Fault fault_;
  JournalHeader header_;
  FileDescriptor directory_fd_;
  FileDescriptor lock_;
  FileDescriptor file_;         // of the own generation
  uint64_t number_ = 0;         // of the own generation
  uint64_t size_ = 0;           // of the own generation, up to its last record
  bool has_begun_ = false;      // the own generation is complete
  bool is_rolled_back_ = true;  // the file ends at size_
};

// The journal, and what was in it.
struct JournalFile::Opened {
  std::unique_ptr<JournalFile> journal;
  std::vector<JournalRecord> records;  // in the order in which they were appended
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOURNAL_FILE_H_
