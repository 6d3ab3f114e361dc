// The writes that a process that shares memory with us may make there, and the effects that they
// must not have.

#include "common/transport/shm/shm_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>

#include "common/transport/shm/shm_socket.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

using ReceiveResult = ShmChannel::ReceiveResult;
using SendResult = ShmChannel::SendResult;

// One end is a channel, the other this test, which writes what it likes.
class ShmChannelTest : public ::testing::Test {
 protected:
  ShmChannelTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
    socket_ = FileDescriptor(fds[1]);
    arena_->Enable();
    mine_ = *SharedMemory::Create("test-mine", sizeof(ShmControl));
    theirs_ = *SharedMemory::Create("test-theirs", sizeof(ShmControl));
    channel_ = std::make_shared<ShmChannel>(FileDescriptor(fds[0]), mine_, theirs_, arena_);
  }

  ShmControl& theirs() { return *reinterpret_cast<ShmControl*>(theirs_->data()); }
  const ShmControl& mine() { return *reinterpret_cast<ShmControl*>(mine_->data()); }

  // Gives the channel a segment of so many bytes.
  std::shared_ptr<SharedMemory> AddSegment(size_t bytes) {
    auto memory = *SharedMemory::Create("test-segment", bytes);
    const ShmSegment packet{.index = num_segments_++, .bytes = bytes};
    EXPECT_EQ(channel_->AddSegment(packet, FileDescriptor(dup(memory->fd()))), absl::OkStatus());
    return memory;
  }
  static ShmFrame EntryOf(const Frame& frame, uint32_t token = 0, uint64_t offset = 0) {
    ShmFrame entry = {};
    entry.header = EncodeHeader(frame.header);
    entry.token = token;
    entry.offset = offset;
    entry.bytes = frame.payload.size();
    return entry;
  }
  void Publish(const ShmFrame& entry) {
    const uint64_t number = theirs().published.load();
    std::memcpy(static_cast<void*>(&theirs().frames[number % kShmSlots]), &entry, sizeof(entry));
    theirs().published.store(number + 1);
  }
  ReceiveResult Receive() { return channel_->Receive(&frame_); }
  SendResult Send(size_t bytes) {
    Frame frame = FrameOf(1, bytes);
    if (bytes > 0) {
      Buffer payload = pool_.Get(bytes);
      std::memcpy(payload.data(), frame.payload.data(), bytes);
      frame.payload = payload;
    }
    return channel_->Send(frame);
  }
  static ShmFrame EntryIn(const ShmControl& control, uint64_t number) {
    ShmFrame entry;
    std::memcpy(&entry, static_cast<const void*>(&control.frames[number % kShmSlots]),
                sizeof(entry));
    return entry;
  }
  // Releases a frame as its receiver does.
  void Release(uint32_t token) {
    const uint64_t number = theirs().released.load();
    theirs().tokens[number % kShmSlots].store(token);
    theirs().released.store(number + 1);
  }

  std::shared_ptr<ShmArena> arena_ = std::make_shared<ShmArena>();
  BufferPool pool_{arena_};
  FileDescriptor socket_;  // the test's end
  std::shared_ptr<SharedMemory> mine_;
  std::shared_ptr<SharedMemory> theirs_;
  std::shared_ptr<ShmChannel> channel_;
  uint32_t num_segments_ = 0;
  Frame frame_;
};

TEST_F(ShmChannelTest, HandsOverAPayloadWhereItIs) {
  const auto segment = AddSegment(1 << 20);
  const Frame sent = FrameOf(7, 1000);
  std::memcpy(segment->data() + 4096, sent.payload.data(), 1000);
  Publish(EntryOf(sent, /*token=*/5, /*offset=*/4096));
  ASSERT_EQ(Receive(), ReceiveResult::kFrame);
  EXPECT_TRUE(frame_.is_lent);
  EXPECT_TRUE(frame_.is_of_host);
  ExpectSameFrame(frame_, sent);
  EXPECT_EQ(mine().released.load(), 0u);
  frame_ = Frame();
  EXPECT_EQ(mine().released.load(), 1u);
  EXPECT_EQ(mine().tokens[0].load(), 5u);
  EXPECT_EQ(Receive(), ReceiveResult::kNothing);
}

