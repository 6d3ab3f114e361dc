// A picture of a part of a timeline, as SVG: for browsers and documents.

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/escaped_text.h"
#include "common/base/status.h"
#include "trace/timeline.h"

namespace bdn {
namespace {

// Sizes in pixels.
constexpr double kNamesWidth = 200;
constexpr double kChartWidth = 1180;
constexpr double kMargin = 12;
constexpr double kTop = 52;
constexpr double kBandHeight = 18;  // the line with the name of a process
constexpr double kSliceHeight = 14;
constexpr double kAreaHeight = 26;  // a row that shows how many of something there are
constexpr double kRowGap = 3;
constexpr double kCharacterWidth = 5.6;  // of the font, in the mean
constexpr double kLeastWidth = 0.5;      // a narrower slice is drawn as wide as this
// A picture of more would take a browser seconds, and nobody could read it.
constexpr size_t kMaxBoxes = 20'000;
constexpr size_t kMaxDepth = 12;
// Arrows of more exchanges would cover the slices.
constexpr size_t kMaxFlows = 150;

struct NamedColor {
  std::string_view name;
  std::string_view color;
};
// Light enough for black text. Communication that a program waits for is red.
constexpr NamedColor kColors[] = {
    {"step", "#dcdcdc"},   {"forward", "#8fb4d9"},      {"backward", "#c3a6d3"},
    {"ready", "#555555"},  {"waiting", "#f1958f"},      {"optimizer", "#cfae95"},
    {"input", "#f4dc84"},  {"collection", "#ffb7c3"},   {"user", "#c9c9e6"},
    {"encode", "#f7bd7f"}, {"decode", "#a5d3cf"},       {"sum", "#9fce97"},
    {"rule", "#cbe8bf"},   {"deliver", "#c3e3e0"},      {"send", "#a8c3de"},
    {"wait", "#e3d3e8"},   {"queue", "#d5d0cd"},        {"reply", "#c5d8ec"},
    {"hold", "#f4b6b4"},   {"server_queue", "#d5d0cd"}, {"server_encode", "#f7bd7f"},
    {"answer", "#e3d3e8"}, {"other", "#eeeeee"},        {"decode_queue", "#d5d0cd"},
};

// Returns a color that depends on the name alone.
std::string ColorOf(std::string_view name) {
  for (const NamedColor& known : kColors) {
    if (known.name == name) return std::string(known.color);
  }
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619U;
  return absl::StrFormat("hsl(%d,45%%,82%%)", hash % 360);
}

// Returns a duration as people say it.
std::string DurationText(int64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns >= 1'000'000'000) return absl::StrFormat("%.3f s", value * 1e-9);
  if (ns >= 1'000'000) return absl::StrFormat("%.2f ms", value * 1e-6);
  return absl::StrFormat("%.1f us", value * 1e-3);
}

// A rectangle of a row. Its place is in pixels from the beginning of the axis.
struct Box {
  double x = 0;
  double width = 0;
  size_t depth = 0;  // inside of how many others
  std::string color;
  std::string label;
  std::string title;  // shown beside the pointer
};

// A value from one place on.
struct Point {
  double x;
  double value;
};

// A row of boxes, or an area that shows how many slices wait.
struct PictureRow {
  std::string name;
  bool is_waiting = false;
  std::vector<Box> boxes;
  size_t depth = 0;          // of the deepest box, counted from 1
  std::vector<Point> waits;  // of a row that waits: by how many more, and at the end how many
  double most = 0;           // that wait at once
  bool is_hidden = false;    // nothing of it could be seen

  double Height() const {
    if (is_hidden) return 0;
    return kRowGap + (is_waiting ? kAreaHeight : kSliceHeight * static_cast<double>(depth));
  }

  // Makes numbers of changes, of which one holds until the next one.
  void SumWaits() {
    // A slice ends before another one begins that touches it.
    std::sort(waits.begin(), waits.end(), [](const Point& a, const Point& b) {
      return std::pair(a.x, a.value) < std::pair(b.x, b.value);
    });
    double number = 0;
    std::vector<Point> numbers;
    for (const Point& change : waits) {
      number += change.value;
      most = std::max(most, number);
      if (!numbers.empty() && change.x - numbers.back().x < kLeastWidth / 4) {
        numbers.back().value = number;
      } else {
        numbers.push_back({change.x, number});
      }
    }
    waits = std::move(numbers);
    is_hidden =
        std::none_of(waits.begin(), waits.end(), [](const Point& p) { return p.value > 0; });
  }
};

// A process, with its rows.
struct Band {
  std::string name;
  std::vector<PictureRow> rows;
};

// A place at which an exchange touches a box.
struct FlowPlace {
  size_t band;
  size_t row;
  size_t depth;
  double x;
};

class SvgSink final : public TimelineSink {
 public:
  SvgSink(std::string path, std::ofstream file, TimelineFacts facts)
      : path_(std::move(path)),
        file_(std::move(file)),
        facts_(std::move(facts)),
        pixels_per_ns_(kChartWidth /
                       static_cast<double>(std::max<int64_t>(facts_.end_ns - facts_.base_ns, 1))) {}
  ~SvgSink() override {
    if (file_.is_open()) remove(Unfinished(path_).c_str());
  }

