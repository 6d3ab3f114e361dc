#include "cli/remote_worker.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace bdn::cli {
namespace {

constexpr int kMostWorkers = 1024;  // on one machine

// A script for sh, whatever shell the user has there, and so without a single quote. $1 is the
// grace, in tenths of a second. `go` ends the lines to be evaluated: without it the connection has
// broken. The command has a process group of its own, and is no background job, because a shell
// ignores SIGINT for those; so its number and then its exit code go to the other half of a pipe. A
// signal that comes before the group exists goes to the process alone.
constexpr char kScript[] = R"(
nl=$(printf "\nx"); nl=${nl%x}; grace=$1
while IFS= read -r line && [ "$line" != go ]; do eval "$line" || exit 126; done
[ "$line" = go ] || exit 126
exec 3<&0 4>&1
{ setsid sh -c "echo \$\$; exec \"\$@\" >&4 4>&-" sh "$@" </dev/null 3<&-; echo "$?"; } | {
  read -r child
  {
    while IFS= read -r name; do kill -s "$name" -- "-$child" || kill -s "$name" "$child"; done
    kill -s TERM -- "-$child" || kill -s TERM "$child"
    while [ "$grace" -gt 0 ] && kill -0 "$child"; do sleep 0.1; grace=$((grace - 1)); done
    kill -s KILL -- "-$child" || kill -s KILL "$child"
  } <&3 3<&- 4>&- >/dev/null 2>&1 & watcher=$!
  exec 3<&- 4>&-
  read -r code
  kill "$watcher"
  kill -s KILL -- "-$child" 2>/dev/null
  exit "${code:-126}"
}
)";

// Quotes text for the remote sh, whose variable nl is a line's end: the input is read by lines.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else if (c == '\n') {
      quoted += "'\"$nl\"'";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

absl::StatusOr<std::vector<RemoteHost>> ParseRemoteHosts(const std::string& text) {
  std::vector<RemoteHost> hosts;
  for (const auto part : absl::StrSplit(text, ',')) {
    const std::string word(part);
    RemoteHost host = {word, 1};
    // An IPv6 address has colons of its own: [::1]:2.
    const size_t colon = word.find(':', word.rfind(']') == std::string::npos ? 0 : word.rfind(']'));
    if (colon != std::string::npos) {
      host.destination = word.substr(0, colon);
      if (!absl::SimpleAtoi(word.substr(colon + 1), &host.workers)) host.workers = 0;
    }
    if (host.destination.size() > 2 && host.destination.front() == '[' &&
        host.destination.back() == ']') {
      host.destination = host.destination.substr(1, host.destination.size() - 2);
    }
    bool is_name = !host.destination.empty() && host.destination.front() != '-';
    for (const char c : host.destination) {
      is_name = is_name && (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                            std::string_view("@.-_:%").find(c) != std::string_view::npos);
    }
    if (!is_name || host.workers < 1 || host.workers > kMostWorkers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "option --ssh: '%s' is no host with a number of workers from 1 to %d, e.g. a:2,b:2", word,
          kMostWorkers));
    }
    for (const RemoteHost& other : hosts) {
      if (other.destination == host.destination) {
        return absl::InvalidArgumentError(
            absl::StrFormat("option --ssh names %s twice", host.destination));
      }
    }
    hosts.push_back(host);
  }
  return hosts;
}

std::string HostOf(const RemoteHost& host) {
  return host.destination.substr(host.destination.rfind('@') + 1);
}

std::vector<std::string> RemoteArgv(const RemoteHost& host, const std::vector<std::string>& options,
                                    std::chrono::milliseconds grace) {
  std::vector<std::string> argv = {"ssh", "-T"};
  // ssh takes the first of options that are given twice, so the user's come before ours.
  for (const std::string& option : options) argv.insert(argv.end(), {"-o", option});
  for (const char* option : {"BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3"}) {
    argv.insert(argv.end(), {"-o", option});
  }
  argv.insert(argv.end(), {"--", host.destination});
  argv.push_back(absl::StrFormat("exec sh -c '%s' bandoneon-worker %d", kScript,
                                 std::max<int64_t>(grace.count() / 100, 1)));
  return argv;
}

std::string RemoteInput(const std::string& directory, const Variables& variables,
                        const std::vector<std::string>& command) {
  std::string text = absl::StrFormat("cd %s\n", Quoted(directory));
  for (const auto& [name, value] : variables) {
    text += absl::StrFormat("export %s=%s\n", name, Quoted(value));
  }
  text += "set --";
  for (const std::string& word : command) text.append(" ").append(Quoted(word));
  return text + "\ngo\n";
}

bool IsVariableName(const std::string& name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
         });
}

Variables HandedOver() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    bool is_ours = name.rfind("BANDONEON_", 0) == 0 && IsVariableName(std::string(name));
    for (const char* of_paths : {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}) {
      is_ours = is_ours || name == of_paths;
    }
    if (is_ours) variables.emplace_back(name, text.substr(equals + 1));
  }
  return variables;
}

}  // namespace bdn::cli
