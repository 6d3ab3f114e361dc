#ifndef BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_
#define BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_

#include <cstddef>

namespace bdn {

// Address space that a daemon keeps for its end: when an allocation finds no memory, it is given back, so
// that the allocation succeeds and main() has room to say to all others why it ends. When that is used up,
// too, the thread that asked for more waits a few seconds for that end, and then ends the process. Made once
// in a process, by main()'s thread, before there are others. (Where the system overcommits, and kills instead,
// nothing of this comes to pass.)
//
// A library may be the one that finds none, and tell nobody: ZeroMQ gives up the connection whose message finds
// no place, and its peer connects again and sends it again, for ever. So main() looks now and then whether
// there is place for a message. Where memory is limited all threads use one heap of malloc's, so that what
// one finds, another finds, too; and 64 MiB of address space for each thread are not kept for nothing.
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

  // Messages of up to `bytes` will come, whose memory is not asked for by `new`. Thread-safe; no-op where there
  // is no reserve in this process.
  static void ExpectMessage(size_t bytes);
  // None will come any more.
  static void ExpectNoMessages();
  // Memory that is no heap's was asked for, and there was some, or none, for which what needs it waits.
  // Thread-safe; no-op where there is no reserve in this process.
  static void OnAsked(bool found);
  // Whether an allocation may fail in this process.
  static bool IsLimited();
  // Looks whether there is place for the longest message that is expected: it may come at any time, and nothing
  // longer may, so that a process which works with less is not ended for it. And whether other memory was
  // asked for since the last look, and none was found. Once that was so several times in a row, as OnExhausted.
  // To be called about once a second, on main()'s thread.
  void Look();

 private:
  int failures_ = 0;  // in a row
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_
