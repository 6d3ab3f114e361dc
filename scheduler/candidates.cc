#include "scheduler/candidates.h"

#include <utility>

namespace bdn {

std::vector<CallId> Candidates::TakeCalls(uint64_t number) {
  const uint64_t join_id = waiting_.at(number).request.join_id;
  std::vector<CallId> calls;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto one = next++;
    const bool is_same = join_id != 0 && one->second.request.join_id == join_id;
    if (one->first != number && !is_same) continue;
    calls.push_back(one->second.call_id);
    waiting_.erase(one);
  }
  return calls;
}

std::vector<CallId> Candidates::TakeAllCalls() {
  std::vector<CallId> calls;
  for (const auto& [number, waiting] : std::exchange(waiting_, {})) {
    calls.push_back(waiting.call_id);
  }
  return calls;
}

void Candidates::Arrive(const std::string& boundary, NodeId node, uint64_t number) {
  Ready& ready = ready_[node];
  // It waits at one boundary, the last to which it came.
  if (ready.boundary != boundary) ready = {boundary, {}};
  if (number != 0) ready.numbers.insert(number);
}

std::map<NodeId, std::set<uint64_t>> Candidates::ReadyAt(const std::string& boundary) const {
  std::map<NodeId, std::set<uint64_t>> nodes;
  for (const auto& [node, ready] : ready_) {
    if (ready.boundary == boundary) nodes[node] = ready.numbers;
  }
  return nodes;
}

void Candidates::Enter(Entering entering) {
  ready_.erase(entering.node);
  entering_[entering.node] = std::move(entering);
}

void Candidates::ArriveAgain(NodeId node, uint64_t number) {
  if (number != 0) entering_.at(node).numbers.insert(number);
}

std::vector<Candidates::Entering> Candidates::TakeEntered(Epoch epoch) {
  std::vector<Entering> entered;
  for (auto next = entering_.begin(); next != entering_.end();) {
    const auto one = next++;
    if (one->second.met.epoch > epoch) continue;
    entered.push_back(std::move(one->second));
    entering_.erase(one);
  }
  return entered;
}

std::vector<BarrierState> Candidates::Events() const {
  std::vector<BarrierState> events;
  for (const auto& [node, ready] : ready_) {
    events.push_back({.barrier = ready.boundary, .arrivals = {{node, ready.numbers}}});
  }
  return events;
}

}  // namespace bdn
