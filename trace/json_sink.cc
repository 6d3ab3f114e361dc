// Chrome's JSON of a timeline, as PyTorch's profiler (Kineto) writes it.

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/escaped_text.h"
#include "common/base/status.h"
#include "trace/timeline.h"

namespace bdn {
namespace {

constexpr size_t kBufferBytes = 1 << 18;

class JsonSink final : public TimelineSink {
 public:
  JsonSink(std::string path, gzFile file, const TimelineFacts& facts, uint64_t max_bytes)
      : path_(std::move(path)), file_(file), base_ns_(facts.base_ns), max_bytes_(max_bytes) {
    text_ = "{\n\"schemaVersion\": 1,\n\"traceName\": ";
    AppendJsonText(facts.job, &text_);
    absl::StrAppend(&text_,
                    ",\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": ", facts.base_ns,
                    ",\n\"otherData\": ", facts.about, ",\n\"traceEvents\": [");
  }
  ~JsonSink() override {
    if (file_ == nullptr) return;
    gzclose(file_);
    remove(Unfinished(path_).c_str());
  }

  static std::string Unfinished(const std::string& path) { return path + ".unfinished"; }

  void Process(uint64_t process, const std::string& name, int64_t pid,
               const std::vector<std::string>& labels) override {
    Meta("process_name", process, "name", name);
    for (const std::string& label : labels) Meta("process_labels", process, "labels", label);
    Meta("process_sort_index", process, "sort_index", static_cast<int64_t>(process));
    (void)pid;  // its label has it; the numbers of processes of several hosts may be equal
  }

  void Track(const TimelineTrack& track) override {
    if (track.is_counter || track.is_waiting) return;  // named by their events
    Begin("M", "thread_name", track);
    text_ += ",\"args\":{\"name\":";
    AppendJsonText(track.name, &text_);
    text_ += "}}";
    Begin("M", "thread_sort_index", track);
    absl::StrAppend(&text_, ",\"args\":{\"sort_index\":", track.id, "}}");
  }

  void Slices(const TimelineTrack& track, std::span<const TimelineSlice> slices) override {
    for (const TimelineSlice& slice : slices) {
      if (track.is_waiting) {
        Waiting(track, slice);
      } else {
        Begin(slice.end_ns > slice.begin_ns ? "X" : "i", slice.name, track);
        Time("ts", slice.begin_ns - base_ns_);
        if (slice.end_ns > slice.begin_ns) Time("dur", slice.end_ns - slice.begin_ns);
        if (slice.end_ns <= slice.begin_ns) text_ += ",\"s\":\"t\"";
        Category(slice.category);
        Arguments(slice);
        text_ += "}";
        for (const auto& point : slice.flows) Flow(track, slice, point);
      }
      FlushIfLong();
    }
  }

  void Count(const TimelineTrack& track, int64_t at_ns, double value) override {
    Begin("C", track.name, track);
    Time("ts", at_ns - base_ns_);
    absl::StrAppendFormat(&text_, ",\"args\":{\"value\":%.6g}}", value);
    FlushIfLong();
  }

  absl::Status Finish() override {
    text_ += "\n]}\n";
    Flush();
    const int closed = gzclose(file_);
    file_ = nullptr;
    if (closed != Z_OK && status_.ok()) status_ = Unavailable("%s cannot be written", path_);
    if (status_.ok() && rename(Unfinished(path_).c_str(), path_.c_str()) != 0) {
      status_ = Unavailable("%s cannot be written: %s", path_, strerror(errno));
    }
    if (!status_.ok()) remove(Unfinished(path_).c_str());
    return status_;
  }

 private:
  void Meta(const char* what, uint64_t process, const char* name, const std::string& value) {
    Begin("M", what, {.process = process});
    absl::StrAppend(&text_, ",\"args\":{\"", name, "\":");
    AppendJsonText(value, &text_);
    text_ += "}}";
  }
  void Meta(const char* what, uint64_t process, const char* name, int64_t value) {
    Begin("M", what, {.process = process});
    absl::StrAppend(&text_, ",\"args\":{\"", name, "\":", value, "}}");
  }

  // Begins an event, and leaves its object open.
  void Begin(const char* phase, std::string_view name, const TimelineTrack& track) {
    text_ += is_first_ ? "\n" : ",\n";
    is_first_ = false;
    absl::StrAppend(&text_, "{\"ph\":\"", phase, "\",\"name\":");
    AppendJsonText(name, &text_);
    absl::StrAppend(&text_, ",\"pid\":", track.process, ",\"tid\":", track.id);
  }

