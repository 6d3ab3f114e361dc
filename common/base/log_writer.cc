#include "common/base/log_writer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/thread.h"

namespace bdn {
namespace {

// A pipe that poll calls writable has room for so many bytes (PIPE_BUF), so that a write of no more
// never blocks.
constexpr size_t kMostAtOnce = 4096;

}  // namespace

LogWriter::~LogWriter() {
  {
    MutexLock lock(&mu_);
    is_closed_ = true;
    added_.SignalAll();
    const uint64_t one = 1;
    if (stop_fd_ >= 0) (void)!write(stop_fd_, &one, sizeof(one));
  }
  if (thread_.joinable()) thread_.join();
  if (stop_fd_ >= 0) close(stop_fd_);
}

void LogWriter::Start() {
  if (thread_.joinable()) return;
  if (stop_fd_ < 0) stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  try {
    thread_ = StartThread("bdn-log", [this] { Run(); });
  } catch (const std::system_error&) {  // no thread can be had now: the next line tries again
  }
}

void LogWriter::Write(std::string text) {
  MutexLock lock(&mu_);
  Start();
  // Without a thread the caller writes by itself, and may wait for a slow reader: better than to
  // lose the line.
  if (!thread_.joinable()) return (void)WriteOut(text);
  // A text that finds the queue empty is taken whatever its length, or it could never be written.
  if (waiting_bytes_ + text.size() > options_.most_bytes && !waiting_.empty()) {
    ++num_dropped_;
    return;
  }
  waiting_bytes_ += text.size();
  waiting_.push_back(std::move(text));
  const uint64_t number = ++num_added_;
  added_.Signal();
  if (!is_stalled_ && !AwaitWritten(number, options_.patience)) is_stalled_ = true;
}

bool LogWriter::Flush(absl::Duration most) {
  MutexLock lock(&mu_);
  return AwaitWritten(num_added_, most);
}

bool LogWriter::AwaitWritten(uint64_t number, absl::Duration most) {
  const absl::Time end = clock_.Now() + most;
  while (num_written_ < number) {
    if (clock_.Now() >= end) return false;
    clock_.WaitUntil(&written_, &mu_, end);
  }
  return true;
}

void LogWriter::Run() {
  mu_.Lock();
  for (;;) {
    while (waiting_.empty() && !is_closed_) added_.Wait(&mu_);
    if (is_closed_) break;
    // The text stays at the front of the queue while it is written: only this thread removes texts,
    // and a deque's push_back moves none.
    const std::string& text = waiting_.front();
    mu_.Unlock();
    const bool is_written = WriteOut(text);
    mu_.Lock();
    waiting_bytes_ -= text.size();
    waiting_.pop_front();
    ++num_written_;
    num_dropped_ += is_written ? 0 : 1;
    // The gap is told once the queue is empty: its line is written by itself and needs no room
    // there.
    if (waiting_.empty() && is_written && num_dropped_ > 0) {
      const uint64_t dropped = std::exchange(num_dropped_, 0);
      mu_.Unlock();
      const bool is_told = WriteOut(options_.gap_line(dropped));
      mu_.Lock();
      num_dropped_ += is_told ? 0 : dropped;
    }
    if (waiting_.empty()) is_stalled_ = false;
    written_.SignalAll();
  }
  mu_.Unlock();
}

bool LogWriter::WaitForRoom() const {
  pollfd fds[] = {{options_.fd, POLLOUT, 0}, {stop_fd_, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) continue;
  return fds[1].revents == 0;
}

// Signals are blocked on this thread: where nobody reads any more, write returns an error, and
// there is no SIGPIPE.
bool LogWriter::WriteOut(const std::string& text) const {
  size_t done = 0;
  while (done < text.size()) {
    if (!WaitForRoom()) return false;
    const ssize_t count =
        write(options_.fd, text.data() + done, std::min(text.size() - done, kMostAtOnce));
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    }
  }
  return true;
}

}  // namespace bdn
