#include "worker/rows/row_set.h"

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "common/wire/packed_ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::ElementsAreArray;
using Ids = std::vector<uint64_t>;

// Lists of ids of many kinds: of few bits and of all, alike in their low or in their high bytes.
std::vector<Ids> Lists(size_t count) {
  std::mt19937_64 random(count);
  std::vector<Ids> lists(6, Ids(count));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t drawn = random();
    lists[0][i] = drawn;
    lists[1][i] = drawn % (count / 3 + 1);
    lists[2][i] = drawn << 56 | 0x1234;
    lists[3][i] = 7;
    lists[4][i] = drawn & 0xff00ff;
    lists[5][i] = count - i;
  }
  return lists;
}

TEST(RowSet, HasEachIdOnceByBucketAndRisingWithItsPositions) {
  for (const size_t count : {1, 2, 255, 256, 257, 3000}) {
    for (const Ids& ids : Lists(count)) {
      for (const uint32_t buckets : {1u, 4u, 64u}) {
        std::vector<std::map<uint64_t, std::vector<uint32_t>>> expected(buckets);
        for (size_t i = 0; i < count; ++i) {
          expected[BucketOf(ids[i], buckets)][ids[i]].push_back(static_cast<uint32_t>(i));
        }
        const RowSet set(ids, buckets);
        EXPECT_EQ(set.num_positions(), count);
        size_t at = 0;
        for (uint32_t bucket = 0; bucket < buckets; ++bucket) {
          ASSERT_EQ(set.begin(bucket), at);
          ASSERT_EQ(set.ids(bucket).size(), expected[bucket].size());
          for (const auto& [id, positions] : expected[bucket]) {
            ASSERT_EQ(set.ids(bucket)[at - set.begin(bucket)], id);
            ASSERT_THAT(set.positions(at), ElementsAreArray(positions));
            ++at;
          }
        }
        EXPECT_EQ(set.size(), at);
      }
    }
  }
}

TEST(RowSet, OfNoIdsHasNone) {
  const RowSet set({}, 4);
  EXPECT_TRUE(set.empty());
  EXPECT_TRUE(set.ids(3).empty());
  EXPECT_EQ(set.begin(3), 0u);
}

TEST(RowSet, RowsOfOneIdAreAddedInTheOrderOfTheCaller) {
  constexpr size_t kWidth = 3, kCount = 1000;
  std::mt19937 random(4);
  Ids ids(kCount);
  std::vector<float> rows(kCount * kWidth);
  for (uint64_t& id : ids) id = random() % 50;
  for (float& value : rows) value = std::ldexp(static_cast<float>(random() % 1000), random() % 30);
  std::map<uint64_t, std::vector<float>> expected;
  for (size_t i = 0; i < kCount; ++i) {
    const float* const row = rows.data() + i * kWidth;
    const auto [sum, is_first] = expected.try_emplace(ids[i], row, row + kWidth);
    for (size_t j = 0; j < kWidth && !is_first; ++j) sum->second[j] += row[j];
  }
  const RowSet set(ids, 1);
  std::vector<float> scratch(kWidth);
  for (size_t i = 0; i < set.size(); ++i) {
    EXPECT_THAT(MergeRows(set, i, rows.data(), scratch),
                ElementsAreArray(expected.at(set.ids(0)[i])));
  }
}

}  // namespace
}  // namespace bdn
