#ifndef BANDONEON_SCHEDULER_JOB_JOURNAL_H_
#define BANDONEON_SCHEDULER_JOB_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/job_event.h"
#include "scheduler/job_host.h"
#include "scheduler/job_options.h"
#include "scheduler/journal_file.h"

namespace bdn {

// The journal of a scheduler's jobs, one after the other: their events, as records of a
// JournalFile. Not thread-safe: the job that it logs calls it, under the lock of that job's host,
// and its owner calls it while no job is logged, or under that lock. Calls wait for the disk.
class JobJournal final : public JobLog {
 public:
  // Opens the journal in the directory. `job_id` is the setting; empty: any job's. Errors are those
  // of JournalFile::Open; InvalidArgument: the journal's job has other settings than `options`,
  // or was begun by a scheduler of another version.
  static absl::StatusOr<std::unique_ptr<JobJournal>> Open(const std::string& directory,
                                                          const std::string& job_id,
                                                          const JobOptions& options,
                                                          JournalFile::Fault fault = {});

  // Returns the log for a job that begins; for the first one with the events that a former
  // scheduler has left, whose job's facts replace those of `options`. An error is that of the disk.
  absl::StatusOr<JobHost::Logged> BeginJob(JobOptions* options);
  // The port at which the jobs' scheduler listens, so that the next one takes it again where any
  // free one would do; 0: not known.
  int port() const { return port_; }
  absl::Status SetPort(int port);
  // Notes that the job has ended, so that the next scheduler begins another.
  absl::Status EndJob();

  absl::Status Append(const JobEvent& event) override;
  State state() const override { return {file_->bytes(), is_failing_}; }
  bool IsLong() const override;
  void Shorten(const std::vector<JobEvent>& barriers) override;

 private:
  JobJournal(std::unique_ptr<JournalFile> file, std::string directory)
      : file_(std::move(file)), directory_(std::move(directory)) {}

  absl::Status ReadEvents(const std::vector<JournalRecord>& records, const JobOptions& options);
  // Makes a generation of these records; an append has to wait until that has succeeded.
  absl::Status Begin(std::vector<JournalRecord> records);
  absl::Status AppendRecord(JournalRecord record);
  // Logs that the journal cannot be written, or can be again.
  void Report(const absl::Status& status);

  const std::unique_ptr<JournalFile> file_;
  const std::string directory_;
  std::vector<JobEvent> former_;  // of the job that a former scheduler has left
  // The records that count for good: all but those of barriers.
  std::vector<JournalRecord> lasting_;
  std::optional<std::vector<JournalRecord>> to_begin_;  // not begun yet, after an error
  uint64_t barrier_bytes_ = 0;                          // appended since the last generation
  bool is_failing_ = false;
  int port_ = 0;
};

// The payload and type of an event's record, and the way back. InvalidArgument: no scheduler of
// this version writes such a record. Public for the fuzzer and tests.
JournalRecord ToRecord(const JobEvent& event);
absl::StatusOr<JobEvent> FromRecord(const JournalRecord& record);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_JOURNAL_H_
