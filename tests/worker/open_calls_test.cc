#include "worker/c_api/open_calls.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace bdn {
namespace {

TEST(OpenCalls, NobodyEntersAfterCloseAndWhoWaitsWaitsForThoseInside) {
  OpenCalls calls;
  ASSERT_TRUE(calls.Enter());
  std::atomic<bool> is_freed{false};
  std::thread freeing([&] {
    calls.Close();
    calls.AwaitNone();
    is_freed = true;
  });
  while (calls.Enter()) {
    calls.Exit();
    std::this_thread::yield();
  }
  EXPECT_FALSE(is_freed);
  calls.Exit();
  freeing.join();
  EXPECT_TRUE(is_freed);
}

}  // namespace
}  // namespace bdn
