#include "trace/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "common/telemetry/stage_times.h"

namespace bdn {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTextBytes = 200;
constexpr uint64_t kMaxRegionBytes = uint64_t{64} << 20;
constexpr uint32_t kMinBlockBytes = 1024;
constexpr uint32_t kMaxBlockBytes = 1 << 20;
constexpr size_t kMaxRanks = 1 << 20;
constexpr uint64_t kCountBytes = 16;  // at the head of the clocks, threads and names

// Returns how many bytes the character at the head of `text` has; 0 where it is none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  uint32_t code = first & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = (code << 6) | (byte(i) & 0x3f);
  }
  const bool is_shortest = code >= (bytes == 2 ? 0x80U : bytes == 3 ? 0x800U : 0x10000U);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  const bool is_control = code < 0xa0;  // also of Latin-1
  return is_shortest && !is_surrogate && !is_control && code <= 0x10ffff ? bytes : 0;
}

class FileBytes final : public TraceBytes {
 public:
  FileBytes(FileDescriptor fd, uint64_t size) : fd_(std::move(fd)), size_(size) {}

  uint64_t size() const override { return size_; }
  // By pread, and not through a mapping: a file that gets shorter is then an error, no signal.
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override {
    while (!to.empty()) {
      const ssize_t got = pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return DataLoss("it cannot be read: %s", strerror(errno));
      if (got == 0) return DataLoss("it became shorter while it was read");
      offset += static_cast<uint64_t>(got);
      to = to.subspan(static_cast<size_t>(got));
    }
    return absl::OkStatus();
  }

 private:
  FileDescriptor fd_;
  uint64_t size_;
};

class MemoryBytes final : public TraceBytes {
 public:
  explicit MemoryBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t size() const override { return bytes_.size(); }
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override {
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset) {
      return DataLoss("it is too short");
    }
    if (!to.empty()) memcpy(to.data(), bytes_.data() + offset, to.size());
    return absl::OkStatus();
  }

 private:
  const std::span<const std::byte> bytes_;
};

template <typename T>
absl::StatusOr<T> ReadStruct(const TraceBytes& bytes, uint64_t offset) {
  T value;
  BDN_RETURN_IF_ERROR(bytes.Read(offset, std::as_writable_bytes(std::span(&value, 1))));
  return value;
}

