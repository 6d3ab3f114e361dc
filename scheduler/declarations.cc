#include "scheduler/declarations.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "common/cluster/server_bytes.h"
#include "scheduler/membership_table.h"
#include "scheduler/planner.h"

namespace bdn {
namespace {

// A bound above every setting, with which no sum of bytes overflows.
constexpr uint64_t kMostBytes = uint64_t{1} << 60;
// A job of more groups of ranks than this is a mistake: a group is there for many tensors.
constexpr size_t kMostGroups = size_t{1} << 14;

}  // namespace

Declarations::Declarations(const JobOptions& options)
    : config_(options.config),
      limits_(options.limits),
      may_join_later_(options.config.MayHaveVacantRanks()) {}

void Declarations::Begin(std::shared_ptr<const Membership> membership) {
  membership_ = std::move(membership);
  roster_ = RosterOf(*membership_);
  num_ranks_ = static_cast<size_t>(config_.num_workers);
  shares_workers_ =
      std::ranges::any_of(roster_, [](const RosterMember& one) { return one.processes > 1; });
  version_.epoch = membership_->epoch;
  placer_.emplace(membership_->servers);
  for (const NodeInfo& server : membership_->servers) {
    installed_[server.id] = {};
    installed_versions_.insert(PlacementVersion());
  }
}

void Declarations::OnMembership(std::shared_ptr<const Membership> membership) {
  membership_ = std::move(membership);
  std::map<NodeId, PlacementVersion> before;
  before.swap(installed_);
  installed_versions_.clear();
  for (const NodeInfo& server : membership_->servers) {
    const auto known = before.find(server.id);
    const PlacementVersion version = known == before.end() ? PlacementVersion() : known->second;
    installed_[server.id] = version;
    installed_versions_.insert(version);
  }
  CheckPlanned();
}

std::optional<PlacementVersion> Declarations::InstalledEverywhere() const {
  if (installed_versions_.empty()) return std::nullopt;
  return *installed_versions_.begin();
}

void Declarations::CheckPlanned() {
  for (const auto& [number, batch] : batches_) {
    if (batch.version.has_value()) changed_.insert(number);
  }
}

void Declarations::VisitAmong(const RankGroup& ranks,
                              const std::function<bool(const RosterMember&)>& visit) const {
  if (ranks.is_all()) {
    (void)std::ranges::all_of(roster_, visit);
    return;
  }
  for (const Rank rank : ranks.ranks()) {
    const auto member = roster_.lower_bound({.rank = rank, .node = 0});
    if (member != roster_.end() && member->rank == rank && !visit(*member)) return;
  }
}

Roster Declarations::RosterAmong(const RankGroup& ranks) const {
  if (ranks.is_all()) return roster_;
  Roster among;
  VisitAmong(ranks, [&](const RosterMember& member) {
    among.insert(among.end(), member);
    return true;
  });
  return among;
}

size_t Declarations::CountAmong(const RankGroup& ranks) const {
  if (ranks.is_all()) return roster_.size();
  size_t count = 0;
  VisitAmong(ranks, [&](const RosterMember&) {
    ++count;
    return true;
  });
  return count;
}

uint64_t Declarations::BatchNumber(const RankGroup& ranks, uint64_t n) {
  return groups_.try_emplace(ranks, groups_.size()).first->second << 32 | n;
}

absl::Status Declarations::CheckRanks(const RosterMember& member, const RankGroup& ranks) const {
  if (ranks.is_all()) return absl::OkStatus();
  if (static_cast<size_t>(ranks.last()) >= num_ranks_) {
    return InvalidArgument("%s declares tensors among %s, and the job has %d workers",
                           NameOf(member), ranks.ToString(), num_ranks_);
  }
  if (!ranks.Has(member.rank)) {
    return InvalidArgument("%s declares tensors among %s, and is none of these", NameOf(member),
                           ranks.ToString());
  }
  if (groups_.size() >= kMostGroups && !groups_.contains(ranks)) {
    return ResourceExhausted("tensors among %s: the job has tensors of %d groups already",
                             ranks.ToString(), groups_.size());
  }
  if (shares_workers_) {
    return absl::UnimplementedError(
        "tensors of a group of ranks need one process a worker, and a host's daemon takes part in "
        "this job");
  }
  return absl::OkStatus();
}

absl::Status Declarations::Check(const RosterMember& member,
                                 const std::vector<TensorDeclaration>& tensors) const {
  std::vector<const TensorDeclaration*> fresh;
  std::vector<const TensorDeclaration*> replaced;
  std::unordered_set<std::string_view> names;
  for (const TensorDeclaration& tensor : tensors) {
    BDN_RETURN_IF_ERROR(CheckOne(member, tensor));
    if (!names.insert(tensor.name).second) {
      return InvalidArgument("tensor '%s': %s declares it twice", tensor.name, NameOf(member));
    }
    const auto known = numbers_.find(tensor.name);
    if (known == numbers_.end()) {
      fresh.push_back(&tensor);
      continue;
    }
    const TensorDeclaration& before = *tensors_.at(known->second).declaration;
    // The tensor will be retired by the time that this batch is planned.
    if (done_with_.contains(known->second)) {
      fresh.push_back(&tensor);
      replaced.push_back(&before);
    } else if (!(before == tensor)) {
      return InvalidArgument("tensor '%s': %s declared %s before, %s now says %s", tensor.name,
                             before.ranks.is_all() ? "all workers" : before.ranks.ToString(),
                             DescribeDifference(before, tensor), NameOf(member),
                             DescribeDifference(tensor, before));
    }
  }
  return CheckRoom(fresh, replaced);
}

absl::Status Declarations::CheckOne(const RosterMember& member,
                                    const TensorDeclaration& tensor) const {
  BDN_RETURN_IF_ERROR(CheckDeclaration(tensor));
  BDN_RETURN_IF_ERROR(
      Annotate(CheckRanks(member, tensor.ranks), absl::StrFormat("tensor '%s'", tensor.name)));
  BDN_RETURN_IF_ERROR(CheckText(limits_, "tensor", tensor.name));
  for (const SharedText* text : {&tensor.push_spec, &tensor.pull_spec, &tensor.rule}) {
    BDN_RETURN_IF_ERROR(Annotate(CheckText(limits_, "codec spec or rule", *text),
                                 absl::StrFormat("tensor '%s'", tensor.name)));
  }
  return absl::OkStatus();
}

absl::Status Declarations::CheckCount(const RosterMember& member,
                                      const DeclarationPart& part) const {
  if (part.count <= limits_.max_tensors) return absl::OkStatus();
  return ResourceExhausted(
      "%s declares %d tensors, more than max-tensors of its scheduler, "
      "which is %d",
      NameOf(member), part.count, limits_.max_tensors);
}

absl::Status Declarations::CheckRoom(const std::vector<const TensorDeclaration*>& fresh,
                                     const std::vector<const TensorDeclaration*>& replaced) const {
  const uint64_t tensors = totals_.tensors + fresh.size() - replaced.size();
  if (tensors > limits_.max_tensors) {
    return ResourceExhausted(
        "the job would have %d tensors, more than max-tensors of its scheduler, "
        "which is %d",
        tensors, limits_.max_tensors);
  }
  const uint64_t most = std::min(limits_.max_job_bytes, kMostBytes);
  // A job that has lost all its servers gets at least one, which is to hold everything.
  const uint64_t servers = std::max<uint64_t>(membership_->servers.size(), 1);
  uint64_t bytes = totals_.tensor_bytes;
  uint64_t server_bytes = totals_.server_bytes;
  for (const TensorDeclaration* tensor : replaced) {
    bytes -= TensorBytes(*tensor);
    server_bytes -= ServerBytes(*tensor);
  }
  for (const TensorDeclaration* tensor : fresh) {
    bytes += TensorBytes(*tensor);
    server_bytes += ServerBytes(*tensor);
    if (bytes <= most) continue;
    return ResourceExhausted(
        "with tensor '%s' the job declares %d bytes, which take about %d at each of %d server(s): "
        "more than max-job-bytes of its scheduler, which is %d",
        tensor->name, bytes, server_bytes / servers, servers, most);
  }
  return absl::OkStatus();
}

Declarations::Batch* Declarations::BatchOf(const RosterMember& member, const RankGroup& ranks,
                                           uint64_t number) {
  if (const auto known = batches_.find(number); known != batches_.end()) return &known->second;
  const auto check = [this, ranks](const RosterMember& of,
                                   const std::vector<TensorDeclaration>& list) -> absl::Status {
    for (const TensorDeclaration& tensor : list) {
      if (tensor.ranks == ranks) continue;
      return InvalidArgument("tensor '%s': %s declares it among %s, in a declaration among %s",
                             tensor.name, NameOf(of), tensor.ranks.ToString(), ranks.ToString());
    }
    return Check(of, list);
  };
  const auto [found, is_new] = batches_.try_emplace(number, ranks, RosterAmong(ranks), check);
  // A worker that was leaving before the batch began will never declare in it.
  for (const RosterMember& other : leaving_) {
    if (other != member) FailWithout(number, &found->second, other);
  }
  return &found->second;
}

bool Declarations::IsRepeated(const RosterMember& member, const DeclarationPart& part) const {
  const auto found = latest_.find(member.node);
  if (part.number == 0 || found == latest_.end()) return false;
  const Latest& latest = found->second;
  return part.number == latest.number && part.digest == latest.digest && part.count == latest.count;
}

std::optional<absl::StatusOr<DeclarationAnswer>> Declarations::LastAnswerOf(
    const RosterMember& member) const {
  return latest_.at(member.node).answer;
}

absl::StatusOr<uint64_t> Declarations::Declare(const RosterMember& member, DeclarationPart part) {
  BDN_RETURN_IF_ERROR(CheckCount(member, part));
  BDN_RETURN_IF_ERROR(CheckRanks(member, part.ranks));
  Latest& latest = latest_[member.node];
  const RankGroup ranks = part.ranks;
  const uint64_t number = BatchNumber(ranks, latest.next[ranks]);
  // An open batch is not refused: the worker may be in it already.
  if (leaving_.count(member) > 0 && batches_.count(number) == 0) {
    return Aborted("declaring tensors: %s is leaving the job", NameOf(member));
  }
  Batch& batch = *BatchOf(member, ranks, number);
  DeclarationBatch& declared = batch.declared;
  // A late worker repeats its whole list, of which `part` may be the rest.
  const auto late = late_.find(member.node);
  const bool is_late = late != late_.end();
  // The call is remembered only once it has changed something, so that an error leaves no trace.
  const auto remember = [&latest, batch = number, number = part.number,
                         digest = is_late ? late->second.digest : part.digest,
                         count = is_late ? late->second.count : part.count] {
    latest.batch = batch;
    latest.number = number;
    latest.digest = digest;
    latest.count = count;
    latest.answer.reset();
  };
  // The batch has failed: the answer is known, and nothing is added.
  if (!declared.failure().ok()) {
    remember();
    return number;
  }
  const std::optional<RosterMember> asked = declared.asked();
  BDN_RETURN_IF_ERROR(declared.Add(member, std::move(part)));
  remember();
  GiveLateLists(number, &declared);
  // The member that is asked now may be leaving, and would never send its list.
  if (declared.asked() != asked && declared.asked().has_value() &&
      leaving_.count(*declared.asked()) > 0) {
    FailWithout(number, &batch, *declared.asked());
  }
  if (declared.failure().ok()) {
    PlanIfFull(&batch);
    if (!HasEnded(batch)) FailCircle(number);
  } else {
    declared.Fail(WithAdvice(declared.failure()));
  }
  if (HasEnded(batch) || declared.asked() != asked) changed_.insert(number);
  return number;
}

std::optional<uint64_t> Declarations::WaitsElsewhere(const RosterMember& member,
                                                     uint64_t at) const {
  const auto latest = latest_.find(member.node);
  if (latest == latest_.end() || latest->second.answer.has_value()) return std::nullopt;
  const auto other = batches_.find(latest->second.batch);
  if (other == batches_.end() || other->first == at || HasEnded(other->second) ||
      !other->second.declared.Has(member)) {
    return std::nullopt;
  }
  return other->first;
}

void Declarations::FailCircle(uint64_t number) {
  if (groups_.size() == 1) return;
  // A worker declares once at a time, so a batch waits for those of its missing members that have
  // declared elsewhere until the batches of these have ended.
  const Roster& missing = batches_.at(number).declared.missing();
  const auto waits = [&](const RosterMember& one) {
    return WaitsElsewhere(one, number).has_value();
  };
  if (std::ranges::none_of(missing, waits)) return;
  // Depth first, from this batch on: the batches on the way to here, and the members that lead from
  // each to the next.
  std::vector<std::pair<uint64_t, RosterMember>> way;
  std::set<uint64_t> seen;
  const std::function<bool(uint64_t)> comes_back = [&](uint64_t at) {
    if (!seen.insert(at).second) return false;
    for (const RosterMember& member : batches_.at(at).declared.missing()) {
      const std::optional<uint64_t> other = WaitsElsewhere(member, at);
      if (!other.has_value()) continue;
      way.emplace_back(at, member);
      if (*other == number || comes_back(*other)) return true;
      way.pop_back();
    }
    return false;
  };
  if (!comes_back(number)) return;
  std::string text;
  for (const auto& [at, member] : way) {
    absl::StrAppendFormat(&text, "%s%s wait for %s", text.empty() ? "" : ", ",
                          batches_.at(at).ranks.ToString(), NameOf(member));
  }
  for (const auto& [at, member] : way) {
    Batch& batch = batches_.at(at);
    batch.declared.Fail(InvalidArgument(
        "declaring tensors in a circle: %s: all ranks must declare the tensors of their groups in "
        "the same order",
        text));
    changed_.insert(at);
  }
}

void Declarations::PlanIfFull(Batch* batch) {
  DeclarationBatch& declared = batch->declared;
  if (!declared.failure().ok() || !declared.full() || batch->version.has_value()) return;
  if (absl::Status status = Plan(batch); !status.ok()) declared.Fail(std::move(status));
}

// ---- Retiring

void Declarations::Done::Add(const RosterMember& member) {
  std::vector<bool>::reference is_done = by_rank.at(static_cast<size_t>(member.rank));
  if (!is_done) ++count;
  is_done = true;
}

void Declarations::Done::Remove(const RosterMember& member) {
  std::vector<bool>::reference is_done = by_rank.at(static_cast<size_t>(member.rank));
  if (is_done) --count;
  is_done = false;
}

absl::Status Declarations::WithAdvice(absl::Status failure) const {
  for (const auto& [number, done] : done_with_) {
    const std::string& name = tensors_.at(number).declaration->name;
    if (!absl::StartsWith(failure.message(), "tensor '" + name + "':")) continue;
    Roster has, lacks;
    VisitAmong(RanksOf(number), [&, &done = done, number = number](const RosterMember& member) {
      if (HasNeverHad(member, number)) return true;
      (done.by_rank[static_cast<size_t>(member.rank)] ? has : lacks).insert(member);
      return true;
    });
    if (has.empty()) continue;
    return WithAdviceToClose(failure, name, NamesOf(has), NamesOf(lacks));
  }
  return failure;
}

void Declarations::MarkDone(uint32_t number, const RosterMember& member) {
  const auto [found, is_first] = done_with_.try_emplace(number);
  Done& done = found->second;
  if (is_first) {
    // All workers that are leaving are done with every tensor.
    done.by_rank.resize(num_ranks_);
    for (const RosterMember& gone : leaving_) {
      if (RanksOf(number).Has(gone.rank)) done.Add(gone);
    }
  }
  done.Add(member);
}

bool Declarations::RetiresAny(const RosterMember& member,
                              const std::vector<uint32_t>& tensors) const {
  return std::ranges::any_of(tensors, [&](uint32_t number) {
    if (!tensors_.contains(number)) return false;
    const auto done = done_with_.find(number);
    return done == done_with_.end() || !done->second.by_rank[static_cast<size_t>(member.rank)];
  });
}

absl::Status Declarations::Retire(const RosterMember& member,
                                  const std::vector<uint32_t>& tensors) {
  // Check first, then change: one wrong number retires nothing.
  for (const uint32_t number : tensors) {
    if (number >= next_tensor_) {
      return InvalidArgument("%s retires tensor %d, of %d", NameOf(member), number, next_tensor_);
    }
    if (const auto known = tensors_.find(number);
        known != tensors_.end() && !RanksOf(number).Has(member.rank)) {
      return InvalidArgument("%s retires tensor '%s', which only %s exchange", NameOf(member),
                             known->second.declaration->name, RanksOf(number).ToString());
    }
  }
  for (const uint32_t number : tensors) {
    if (tensors_.contains(number)) MarkDone(number, member);
  }
  RemoveRetired(tensors);
  return absl::OkStatus();
}

// Retires the old tensors whose names all workers declare anew. Workers declare the tensors that
// they do not have, so where some are done with a tensor and all declare its name, the others have
// never read it: their declaration was given up.
void Declarations::RetireWhatIsDeclaredAnew(const std::vector<TensorDeclaration>& tensors) {
  std::vector<uint32_t> replaced;
  for (const TensorDeclaration& tensor : tensors) {
    const auto known = numbers_.find(tensor.name);
    if (known == numbers_.end() || !done_with_.contains(known->second) ||
        RanksOf(known->second) != tensor.ranks) {
      continue;
    }
    replaced.push_back(known->second);
    VisitAmong(tensor.ranks, [&](const RosterMember& member) {
      MarkDone(known->second, member);
      return true;
    });
    // Nobody may take it up any more.
    for (auto& [node, late] : late_) late.lacks.erase(known->second);
    // The workers that gave up have yet to read that version, so its delta is never emptied.
    ++tensors_left_[tensors_.at(known->second).version - 1];
  }
  RemoveRetired(replaced);
}

void Declarations::RemoveRetired(const std::vector<uint32_t>& tensors) {
  std::map<uint32_t, std::set<uint32_t>> gone;  // by the version that added them
  for (const uint32_t number : tensors) {
    const auto done = done_with_.find(number);
    if (done == done_with_.end()) continue;  // named more than once, or retired long ago
    if (done->second.count < CountAmong(RanksOf(number))) continue;
    // Newcomers that lack it may still take it up when all that had it are lost or leave.
    bool is_closed = false;
    VisitAmong(RanksOf(number), [&](const RosterMember& member) {
      is_closed = !leaving_.contains(member) && !HasNeverHad(member, number);
      return !is_closed;
    });
    if (!is_closed && !late_.empty()) continue;
    done_with_.erase(done);
    const auto tensor = tensors_.find(number);
    gone[tensor->second.version].insert(number);
    --totals_.tensors;
    totals_.tensor_bytes -= TensorBytes(*tensor->second.declaration);
    totals_.server_bytes -= ServerBytes(*tensor->second.declaration);
    numbers_.erase(tensor->second.declaration->name);
    if (may_join_later_) retired_[tensor->second.declaration->name] = tensor->second;
    tensors_.erase(tensor);
  }
  auto news = std::make_shared<CatalogueDelta>();
  for (const auto& [version, numbers] : gone) {
    const CatalogueDelta& delta = *deltas_[version - 1];
    // A fused key is retired with the last of its tensors.
    for (size_t i = 0; i < delta.keys.size(); ++i) {
      const KeySegments& segments = delta.keys[i].segments;
      const auto is_now = [&numbers = numbers](const KeySegment& one) {
        return numbers.contains(one.tensor);
      };
      const auto is_left = [&](const KeySegment& one) { return tensors_.contains(one.tensor); };
      if (std::none_of(segments.begin(), segments.end(), is_now) ||
          std::any_of(segments.begin(), segments.end(), is_left)) {
        continue;
      }
      news->retired.push_back(delta.keys[i].key);
      placer_->Remove(delta.keys[i], delta.owners[i]);
      --totals_.keys;
    }
    tensors_left_[version - 1] -= numbers.size();
    // A worker that joins later reads all versions.
    if (tensors_left_[version - 1] > 0 || may_join_later_) continue;
    // A version stays in the list, so that versions keep their indices; only its content is freed.
    auto empty = std::make_shared<CatalogueDelta>();
    empty->version = delta.version;
    empty->first_tensor = delta.first_tensor;
    deltas_[version - 1] = std::move(empty);
  }
  if (!news->retired.empty()) Publish(std::move(news));
}

void Declarations::Publish(std::shared_ptr<CatalogueDelta> delta) {
  delta->version = {membership_->epoch, version_.catalogue + 1};
  delta->first_tensor = next_tensor_;
  next_tensor_ += static_cast<uint32_t>(delta->tensors.size());
  version_ = delta->version;
  tensors_left_.push_back(delta->tensors.size());
  deltas_.push_back(std::move(delta));
}

// ---- Planning

absl::Status Declarations::Plan(Batch* batch) {
  auto delta = std::make_shared<CatalogueDelta>();
  std::vector<TensorDeclaration> declared = batch->declared.TakeTensors();
  RetireWhatIsDeclaredAnew(declared);
  // Tensors that are declared already keep their keys; only new names are planned.
  for (TensorDeclaration& tensor : declared) {
    const auto known = numbers_.find(tensor.name);
    if (known == numbers_.end()) {
      delta->tensors.push_back(std::move(tensor));
    } else if (RanksOf(known->second) != tensor.ranks) {
      // They were declared after the list of this batch was checked.
      return InvalidArgument(
          "tensor '%s': %s have declared it, and now %s do: a name is of one "
          "group only",
          tensor.name, RanksOf(known->second).ToString(), tensor.ranks.ToString());
    }
  }
  if (!delta->tensors.empty()) {
    BDN_ASSIGN_OR_RETURN(delta->keys, PlanKeys(delta->tensors, next_tensor_, config_));
    if (totals_.keys + delta->keys.size() > kMaxKeys) {
      return ResourceExhausted("the job needs more than %d keys", kMaxKeys);
    }
    delta->owners = placer_->Place(delta->keys);
    // The names that numbers_ views lie in the delta, which deltas_ keeps.
    for (size_t i = 0; i < delta->tensors.size(); ++i) {
      const TensorDeclaration& tensor = delta->tensors[i];
      const auto number = static_cast<uint32_t>(next_tensor_ + i);
      tensors_[number] = {&tensor, version_.catalogue + 1};
      numbers_[tensor.name] = number;
      totals_.tensor_bytes += TensorBytes(tensor);
      totals_.server_bytes += ServerBytes(tensor);
    }
    totals_.tensors += delta->tensors.size();
    totals_.keys += delta->keys.size();
    Publish(std::move(delta));
  }
  batch->version = version_;
  return absl::OkStatus();
}

std::optional<absl::StatusOr<DeclarationAnswer>> Declarations::AnswerOf(
    uint64_t number, const RosterMember& member) const {
  const auto found = batches_.find(number);
  // A batch goes once all know how it ended, among whom those count that are leaving. A call that
  // such a worker has made besides may come after that.
  if (found == batches_.end()) {
    return Aborted("declaring tensors: %s is leaving the job", NameOf(member));
  }
  const Batch& batch = found->second;
  if (!batch.declared.failure().ok()) return batch.declared.failure();
  if (batch.version.has_value()) {
    const std::optional<PlacementVersion> installed = InstalledEverywhere();
    if (!installed.has_value() || batch.version->catalogue > installed->catalogue) {
      return std::nullopt;
    }
    return DeclarationAnswer{.version = *batch.version};
  }
  const std::optional<uint32_t> wanted = batch.declared.WantedFrom(member);
  if (!wanted.has_value()) return std::nullopt;
  return DeclarationAnswer{.wanted_from = wanted};
}

void Declarations::MarkAnswered(uint64_t number, const RosterMember& member) {
  const auto batch = batches_.find(number);
  Latest& latest = latest_[member.node];
  // The number is that of the member's last declaration, whose group its batch has.
  if (batch != batches_.end()) {
    latest.next[batch->second.ranks] = (number & 0xffffffff) + 1;
  }
  // Kept for a repetition of the call, whose answer may be lost on the way.
  latest.answer = AnswerOf(number, member);
  if (const auto late = late_.find(member.node); late != late_.end()) {
    late->second.is_in_batch = false;
    late->second.list = {};
  }
  if (batch == batches_.end()) return;
  batch->second.answered.Arrive(member);
  if (batch->second.answered.full()) batches_.erase(batch);
}

std::string Declarations::WaitedFor(uint64_t number) const {
  const Batch& batch = batches_.at(number);
  if (!batch.version.has_value()) {
    return absl::StrFormat("waiting for %s to declare the same tensors%s", batch.declared.Missing(),
                           batch.ranks.is_all() ? "" : " among " + batch.ranks.ToString());
  }
  if (membership_->servers.empty()) return "waiting for a server to join, because all are lost";
  for (const NodeInfo& server : membership_->servers) {
    if (installed_.at(server.id).catalogue < batch.version->catalogue) {
      return absl::StrFormat("waiting for %s to install catalogue %d",
                             MembershipTable::Describe(server), batch.version->catalogue);
    }
  }
  return "waiting for nobody";
}

absl::Status Declarations::CheckAcknowledges(NodeId server, PlacementVersion version) const {
  if (!installed_.contains(server)) {
    return InvalidArgument("node %d is no server and owns no keys", server);
  }
  if (version.epoch > version_.epoch || version.catalogue > version_.catalogue) {
    return InvalidArgument(
        "the placement of catalogue %d at epoch %d does not exist yet: the latest is of catalogue "
        "%d at epoch %d",
        version.catalogue, version.epoch, version_.catalogue, version_.epoch);
  }
  return absl::OkStatus();
}

bool Declarations::IsAcknowledged(NodeId server, PlacementVersion version) const {
  const auto found = installed_.find(server);
  return found != installed_.end() && version <= found->second;
}

absl::Status Declarations::Acknowledge(NodeId server, PlacementVersion version) {
  BDN_RETURN_IF_ERROR(CheckAcknowledges(server, version));
  const auto found = installed_.find(server);
  if (version <= found->second) return absl::OkStatus();
  const std::optional<PlacementVersion> before = InstalledEverywhere();
  installed_versions_.erase(installed_versions_.find(found->second));
  installed_versions_.insert(version);
  found->second = version;
  // Only the slowest server's progress can end a batch.
  if (InstalledEverywhere() != before) CheckPlanned();
  return absl::OkStatus();
}

void Declarations::OnLeaving(const RosterMember& member) {
  leaving_.insert(member);
  for (auto next = batches_.begin(); next != batches_.end();) {
    const auto batch = next++;
    FailWithout(batch->first, &batch->second, member);
    if (batch->second.answered.full()) batches_.erase(batch);
  }
  std::vector<uint32_t> retired;
  for (auto& [number, done] : done_with_) {
    if (!RanksOf(number).Has(member.rank)) continue;
    done.Add(member);
    retired.push_back(number);
  }
  RemoveRetired(retired);
}

void Declarations::OnLost(const RosterMember& member) {
  roster_.erase(member);
  leaving_.erase(member);
  latest_.erase(member.node);
  late_.erase(member.node);
  for (auto next = batches_.begin(); next != batches_.end();) {
    const auto found = next++;
    Batch& batch = found->second;
    if (!batch.ranks.Has(member.rank)) continue;
    const Roster left = RosterAmong(batch.ranks);
    if (left.empty()) {
      changed_.erase(found->first);
      batches_.erase(found);
      continue;
    }
    batch.declared.Remove(member, left);
    batch.answered.Remove(member);
    GiveLateLists(found->first, &batch.declared);
    PlanIfFull(&batch);
    // Whoever is asked for a list now hears of it, too.
    changed_.insert(found->first);
    if (batch.answered.full()) {
      changed_.erase(found->first);
      batches_.erase(found);
    }
  }
  std::vector<uint32_t> retired;
  for (auto& [number, done] : done_with_) {
    if (!RanksOf(number).Has(member.rank)) continue;
    done.Remove(member);
    retired.push_back(number);
  }
  RemoveRetired(retired);
}

// Fails the batch if it still needs `member`, which is leaving, and will neither declare nor ask
// how the batch ended.
void Declarations::FailWithout(uint64_t number, Batch* batch, const RosterMember& member) {
  if (batch->version.has_value() || batch->declared.Has(member) ||
      !batch->declared.Expects(member)) {
    return;
  }
  batch->answered.Arrive(member);
  if (!batch->declared.failure().ok()) return;
  batch->declared.Fail(Aborted("declaring tensors: %s is leaving the job instead", NameOf(member)));
  changed_.insert(number);
}

Placer::Load Declarations::LoadOf(NodeId server) const {
  return placer_.has_value() ? placer_->LoadOf(server) : Placer::Load();
}

}  // namespace bdn
