#include "cli/stage_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn::cli {
namespace {

using ::testing::ElementsAre;

constexpr char kJson[] = R"({"encode":{"items":2,"bytes":8,"wall_ns":30,"cpu_ns":20},)"
                         R"("wait":{"items":2,"bytes":4,"wall_ns":90,"cpu_ns":0}})";
const StageRows kRows = {{"encode", 2, 8, 30, 20}, {"wait", 2, 4, 90, 0}};

TEST(StageTable, IsReadAndWrittenInOrder) {
  const auto rows = ParseStages(kJson);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(*rows, kRows);
  EXPECT_EQ(StagesJson(*rows), kJson);
  EXPECT_EQ(*ParseStages("{}"), StageRows());
  EXPECT_EQ(StagesJson({}), "{}");
}

TEST(StageTable, RefusesWhatIsNone) {
  EXPECT_FALSE(ParseStages("").ok());
  EXPECT_FALSE(ParseStages("7").ok());
  EXPECT_FALSE(ParseStages(R"({"encode":7})").ok());
  EXPECT_FALSE(ParseStages(R"({"encode":{"items":2,"bytes":8,"wall_ns":30}})").ok());
  EXPECT_FALSE(ParseStages(R"({"encode":{"items":"2","bytes":8,"wall_ns":30,"cpu_ns":0}})").ok());
  EXPECT_EQ(ParseStages(R"({"encode":{"items":-2,"bytes":8,"wall_ns":30,"cpu_ns":0}})")
                .status()
                .message(),
            "stages are not understood: items of encode is -2, expected a count");
}

TEST(StageTable, AddsByName) {
  StageRows sum;
  AddStages(kRows, &sum);
  AddStages({{"wait", 1, 1, 10, 0}, {"decode", 1, 4, 5, 5}}, &sum);
  EXPECT_THAT(sum, ElementsAre(StageRow{"encode", 2, 8, 30, 20}, StageRow{"wait", 3, 5, 100, 0},
                               StageRow{"decode", 1, 4, 5, 5}));
}

TEST(StageTable, TakesAwayWhatWasBefore) {
  EXPECT_EQ(StagesSince({}, kRows), kRows);
  EXPECT_THAT(StagesSince({{"wait", 1, 1, 100, 0}, {"other", 1, 1, 1, 1}}, kRows),
              ElementsAre(kRows[0], StageRow{"wait", 1, 3, 0, 0}));
}

TEST(StageTable, ShowsTimesAnItemAndSharesOfANode) {
  const std::string table = StageTable(
      {{"worker 0", {{"encode", 4, 2'000'000, 1'000'000, 800'000}, {"wait", 4, 0, 3'000'000, 0}}},
       {"server 0", {{"sum", 2, 0, 5'000'000, 4'000'000}, {"rule", 0, 0, 0, 0}}}});
  EXPECT_EQ(table,
            "NODE       STAGE            ITEMS          MB  WALL MS/ITEM   CPU MS/ITEM   SHARE\n"
            "worker 0   encode               4         2.0         0.250         0.200   25.0%\n"
            "worker 0   wait                 4         0.0         0.750             -   75.0%\n"
            "server 0   sum                  2         0.0         2.500         2.000  100.0%\n");
  EXPECT_EQ(StageTable({{"worker 0", {{"encode", 0, 0, 0, 0}}}}), "");
}

}  // namespace
}  // namespace bdn::cli