template <typename T>
T StructAt(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// One of the four regions of a header.
struct NamedRegion {
  const char* name;
  TraceRegion region;
  uint64_t least_bytes;
};

absl::Status CheckRegions(const TraceHeader& header) {
  const NamedRegion regions[] = {
      {"facts", header.facts, 4},
      {"clocks", header.clocks, kCountBytes + kTraceClockPairs * sizeof(TraceClockPair)},
      {"threads", header.threads, kCountBytes + kTraceThreads * sizeof(TraceThread)},
      {"names", header.names, kCountBytes}};
  uint64_t end = kTraceHeaderBytes;
  for (const auto& [name, region, least] : regions) {
    if (region.offset % 16 != 0 || region.offset < end || region.offset > kMaxTraceNs ||
        region.bytes < least || region.bytes > kMaxRegionBytes) {
      return DataLoss("its header is broken: the %s are %d bytes at offset %d", name, region.bytes,
                      region.offset);
    }
    end = region.offset + region.bytes;
  }
  if (header.blocks_offset % 16 != 0 || header.blocks_offset < end ||
      header.blocks_offset > kMaxTraceNs) {
    return DataLoss("its header is broken: the blocks begin at offset %d", header.blocks_offset);
  }
  return absl::OkStatus();
}

absl::StatusOr<TraceHeader> ReadHeader(const TraceBytes& bytes) {
  char magic[8];
  if (bytes.size() < sizeof(magic)) return DataLoss("it is no recording: it is too short");
  BDN_RETURN_IF_ERROR(bytes.Read(0, std::as_writable_bytes(std::span(magic))));
  if (memcmp(magic, kTraceMagic, sizeof(magic)) != 0) {
    return DataLoss("it is no recording: it does not begin with %s", kTraceMagic);
  }
  if (bytes.size() < kTraceHeaderBytes) {
    return DataLoss("it is cut off in its header, after %d bytes", bytes.size());
  }
  BDN_ASSIGN_OR_RETURN(const auto header, ReadStruct<TraceHeader>(bytes, 0));
  if (header.byte_order != kTraceByteOrder) {
    return DataLoss(
        "it has another byte order (%08x): read it on the kind of machine that wrote it",
        header.byte_order);
  }
  if (header.version != kTraceVersion) {
    return Unimplemented("it has version %d of the format, and this program reads version %d",
                         header.version, kTraceVersion);
  }
  if (header.record_bytes != sizeof(TraceRecord) || header.block_bytes % 16 != 0 ||
      header.block_bytes < kMinBlockBytes || header.block_bytes > kMaxBlockBytes) {
    return DataLoss("its header is broken: records of %d bytes in blocks of %d",
                    header.record_bytes, header.block_bytes);
  }
  BDN_RETURN_IF_ERROR(CheckRegions(header));
  if (bytes.size() < header.blocks_offset) {
    return DataLoss("it is cut off before its first record, after %d of at least %d bytes",
                    bytes.size(), header.blocks_offset);
  }
  return header;
}

absl::StatusOr<std::vector<std::byte>> ReadRegion(const TraceBytes& bytes, TraceRegion region) {
  std::vector<std::byte> copy(region.bytes);
  BDN_RETURN_IF_ERROR(bytes.Read(region.offset, copy));
  return copy;
}

// A reader of members of the facts, which remembers the first one that is wrong.
class FactReader {
 public:
  explicit FactReader(const Json& json) : json_(json) {}

  std::string Text(const char* name) {
    const auto member = json_.find(name);
    if (member == json_.end() || !member->is_string()) return Wrong(name, "no text"), "";
    return PlainText(member->get_ref<const std::string&>());
  }
  int64_t Integer(const char* name, int64_t most) {
    const auto member = json_.find(name);
    if (member == json_.end() || !IsWithin(*member, most)) return Wrong(name, "no such number"), 0;
    return member->get<int64_t>();
  }
  std::vector<NodeId> Nodes(const char* name) {
    const auto member = json_.find(name);
    std::vector<NodeId> nodes;
    if (member == json_.end() || !member->is_array() || member->size() > kMaxRanks) {
      return Wrong(name, "no list of nodes"), nodes;
    }
    for (const Json& node : *member) {
      if (!IsWithin(node, UINT32_MAX)) return Wrong(name, "no list of nodes"), nodes;
      nodes.push_back(node.get<NodeId>());
    }
    return nodes;
  }
  std::vector<std::pair<std::string, std::string>> Settings(const char* name) {
    const auto member = json_.find(name);
    std::vector<std::pair<std::string, std::string>> settings;
    if (member == json_.end() || !member->is_object()) return Wrong(name, "no object"), settings;
    for (const auto& [key, value] : member->items()) {
      if (!value.is_string()) return Wrong(name, "no object of texts"), settings;
      settings.emplace_back(PlainText(key), PlainText(value.get_ref<const std::string&>()));
    }
    return settings;
  }
  const absl::Status& status() const { return status_; }

 private:
  static bool IsWithin(const Json& value, int64_t most) {
    return value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() <= most;
  }
  void Wrong(const char* name, const char* what) {
    if (status_.ok()) status_ = DataLoss("its facts are not understood: '%s' is %s", name, what);
  }

  const Json& json_;
  absl::Status status_;
};

absl::StatusOr<TraceFacts> ParseFacts(std::span<const std::byte> region) {
  const auto text_bytes = StructAt<uint32_t>(region, 0);
  if (text_bytes > region.size() - 4) {
    return DataLoss("its facts are not understood: they have %d bytes in a region of %d",
                    text_bytes, region.size());
  }
  const auto text = region.subspan(4, text_bytes);
  const char* const begin = reinterpret_cast<const char*>(text.data());
  const Json json = Json::parse(begin, begin + text.size(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return DataLoss("its facts are not understood: they are no JSON object");
  FactReader reader(json);
  TraceFacts facts{.job = reader.Text("job"),
                   .role = reader.Text("role"),
                   .host = reader.Text("host"),
                   .boot_id = reader.Text("boot_id"),
                   .version = reader.Text("version"),
                   .rank = static_cast<Rank>(reader.Integer("rank", kMaxRanks)),
                   .node = static_cast<NodeId>(reader.Integer("node", UINT32_MAX)),
                   .pid = reader.Integer("pid", INT32_MAX),
                   .cores = reader.Integer("cores", kMaxRanks),
                   .workers = reader.Nodes("workers"),
                   .servers = reader.Nodes("servers"),
                   .settings = reader.Settings("settings")};
  BDN_RETURN_IF_ERROR(reader.status());
  // Some are called HOST:PID, to be told from others on their host. Here the number stands beside.
  const std::string pid = absl::StrCat(":", facts.pid);
  if (absl::EndsWith(facts.host, pid)) facts.host.resize(facts.host.size() - pid.size());
  if (facts.role != "worker" && facts.role != "server" && facts.role != "process") {
    return DataLoss("its facts are not understood: role '%s' is none", facts.role);
  }
  return facts;
}

std::vector<TraceClockPair> ParseClocks(std::span<const std::byte> region) {
  const auto written = std::min<uint64_t>(StructAt<uint64_t>(region, 0), kTraceClockPairs);
  std::vector<TraceClockPair> pairs;
  for (uint64_t i = 0; i < written; ++i) {
    const auto pair = StructAt<TraceClockPair>(region, kCountBytes + i * sizeof(TraceClockPair));
    const auto is_time = [](int64_t ns) { return ns > 0 && ns <= kMaxTraceNs * 2; };
    // A pair that is being written may be half of one and half of another: it is off by a minute
    // in a place of one of the others, which consumers smooth; zeros are none.
    if (is_time(pair.monotonic_ns) && is_time(pair.real_ns)) pairs.push_back(pair);
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const auto& a, const auto& b) { return a.monotonic_ns < b.monotonic_ns; });
  return pairs;
}

std::vector<TraceThread> ParseThreads(std::span<const std::byte> region) {
  const uint32_t count = std::min(StructAt<uint32_t>(region, 0), kTraceThreads);
  std::vector<TraceThread> threads;
  for (uint32_t i = 0; i < count; ++i) {
    auto thread = StructAt<TraceThread>(region, kCountBytes + i * sizeof(TraceThread));
    const std::string name =
        PlainText(std::string_view(thread.name, strnlen(thread.name, sizeof(thread.name) - 1)));
    memset(thread.name, 0, sizeof(thread.name));
    memcpy(thread.name, name.data(), std::min(name.size(), sizeof(thread.name) - 1));
    threads.push_back(thread);
  }
  return threads;
}

std::unordered_map<uint64_t, std::string> ParseNames(std::span<const std::byte> region) {
  std::unordered_map<uint64_t, std::string> names;
  const uint64_t used =
      std::min<uint64_t>(StructAt<uint64_t>(region, 0), region.size() - kCountBytes);
  const auto entries = region.subspan(kCountBytes, used);
  uint64_t at = 0;
  // An entry that is cut or broken ends the list: where the next one begins is not known.
  while (entries.size() - at >= 12) {
    const auto key = StructAt<uint64_t>(entries, at);
    const auto text_bytes = StructAt<uint32_t>(entries, at + 8);
    if (text_bytes > entries.size() - at - 12) break;
    names[key] = PlainText(
        std::string_view(reinterpret_cast<const char*>(entries.data()) + at + 12, text_bytes));
    at += 12 + text_bytes;
  }
  return names;
}

// Reads the blocks of a recording, one after the other.
class BlockReader {
 public:
  BlockReader(const TraceBytes& bytes, const TraceHeader& header, NodeTrace* trace)
      : bytes_(bytes), header_(header), trace_(*trace), buffer_(header.block_bytes) {}

  // Calls `use` with each record whose numbers can be. Counts what is left out if `counts`.
  template <typename Use>
  absl::Status ReadAll(bool counts, Use use) {
    counts_ = counts;
    const uint64_t all = bytes_.size() - header_.blocks_offset;
    for (uint64_t at = 0; at < all; at += header_.block_bytes) {
      const uint64_t there = std::min<uint64_t>(header_.block_bytes, all - at);
      if (there < header_.block_bytes && counts_) trace_.bytes_cut = header_.block_bytes - there;
      if (there < kTraceBlockHeaderBytes) break;
      BDN_ASSIGN_OR_RETURN(const auto records, ReadOne(header_.blocks_offset + at, there));
      for (TraceRecord record : records) {
        if (IsSound(&record)) use(record);
      }
    }
    return absl::OkStatus();
  }

 private:
  // Returns the records of a block of which so many bytes are there.
  absl::StatusOr<std::span<const TraceRecord>> ReadOne(uint64_t offset, uint64_t there) {
    BDN_ASSIGN_OR_RETURN(const auto before, ReadStruct<TraceBlockHeader>(bytes_, offset));
    if (before.sequence == 0) return std::span<const TraceRecord>();
    const uint64_t room = (there - kTraceBlockHeaderBytes) / sizeof(TraceRecord);
    const auto records = std::span(buffer_).first(std::min<uint64_t>(before.records, room));
    BDN_RETURN_IF_ERROR(
        bytes_.Read(offset + kTraceBlockHeaderBytes, std::as_writable_bytes(records)));
    // Only now: records that were read before the sequence changed are those of that sequence.
    BDN_ASSIGN_OR_RETURN(const auto after, ReadStruct<TraceBlockHeader>(bytes_, offset));
    if (after.sequence == before.sequence) return records;
    if (counts_) ++trace_.blocks_overwritten;
    return std::span<const TraceRecord>();
  }

  bool IsSound(TraceRecord* record) {
    if (TraceKindName(record->kind).empty()) {
      if (counts_) ++trace_.records_unknown;
      return false;
    }
    const bool is_sample = record->kind >= static_cast<uint8_t>(TraceKind::kThreadSample);
    if (record->begin_ns < 0 || record->begin_ns > kMaxTraceNs || record->wall_ns > kMaxTraceNs ||
        EndOf(*record) > kMaxTraceNs || (!is_sample && record->step > kMaxStep)) {
      if (counts_) ++trace_.records_bad;
      return false;
    }
    if (record->thread >= trace_.threads.size()) record->thread = kTraceNoThread;
    return true;
  }

  const TraceBytes& bytes_;
  const TraceHeader& header_;
  NodeTrace& trace_;
  std::vector<TraceRecord> buffer_;
  bool counts_ = false;
};

absl::Status ReadRecords(const TraceBytes& bytes, const TraceHeader& header,
                         const TraceSelection& selection, NodeTrace* trace) {
  BlockReader reader(bytes, header, trace);
  int64_t first_end = 0;
  if (selection.last_ns < kMaxTraceNs) {
    int64_t newest = 0;
    BDN_RETURN_IF_ERROR(reader.ReadAll(/*counts=*/false, [&](const TraceRecord& record) {
      newest = std::max(newest, EndOf(record));
    }));
    first_end = newest - selection.last_ns;
  }
  bool is_full = false;
  BDN_RETURN_IF_ERROR(reader.ReadAll(/*counts=*/true, [&](const TraceRecord& record) {
    if (EndOf(record) < first_end) {
      ++trace->records_early;
    } else if (trace->records.size() < selection.max_records) {
      trace->records.push_back(record);
    } else {
      is_full = true;
    }
  }));
  if (is_full) {
    return ResourceExhausted(
        "it has more than %d records: read the last ones alone, by --last TIME",
        selection.max_records);
  }
  std::stable_sort(trace->records.begin(), trace->records.end(),
                   [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  return absl::OkStatus();
}

absl::StatusOr<FileBytes> OpenTrace(const std::string& path) {
  // Not to wait where somebody has put a pipe of that name.
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) return NotFound("%s cannot be read: %s", path, strerror(errno));
  struct stat about = {};
  if (fstat(fd.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return InvalidArgument("%s is no file", path);
  }
  return FileBytes(std::move(fd), static_cast<uint64_t>(about.st_size));
}

}  // namespace

std::string TraceFacts::Name() const {
  if (role == "process") return absl::StrFormat("process %d (pid %d)", rank, pid);
  return absl::StrFormat("%s %d", role, rank);
}

std::string NodeTrace::NameOf(uint64_t key) const {
  const auto found = names.find(key);
  return found != names.end() ? found->second : absl::StrCat("key ", Key{key}.ToString());
}

int64_t NodeTrace::LastSign() const {
  int64_t last = ended_ns;
  if (!clocks.empty()) last = std::max(last, clocks.back().monotonic_ns);
  for (const TraceRecord& record : records) last = std::max(last, EndOf(record));
  return last;
}

absl::StatusOr<NodeTrace> ReadTrace(const TraceBytes& bytes, const TraceSelection& selection) {
  BDN_ASSIGN_OR_RETURN(const TraceHeader header, ReadHeader(bytes));
  NodeTrace trace;
  BDN_ASSIGN_OR_RETURN(const auto facts, ReadRegion(bytes, header.facts));
  BDN_ASSIGN_OR_RETURN(trace.facts, ParseFacts(facts));
  BDN_ASSIGN_OR_RETURN(const auto threads, ReadRegion(bytes, header.threads));
  trace.threads = ParseThreads(threads);
  BDN_RETURN_IF_ERROR(ReadRecords(bytes, header, selection, &trace));
  // Behind the records, so that no record has a key whose name came later.
  BDN_ASSIGN_OR_RETURN(const auto names, ReadRegion(bytes, header.names));
  trace.names = ParseNames(names);
  BDN_ASSIGN_OR_RETURN(const auto clocks, ReadRegion(bytes, header.clocks));
  trace.clocks = ParseClocks(clocks);
  const bool has_ended = header.ended_ns > 0 && header.ended_ns <= kMaxTraceNs;
  trace.ended_ns = has_ended ? header.ended_ns : 0;
  trace.records_lost = header.records_lost;
  trace.names_lost = header.names_lost;
  return trace;
}

absl::StatusOr<NodeTrace> ReadTrace(std::span<const std::byte> bytes,
                                    const TraceSelection& selection) {
  return ReadTrace(MemoryBytes(bytes), selection);
}

absl::StatusOr<NodeTrace> ReadTraceFile(const std::string& path, const TraceSelection& selection) {
  BDN_ASSIGN_OR_RETURN(const FileBytes bytes, OpenTrace(path));
  absl::StatusOr<NodeTrace> trace = ReadTrace(bytes, selection);
  if (!trace.ok()) return Annotate(trace.status(), path);
  trace->path = path;
  return trace;
}

absl::StatusOr<TraceFacts> ReadTraceFacts(const std::string& path) {
  BDN_ASSIGN_OR_RETURN(const FileBytes bytes, OpenTrace(path));
  const auto read = [&]() -> absl::StatusOr<TraceFacts> {
    BDN_ASSIGN_OR_RETURN(const TraceHeader header, ReadHeader(bytes));
    BDN_ASSIGN_OR_RETURN(const auto region, ReadRegion(bytes, header.facts));
    return ParseFacts(region);
  };
  absl::StatusOr<TraceFacts> facts = read();
  if (!facts.ok()) return Annotate(facts.status(), path);
  return facts;
}

std::string_view TraceKindName(uint8_t kind) {
  static constexpr std::string_view kMarks[] = {"step",    "forward",   "ready",
                                                "waiting", "optimizer", "collection",
                                                "input",   "user",      "backward"};
  static_assert(std::size(kMarks) == kLastMark - kFirstMark + 1);
  if (const auto stage = FindStage(kind)) return StageName(*stage);
  if (kind >= kFirstMark && kind <= kLastMark) return kMarks[kind - kFirstMark];
  if (kind == static_cast<uint8_t>(TraceKind::kThreadSample)) return "thread";
  if (kind == static_cast<uint8_t>(TraceKind::kMachineSample)) return "machine";
  if (kind == static_cast<uint8_t>(TraceKind::kLinkSample)) return "link";
  if (kind == static_cast<uint8_t>(TraceKind::kPathSample)) return "path";
  return "";
}

std::string PlainText(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (plain.size() + std::max<size_t>(bytes, 1) > kMaxTextBytes) break;
    plain += bytes == 0 ? std::string_view("?") : text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return plain;
}

}  // namespace bdn
