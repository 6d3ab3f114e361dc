#ifndef BANDONEON_CLI_ECHO_FILTER_H_
#define BANDONEON_CLI_ECHO_FILTER_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bdn::cli {

// Leaves out of a job's standard error what only repeats why it failed: each process that is not the
// cause has a traceback or a line of log about it. Not thread-safe.
class EchoFilter {
 public:
  // The lines to print once `process` has printed this whole one: a traceback is held back until the
  // line that names its exception.
  std::vector<std::string> Pass(size_t process, std::string_view line);
  // Whether lines of the process are held back, so that pieces of lines must not pass by them.
  bool Holds(size_t process) const { return held_.count(process) != 0; }
  // Returns the lines that were held back of a process that has ended.
  std::vector<std::string> Flush(size_t process);
  // The user has interrupted the job: from now on interruptions repeat that, too.
  void Interrupt() { is_interrupted_ = true; }

 private:
  bool IsEcho(std::string_view exception) const;
  // Whether a line of the daemons' log says again what was said.
  bool IsEchoOfLog(size_t process, std::string_view line);

  bool is_interrupted_ = false;
  std::map<size_t, std::vector<std::string>> held_;  // by process, where a traceback is not complete
  std::vector<std::pair<size_t, std::string>> said_;  // errors in logs, and by which process
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_ECHO_FILTER_H_
