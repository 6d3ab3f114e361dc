#ifndef BANDONEON_CLI_LINE_PRINTER_H_
#define BANDONEON_CLI_LINE_PRINTER_H_

#include <string>
#include <string_view>

#include "cli/process_group.h"

namespace bdn::cli {

// A printer that merges the output of several processes into two streams, as "[worker 0] line".
// Lines stay whole even where some come in pieces, as those of progress bars and prompts do. Not
// thread-safe.
class LinePrinter {
 public:
  using Stream = ProcessGroup::Stream;
  using End = ProcessGroup::End;

  // Makes a printer; `is_one_screen` says that both streams are one terminal or one file.
  explicit LinePrinter(bool is_one_screen) : is_one_screen_(is_one_screen) {}

  // Returns the text to write to the stream for a piece of the output of `tag`.
  std::string Put(Stream stream, std::string_view tag, std::string_view text, End end);
  // Returns the text that ends an incomplete line, once all output has ended.
  std::string Finish(Stream stream);

 private:
  struct Line {
    std::string tag;          // the tag of the last piece
    End end = End::kNewline;  // the end of that piece
  };
  Line& LineOf(Stream stream) { return lines_[is_one_screen_ ? 0 : static_cast<size_t>(stream)]; }

  const bool is_one_screen_;
  Line lines_[2];
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_LINE_PRINTER_H_