  static std::string Unfinished(const std::string& path) { return path + ".unfinished"; }

  void Process(uint64_t process, const std::string& name, int64_t pid,
               const std::vector<std::string>& labels) override {
    (void)process;
    (void)pid;  // its label has it
    Band& band = bands_.emplace_back();
    band.name = name;
    for (const std::string& label : labels) absl::StrAppend(&band.name, "   ", label);
  }

  void Track(const TimelineTrack& track) override {
    if (track.is_counter) return;
    auto& rows = bands_.back().rows;
    open_.clear();
    drawn_until_.clear();
    // All tracks of slices that wait for the same are one area.
    if (track.is_waiting && !rows.empty() && rows.back().is_waiting &&
        rows.back().name == track.name) {
      return;
    }
    PictureRow& row = rows.emplace_back();
    row.name = track.name;
    row.is_waiting = track.is_waiting;
  }

  void Slices(const TimelineTrack& track, std::span<const TimelineSlice> slices) override {
    for (const TimelineSlice& slice : slices) {
      if (track.is_waiting) {
        AddWaiting(slice);
      } else {
        AddBox(slice);
      }
    }
  }

  // A step is shorter than the second between two samples of the machine.
  void Count(const TimelineTrack& track, int64_t at_ns, double value) override {
    (void)track;
    (void)at_ns;
    (void)value;
  }

  absl::Status Finish() override {
    absl::Status status;
    if (boxes_ > kMaxBoxes) {
      status = ResourceExhausted(
          "%s would have more than %d slices, which nobody could read: say --step NUMBER for the "
          "picture of one step",
          path_, kMaxBoxes);
    } else {
      Draw();
    }
    file_.close();
    if (status.ok() && file_.fail()) status = Unavailable("%s cannot be written", path_);
    if (status.ok() && rename(Unfinished(path_).c_str(), path_.c_str()) != 0) {
      status = Unavailable("%s cannot be written: %s", path_, strerror(errno));
    }
    if (!status.ok()) remove(Unfinished(path_).c_str());
    return status;
  }

 private:
  double PlaceOf(int64_t ns) const {
    return std::clamp(static_cast<double>(ns - facts_.base_ns) * pixels_per_ns_, 0.0, kChartWidth);
  }

  void AddWaiting(const TimelineSlice& slice) {
    auto& waits = bands_.back().rows.back().waits;
    waits.push_back({PlaceOf(slice.begin_ns), 1});
    waits.push_back({PlaceOf(slice.end_ns), -1});
    names_.insert(std::string(slice.name));
  }

  // Slices inside of others come after those; see TimelineSink.
  void AddBox(const TimelineSlice& slice) {
    PictureRow& row = bands_.back().rows.back();
    while (!open_.empty() && open_.back() <= slice.begin_ns) open_.pop_back();
    const size_t depth = open_.size();
    open_.push_back(slice.end_ns);
    const double x = PlaceOf(slice.begin_ns);
    const double width = PlaceOf(slice.end_ns) - x;
    if (depth >= kMaxDepth) {
      ++left_out_;
      return;
    }
    AddFlows(slice, depth, x + width / 2);
    // The first one of the slices on one pixel is seen.
    if (drawn_until_.size() <= depth) drawn_until_.resize(depth + 1, -1);
    if (width < kLeastWidth && drawn_until_[depth] > x) {
      ++left_out_;
      return;
    }
    row.depth = std::max(row.depth, depth + 1);
    drawn_until_[depth] = x + std::max(width, kLeastWidth);
    if (++boxes_ > kMaxBoxes) return;
    Box box{.x = x, .width = std::max(width, kLeastWidth), .depth = depth};
    box.color = ColorOf(slice.name);
    box.label = slice.name;
    if (!slice.subject.empty()) box.label.append(": ").append(slice.subject);
    box.title = TitleOf(slice, box.label);
    row.boxes.push_back(std::move(box));
    // Profiles of PyTorch have too many names for a legend.
    if (slice.more.empty() && slice.category != "cpu_op") {
      names_.insert(std::string(slice.name));
    }
  }

