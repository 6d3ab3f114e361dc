#include "cli/line_printer.h"

#include <utility>

namespace bdn::cli {
namespace {

std::string_view TextOf(ProcessGroup::End end) {
  switch (end) {
    case ProcessGroup::End::kNewline:
      return "\n";
    case ProcessGroup::End::kReturn:
      return "\r";
    case ProcessGroup::End::kNone:
      break;
  }
  return "";
}

}  // namespace

std::string LinePrinter::Put(Stream stream, std::string_view tag, std::string_view text, End end) {
  Line& line = LineOf(stream);
  const bool is_own = line.tag == tag;
  // Some progress bars begin with a carriage return, others end with one. A carriage return without
  // text matters only behind a piece of the same process.
  const bool says_nothing = text.empty() && end == End::kReturn;
  if (says_nothing && !(is_own && line.end == End::kNone)) return "";
  std::string out;
  const bool goes_on = is_own && line.end == End::kNone;
  const bool ends_bar = is_own && line.end == End::kReturn && text.empty();
  // A bar may overwrite a bar. Any other text begins on a new line, so that the bar or the open
  // line of another process stays.
  const bool overwrites = line.end == End::kReturn && (is_own || end == End::kReturn);
  if (line.end != End::kNewline && !goes_on && !ends_bar && !overwrites) out = "\n";
  if (!goes_on && !ends_bar) out.append("[").append(tag).append("] ");
  out.append(text).append(TextOf(end));
  line = {std::string(tag), end};
  return out;
}

std::string LinePrinter::Finish(Stream stream) {
  return std::exchange(LineOf(stream), Line()).end == End::kNewline ? "" : "\n";
}

}  // namespace bdn::cli
