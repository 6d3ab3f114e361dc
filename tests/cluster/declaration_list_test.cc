#include "common/cluster/declaration_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorDeclaration Tensor(const std::string& name) { return {.name = name, .elements = 8}; }

std::vector<TensorDeclaration> Tensors(int count) {
  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(Tensor("tensor" + std::to_string(i)));
  return tensors;
}

TEST(DeclarationList, ADigestDoesNotDependOnTheOrder) {
  std::vector<TensorDeclaration> tensors = Tensors(50);
  for (size_t i = 0; i < tensors.size(); i += 3) tensors[i].push_spec = "fp16";
  const std::string digest = DigestOf(tensors);
  EXPECT_LE(digest.size(), kMaxDigestBytes);
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(DigestOf(tensors), digest);
}

TEST(DeclarationList, ADigestDependsOnEveryField) {
  const TensorDeclaration base = Tensor("w");
  const auto expect_other = [&](auto change) {
    TensorDeclaration other = base;
    change(other);
    EXPECT_NE(DigestOf(std::vector{base}), DigestOf(std::vector{other}));
  };
  expect_other([](auto& t) { t.name = "v"; });
  expect_other([](auto& t) { t.name = "w" + std::string(1, '\0'); });
  expect_other([](auto& t) { t.dtype = DType::kFloat16; });
  expect_other([](auto& t) { t.elements = 9; });
  expect_other([](auto& t) { t.kind = KeyKind::kBroadcast; });
  expect_other([](auto& t) { t.push_spec = "fp16"; });
  expect_other([](auto& t) { t.pull_spec = "fp16"; });
  expect_other([](auto& t) { t.rule = "sgd"; });
  expect_other([](auto& t) { t.warmup_steps = 1; });
  expect_other([](auto& t) { t.momentum = 0.5f; });
  expect_other([](auto& t) { t.fuse = true; });
  expect_other([](auto& t) { t.group = 1; });
  EXPECT_NE(DigestOf(std::vector{base}), DigestOf(std::vector{base, Tensor("v")}));
  EXPECT_NE(DigestOf({}), DigestOf(std::vector{base}));
}

TEST(DeclarationList, SendsADigestAndTheListOnlyWhereItIsWanted) {
  const std::vector<TensorDeclaration> tensors = Tensors(3);
  std::vector<size_t> sent;
  const auto answer =
      SendDeclaration(tensors, 1, [&](DeclarationPart part) -> absl::StatusOr<DeclarationAnswer> {
        EXPECT_EQ(part.digest, DigestOf(tensors));
        EXPECT_EQ(part.count, 3u);
        sent.push_back(part.tensors.size());
        if (sent.size() == 1) return DeclarationAnswer{.wanted_from = 0};
        return DeclarationAnswer{.version = {1, 7}};
      });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->version.catalogue, 7u);
  EXPECT_THAT(sent, ElementsAre(0, 3));
}

TEST(DeclarationList, TheLowestRankOfAGroupBeginsWithTheList) {
  std::vector<TensorDeclaration> tensors = Tensors(2);
  for (TensorDeclaration& tensor : tensors) tensor.ranks = *RankGroup::Of({3, 1});
  const auto first_of = [&](Rank rank) {
    size_t first = 0;
    const auto answer = SendDeclaration(
        tensors, rank, [&](DeclarationPart part) -> absl::StatusOr<DeclarationAnswer> {
          first = part.tensors.size();
          EXPECT_EQ(part.ranks, tensors[0].ranks);
          return DeclarationAnswer{.version = {1, 1}};
        });
    EXPECT_TRUE(answer.ok()) << answer.status();
    return first;
  };
  EXPECT_EQ(first_of(1), 2u);
  EXPECT_EQ(first_of(3), 0u);
}

TEST(DeclarationList, TensorsOfOtherRanksAreOthers) {
  const TensorDeclaration all = Tensor("a");
  TensorDeclaration some = all;
  some.ranks = *RankGroup::Of({0, 1});
  TensorDeclaration others = all;
  others.ranks = *RankGroup::Of({0, 2});
  EXPECT_NE(DigestOf(std::vector{all}), DigestOf(std::vector{some}));
  EXPECT_NE(DigestOf(std::vector{some}), DigestOf(std::vector{others}));
  EXPECT_EQ(DescribeDifference(some, others), "of ranks 0, 1");
  EXPECT_EQ(DescribeDifference(all, others), "of all ranks");
}

TEST(DeclarationList, ALongListGoesInPartsInOrder) {
  std::vector<TensorDeclaration> tensors = Tensors(5000);
  for (TensorDeclaration& tensor : tensors) tensor.name += std::string(200, 'x');
  std::vector<TensorDeclaration> received;
  int calls = 0;
  const auto answer =
      SendDeclaration(tensors, 0, [&](DeclarationPart part) -> absl::StatusOr<DeclarationAnswer> {
        ++calls;
        EXPECT_EQ(part.first, received.size());
        received.insert(received.end(), part.tensors.begin(), part.tensors.end());
        if (received.size() == part.count) return DeclarationAnswer{.version = {1, 1}};
        return DeclarationAnswer{.wanted_from = static_cast<uint32_t>(received.size())};
      });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(received, tensors);
  EXPECT_GT(calls, 4);
}

TEST(DeclarationList, WhatIsWrongWithTheListIsSaidBeforeAnyCall) {
  const auto never = [](DeclarationPart) -> absl::StatusOr<DeclarationAnswer> {
    ADD_FAILURE() << "called";
    return absl::InternalError("called");
  };
  const auto message = [&](const std::vector<TensorDeclaration>& tensors) {
    return std::string(SendDeclaration(tensors, 0, never).status().message());
  };
  EXPECT_THAT(message({Tensor("a"), Tensor("a")}), HasSubstr("'a': it is declared twice"));
  EXPECT_THAT(message({{.name = "none"}}), HasSubstr("'none': it has no elements"));
  TensorDeclaration nul = Tensor("a");
  nul.name = std::string("a\0z", 3);
  EXPECT_THAT(message({nul}), HasSubstr("'a\\x00z': its name"));
  nul = Tensor("a");
  nul.push_spec = std::string("none\0x", 6);
  EXPECT_THAT(message({nul}), HasSubstr("must not contain NUL"));
}

TEST(DeclarationList, ASchedulerThatWantsWhatThereIsNotEndsIt) {
  for (const uint32_t place : {0u, 2u, 9u}) {
    const auto answer =
        SendDeclaration(Tensors(2), 0, [&](DeclarationPart) -> absl::StatusOr<DeclarationAnswer> {
          return DeclarationAnswer{.wanted_from = place};
        });
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace bdn
