#include "trace/torch_profile.h"

#include <zlib.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "trace/trace_file.h"

namespace bdn {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxProfileBytes = uint64_t{4} << 30;
constexpr uint64_t kMaxEvents = 20'000'000;

struct GzClose {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzFile = std::unique_ptr<std::remove_pointer_t<gzFile>, GzClose>;

// The bytes of a file, decompressed if it is compressed, for the parser. It is an input iterator of
// bytes that is equal to its end when there are no more.
class GzBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  struct Source {
    GzFile file;
    std::vector<char> buffer = std::vector<char>(1 << 16);
    size_t at = 0;
    size_t end = 0;
    uint64_t read = 0;
    bool has_failed = false;

    bool Fill() {
      const int got = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
      read += got > 0 ? static_cast<uint64_t>(got) : 0;
      has_failed = got < 0 || read > kMaxProfileBytes;
      at = 0;
      end = got > 0 && !has_failed ? static_cast<size_t>(got) : 0;
      return end > 0;
    }
  };

  GzBytes() = default;
  explicit GzBytes(Source* source) : source_(source) { Check(); }
  reference operator*() const { return source_->buffer[source_->at]; }
  GzBytes& operator++() {
    ++source_->at;
    Check();
    return *this;
  }
  GzBytes operator++(int) {
    GzBytes before = *this;
    ++*this;
    return before;
  }
  bool operator==(const GzBytes& other) const { return source_ == other.source_; }

 private:
  void Check() {
    if (source_->at == source_->end && !source_->Fill()) source_ = nullptr;
  }

  Source* source_ = nullptr;  // null at the end
};

std::string TextOf(const Json& event, const char* name) {
  const auto member = event.find(name);
  if (member == event.end()) return "";
  if (member->is_string()) return PlainText(member->get_ref<const std::string&>());
  if (member->is_number_integer()) return absl::StrCat(member->get<int64_t>());
  return "";
}

// Returns a time of the profile, which has microseconds, in ns.
std::optional<int64_t> NsOf(const Json& event, const char* name) {
  const auto member = event.find(name);
  if (member == event.end() || !member->is_number()) return std::nullopt;
  const double us = member->get<double>();
  if (!std::isfinite(us) || std::abs(us) > 9e15) return std::nullopt;
  // Whole microseconds of the time of day need more digits than a double's thousandths have.
  const double whole = std::floor(us);
  return static_cast<int64_t>(whole) * 1000 + std::llround((us - whole) * 1000);
}

// Takes what is of use out of each event as it comes, so that the file is never held as a whole.
class EventReader {
 public:
  explicit EventReader(TorchProfile* profile) : profile_(*profile) {}

  // As the parser's callback; returns whether to keep what was parsed.
  bool Parsed(int depth, Json::parse_event_t what, Json& parsed) {
    if (what == Json::parse_event_t::key && depth == 1) member_ = parsed.get<std::string>();
    if (what != Json::parse_event_t::object_end || depth != 2 || member_ != "traceEvents") {
      return true;
    }
    if (profile_.events.size() < kMaxEvents) {
      Take(parsed);
    } else {
      ++profile_.skipped;
    }
    return false;
  }

 private:
  void Take(const Json& event) {
    const std::string phase = TextOf(event, "ph");
    if (phase == "M") return TakeName(event);
    const auto begin = NsOf(event, "ts");
    const auto length = phase == "X" ? NsOf(event, "dur") : std::optional<int64_t>(0);
    if ((phase != "X" && phase != "i" && phase != "I") || !begin || !length || *length < 0) {
      ++profile_.skipped;
      return;
    }
    TorchEvent& taken = profile_.events.emplace_back();
    taken.name = TextOf(event, "name");
    taken.category = TextOf(event, "cat");
    taken.process = TextOf(event, "pid");
    taken.thread = TextOf(event, "tid");
    taken.begin_ns = *begin;
    taken.end_ns = *begin + *length;
    const auto args = event.find("args");
    if (args != event.end() && args->is_object() && !args->empty()) {
      taken.args = args->dump(-1, ' ', false, Json::error_handler_t::replace);
    }
  }

  void TakeName(const Json& event) {
    const auto args = event.find("args");
    if (args == event.end() || !args->is_object()) return;
    const std::string what = TextOf(event, "name");
    const std::string process = TextOf(event, "pid");
    if (what == "process_name") {
      profile_.process_names.emplace_back(process, TextOf(*args, "name"));
    } else if (what == "thread_name") {
      profile_.thread_names.emplace_back(std::pair(process, TextOf(event, "tid")),
                                         TextOf(*args, "name"));
    }
  }

  TorchProfile& profile_;
  std::string member_;  // of the outermost object
};

}  // namespace

absl::StatusOr<TorchProfile> ReadTorchProfile(const std::string& path, std::optional<int> rank) {
  GzBytes::Source source{.file = GzFile(gzopen(path.c_str(), "rb"))};
  if (source.file == nullptr) return NotFound("%s cannot be read: %s", path, strerror(errno));
  TorchProfile profile{.path = path};
  EventReader reader(&profile);
  const auto parsed = [&reader](int depth, Json::parse_event_t what, Json& json) {
    return reader.Parsed(depth, what, json);
  };
  const Json json = Json::parse(GzBytes(&source), GzBytes(), parsed, /*allow_exceptions=*/false);
  if (source.has_failed) return DataLoss("%s cannot be decompressed, or is too long", path);
  if (!json.is_object() || !json.contains("traceEvents")) {
    return DataLoss(
        "%s is no profile of PyTorch: it is no JSON object with traceEvents, as "
        "torch.profiler's export_chrome_trace writes it",
        path);
  }
  int64_t base_ns = 0;
  if (const auto base = json.find("baseTimeNanoseconds"); base != json.end()) {
    if (!base->is_number_integer()) {
      return DataLoss("%s: baseTimeNanoseconds is %s, expected a number", path, base->dump());
    }
    base_ns = base->get<int64_t>();
  }
  for (TorchEvent& event : profile.events) {
    if (base_ns < 0 || base_ns > std::numeric_limits<int64_t>::max() / 2 ||
        event.end_ns > std::numeric_limits<int64_t>::max() / 2) {
      return DataLoss("%s: an event's time is out of range", path);
    }
    event.begin_ns += base_ns;
    event.end_ns += base_ns;
  }
  if (const auto job = json.find("distributedInfo"); job != json.end() && job->is_object()) {
    const auto said = job->find("rank");
    if (said != job->end() && said->is_number_integer()) profile.rank = said->get<int>();
  }
  if (rank) profile.rank = rank;
  return profile;
}

}  // namespace bdn
