#include "scheduler/declarations.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_set>
#include <utility>

#include "common/base/status.h"
#include "scheduler/membership_table.h"
#include "scheduler/placer.h"
#include "scheduler/planner.h"

namespace bdn {
namespace {

constexpr size_t kMaxTensors = size_t{1} << 20;

}  // namespace

Declarations::Declarations(const JobConfig& config)
    : config_(config),
      catalogue_(std::make_shared<Catalogue>()),
      placement_(std::make_shared<PlacementTable>()) {}

void Declarations::Begin(std::shared_ptr<const Membership> membership) {
  membership_ = std::move(membership);
  roster_ = RosterOf(*membership_);
  for (const NodeInfo& server : membership_->servers) installed_[server.id] = {};
}

absl::Status Declarations::Check(Rank rank, const std::vector<TensorDeclaration>& tensors) const {
  if (catalogue_->tensors.size() + tensors.size() > kMaxTensors) {
    return ResourceExhausted("more than %d tensors", kMaxTensors);
  }
  std::unordered_set<std::string> names;
  for (const TensorDeclaration& tensor : tensors) {
    BDN_RETURN_IF_ERROR(CheckDeclaration(tensor));
    if (!names.insert(tensor.name).second) {
      return InvalidArgument("tensor '%s': worker %d declares it twice", tensor.name, rank);
    }
    const auto known = tensor_index_.find(tensor.name);
    if (known == tensor_index_.end()) continue;
    const TensorDeclaration& before = catalogue_->tensors[known->second];
    if (!(before == tensor)) {
      return InvalidArgument("tensor '%s': all workers declared %s before, worker %d now says %s",
                             tensor.name, DescribeDifference(before, tensor), rank,
                             DescribeDifference(tensor, before));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Declarations::Declare(const RosterMember& member,
                                               std::vector<TensorDeclaration> tensors) {
  BDN_RETURN_IF_ERROR(Check(member.rank, tensors));
  const uint64_t number = next_batch_[member.node];
  Batch& batch = batches_.try_emplace(number, roster_).first->second;
  if (!batch.failure.ok()) return number;
  if (batch.declared.Has(member)) {
    if (batch.declared.Of(member) == tensors) return number;
    return FailedPrecondition("worker %d declares other tensors before its last call was answered",
                              member.rank);
  }
  batch.failure = batch.declared.Add(member, std::move(tensors));
  if (batch.failure.ok() && batch.declared.full()) batch.failure = Plan(&batch);
  return number;
}

absl::Status Declarations::Plan(Batch* batch) {
  auto grown = std::make_shared<Catalogue>(*catalogue_);
  for (const TensorDeclaration& tensor : batch->declared.tensors()) {
    if (tensor_index_.count(tensor.name) == 0) grown->tensors.push_back(tensor);
  }
  const size_t known = catalogue_->tensors.size();
  if (grown->tensors.size() > known) {
    BDN_ASSIGN_OR_RETURN(
        std::vector<KeyEntry> keys,
        PlanKeys(std::span(grown->tensors).subspan(known), static_cast<uint32_t>(known), config_));
    if (catalogue_->keys.size() + keys.size() > kMaxKeys) {
      return ResourceExhausted("the job needs more than %d keys", kMaxKeys);
    }
    std::move(keys.begin(), keys.end(), std::back_inserter(grown->keys));
    ++grown->version;
    for (size_t i = known; i < grown->tensors.size(); ++i) {
      tensor_index_[grown->tensors[i].name] = i;
    }
    placement_ =
        std::make_shared<const PlacementTable>(PlaceKeys(*membership_, *grown, *placement_));
    catalogue_ = std::move(grown);
  }
  batch->planned = true;
  batch->version = placement_->version();
  return absl::OkStatus();
}

PlacementVersion Declarations::InstalledEverywhere() const {
  PlacementVersion least = placement_->version();
  for (const auto& [server, version] : installed_) least = std::min(least, version);
  return least;
}

std::optional<absl::Status> Declarations::AnswerOf(uint64_t number) const {
  const Batch& batch = batches_.at(number);
  if (!batch.failure.ok()) return batch.failure;
  if (batch.planned && batch.version <= InstalledEverywhere()) return absl::OkStatus();
  return std::nullopt;
}

void Declarations::MarkAnswered(uint64_t number, const RosterMember& member) {
  const auto batch = batches_.find(number);
  next_batch_[member.node] = number + 1;
  batch->second.answered.Arrive(member);
  if (batch->second.answered.full()) batches_.erase(batch);
}

std::string Declarations::WaitedFor(uint64_t number) const {
  const Batch& batch = batches_.at(number);
  if (!batch.planned) {
    return absl::StrFormat("waiting for %s to declare the same tensors", batch.declared.Missing());
  }
  for (const NodeInfo& server : membership_->servers) {
    if (installed_.at(server.id) < batch.version) {
      return absl::StrFormat("waiting for %s to install catalogue %d",
                             MembershipTable::Describe(server), batch.version.catalogue);
    }
  }
  return "waiting for nobody";
}

absl::Status Declarations::Acknowledge(NodeId server, PlacementVersion version) {
  const auto found = installed_.find(server);
  if (found == installed_.end()) {
    return InvalidArgument("node %d is no server and owns no keys", server);
  }
  const PlacementVersion latest = placement_->version();
  if (version.epoch > latest.epoch || version.catalogue > latest.catalogue) {
    return InvalidArgument(
        "the placement of catalogue %d at epoch %d does not exist yet: the latest is of catalogue "
        "%d at epoch %d",
        version.catalogue, version.epoch, latest.catalogue, latest.epoch);
  }
  found->second = std::max(found->second, version);
  return absl::OkStatus();
}

void Declarations::AbortWaitsFor(const Roster& leaving) {
  for (auto& [number, batch] : batches_) {
    if (batch.planned || !batch.failure.ok()) continue;
    batch.failure = batch.declared.CheckMayFill(leaving);
  }
}

}  // namespace bdn
