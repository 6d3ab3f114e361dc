#include "common/base/processors.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Processors, ListsAreReadAndWrittenAsLinuxDoes) {
  EXPECT_THAT(*ParseProcessorList("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(*ParseProcessorList("5"), ElementsAre(5));
  EXPECT_EQ(ProcessorListText({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ProcessorListText({5}), "5");
  for (const char* wrong : {"", "a", "3-1", "1,1", "2,1", "-1", "1-", "0,,2", "0-99999999"}) {
    const auto read = ParseProcessorList(wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << wrong;
  }
}

TEST(Processors, OnlyThoseThatThisProcessMayUseAreTaken) {
  const std::vector<int> allowed = AllowedProcessors();
  ASSERT_FALSE(allowed.empty());
  EXPECT_EQ(*ReadProcessors(""), allowed);
  EXPECT_EQ(*ReadProcessors(ProcessorListText(allowed)), allowed);
  const auto none = ReadProcessors("8191");
  EXPECT_TRUE(absl::IsInvalidArgument(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("not on 8191"));
}

// A system's files in a folder of the test's.
class ProcessorFiles : public ::testing::Test {
 protected:
  ProcessorFiles() {
    char path[] = "/tmp/processors_test.XXXXXX";
    root_ = mkdtemp(path);
  }
  ~ProcessorFiles() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& line) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << line << "\n";
  }
  std::string root_;
};

TEST_F(ProcessorFiles, TheLeastOfTheLimitsOfAllControlGroupsAroundItCounts) {
  const double allowed = static_cast<double>(AllowedProcessors().size());
  EXPECT_EQ(UsableProcessors(root_), allowed);
  Write("/proc/self/cgroup", "0::/jobs/one");
  Write("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000");
  EXPECT_EQ(UsableProcessors(root_), allowed);
  Write("/sys/fs/cgroup/jobs/cpu.max", "110000 100000");
  EXPECT_EQ(UsableProcessors(root_), std::min(allowed, 1.1));
  Write("/sys/fs/cgroup/jobs/one/cpu.max", "50000 100000");
  EXPECT_EQ(UsableProcessors(root_), 1.0);
}

TEST_F(ProcessorFiles, ANodesProcessorsAreThoseOfThemThatItMayUse) {
  const std::vector<int> allowed = AllowedProcessors();
  Write("/sys/devices/system/node/node0/cpulist", "0-8190");
  Write("/sys/devices/system/node/node1/cpulist", "8191");
  EXPECT_EQ(*ReadProcessors("node0", root_), allowed);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadProcessors("node1", root_).status()));
  EXPECT_THAT(std::string(ReadProcessors("node2", root_).status().message()),
              HasSubstr("no such node"));
}

TEST(Processors, AThreadThatKeepsToSomeStartsOthersThatDo) {
  const std::vector<int> one = {AllowedProcessors().back()};
  std::vector<int> inherited;
  std::thread keeps([&] {
    ASSERT_TRUE(KeepToProcessors(one).ok());
    std::thread([&] { inherited = AllowedProcessors(); }).join();
  });
  keeps.join();
  EXPECT_EQ(inherited, one);
  EXPECT_FALSE(KeepToProcessors({}).ok());
}

}  // namespace
}  // namespace bdn