  static std::string TitleOf(const TimelineSlice& slice, const std::string& label) {
    std::string title = label;
    const int64_t duration_ns = slice.end_ns - slice.begin_ns;
    if (duration_ns > 0) absl::StrAppend(&title, ", ", DurationText(duration_ns));
    if (slice.step != 0) absl::StrAppend(&title, ", step ", slice.step);
    if (slice.bytes != 0) absl::StrAppend(&title, ", ", slice.bytes, " bytes");
    if (!slice.peer.empty()) title.append(", with ").append(slice.peer);
    if (slice.cpu_ns != 0) absl::StrAppend(&title, ", CPU ", DurationText(slice.cpu_ns));
    return title;
  }

  void AddFlows(const TimelineSlice& slice, size_t depth, double x) {
    for (const TimelineSlice::FlowPoint& point : slice.flows) {
      flows_[point.id].push_back({bands_.size() - 1, bands_.back().rows.size() - 1, depth, x});
    }
  }

  void Draw() {
    std::vector<std::vector<double>> tops;  // of each row of each band
    double y = kTop;
    for (Band& band : bands_) {
      y += kBandHeight;
      auto& of_band = tops.emplace_back();
      for (PictureRow& row : band.rows) {
        if (row.is_waiting) row.SumWaits();
        of_band.push_back(y);
        y += row.Height();
      }
      y += kRowGap;
    }
    const double bottom = y;
    DrawHead(bottom + LegendHeight() + kMargin);
    DrawAxis(bottom);
    for (size_t i = 0; i < bands_.size(); ++i) {
      const double band_top = tops[i].empty() ? kTop : tops[i].front() - kBandHeight;
      if (!bands_[i].rows.empty()) DrawBand(bands_[i], band_top, tops[i]);
    }
    DrawFlows(tops);
    DrawLegend(bottom + kSliceHeight);
    file_ << "</svg>\n";
  }

  void DrawHead(double height) {
    const double width = kNamesWidth + kChartWidth + 2 * kMargin;
    file_ << absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"10\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        width, height, width, height);
    Text(kMargin, 20, facts_.title.empty() ? absl::StrCat("job ", facts_.job) : facts_.title,
         "font-size=\"14\" font-weight=\"bold\"");
  }

  // Draws the times, and a line down the picture for each.
  void DrawAxis(double bottom) {
    const double span_ns = kChartWidth / pixels_per_ns_;
    double unit = std::pow(10.0, std::floor(std::log10(span_ns / 10)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      if (span_ns / unit > 10) unit *= factor;
    }
    const bool is_long = span_ns >= 1e7;
    for (double at = 0; at <= span_ns; at += unit) {
      const double x = kMargin + kNamesWidth + at * pixels_per_ns_;
      file_ << absl::StrFormat(
          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"#e4e4e4\"/>\n", x, x,
          kTop - 8, bottom);
      Text(x, kTop - 12,
           absl::StrFormat("%.6g %s", at * (is_long ? 1e-6 : 1e-3), is_long ? "ms" : "us"),
           "text-anchor=\"middle\" fill=\"#666666\"");
    }
  }

  void DrawBand(const Band& band, double top, const std::vector<double>& tops) {
    file_ << absl::StrFormat(
        "<rect x=\"%.0f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" "
        "fill=\"#f3f3f3\"/>\n",
        kMargin, top + 1, kNamesWidth + kChartWidth, kBandHeight - 3);
    Text(kMargin + 3, top + 12, band.name, "font-size=\"11\" font-weight=\"bold\"");
    for (size_t i = 0; i < band.rows.size(); ++i) {
      const PictureRow& row = band.rows[i];
      if (row.is_hidden) continue;
      std::string name = row.name;
      if (row.is_waiting) {
        absl::StrAppendFormat(&name, ": at most %.0f", row.most);
        DrawArea(row, tops[i], name);
      }
      Label(kMargin + 6, tops[i] + 10.5, name, kNamesWidth - 12);
      for (const Box& box : row.boxes) DrawBox(box, tops[i]);
    }
  }

  void DrawArea(const PictureRow& row, double top, const std::string& title) {
    const double left = kMargin + kNamesWidth;
    const double floor = top + kAreaHeight;
    std::string path = absl::StrFormat("M%.1f %.1f", left + row.waits.front().x, floor);
    for (size_t i = 0; i < row.waits.size(); ++i) {
      const double end = i + 1 < row.waits.size() ? row.waits[i + 1].x : kChartWidth;
      const double y = floor - (kAreaHeight - 2) * row.waits[i].value / row.most;
      absl::StrAppendFormat(&path, "L%.1f %.1fL%.1f %.1f", left + row.waits[i].x, y, left + end, y);
    }
    absl::StrAppendFormat(&path, "L%.1f %.1fZ", left + kChartWidth, floor);
    file_ << absl::StrFormat("<path d=\"%s\" fill=\"%s\"><title>", path, ColorOf(row.name));
    Escaped(title);
    file_ << "</title></path>\n";
  }

  void DrawBox(const Box& box, double top) {
    const double x = kMargin + kNamesWidth + box.x;
    const double y = top + kSliceHeight * static_cast<double>(box.depth);
    file_ << absl::StrFormat(
        "<g><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\"%s/><title>", x,
        y, box.width, kSliceHeight - 1, box.color,
        box.width > 3 ? " stroke=\"#ffffff\" stroke-width=\"0.5\"" : "");
    Escaped(box.title);
    file_ << "</title>";
    Label(x + 2, y + 10, box.label, box.width - 4);
    file_ << "</g>\n";
  }

  void DrawFlows(const std::vector<std::vector<double>>& tops) {
    if (flows_.size() > kMaxFlows) return;
    for (auto& [id, places] : flows_) {
      std::stable_sort(places.begin(), places.end(),
                       [](const FlowPlace& a, const FlowPlace& b) { return a.x < b.x; });
      std::string path;
      for (const FlowPlace& place : places) {
        const double x = kMargin + kNamesWidth + place.x;
        const double y =
            tops[place.band][place.row] + kSliceHeight * (static_cast<double>(place.depth) + 0.5);
        absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x, y);
      }
      file_ << absl::StrFormat(
          "<path d=\"%s\" fill=\"none\" stroke=\"#444444\" stroke-opacity=\"0.35\" "
          "stroke-width=\"0.7\"/>\n",
          path);
    }
  }

