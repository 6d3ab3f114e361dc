#include "cli/commands.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

// A setting that a local job decides itself, and the advice in place of it.
struct Reserved {
  const char* name;
  const char* instead;
};
constexpr Reserved kReserved[] = {
    {"workers", "use -n"},
    {"servers", "use -s"},
    {"seed", "use --seed"},
    {"push", "use --push"},
    {"pull", "use --pull"},
    {"link", "use --link"},
    {"scheduler", "it is started here"},
    {"rank", "each process has its own"},
    {"job-id", "each run has its own"},
    {"listen", "free ports are taken"},
    {"port-file", "it is private to the run"},
};

absl::Status AddCodec(const CommandFlags& flags, const char* name, Variables* variables) {
  if (!flags.Has(name)) return absl::OkStatus();
  const std::string spec = flags.Text(name);
  if (const int code = bdn_check_codec(spec.c_str(), nullptr, 0); code != BDN_OK) {
    const absl::Status why = LastError(code);
    return absl::InvalidArgumentError(absl::StrFormat("option --%s: %s", name, why.message()));
  }
  variables->emplace_back(VariableName(name), spec);
  return absl::OkStatus();
}

}  // namespace

absl::Status LastError(int code) {
  return absl::Status(static_cast<absl::StatusCode>(code), bdn_last_error());
}

std::string StatsOf(bdn_worker* worker) {
  // Counters that grow meanwhile may take more digits than when the size was asked for.
  std::string text;
  size_t needed = bdn_stats_json(worker, nullptr, 0);
  while (needed > text.size()) {
    text.assign(needed, '\0');
    needed = bdn_stats_json(worker, text.data(), text.size());
  }
  text.resize(needed == 0 ? 0 : needed - 1);  // without the final NUL
  return text;
}

int UsageError(const std::string& command, const absl::Status& status) {
  fprintf(stderr, "bandoneon %s: %s\nSee bandoneon %s --help.\n", command.c_str(),
          std::string(status.message()).c_str(), command.c_str());
  return kUsage;
}

bool PrintedHelp(Arguments args, const std::string& usage, std::span<const Flag> flags,
                 const std::string& examples) {
  // Behind "--" is the command to run, whose --help is its own.
  const auto end = std::find(args.begin(), args.end(), "--");
  const auto asked = [](const std::string& arg) { return arg == "--help" || arg == "-h"; };
  if (std::none_of(args.begin(), end, asked)) return false;
  printf("%s\n%s  -h, --%-20s %s\n\nExamples:\n%s", usage.c_str(),
         CommandFlags::Help(flags).c_str(), "help", "this text", examples.c_str());
  return true;
}

std::string VariableName(const std::string& setting) {
  std::string name = "BANDONEON_";
  for (const char c : setting) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::vector<Flag> WithCredentials(std::span<const Flag> flags) {
  std::vector<Flag> all(flags.begin(), flags.end());
  all.insert(
      all.end(),
      {{"token", 0, "TEXT", "the job's secret; others may read a command line [$BANDONEON_TOKEN]"},
       {"token-file", 0, "PATH", "a file that holds it [$BANDONEON_TOKEN_FILE]"},
       {"tls-ca", 0, "PATH", "who may certify the scheduler [$BANDONEON_TLS_CA]"},
       {"tls-cert", 0, "PATH", "a certificate of any role of the job [$BANDONEON_TLS_CERT]"},
       {"tls-key", 0, "PATH", "its private key [$BANDONEON_TLS_KEY]"},
       {"insecure", 0, nullptr, "ask another host without certificates, the token in the clear"}});
  return all;
}

absl::StatusOr<Variables> JobSettings(const CommandFlags& flags) {
  Variables variables;
  for (const char* direction : {"push", "pull"}) {
    if (absl::Status added = AddCodec(flags, direction, &variables); !added.ok()) return added;
  }
  if (flags.Has("link")) variables.emplace_back(VariableName("link"), flags.Text("link"));
  for (const std::string& setting : flags.All("set")) {
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    if (equals == std::string::npos || name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("option --set is '%s': expected name=value", setting));
    }
    for (const Reserved& reserved : kReserved) {
      if (name == reserved.name) {
        return absl::InvalidArgumentError(
            absl::StrFormat("option --set %s: %s", setting, reserved.instead));
      }
    }
    const std::string variable = VariableName(name);
    const auto same = [&](const auto& other) { return other.first == variable; };
    if (std::any_of(variables.begin(), variables.end(), same)) {
      return absl::InvalidArgumentError(absl::StrFormat("setting %s is given twice", name));
    }
    variables.emplace_back(variable, setting.substr(equals + 1));
  }
  return variables;
}

void AddFabricProvider(const CommandFlags& flags, bool local, Variables* settings) {
  if (!flags.Has("provider")) return;
  const std::string provider = flags.Text("provider");
  settings->emplace_back(VariableName("fabric-provider"), provider);
  const std::string interface = VariableName("fabric-interface");
  const auto same = [&](const auto& other) { return other.first == interface; };
  // A user who says an interface knows better, also by the environment, which the processes
  // inherit.
  const bool is_said =
      getenv(interface.c_str()) != nullptr || std::any_of(settings->begin(), settings->end(), same);
  if (local && !is_said && provider.rfind("tcp", 0) == 0) {
    settings->emplace_back(interface, "127.0.0.1");
  }
}

Variables QuietUnlessAsked(Variables settings) {
  const std::string variable = VariableName("log-level");
  const auto same = [&](const auto& other) { return other.first == variable; };
  if (getenv(variable.c_str()) == nullptr && std::none_of(settings.begin(), settings.end(), same)) {
    settings.emplace_back(variable, "warning");
  }
  return settings;
}

}  // namespace bdn::cli
