#include "common/cluster/trace_dump.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <system_error>

#include "common/base/status.h"

namespace bdn {
namespace {

std::optional<Rank> ReadRank(std::string_view text) {
  Rank rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size() || rank < 0) return std::nullopt;
  return rank;
}

bool Consume(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Reads one part of the list: "workers", "worker-3" or "worker-8..15".
std::optional<DumpRanks> ReadRanks(std::string_view text) {
  for (const Role role : {Role::kWorker, Role::kServer}) {
    std::string_view rest = text;
    if (!Consume(RoleName(role), &rest)) continue;
    if (rest == "s") return DumpRanks{role, 0, std::numeric_limits<Rank>::max()};
    if (!Consume("-", &rest)) continue;
    const size_t dots = rest.find("..");
    const auto first = ReadRank(rest.substr(0, dots));
    const auto last = dots == rest.npos ? first : ReadRank(rest.substr(dots + 2));
    if (first && last && *first <= *last) return DumpRanks{role, *first, *last};
  }
  return std::nullopt;
}

}  // namespace

bool DumpRequest::Wants(const NodeInfo& node) const {
  if (nodes.empty()) return true;
  return std::any_of(nodes.begin(), nodes.end(), [&](const DumpRanks& ranks) {
    return ranks.role == node.role && node.rank >= ranks.first && node.rank <= ranks.last;
  });
}

absl::StatusOr<std::vector<DumpRanks>> ParseDumpNodes(std::string_view text) {
  std::vector<DumpRanks> nodes;
  if (text.empty()) return nodes;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string_view part = text.substr(at, end - at);
    at = end + 1;
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    const auto ranks = ReadRanks(part);
    if (!ranks) {
      return InvalidArgument(
          "nodes '%s': '%s' names none; expected workers, servers, worker-3 or worker-8..15, with "
          "commas between them",
          text, part);
    }
    if (nodes.size() == kMostDumpNodes) {
      return InvalidArgument("nodes '%s': more than %d parts", text, kMostDumpNodes);
    }
    nodes.push_back(*ranks);
  }
  return nodes;
}

}  // namespace bdn
