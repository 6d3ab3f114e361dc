// The methods of Declarations about workers that join a job that runs. What such a worker declares
// is compared by name: its program need not have made all that the others have made, nor in the
// same order.

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "common/base/status.h"
#include "scheduler/declarations.h"

namespace bdn {

std::optional<absl::StatusOr<DeclarationAnswer>> Declarations::DeclareLate(
    const RosterMember& member, bool is_candidate, DeclarationPart* part) {
  if (!is_candidate && !late_.contains(member.node)) return std::nullopt;
  if (absl::Status status = CheckCount(member, *part); !status.ok()) return status;
  if (absl::Status status = CheckRanks(member, part->ranks); !status.ok()) return status;
  Late& late = late_[member.node];
  if (late.is_in_batch) {
    absl::Status status = RepeatLate(member, part, &late);
    return status.ok() ? std::nullopt : std::optional<absl::StatusOr<DeclarationAnswer>>(status);
  }
  if (leaving_.contains(member)) return std::nullopt;
  if (absl::Status status = AddLate(member, part, &late); !status.ok()) return status;
  if (late.list.size() < late.count) {
    return DeclarationAnswer{.wanted_from = static_cast<uint32_t>(late.list.size())};
  }
  const std::vector<TensorDeclaration> list = std::exchange(late.list, {});
  std::vector<TensorDeclaration> rest;
  absl::StatusOr<DeclarationAnswer> answer = AnswerByName(member, is_candidate, list, &rest);
  if (!answer.ok()) return answer;
  // An empty list of a worker of the roster is its part in a batch, as any other's.
  if (!is_candidate && (!rest.empty() || list.empty())) {
    late.is_in_batch = true;
    *part = {.number = part->number,
             .ranks = part->ranks,
             .digest = DigestOf(rest),
             .count = static_cast<uint32_t>(rest.size()),
             .tensors = rest};
    late.list = std::move(rest);
    return std::nullopt;
  }
  Latest& latest = latest_[member.node];
  latest.number = part->number;
  latest.digest = late.digest;
  latest.count = late.count;
  latest.answer = answer;
  return answer;
}

absl::Status Declarations::RepeatLate(const RosterMember& member, DeclarationPart* part,
                                      Late* late) const {
  const bool is_same = late->digest == part->digest && late->count == part->count;
  const auto batch = batches_.find(latest_.at(member.node).batch);
  // A batch that has failed has the same answer for any declaration.
  if (!is_same && batch != batches_.end() && batch->second.declared.failure().ok()) {
    return FailedPrecondition("%s declares other tensors before its last call was answered",
                              NameOf(member));
  }
  late->digest = part->digest;
  late->count = part->count;
  // The batch has its list, or gets it by GiveLateLists.
  *part = {.number = part->number,
           .ranks = part->ranks,
           .digest = DigestOf(late->list),
           .count = static_cast<uint32_t>(late->list.size())};
  return absl::OkStatus();
}

absl::Status Declarations::AddLate(const RosterMember& member, DeclarationPart* part,
                                   Late* late) const {
  // A part from 0 begins the list anew, as in a batch: the call before may be one that was given
  // up, or a scheduler's that is gone.
  const bool begins = part->first == 0;
  const bool is_same = late->digest == part->digest && late->count == part->count;
  const size_t known = begins ? 0 : late->list.size();
  if ((!begins && !is_same) || part->first != known || part->tensors.size() > part->count - known) {
    return InvalidArgument("%s: a part of %d tensors from %d of %d, where %d came before",
                           NameOf(member), part->tensors.size(), part->first, part->count,
                           late->list.size());
  }
  for (const TensorDeclaration& tensor : part->tensors)
    BDN_RETURN_IF_ERROR(CheckOne(member, tensor));
  if (begins) late->list.clear();
  late->digest = part->digest;
  late->count = part->count;
  std::move(part->tensors.begin(), part->tensors.end(), std::back_inserter(late->list));
  return absl::OkStatus();
}

bool Declarations::HasNeverHad(const RosterMember& member, uint32_t number) const {
  const auto late = late_.find(member.node);
  return late != late_.end() && late->second.lacks.contains(number);
}

bool Declarations::IsKnownTo(const RosterMember& member, uint32_t number) const {
  const auto done = done_with_.find(number);
  const auto is_done = [&](const RosterMember& one) {
    return done->second.by_rank[static_cast<size_t>(one.rank)];
  };
  if (done == done_with_.end() || !is_done(member)) return true;
  // Unless it has closed the tensor itself, or others have, it may have it now. Those who have
  // closed it are going to declare the name anew, and mean that.
  return std::ranges::all_of(roster_, [&](const RosterMember& one) {
    return !is_done(one) || HasNeverHad(one, number) || leaving_.contains(one);
  });
}

const Declarations::Tensor* Declarations::FindForLate(const RosterMember& member, bool is_candidate,
                                                      const std::string& name) const {
  const auto number = numbers_.find(name);
  if (number != numbers_.end()) {
    // A candidate has no part in what others are done with.
    const bool is_known = is_candidate || IsKnownTo(member, number->second);
    return is_known ? &tensors_.at(number->second) : nullptr;
  }
  const auto retired = retired_.find(name);
  return is_candidate && retired != retired_.end() ? &retired->second : nullptr;
}

absl::StatusOr<DeclarationAnswer> Declarations::AnswerByName(
    const RosterMember& member, bool is_candidate, const std::vector<TensorDeclaration>& list,
    std::vector<TensorDeclaration>* rest) {
  const std::string who =
      is_candidate ? absl::StrFormat(
                         "; this worker joins a job that runs, as %s, and declares what the others "
                         "have declared",
                         NameOf(member))
                   : "";
  std::unordered_set<std::string_view> names;
  std::vector<uint32_t> known;
  uint32_t version = 0;
  // Check first, then change.
  for (const TensorDeclaration& tensor : list) {
    if (!names.insert(tensor.name).second) {
      return InvalidArgument("tensor '%s': %s declares it twice", tensor.name, NameOf(member));
    }
    const Tensor* const found = FindForLate(member, is_candidate, tensor.name);
    if (found == nullptr) {
      if (is_candidate) {
        // It may do so in a moment, which tells this error from that of other facts.
        return NotFound("tensor '%s': the job has not declared it%s", tensor.name, who);
      }
      rest->push_back(tensor);
      continue;
    }
    const TensorDeclaration& before = *found->declaration;
    if (!(before == tensor)) {
      return InvalidArgument("tensor '%s': the job has declared %s, and %s now says %s%s",
                             tensor.name, DescribeDifference(before, tensor), NameOf(member),
                             DescribeDifference(tensor, before), who);
    }
    version = std::max(version, found->version);
    if (const auto number = numbers_.find(tensor.name); number != numbers_.end()) {
      known.push_back(number->second);
    }
  }
  Late& late = late_[member.node];
  for (const uint32_t number : known) {
    if (is_candidate) {
      late.has.insert(number);
      continue;
    }
    if (late.lacks.erase(number) == 0) continue;
    const auto done = done_with_.find(number);
    done->second.Remove(member);
    if (done->second.count == 0) done_with_.erase(done);
  }
  if (version == 0) return DeclarationAnswer();
  return DeclarationAnswer{.version = deltas_[version - 1]->version};
}

void Declarations::GiveLateLists(uint64_t number, DeclarationBatch* batch) {
  // Each list that is given is one that is wanted no more, so this ends.
  for (bool has_given = true; has_given;) {
    has_given = false;
    for (const auto& [node, late] : late_) {
      if (!batch->failure().ok()) return;
      if (!late.is_in_batch || latest_.at(node).batch != number ||
          !batch->WantedFrom(late.member).has_value()) {
        continue;
      }
      // It was compared with what the batch knows of it: it cannot be refused.
      (void)batch->Add(late.member, {.digest = DigestOf(late.list),
                                     .count = static_cast<uint32_t>(late.list.size()),
                                     .tensors = late.list});
      has_given = true;
    }
  }
}

uint64_t Declarations::NextOfAll(const RankGroup& ranks) const {
  uint64_t next = 0;
  for (const auto& [node, latest] : latest_) {
    const auto its = latest.next.find(ranks);
    if (its != latest.next.end()) next = std::max(next, its->second);
  }
  const uint64_t first = groups_.at(ranks) << 32;
  const uint64_t end = first + (uint64_t{1} << 32);
  for (auto batch = batches_.lower_bound(first); batch != batches_.lower_bound(end); ++batch) {
    const uint64_t n = batch->first - first;
    if (!HasEnded(batch->second)) return n;
    // Nobody may have been told yet that it has ended.
    next = std::max(next, n + 1);
  }
  return next;
}

void Declarations::Admit(const RosterMember& member) {
  for (const auto& [ranks, group] : groups_) {
    if (ranks.Has(member.rank)) latest_[member.node].next[ranks] = NextOfAll(ranks);
  }
  roster_.insert(member);
  shares_workers_ |= member.processes > 1;
  for (auto& [number, batch] : batches_) {
    if (HasEnded(batch) || !batch.ranks.Has(member.rank)) continue;
    batch.declared.Expect(member);
    batch.answered.Expect(member);
  }
  Late& late = late_[member.node];
  late.member = member;
  late.list = {};
  // When all others close what this worker's program has never had, nobody may wait for it.
  for (const auto& [number, tensor] : tensors_) {
    if (late.has.contains(number) || !RanksOf(number).Has(member.rank)) continue;
    late.lacks.insert(number);
    MarkDone(number, member);
  }
  late.has.clear();
}

}  // namespace bdn
