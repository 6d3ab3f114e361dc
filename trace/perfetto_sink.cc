// Perfetto's protobuf of a timeline.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>

#include "common/base/status.h"
#include "trace/perfetto.pb.h"
#include "trace/timeline.h"

namespace bdn {
namespace {

namespace pb = bandoneon::perfetto;

constexpr uint32_t kSequence = 1;      // of packets: one for the whole file
constexpr uint32_t kInternedAnew = 1;  // the flags of sequences
constexpr uint32_t kNeedsInterned = 2;
constexpr uint32_t kRealTime = 1;  // clocks
constexpr uint32_t kBootTime = 6;
// Processes have tracks of their own, beside those that have slices.
constexpr uint64_t kProcessTracks = uint64_t{1} << 32;

class PerfettoSink final : public TimelineSink {
 public:
  PerfettoSink(std::string path, std::ofstream file, const TimelineFacts& facts)
      : path_(std::move(path)), file_(std::move(file)) {
    pb::TracePacket packet;
    // Timestamps are of the default clock, which this sets equal to real time.
    for (const uint32_t clock : {kBootTime, kRealTime}) {
      auto* const snapshot = packet.mutable_clock_snapshot()->add_clocks();
      snapshot->set_clock_id(clock);
      snapshot->set_timestamp(static_cast<uint64_t>(facts.base_ns));
    }
    Write(&packet);
    WriteFacts(facts);
  }
  ~PerfettoSink() override {
    if (file_.is_open()) remove(Unfinished(path_).c_str());
  }

  static std::string Unfinished(const std::string& path) { return path + ".unfinished"; }

  void Process(uint64_t process, const std::string& name, int64_t pid,
               const std::vector<std::string>& labels) override {
    (void)pid;  // its label has it; the numbers of processes of several hosts may be equal
    pb::TracePacket packet;
    auto* const track = packet.mutable_track_descriptor();
    track->set_uuid(kProcessTracks + process);
    track->mutable_process()->set_pid(static_cast<int32_t>(process));
    track->mutable_process()->set_process_name(name);
    for (const std::string& label : labels) track->mutable_process()->add_process_labels(label);
    Write(&packet);
  }

  void Track(const TimelineTrack& track) override {
    pb::TracePacket packet;
    auto* const descriptor = packet.mutable_track_descriptor();
    descriptor->set_uuid(track.id);
    descriptor->set_parent_uuid(kProcessTracks + track.process);
    descriptor->set_name(track.name);
    if (track.is_counter) descriptor->mutable_counter()->set_unit_name("count");
    Write(&packet);
  }

  void Slices(const TimelineTrack& track, std::span<const TimelineSlice> slices) override {
    std::vector<int64_t> open;  // the ends of slices that the next one may lie in
    const auto close_until = [&](int64_t ns) {
      while (!open.empty() && open.back() <= ns) {
        pb::TracePacket packet;
        packet.set_timestamp(static_cast<uint64_t>(open.back()));
        packet.mutable_track_event()->set_type(pb::TrackEvent::TYPE_SLICE_END);
        packet.mutable_track_event()->set_track_uuid(track.id);
        Write(&packet);
        open.pop_back();
      }
    };
    for (const TimelineSlice& slice : slices) {
      close_until(slice.begin_ns);
      const bool has_length = slice.end_ns > slice.begin_ns;
      WriteSlice(track, slice, has_length);
      if (has_length) open.push_back(slice.end_ns);
    }
    close_until(std::numeric_limits<int64_t>::max());
  }

  void Count(const TimelineTrack& track, int64_t at_ns, double value) override {
    pb::TracePacket packet;
    packet.set_timestamp(static_cast<uint64_t>(at_ns));
    auto* const event = packet.mutable_track_event();
    event->set_type(pb::TrackEvent::TYPE_COUNTER);
    event->set_track_uuid(track.id);
    event->set_double_counter_value(value);
    Write(&packet);
  }

  absl::Status Finish() override {
    file_.close();
    absl::Status status;
    if (file_.fail() || has_failed_) status = Unavailable("%s cannot be written", path_);
    if (status.ok() && rename(Unfinished(path_).c_str(), path_.c_str()) != 0) {
      status = Unavailable("%s cannot be written: %s", path_, strerror(errno));
    }
    if (!status.ok()) remove(Unfinished(path_).c_str());
    return status;
  }

 private:
  using Numbers = std::map<std::string, uint64_t, std::less<>>;

