#include "scheduler/declaration_batch.h"

#include <iterator>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"

namespace bdn {
namespace {

absl::Status Undeclared(Rank lacks, Rank has, const std::string& name) {
  return InvalidArgument("tensor '%s': worker %d declared it, worker %d did not", name, has, lacks);
}

}  // namespace

std::string DescribeDifference(const TensorDeclaration& mine, const TensorDeclaration& other) {
  std::string text;
  const auto say = [&](bool differs, const std::string& what) {
    if (!differs) return;
    text += (text.empty() ? "" : ", ") + what;
  };
  say(mine.dtype != other.dtype, absl::StrFormat("dtype=%s", DTypeName(mine.dtype)));
  say(mine.elements != other.elements, absl::StrFormat("elements=%d", mine.elements));
  say(mine.kind != other.kind,
      absl::StrFormat("kind=%s", mine.kind == KeyKind::kDense ? "dense" : "broadcast"));
  say(mine.push_spec != other.push_spec, "push=" + mine.push_spec.str());
  say(mine.pull_spec != other.pull_spec, "pull=" + mine.pull_spec.str());
  say(mine.rule != other.rule, "rule=" + mine.rule.str());
  say(mine.warmup_steps != other.warmup_steps, absl::StrFormat("warmup=%d", mine.warmup_steps));
  say(mine.momentum != other.momentum, absl::StrFormat("momentum=%.9g", mine.momentum));
  say(mine.group != other.group, absl::StrFormat("group=%d", mine.group));
  say(mine.fuse != other.fuse, absl::StrFormat("fuse=%s", mine.fuse ? "true" : "false"));
  return text;
}

absl::Status DeclarationBatch::Add(const RosterMember& member, DeclarationPart part) {
  const auto [found, is_new] = said_.try_emplace(member);
  Said& said = found->second;
  if (is_new) {
    said.digest = std::move(part.digest);
    said.count = part.count;
  } else if (said.digest != part.digest || said.count != part.count) {
    return FailedPrecondition("worker %d declares other tensors before its last call was answered",
                              member.rank);
  }
  if (Wants(member)) {
    const size_t known = part.first == 0 ? 0 : said.tensors.size();
    if (part.first != known || part.tensors.size() > said.count - known) {
      absl::Status status = InvalidArgument(
          "worker %d: a part of %d tensors from %d of %d, where %d came before", member.rank,
          part.tensors.size(), part.first, said.count, said.tensors.size());
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

bool DeclarationBatch::Wants(const RosterMember& member) const {
  return member == first_ ? !has_list_ : asked_ == member;
}

std::optional<uint32_t> DeclarationBatch::WantedFrom(const RosterMember& member) const {
  if (!Wants(member)) return std::nullopt;
  return static_cast<uint32_t>(said_.at(member).tensors.size());
}

void DeclarationBatch::OnList(const RosterMember& member, Said* said) {
  failure_ = check_(member.rank, said->tensors);
  if (!failure_.ok()) return;
  if (member == first_) {
    has_list_ = true;
    for (const auto& [other, others] : said_) CompareDigest(other, others);
  } else {
    failure_ = CompareLists(member, *said);
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
  arrived_.Withdraw(*asked_);
}

absl::Status DeclarationBatch::CompareLists(const RosterMember& member, const Said& said) const {
  const std::vector<TensorDeclaration>& first = said_.at(first_).tensors;
  absl::flat_hash_map<std::string_view, const TensorDeclaration*> known;
  known.reserve(first.size());
  for (const TensorDeclaration& tensor : first) known.emplace(tensor.name, &tensor);
  for (const TensorDeclaration& tensor : said.tensors) {
    const auto found = known.find(tensor.name);
    if (found == known.end()) return Undeclared(first_.rank, member.rank, tensor.name);
    const TensorDeclaration& other = *found->second;
    if (!(other == tensor)) {
      return InvalidArgument("tensor '%s': worker %d says %s, worker %d says %s", tensor.name,
                             first_.rank, DescribeDifference(other, tensor), member.rank,
                             DescribeDifference(tensor, other));
    }
    known.erase(found);
  }
  for (const TensorDeclaration& tensor : first) {
    if (known.contains(tensor.name)) return Undeclared(member.rank, first_.rank, tensor.name);
  }
  return absl::OkStatus();
}

}  // namespace bdn
