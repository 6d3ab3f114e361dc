#include "worker/tensor_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"
#include "tests/support/worker_rig.h"

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

// A catalogue that gains one tensor "w" of 8 elements in two keys, placed on the one server.
class TensorTableTest : public ::testing::Test {
 protected:
  TensorTableTest() {
    delta_.version.catalogue = 1;
    delta_.tensors = {Tensor("w", 8)};
    for (uint32_t partition = 0; partition < 2; ++partition) {
      KeyEntry key = MakeEntry(Key::Of(0, partition), {.segments = {4}});
      key.segments[0].offset = uint64_t{4} * partition;
      delta_.keys.push_back(key);
    }
  }
  absl::Status Add() {
    delta_.owners.assign(delta_.keys.size(), kServerNode);
    MutexLock lock(table_.mutex());
    return table_.Add(delta_);
  }
  void ExpectContradiction(const std::string& what) {
    const absl::Status status = Add();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }

  CatalogueDelta delta_;
  TensorTable table_;
};

TEST_F(TensorTableTest, FindsTensorsWithTheirKeysInOrder) {
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  const uint32_t* id = table_.FindId("w");
  ASSERT_NE(id, nullptr);
  const auto tensor = table_.FindDense(*id);
  ASSERT_TRUE(tensor.ok());
  ASSERT_EQ((*tensor)->parts.size(), 2u);
  EXPECT_EQ((*tensor)->parts[1].offset, 4u);
  EXPECT_EQ((*tensor)->parts[1].exchange->key().server, kServerNode);
  EXPECT_EQ(table_.FindId("v"), nullptr);
  EXPECT_EQ(table_.FindDense(7).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TensorTableTest, ALaterVersionAdds) {
  ASSERT_TRUE(Add().ok());
  delta_ = {.version = {1, 2}, .first_tensor = 1, .tensors = {Tensor("v", 4)}};
  delta_.keys.push_back(MakeEntry(Key::Of(1, 0), {.segments = {4}}));
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  EXPECT_EQ(table_.size(), 2u);
  EXPECT_EQ(table_.keys().size(), 3u);
  EXPECT_EQ(table_.at(0).parts.size(), 2u);
}

TEST_F(TensorTableTest, RefusesAVersionThatDoesNotFollow) {
  ASSERT_TRUE(Add().ok());
  ExpectContradiction("catalogue 1 begins at tensor 0, and ids below 1 are here");
}

TEST_F(TensorTableTest, LeavesOutTheTensorsOfGroupsToWhichItDoesNotBelong) {
  delta_.first_tensor = 5;
  for (KeyEntry& key : delta_.keys) {
    key.key = Key::Of(5, key.key.partition());
    for (KeySegment& segment : key.segments) segment.tensor = 5;
  }
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  EXPECT_EQ(table_.size(), 1u);
  ASSERT_NE(table_.FindId("w"), nullptr);
  EXPECT_EQ(*table_.FindId("w"), 5u);
}

TEST_F(TensorTableTest, RefusesAKeyThatIsHereAlready) {
  delta_.keys[1].key = delta_.keys[0].key;
  ExpectContradiction("key 0.0 is there twice");
}

TEST_F(TensorTableTest, RefusesASegmentOutsideItsTensor) {
  delta_.keys[1].segments[0].offset = 5;
  ExpectContradiction("key 0.1 has a segment outside its tensor");
}

TEST_F(TensorTableTest, RefusesASegmentOfAnUnknownTensor) {
  delta_.keys[1].segments[0].tensor = 9;
  ExpectContradiction("key 0.1 has a segment outside its tensor");
}

TEST_F(TensorTableTest, RefusesAKeyOfAnotherTypeThanItsTensor) {
  delta_.tensors[0].dtype = DType::kFloat16;
  ExpectContradiction("key 0.0 is not of the kind of tensor 'w'");
}

TEST_F(TensorTableTest, RefusesAKeyOfAnotherKindThanItsTensor) {
  delta_.tensors[0].kind = KeyKind::kBroadcast;
  ExpectContradiction("key 0.0 is not of the kind of tensor 'w'");
}

TEST_F(TensorTableTest, RefusesATensorThatItsKeysDoNotCover) {
  delta_.keys.pop_back();
  ExpectContradiction("tensor 'w' has 8 elements, and keys for 4");
}

TEST_F(TensorTableTest, SaysWhatDiffersFromAnEarlierDeclaration) {
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  EXPECT_FALSE(*table_.IsNew(Tensor("w", 8)));
  EXPECT_TRUE(*table_.IsNew(Tensor("v", 8)));
  const absl::Status status = table_.IsNew(Tensor("w", 9)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("float32[8]"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("float32[9]"));
}

TEST_F(TensorTableTest, NothingNewMayBeAskedOfAWorkerThatLeaves) {
  MutexLock lock(table_.mutex());
  Participation& participation = table_.participation();
  participation.rank = 3;
  EXPECT_TRUE(participation.Check().ok());
  participation.leaving = 1;
  EXPECT_EQ(participation.Check().message(), "worker 3 is leaving the job");
  participation.failed = absl::AbortedError("worker 1 was lost");
  EXPECT_EQ(participation.Check(), participation.failed);
}

TEST_F(TensorTableTest, ARetiredTensorIsGoneAndItsNameIsFree) {
  ASSERT_TRUE(Add().ok());
  const uint32_t ids[] = {0, 77};  // what is not here is passed over
  {
    MutexLock lock(table_.mutex());
    const auto known = table_.CheckRetire(ids);
    ASSERT_TRUE(known.ok());
    EXPECT_EQ(*known, std::vector<uint32_t>{0});
    for (KeyExchange* const exchange : table_.Retire(*known)) {
      EXPECT_NE(table_.RemoveIfUnused(exchange), nullptr);
    }
    EXPECT_EQ(table_.size(), 0u);
    EXPECT_TRUE(table_.keys().empty());
    EXPECT_EQ(table_.FindId("w"), nullptr);
    EXPECT_THAT(std::string(table_.FindDense(0).status().message()),
                HasSubstr("it was retired since"));
    EXPECT_TRUE(*table_.IsNew(Tensor("w", 9)));
  }
  delta_ = {.version = {1, 2}, .first_tensor = 1, .tensors = {Tensor("w", 4)}};
  delta_.keys.push_back(MakeEntry(Key::Of(1, 0), {.segments = {4}}));
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  EXPECT_EQ(*table_.FindId("w"), 1u);
}

TEST_F(TensorTableTest, ATensorWhoseNameIsDeclaredAnewIsReplaced) {
  ASSERT_TRUE(Add().ok());
  delta_ = {.version = {1, 2}, .first_tensor = 1, .tensors = {Tensor("w", 4)}};
  delta_.keys.push_back(MakeEntry(Key::Of(1, 0), {.segments = {4}}));
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  EXPECT_EQ(*table_.FindId("w"), 1u);
  EXPECT_EQ(table_.size(), 1u);
  EXPECT_EQ(table_.keys().size(), 1u);
}

TEST_F(TensorTableTest, OnlyAllTensorsOfAGroupAreRetired) {
  delta_ = {.version = {1, 1}, .tensors = {Tensor("w", 4), Tensor("v", 4)}};
  KeyEntry key = MakeEntry(Key::Of(0, 0), {.segments = {4, 4}});
  key.segments[0].tensor = 0;
  key.segments[1].tensor = 1;
  delta_.keys.push_back(key);
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  const uint32_t one[] = {1};
  EXPECT_THAT(std::string(table_.CheckRetire(one).status().message()),
              HasSubstr("tensor 'v' is fused with tensor 'w'"));
  const uint32_t both[] = {1, 0};
  ASSERT_TRUE(table_.CheckRetire(both).ok());
  const auto exchanges = table_.Retire(both);
  ASSERT_EQ(exchanges.size(), 1u);
  EXPECT_NE(table_.RemoveIfUnused(exchanges[0]), nullptr);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(TensorTableTest, AKeyThatItsServerIsAskedAboutStaysUntilItIsAnswered) {
  ASSERT_TRUE(Add().ok());
  MutexLock lock(table_.mutex());
  KeyExchange* const asked = table_.FindKey(Key::Of(0, 1));
  asked->set_has_server_request(true);
  const uint32_t ids[] = {0};
  size_t removed = 0;
  for (KeyExchange* const exchange : table_.Retire(ids)) {
    removed += table_.RemoveIfUnused(exchange) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(removed, 1u);
  EXPECT_EQ(table_.size(), 1u);
  asked->set_has_server_request(false);
  EXPECT_NE(table_.RemoveIfUnused(asked), nullptr);
  EXPECT_EQ(table_.size(), 0u);
}

}  // namespace
}  // namespace bdn::testing
