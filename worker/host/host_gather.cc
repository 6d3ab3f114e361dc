#include "worker/host/host_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace bdn {

std::string WorkerNames(const std::vector<int>& processes, Rank first) {
  return absl::StrJoin(processes, ", ", [first](std::string* names, int process) {
    absl::StrAppendFormat(names, "worker %d", first + process);
  });
}

std::string HostGather::MissingOf(const Gathering& gathering) const {
  std::vector<int> missing;
  for (int process = 0; process < processes_; ++process) {
    if (!gathering.members.contains(process)) missing.push_back(process);
  }
  return WorkerNames(missing, first_);
}

absl::StatusOr<std::optional<HostGather::Members>> HostGather::Join(const std::string& name,
                                                                    const std::string& kind,
                                                                    const Member& member) {
  // All processes come to the leaving itself, so none is missed there.
  if (name != kLeaving) {
    for (const int gone : leaving_) {
      const auto found = open_.find(name);
      const bool has_come = found != open_.end() && found->second.members.contains(gone);
      if (gone == member.process || has_come) continue;
      return Aborted("%s: worker %d is leaving the job instead", name, first_ + gone);
    }
  }
  Gathering& gathering = open_[name];
  if (gathering.members.contains(member.process)) {
    return InvalidArgument("%s: worker %d waits there already", name, first_ + member.process);
  }
  gathering.kind = kind;
  gathering.members[member.process] = member;
  if (gathering.members.size() < static_cast<size_t>(processes_)) return std::nullopt;
  Members all;
  for (const auto& [process, one] : gathering.members) all.push_back(one);
  open_.erase(name);
  return all;
}

absl::StatusOr<std::optional<HostGather::Members>> HostGather::Arrive(const std::string& name,
                                                                      const Member& member) {
  return Join(name, "", member);
}

absl::StatusOr<std::optional<HostGather::Members>> HostGather::ArriveNext(const std::string& kind,
                                                                          const Member& member) {
  uint64_t& count = counts_[kind][member.process];
  auto joined = Join(absl::StrFormat("%s %d", kind, count + 1), kind, member);
  // A call that is refused does not count, so that the next one of its kind meets those that still
  // wait.
  if (joined.ok()) ++count;
  return joined;
}

std::vector<HostGather::Ended> HostGather::Expire(absl::Time now) {
  std::vector<Ended> ended;
  for (auto it = open_.begin(); it != open_.end();) {
    auto& [name, gathering] = *it;
    std::vector<Member> late;
    for (const auto& [process, member] : gathering.members) {
      if (member.deadline <= now) late.push_back(member);
    }
    const absl::Status status = DeadlineExceeded("%s: waiting for %s", name, MissingOf(gathering));
    for (const Member& member : late) {
      ended.push_back({member, status, name == kLeaving});
      gathering.members.erase(member.process);
      // The call did not take place, and the process's next call of the kind takes its number.
      if (!gathering.kind.empty()) --counts_[gathering.kind][member.process];
    }
    // The others go on waiting, until their own deadlines.
    it = gathering.members.empty() ? open_.erase(it) : std::next(it);
  }
  return ended;
}

absl::Time HostGather::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, gathering] : open_) {
    for (const auto& [process, member] : gathering.members) next = std::min(next, member.deadline);
  }
  return next;
}

std::vector<HostGather::Ended> HostGather::OnLeaving(int process) {
  leaving_.insert(process);
  std::vector<Ended> ended;
  for (auto it = open_.begin(); it != open_.end();) {
    const auto current = it++;
    const auto& [name, gathering] = *current;
    if (name == kLeaving || gathering.members.contains(process)) continue;
    const absl::Status status =
        Aborted("%s: worker %d is leaving the job instead", name, first_ + process);
    for (const auto& [other, member] : gathering.members) ended.push_back({member, status});
    open_.erase(current);
  }
  return ended;
}

std::vector<HostGather::Ended> HostGather::TakeAll(const absl::Status& status) {
  std::vector<Ended> ended;
  for (const auto& [name, gathering] : open_) {
    for (const auto& [process, member] : gathering.members) {
      ended.push_back({member, status, name == kLeaving});
    }
  }
  open_.clear();
  return ended;
}

}  // namespace bdn
