#include "scheduler/waiting_calls.h"

#include <algorithm>

namespace bdn {

CallId WaitingCalls::Add(WaitingCall call) {
  const CallId id = NewId();
  by_subject_[call.subject].insert({call.node, id});
  by_deadline_.insert({call.deadline, id});
  by_node_.insert({call.node, id});
  if (call.subject.kind == WaitSubject::Kind::kDeclare) declaring_.insert(call.node);
  calls_.emplace(id, std::move(call));
  return id;
}

const WaitingCall* WaitingCalls::Find(CallId id) const {
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : &found->second;
}

WaitingCall WaitingCalls::Take(CallId id) {
  WaitingCall call = std::move(calls_.extract(id).mapped());
  const auto subject = by_subject_.find(call.subject);
  subject->second.erase({call.node, id});
  if (subject->second.empty()) by_subject_.erase(subject);
  by_deadline_.erase({call.deadline, id});
  by_node_.erase({call.node, id});
  if (call.subject.kind == WaitSubject::Kind::kDeclare) {
    declaring_.erase(declaring_.find(call.node));
  }
  return call;
}

void WaitingCalls::Clear() {
  calls_.clear();
  by_subject_.clear();
  by_deadline_.clear();
  by_node_.clear();
  declaring_.clear();
}

std::vector<CallId> WaitingCalls::All() const {
  std::vector<CallId> ids;
  ids.reserve(calls_.size());
  for (const auto& [id, call] : calls_) ids.push_back(id);
  return ids;
}

std::vector<CallId> WaitingCalls::WaitingFor(const WaitSubject& subject) const {
  std::vector<CallId> ids;
  const auto found = by_subject_.find(subject);
  if (found == by_subject_.end()) return ids;
  for (const auto& [node, id] : found->second) ids.push_back(id);
  // The index sorts by node, the caller wants the order in which calls came.
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<CallId> WaitingCalls::Of(const WaitSubject& subject, NodeId node) const {
  std::vector<CallId> ids;
  const auto found = by_subject_.find(subject);
  if (found == by_subject_.end()) return ids;
  for (auto next = found->second.lower_bound({node, 0});
       next != found->second.end() && next->first == node; ++next) {
    ids.push_back(next->second);
  }
  return ids;
}

std::vector<CallId> WaitingCalls::Of(NodeId node) const {
  std::vector<CallId> ids;
  for (auto next = by_node_.lower_bound({node, 0}); next != by_node_.end() && next->first == node;
       ++next) {
    ids.push_back(next->second);
  }
  return ids;
}

std::vector<CallId> WaitingCalls::Due(absl::Time now) const {
  std::vector<CallId> ids;
  for (const auto& [deadline, id] : by_deadline_) {
    if (deadline > now) break;
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::Time WaitingCalls::NextDeadline() const {
  return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
}

}  // namespace bdn
