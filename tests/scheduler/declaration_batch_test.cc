#include "scheduler/declaration_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bdn {
namespace {

// Ids need not rise with ranks.
constexpr RosterMember kFirst = {.rank = 0, .node = 9};
constexpr RosterMember kSecond = {.rank = 1, .node = 4};
constexpr RosterMember kThird = {.rank = 2, .node = 5};

Roster TwoWorkers() { return {kFirst, kSecond}; }

TensorDeclaration Tensor(const std::string& name) {
  TensorDeclaration tensor;
  tensor.name = name;
  tensor.elements = 8;
  return tensor;
}

TEST(DeclarationBatch, IsFullWhenAllWorkersSaidTheSameInAnyOrder) {
  DeclarationBatch batch({kFirst, kSecond, kThird});
  EXPECT_TRUE(batch.Add(kThird, {Tensor("a"), Tensor("b"), Tensor("c")}).ok());
  EXPECT_TRUE(batch.Add(kFirst, {Tensor("c"), Tensor("a"), Tensor("b")}).ok());
  EXPECT_EQ(batch.Missing(), "worker 1");
  EXPECT_FALSE(batch.full());
  EXPECT_TRUE(batch.Add(kSecond, {Tensor("b"), Tensor("c"), Tensor("a")}).ok());
  EXPECT_TRUE(batch.full());
  EXPECT_EQ(batch.tensors()[0].name, "c");
}

TEST(DeclarationBatch, NamesTheWorkerThatLacksATensorOnEitherSide) {
  DeclarationBatch more(TwoWorkers());
  ASSERT_TRUE(more.Add(kFirst, {Tensor("a")}).ok());
  EXPECT_EQ(more.Add(kSecond, {Tensor("a"), Tensor("b")}).message(),
            "tensor 'b': worker 1 declared it, worker 0 did not");
  DeclarationBatch fewer(TwoWorkers());
  ASSERT_TRUE(fewer.Add(kSecond, {Tensor("a"), Tensor("b")}).ok());
  EXPECT_EQ(fewer.Add(kFirst, {Tensor("b")}).message(),
            "tensor 'a': worker 1 declared it, worker 0 did not");
}

TEST(DeclarationBatch, SaysWhatDiffersInEveryField) {
  const TensorDeclaration base = Tensor("w");
  const auto expect = [&](auto change, const std::string& mine, const std::string& theirs) {
    TensorDeclaration other = base;
    change(other);
    EXPECT_EQ(DescribeDifference(base, other), mine);
    EXPECT_EQ(DescribeDifference(other, base), theirs);
    DeclarationBatch batch(TwoWorkers());
    ASSERT_TRUE(batch.Add(kFirst, {base}).ok());
    const absl::Status conflict = batch.Add(kSecond, {other});
    EXPECT_EQ(conflict.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(conflict.message(),
              "tensor 'w': worker 0 says " + mine + ", worker 1 says " + theirs);
  };
  expect([](auto& t) { t.dtype = DType::kFloat16; }, "dtype=float32", "dtype=float16");
  expect([](auto& t) { t.elements = 9; }, "elements=8", "elements=9");
  expect([](auto& t) { t.kind = KeyKind::kBroadcast; }, "kind=dense", "kind=broadcast");
  expect([](auto& t) { t.push_spec = "fp16"; }, "push=none", "push=fp16");
  expect([](auto& t) { t.pull_spec = "bf16"; }, "pull=none", "pull=bf16");
  expect([](auto& t) { t.rule = "sgd"; }, "rule=mean", "rule=sgd");
  expect([](auto& t) { t.warmup_steps = 3; }, "warmup=0", "warmup=3");
  expect([](auto& t) { t.momentum = 0.5f; }, "momentum=0", "momentum=0.5");
  expect([](auto& t) { t.group = 2; }, "group=0", "group=2");
  expect([](auto& t) { t.fuse = true; }, "fuse=false", "fuse=true");
}

}  // namespace
}  // namespace bdn
