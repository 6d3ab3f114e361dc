#include "common/telemetry/recording.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr uint64_t kFileNamesBytes = uint64_t{16} << 20;
constexpr uint32_t kLeastBlockBytes = 1 << 10;
constexpr uint32_t kMostBlockBytes = 64 << 10;
// So many bytes of a file are reserved on the disk at once.
constexpr uint64_t kReserveBytes = uint64_t{1} << 20;
constexpr int kMostFilesOfAProcess = 1000;
// Tables end at multiples of 16 bytes and the last one at one of 64, which takes less than this.
constexpr uint64_t kRoundingBytes = 128;
// Latest reads the newest blocks of so many times the bytes that it may return: a block of a thread
// that records seldom may be older than the others, and have newer records.
constexpr uint64_t kReadPerKept = 8;

// The places of the numbers in a block's header.
constexpr size_t kSequenceAt = 0;
constexpr size_t kThreadAt = 8;
constexpr size_t kRecordsAt = 12;

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Numbers that a reader may read while they are written.
std::atomic_ref<uint64_t> Word(std::byte* at) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at));
}
std::atomic_ref<uint32_t> HalfWord(std::byte* at) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(at));
}
void StoreWords(std::byte* to, const void* from, size_t bytes) {
  const auto* const source = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, source + at, sizeof(word));
    Word(to + at).store(word, std::memory_order_relaxed);
  }
}
void LoadWords(std::byte* to, std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = Word(from + at).load(std::memory_order_relaxed);
    std::memcpy(to + at, &word, sizeof(word));
  }
}

TraceHeader Layout(uint64_t facts_bytes, uint64_t names_bytes, uint32_t block_bytes) {
  TraceHeader header;
  std::memcpy(header.magic, kTraceMagic, sizeof(header.magic));
  header.byte_order = kTraceByteOrder;
  header.version = kTraceVersion;
  header.record_bytes = sizeof(TraceRecord);
  header.block_bytes = block_bytes;
  uint64_t end = kTraceHeaderBytes;
  const auto place = [&end](uint64_t bytes) {
    const TraceRegion region{end, RoundUp(bytes, 16)};
    end += region.bytes;
    return region;
  };
  header.facts = place(sizeof(uint32_t) + facts_bytes);
  header.clocks = place(kTraceTableHeaderBytes + kTraceClockPairs * sizeof(TraceClockPair));
  header.threads = place(kTraceTableHeaderBytes + kTraceThreads * sizeof(TraceThread));
  header.names = place(kTraceTableHeaderBytes + names_bytes);
  header.blocks_offset = RoundUp(end, 64);
  return header;
}

void WriteFacts(const TraceHeader& layout, std::string_view facts, std::byte* memory) {
  std::memcpy(memory, &layout, sizeof(layout));
  const auto bytes = static_cast<uint32_t>(facts.size());
  std::memcpy(memory + layout.facts.offset, &bytes, sizeof(bytes));
  std::memcpy(memory + layout.facts.offset + sizeof(bytes), facts.data(), facts.size());
}

struct NewFile {
  FileDescriptor file;
  std::string path;
};
absl::StatusOr<NewFile> MakeFile(const std::string& directory, const std::string& name) {
  if (mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) {
    return Unavailable("directory %s cannot be made: %s", directory, strerror(errno));
  }
  const std::string stem = absl::StrFormat("%s/%s.%d", directory, name, getpid());
  for (int n = 1; n <= kMostFilesOfAProcess; ++n) {
    std::string path =
        n == 1 ? stem + kTraceSuffix : absl::StrFormat("%s.%d%s", stem, n, kTraceSuffix);
    FileDescriptor file(
        open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.is_open()) return NewFile{std::move(file), std::move(path)};
    if (errno != EEXIST) return Unavailable("%s cannot be made: %s", path, strerror(errno));
  }
  return Unavailable("%s has %d recordings of this process", directory, kMostFilesOfAProcess);
}

