#include "worker/state_call.h"

#include <limits>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;
using What = StateCall::What;
using Where = StateCall::Where;

constexpr What kAll[] = {What::kGet,     What::kSet,          What::kGetStep,
                         What::kSetStep, What::kGetCounters,  What::kSetCounters,
                         What::kSetRule, What::kFetchWeights, What::kSyncWeights};

class StateCallTest : public ::testing::Test {
 protected:
  // A call of this kind that fits the tensor.
  StateCall Fitting(What what, Where where) {
    const bool sets_rule = what == What::kSetRule;
    return {.what = what,
            .where = where,
            .tensor = 3,
            .server_part = StatePart::kWeights,
            .step = 7,
            .out = values_,
            .in = values_,
            .tensors = sets_rule ? std::span<const uint32_t>(ids_) : std::span<const uint32_t>(),
            .rule = sets_rule ? "sgd" : ""};
  }
  absl::Status Check(const StateCall& call, bool is_idle = true) const {
    const std::vector<StateSubject> subjects(call.subjects().size(), {&tensor_, 5, is_idle});
    return CheckStateCall(call, subjects);
  }
  void Refuse(const StateCall& call, Code code, const std::string& why) const {
    const absl::Status status = Check(call);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  const TensorDeclaration tensor_{.name = "w", .elements = 4};
  const std::vector<uint32_t> ids_ = {3, 4};
  std::vector<float> values_ = {1, 2, 3, 4};
};

TEST_F(StateCallTest, IsAboutWhatIsKeptWhereItLooks) {
  const auto is_there = [](What what, Where where) {
    if (what == What::kGet || what == What::kSet) return true;
    const bool is_step = what == What::kGetStep || what == What::kSetStep;
    return is_step == (where == Where::kThisLink);
  };
  for (const What what : kAll) {
    for (const Where where : {Where::kThisLink, Where::kServer}) {
      const absl::Status status = Check(Fitting(what, where));
      EXPECT_EQ(status.ok(), is_there(what, where)) << static_cast<int>(what) << ": " << status;
      EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
    }
  }
  for (const StatePart part : {StatePart::kNone, StatePart::kCounters, StatePart::kRule}) {
    StateCall call = Fitting(What::kGet, Where::kServer);
    call.server_part = part;
    Refuse(call, Code::kInvalidArgument, "is not of float32");
  }
}

TEST_F(StateCallTest, NeedsAnIdleTensorUnlessItReadsTheStep) {
  for (const What what : kAll) {
    for (const Where where : {Where::kThisLink, Where::kServer}) {
      if (!Check(Fitting(what, where)).ok()) continue;
      const absl::Status status = Check(Fitting(what, where), /*is_idle=*/false);
      if (what == What::kGetStep) {
        EXPECT_TRUE(status.ok()) << status;
      } else {
        EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
        EXPECT_EQ(status.message(), "tensor 'w' is in flight; wait for it first");
      }
    }
  }
}

TEST_F(StateCallTest, HasAnArrayOfTheTensorsSize) {
  for (const What what : {What::kGet, What::kSet, What::kFetchWeights, What::kSyncWeights}) {
    StateCall call = Fitting(what, Where::kServer);
    call.out = std::span(values_).first(3);
    call.in = call.out;
    Refuse(call, Code::kInvalidArgument, "tensor 'w' has 4 elements, not 3");
    call.out = {static_cast<float*>(nullptr), 4};
    call.in = {static_cast<const float*>(nullptr), 4};
    const char* const name = what == What::kSet           ? "in"
                             : what == What::kSyncWeights ? "weights"
                                                          : "out";
    Refuse(call, Code::kInvalidArgument, std::string(name) + " is null");
  }
  StateCall rate = Fitting(What::kGet, Where::kThisLink);
  rate.link_part = LinkState::kLearningRate;
  Refuse(rate, Code::kInvalidArgument, "tensor 'w' has 1 learning rate, not 4");
  rate.out = std::span(values_).first(1);
  EXPECT_TRUE(Check(rate).ok());
}

TEST_F(StateCallTest, SetsNumbersThatCanBe) {
  values_[2] = std::numeric_limits<float>::infinity();
  Refuse(Fitting(What::kSet, Where::kThisLink), Code::kInvalidArgument, "is not finite");
  EXPECT_TRUE(Check(Fitting(What::kSet, Where::kServer)).ok()) << "its server says which";
  StateCall step = Fitting(What::kSetStep, Where::kThisLink);
  step.step = 4;
  Refuse(step, Code::kInvalidArgument,
         "tensor 'w' is at step 5, past step 4: start a new job to go back");
  for (const auto& [what, where] :
       {std::pair{What::kSetStep, Where::kThisLink}, std::pair{What::kSet, Where::kServer},
        std::pair{What::kSetCounters, Where::kServer}}) {
    StateCall call = Fitting(what, where);
    call.step = kMaxStep + 1;
    Refuse(call, Code::kInvalidArgument, "is over");
  }
  StateCall rule = Fitting(What::kSetRule, Where::kServer);
  rule.rule = "sgd(mass=1)";
  EXPECT_TRUE(absl::IsInvalidArgument(Check(rule)));
}

TEST_F(StateCallTest, PartsHaveNames) {
  EXPECT_EQ(LinkStateNamed("learning_rate").value(), LinkState::kLearningRate);
  EXPECT_EQ(LinkStateNamed("moment0").status().message(),
            "state 'moment0' is none of residual, momentum, replica, learning_rate");
  EXPECT_EQ(ServerPartNamed("moment1").value(), StatePart::kMoment1);
  for (const char* const name : {"counters", "rule", "none", ""}) {
    EXPECT_THAT(std::string(ServerPartNamed(name).status().message()),
                HasSubstr("is none of weights, replica, residual, moment0, moment1"));
  }
}

}  // namespace
}  // namespace bdn::testing
