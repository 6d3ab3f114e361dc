#include "common/base/buffer.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace bdn {
namespace {

TEST(Buffer, SharesItsBlockUntilTheLastCopyGoes) {
  int released = 0;
  std::byte memory[8] = {};
  {
    Buffer first = Buffer::Wrap(memory, [&] { ++released; });
    const Buffer second = first.Slice(2, 4);
    EXPECT_EQ(second.data(), memory + 2);
    EXPECT_EQ(second.size(), 4u);
    first = Buffer();
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(Buffer, CopyOfHoldsTheSameBytes) {
  const std::vector<std::byte> bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  const Buffer copy = Buffer::CopyOf(bytes);
  EXPECT_NE(copy.data(), bytes.data());
  EXPECT_EQ(std::memcmp(copy.data(), bytes.data(), 3), 0);
  EXPECT_EQ(copy.Prefix(2).size(), 2u);
}

TEST(Buffer, IsEmptyWithoutBytes) {
  EXPECT_TRUE(Buffer().empty());
  EXPECT_TRUE(Buffer::Allocate(0).empty());
  EXPECT_EQ(Buffer::CopyOf({}).data(), nullptr);
  EXPECT_TRUE(BufferPool().Get(0).empty());
}

TEST(BufferPool, GivesAlignedBlocksOfTheSizeAskedFor) {
  BufferPool pool;
  for (const size_t size : {1, 63, 256, 257, 100000}) {
    const Buffer buffer = pool.Get(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 0xff, size);
  }
}

TEST(BufferPool, GivesAReturnedBlockOfTheSameClassAgain) {
  BufferPool pool;
  const std::byte* block = nullptr;
  {
    const Buffer buffer = pool.Get(4700);
    block = buffer.data();
  }
  const Buffer again = pool.Get(5000);  // 4700 and 5000 are both of class 5120
  EXPECT_EQ(again.data(), block);
  const Buffer other = pool.Get(5000);
  EXPECT_NE(other.data(), block);
}

TEST(Buffer, IsUniqueWhileNobodyElseHasACopy) {
  Buffer buffer = Buffer::Allocate(8);
  EXPECT_TRUE(buffer.IsUnique());
  {
    const Buffer slice = buffer.Slice(4, 4);
    EXPECT_FALSE(buffer.IsUnique());
  }
  EXPECT_TRUE(buffer.IsUnique());
  EXPECT_TRUE(Buffer().IsUnique());
}

TEST(Buffer, IsFoundAgainWhileSomebodyHasIt) {
  Buffer buffer = Buffer::Allocate(8);
  const WeakBuffer weak(buffer.Slice(2, 3));
  EXPECT_EQ(weak.Lock().data(), buffer.data() + 2);
  EXPECT_EQ(weak.Lock().size(), 3u);
  buffer = Buffer();
  EXPECT_TRUE(weak.Lock().empty());
  EXPECT_TRUE(WeakBuffer().Lock().empty());
}

TEST(BufferPool, HasBlocksAtMostAnEighthTooLarge) {
  BufferPool pool;
  for (const size_t size : {257, 1000, 4096, 131076, 300000, 4 << 20}) {
    const Buffer buffer = pool.Get(size);
    EXPECT_GE(pool.stats().bytes_used, size);
    EXPECT_LE(pool.stats().bytes_used, size + size / 8) << size;
  }
  EXPECT_EQ(pool.stats().bytes_used, 0u);
}

TEST(BufferPool, FreesWhatWasNotNeededForAWhile) {
  BufferPool pool;
  {
    std::vector<Buffer> many;
    for (int i = 0; i < 100; ++i) many.push_back(pool.Get(4096));
  }
  EXPECT_EQ(pool.stats().bytes_idle, 100 * 4096u);
  for (int i = 0; i < 2000; ++i) {
    const Buffer one = pool.Get(4096);
    const Buffer two = pool.Get(4096);
  }
  EXPECT_EQ(pool.stats().bytes_idle, 2 * 4096u);
}

TEST(BufferPool, KeepsWhatEveryRoundNeeds) {
  BufferPool pool;
  for (int round = 0; round < 50; ++round) {
    std::vector<Buffer> many;
    for (int i = 0; i < 100; ++i) many.push_back(pool.Get(4096));
    if (round > 0) {
      EXPECT_EQ(pool.stats().bytes_used + pool.stats().bytes_idle, 100 * 4096u);
    }
  }
}

TEST(BufferPool, FitsWhatFillsLittleOfItsBlock) {
  BufferPool pool;
  const Buffer large = pool.Get(10000);
  std::memset(large.data(), 7, large.size());
  EXPECT_EQ(pool.Fit(large.Prefix(9000), 10000).data(), large.data());
  const Buffer small = pool.Fit(large.Prefix(1000), 10000);
  EXPECT_NE(small.data(), large.data());
  EXPECT_EQ(std::memcmp(small.data(), large.data(), 1000), 0);
}

TEST(BufferPool, DoesNotReuseABlockThatIsHeld) {
  BufferPool pool;
  Buffer first = pool.Get(1000);
  const Buffer held = first.Slice(10, 10);
  first = Buffer();
  EXPECT_NE(pool.Get(1000).data(), held.data() - 10);
}

TEST(BufferPool, KeepsNoMoreThanItMay) {
  BufferPool pool(HostMemory(), /*max_idle_bytes=*/1024);
  const std::byte* kept = nullptr;
  {
    const Buffer first = pool.Get(1024);
    const Buffer second = pool.Get(1024);
    kept = second.data();  // goes first, and fills the allowance
  }
  const Buffer again = pool.Get(1024);
  EXPECT_EQ(again.data(), kept);
}

// A domain of so many blocks, as memory that a network card has registered is.
class SmallDomain final : public MemoryDomain {
 public:
  explicit SmallDomain(int blocks) : left_(blocks) {}
  ~SmallDomain() override { EXPECT_EQ(lent_, 0) << "a block was not given back"; }

  std::byte* Allocate(size_t size) override {
    if (left_ == 0) return nullptr;
    --left_;
    ++lent_;
    return heap_->Allocate(size);
  }
  void Free(std::byte* block, size_t size) override {
    ++left_;
    --lent_;
    heap_->Free(block, size);
  }
  int lent() const { return lent_; }

 private:
  const std::shared_ptr<MemoryDomain> heap_ = HostMemory();
  int left_;
  int lent_ = 0;
};

TEST(BufferPool, TakesItsBlocksFromItsDomain) {
  const auto domain = std::make_shared<SmallDomain>(2);
  BufferPool pool(domain, /*max_idle_bytes=*/1024);
  {
    const Buffer first = pool.Get(1024);
    EXPECT_EQ(domain->lent(), 1);
    const Buffer second = pool.Get(1000);
    EXPECT_EQ(domain->lent(), 2);
  }
  EXPECT_EQ(domain->lent(), 1);  // one is kept, the other is over the allowance
}

TEST(BufferPool, GoesToTheHeapWhenItsDomainHasNoMore) {
  const auto domain = std::make_shared<SmallDomain>(1);
  BufferPool pool(domain);
  const Buffer lent = pool.Get(1000);
  const Buffer from_heap = pool.Get(1000);
  EXPECT_EQ(domain->lent(), 1);
  EXPECT_EQ(from_heap.size(), 1000u);
  std::memset(from_heap.data(), 1, from_heap.size());
}

TEST(BufferPool, TheLastBufferTakesTheDomainAlong) {
  auto domain = std::make_shared<SmallDomain>(1);
  const std::weak_ptr<SmallDomain> watched = domain;
  std::optional<BufferPool> pool(std::in_place, std::move(domain));
  Buffer buffer = pool->Get(1000);
  pool.reset();
  EXPECT_FALSE(watched.expired());
  buffer = Buffer();
  EXPECT_TRUE(watched.expired());
}

TEST(BufferPool, MayGoBeforeItsBuffers) {
  std::optional<BufferPool> pool(std::in_place);
  const Buffer buffer = pool->Get(1000);
  pool.reset();
  std::memset(buffer.data(), 1, buffer.size());
}

TEST(BufferPool, ServesManyThreads) {
  BufferPool pool(HostMemory(), /*max_idle_bytes=*/1 << 16);
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (uint32_t i = 0; i < 2000; ++i) {
        const Buffer buffer = pool.Get(256 + 512 * (i % 7));
        const auto mark = static_cast<std::byte>(t * 50 + i % 50);
        std::memset(buffer.data(), static_cast<int>(mark), buffer.size());
        const Buffer copy = buffer;
        ASSERT_EQ(copy.data()[copy.size() - 1], mark);
      }
    });
  }
}

}  // namespace
}  // namespace bdn
