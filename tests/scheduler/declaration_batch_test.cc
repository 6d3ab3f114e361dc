#include "scheduler/declaration_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

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

absl::Status Fine(const RosterMember&, const std::vector<TensorDeclaration>&) {
  return absl::OkStatus();
}

using List = std::vector<TensorDeclaration>;

DeclarationPart DigestAlone(const List& list) {
  return {.digest = DigestOf(list), .count = static_cast<uint32_t>(list.size())};
}
DeclarationPart WithList(const List& list) {
  DeclarationPart part = DigestAlone(list);
  part.tensors = list;
  return part;
}

TEST(DeclarationBatch, IsFullWhenAllWorkersSaidTheSameInAnyOrder) {
  DeclarationBatch batch({kFirst, kSecond, kThird}, Fine);
  EXPECT_TRUE(batch.Add(kThird, DigestAlone({Tensor("a"), Tensor("b"), Tensor("c")})).ok());
  EXPECT_TRUE(batch.Add(kFirst, WithList({Tensor("c"), Tensor("a"), Tensor("b")})).ok());
  EXPECT_EQ(batch.Missing(), "worker 1");
  EXPECT_FALSE(batch.full());
  EXPECT_TRUE(batch.Add(kSecond, DigestAlone({Tensor("b"), Tensor("c"), Tensor("a")})).ok());
  EXPECT_TRUE(batch.full());
  EXPECT_TRUE(batch.failure().ok());
  EXPECT_EQ(batch.TakeTensors()[0].name, "c");
}

TEST(DeclarationBatch, TheFirstWorkersListIsWantedAndNoOther) {
  DeclarationBatch batch(TwoWorkers(), Fine);
  ASSERT_TRUE(batch.Add(kSecond, WithList({Tensor("a")})).ok());
  EXPECT_EQ(batch.WantedFrom(kSecond), std::nullopt);
  EXPECT_EQ(batch.Missing(), "worker 0");
  ASSERT_TRUE(batch.Add(kFirst, DigestAlone({Tensor("a")})).ok());
  EXPECT_EQ(batch.WantedFrom(kFirst), 0u);
  EXPECT_FALSE(batch.full());
  ASSERT_TRUE(batch.Add(kFirst, WithList({Tensor("a")})).ok());
  EXPECT_EQ(batch.WantedFrom(kFirst), std::nullopt);
  EXPECT_TRUE(batch.full());
}

