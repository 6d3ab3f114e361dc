#include "scheduler/waiting_calls.h"

#include <algorithm>
#include <utility>

namespace bdn {

CallId WaitingCalls::Add(WaitingCall call) {
  const CallId id = NewId();
  calls_.emplace(id, std::move(call));
  return id;
}

const WaitingCall* WaitingCalls::Find(CallId id) const {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : &found->second;
}

WaitingCall WaitingCalls::Take(CallId id) { return std::move(calls_.extract(id).mapped()); }

bool WaitingCalls::Has(WaitingCall::Kind kind, NodeId node, const std::string& barrier) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const WaitingCall& call = entry.second;
    return call.kind == kind && call.node == node && call.barrier == barrier;
  });
}

absl::Time WaitingCalls::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, call] : calls_) next = std::min(next, call.deadline);
  return next;
}

}  // namespace bdn
