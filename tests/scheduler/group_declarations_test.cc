// Declarations of tensors that some of the ranks exchange.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/declarations.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kWorkers = 4;
constexpr NodeId kServer = 10;

RosterMember Worker(Rank rank) { return {.rank = rank, .node = static_cast<NodeId>(rank + 1)}; }

RankGroup Ranks(std::vector<Rank> ranks) { return *RankGroup::Of(std::move(ranks)); }

TensorDeclaration Tensor(const std::string& name, const RankGroup& ranks = {}) {
  return {.name = name, .elements = 1000, .ranks = ranks};
}

class GroupDeclarationsTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin(); }
  void Begin(int processes = 1) {
    JobOptions options;
    options.config.num_workers = kWorkers;
    options.config.min_workers = 1;
    declarations_ = std::make_unique<Declarations>(options);
    auto membership = std::make_shared<Membership>();
    membership->epoch = 1;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      membership->workers.push_back(
          {.id = Worker(rank).node, .role = Role::kWorker, .rank = rank, .processes = processes});
    }
    membership->servers = {{.id = kServer, .role = Role::kServer}};
    membership->MakeIndex();
    declarations_->Begin(membership);
  }
  // Says a list, whose ranks are those of its tensors; returns the number of its batch.
  absl::StatusOr<uint64_t> Say(Rank rank, const std::vector<TensorDeclaration>& tensors) {
    return declarations_->Declare(Worker(rank), {.ranks = tensors[0].ranks,
                                                 .digest = DigestOf(tensors),
                                                 .count = static_cast<uint32_t>(tensors.size()),
                                                 .tensors = tensors});
  }
  // Returns how the batch has ended for a worker, which knows it then; nothing where it has not.
  std::optional<absl::Status> Ended(uint64_t batch, Rank rank) {
    EXPECT_TRUE(declarations_->Acknowledge(kServer, declarations_->version()).ok());
    const auto answer = declarations_->AnswerOf(batch, Worker(rank));
    if (!answer.has_value()) return std::nullopt;
    declarations_->MarkAnswered(batch, Worker(rank));
    return answer->status();
  }
  // All of them declare, and hear that it ended well.
  void Declare(const std::vector<Rank>& ranks, const std::vector<TensorDeclaration>& tensors) {
    std::vector<uint64_t> batches;
    for (const Rank rank : ranks) {
      const auto batch = Say(rank, tensors);
      ASSERT_TRUE(batch.ok()) << batch.status();
      batches.push_back(*batch);
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto status = Ended(batches[i], ranks[i]);
      ASSERT_TRUE(status.has_value()) << declarations_->WaitedFor(batches[i]);
      EXPECT_TRUE(status->ok()) << *status;
    }
  }

  std::unique_ptr<Declarations> declarations_;
};

TEST_F(GroupDeclarationsTest, ABatchIsFullWhenItsGroupHasDeclared) {
  Declare({1, 3}, {Tensor("a", Ranks({1, 3}))});
  ASSERT_EQ(declarations_->deltas().size(), 1u);
  const CatalogueDelta& delta = *declarations_->deltas()[0];
  EXPECT_EQ(delta.keys[0].ranks, Ranks({1, 3}));
  EXPECT_TRUE(delta.Concerns(1));
  EXPECT_FALSE(delta.Concerns(0));
}

TEST_F(GroupDeclarationsTest, GroupsCountTheirDeclarationsEachForItself) {
  Declare({0, 1}, {Tensor("a", Ranks({0, 1}))});
  Declare({0, 1}, {Tensor("b", Ranks({0, 1}))});
  Declare({2, 3}, {Tensor("c", Ranks({2, 3}))});
  Declare({0, 1, 2, 3}, {Tensor("all")});
  Declare({1, 2}, {Tensor("d", Ranks({1, 2}))});
  EXPECT_EQ(declarations_->totals().tensors, 5u);
}

TEST_F(GroupDeclarationsTest, TensorsOfOverlappingGroupsShareNoFrame) {
  TensorDeclaration small = Tensor("a", Ranks({0, 1}));
  small.fuse = true;
  TensorDeclaration other = Tensor("b", Ranks({1, 2}));
  other.fuse = true;
  Declare({0, 1}, {small});
  Declare({1, 2}, {other});
  for (const SharedDelta& delta : declarations_->deltas()) {
    ASSERT_EQ(delta->keys.size(), 1u);
    EXPECT_EQ(delta->keys[0].segments.size(), 1u);
  }
}