  // Shows clocks and warnings as the arguments of an instant at the beginning.
  void WriteFacts(const TimelineFacts& facts) {
    TimelineTrack track{.id = kProcessTracks - 1, .name = "about this timeline"};
    pb::TracePacket packet;
    packet.mutable_track_descriptor()->set_uuid(track.id);
    packet.mutable_track_descriptor()->set_name(track.name);
    Write(&packet);
    const TimelineSlice slice{.begin_ns = facts.base_ns,
                              .end_ns = facts.base_ns,
                              .name = "clocks",
                              .category = "about",
                              .more = facts.about};
    Slices(track, std::span(&slice, 1));
  }

  void WriteSlice(const TimelineTrack& track, const TimelineSlice& slice, bool has_length) {
    pb::TracePacket packet;
    packet.set_timestamp(static_cast<uint64_t>(slice.begin_ns));
    auto* const event = packet.mutable_track_event();
    event->set_type(has_length ? pb::TrackEvent::TYPE_SLICE_BEGIN : pb::TrackEvent::TYPE_INSTANT);
    event->set_track_uuid(track.id);
    // A track of slices that wait is named after what they do, so each says what it is about.
    const bool is_named = track.is_waiting && !slice.subject.empty();
    event->set_name_iid(Intern(
        is_named ? slice.subject : slice.name, &names_,
        [&](auto* data) { return data->add_event_names(); }, &packet));
    event->add_categories(std::string(slice.category));
    Annotate(slice, event, &packet);
    for (const auto& point : slice.flows) {
      if (point.flow == TimelineSlice::Flow::kEnd) {
        event->add_terminating_flow_ids(point.id);
      } else {
        event->add_flow_ids(point.id);
      }
    }
    Write(&packet);
  }

  void Annotate(const TimelineSlice& slice, pb::TrackEvent* event, pb::TracePacket* packet) {
    const auto add = [&](const char* name) {
      auto* const annotation = event->add_debug_annotations();
      annotation->set_name_iid(Intern(
          name, &annotations_, [](auto* data) { return data->add_debug_annotation_names(); },
          packet));
      return annotation;
    };
    const auto text = [&](const char* name, std::string_view value) {
      if (value.empty()) return;
      add(name)->set_string_value_iid(InternText(value, packet));
    };
    const auto number = [&](const char* name, uint64_t value) {
      if (value != 0) add(name)->set_uint_value(value);
    };
    text("subject", slice.subject);
    number("step", slice.step);
    number("bytes", slice.bytes);
    text("peer", slice.peer);
    number("cpu_ns", static_cast<uint64_t>(slice.cpu_ns));
    if (!slice.more.empty()) add("args")->set_string_value(std::string(slice.more));
  }

  // Returns the number of a text, which the packet that first has it tells.
  template <typename Add>
  uint64_t Intern(std::string_view text, Numbers* numbers, Add add, pb::TracePacket* packet) {
    const auto found = numbers->find(text);
    if (found != numbers->end()) return found->second;
    const uint64_t number = numbers->size() + 1;
    numbers->emplace(text, number);
    auto* const entry = add(packet->mutable_interned_data());
    entry->set_iid(number);
    entry->set_name(std::string(text));
    return number;
  }
  uint64_t InternText(std::string_view text, pb::TracePacket* packet) {
    const auto found = texts_.find(text);
    if (found != texts_.end()) return found->second;
    const uint64_t number = texts_.size() + 1;
    texts_.emplace(text, number);
    auto* const entry = packet->mutable_interned_data()->add_debug_annotation_string_values();
    entry->set_iid(number);
    entry->set_str(std::string(text));
    return number;
  }

  void Write(pb::TracePacket* packet) {
    packet->set_trusted_packet_sequence_id(kSequence);
    packet->set_sequence_flags(is_first_ ? kInternedAnew : kNeedsInterned);
    is_first_ = false;
    packet->SerializeToString(&bytes_);
    // The packet as field 1 of the message Trace.
    char head[6] = {0x0a};
    size_t head_bytes = 1;
    for (size_t rest = bytes_.size(); head_bytes == 1 || rest > 0; rest >>= 7) {
      head[head_bytes++] = static_cast<char>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
    }
    file_.write(head, static_cast<std::streamsize>(head_bytes));
    file_.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    has_failed_ = has_failed_ || file_.fail();
  }

  const std::string path_;
  std::ofstream file_;
  Numbers names_;
  Numbers annotations_;
  Numbers texts_;
  std::string bytes_;  // of a packet
  bool is_first_ = true;
  bool has_failed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TimelineSink>> MakePerfettoSink(const std::string& path,
                                                               const TimelineFacts& facts) {
  std::ofstream file(PerfettoSink::Unfinished(path), std::ios::binary | std::ios::trunc);
  if (!file.is_open()) return NotFound("%s cannot be written: %s", path, strerror(errno));
  return std::make_unique<PerfettoSink>(path, std::move(file), facts);
}

}  // namespace bdn
