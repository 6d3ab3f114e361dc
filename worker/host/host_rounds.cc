#include "worker/host/host_rounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "worker/error_fields.h"

namespace bdn {

// ---- A round

absl::Status HostRound::CheckAgrees(const std::string& name, Rank first) const {
  const float learning_rate = pushes.front()->learning_rate;
  for (size_t i = 1; i < pushes.size(); ++i) {
    const float other = pushes[i]->learning_rate;
    // By bits, as servers compare them.
    if (std::bit_cast<uint32_t>(other) == std::bit_cast<uint32_t>(learning_rate)) continue;
    return WithFields(
        InvalidArgument(
            "worker %d (local rank 0) pushed with learning rate %g, and worker %d (local "
            "rank %d) with %g: all processes push a tensor with one",
            first, learning_rate, first + static_cast<Rank>(i), i, other),
        {.tensor = name, .step = std::to_string(step)});
  }
  return absl::OkStatus();
}

std::string HostRound::Describe(Rank first) const {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(pushes.size(), kMost); ++i) {
    absl::StrAppendFormat(&text, "%sworker %d: weight %g, learning rate %g", i > 0 ? "; " : "",
                          first + static_cast<Rank>(i), pushes[i]->weight,
                          pushes[i]->learning_rate);
  }
  return pushes.size() > kMost ? text + "; ..." : text;
}

bool HostRound::wants_left_out() const {
  return std::any_of(pushes.begin(), pushes.end(),
                     [](const auto& push) { return push->wants_left_out; });
}

PushRequest HostRound::Request() const {
  auto sources = std::make_shared<PushSources>();
  PushRequest request{.tensor = tensor, .absent = true, .weight = 0.0f};
  request.priority = pushes.front()->priority;
  request.learning_rate = pushes.front()->learning_rate;
  for (const auto& push : pushes) {
    // As servers do: the round is as urgent as its most urgent push.
    request.priority = std::max(request.priority, push->priority);
    request.weight += push->weight;
    request.program_steps = std::max(request.program_steps, push->program_steps);
    if (push->absent) continue;
    request.absent = false;
    // In the order of local ranks, so that the sum's bits do not depend on the order of arrival.
    sources->push_back({push->data, push->weight / push->loss_scale, push->codec, push->payload});
  }
  request.sources = std::move(sources);
  return request;
}

float HostRound::ShareOf(int process) const {
  float all = 0.0f;
  for (const auto& push : pushes) all += push->weight;
  // With all weights 0 nothing was pushed, and nothing left out.
  return all > 0.0f ? pushes[process]->weight / all : 0.0f;
}

// ---- All of them

Step HostRounds::step(uint32_t tensor) const {
  const auto found = steps_.find(tensor);
  return found == steps_.end() ? 0 : found->second;
}

absl::Status HostRounds::Check(int process, const std::string& name, Step next,
                               const HostPush& push, const HostRound* round) const {
  const auto bad = [&](const std::string& what) {
    return InvalidArgument("tensor '%s': worker %d %s", name, first_ + process, what);
  };
  if (!std::isfinite(push.weight) || push.weight < 0) return bad("pushed a weight below 0 or none");
  if (!std::isfinite(push.loss_scale) || push.loss_scale <= 0 ||
      !std::isfinite(push.weight / push.loss_scale)) {
    return bad("pushed a loss scale that is none");
  }
  if (!std::isfinite(push.learning_rate)) return bad("pushed a learning rate that is not finite");
  if (push.step != next) {
    return bad(absl::StrFormat(
        "pushed step %d where its host stands at step %d: all workers must push it equally often, "
        "and go on from the same checkpoint",
        push.step, next - 1));
  }
  if (round == nullptr) return absl::OkStatus();
  if (round->pushes[process].has_value()) return bad("pushed the same step twice");
  return CheckSameProgramSteps(name, next, PlaceOf(*round), {first_ + process, push.program_steps});
}

