#include "worker/state_call.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "link/rule_spec.h"

namespace bdn {
namespace {

using What = StateCall::What;
using Where = StateCall::Where;

// The facts that all calls of a kind share.
struct Kind {
  What what;
  bool at_link;
  bool at_servers;
  bool only_reads;
  const char* out;  // the array that is filled, by its name in the C interface; null: none
  bool takes_in;
};

// By What; the order is checked below.
constexpr Kind kKinds[] = {
    {What::kGet, true, true, true, "out", false},
    {What::kSet, true, true, false, nullptr, true},
    {What::kGetStep, true, false, true, nullptr, false},
    {What::kSetStep, true, false, false, nullptr, false},
    {What::kGetCounters, false, true, true, nullptr, false},
    {What::kSetCounters, false, true, false, nullptr, false},
    {What::kSetRule, false, true, false, nullptr, false},
    {What::kFetchWeights, false, true, true, "out", false},
    {What::kSyncWeights, false, true, true, "weights", false},
};
constexpr bool IsInOrder() {
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    if (static_cast<size_t>(kKinds[i].what) != i) return false;
  }
  return true;
}
static_assert(IsInOrder());

const Kind& KindOf(const StateCall& call) { return kKinds[static_cast<size_t>(call.what)]; }

// By LinkState.
constexpr const char* kLinkStates[] = {"residual", "momentum", "replica", "learning_rate"};

bool HoldsFloats(StatePart part) {
  return part != StatePart::kNone && part != StatePart::kCounters && part != StatePart::kRule &&
         part != StatePart::kSnapshot && part != StatePart::kReply &&
         part != StatePart::kPosition && part != StatePart::kRows && part != StatePart::kRecords;
}

std::vector<const char*> NamesOfServerParts() {
  std::vector<const char*> names;
  for (int i = 0; i <= static_cast<int>(kLastStatePart); ++i) {
    const auto part = static_cast<StatePart>(i);
    if (HoldsFloats(part)) names.push_back(StatePartName(part));
  }
  return names;
}

bool IsLearningRate(const StateCall& call) {
  return call.where == Where::kThisLink && call.link_part == LinkState::kLearningRate;
}

absl::Status CheckArray(const StateCall& call, const TensorDeclaration& tensor,
                        std::span<const float> array, const char* name) {
  if (array.data() == nullptr) return InvalidArgument("%s is null", name);
  const uint64_t wanted = ElementsOf(call, tensor.elements);
  if (array.size() == wanted) return absl::OkStatus();
  return InvalidArgument("tensor '%s' has %d %s, not %d", tensor.name, wanted,
                         IsLearningRate(call) ? "learning rate" : "elements", array.size());
}

absl::Status CheckStep(const StateCall& call, const StateSubject& subject) {
  if (call.step > kMaxStep) return InvalidArgument("step %d is over %d", call.step, kMaxStep);
  // Servers have counted the steps up to `pushed`, and would take pushes of these for repeats.
  if (call.what != What::kSetStep || call.step >= subject.pushed) return absl::OkStatus();
  return InvalidArgument("tensor '%s' is at step %d, past step %d: start a new job to go back",
                         subject.declaration->name, subject.pushed, call.step);
}

absl::Status CheckSubject(const StateCall& call, const StateSubject& subject) {
  const Kind& kind = KindOf(call);
  const TensorDeclaration& tensor = *subject.declaration;
  // A stage may change the state while an exchange is in flight. The step alone is counted here,
  // under the lock.
  if (!subject.is_idle && call.what != What::kGetStep) {
    return FailedPrecondition("tensor '%s' is in flight; wait for it first", tensor.name);
  }
  if (kind.out != nullptr) BDN_RETURN_IF_ERROR(CheckArray(call, tensor, call.out, kind.out));
  if (kind.takes_in) BDN_RETURN_IF_ERROR(CheckArray(call, tensor, call.in, "in"));
  // Servers check it themselves, and say which element of theirs is not finite.
  const bool sets_link = kind.takes_in && call.where == Where::kThisLink;
  if (sets_link &&
      !std::all_of(call.in.begin(), call.in.end(), [](float x) { return std::isfinite(x); })) {
    return InvalidArgument("tensor '%s': a state that is not finite", tensor.name);
  }
  return kind.only_reads ? absl::OkStatus() : CheckStep(call, subject);
}

}  // namespace

absl::StatusOr<LinkState> LinkStateNamed(std::string_view name) {
  for (size_t i = 0; i < std::size(kLinkStates); ++i) {
    if (name == kLinkStates[i]) return static_cast<LinkState>(i);
  }
  return InvalidArgument("state '%s' is none of %s", name, absl::StrJoin(kLinkStates, ", "));
}

absl::StatusOr<StatePart> ServerPartNamed(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(kLastStatePart); ++i) {
    const auto part = static_cast<StatePart>(i);
    if (HoldsFloats(part) && name == StatePartName(part)) return part;
  }
  return InvalidArgument("state '%s' is none of %s", name,
                         absl::StrJoin(NamesOfServerParts(), ", "));
}

bool StateCall::fills_out() const { return KindOf(*this).out != nullptr; }

bool StateCall::reads() const { return KindOf(*this).only_reads; }

uint64_t ElementsOf(const StateCall& call, uint64_t tensor_elements) {
  return IsLearningRate(call) ? 1 : tensor_elements;
}

absl::Status CheckStateCall(const StateCall& call, std::span<const StateSubject> subjects) {
  const Kind& kind = KindOf(call);
  const bool is_of_link = call.where == Where::kThisLink;
  if (is_of_link ? !kind.at_link : !kind.at_servers) {
    return InvalidArgument("a call about state asks %s for what is not kept there",
                           is_of_link ? "a link" : "a server");
  }
  const bool has_part = call.what == What::kGet || call.what == What::kSet;
  if (!is_of_link && has_part && !HoldsFloats(call.server_part)) {
    return InvalidArgument("part '%s' of a server's state is not of float32",
                           StatePartName(call.server_part));
  }
  // A misspelt rule is refused here, before some servers take it and others do not.
  if (call.what == What::kSetRule) BDN_RETURN_IF_ERROR(RuleSpec::Parse(call.rule).status());
  for (const StateSubject& subject : subjects) BDN_RETURN_IF_ERROR(CheckSubject(call, subject));
  return absl::OkStatus();
}

}  // namespace bdn