TEST_F(GroupDeclarationsTest, SaysForWhomItWaits) {
  const auto batch = Say(0, {Tensor("a", Ranks({0, 2}))});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(declarations_->WaitedFor(*batch),
            "waiting for worker 2 to declare the same tensors among ranks 0, 2");
}

TEST_F(GroupDeclarationsTest, RefusesAGroupThatTheWorkerIsNotOf) {
  EXPECT_EQ(Say(0, {Tensor("a", Ranks({1, 2}))}).status().message(),
            "worker 0 declares tensors among ranks 1, 2, and is none of these");
  EXPECT_EQ(Say(0, {Tensor("a", Ranks({0, 4}))}).status().message(),
            "worker 0 declares tensors among ranks 0, 4, and the job has 4 workers");
}

TEST_F(GroupDeclarationsTest, RefusesGroupsWhereProcessesShareAWorker) {
  Begin(2);
  EXPECT_EQ(Say(0, {Tensor("a", Ranks({0, 1}))}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(GroupDeclarationsTest, AListOfSeveralGroupsFailsItsBatch) {
  const std::vector<TensorDeclaration> mixed = {Tensor("a", Ranks({0, 1})), Tensor("b")};
  const auto batch = Say(0, mixed);
  ASSERT_TRUE(batch.ok());
  const auto status = Ended(*batch, 0);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->message(),
            "tensor 'b': worker 0 declares it among all ranks, in a declaration among ranks 0, 1");
}

TEST_F(GroupDeclarationsTest, ANameIsOfOneGroupOnly) {
  Declare({0, 1}, {Tensor("w", Ranks({0, 1}))});
  const auto batch = Say(2, {Tensor("w", Ranks({2, 3}))});
  ASSERT_TRUE(batch.ok());
  const auto status = Ended(*batch, 2);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(
      status->message(),
      "tensor 'w': ranks 0, 1 declared of ranks 0, 1 before, worker 2 now says of ranks 2, 3");
}

TEST_F(GroupDeclarationsTest, ANameIsOfOneGroupOnlyWhereTwoAreUnderWay) {
  const auto first = Say(0, {Tensor("w", Ranks({0, 1}))});
  const auto second = Say(2, {Tensor("w", Ranks({2, 3}))});
  ASSERT_TRUE(Say(1, {Tensor("w", Ranks({0, 1}))}).ok());
  ASSERT_TRUE(Say(3, {Tensor("w", Ranks({2, 3}))}).ok());
  EXPECT_TRUE(Ended(*first, 0)->ok());
  const auto status = Ended(*second, 2);
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(std::string(status->message()),
              AllOf(HasSubstr("'w': ranks 0, 1 have declared it"), HasSubstr("ranks 2, 3 do")));
}

// Two workers that declare a tensor with other groups wait for each other.
TEST_F(GroupDeclarationsTest, WorkersThatWaitForEachOtherAreTold) {
  const auto mine = Say(0, {Tensor("w", Ranks({0, 1}))});
  const auto others = Say(1, {Tensor("w", Ranks({0, 1, 2}))});
  ASSERT_TRUE(mine.ok() && others.ok());
  for (const auto& [batch, rank] : {std::pair(*mine, 0), std::pair(*others, 1)}) {
    const auto status = Ended(batch, rank);
    ASSERT_TRUE(status.has_value());
    EXPECT_THAT(std::string(status->message()),
                AllOf(HasSubstr("ranks 0-2 wait for worker 0"),
                      HasSubstr("ranks 0, 1 wait for worker 1"), HasSubstr("the same order")));
  }
}

TEST_F(GroupDeclarationsTest, ALongCircleIsTold) {
  ASSERT_TRUE(Say(0, {Tensor("a", Ranks({0, 1}))}).ok());
  ASSERT_TRUE(Say(1, {Tensor("b", Ranks({1, 2}))}).ok());
  const auto last = Say(2, {Tensor("c", Ranks({0, 2}))});
  ASSERT_TRUE(last.ok());
  const auto status = Ended(*last, 2);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GroupDeclarationsTest, AChainIsNoCircle) {
  const auto first = Say(0, {Tensor("a", Ranks({0, 1}))});
  const auto second = Say(1, {Tensor("b", Ranks({1, 2}))});
  EXPECT_FALSE(Ended(*first, 0).has_value());
  EXPECT_FALSE(Ended(*second, 1).has_value());
  ASSERT_TRUE(Say(2, {Tensor("b", Ranks({1, 2}))}).ok());
  EXPECT_TRUE(Ended(*second, 1)->ok());
  ASSERT_TRUE(Say(1, {Tensor("a", Ranks({0, 1}))}).ok());
  EXPECT_TRUE(Ended(*first, 0)->ok());
}

TEST_F(GroupDeclarationsTest, ATensorIsRetiredWhenItsGroupIsDone) {
  Declare({0, 1}, {Tensor("a", Ranks({0, 1}))});
  Declare({0, 1, 2, 3}, {Tensor("all")});
  EXPECT_EQ(declarations_->Retire(Worker(2), {0}).message(),
            "worker 2 retires tensor 'a', which only ranks 0, 1 exchange");
  ASSERT_TRUE(declarations_->Retire(Worker(0), {0}).ok());
  EXPECT_EQ(declarations_->totals().tensors, 2u);
  ASSERT_TRUE(declarations_->Retire(Worker(1), {0}).ok());
  EXPECT_EQ(declarations_->totals().tensors, 1u);
  EXPECT_EQ(declarations_->deltas().back()->retired.size(), 1u);
}

TEST_F(GroupDeclarationsTest, AWorkerThatLeavesFailsOnlyItsOwnGroups) {
  const auto others = Say(0, {Tensor("a", Ranks({0, 1}))});
  declarations_->OnLeaving(Worker(3));
  ASSERT_TRUE(Say(1, {Tensor("a", Ranks({0, 1}))}).ok());
  EXPECT_TRUE(Ended(*others, 0)->ok());
  EXPECT_TRUE(Ended(*others, 1)->ok());
  const auto its = Say(2, {Tensor("b", Ranks({2, 3}))});
  ASSERT_TRUE(its.ok());
  EXPECT_EQ(Ended(*its, 2)->message(), "declaring tensors: worker 3 is leaving the job instead");
}

TEST_F(GroupDeclarationsTest, AGroupGoesOnWithoutAWorkerThatIsLost) {
  const auto batch = Say(1, {Tensor("a", Ranks({1, 3}))});
  declarations_->OnLost(Worker(3));
  EXPECT_TRUE(Ended(*batch, 1)->ok());
  Declare({0, 1, 2}, {Tensor("all")});
  // Nobody of this group is left.
  declarations_->OnLost(Worker(1));
  Declare({0, 2}, {Tensor("more")});
}

TEST_F(GroupDeclarationsTest, ANewcomerTakesThePlaceOfItsRank) {
  Declare({0, 1}, {Tensor("a", Ranks({0, 1}))});
  Declare({2, 3}, {Tensor("b", Ranks({2, 3}))});
  declarations_->OnLost(Worker(1));
  const RosterMember newcomer = {.rank = 1, .node = 20};
  const auto say = [&](const TensorDeclaration& tensor) {
    const std::vector<TensorDeclaration> list = {tensor};
    DeclarationPart part{
        .ranks = tensor.ranks, .digest = DigestOf(list), .count = 1, .tensors = list};
    return declarations_->DeclareLate(newcomer, true, &part)->status();
  };
  EXPECT_TRUE(say(Tensor("a", Ranks({0, 1}))).ok());
  EXPECT_THAT(std::string(say(Tensor("a")).message()), HasSubstr("ranks 0, 1"));
  EXPECT_THAT(std::string(say(Tensor("b", Ranks({2, 3}))).message()), HasSubstr("none of these"));
  declarations_->Admit(newcomer);
  const std::vector<TensorDeclaration> more = {Tensor("c", Ranks({0, 1}))};
  const auto first = Say(0, more);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(Ended(*first, 0).has_value()) << "it waits for the newcomer";
  DeclarationPart part{
      .ranks = more[0].ranks, .digest = DigestOf(more), .count = 1, .tensors = more};
  const auto answer = declarations_->DeclareLate(newcomer, false, &part);
  ASSERT_FALSE(answer.has_value()) << answer->status();
  const auto its = declarations_->Declare(newcomer, part);
  ASSERT_TRUE(its.ok()) << its.status();
  EXPECT_EQ(*its, *first);
  EXPECT_TRUE(Ended(*first, 0)->ok());
}

}  // namespace
}  // namespace bdn
