#include "scheduler/declaration_batch.h"

#include <iterator>

#include "common/base/status.h"

namespace bdn {

absl::Status DeclarationBatch::Add(const RosterMember& member, DeclarationPart part) {
  const auto [found, is_new] = said_.try_emplace(member);
  Said& said = found->second;
  if (is_new) {
    said.digest = std::move(part.digest);
    said.count = part.count;
  } else if (said.digest != part.digest || said.count != part.count) {
    return FailedPrecondition("%s declares other tensors before its last call was answered",
                              NameOf(member));
  }
  if (Wants(member)) {
    // A part from 0 may be a repetition after a lost answer, so it replaces what came before.
    const size_t known = part.first == 0 ? 0 : said.tensors.size();
    if (part.first != known || part.tensors.size() > said.count - known) {
      absl::Status status = InvalidArgument(
          "%s: a part of %d tensors from %d of %d, where %d came before", NameOf(member),
          part.tensors.size(), part.first, said.count, said.tensors.size());
      // Check first, then change: a member that was unknown is unknown again.
      if (is_new) said_.erase(found);
      return status;
    }
    if (part.first == 0) said.tensors.clear();
    std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(said.tensors));
    if (said.tensors.size() == said.count) OnList(member, &said);
  } else if (is_new) {
    arrived_.Arrive(member);
    if (has_list_) CompareDigest(member, said);
    AskNext();
  }
  return absl::OkStatus();
}

void DeclarationBatch::Remove(const RosterMember& member, const Roster& left) {
  arrived_.Remove(member);
  differing_.erase(member);
  if (asked_ == member) asked_.reset();
  if (member == first_ && !has_list_) {
    said_.erase(member);
    first_ = *left.begin();
    // Its digest has arrived, perhaps, but its list has not.
    arrived_.Withdraw(first_);
  } else if (member != first_) {
    said_.erase(member);  // the list of first_ stays: it is the catalogue's
  }
  AskNext();
}

bool DeclarationBatch::Wants(const RosterMember& member) const {
  return member == first_ ? !has_list_ : asked_ == member;
}

std::optional<uint32_t> DeclarationBatch::WantedFrom(const RosterMember& member) const {
  if (!Wants(member)) return std::nullopt;
  return static_cast<uint32_t>(said_.at(member).tensors.size());
}

void DeclarationBatch::OnList(const RosterMember& member, Said* said) {
  failure_ = check_(member, said->tensors);
  if (!failure_.ok()) return;
  if (member == first_) {
    has_list_ = true;
    // Digests that came before the first list had nothing to be compared with.
    for (const auto& [other, others] : said_) CompareDigest(other, others);
  } else {
    failure_ = CompareLists(member, *said);
    // The list served for the comparison only; one list in RAM is enough.
    said->tensors = {};
    differing_.erase(member);
    asked_.reset();
  }
  arrived_.Arrive(member);
  AskNext();
}

void DeclarationBatch::CompareDigest(const RosterMember& member, const Said& said) {
  const Said& first = said_.at(first_);
  if (said.digest != first.digest || said.count != first.count) differing_.insert(member);
}

void DeclarationBatch::AskNext() {
  if (asked_.has_value() || differing_.empty()) return;
  asked_ = *differing_.begin();
  // The member had arrived by its digest, and now has to send its list before the batch is full.
  arrived_.Withdraw(*asked_);
}

absl::Status DeclarationBatch::CompareLists(const RosterMember& member, const Said& said) const {
  return CompareDeclarations(said_.at(first_).tensors, NameOf(first_), said.tensors,
                             NameOf(member));
}

}  // namespace bdn
