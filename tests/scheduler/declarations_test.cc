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
    declarations_ = std::make_unique<Declarations>(options);
    auto membership = std::make_shared<Membership>();
    membership->epoch = 1;
    membership->workers = {{.id = 1, .role = Role::kWorker}};
    membership->servers = {{.id = 2, .role = Role::kServer, .rank = 0},
                           {.id = 3, .role = Role::kServer, .rank = 1}};
    membership->MakeIndex();
    declarations_->Begin(membership);
  }
  // How it ended.
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

}  // namespace
}  // namespace bdn