TEST(DeclarationBatch, AListComesInPartsAndMayBeginAnew) {
  const List list = {Tensor("a"), Tensor("b"), Tensor("c")};
  const auto part = [&](uint32_t first, size_t count) {
    DeclarationPart part = DigestAlone(list);
    part.first = first;
    part.tensors.assign(list.begin() + first, list.begin() + first + static_cast<int>(count));
    return part;
  };
  DeclarationBatch batch({kFirst}, Fine);
  ASSERT_TRUE(batch.Add(kFirst, part(0, 2)).ok());
  EXPECT_EQ(batch.WantedFrom(kFirst), 2u);
  ASSERT_TRUE(batch.Add(kFirst, part(0, 1)).ok());
  EXPECT_EQ(batch.WantedFrom(kFirst), 1u);
  EXPECT_EQ(batch.Add(kFirst, part(2, 1)).message(),
            "worker 0: a part of 1 tensors from 2 of 3, where 1 came before");
  DeclarationPart more = part(1, 2);
  more.tensors.push_back(Tensor("d"));
  EXPECT_EQ(batch.Add(kFirst, more).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(batch.WantedFrom(kFirst), 1u);
  ASSERT_TRUE(batch.Add(kFirst, part(1, 2)).ok());
  ASSERT_TRUE(batch.full());
  EXPECT_EQ(batch.TakeTensors(), list);
}

TEST(DeclarationBatch, WhoSaidAnotherDigestIsAskedOneAfterTheOther) {
  const List list = {Tensor("a")};
  DeclarationPart odd = DigestAlone(list);
  odd.digest = "made in another way";
  DeclarationBatch batch({kFirst, kSecond, kThird}, Fine);
  ASSERT_TRUE(batch.Add(kThird, odd).ok());
  ASSERT_TRUE(batch.Add(kSecond, odd).ok());
  EXPECT_EQ(batch.Missing(), "worker 0");
  ASSERT_TRUE(batch.Add(kFirst, WithList(list)).ok());
  EXPECT_EQ(batch.asked(), kSecond);
  EXPECT_EQ(batch.WantedFrom(kSecond), 0u);
  EXPECT_EQ(batch.WantedFrom(kThird), std::nullopt);
  EXPECT_EQ(batch.Missing(), "worker 1");
  odd.tensors = list;
  ASSERT_TRUE(batch.Add(kSecond, odd).ok());
  EXPECT_EQ(batch.asked(), kThird);
  ASSERT_TRUE(batch.Add(kThird, odd).ok());
  EXPECT_TRUE(batch.full());
  EXPECT_TRUE(batch.failure().ok());
}

TEST(DeclarationBatch, AWorkerCannotChangeWhatItSaid) {
  DeclarationBatch batch(TwoWorkers(), Fine);
  ASSERT_TRUE(batch.Add(kSecond, DigestAlone({Tensor("a")})).ok());
  EXPECT_TRUE(batch.Add(kSecond, DigestAlone({Tensor("a")})).ok());
  EXPECT_EQ(batch.Add(kSecond, DigestAlone({Tensor("b")})).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(DeclarationBatch, WhatIsWrongWithAListAloneFailsTheBatch) {
  DeclarationBatch batch(TwoWorkers(), [](const RosterMember& of, const List& list) {
    return absl::InvalidArgumentError(std::to_string(of.rank) + list[0].name);
  });
  ASSERT_TRUE(batch.Add(kFirst, WithList({Tensor("a")})).ok());
  EXPECT_EQ(batch.failure().message(), "0a");
}

TEST(DeclarationBatch, NamesTheWorkerThatLacksATensorOnEitherSide) {
  DeclarationBatch more(TwoWorkers(), Fine);
  const List both = {Tensor("a"), Tensor("b")};
  ASSERT_TRUE(more.Add(kFirst, WithList({Tensor("a")})).ok());
  ASSERT_TRUE(more.Add(kSecond, DigestAlone(both)).ok());
  ASSERT_TRUE(more.Add(kSecond, WithList(both)).ok());
  EXPECT_EQ(more.failure().message(), "tensor 'b': worker 1 declared it, worker 0 did not");
  DeclarationBatch fewer(TwoWorkers(), Fine);
  ASSERT_TRUE(fewer.Add(kSecond, DigestAlone(both)).ok());
  ASSERT_TRUE(fewer.Add(kFirst, WithList({Tensor("b")})).ok());
  ASSERT_TRUE(fewer.Add(kSecond, WithList(both)).ok());
  EXPECT_EQ(fewer.failure().message(), "tensor 'a': worker 1 declared it, worker 0 did not");
}

TEST(DeclarationBatch, SaysWhatDiffersInEveryField) {
  const TensorDeclaration base = Tensor("w");
  const auto expect = [&](auto change, const std::string& mine, const std::string& theirs) {
    TensorDeclaration other = base;
    change(other);
    EXPECT_EQ(DescribeDifference(base, other), mine);
    EXPECT_EQ(DescribeDifference(other, base), theirs);
    DeclarationBatch batch(TwoWorkers(), Fine);
    ASSERT_TRUE(batch.Add(kFirst, WithList({base})).ok());
    ASSERT_TRUE(batch.Add(kSecond, DigestAlone({other})).ok());
    ASSERT_TRUE(batch.Add(kSecond, WithList({other})).ok());
    const absl::Status conflict = batch.failure();
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
