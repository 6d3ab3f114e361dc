#include "scheduler/host_order.h"

#include <algorithm>
#include <compare>
#include <string_view>
#include <tuple>
#include <utility>

namespace bdn {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Takes the digits at the beginning of `text`, and returns them without leading zeros.
std::string_view TakeNumber(std::string_view* text) {
  const size_t size =
      static_cast<size_t>(std::find_if_not(text->begin(), text->end(), IsDigit) - text->begin());
  std::string_view number = text->substr(0, size);
  text->remove_prefix(size);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

// Compares numbers of any length, written without leading zeros.
std::strong_ordering CompareNumbers(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return a.size() <=> b.size();
  return a <=> b;
}

std::strong_ordering CompareNames(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    std::strong_ordering order = std::strong_ordering::equal;
    if (IsDigit(a[0]) && IsDigit(b[0])) {
      order = CompareNumbers(TakeNumber(&a), TakeNumber(&b));
    } else {
      order = static_cast<unsigned char>(a[0]) <=> static_cast<unsigned char>(b[0]);
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
    if (order != 0) return order;
  }
  return a.size() <=> b.size();
}

// Splits "hostname:pid" into the name and the process id, which may be empty.
std::pair<std::string_view, std::string_view> SplitHost(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon == host.npos) return {host, {}};
  std::string_view rest = host.substr(colon + 1);
  if (rest.empty() || !std::all_of(rest.begin(), rest.end(), IsDigit)) return {host, {}};
  return {host.substr(0, colon), TakeNumber(&rest)};
}

}  // namespace

bool ComesBefore(const NodeInfo& a, const NodeInfo& b) {
  const auto [name_a, pid_a] = SplitHost(a.host);
  const auto [name_b, pid_b] = SplitHost(b.host);
  if (const auto order = CompareNames(name_a, name_b); order != 0) return order < 0;
  if (const auto order = CompareNumbers(pid_a, pid_b); order != 0) return order < 0;
  const std::string url_a = NetworkUrl(a.endpoints);
  const std::string url_b = NetworkUrl(b.endpoints);
  return std::tie(url_a, a.id) < std::tie(url_b, b.id);
}

}  // namespace bdn
