#include "server/rows/row_store.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

// What every RowStore promises.

namespace bdn {
namespace {

constexpr size_t kFloats = 3;

using Maker = std::unique_ptr<RowStore> (*)(size_t floats);

class RowStoreTest : public ::testing::TestWithParam<Maker> {
 protected:
  void Put(uint64_t id, float value) {
    float* record = store_->Find(id);
    if (record == nullptr) record = store_->Insert(id);
    for (size_t i = 0; i < kFloats; ++i) record[i] = value + static_cast<float>(i);
  }
  // Visits all records, so many places at a time.
  std::map<uint64_t, float> All(const RowStore& store, uint64_t most) {
    std::map<uint64_t, float> found;
    for (uint64_t place = 0; place < store.places();) {
      const uint64_t next = store.Visit(place, most, [&](uint64_t id, const float* record) {
        EXPECT_TRUE(found.emplace(id, record[0]).second) << id;
        return true;
      });
      EXPECT_GT(next, place);
      EXPECT_LE(next - place, most);
      place = next;
    }
    return found;
  }
  std::unique_ptr<RowStore> store_ = GetParam()(kFloats);
};

TEST_P(RowStoreTest, IsAMap) {
  std::map<uint64_t, float> expected;
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t id = random() % 700 * 0x9E3779B97F4A7C15u;
    if (random() % 3 == 0) {
      EXPECT_EQ(store_->Erase(id), expected.erase(id) == 1);
      continue;
    }
    const auto value = static_cast<float>(i);
    Put(id, value);
    expected[id] = value;
  }
  EXPECT_EQ(store_->size(), expected.size());
  for (const auto& [id, value] : expected) {
    const float* const record = std::as_const(*store_).Find(id);
    ASSERT_NE(record, nullptr);
    for (size_t i = 0; i < kFloats; ++i) EXPECT_EQ(record[i], value + static_cast<float>(i));
  }
  EXPECT_EQ(std::as_const(*store_).Find(1), nullptr);
  // Some of these are there, and some are not.
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 900; ++i) ids.push_back(i * 0x9E3779B97F4A7C15u);
  std::vector<float*> found(ids.size());
  store_->FindAll(ids, found);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(found[i], store_->Find(ids[i])) << i;
  store_->FindAll({}, {});
  for (const uint64_t most : {1, 7, 100000}) EXPECT_EQ(All(*store_, most), expected);
  EXPECT_EQ(All(*store_->Clone(), 64), expected);
}

TEST_P(RowStoreTest, NoIdStandsForSomethingElse) {
  const std::vector<uint64_t> ids = {0, 1, ~uint64_t{0}, ~uint64_t{0} - 1, uint64_t{1} << 63};
  for (const uint64_t id : ids) EXPECT_EQ(store_->Find(id), nullptr);
  for (const uint64_t id : ids) Put(id, static_cast<float>(id % 97));
  for (const uint64_t id : ids) EXPECT_EQ(store_->Find(id)[0], static_cast<float>(id % 97));
  for (const uint64_t id : ids) EXPECT_TRUE(store_->Erase(id));
  EXPECT_EQ(store_->size(), 0u);
}

TEST_P(RowStoreTest, AVisitGoesOnBehindTheRecordAtWhichItStopped) {
  for (uint64_t id = 0; id < 200; ++id) Put(id, static_cast<float>(id));
  std::map<uint64_t, int> times;
  for (uint64_t place = 0; place < store_->places();) {
    place = store_->Visit(place, 1000, [&](uint64_t id, const float*) {
      ++times[id];
      return times.size() % 9 != 0;
    });
  }
  EXPECT_EQ(times.size(), 200u);
  for (const auto& [id, count] : times) EXPECT_EQ(count, 1) << id;
}

TEST_P(RowStoreTest, RecordsKeepTheirPlacesWhileOthersCome) {
  for (uint64_t id = 0; id < 100; ++id) Put(id, 1);
  std::vector<uint64_t> before, after;
  const auto to = [](std::vector<uint64_t>* ids) {
    return [ids](uint64_t id, const float*) {
      ids->push_back(id);
      return true;
    };
  };
  (void)store_->Visit(0, 50, to(&before));
  for (uint64_t id = 1000; id < 3000; ++id) Put(id, 1);
  (void)store_->Visit(0, 50, to(&after));
  EXPECT_EQ(before, after);
}

TEST_P(RowStoreTest, RecordsStayWhereTheyAreInMemoryUntilTheyAreRemoved) {
  Put(7, 1);
  const float* const before = store_->Find(7);
  for (uint64_t id = 1000; id < 3000; ++id) Put(id, 1);
  for (uint64_t id = 1000; id < 2000; ++id) store_->Erase(id);
  EXPECT_EQ(store_->Find(7), before);
}

TEST_P(RowStoreTest, ACloneIsAnotherStore) {
  Put(1, 1);
  const auto clone = store_->Clone();
  Put(1, 2);
  EXPECT_EQ(clone->Find(1)[0], 1.0f);
}

TEST_P(RowStoreTest, TakesLittleBesideTheRecords) {
  for (uint64_t id = 0; id < 100000; ++id) Put(id * 977, 1);
  // Of a row: its id, and its entry in the index.
  EXPECT_LE(store_->bytes(), 100000 * (4 * kFloats + 44 - 8));
}

INSTANTIATE_TEST_SUITE_P(All, RowStoreTest, ::testing::Values(&MakeMemoryRowStore),
                         [](const auto& /*info*/) { return std::string("InMemory"); });

}  // namespace
}  // namespace bdn
