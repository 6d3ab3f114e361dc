#include "scheduler/declaration_batch.h"

#include <unordered_map>

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
  say(mine.push_spec != other.push_spec, "push=" + mine.push_spec);
  say(mine.pull_spec != other.pull_spec, "pull=" + mine.pull_spec);
  say(mine.rule != other.rule, "rule=" + mine.rule);
  say(mine.warmup_steps != other.warmup_steps, absl::StrFormat("warmup=%d", mine.warmup_steps));
  say(mine.momentum != other.momentum, absl::StrFormat("momentum=%.9g", mine.momentum));
  say(mine.group != other.group, absl::StrFormat("group=%d", mine.group));
  say(mine.fuse != other.fuse, absl::StrFormat("fuse=%s", mine.fuse ? "true" : "false"));
  return text;
}

absl::Status DeclarationBatch::Add(const RosterMember& member,
                                   std::vector<TensorDeclaration> tensors) {
  if (!lists_.empty()) {
    const auto& [other_member, first] = *lists_.begin();
    const Rank first_rank = other_member.rank;
    std::unordered_map<std::string, const TensorDeclaration*> known;
    for (const TensorDeclaration& tensor : first) known.emplace(tensor.name, &tensor);
    for (const TensorDeclaration& tensor : tensors) {
      const auto found = known.find(tensor.name);
      if (found == known.end()) return Undeclared(first_rank, member.rank, tensor.name);
      const TensorDeclaration& other = *found->second;
      if (!(other == tensor)) {
        return InvalidArgument("tensor '%s': worker %d says %s, worker %d says %s", tensor.name,
                               first_rank, DescribeDifference(other, tensor), member.rank,
                               DescribeDifference(tensor, other));
      }
      known.erase(found);
    }
    for (const TensorDeclaration& tensor : first) {
      if (known.count(tensor.name) > 0) return Undeclared(member.rank, first_rank, tensor.name);
    }
  }
  lists_.emplace(member, std::move(tensors));
  arrived_.Arrive(member);
  return absl::OkStatus();
}

}  // namespace bdn
