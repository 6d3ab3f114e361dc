#ifndef BANDONEON_CLI_LINE_PRINTER_H_
#define BANDONEON_CLI_LINE_PRINTER_H_

#include <string>
#include <string_view>

#include "cli/process_group.h"

namespace bdn::cli {

// Puts what several processes print onto two streams, "[worker 0] line", so that lines stay whole where
// some of them come in pieces, as progress bars and prompts do. Not thread-safe.
class LinePrinter {
 public:
  using Stream = ProcessGroup::Stream;
  using End = ProcessGroup::End;

  // `is_one_screen`: both streams are one terminal or one file.
  explicit LinePrinter(bool is_one_screen) : is_one_screen_(is_one_screen) {}

  // Returns the text to write to the stream for a piece of the output of `tag`.
  std::string Put(Stream stream, std::string_view tag, std::string_view text, End end);
  // Returns the text that ends an incomplete line, once all output has ended.
  std::string Finish(Stream stream);

 private:
  struct Line {
    std::string tag;           // whose piece was put last
    End end = End::kNewline;  // and how that ended
  };
  Line& LineOf(Stream stream) {
    return lines_[is_one_screen_ ? 0 : static_cast<size_t>(stream)];
  }

  const bool is_one_screen_;
  Line lines_[2];
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_LINE_PRINTER_H_
