#ifndef BANDONEON_COMMON_TELEMETRY_TRACE_LAYOUT_H_
#define BANDONEON_COMMON_TELEMETRY_TRACE_LAYOUT_H_

#include <cstdint>
#include <type_traits>

// The bytes of a recording, as docs/trace_format.md defines them, for writers and readers. Machines
// are little-endian, as everywhere here.

namespace bdn {

inline constexpr char kTraceMagic[] = "BDNTRACE";  // its first 8 bytes
inline constexpr uint32_t kTraceByteOrder = 0x01020304;
inline constexpr uint32_t kTraceVersion = 1;
inline constexpr uint32_t kTraceHeaderBytes = 256;
inline constexpr uint32_t kTraceTableHeaderBytes = 16;  // of clocks, threads and names
inline constexpr uint32_t kTraceBlockHeaderBytes = 64;
inline constexpr uint32_t kTraceClockPairs = 64;
inline constexpr uint32_t kTraceThreads = 256;
inline constexpr uint16_t kTraceNoThread = 0xffff;
inline constexpr uint32_t kTraceTickNs = 16;  // the unit of cpu and of queued time
inline constexpr char kTraceSuffix[] = ".bdntrace";

// The kinds of records. Phases have the numbers of Stage.
enum class TraceKind : uint8_t {
  kStep = 32,
  kForward = 33,
  kReady = 34,
  kWaiting = 35,
  kOptimizer = 36,
  kCollection = 37,
  kInput = 38,
  kUser = 39,
  kBackward = 40,
  kThreadSample = 64,
  kMachineSample = 65,
  kLinkSample = 66,
  kPathSample = 67,
};
inline constexpr uint8_t kFirstMark = 32;
inline constexpr uint8_t kLastMark = 40;

// Bits of TraceRecord::flags.
inline constexpr uint8_t kTraceCountedElsewhere = 1;
inline constexpr uint8_t kTraceGaveNothing = 2;

struct TraceRecord {
  int64_t begin_ns = 0;
  uint64_t wall_ns = 0;
  uint64_t key = 0;
  uint64_t step = 0;
  uint32_t cpu_ticks = 0;
  uint32_t bytes = 0;  // of a mark: queued time in ticks
  uint32_t peer = 0;
  uint16_t thread = 0;
  uint8_t kind = 0;
  uint8_t flags = 0;
};
static_assert(sizeof(TraceRecord) == 48 && std::is_trivially_copyable_v<TraceRecord>);

struct TraceRegion {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct TraceHeader {
  char magic[8] = {};
  uint32_t byte_order = 0;
  uint32_t version = 0;
  uint32_t record_bytes = 0;
  uint32_t block_bytes = 0;
  TraceRegion facts;
  TraceRegion clocks;
  TraceRegion threads;
  TraceRegion names;
  uint64_t blocks_offset = 0;
  uint64_t names_lost = 0;
  uint64_t records_lost = 0;
  int64_t ended_ns = 0;
};
static_assert(sizeof(TraceHeader) == 120 && std::is_trivially_copyable_v<TraceHeader>);

struct TraceBlockHeader {
  uint64_t sequence = 0;
  uint32_t thread = 0;
  uint32_t records = 0;
};

struct TraceThread {
  uint32_t id = 0;
  uint32_t reserved = 0;
  char name[24] = {};
};
static_assert(sizeof(TraceThread) == 32);

struct TraceClockPair {
  int64_t monotonic_ns = 0;
  int64_t real_ns = 0;
};

// Returns a number as a field of 32 bits; the largest one stands for all that are larger.
inline uint32_t TraceField(uint64_t value) {
  return value < UINT32_MAX ? static_cast<uint32_t>(value) : UINT32_MAX;
}

// Returns how much a count has risen; 0 where it has fallen.
inline uint64_t RiseOf(uint64_t before, uint64_t now) { return now > before ? now - before : 0; }

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_TRACE_LAYOUT_H_