absl::Status WriteAll(const NewFile& to, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(to.file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Unavailable("%s cannot be written: %s", to.path, strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

uint32_t FactsBytes(std::span<const std::byte> tables) {
  TraceHeader header;
  std::memcpy(&header, tables.data(), sizeof(header));
  uint32_t bytes;
  std::memcpy(&bytes, tables.data() + header.facts.offset, sizeof(bytes));
  return bytes;
}

// Returns whether the key of a record is one that the table of names may have.
bool HasKey(const TraceRecord& record) {
  return record.kind < static_cast<uint8_t>(TraceKind::kThreadSample);
}
int64_t EndNs(const TraceRecord& record) {
  return record.begin_ns + static_cast<int64_t>(record.wall_ns);
}

// The newest records of some blocks, and the names of their keys. It packs them into small blocks,
// so that threads with few records take little room.
class LatestRecords {
 public:
  // Borrows the entries of a table of names.
  LatestRecords(const std::byte* names, uint64_t bytes) : names_(names) {
    for (uint64_t at = 0; at < bytes;) {
      uint64_t key;
      uint32_t text;
      std::memcpy(&key, names + at, sizeof(key));
      std::memcpy(&text, names + at + sizeof(key), sizeof(text));
      const uint64_t entry = sizeof(key) + sizeof(text) + text;
      places_.try_emplace(key, at, entry);
      at += entry;
    }
  }

  void AddBlock(std::span<const std::byte> block) {
    TraceBlockHeader header;
    std::memcpy(&header, block.data(), sizeof(header));
    if (header.sequence == 0) return;
    const std::byte* from = block.data() + kTraceBlockHeaderBytes;
    for (uint32_t i = 0; i < header.records; ++i, from += sizeof(TraceRecord)) {
      Candidate& added = candidates_.emplace_back();
      std::memcpy(&added.record, from, sizeof(TraceRecord));
      added.block = header.sequence;
      added.index = i;
    }
  }

  // Chooses the newest records that fit into so many bytes with their blocks and names.
  void Choose(uint64_t most_bytes, int64_t last_ns) {
    const auto is_newer = [](const Candidate& a, const Candidate& b) {
      return EndNs(a.record) > EndNs(b.record);
    };
    // No more than these fit, so the others need not be sorted.
    const size_t most = most_bytes / sizeof(TraceRecord);
    if (candidates_.size() > most) {
      std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(most),
                       candidates_.end(), is_newer);
      candidates_.resize(most);
    }
    std::sort(candidates_.begin(), candidates_.end(), is_newer);
    uint64_t used = kRoundingBytes;
    size_t kept = 0;
    for (; kept < candidates_.size(); ++kept) {
      const TraceRecord& record = candidates_[kept].record;
      if (EndNs(candidates_[0].record) - EndNs(record) > last_ns) break;
      uint64_t& of_thread = records_[record.thread];
      const bool needs_block = of_thread % kRecordsOfBlock == 0;
      const auto name = HasKey(record) ? places_.find(record.key) : places_.end();
      const bool needs_name = name != places_.end() && !chosen_names_.contains(record.key);
      const uint64_t more =
          (needs_block ? uint64_t{kLeastBlockBytes} : 0) + (needs_name ? name->second.second : 0);
      if (used + more > most_bytes) break;
      used += more;
      ++of_thread;
      if (needs_name) {
        chosen_names_.insert(record.key);
        names_bytes_ += name->second.second;
      }
    }
    candidates_.resize(kept);
  }

  uint64_t names_bytes() const { return names_bytes_; }

  // Writes the table of the chosen names.
  void WriteNames(std::byte* to) const {
    std::memcpy(to, &names_bytes_, sizeof(names_bytes_));
    to += kTraceTableHeaderBytes;
    for (const uint64_t key : chosen_names_) {
      const auto& [at, bytes] = places_.at(key);
      std::memcpy(to, names_ + at, bytes);
      to += bytes;
    }
  }

  // Appends the blocks of the chosen records; each thread's records stay in their order.
  void AppendBlocks(std::string* out) {
    const auto place = [](const Candidate& c) {
      return std::tuple(c.record.thread, c.block, c.index);
    };
    std::sort(candidates_.begin(), candidates_.end(),
              [&](const auto& a, const auto& b) { return place(a) < place(b); });
    uint64_t sequence = 0;
    for (size_t i = 0; i < candidates_.size();) {
      TraceBlockHeader header{.sequence = ++sequence, .thread = candidates_[i].record.thread};
      const size_t block_at = out->size();
      out->resize(block_at + kLeastBlockBytes);
      char* to = out->data() + block_at + kTraceBlockHeaderBytes;
      for (; i < candidates_.size() && candidates_[i].record.thread == header.thread &&
             header.records < kRecordsOfBlock;
           ++i, ++header.records, to += sizeof(TraceRecord)) {
        std::memcpy(to, &candidates_[i].record, sizeof(TraceRecord));
      }
      std::memcpy(out->data() + block_at, &header, sizeof(header));
    }
  }

 private:
  struct Candidate {
    TraceRecord record;
    uint64_t block = 0;  // its sequence
    uint32_t index = 0;  // in the block
  };
  static constexpr uint64_t kRecordsOfBlock =
      (kLeastBlockBytes - kTraceBlockHeaderBytes) / sizeof(TraceRecord);

  const std::byte* const names_;
  absl::flat_hash_map<uint64_t, std::pair<uint64_t, uint64_t>> places_;  // by key: offset, bytes
  std::vector<Candidate> candidates_;                // once they are chosen, those alone
  absl::flat_hash_map<uint16_t, uint64_t> records_;  // chosen so far, by thread
  absl::flat_hash_set<uint64_t> chosen_names_;
  uint64_t names_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recording>> Recording::InMemory(uint64_t bytes, std::string name,
                                                               std::string_view facts) {
  // Some hundred blocks, so that every thread can hold one and most of them are full.
  const auto block_bytes = static_cast<uint32_t>(
      std::clamp<uint64_t>(RoundUp(bytes / 256, 16), kLeastBlockBytes, kMostBlockBytes));
  const TraceHeader layout = Layout(facts.size(), bytes / 8, block_bytes);
  if (bytes < layout.blocks_offset + 16 * uint64_t{block_bytes}) {
    return InvalidArgument("recorder-bytes is too small: a recording needs 128KiB or more");
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Unavailable("there are no %d bytes of memory for the recorder: %s", bytes,
                       strerror(errno));
  }
  auto* const begin = static_cast<std::byte*>(memory);
  WriteFacts(layout, facts, begin);
  return std::unique_ptr<Recording>(
      new Recording(begin, bytes, layout, FileDescriptor(), "", std::move(name)));
}

absl::StatusOr<std::unique_ptr<Recording>> Recording::InFile(const std::string& directory,
                                                             uint64_t bytes, std::string name,
                                                             std::string_view facts) {
  const TraceHeader layout = Layout(facts.size(), kFileNamesBytes, kMostBlockBytes);
  if (bytes < layout.blocks_offset + kReserveBytes) {
    return InvalidArgument("trace-bytes is %d: a file needs 32MiB or more", bytes);
  }
  BDN_ASSIGN_OR_RETURN(NewFile made, MakeFile(directory, name));
  const int failed = posix_fallocate(
      made.file.get(), 0, static_cast<off_t>(layout.names.offset) + kTraceTableHeaderBytes);
  void* const memory =
      failed != 0 ? MAP_FAILED
                  : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.file.get(), 0);
  if (memory == MAP_FAILED) {
    const std::string why = strerror(failed != 0 ? failed : errno);
    unlink(made.path.c_str());
    return Unavailable("%s cannot be written: %s", made.path, why);
  }
  auto* const begin = static_cast<std::byte*>(memory);
  WriteFacts(layout, facts, begin);
  return std::unique_ptr<Recording>(new Recording(begin, bytes, layout, std::move(made.file),
                                                  std::move(made.path), std::move(name)));
}

Recording::Recording(std::byte* memory, uint64_t bytes, const TraceHeader& layout,
                     FileDescriptor file, std::string path, std::string name)
    : memory_(memory),
      bytes_(bytes),
      layout_(layout),
      file_(std::move(file)),
      path_(std::move(path)),
      name_(std::move(name)),
      most_blocks_((bytes - layout.blocks_offset) / layout.block_bytes),
      reserved_(file_.is_open() ? layout.blocks_offset : bytes),
      held_(most_blocks_) {}

Recording::~Recording() { munmap(memory_, bytes_); }

void Recording::StoreRecord(Writer* writer, const TraceRecord& record) {
  std::byte* const records = writer->block + kTraceBlockHeaderBytes;
  StoreWords(records + writer->records * sizeof(TraceRecord), &record, sizeof(record));
  // Whoever reads this number reads the whole record.
  HalfWord(writer->block + kRecordsAt).store(++writer->records, std::memory_order_release);
}

void Recording::NoteLost() {
  Word(memory_ + offsetof(TraceHeader, records_lost)).fetch_add(1, std::memory_order_relaxed);
}

void Recording::Release(const Writer& writer) {
  if (writer.block == nullptr) return;
  MutexLock lock(&mu_);
  held_[writer.index] = false;
}

bool Recording::TakeBlock(Writer* writer) {
  MutexLock lock(&mu_);
  size_t index;
  if (MayUseAnother()) {
    index = used_blocks_++;
  } else {
    // Round and round, so the next one that nobody holds is the oldest.
    size_t tried = 0;
    while (tried < used_blocks_ && held_[next_block_]) {
      next_block_ = (next_block_ + 1) % used_blocks_;
      ++tried;
    }
    if (tried == used_blocks_) return false;
    index = next_block_;
    next_block_ = (next_block_ + 1) % used_blocks_;
  }
  if (writer->block != nullptr) held_[writer->index] = false;
  held_[index] = true;
  std::byte* const block = BlockAt(index);
  // A reader that finds another sequence behind the records than before them drops them.
  Word(block + kSequenceAt).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  HalfWord(block + kRecordsAt).store(0, std::memory_order_relaxed);
  HalfWord(block + kThreadAt).store(writer->thread, std::memory_order_relaxed);
  Word(block + kSequenceAt).store(++taken_, std::memory_order_release);
  writer->block = block;
  writer->index = index;
  writer->records = 0;
  writer->capacity = (layout_.block_bytes - kTraceBlockHeaderBytes) / sizeof(TraceRecord);
  return true;
}

bool Recording::MayUseAnother() {
  if (used_blocks_ == most_blocks_) return false;
  const uint64_t needed = layout_.blocks_offset + (used_blocks_ + 1) * layout_.block_bytes;
  if (needed <= reserved_) return true;
  const uint64_t more = std::min(bytes_, reserved_ + kReserveBytes) - reserved_;
  // A write to a page that the disk has no room for would end the process; a reservation says so.
  const int failed =
      posix_fallocate(file_.get(), static_cast<off_t>(reserved_), static_cast<off_t>(more));
  if (failed != 0) {
    LogWarning("%s does not grow: %s; the recorder goes on in the %d bytes that it has", path_,
               strerror(failed), reserved_);
    most_blocks_ = used_blocks_;
    return false;
  }
  reserved_ += more;
  return true;
}

void Recording::Name(uint64_t key, std::string_view name) {
  MutexLock lock(&mu_);
  if (!named_.insert(key).second) return;
  const auto bytes = static_cast<uint32_t>(name.size());
  const uint64_t entry = sizeof(key) + sizeof(bytes) + bytes;
  const uint64_t room = layout_.names.bytes - kTraceTableHeaderBytes;
  std::byte* const table = memory_ + layout_.names.offset;
  std::byte* const at = table + kTraceTableHeaderBytes + names_used_;
  // The names lie in a hole of the file until they are there.
  const bool fits = entry <= room - names_used_ &&
                    (!file_.is_open() ||
                     posix_fallocate(file_.get(), at - memory_, static_cast<off_t>(entry)) == 0);
  if (!fits) {
    Word(memory_ + offsetof(TraceHeader, names_lost)).fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::memcpy(at, &key, sizeof(key));
  std::memcpy(at + sizeof(key), &bytes, sizeof(bytes));
  std::memcpy(at + sizeof(key) + sizeof(bytes), name.data(), bytes);
  names_used_ += entry;
  Word(table).store(names_used_, std::memory_order_release);
}

uint16_t Recording::PlaceOfThread(uint32_t id, std::string_view name) {
  MutexLock lock(&mu_);
  // The latest first: the system may give the number of a thread that has ended to another one.
  for (size_t i = threads_.size(); i-- > 0;) {
    if (threads_[i].first == id && threads_[i].second == name) return static_cast<uint16_t>(i);
  }
  if (threads_.size() == kTraceThreads) return kTraceNoThread;
  TraceThread entry;
  entry.id = id;
  std::memcpy(entry.name, name.data(), std::min(name.size(), sizeof(entry.name)));
  std::byte* const table = memory_ + layout_.threads.offset;
  std::memcpy(table + kTraceTableHeaderBytes + threads_.size() * sizeof(entry), &entry,
              sizeof(entry));
  threads_.emplace_back(id, name);
  HalfWord(table).store(static_cast<uint32_t>(threads_.size()), std::memory_order_release);
  return static_cast<uint16_t>(threads_.size() - 1);
}

void Recording::StoreClocks(const TraceClockPair& pair) {
  std::byte* const table = memory_ + layout_.clocks.offset;
  StoreWords(
      table + kTraceTableHeaderBytes + clock_pairs_ % kTraceClockPairs * sizeof(TraceClockPair),
      &pair, sizeof(pair));
  Word(table).store(++clock_pairs_, std::memory_order_release);
}

void Recording::End(int64_t now_ns) {
  Word(memory_ + offsetof(TraceHeader, ended_ns))
      .store(static_cast<uint64_t>(now_ns), std::memory_order_relaxed);
}

void Recording::CopyBlock(size_t index, std::byte* to) const {
  std::byte* const block = BlockAt(index);
  const uint64_t sequence = Word(block + kSequenceAt).load(std::memory_order_acquire);
  const uint32_t records = HalfWord(block + kRecordsAt).load(std::memory_order_acquire);
  LoadWords(to, block, kTraceBlockHeaderBytes + records * sizeof(TraceRecord));
  std::atomic_thread_fence(std::memory_order_acquire);
  const bool is_same = Word(block + kSequenceAt).load(std::memory_order_relaxed) == sequence;
  const uint64_t kept = is_same ? sequence : 0;
  std::memcpy(to + kSequenceAt, &kept, sizeof(kept));
  std::memcpy(to + kRecordsAt, &records, sizeof(records));
}

absl::StatusOr<std::string> Recording::WriteTo(const std::string& directory) {
  size_t used_blocks;
  {
    MutexLock lock(&mu_);
    used_blocks = used_blocks_;
  }
  std::vector<std::byte> copy(layout_.blocks_offset + used_blocks * layout_.block_bytes);
  LoadWords(copy.data(), memory_, layout_.names.offset + kTraceTableHeaderBytes);
  // Names are never changed: those that the number says are there are whole.
  const uint64_t names = Word(memory_ + layout_.names.offset).load(std::memory_order_acquire);
  std::memcpy(copy.data() + layout_.names.offset, &names, sizeof(names));
  const size_t names_at = layout_.names.offset + kTraceTableHeaderBytes;
  std::memcpy(copy.data() + names_at, memory_ + names_at, names);
  for (size_t i = 0; i < used_blocks; ++i) {
    CopyBlock(i, copy.data() + (BlockAt(i) - memory_));
  }
  BDN_ASSIGN_OR_RETURN(const NewFile made, MakeFile(directory, name_));
  BDN_RETURN_IF_ERROR(WriteAll(made, copy));
  return made.path;
}

std::vector<size_t> Recording::NewestBlocks(size_t count) {
  MutexLock lock(&mu_);
  std::vector<size_t> blocks;
  for (size_t i = 0; i < used_blocks_; ++i) {
    if (held_[i]) blocks.push_back(i);
  }
  // The newest one lies in front of the next one that is taken.
  size_t at = used_blocks_ == most_blocks_ ? next_block_ : used_blocks_;
  for (size_t tried = 0; tried < used_blocks_ && count > 0; ++tried) {
    at = (at + used_blocks_ - 1) % used_blocks_;
    if (held_[at]) continue;
    blocks.push_back(at);
    --count;
  }
  return blocks;
}

absl::StatusOr<std::string> Recording::Latest(uint64_t most_bytes, int64_t last_ns) {
  std::vector<std::byte> tables(layout_.names.offset);
  LoadWords(tables.data(), memory_, tables.size());
  const uint64_t names = Word(memory_ + layout_.names.offset).load(std::memory_order_acquire);
  LatestRecords latest(memory_ + layout_.names.offset + kTraceTableHeaderBytes, names);
  const size_t most_blocks = kReadPerKept * most_bytes / layout_.block_bytes + 1;
  std::vector<std::byte> block(layout_.block_bytes);
  for (const size_t index : NewestBlocks(most_blocks)) {
    CopyBlock(index, block.data());
    latest.AddBlock(block);
  }
  TraceHeader header = Layout(FactsBytes(tables), 0, kLeastBlockBytes);
  if (header.blocks_offset > most_bytes) {
    return ResourceExhausted("a recording has tables of %d bytes, and %d were asked for",
                             header.blocks_offset, most_bytes);
  }
  latest.Choose(most_bytes - header.blocks_offset, last_ns);
  header = Layout(FactsBytes(tables), latest.names_bytes(), kLeastBlockBytes);
  header.names_lost = Word(tables.data() + offsetof(TraceHeader, names_lost));
  header.records_lost = Word(tables.data() + offsetof(TraceHeader, records_lost));
  std::string copy(header.blocks_offset, '\0');
  auto* const to = reinterpret_cast<std::byte*>(copy.data());
  std::memcpy(to, &header, sizeof(header));
  for (const auto& [from, region] :
       {std::pair(layout_.facts, header.facts), std::pair(layout_.clocks, header.clocks),
        std::pair(layout_.threads, header.threads)}) {
    std::memcpy(to + region.offset, tables.data() + from.offset, region.bytes);
  }
  latest.WriteNames(to + header.names.offset);
  latest.AppendBlocks(&copy);
  return copy;
}

}  // namespace bdn
