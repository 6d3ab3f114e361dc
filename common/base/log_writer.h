#ifndef BANDONEON_COMMON_BASE_LOG_WRITER_H_
#define BANDONEON_COMMON_BASE_LOG_WRITER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace bdn {

// A writer of text to a descriptor, on a thread of its own, so that a reader that takes nothing
// holds no caller up. As long as the descriptor accepts text, Write returns only when its text is
// written: a process that dies in the next instant has said its last line. Once a text has waited
// for `patience`, no caller waits any more until all has been written. A text that would make more
// than `most_bytes` wait is dropped, and counted in a line of its own once all texts before it are
// written. Where the system lets no thread start, Write writes by itself, and may wait.
// Thread-safe.
class LogWriter {
 public:
  struct Options {
    int fd = 2;  // borrowed
    uint64_t most_bytes = uint64_t{1} << 20;
    absl::Duration patience = absl::Milliseconds(100);
    // Returns the line, with its end, that says how many texts were dropped.
    std::function<std::string(uint64_t dropped)> gap_line;
  };

  explicit LogWriter(Options options) : options_(std::move(options)) {}
  // Drops the texts that could not be written yet.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Writes `text`, which is whole lines with their ends.
  void Write(std::string text);
  // Waits until all is written; returns false when `most` passed before.
  bool Flush(absl::Duration most);

 private:
  void Run();
  // Writes all of `text`; returns false where the descriptor refuses the rest for good, or the
  // writer closes.
  bool WriteOut(const std::string& text) const;
  // Waits until the descriptor takes bytes; returns false when the writer is closing.
  bool WaitForRoom() const;
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AwaitWritten(uint64_t number, absl::Duration most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const SteadyClock clock_;
  int stop_fd_ = -1;  // an eventfd that ends the thread's wait; set once, before the thread starts
  Mutex mu_;
  CondVar added_;
  CondVar written_;
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mu_);  // the first text is being written
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_added_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_written_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_dropped_ ABSL_GUARDED_BY(mu_) = 0;  // texts dropped and not yet counted in a line
  bool is_stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LOG_WRITER_H_
