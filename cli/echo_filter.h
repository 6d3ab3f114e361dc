#ifndef BANDONEON_CLI_ECHO_FILTER_H_
#define BANDONEON_CLI_ECHO_FILTER_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bdn::cli {

// A filter for the standard error of a job's processes. It leaves out whatever only repeats why the
// job failed: each process that is not the cause prints a traceback or a line of log about it. Not
// thread-safe.
class EchoFilter {
 public:
  // Returns the lines to print once `process` has printed this whole one. A traceback is held back
  // until the line that names its exception.
  std::vector<std::string> Pass(size_t process, std::string_view line);
  // Returns whether lines of the process are held back; pieces of lines must then not be printed
  // before them.
  bool Holds(size_t process) const { return held_.count(process) != 0; }
  // Returns the lines held back of a process that has ended.
  std::vector<std::string> Flush(size_t process);
  // Notes that the user has interrupted the job: from now on interruptions, too, are repetitions.
  void Interrupt() { is_interrupted_ = true; }

 private:
  bool IsEcho(std::string_view exception) const;
  // Returns whether a line of a daemon's log repeats what another process has said.
  bool IsEchoOfLog(size_t process, std::string_view line);

  bool is_interrupted_ = false;
  std::map<size_t, std::vector<std::string>> held_;   // by process: an incomplete traceback
  std::vector<std::pair<size_t, std::string>> said_;  // errors in logs, each with its process
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_ECHO_FILTER_H_