  // The legend has a line for so many names.
  static constexpr size_t kNamesInLine = 10;
  double LegendHeight() const {
    const size_t lines = (names_.size() + kNamesInLine - 1) / kNamesInLine;
    return 16 * static_cast<double>(lines + 2);
  }
  void DrawLegend(double top) {
    constexpr double kWidth = (kNamesWidth + kChartWidth) / kNamesInLine;
    size_t i = 0;
    for (const std::string& name : names_) {
      const double x = kMargin + kWidth * static_cast<double>(i % kNamesInLine);
      const size_t line = i / kNamesInLine;
      const double y = top + 16 * static_cast<double>(line);
      file_ << absl::StrFormat(
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>\n", x, y,
          ColorOf(name));
      Label(x + 14, y + 9, name, kWidth - 16);
      ++i;
    }
    std::string note = "Areas show how many exchanges wait at once.";
    if (flows_.size() > kMaxFlows) {
      absl::StrAppend(&note, " Lines along exchanges are left out, as there are ", flows_.size(),
                      " of them.");
    } else if (!flows_.empty()) {
      note += " A line leads from a push over its sum to the decoding of its reply.";
    }
    if (left_out_ != 0) {
      absl::StrAppend(&note, " ", left_out_, " slices that share a pixel with others, or lie ",
                      "deeper than ", kMaxDepth, ", are not drawn.");
    }
    const double lines = std::ceil(static_cast<double>(names_.size()) / kNamesInLine);
    Text(kMargin, top + 16 * lines + 10, note, "fill=\"#666666\"");
  }

  // Writes as much of a text as fits into `width`, and nothing where that is less than a word.
  void Label(double x, double y, const std::string& text, double width) {
    const auto room = static_cast<size_t>(std::max(width, 0.0) / kCharacterWidth);
    if (text.size() <= room) return Text(x, y, text, "");
    if (room < 4) return;
    size_t end = room - 1;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
    Text(x, y, text.substr(0, end) + "\xe2\x80\xa6", "");
  }
  void Text(double x, double y, const std::string& text, const char* attributes) {
    file_ << absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" pointer-events=\"none\" %s>", x, y,
                             attributes);
    Escaped(text);
    file_ << "</text>\n";
  }
  void Escaped(const std::string& text) {
    std::string escaped;
    AppendXmlText(text, &escaped);
    file_ << escaped;
  }

  const std::string path_;
  std::ofstream file_;
  const TimelineFacts facts_;
  const double pixels_per_ns_;
  std::vector<Band> bands_;
  std::map<uint64_t, std::vector<FlowPlace>> flows_;
  std::set<std::string> names_;  // of the legend
  size_t boxes_ = 0;
  size_t left_out_ = 0;
  // State of the track that is being written: the ends of the slices that are open, and by depth
  // the place up to which it is drawn.
  std::vector<int64_t> open_;
  std::vector<double> drawn_until_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TimelineSink>> MakeSvgSink(const std::string& path,
                                                          const TimelineFacts& facts) {
  std::ofstream file(SvgSink::Unfinished(path), std::ios::binary | std::ios::trunc);
  if (!file) return NotFound("%s cannot be written: %s", path, strerror(errno));
  return std::make_unique<SvgSink>(path, std::move(file), facts);
}

}  // namespace bdn