  // Microseconds, with all digits of the nanoseconds.
  void Time(const char* name, int64_t ns) {
    const uint64_t size = ns < 0 ? -static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
    absl::StrAppendFormat(&text_, ",\"%s\":%s%d.%03d", name, ns < 0 ? "-" : "", size / 1000,
                          size % 1000);
  }

  void Category(std::string_view category) {
    text_ += ",\"cat\":";
    AppendJsonText(category.empty() ? "other" : category, &text_);
  }

  void Arguments(const TimelineSlice& slice) {
    if (!slice.more.empty()) {
      text_ += ",\"args\":";
      text_ += slice.more;
      return;
    }
    text_ += ",\"args\":{";
    const char* comma = "";
    const auto text = [&](const char* name, std::string_view value) {
      if (value.empty()) return;
      absl::StrAppend(&text_, comma, "\"", name, "\":");
      AppendJsonText(value, &text_);
      comma = ",";
    };
    const auto number = [&](const char* name, uint64_t value) {
      if (value == 0) return;
      absl::StrAppend(&text_, comma, "\"", name, "\":", value);
      comma = ",";
    };
    text("subject", slice.subject);
    number("step", slice.step);
    number("bytes", slice.category == "exchange" ? slice.bytes : 0);
    text("peer", slice.peer);
    number("cpu_ns", static_cast<uint64_t>(slice.cpu_ns));
    text_ += "}";
  }

  // Slices that wait cross each other, so each of them is an event with a number of its own.
  void Waiting(const TimelineTrack& track, const TimelineSlice& slice) {
    const uint64_t number = ++waiting_;
    for (const bool is_begin : {true, false}) {
      Begin(is_begin ? "b" : "e", slice.name, track);
      Time("ts", (is_begin ? slice.begin_ns : slice.end_ns) - base_ns_);
      absl::StrAppendFormat(&text_, ",\"id\":\"0x%x\"", number);
      Category(slice.category);
      if (is_begin) Arguments(slice);
      text_ += "}";
    }
  }

  // Ties a slice of a thread to its exchange, in the slice's middle, which is in no other one.
  void Flow(const TimelineTrack& track, const TimelineSlice& slice,
            const TimelineSlice::FlowPoint& point) {
    using Flow = TimelineSlice::Flow;
    const bool is_end = point.flow == Flow::kEnd;
    Begin(point.flow == Flow::kBegin ? "s" : is_end ? "f" : "t", "exchange", track);
    Time("ts", slice.begin_ns - base_ns_ + (slice.end_ns - slice.begin_ns) / 2);
    absl::StrAppendFormat(&text_, ",\"id\":%d,\"cat\":\"exchange\"%s}", point.id,
                          is_end ? ",\"bp\":\"e\"" : "");
  }

  void FlushIfLong() {
    if (text_.size() >= kBufferBytes) Flush();
  }
  void Flush() {
    bytes_ += text_.size();
    if (bytes_ > max_bytes_ && status_.ok()) {
      status_ = ResourceExhausted(
          "%s would have more than %d MB, which viewers do not take: write .pftrace, or the last "
          "part alone (--last TIME), or say --force",
          path_, max_bytes_ / 1000000);
    }
    if (status_.ok() && gzwrite(file_, text_.data(), static_cast<unsigned>(text_.size())) == 0 &&
        !text_.empty()) {
      status_ = Unavailable("%s cannot be written: %s", path_, strerror(errno));
    }
    text_.clear();
  }

  const std::string path_;
  gzFile file_;
  const int64_t base_ns_;
  const uint64_t max_bytes_;
  std::string text_;
  uint64_t bytes_ = 0;
  uint64_t waiting_ = 0;
  bool is_first_ = true;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TimelineSink>> MakeJsonSink(const std::string& path,
                                                           const TimelineFacts& facts,
                                                           uint64_t max_bytes) {
  // "T": as it is, without compression.
  const char* const mode = absl::EndsWith(path, ".gz") ? "wb6" : "wbT";
  gzFile file = gzopen(JsonSink::Unfinished(path).c_str(), mode);
  if (file == nullptr) return NotFound("%s cannot be written: %s", path, strerror(errno));
  return std::make_unique<JsonSink>(path, file, facts, max_bytes);
}

}  // namespace bdn
