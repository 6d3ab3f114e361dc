#include "cli/command_flags.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/nearest_name.h"

namespace bdn::cli {
namespace {

template <typename... Args>
absl::Status Bad(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

// Returns the flag that `arg` ("--push", "--push=fp16", "-n") names, or null.
const Flag* FindFlag(std::span<const Flag> flags, std::string_view arg) {
  const auto named = [&](const Flag& flag) {
    if (arg.substr(0, 2) == "--") return arg.substr(2, arg.find('=') - 2) == flag.name;
    return flag.letter != 0 && arg.size() == 2 && arg[0] == '-' && arg[1] == flag.letter;
  };
  const auto found = std::find_if(flags.begin(), flags.end(), named);
  return found == flags.end() ? nullptr : &*found;
}

absl::Status UnknownFlag(std::span<const Flag> flags, std::string_view arg) {
  const std::string given(arg.substr(0, arg.find('=')));
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.push_back(std::string("--") + flag.name);
  names.emplace_back("--help");
  // Every other letter is equally near to a single one, so a suggestion would mean nothing.
  const bool is_word = given.size() > 2;
  return Bad("unknown option %s%s", given, is_word ? DidYouMean(given, names) : "");
}

}  // namespace

std::string DidYouMean(std::string_view word, std::span<const std::string> known) {
  std::vector<std::string> longer;
  for (const std::string& name : known) {
    if (name.starts_with(word)) longer.push_back(name);
  }
  // A word that is cut short is a surer sign than one that is misspelt.
  const std::string best = longer.size() == 1 ? longer[0] : NearestName(word, known);
  return best.empty() ? "" : absl::StrFormat("; did you mean '%s'?", best);
}

absl::StatusOr<CommandFlags> CommandFlags::Parse(std::span<const Flag> flags,
                                                 std::span<const std::string> args,
                                                 std::span<const std::string_view> repeated) {
  CommandFlags parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      parsed.command_.assign(args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (arg.empty() || arg[0] != '-') {
      return Bad("unexpected argument '%s' (the command to run goes behind --)", arg);
    }
    const Flag* flag = FindFlag(flags, arg);
    if (flag == nullptr) return UnknownFlag(flags, arg);
    const size_t equals = arg.find('=');
    std::string value;
    if (flag->value == nullptr) {
      if (equals != std::string::npos) return Bad("option --%s takes no value", flag->name);
    } else if (equals != std::string::npos) {
      value = arg.substr(equals + 1);
      // A value may begin with a dash; only "--" never is one.
    } else if (i + 1 < args.size() && args[i + 1] != "--") {
      value = args[++i];
    } else {
      return Bad("option %s lacks its value (%s)", arg, flag->value);
    }
    std::vector<std::string>& values = parsed.values_[flag->name];
    if (!values.empty() &&
        std::find(repeated.begin(), repeated.end(), flag->name) == repeated.end()) {
      return Bad("option --%s is given twice: %s and %s", flag->name, values.back(), value);
    }
    values.push_back(value);
  }
  return parsed;
}

bool CommandFlags::Has(std::string_view name) const { return values_.find(name) != values_.end(); }

std::string CommandFlags::Text(std::string_view name, std::string_view otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::string(otherwise) : found->second.back();
}

std::vector<std::string> CommandFlags::All(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>() : found->second;
}

absl::StatusOr<int64_t> CommandFlags::Int(std::string_view name, int64_t otherwise, int64_t least,
                                          int64_t most) const {
  if (!Has(name)) return otherwise;
  int64_t number;
  if (!absl::SimpleAtoi(Text(name), &number) || number < least || number > most) {
    return Bad("option --%s is '%s': expected a whole number from %d to %d", std::string(name),
               Text(name), least, most);
  }
  return number;
}

absl::StatusOr<std::chrono::milliseconds> CommandFlags::Duration(
    std::string_view name, std::chrono::milliseconds otherwise) const {
  if (!Has(name)) return otherwise;
  absl::Duration value;
  if (!absl::ParseDuration(Text(name), &value) || value < absl::ZeroDuration() ||
      value > absl::Hours(24)) {
    return Bad("option --%s is '%s': expected a duration such as 500ms, 5s or 2m",
               std::string(name), Text(name));
  }
  return absl::ToChronoMilliseconds(value);
}

std::string CommandFlags::Help(std::span<const Flag> flags) {
  std::string text;
  for (const Flag& flag : flags) {
    const std::string letter = flag.letter == 0 ? "    " : absl::StrFormat("-%c, ", flag.letter);
    const std::string name = flag.value == nullptr
                                 ? std::string(flag.name)
                                 : absl::StrFormat("%s %s", flag.name, flag.value);
    text += absl::StrFormat("  %s--%-20s %s\n", letter, name, flag.help);
  }
  return text;
}

}  // namespace bdn::cli
