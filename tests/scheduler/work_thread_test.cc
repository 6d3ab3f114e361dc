#include "scheduler/work_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace bdn {
namespace {

TEST(WorkThread, RunsInOrderOnAThreadOfItsOwn) {
  WorkThread work;
  std::vector<int> seen;
  std::promise<std::thread::id> last;
  for (int i = 0; i < 100; ++i) work.Post([&seen, i] { seen.push_back(i); });
  work.Post([&last] { last.set_value(std::this_thread::get_id()); });
  EXPECT_NE(last.get_future().get(), std::this_thread::get_id());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(WorkThread, CloseRunsWhatWasPostedAndLaterTasksRunWhereTheyArePosted) {
  WorkThread work;
  std::promise<void> go;
  int ran = 0;
  work.Post([future = go.get_future().share()] { future.wait(); });
  work.Post([&ran] { ++ran; });
  go.set_value();
  work.Close();
  EXPECT_EQ(ran, 1);
  std::thread::id where;
  work.Post([&where] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  work.Close();
}

}  // namespace
}  // namespace bdn