TEST_F(ShmChannelTest, WhatIsOwnedNoLongerFollowsItsSender) {
  const auto segment = AddSegment(4096);
  const Frame sent = FrameOf(7, 1000);
  std::memcpy(segment->data(), sent.payload.data(), 1000);
  Publish(EntryOf(sent));
  ASSERT_EQ(Receive(), ReceiveResult::kFrame);
  Own(&frame_);
  EXPECT_EQ(mine().released.load(), 1u);
  std::memset(segment->data(), 0, 1000);
  EXPECT_FALSE(frame_.is_lent);
  ExpectSameFrame(frame_, sent);
}

TEST_F(ShmChannelTest, LendsNoMoreThanAQuarterOfThePlaces) {
  const auto segment = AddSegment(1 << 20);
  std::vector<Frame> held;
  int lent = 0;
  for (uint32_t i = 0; i < kShmSlots; ++i) {
    Publish(EntryOf(FrameOf(0, 100), i));
    ASSERT_EQ(Receive(), ReceiveResult::kFrame);
    lent += frame_.is_lent ? 1 : 0;
    held.push_back(frame_);
  }
  frame_ = Frame();
  EXPECT_EQ(lent, static_cast<int>(kShmSlots / 4));
  EXPECT_EQ(mine().released.load(), kShmSlots - kShmSlots / 4);
  held.clear();
  EXPECT_EQ(mine().released.load(), kShmSlots);
}

TEST_F(ShmChannelTest, RefusesMorePublishedThanThereArePlaces) {
  theirs().published.store(kShmSlots + 1);
  EXPECT_EQ(Receive(), ReceiveResult::kBroken);
  theirs().published.store(~uint64_t{0});
  EXPECT_EQ(Receive(), ReceiveResult::kBroken);
}

TEST_F(ShmChannelTest, RefusesPlacesThatAreNotThere) {
  const size_t size = 1 << 20;
  const auto segment = AddSegment(size);
  const auto try_entry = [&](uint64_t offset, uint64_t bytes, uint32_t token) {
    ShmFrame entry = EntryOf(FrameOf(1, 100), token, offset);
    entry.bytes = bytes;
    theirs().published.store(0);
    Publish(entry);
    return Receive();
  };
  // A refused entry stays the next, as a broken channel goes no further: each is written over it.
  EXPECT_EQ(try_entry(0, 100, kShmSlots), ReceiveResult::kBroken);
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{size, 1},
                                                  {size - 99, 100},
                                                  {0, size + 1},
                                                  {4, 100},
                                                  {~uint64_t{0}, 100},
                                                  {100, ~uint64_t{0}},
                                                  {~uint64_t{0} - 50, 100}}) {
    EXPECT_EQ(try_entry(offset, bytes, 0), ReceiveResult::kBroken) << offset << " " << bytes;
  }
}

TEST_F(ShmChannelTest, AsksForASegmentThatItDoesNotKnow) {
  ShmFrame entry = EntryOf(FrameOf(1, 100));
  entry.segment = 1;
  Publish(entry);
  AddSegment(4096);
  EXPECT_EQ(Receive(), ReceiveResult::kNeedsSegment);
  EXPECT_EQ(Receive(), ReceiveResult::kNeedsSegment);
  AddSegment(4096);
  EXPECT_EQ(Receive(), ReceiveResult::kFrame);
}

TEST_F(ShmChannelTest, PassesOverWhatIsNoFrame) {
  AddSegment(4096);
  ShmFrame garbage = EntryOf(FrameOf(1, 0), 1);
  garbage.header.fill(std::byte{0x5a});
  Publish(garbage);
  EXPECT_EQ(Receive(), ReceiveResult::kMalformed);
  ShmFrame longer = EntryOf(FrameOf(1, 100), 2);
  longer.bytes = 101;
  Publish(longer);
  EXPECT_EQ(Receive(), ReceiveResult::kMalformed);
  EXPECT_EQ(mine().released.load(), 2u);  // and it has its places back
  Publish(EntryOf(FrameOf(1, 100), 3));
  EXPECT_EQ(Receive(), ReceiveResult::kFrame);
}

