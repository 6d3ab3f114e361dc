#ifndef BANDONEON_COMMON_TELEMETRY_RECORDING_H_
#define BANDONEON_COMMON_TELEMETRY_RECORDING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/telemetry/trace_layout.h"

namespace bdn {

// The bytes of a recording (docs/trace_format.md), in memory or in a mapped file. Each thread fills
// a block of its own without a lock; then it takes a new one or, where all are used, the oldest
// that no thread holds. Thread-safe.
class Recording {
 public:
  // The block that one thread fills.
  struct Writer {
    std::byte* block = nullptr;
    size_t index = 0;
    uint32_t records = 0;
    uint32_t capacity = 0;
    uint16_t thread = kTraceNoThread;
  };

  // Both make an empty recording of at most so many bytes. `name` ("worker-3") begins the names of
  // its files; `facts` is the text of its facts. Unavailable says why a file cannot be made.
  static absl::StatusOr<std::unique_ptr<Recording>> InMemory(uint64_t bytes, std::string name,
                                                             std::string_view facts);
  static absl::StatusOr<std::unique_ptr<Recording>> InFile(const std::string& directory,
                                                           uint64_t bytes, std::string name,
                                                           std::string_view facts);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Adds a record of the thread that owns `writer`. Where all blocks are held, it is only counted.
  void Add(Writer* writer, TraceRecord record) {
    if (writer->records == writer->capacity && !TakeBlock(writer)) return NoteLost();
    record.thread = writer->thread;
    StoreRecord(writer, record);
  }
  // Gives the block of a thread back, which others may then take.
  void Release(const Writer& writer);
  // Names a key; all names but a key's first are ignored.
  void Name(uint64_t key, std::string_view name);
  // Returns the place of a thread of the system in the table of threads; enters it at first.
  uint16_t PlaceOfThread(uint32_t id, std::string_view name);
  // Stores a pair of clocks. Not to be called by two threads at once.
  void StoreClocks(const TraceClockPair& pair);
  // Notes the end.
  void End(int64_t now_ns);
  // Writes what is there to a new file of `directory` and returns its path. Blocks that are taken
  // anew meanwhile are empty there.
  absl::StatusOr<std::string> WriteTo(const std::string& directory);
  // Returns a recording of at most so many bytes with the newest records: those that fit, of those
  // that ended `last_ns` before the newest one or later. Of a long recording only the end is read.
  // ResourceExhausted: the tables alone take more.
  absl::StatusOr<std::string> Latest(uint64_t most_bytes, int64_t last_ns);

  const std::string& path() const { return path_; }  // empty: in memory

 private:
  Recording(std::byte* memory, uint64_t bytes, const TraceHeader& layout, FileDescriptor file,
            std::string path, std::string name);

  bool TakeBlock(Writer* writer) ABSL_LOCKS_EXCLUDED(mu_);
  // Reserves memory for one more block than is used; returns false where there is none. The first
  // time that the disk has none a warning says so.
  bool MayUseAnother() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteLost();
  // Returns the places of the blocks that threads hold, and of the newest others.
  std::vector<size_t> NewestBlocks(size_t count);
  // Copies a block. Where it is taken anew meanwhile the copy's sequence is 0.
  void CopyBlock(size_t index, std::byte* to) const;
  static void StoreRecord(Writer* writer, const TraceRecord& record);
  std::byte* BlockAt(size_t index) const {
    return memory_ + layout_.blocks_offset + index * layout_.block_bytes;
  }

  std::byte* const memory_;
  const uint64_t bytes_;
  const TraceHeader layout_;   // as at the start
  const FileDescriptor file_;  // not open: in memory
  const std::string path_;
  const std::string name_;
  uint64_t clock_pairs_ = 0;
  Mutex mu_;
  size_t most_blocks_ ABSL_GUARDED_BY(mu_);
  uint64_t reserved_ ABSL_GUARDED_BY(mu_);  // bytes that may be touched without a fault
  size_t used_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_block_ ABSL_GUARDED_BY(mu_) = 0;  // the oldest, where all are used
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<bool> held_ ABSL_GUARDED_BY(mu_);
  uint64_t names_used_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<uint64_t> named_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<uint32_t, std::string>> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_RECORDING_H_
