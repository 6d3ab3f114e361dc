#include "common/base/log_limit.h"

#include <utility>

namespace bdn {

std::string Printable(std::string_view text) {
  constexpr size_t kMaxBytes = 128;
  std::string escaped;
  for (const char c : text.substr(0, kMaxBytes)) {
    const bool is_plain = c >= ' ' && c <= '~' && c != '\\';
    escaped += is_plain ? std::string(1, c) : absl::StrFormat("\\x%02x", static_cast<uint8_t>(c));
  }
  if (text.size() > kMaxBytes) escaped += "...";
  return escaped;
}

bool LimitedLog::MayLog(uint64_t* left_out) {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mu_);
  if (now < next_) {
    ++left_out_;
    return false;
  }
  next_ = now + interval_;
  *left_out = std::exchange(left_out_, 0);
  return true;
}

}  // namespace bdn
