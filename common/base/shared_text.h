#ifndef BANDONEON_COMMON_BASE_SHARED_TEXT_H_
#define BANDONEON_COMMON_BASE_SHARED_TEXT_H_

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace bdn {

// A text that is never changed and that its copies share, so that thousands of values with the same
// text hold it once. It reads as a std::string does. Thread-compatible; copies may be used by any
// thread.
class SharedText {
 public:
  SharedText() = default;  // empty
  // Implicit, so that callers may pass a std::string.
  SharedText(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}

  const std::string& str() const {
    static const std::string kEmpty;
    return text_ == nullptr ? kEmpty : *text_;
  }
  operator const std::string&() const { return str(); }
  operator std::string_view() const { return str(); }
  bool empty() const { return str().empty(); }
  size_t size() const { return str().size(); }

  // Compares by content; copies of one text are equal without being read.
  friend bool operator==(const SharedText& a, const SharedText& b) {
    return a.text_ == b.text_ || a.str() == b.str();
  }
  template <std::convertible_to<std::string_view> Text>
  friend bool operator==(const SharedText& a, const Text& b) {
    return std::string_view(a.str()) == std::string_view(b);
  }

 private:
  std::shared_ptr<const std::string> text_;  // null: empty
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_SHARED_TEXT_H_