TEST_F(ShmChannelTest, RefusesReleasesOfWhatWasNotSent) {
  ASSERT_EQ(Send(1000), SendResult::kSent);
  EXPECT_TRUE(channel_->Reap());
  Release(kShmSlots + 7);
  EXPECT_FALSE(channel_->Reap());
  EXPECT_EQ(Send(1000), SendResult::kBroken);
}

TEST_F(ShmChannelTest, RefusesAReleaseTwice) {
  ASSERT_EQ(Send(1000), SendResult::kSent);
  ASSERT_EQ(Send(1000), SendResult::kSent);
  const uint32_t token = 0;
  Release(token);
  EXPECT_TRUE(channel_->Reap());
  Release(token);
  EXPECT_FALSE(channel_->Reap());
}

TEST_F(ShmChannelTest, RefusesMoreReleasesThanFrames) {
  ASSERT_EQ(Send(1000), SendResult::kSent);
  theirs().released.store(2);
  EXPECT_FALSE(channel_->Reap());
  theirs().released.store(~uint64_t{0});
  EXPECT_FALSE(channel_->Reap());
}

TEST_F(ShmChannelTest, IsFullUntilSomethingIsReleased) {
  for (uint32_t i = 0; i < kShmSlots; ++i) ASSERT_EQ(Send(0), SendResult::kSent);
  EXPECT_EQ(mine().wants_releases.load(), 0u);
  EXPECT_EQ(Send(0), SendResult::kFull);
  EXPECT_EQ(mine().wants_releases.load(), 1u);
  EXPECT_FALSE(channel_->HasWork());
  Release(17);
  EXPECT_TRUE(channel_->HasWork());
  EXPECT_EQ(Send(0), SendResult::kSent);
  EXPECT_EQ(mine().wants_releases.load(), 0u);
  EXPECT_EQ(Send(0), SendResult::kFull);
}

TEST_F(ShmChannelTest, KeepsAPayloadUntilItIsReleased) {
  Buffer payload = pool_.Get(1000);
  const Frame frame = MakeFrame(FrameOf(1, 0).header, payload);
  ASSERT_EQ(channel_->Send(frame), SendResult::kSent);
  const std::byte* const where = payload.data();
  Frame dropped = frame;
  EXPECT_FALSE(payload.IsUnique());
  Release(0);
  EXPECT_TRUE(channel_->Reap());
  dropped = Frame();
  EXPECT_EQ(payload.data(), where);
}

TEST_F(ShmChannelTest, WakesAnEndThatSleepsOnce) {
  const auto packets = [&] {
    int count = 0;
    while (ReceivePacket(socket_.get()).result == Packet::Result::kPacket) ++count;
    return count;
  };
  ASSERT_EQ(Send(0), SendResult::kSent);
  EXPECT_EQ(packets(), 0);  // it is awake
  theirs().sleeps.store(1);
  ASSERT_EQ(Send(0), SendResult::kSent);
  ASSERT_EQ(Send(0), SendResult::kSent);
  EXPECT_EQ(packets(), 1);
  theirs().sleeps.store(3);
  ASSERT_EQ(Send(0), SendResult::kSent);
  EXPECT_EQ(packets(), 1);
}

