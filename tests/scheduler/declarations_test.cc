#include "scheduler/declarations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/cluster/server_bytes.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr RosterMember kWorker = {.rank = 0, .node = 1};

std::vector<TensorDeclaration> Tensors(const std::string& prefix, int count) {
  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({.name = prefix + std::to_string(i), .elements = 1000});
  }
  return tensors;
}

// One worker, whose declarations are complete as soon as they are said, and two servers.
class DeclarationsTest : public ::testing::Test {
 protected:
  void Begin(DeclarationLimits limits = {}) {
    JobOptions options;
    options.limits = limits;
    options.config.num_workers = 1;
    declarations_ = std::make_unique<Declarations>(options);
    auto membership = std::make_shared<Membership>();
    membership->epoch = 1;
    membership->workers = {{.id = 1, .role = Role::kWorker}};
    membership->servers = {{.id = 2, .role = Role::kServer, .rank = 0},
                           {.id = 3, .role = Role::kServer, .rank = 1}};
    membership->MakeIndex();
    declarations_->Begin(membership);
  }
  // Declares the tensors, and returns how the declaration ended.
  absl::Status Declare(const std::vector<TensorDeclaration>& tensors) {
    DeclarationPart part{.digest = DigestOf(tensors),
                         .count = static_cast<uint32_t>(tensors.size()),
                         .tensors = tensors};
    const auto batch = declarations_->Declare(kWorker, part);
    if (!batch.ok()) return batch.status();
    for (const NodeId server : {2, 3}) {
      EXPECT_TRUE(declarations_->Acknowledge(server, declarations_->version()).ok());
    }
    const auto answer = declarations_->AnswerOf(*batch, kWorker);
    if (!answer.has_value()) return absl::UnknownError("no answer");
    declarations_->MarkAnswered(*batch, kWorker);
    return answer->status();
  }

  std::unique_ptr<Declarations> declarations_;
};

TEST_F(DeclarationsTest, EachVersionHasWhatIsNewAndNothingElse) {
  Begin();
  ASSERT_TRUE(Declare(Tensors("a", 3)).ok());
  std::vector<TensorDeclaration> more = Tensors("a", 3);
  more.push_back({.name = "b", .elements = 5});
  ASSERT_TRUE(Declare(more).ok());
  ASSERT_TRUE(Declare(more).ok());
  ASSERT_EQ(declarations_->deltas().size(), 2u);
  const CatalogueDelta& second = *declarations_->deltas()[1];
  EXPECT_EQ(second.version, (PlacementVersion{1, 2}));
  EXPECT_EQ(second.first_tensor, 3u);
  ASSERT_EQ(second.tensors.size(), 1u);
  EXPECT_EQ(second.keys.size(), 1u);
  EXPECT_TRUE(CheckDelta(second).ok());
  EXPECT_EQ(declarations_->totals().tensors, 4u);
  EXPECT_EQ(declarations_->totals().keys, 4u);
}

TEST_F(DeclarationsTest, RefusesMoreBytesThanTheJobMayHave) {
  Begin({.max_job_bytes = 10000});
  ASSERT_TRUE(Declare(Tensors("a", 2)).ok());
  const absl::Status status = Declare(Tensors("b", 2));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'b0'"), HasSubstr("12000 bytes"), HasSubstr("max-job-bytes"),
                    HasSubstr("about 12000 at each of 2 server(s)"), HasSubstr("is 10000")));
  EXPECT_EQ(declarations_->totals().tensors, 2u);
  EXPECT_TRUE(Declare({{.name = "small", .elements = 500}}).ok());
}

TEST_F(DeclarationsTest, HugeTensorsDoNotOverflowTheCount) {
  Begin({.max_job_bytes = ~uint64_t{0}});
  std::vector<TensorDeclaration> tensors = Tensors("a", 5000);
  for (TensorDeclaration& tensor : tensors) tensor.elements = uint64_t{1} << 48;
  EXPECT_THAT(std::string(Declare(tensors).message()), HasSubstr("max-job-bytes"));
}

TEST_F(DeclarationsTest, RefusesMoreTensorsThanTheJobMayHaveBeforeItKeepsThem) {
  Begin({.max_tensors = 3});
  const auto refused = declarations_->Declare(kWorker, {.digest = "d", .count = 4});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max-tensors"));
  ASSERT_TRUE(Declare(Tensors("a", 2)).ok());
  EXPECT_THAT(std::string(Declare(Tensors("b", 2)).message()), HasSubstr("max-tensors"));
  EXPECT_TRUE(Declare(Tensors("a", 3)).ok());
}

TEST(ServerBytes, CountsWhatAServerHolds) {
  const auto bytes = [](const std::string& pull, const std::string& rule) {
    return ServerBytes(TensorDeclaration{.elements = 1, .pull_spec = pull, .rule = rule});
  };
  EXPECT_EQ(bytes("none", "mean"), 8u);
  EXPECT_EQ(bytes("fp16", "mean"), 6u);
  EXPECT_EQ(bytes("ef(onebit)", "mean"), 9u);
  EXPECT_EQ(bytes("none", "adamw"), 20u);
  EXPECT_EQ(bytes("none", "sgd(momentum=0.9)"), 16u);
  EXPECT_EQ(
      ServerBytes(KeyEntry{.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast, .elements = 7}),
      7u);
}

