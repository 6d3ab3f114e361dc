#include "scheduler/barriers.h"

#include <utility>

#include "common/base/rank_group.h"

namespace bdn {
namespace {

Roster ExpectedAt(const std::string& name, const Roster& roster) {
  const RankGroup ranks = GroupInName(name);
  Roster expected = roster;
  std::erase_if(expected, [&](const RosterMember& member) { return !ranks.Has(member.rank); });
  return expected;
}

}  // namespace

std::vector<std::string> Barriers::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, meeting] : open_) names.push_back(name);
  return names;
}

const Met* Barriers::AnswerTo(NodeId node, uint64_t number, uint64_t first_open) {
  std::map<uint64_t, Met>& answers = answered_[node];
  answers.erase(answers.begin(), answers.lower_bound(first_open));
  const auto answer = answers.find(number);
  return answer == answers.end() ? nullptr : &answer->second;
}

bool Barriers::Arrive(const std::string& name, const Roster& roster, const RosterMember& member,
                      uint64_t number) {
  auto open = open_.find(name);
  const bool is_new = open == open_.end();
  if (is_new) open = open_.try_emplace(name, ExpectedAt(name, roster)).first;
  Meeting& meeting = open->second;
  meeting.barrier.Arrive(member);
  if (number != 0) meeting.numbers[member.node].insert(number);
  return is_new;
}

void Barriers::Withdraw(const std::string& name, const RosterMember& member) {
  const auto open = open_.find(name);
  open->second.barrier.Withdraw(member);
  open->second.numbers.erase(member.node);
  if (open->second.barrier.empty()) open_.erase(open);
}

void Barriers::End(const std::string& name, bool is_well, const Met& met) {
  const auto open = open_.find(name);
  if (is_well) {
    for (const auto& [node, numbers] : open->second.numbers) {
      for (const uint64_t number : numbers) answered_[node][number] = met;
    }
  }
  open_.erase(open);
}

std::vector<std::string> Barriers::Remove(const RosterMember& gone) {
  std::vector<std::string> full;
  for (auto next = open_.begin(); next != open_.end();) {
    const auto open = next++;
    open->second.barrier.Remove(gone);
    open->second.numbers.erase(gone.node);
    if (open->second.barrier.empty()) {
      open_.erase(open);
    } else if (open->second.barrier.full()) {
      full.push_back(open->first);
    }
  }
  answered_.erase(gone.node);
  return full;
}

std::vector<JobEvent> Barriers::Events() const {
  std::vector<JobEvent> events;
  for (const auto& [name, meeting] : open_) {
    BarrierState state{.barrier = name};
    for (const RosterMember& member : meeting.barrier.present()) {
      const auto numbered = meeting.numbers.find(member.node);
      state.arrivals[member.node];
      if (numbered != meeting.numbers.end()) state.arrivals[member.node] = numbered->second;
    }
    events.push_back(std::move(state));
  }
  for (const auto& [node, answers] : answered_) {
    if (!answers.empty()) events.push_back(ArrivalsAnswered{node, answers});
  }
  return events;
}

void Barriers::Restore(const BarrierState& state, const Roster& roster,
                       const std::vector<RosterMember>& members) {
  Meeting& meeting =
      open_.try_emplace(state.barrier, ExpectedAt(state.barrier, roster)).first->second;
  for (const RosterMember& member : members) {
    meeting.barrier.Arrive(member);
    meeting.numbers[member.node] = state.arrivals.at(member.node);
  }
}

}  // namespace bdn
