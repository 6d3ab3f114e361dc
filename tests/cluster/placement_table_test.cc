#include "common/cluster/placement_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace bdn {
namespace {

using ::testing::HasSubstr;

constexpr Key kFirst = Key::Of(0, 0);
constexpr Key kSecond = Key::Of(0, 1);

TEST(PlacementTable, KnowsTheOwnerOfAKeyAndSaysWhereThereIsNone) {
  const PlacementTable table({.epoch = 1, .catalogue = 2}, {{kFirst, 7}});
  EXPECT_EQ(table.OwnerOf(kFirst), 7u);
  EXPECT_EQ(table.OwnerOf(kSecond), 0u);
}

TEST(PlacementTable, AnEpochOutranksACatalogue) {
  EXPECT_LT((PlacementVersion{.epoch = 1, .catalogue = 9}),
            (PlacementVersion{.epoch = 2, .catalogue = 1}));
  EXPECT_LT((PlacementVersion{.epoch = 2, .catalogue = 1}),
            (PlacementVersion{.epoch = 2, .catalogue = 2}));
}

TEST(PlacementTable, MustPlaceEveryKeyOfItsCatalogue) {
  const Catalogue catalogue{.version = 2, .keys = {{.key = kFirst}, {.key = kSecond}}};
  const auto why = [&](const PlacementTable& table) {
    return std::string(CheckPlaced(catalogue, table).message());
  };
  EXPECT_EQ(why({{1, 2}, {{kFirst, 7}, {kSecond, 8}}}), "");
  EXPECT_THAT(why({{1, 2}, {{kFirst, 7}}}), HasSubstr("key 0.1 has no owner"));
  EXPECT_THAT(why({{1, 3}, {{kFirst, 7}, {kSecond, 8}}}), HasSubstr("catalogue 3, not of 2"));
}

}  // namespace
}  // namespace bdn
