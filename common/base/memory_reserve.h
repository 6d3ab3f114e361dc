#ifndef BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_
#define BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_

#include <cstddef>

namespace bdn {

// A reserve of address space that a daemon keeps for its end. When an allocation finds no memory,
// the reserve is given back, so that the allocation succeeds and main() has room to tell all others
// why it ends. When that is used up, too, the thread that asked for more waits a few seconds for
// that end, and then ends the process. Made once in a process, by main()'s thread, before there are
// other threads. (Where the system overcommits, and kills instead, none of this happens.)
//
// A library may be the one that finds no memory, and report it to nobody: ZeroMQ gives up the
// connection whose message finds no room, and its peer connects again and sends the message again,
// for ever. So main() looks now and then whether there is room for a message. Where memory is
// limited all threads use one heap of malloc's, so that memory that one thread finds, another
// finds, too; and the 64 MiB of address space that malloc keeps for each thread are not lost.
class MemoryReserve {
 public:
  MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Returns a descriptor that is readable once memory has run out.
  int fd() const;
  // Acts as if an allocation had found no memory: for memory that is not allocated by `new`. May be
  // called on any thread; no-op where this process has no reserve.
  static void OnExhausted();

  // Announces messages of up to `bytes`, whose memory is not allocated by `new`. Thread-safe; no-op
  // where this process has no reserve.
  static void ExpectMessage(size_t bytes);
  // Says that no message will come any more.
  static void ExpectNoMessages();
  // Notes that memory of no heap was asked for, and whether it was found; where not, the caller
  // waits for it. Thread-safe; no-op where this process has no reserve.
  static void OnAsked(bool found);
  // Returns whether an allocation may fail in this process.
  static bool IsLimited();
  // Looks whether there is room for the longest message that is expected: such a message may come
  // at any time, and none that is longer, so that a process that works with less is not ended for
  // it. Looks also whether, since the last look, other memory was asked for and none was found.
  // Once either was so several times in a row, acts as OnExhausted. To be called about once a
  // second, on main()'s thread.
  void Look();

 private:
  int failures_ = 0;  // looks in a row that found no memory
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_MEMORY_RESERVE_H_
