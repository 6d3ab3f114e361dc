#include "replay/replay_settings.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/config.h"
#include "common/base/nearest_name.h"
#include "common/base/status.h"
#include "compressors/codec_spec.h"

namespace bdn {
namespace {

constexpr uint32_t kMostServers = 4096;
constexpr uint32_t kMostThreads = 1024;
// The scheduler's limits.
constexpr uint64_t kLeastPartition = 4096;
constexpr uint64_t kMostPartition = 1 << 30;

struct Known {
  const char* name;
  const char* value;
  const char* help;
};
constexpr Known kKnown[] = {
    {"link", "RATE", "each node's link, both ways, e.g. 100mbit"},
    {"push", "SPEC", "codec of gradients to the servers"},
    {"pull", "SPEC", "codec of sums to the workers"},
    {"partition-bytes", "SIZE", "largest piece of a tensor"},
    {"fusion-bytes", "SIZE", "tensors under this share a key of up to this"},
    {"max-bytes-in-flight", "SIZE", "encoded bytes that are sent at once"},
    {"servers", "COUNT", "servers, each with a link of its own"},
    {"threads", "COUNT", "threads of each worker that encode and decode"},
    {"shards", "COUNT", "threads of each server that sum"},
    {"drop", "RANK", "without this worker; repeatable"},
    {"median", nullptr, "each operation takes its median: what if nobody lagged"},
};

struct Refused {
  const char* name;
  const char* why;
};
constexpr Refused kRefused[] = {
    {"overlap", "the recording does not say which part of the forward pass needs which tensor"},
    {"connections", "a link's rate holds for all connections together"},
    {"io-threads", "it does not share a machine's processors out among threads"},
    {"min-compress-bytes", "the recording does not say which tensors share a key"},
    {"tau", "what a program does between two exchanges changes with it"},
    {"transport", "the recording has the times of the one that it went by alone"},
    {"workers", "say --workers COUNT"},
};

std::vector<std::string> KnownNames() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.emplace_back(known.name);
  return names;
}

// Shows a setting with carets under its part from `begin` on.
std::string Shown(const std::string& text, size_t begin, size_t length) {
  return absl::StrCat("\n  ", text, "\n  ", std::string(begin, ' '),
                      std::string(std::max<size_t>(length, 1), '^'));
}

absl::Status BadValue(const std::string& text, size_t begin, const std::string& expected) {
  return InvalidArgument("setting '%s': %s%s", text.substr(0, begin - 1), expected,
                         Shown(text, begin, text.size() - begin));
}

absl::StatusOr<std::string> Canonical(const std::string& name, const std::string& value) {
  const auto codec = ParseCodecSpec(value);
  if (!codec.ok()) {
    return InvalidArgument("setting '%s': %s", name, std::string(codec.status().message()));
  }
  return codec->spec();
}

absl::Status Unknown(const std::string& text, const std::string& name) {
  const std::vector<std::string> names = KnownNames();
  const std::string list = absl::StrJoin(names, ", ");
  for (const Refused& refused : kRefused) {
    if (name != refused.name) continue;
    return Unimplemented("a replay cannot predict '%s': %s. It can set: %s", name, refused.why,
                         list);
  }
  const std::string near = NearestName(name, names);
  return InvalidArgument("a replay has no setting '%s'%s%s\nIt can set: %s", name,
                         near.empty() ? "" : absl::StrCat("; did you mean '", near, "'?"),
                         Shown(text, 0, name.size()), list);
}

absl::Status SetBytes(const std::string& name, const std::string& value, const std::string& text,
                      size_t begin, ReplaySettings* settings) {
  const auto bytes = ParseBytes(value);
  if (name == "partition-bytes") {
    if (!bytes.ok() || *bytes < kLeastPartition || *bytes > kMostPartition) {
      return BadValue(text, begin, "expected bytes from 4KiB to 1GiB, as 4MiB");
    }
    settings->partition_bytes = *bytes;
    return absl::OkStatus();
  }
  const bool may_be_0 = name == "fusion-bytes";
  if (!bytes.ok() || (*bytes == 0 && !may_be_0)) {
    return BadValue(text, begin, "expected bytes, as 4MiB");
  }
  (may_be_0 ? settings->fusion_bytes : settings->max_bytes_in_flight) = *bytes;
  return absl::OkStatus();
}

absl::Status SetCount(const std::string& name, const std::string& value, const std::string& text,
                      size_t begin, ReplaySettings* settings) {
  const uint32_t most = name == "servers" ? kMostServers : kMostThreads;
  uint32_t count = 0;
  if (!absl::SimpleAtoi(value, &count) || count == 0 || count > most) {
    return BadValue(text, begin, absl::StrFormat("expected a number from 1 to %d", most));
  }
  (name == "servers"   ? settings->servers
   : name == "threads" ? settings->threads
                       : settings->shards) = count;
  return absl::OkStatus();
}

// Sets what the table knows. `begin` is the place of the value in `text`.
absl::Status SetValue(const std::string& name, const std::string& value, const std::string& text,
                      size_t begin, ReplaySettings* settings) {
  if (name == "link") {
    const auto rate = ParseRate(value);
    if (!rate.ok() || *rate <= 0) return BadValue(text, begin, "expected a rate, as 100mbit");
    settings->link = *rate;
  } else if (name == "push" || name == "pull") {
    BDN_ASSIGN_OR_RETURN((name == "push" ? settings->push : settings->pull),
                         Canonical(name, value));
  } else if (name.ends_with("-bytes") || name == "max-bytes-in-flight") {
    return SetBytes(name, value, text, begin, settings);
  } else if (name == "servers" || name == "threads" || name == "shards") {
    return SetCount(name, value, text, begin, settings);
  } else if (name == "drop") {
    Rank rank = -1;
    if (!absl::SimpleAtoi(value, &rank) || rank < 0) {
      return BadValue(text, begin, "expected the rank of a worker, from 0 on");
    }
    settings->drop.push_back(rank);
  } else {
    settings->median = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddReplaySetting(const std::string& text, ReplaySettings* settings) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const bool has_value = equals != std::string::npos;
  const size_t begin = has_value ? equals + 1 : text.size();
  const std::string value = text.substr(begin);
  const auto known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                  [&](const Known& one) { return name == one.name; });
  if (known == std::end(kKnown)) return Unknown(text, name);
  if (has_value != (known->value != nullptr)) {
    return InvalidArgument("setting '%s' is given as %s%s", name, name,
                           known->value == nullptr ? "" : absl::StrCat("=", known->value));
  }
  const auto given = [&](const std::string& before) {
    return before == name || before.starts_with(name + "=");
  };
  if (name != "drop" && std::any_of(settings->texts.begin(), settings->texts.end(), given)) {
    return InvalidArgument("setting '%s' is given twice", name);
  }
  BDN_RETURN_IF_ERROR(SetValue(name, value, text, begin, settings));
  settings->texts.push_back(text);
  return absl::OkStatus();
}

std::string DescribeReplaySettings() {
  std::string text;
  for (const Known& known : kKnown) {
    const std::string left =
        known.value == nullptr ? known.name : absl::StrCat(known.name, "=", known.value);
    absl::StrAppendFormat(&text, "  %-28s%s\n", left, known.help);
  }
  return text;
}

}  // namespace bdn
