#ifndef BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_
#define BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_

namespace bdn {

// Address space that a daemon keeps for its end: when an allocation finds no memory, it is given back, so
// that the allocation succeeds and main() has room to say to all others why it ends. When that is used up,
// too, the thread that asked for more waits a few seconds for that end, and then ends the process. Made once
// in a process, by main()'s thread. (Where the system overcommits, and kills instead, nothing of this comes to
// pass.)
class MemoryReserve {
 public:
  MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Readable once memory has run out.
  int fd() const;
  // As if an allocation had found none: for memory that comes by other ways than `new`. On any thread; no-op
  // where there is no reserve in this process.
  static void OnExhausted();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_
