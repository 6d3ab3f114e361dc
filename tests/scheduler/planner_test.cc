#include "scheduler/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bdn {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = 1024;

JobConfig Config() {
  JobConfig config;
  config.partition_bytes = 64 * kKiB;
  config.fusion_bytes = 16 * kKiB;
  config.min_compress_bytes = 8 * kKiB;
  return config;
}

TensorDeclaration Tensor(const std::string& name, uint64_t elements) {
  TensorDeclaration tensor;
  tensor.name = name;
  tensor.elements = elements;
  tensor.push_spec = "ef(onebit)";
  tensor.pull_spec = "ef(onebit)";
  tensor.momentum = 0.9f;
  tensor.fuse = true;
  return tensor;
}

std::vector<KeyEntry> Plan(const std::vector<TensorDeclaration>& tensors,
                           const JobConfig& config = Config()) {
  auto keys = PlanKeys(tensors, 7, config);
  EXPECT_TRUE(keys.ok()) << keys.status();
  return keys.ok() ? *keys : std::vector<KeyEntry>();
}

TEST(Planner, CutsALargeTensorIntoEvenPartitionsThatCoverIt) {
  const auto keys = Plan({Tensor("w", 40000)});
  ASSERT_EQ(keys.size(), 3u);
  uint64_t next = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(keys[i].key, Key::Of(7, static_cast<uint32_t>(i)));
    ASSERT_EQ(keys[i].segments.size(), 1u);
    EXPECT_EQ(keys[i].segments[0].offset, next);
    EXPECT_EQ(keys[i].segments[0].offset % 1024, 0u);
    EXPECT_EQ(keys[i].elements, keys[i].segments[0].elements);
    EXPECT_LE(KeyBytes(keys[i]), 64 * kKiB);
    next += keys[i].elements;
  }
  EXPECT_EQ(next, 40000u);
  EXPECT_GT(keys[2].elements, 11000u);  // not a rest of 7232
}

TensorDeclaration Table(const std::string& name, uint64_t width, const std::string& table) {
  return {
      .name = name, .elements = width, .kind = KeyKind::kRows, .rule = "adagrad", .table = table};
}

TEST(Planner, DividesTablesIntoBucketsThatTablesOfOneWidthShare) {
  JobConfig config = Config();
  config.row_buckets = 8;
  const auto keys = Plan({Table("a", 4, "table(expect=80)"), Tensor("dense", 10),
                          Table("b", 4, "table(rows=20)"), Table("wide", 5, "table()")},
                         config);
  ASSERT_EQ(keys.size(), 8u + 1u + 8u);
  for (uint32_t bucket = 0; bucket < 8; ++bucket) {
    const KeyEntry& key = keys[bucket];
    EXPECT_EQ(key.key, Key::Of(7, bucket));
    EXPECT_EQ(key.kind, KeyKind::kRows);
    EXPECT_EQ(key.buckets, 8u);
    ASSERT_EQ(key.segments.size(), 2u);
    EXPECT_EQ(key.segments[0], (KeySegment{7, 0, 4}));
    EXPECT_EQ(key.segments[1], (KeySegment{9, 0, 4}));
    EXPECT_EQ(key.elements, 8u);
    EXPECT_EQ(key.expected_rows, 10u + 3u);
    EXPECT_EQ(keys[9 + bucket].key, Key::Of(10, bucket));
  }
  CatalogueDelta delta{.first_tensor = 7,
                       .tensors = {Table("a", 4, "table(expect=80)"), Tensor("dense", 10),
                                   Table("b", 4, "table(rows=20)"), Table("wide", 5, "table()")},
                       .keys = keys,
                       .owners = std::vector<NodeId>(keys.size(), 1)};
  EXPECT_TRUE(CheckDelta(delta).ok()) << CheckDelta(delta);
  delta.keys[3].buckets = 6;
  EXPECT_FALSE(CheckDelta(delta).ok());
  delta.keys[3].buckets = 2;
  EXPECT_FALSE(CheckDelta(delta).ok());
}

TEST(Planner, HasFourBucketsForEachServerUnlessItIsTold) {
  JobConfig config = Config();
  for (const auto& [servers, buckets] : {std::pair(1, 4u), {2, 8u}, {3, 16u}, {5000, 4096u}}) {
    config.num_servers = servers;
    EXPECT_EQ(Plan({Table("a", 4, "table()")}, config).size(), buckets);
  }
}

TEST(Planner, FusesSmallTensorsInDeclaredOrderAcrossALargeOne) {
  const auto keys = Plan({Tensor("a", 100), Tensor("big", 8000), Tensor("b", 3000),
                          Tensor("c", 3000), Tensor("d", 10)});
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[0].key, Key::Of(7, 0));
  EXPECT_EQ(keys[0].segments, (KeySegments{{7, 0, 100}, {9, 0, 3000}}));
  EXPECT_EQ(keys[0].elements, 3100u);
  EXPECT_EQ(keys[1].key, Key::Of(8, 0));
  EXPECT_EQ(keys[2].key, Key::Of(10, 0));
  EXPECT_EQ(keys[2].segments, (KeySegments{{10, 0, 3000}, {11, 0, 10}}));
}