TEST_F(ShmChannelTest, APeerMayReadUntilItHasReleasedAllOrSaysThatItIsDone) {
  EXPECT_FALSE(channel_->PeerMayRead());
  ASSERT_EQ(Send(1000), SendResult::kSent);
  ASSERT_EQ(Send(1000), SendResult::kSent);
  EXPECT_TRUE(channel_->PeerMayRead());
  // The end of a socket says nothing of what its process reads.
  shutdown(socket_.get(), SHUT_RDWR);
  EXPECT_TRUE(channel_->PeerMayRead());
  const uint32_t first = EntryIn(mine(), 0).token;
  const uint32_t second = EntryIn(mine(), 1).token;
  Release(second);
  EXPECT_TRUE(channel_->PeerMayRead());
  Release(first);
  EXPECT_FALSE(channel_->PeerMayRead());
  ASSERT_EQ(Send(1000), SendResult::kSent);
  theirs().is_done.store(1);
  EXPECT_FALSE(channel_->PeerMayRead());
}

TEST_F(ShmChannelTest, APeerThatBreaksTheRulesReadsNothingMore) {
  ASSERT_EQ(Send(1000), SendResult::kSent);
  theirs().released.store(2);
  EXPECT_FALSE(channel_->PeerMayRead());
}

TEST(ShmSocket, APeerLivesUntilItsProcessHasEnded) {
  const std::string name = absl::StrCat("bdn-test-of-lives-", getpid());
  const ShmListeningSocket listener = *ListenAt(name);
  const FileDescriptor ours = *ConnectTo(name);
  EXPECT_TRUE(PeerLives(ours.get()));
  FileDescriptor(*AcceptFrom(listener.get()));
  const pid_t child = fork();
  if (child == 0) {
    const auto connection = ConnectTo(name);
    if (connection.ok()) pause();
    _exit(1);
  }
  pollfd waits = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&waits, 1, 30'000), 1);
  const FileDescriptor theirs = *AcceptFrom(listener.get());
  EXPECT_TRUE(PeerLives(theirs.get()));
  shutdown(theirs.get(), SHUT_RDWR);
  EXPECT_TRUE(PeerLives(theirs.get()));
  kill(child, SIGKILL);
  siginfo_t ended = {};
  ASSERT_EQ(waitid(P_PID, child, &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(PeerLives(theirs.get())) << "it has ended, and its parent has not been told yet";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(PeerLives(theirs.get()));
}

// Returns the exit status of what a process does that cannot see this one.
int DoUnseen(const std::function<bool()>& what) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    const pid_t unseeing = fork();
    if (unseeing == 0) _exit(what() ? 0 : 1);
    int status = 0;
    waitpid(unseeing, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

TEST(ShmSocket, APeerThatCannotBeSeenLivesAsLongAsItsSocket) {
  const std::string name = absl::StrCat("bdn-test-of-unseen-", getpid());
  const ShmListeningSocket listener = *ListenAt(name);
  FileDescriptor ours = *ConnectTo(name);
  const FileDescriptor theirs = *AcceptFrom(listener.get());
  const auto lives = [&] { return PeerLives(theirs.get()); };
  const int alive = DoUnseen(lives);
  if (alive == 77) GTEST_SKIP() << "only root can have process numbers of its own";
  EXPECT_EQ(alive, 0);
  ours = FileDescriptor();
  EXPECT_EQ(DoUnseen(lives), 1);
}

TEST_F(ShmChannelTest, SaysThatItIsDoneOnceNothingIsLent) {
  const auto ended = [&] {
    for (;;) {
      const Packet packet = ReceivePacket(socket_.get());
      if (packet.result == Packet::Result::kNothing) return false;
      if (packet.result == Packet::Result::kEnd) return true;
    }
  };
  AddSegment(4096);
  Publish(EntryOf(FrameOf(1, 100)));
  ASSERT_EQ(Receive(), ReceiveResult::kFrame);
  channel_->SayClosing();
  EXPECT_FALSE(ended());
  channel_ = nullptr;
  EXPECT_FALSE(ended());
  EXPECT_EQ(mine().is_done.load(), 0u);
  frame_ = Frame();
  EXPECT_TRUE(ended());
  EXPECT_EQ(mine().is_done.load(), 1u);
}

TEST_F(ShmChannelTest, RefusesSegmentsOutOfTurnOrSize) {
  const auto memory = *SharedMemory::Create("test-segment", 8192);
  const auto try_segment = [&](uint32_t index, uint64_t bytes) {
    return channel_->AddSegment({.index = index, .bytes = bytes},
                                FileDescriptor(dup(memory->fd())));
  };
  EXPECT_FALSE(try_segment(1, 8192).ok());
  EXPECT_FALSE(try_segment(0, 0).ok());
  EXPECT_FALSE(try_segment(0, 4096).ok());
  EXPECT_FALSE(try_segment(0, ~uint64_t{0}).ok());
  EXPECT_FALSE(channel_->AddSegment({.index = 0, .bytes = 8192}, FileDescriptor()).ok());
  EXPECT_TRUE(try_segment(0, 8192).ok());
  EXPECT_FALSE(try_segment(0, 8192).ok());
}

TEST(SharedMemory, TakesNothingThatCouldBeTakenBack) {
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_FALSE(SharedMemory::MapPeers(FileDescriptor(dup(unsealed.get())), 4096).ok());
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_FALSE(SharedMemory::MapPeers(FileDescriptor(dup(unsealed.get())), 4096).ok());
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(SharedMemory::MapPeers(FileDescriptor(dup(unsealed.get())), 4096).ok());
  EXPECT_FALSE(SharedMemory::MapPeers(FileDescriptor(open("/proc/self/exe", O_RDONLY)), 4096).ok());
}

TEST(SharedMemory, NobodyElseCanWriteToWhatIsMadeHere) {
  const auto memory = *SharedMemory::Create("test", 4096);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0), MAP_FAILED);
  EXPECT_NE(ftruncate(memory->fd(), 0), 0);
}

TEST(ShmArena, AsksAgainForPagesThatThereWereNone) {
  constexpr size_t kBytes = size_t{1} << 16;
  ShmArena arena;
  arena.Enable();
  std::byte* const first = arena.Allocate(kBytes);
  ASSERT_NE(first, nullptr);
  // Without its mapping the system refuses the block after it as where no memory is left.
  std::byte* const next = first + kBytes;
  ASSERT_EQ(munmap(next, kBytes), 0);
  EXPECT_EQ(arena.Allocate(kBytes), nullptr);
  ASSERT_EQ(
      mmap(next, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS, -1, 0),
      next);
  EXPECT_EQ(arena.Allocate(kBytes), next);
  std::vector<unsigned char> is_present(kBytes / 4096);
  ASSERT_EQ(mincore(next, kBytes, is_present.data()), 0);
  for (const unsigned char page : is_present) EXPECT_EQ(page & 1, 1);
  arena.Free(next, kBytes);
  arena.Free(first, kBytes);
}

TEST(ShmArena, GivesBackWhatWasFreed) {
  ShmArena arena;
  EXPECT_EQ(arena.Allocate(4096), nullptr);  // not enabled
  arena.Enable();
  std::byte* const first = arena.Allocate(size_t{20} << 20);
  std::byte* const second = arena.Allocate(size_t{20} << 20);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(arena.Find({first, 1})->segment, 0u);
  EXPECT_EQ(arena.Find({second + 104, 1})->segment, 1u);
  EXPECT_EQ(arena.Find({second + 104, 1})->offset, 104u);
  EXPECT_FALSE(arena.Find({second + 100, 1}).has_value());  // not aligned
  std::byte heap;
  EXPECT_FALSE(arena.Find({&heap, 1}).has_value());
  arena.Free(first, size_t{20} << 20);
  // Neighbours become one again.
  std::vector<std::byte*> small;
  for (int i = 0; i < 8; ++i) small.push_back(arena.Allocate(size_t{4} << 20));
  for (std::byte* block : small) ASSERT_NE(block, nullptr);
  for (const int i : {1, 3, 5, 7, 0, 2, 4, 6}) arena.Free(small[i], size_t{4} << 20);
  EXPECT_EQ(arena.Allocate(size_t{32} << 20), first);
  EXPECT_EQ(arena.Allocate(size_t{2} << 30), nullptr);  // more than a frame may have
}

}  // namespace
}  // namespace bdn