ProgramPlace HostRounds::PlaceOf(const HostRound& round) const {
  for (int process = 0; process < processes_; ++process) {
    const std::optional<HostPush>& push = round.pushes[process];
    if (push.has_value() && push->program_steps != 0)
      return {first_ + process, push->program_steps};
  }
  return {};
}

absl::StatusOr<std::optional<HostRound>> HostRounds::Add(int process, uint32_t tensor,
                                                         const std::string& name, HostPush push) {
  const auto found = open_.find(tensor);
  const Step next = step(tensor) + 1;
  BDN_RETURN_IF_ERROR(
      Check(process, name, next, push, found == open_.end() ? nullptr : &found->second));
  // After the checks of the push itself: a mistake is reported even while another process leaves.
  for (const int gone : leaving_) {
    const bool has_pushed = found != open_.end() && found->second.pushes[gone].has_value();
    if (gone == process || has_pushed) continue;
    return Aborted(
        "tensor '%s' step %d: worker %d is leaving the job and pushes no more: all workers must "
        "push it equally often",
        name, next, first_ + gone);
  }
  HostRound& round = open_[tensor];
  if (round.pushes.empty()) {
    round.tensor = tensor;
    round.step = next;
    round.pushes.resize(processes_);
  }
  round.pushes[process] = std::move(push);
  const bool is_complete = std::all_of(round.pushes.begin(), round.pushes.end(),
                                       [](const auto& one) { return one.has_value(); });
  if (!is_complete) return std::nullopt;
  std::optional<HostRound> complete = std::move(round);
  open_.erase(tensor);
  steps_[tensor] = next;
  return complete;
}

bool HostRounds::TakeBack(const HostRound& round) {
  // Somebody has pushed the next step, or even completed it.
  if (step(round.tensor) != round.step || IsOpen(round.tensor)) return false;
  steps_[round.tensor] = round.step - 1;
  return true;
}

absl::Status HostRounds::SetStep(uint32_t tensor, Step to) {
  if (to < step(tensor)) {
    return InvalidArgument("it is at step %d, past step %d: start a new job to go back",
                           step(tensor), to);
  }
  if (to > kMaxStep) return InvalidArgument("step %d is over %d", to, kMaxStep);
  const auto found = open_.find(tensor);
  if (found == open_.end()) {
    steps_[tensor] = to;
    return absl::OkStatus();
  }
  // Every process of a host sets the step when it loads a checkpoint, and the first may already
  // push.
  if (to == step(tensor)) return absl::OkStatus();
  const std::vector<std::optional<HostPush>>& pushes = found->second.pushes;
  const auto pushed =
      std::find_if(pushes.begin(), pushes.end(), [](const auto& push) { return push.has_value(); });
  return FailedPrecondition("worker %d has pushed step %d already",
                            first_ + (pushed - pushes.begin()), found->second.step);
}

std::vector<int> HostRounds::Missing(uint32_t tensor) const {
  std::vector<int> missing;
  const auto found = open_.find(tensor);
  if (found == open_.end()) return missing;
  for (int process = 0; process < processes_; ++process) {
    if (!found->second.pushes[process].has_value()) missing.push_back(process);
  }
  return missing;
}

std::vector<HostRound> HostRounds::OnLeaving(int process) {
  leaving_.insert(process);
  std::vector<HostRound> over;
  for (auto it = open_.begin(); it != open_.end();) {
    const auto current = it++;
    if (current->second.pushes[process].has_value()) continue;
    over.push_back(std::move(current->second));
    open_.erase(current);
  }
  return over;
}

std::optional<HostRound> HostRounds::Forget(uint32_t tensor) {
  steps_.erase(tensor);
  auto round = open_.extract(tensor);
  if (round.empty()) return std::nullopt;
  return std::move(round.mapped());
}

std::vector<HostRound> HostRounds::TakeAll() {
  std::vector<HostRound> all;
  for (auto& [tensor, round] : open_) all.push_back(std::move(round));
  open_.clear();
  return all;
}

}  // namespace bdn