TEST(Planner, FusesOnlyTensorsThatAgreeInEveryAttribute) {
  auto half = Tensor("half", 10);
  half.dtype = DType::kFloat16;
  auto spec = Tensor("spec", 10);
  spec.push_spec = "fp16";
  auto warm = Tensor("warm", 10);
  warm.warmup_steps = 3;
  auto slow = Tensor("slow", 10);
  slow.momentum = 0;
  auto alone = Tensor("alone", 10);
  alone.fuse = false;
  const auto keys = Plan({Tensor("a", 10), half, spec, warm, slow, alone, Tensor("b", 10)});
  ASSERT_EQ(keys.size(), 6u);
  EXPECT_EQ(keys[0].segments, (KeySegments{{7, 0, 10}, {13, 0, 10}}));
}

TEST(Planner, LeavesKeysUnderTheThresholdUncompressedButKeepsTheirMomentum) {
  const auto keys = Plan({Tensor("a", 1000), Tensor("b", 1000), Tensor("w", 2048 + 2048)});
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].push_spec, "none");
  EXPECT_EQ(keys[0].pull_spec, "none");
  EXPECT_EQ(keys[0].momentum, 0.9f);
  EXPECT_EQ(keys[1].push_spec, "ef(onebit)");
}

TEST(Planner, CutsOpaqueTensorsByTheirOwnBytesAndNeverFusesThem) {
  auto counter = Tensor("counter", 1);
  auto table = Tensor("table", 20000);
  for (TensorDeclaration* tensor : {&counter, &table}) {
    tensor->dtype = DType::kInt64;
    tensor->kind = KeyKind::kBroadcast;
    tensor->push_spec = tensor->pull_spec = "none";
  }
  const auto keys = Plan({counter, counter, table});
  ASSERT_EQ(keys.size(), 5u);
  EXPECT_EQ(KeyBytes(keys[0]), 8u);
  for (size_t i = 2; i < 5; ++i) EXPECT_LE(KeyBytes(keys[i]), 64 * kKiB);
}

TEST(Planner, NeverFusesBeyondAPartition) {
  JobConfig config = Config();
  config.partition_bytes = 4 * kKiB;
  for (const KeyEntry& key :
       Plan({Tensor("a", 600), Tensor("b", 600), Tensor("c", 3000)}, config)) {
    EXPECT_LE(KeyBytes(key), 4 * kKiB);
  }
}

TEST(Planner, CutsAPartitionSmallerThanTheAlignment) {
  JobConfig config = Config();
  config.partition_bytes = 400;
  const auto keys = Plan({Tensor("w", 250)}, config);
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[0].elements, 100u);
  EXPECT_EQ(keys[2].elements, 50u);
}

TEST(Planner, RefusesWhatCannotBeAndNamesTheTensor) {
  const auto expect_refused = [](const TensorDeclaration& tensor, const std::string& why) {
    const auto keys = PlanKeys(std::span(&tensor, 1), 0, Config());
    ASSERT_FALSE(keys.ok()) << why;
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr(why));
  };
  expect_refused(Tensor("empty", 0), "'empty': it has no elements");
  expect_refused(Tensor("huge", ~uint64_t{0}), "'huge': 18446744073709551615 elements");
  expect_refused(Tensor("", 1), "no name");
  expect_refused(Tensor(std::string(kMaxNameBytes + 1, 'n'), 1), "4097 bytes");
  expect_refused(Tensor("many", uint64_t{1} << 40), "'many' would be cut into more than 1048576");
  auto ints = Tensor("ints", 5);
  ints.dtype = DType::kInt32;
  expect_refused(ints, "'ints': int32 cannot be summed");
  auto fast = Tensor("fast", 5);
  fast.momentum = 1.5f;
  expect_refused(fast, "'fast': momentum 1.5");
  auto opaque = Tensor("opaque", 5);
  opaque.kind = KeyKind::kBroadcast;
  expect_refused(opaque, "'opaque': a broadcast takes no codec");
}

TEST(Planner, RefusesATensorOfTooManyPartitions) {
  const auto keys = PlanKeys(std::vector{Tensor("w", uint64_t{1} << 47)}, 0, Config());
  EXPECT_EQ(keys.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(keys.status().message()), HasSubstr("'w' would be cut into more than"));
}

// Each in a group of its own, which no other joins.
TEST(Planner, ManyGroupsAtOnceKeepApart) {
  std::vector<TensorDeclaration> tensors;
  for (uint32_t i = 0; i < 2000; ++i) {
    tensors.push_back(Tensor("w" + std::to_string(i), 8));
    tensors.back().group = i % 1000;
  }
  const std::vector<KeyEntry> keys = Plan(tensors);
  ASSERT_EQ(keys.size(), 1000u);
  for (const KeyEntry& key : keys) EXPECT_EQ(key.segments.size(), 2u);
}

}  // namespace
}  // namespace bdn