// ---- Retiring

// Three workers and a server, which installs whatever there is.
class RetiringTest : public ::testing::Test {
 protected:
  RetiringTest() : declarations_(Options()) {
    auto membership = std::make_shared<Membership>();
    membership->epoch = 1;
    for (int rank = 0; rank < 3; ++rank) {
      membership->workers.push_back(
          {.id = static_cast<NodeId>(rank + 1), .role = Role::kWorker, .rank = rank});
    }
    membership->servers = {{.id = 9, .role = Role::kServer, .rank = 0}};
    membership->MakeIndex();
    declarations_.Begin(membership);
  }
  static JobOptions Options() {
    JobOptions options;
    options.config.num_workers = 3;
    options.limits.max_tensors = 6;
    return options;
  }
  static RosterMember Member(Rank rank) {
    return {.rank = rank, .node = static_cast<NodeId>(rank + 1)};
  }
  uint64_t Say(Rank rank, const std::vector<TensorDeclaration>& tensors) {
    return declarations_
        .Declare(Member(rank), {.digest = DigestOf(tensors),
                                .count = static_cast<uint32_t>(tensors.size()),
                                .tensors = tensors})
        .value();
  }
  // By all; how it ended for the last.
  absl::Status Declare(const std::vector<TensorDeclaration>& tensors) {
    uint64_t batch = 0;
    for (const Rank rank : {0, 1, 2}) batch = Say(rank, tensors);
    EXPECT_TRUE(declarations_.Acknowledge(9, declarations_.version()).ok());
    absl::Status status;
    for (const Rank rank : {0, 1, 2}) {
      const auto answer = declarations_.AnswerOf(batch, Member(rank));
      if (!answer.has_value()) return absl::UnknownError("no answer");
      status = answer->status();
      declarations_.MarkAnswered(batch, Member(rank));
    }
    return status;
  }
  void Retire(const std::vector<Rank>& ranks, const std::vector<uint32_t>& tensors) {
    for (const Rank rank : ranks) {
      EXPECT_TRUE(declarations_.Retire(Member(rank), tensors).ok()) << rank;
    }
  }
  uint32_t Version() { return declarations_.version().catalogue; }
  std::vector<Key> LastRetired() { return declarations_.deltas().back()->retired; }

  Declarations declarations_;
};

TEST_F(RetiringTest, KeysAreNoMoreOnceAllWorkersAreDoneWithThem) {
  ASSERT_TRUE(Declare(Tensors("a", 2)).ok());
  ASSERT_TRUE(Declare(Tensors("b", 1)).ok());
  const auto before = declarations_.totals();
  Retire({0, 2}, {0, 1});
  EXPECT_EQ(Version(), 2u);
  Retire({1}, {0, 1});
  ASSERT_EQ(Version(), 3u);
  EXPECT_THAT(LastRetired(), ::testing::ElementsAre(Key::Of(0, 0), Key::Of(1, 0)));
  EXPECT_TRUE(declarations_.deltas()[2]->keys.empty());
  EXPECT_TRUE(declarations_.deltas()[0]->tensors.empty()) << "kept for nobody";
  EXPECT_EQ(declarations_.deltas()[1]->tensors.size(), 1u);
  EXPECT_EQ(declarations_.totals().tensors, before.tensors - 2);
  EXPECT_EQ(declarations_.totals().keys, before.keys - 2);
  EXPECT_EQ(declarations_.totals().tensor_bytes, before.tensor_bytes / 3);
  EXPECT_EQ(declarations_.LoadOf(9).keys, 1u);
}

TEST_F(RetiringTest, ANameThatAllWorkersAreDoneWithIsOfANewTensor) {
  for (uint32_t generation = 0; generation < 20; ++generation) {
    auto tensors = Tensors("a", 3);
    tensors[0].push_spec = "fp16";  // as well as any other fact
    if (generation % 2 == 0) tensors.pop_back();
    ASSERT_TRUE(Declare(tensors).ok()) << generation;
    const CatalogueDelta& delta = *declarations_.deltas().back();
    ASSERT_EQ(delta.tensors.size(), tensors.size());
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i < tensors.size(); ++i) {
      numbers.push_back(delta.first_tensor + static_cast<uint32_t>(i));
    }
    EXPECT_EQ(delta.keys[0].key, Key::Of(numbers[0], 0));
    Retire({0, 1, 2}, numbers);
    EXPECT_EQ(declarations_.totals().tensors, 0u);
    EXPECT_EQ(declarations_.totals().keys, 0u);
    EXPECT_EQ(declarations_.totals().tensor_bytes, 0u);
    EXPECT_EQ(declarations_.totals().server_bytes, 0u);
    EXPECT_EQ(declarations_.LoadOf(9).key_bytes, 0u);
  }
}

