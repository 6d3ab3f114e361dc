#include "common/base/memory_reserve.h"

#include <poll.h>

#include <cstdint>

#include "gtest/gtest.h"

namespace bdn {
namespace {

bool HasRunOut(const MemoryReserve& reserve) {
  pollfd told = {reserve.fd(), POLLIN, 0};
  return poll(&told, 1, 0) == 1;
}

// A process has one, so all is in one test.
TEST(MemoryReserve, TellsOfAMessageThatFindsNoPlaceSeveralTimesInARow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the process where an allocation finds no place";
#endif
  constexpr size_t kThereIsPlace = size_t{4} << 20;
  constexpr size_t kThereIsNone = PTRDIFF_MAX - (size_t{1} << 20);
  MemoryReserve reserve;
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) reserve.Look();
    return HasRunOut(reserve);
  };
  EXPECT_FALSE(look(10)) << "no message is expected";
  MemoryReserve::ExpectMessage(kThereIsPlace);
  EXPECT_FALSE(look(10));

  MemoryReserve::ExpectMessage(kThereIsNone);
  EXPECT_FALSE(look(4));
  MemoryReserve::ExpectNoMessages();
  MemoryReserve::ExpectMessage(kThereIsPlace);
  EXPECT_FALSE(look(1)) << "what there was no place for found one";

  for (int i = 0; i < 10; ++i) {
    MemoryReserve::OnAsked(false);
    MemoryReserve::OnAsked(true);
    MemoryReserve::OnAsked(false);
    EXPECT_FALSE(look(1)) << "some of other memory is found";
  }
  for (int i = 0; i < 4; ++i) {
    MemoryReserve::OnAsked(false);
    EXPECT_FALSE(look(1));
  }
  EXPECT_FALSE(look(10)) << "nobody waits for it any more";

  MemoryReserve::ExpectMessage(kThereIsNone);
  MemoryReserve::ExpectMessage(kThereIsPlace);
  EXPECT_FALSE(look(4)) << "it is the longest that counts, from the first time on";
  EXPECT_TRUE(look(1));
}

}  // namespace
}  // namespace bdn
