#include "common/base/rank_group.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kRanks = "ranks ";
constexpr std::string_view kComma = ", ";
constexpr std::string_view kAmong = " among ranks ";
// A text may name so many ranks: no job has more workers.
constexpr size_t kMostRanks = size_t{1} << 20;

// Returns how many ranks from `first` on follow one another at the same distance.
size_t RunFrom(const std::vector<Rank>& ranks, size_t first) {
  size_t end = first + 1;
  while (end < ranks.size() && ranks[end] - ranks[end - 1] == ranks[first + 1] - ranks[first]) {
    ++end;
  }
  return end - first;
}

// Reads a number that is not negative; false where the text is none.
bool ReadNumber(std::string_view text, Rank* number) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && at == end && *number >= 0 && !text.empty();
}

// Adds the ranks of "8", "0-3" or "16-64/8"; false where the text is none of these.
bool AddRun(std::string_view text, std::vector<Rank>* ranks) {
  Rank step = 1;
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    if (!ReadNumber(text.substr(slash + 1), &step) || step < 1) return false;
    text = text.substr(0, slash);
  }
  const size_t dash = text.find('-');
  Rank first = 0;
  if (!ReadNumber(text.substr(0, dash), &first)) return false;
  Rank last = first;
  if (dash != std::string_view::npos) {
    if (!ReadNumber(text.substr(dash + 1), &last) || last < first) return false;
  }
  const int64_t end = last;
  for (int64_t rank = first; rank <= end; rank += step) {
    if (ranks->size() >= kMostRanks) return false;
    ranks->push_back(static_cast<Rank>(rank));
  }
  return true;
}

}  // namespace

absl::StatusOr<RankGroup> RankGroup::Of(std::vector<Rank> ranks) {
  if (ranks.empty()) return InvalidArgument("a group of ranks needs at least one rank");
  std::ranges::sort(ranks);
  if (ranks.front() < 0) return InvalidArgument("rank %d of a group is negative", ranks.front());
  if (const auto twice = std::ranges::adjacent_find(ranks); twice != ranks.end()) {
    return InvalidArgument("a group lists rank %d twice", *twice);
  }
  return RankGroup(std::move(ranks));
}

std::string RankGroup::ToString() const {
  if (is_all()) return "all ranks";
  std::string text;
  for (size_t i = 0; i < ranks_->size();) {
    size_t run = i + 1 < ranks_->size() ? RunFrom(*ranks_, i) : 1;
    const Rank first = (*ranks_)[i];
    const Rank step = run > 1 ? (*ranks_)[i + 1] - first : 1;
    // Two ranks are shorter one by one, and the second may begin a longer run.
    if (run == 2) run = 1;
    text += i == 0 ? kRanks : kComma;
    text += std::to_string(first);
    if (run > 1) text += "-" + std::to_string((*ranks_)[i + run - 1]);
    if (run > 1 && step > 1) text += "/" + std::to_string(step);
    i += run;
  }
  return text;
}

absl::StatusOr<RankGroup> RankGroup::Parse(std::string_view text) {
  if (text == "all ranks") return RankGroup();
  std::vector<Rank> ranks;
  bool is_right = text.starts_with(kRanks);
  for (size_t at = kRanks.size(); is_right && at <= text.size();) {
    const size_t comma = std::min(text.find(kComma, at), text.size());
    is_right = AddRun(text.substr(at, comma - at), &ranks);
    at = comma + kComma.size();
  }
  if (!is_right) return InvalidArgument("'%s' is no group of ranks", std::string(text));
  return Of(std::move(ranks));
}

std::string NameAmong(std::string_view name, const RankGroup& group) {
  if (group.is_all()) return std::string(name);
  return std::string(name) + " among " + group.ToString();
}

RankGroup GroupInName(std::string_view name) {
  const size_t among = name.rfind(kAmong);
  if (among == std::string_view::npos) return RankGroup();
  const auto group = RankGroup::Parse(name.substr(among + kAmong.size() - kRanks.size()));
  return group.ok() ? *group : RankGroup();
}

}  // namespace bdn