TEST_F(RetiringTest, AGroupIsNoMoreWithItsLastTensor) {
  auto tensors = Tensors("a", 2);
  for (TensorDeclaration& tensor : tensors) tensor.fuse = true;
  ASSERT_TRUE(Declare(tensors).ok());
  ASSERT_EQ(declarations_.totals().keys, 1u);
  Retire({0, 1, 2}, {0});
  EXPECT_EQ(declarations_.totals().tensors, 1u);
  EXPECT_EQ(declarations_.totals().keys, 1u);
  Retire({0, 1, 2}, {1});
  EXPECT_EQ(declarations_.totals().keys, 0u);
  EXPECT_THAT(LastRetired(), ::testing::ElementsAre(Key::Of(0, 0)));
}

TEST_F(RetiringTest, WhoRepeatsItChangesNothing) {
  ASSERT_TRUE(Declare(Tensors("a", 1)).ok());
  Retire({0, 0, 1, 1, 0}, {0, 0});
  EXPECT_EQ(Version(), 1u);
  Retire({2, 2, 0, 1}, {0});
  EXPECT_EQ(Version(), 2u);
  const absl::Status status = declarations_.Retire(Member(0), {0, 7});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker 0 retires tensor 7, of 1"));
}

TEST_F(RetiringTest, AWorkerThatIsLeavingIsDoneWithAll) {
  ASSERT_TRUE(Declare(Tensors("a", 2)).ok());
  Retire({0, 1}, {0});
  declarations_.OnLeaving(Member(2));
  EXPECT_THAT(LastRetired(), ::testing::ElementsAre(Key::Of(0, 0)));
  Retire({0, 1}, {1});
  EXPECT_THAT(LastRetired(), ::testing::ElementsAre(Key::Of(1, 0)));
}

TEST_F(RetiringTest, SaysWhoIsNotDoneWithATensorThatOthersDeclareAnew) {
  ASSERT_TRUE(Declare(Tensors("a", 1)).ok());
  Retire({0, 2}, {0});
  // Worker 1 has it, and declares what it has not.
  const auto others = Tensors("b", 1);
  Say(0, Tensors("a", 1));
  Say(1, others);
  const uint64_t batch = Say(1, others);  // its list, which is wanted now
  const auto answer = declarations_.AnswerOf(batch, Member(1));
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(std::string(answer->status().message()),
              AllOf(HasSubstr("tensor 'b0'"), HasSubstr("worker 1 declared it, worker 0 did not")));
}

TEST_F(RetiringTest, AnErrorAboutATensorThatSomeAreDoneWithSaysWhatToDo) {
  ASSERT_TRUE(Declare(Tensors("a", 1)).ok());
  Retire({0, 2}, {0});
  Say(0, Tensors("a", 1));
  Say(1, {});
  const uint64_t batch = Say(1, {});
  const auto answer = declarations_.AnswerOf(batch, Member(1));
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(std::string(answer->status().message()),
              AllOf(HasSubstr("tensor 'a0': worker 0 declared it, worker 1 did not"),
                    HasSubstr("closed, or collected by Python, in worker 0, worker 2, and not in "
                              "worker 1: call its close() in all workers")));
}

TEST_F(RetiringTest, WhoDeclaresItWithoutHavingItIsDoneWithIt) {
  ASSERT_TRUE(Declare(Tensors("a", 1)).ok());
  Retire({0}, {0});  // The others were never told of the declaration's end.
  ASSERT_TRUE(Declare(Tensors("a", 1)).ok());
  ASSERT_EQ(Version(), 3u);
  EXPECT_THAT(declarations_.deltas()[1]->retired, ::testing::ElementsAre(Key::Of(0, 0)));
  EXPECT_EQ(declarations_.deltas()[2]->first_tensor, 1u);
  EXPECT_EQ(declarations_.deltas()[0]->tensors.size(), 1u) << "they read it now";
  EXPECT_EQ(declarations_.totals().tensors, 1u);
}

TEST_F(RetiringTest, WhatIsReplacedTakesNoRoom) {
  ASSERT_TRUE(Declare(Tensors("a", 6)).ok());  // as many as there may be
  Retire({0}, {0, 1, 2, 3, 4, 5});
  const auto again = Tensors("a", 6);
  Say(0, again);  // checked before the others are done
  Retire({1, 2}, {0, 1, 2, 3, 4, 5});
  Say(1, again);
  const uint64_t batch = Say(2, again);
  EXPECT_TRUE(declarations_.Acknowledge(9, declarations_.version()).ok());
  ASSERT_TRUE(declarations_.AnswerOf(batch, Member(2)).has_value());
  EXPECT_TRUE(declarations_.AnswerOf(batch, Member(2))->ok());
  EXPECT_EQ(declarations_.totals().tensors, 6u);
}

}  // namespace
}  // namespace bdn
