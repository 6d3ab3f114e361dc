#include "common/cluster/control_messages.h"

#include <grpcpp/support/status.h>

#include <algorithm>
#include <bit>
#include <bitset>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/cluster/table_spec.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

absl::StatusOr<KeyKind> ReadKind(uint32_t value) {
  if (value > static_cast<uint32_t>(KeyKind::kRows))
    return InvalidArgument("key kind %d is unknown", value);
  return static_cast<KeyKind>(value);
}

absl::StatusOr<DType> ReadDType(uint32_t value) {
  if (value >= kNumDTypes) return InvalidArgument("dtype %d is unknown", value);
  return static_cast<DType>(value);
}

// Reads the role of a node that joins, which is never a scheduler.
absl::StatusOr<Role> ReadRole(uint32_t value) {
  if (value != static_cast<uint32_t>(Role::kServer) &&
      value != static_cast<uint32_t>(Role::kWorker)) {
    return InvalidArgument("role %d is none that joins", value);
  }
  return static_cast<Role>(value);
}

template <typename Message>
void WriteRanks(const RankGroup& group, Message* message) {
  if (group.is_all()) return;
  for (const Rank rank : group.ranks()) message->add_ranks(rank);
}

template <typename Message>
absl::StatusOr<RankGroup> ReadRanks(const Message& message) {
  if (message.ranks_size() == 0) return RankGroup();
  return RankGroup::Of({message.ranks().begin(), message.ranks().end()});
}

// The traits of the tensors and keys of a message, each set written once. Traits are what many of
// them have in common.
class TraitsWriter {
 public:
  explicit TraitsWriter(google::protobuf::RepeatedPtrField<wire::Traits>* all) : all_(all) {}

  // Returns the index of the traits of `value`, a tensor or a key; adds them where they are new.
  template <typename Value>
  uint32_t PlaceOf(const Value& value) {
    // The momentum goes in by its bits, which have an order whatever its value is.
    Traits traits{static_cast<uint32_t>(value.dtype),
                  static_cast<uint32_t>(value.kind),
                  value.push_spec,
                  value.pull_spec,
                  value.rule,
                  value.warmup_steps,
                  std::bit_cast<uint32_t>(value.momentum),
                  value.ranks};
    const auto [place, is_new] =
        places_.try_emplace(std::move(traits), static_cast<uint32_t>(places_.size()));
    if (is_new) {
      wire::Traits* message = all_->Add();
      message->set_dtype(static_cast<uint32_t>(value.dtype));
      message->set_kind(static_cast<uint32_t>(value.kind));
      message->set_push_spec(value.push_spec);
      message->set_pull_spec(value.pull_spec);
      message->set_rule(value.rule);
      message->set_warmup_steps(value.warmup_steps);
      message->set_momentum(value.momentum);
      WriteRanks(value.ranks, message);
    }
    return place->second;
  }

 private:
  using Traits = std::tuple<uint32_t, uint32_t, std::string, std::string, std::string, uint64_t,
                            uint32_t, RankGroup>;
  google::protobuf::RepeatedPtrField<wire::Traits>* const all_;
  std::map<Traits, uint32_t> places_;
};

// The traits of a message, each read once, when the first tensor or key refers to it.
class TraitsReader {
 public:
  // Borrows the message.
  explicit TraitsReader(const google::protobuf::RepeatedPtrField<wire::Traits>& messages)
      : messages_(messages) {}

  // Returns the traits at an index, as a tensor of no name and no elements; it lives as long as the
  // reader.
  absl::StatusOr<const TensorDeclaration*> At(uint32_t place) {
    if (last_ != nullptr && place == last_place_) return last_;  // as for most
    if (place >= static_cast<uint32_t>(messages_.size())) {
      return InvalidArgument("traits %d of %d", place, messages_.size());
    }
    const auto [found, is_new] = read_.try_emplace(place);
    if (is_new) BDN_RETURN_IF_ERROR(Read(messages_[static_cast<int>(place)], &found->second));
    last_place_ = place;
    return last_ = &found->second;
  }

 private:
  static absl::Status Read(const wire::Traits& message, TensorDeclaration* traits) {
    BDN_ASSIGN_OR_RETURN(traits->dtype, ReadDType(message.dtype()));
    BDN_ASSIGN_OR_RETURN(traits->kind, ReadKind(message.kind()));
    traits->push_spec = message.push_spec();
    traits->pull_spec = message.pull_spec();
    traits->rule = message.rule();
    traits->warmup_steps = message.warmup_steps();
    traits->momentum = message.momentum();
    BDN_ASSIGN_OR_RETURN(traits->ranks, ReadRanks(message));
    return absl::OkStatus();
  }

  const google::protobuf::RepeatedPtrField<wire::Traits>& messages_;
  std::map<uint32_t, TensorDeclaration> read_;  // by index
  uint32_t last_place_ = 0;
  const TensorDeclaration* last_ = nullptr;
};

// Makes room for `more` elements, and at least doubles the capacity, so that a list that comes in
// pieces is not moved at every piece.
template <typename Value>
void MakeRoom(size_t more, std::vector<Value>* values) {
  const size_t size = values->size() + more;
  if (size > values->capacity()) values->reserve(std::max(size, 2 * values->capacity()));
}

template <typename Message>
void WriteTensors(std::span<const TensorDeclaration> tensors, TraitsWriter* traits,
                  Message* message) {
  for (const TensorDeclaration& tensor : tensors) {
    wire::TensorDeclaration* added = message->add_tensors();
    added->set_traits(traits->PlaceOf(tensor));
    added->set_name(tensor.name);
    added->set_elements(tensor.elements);
    added->set_group(tensor.group);
    added->set_fuse(tensor.fuse);
    if (!tensor.table.empty()) added->set_table(tensor.table);
  }
}

template <typename Message>
absl::Status ReadTensors(const Message& message, TraitsReader* traits,
                         std::vector<TensorDeclaration>* tensors) {
  MakeRoom(static_cast<size_t>(message.tensors_size()), tensors);
  for (const wire::TensorDeclaration& from : message.tensors()) {
    BDN_ASSIGN_OR_RETURN(const TensorDeclaration* its_traits, traits->At(from.traits()));
    TensorDeclaration& tensor = tensors->emplace_back(*its_traits);
    tensor.name = from.name();
    tensor.elements = from.elements();
    tensor.group = from.group();
    tensor.fuse = from.fuse();
    if (!from.table().empty()) tensor.table = from.table();
    BDN_RETURN_IF_ERROR(CheckDeclaration(tensor));
  }
  return absl::OkStatus();
}

// Reads a key. A key whose segments did not fit into a piece goes on in the next one.
absl::Status ReadKey(const wire::KeyEntry& from, TraitsReader* all_traits, CatalogueDelta* delta) {
  const Key number{from.key()};
  if (delta->keys.empty() || delta->keys.back().key != number) {
    BDN_ASSIGN_OR_RETURN(const TensorDeclaration* traits, all_traits->At(from.traits()));
    KeyEntry& fresh = delta->keys.emplace_back();
    fresh.key = number;
    fresh.dtype = traits->dtype;
    fresh.kind = traits->kind;
    fresh.push_spec = traits->push_spec;
    fresh.pull_spec = traits->pull_spec;
    fresh.rule = traits->rule;
    fresh.warmup_steps = traits->warmup_steps;
    fresh.momentum = traits->momentum;
    fresh.ranks = traits->ranks;
    fresh.buckets = from.buckets();
    fresh.expected_rows = from.expected_rows();
    delta->owners.push_back(from.owner());
  }
  KeyEntry& key = delta->keys.back();
  key.segments.reserve(key.segments.size() + static_cast<size_t>(from.segments_size()));
  for (const wire::KeySegment& segment : from.segments()) {
    key.segments.push_back({segment.tensor(), segment.offset(), segment.elements()});
    key.elements += segment.elements();
  }
  return absl::OkStatus();
}

absl::StatusOr<LinkSecurity> ReadSecurity(uint32_t number) {
  if (number > static_cast<uint32_t>(kLastLinkSecurity)) {
    return InvalidArgument("security of an endpoint is %d, which is none", number);
  }
  return static_cast<LinkSecurity>(number);
}

absl::StatusOr<std::vector<Endpoint>> ReadEndpoints(
    const google::protobuf::RepeatedPtrField<wire::Endpoint>& messages) {
  std::vector<Endpoint> endpoints;
  for (const wire::Endpoint& message : messages) {
    BDN_ASSIGN_OR_RETURN(const LinkSecurity security, ReadSecurity(message.security()));
    endpoints.push_back({message.scheme(), message.address(), security, message.bound()});
  }
  return endpoints;
}

void WriteEndpoints(const std::vector<Endpoint>& endpoints,
                    google::protobuf::RepeatedPtrField<wire::Endpoint>* messages) {
  for (const Endpoint& endpoint : endpoints) {
    wire::Endpoint* const message = messages->Add();
    message->set_scheme(endpoint.scheme);
    message->set_address(endpoint.address);
    message->set_security(static_cast<uint32_t>(endpoint.security));
    message->set_bound(endpoint.bound);
  }
}

absl::StatusOr<int> ReadProcesses(uint32_t number) {
  if (number < 1 || number > static_cast<uint32_t>(kMostProcesses)) {
    return InvalidArgument("%d processes: a node has 1 to %d", number, kMostProcesses);
  }
  return static_cast<int>(number);
}

absl::StatusOr<NodeInfo> ReadNode(const wire::NodeInfo& message) {
  NodeInfo node;
  node.id = message.id();
  BDN_ASSIGN_OR_RETURN(node.role, ReadRole(message.role()));
  node.rank = message.rank();
  BDN_ASSIGN_OR_RETURN(node.endpoints, ReadEndpoints(message.endpoints()));
  node.host = message.host();
  BDN_ASSIGN_OR_RETURN(node.public_key, PublicKey::FromBytes(message.public_key()));
  BDN_ASSIGN_OR_RETURN(node.processes, ReadProcesses(message.processes()));
  return node;
}

// Reads the nodes of a role. Their ranks must rise from 0, and those that are left out must be
// vacant.
absl::Status ReadNodes(const google::protobuf::RepeatedPtrField<wire::NodeInfo>& messages,
                       Role role, std::span<const Rank> vacant, std::vector<NodeInfo>* nodes) {
  Rank next = 0;
  for (const wire::NodeInfo& message : messages) {
    BDN_ASSIGN_OR_RETURN(NodeInfo node, ReadNode(message));
    while (std::ranges::binary_search(vacant, next)) ++next;
    if (node.rank != next++ || node.role != role) {
      return InvalidArgument("%s rank %d is not in its place", RoleName(node.role), node.rank);
    }
    nodes->push_back(std::move(node));
  }
  return absl::OkStatus();
}

// Reads the servers that are present, whose ranks rise, and the slots of those that are lost.
absl::Status ReadServers(const wire::Membership& message, Membership* membership) {
  for (const wire::NodeInfo& each : message.servers()) {
    BDN_ASSIGN_OR_RETURN(NodeInfo node, ReadNode(each));
    const Rank before = membership->servers.empty() ? -1 : membership->servers.back().rank;
    if (node.rank <= before || node.role != Role::kServer) {
      return InvalidArgument("%s rank %d is not in its place", RoleName(node.role), node.rank);
    }
    membership->servers.push_back(std::move(node));
  }
  const auto is_present = [&](NodeId id) {
    return std::ranges::find(membership->servers, id, &NodeInfo::id) != membership->servers.end();
  };
  NodeId last = 0;
  for (const wire::Membership::Moved& moved : message.moved()) {
    const bool is_whole = static_cast<size_t>(moved.servers().size()) == kSlots &&
                          static_cast<size_t>(moved.since().size()) == kSlots;
    if (moved.home() <= last || is_present(moved.home()) || !is_whole) {
      return InvalidArgument("the slots of node %d are %d servers and %d epochs", moved.home(),
                             moved.servers().size(), moved.since().size());
    }
    last = moved.home();
    Slots& slots = membership->moved[last];
    for (size_t i = 0; i < kSlots; ++i) {
      slots[i] = {moved.servers(static_cast<int>(i)), moved.since(static_cast<int>(i))};
      const bool is_known = slots[i].server == 0 || is_present(slots[i].server);
      if (!is_known || slots[i].since == 0 || slots[i].since > message.epoch()) {
        return InvalidArgument("slot %d of node %d belongs to node %d since epoch %d", i, last,
                               slots[i].server, slots[i].since);
      }
    }
  }
  if (message.unsafe() > message.epoch()) {
    return InvalidArgument("epoch %d has other workers, and epoch %d is the last", message.unsafe(),
                           message.epoch());
  }
  membership->unsafe = message.unsafe();
  return absl::OkStatus();
}

// Checks a group. REQUIRES: `size` is that of the first group; `least` is the number after the
// group before.
absl::Status CheckGroup(const wire::QualityGroup& group, uint64_t size, int64_t least) {
  const auto name = [&] {
    return absl::StrFormat("quality of tensors %d to %d", group.first(), group.last());
  };
  const uint64_t number = uint64_t{group.last()} - group.first() + 1;
  if (group.last() < group.first() || number != size || !std::has_single_bit(size) ||
      group.first() % size != 0 || group.first() / size >= kMostQualityGroups ||
      group.first() < least) {
    return InvalidArgument("%s: these are no group of %d", name(), size);
  }
  // Small enough that those of all nodes can be added.
  constexpr uint64_t kMostEncodings = uint64_t{1} << 48;
  if (group.encodings() == 0 || group.encodings() > kMostEncodings ||
      group.nonfinite() > group.encodings()) {
    return InvalidArgument("%s: %d of %d encodings", name(), group.nonfinite(), group.encodings());
  }
  if (group.guard() >= kGuardStates.size()) {
    return InvalidArgument("%s: guard %d: there are %d", name(), group.guard(),
                           kGuardStates.size());
  }
  // NaN passes these comparisons, and may: it says that a number overflowed.
  constexpr double kMostCosine = 1 + 1e-6;
  if (group.residual_ratio() < 0 || group.owed_steps() < 0 ||
      std::abs(group.decoded_cosine()) > kMostCosine) {
    return InvalidArgument("%s: ratio %g, cosine %g, %g steps", name(), group.residual_ratio(),
                           group.decoded_cosine(), group.owed_steps());
  }
  return absl::OkStatus();
}

// Converts the time of which records are wanted; 0 stands for all.
int64_t WriteLast(absl::Duration last) {
  return last == absl::InfiniteDuration() ? 0 : absl::ToInt64Nanoseconds(last);
}
absl::StatusOr<absl::Duration> ReadLast(int64_t last_ns) {
  if (last_ns < 0) return InvalidArgument("records of the last %d ns: that is negative", last_ns);
  return last_ns == 0 ? absl::InfiniteDuration() : absl::Nanoseconds(last_ns);
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.error_details() == kEvictedFact) return Evicted("%s", status.error_message());
  if (status.error_details() == kUnneededFact) return Unneeded("%s", status.error_message());
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      IsEvicted(status)    ? kEvictedFact
                      : IsUnneeded(status) ? kUnneededFact
                                           : "");
}

absl::Duration TimeoutFromMilliseconds(int64_t milliseconds) {
  return milliseconds < 0 ? absl::InfiniteDuration() : absl::Milliseconds(milliseconds);
}

int64_t TimeoutToMilliseconds(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return -1;
  return absl::ToInt64Milliseconds(std::max(timeout, absl::ZeroDuration()));
}

void Write(const JobConfig& config, wire::JobConfig* message) {
  message->set_job_id(config.job_id);
  message->set_run_seed(config.run_seed);
  message->set_num_workers(static_cast<uint32_t>(config.num_workers));
  message->set_num_servers(static_cast<uint32_t>(config.num_servers));
  message->set_partition_bytes(config.partition_bytes);
  message->set_fusion_bytes(config.fusion_bytes);
  message->set_min_compress_bytes(config.min_compress_bytes);
  message->set_heartbeat_interval_ns(absl::ToInt64Nanoseconds(config.heartbeat_interval));
  message->set_lease_timeout_ns(absl::ToInt64Nanoseconds(config.lease_timeout));
  message->set_min_workers(static_cast<uint32_t>(config.min_workers));
  message->set_stuck_timeout_ns(absl::ToInt64Nanoseconds(config.stuck_timeout));
  message->set_link_timeout_ns(absl::ToInt64Nanoseconds(config.link_timeout));
  message->set_scheduler_timeout_ns(absl::ToInt64Nanoseconds(config.scheduler_timeout));
  message->set_replay_steps(config.replay_steps);
  message->set_row_buckets(config.row_buckets);
  message->set_first_workers(static_cast<uint32_t>(config.first_workers));
}

void Write(const NodeInfo& node, wire::NodeInfo* message) {
  message->set_id(node.id);
  message->set_role(static_cast<uint32_t>(node.role));
  message->set_rank(node.rank);
  WriteEndpoints(node.endpoints, message->mutable_endpoints());
  message->set_host(node.host);
  message->set_public_key(std::string(node.public_key.view()));
  message->set_processes(static_cast<uint32_t>(node.processes));
}

void Write(const Membership& membership, wire::Membership* message) {
  message->set_epoch(membership.epoch);
  for (const NodeInfo& node : membership.workers) Write(node, message->add_workers());
  for (const NodeInfo& node : membership.servers) Write(node, message->add_servers());
  for (const Rank rank : membership.vacant) message->add_vacant(rank);
  message->set_unsafe(membership.unsafe);
  for (const auto& [home, slots] : membership.moved) {
    wire::Membership::Moved* const moved = message->add_moved();
    moved->set_home(home);
    for (const SlotOwner& owner : slots) {
      moved->add_servers(owner.server);
      moved->add_since(owner.since);
    }
  }
}

void Write(const HeldBytes& held, wire::HeldBytes* message) {
  message->set_weights(held.weights);
  message->set_replicas(held.replicas);
  message->set_moments(held.moments);
  message->set_residuals(held.residuals);
  message->set_sums(held.sums);
  message->set_waiting(held.waiting);
  message->set_replies(held.replies);
  message->set_values(held.values);
  message->set_rows(held.rows);
}

void Write(const RowCounts& counts, wire::RowCounts* message) {
  message->set_held(counts.held);
  message->set_added(counts.added);
  message->set_removed(counts.removed);
  message->set_not_admitted(counts.not_admitted);
}

void Write(const TableCounts& counts, wire::TableCounts* message) {
  message->set_table(counts.table);
  Write(counts.rows, message->mutable_rows());
  message->set_bytes(counts.bytes);
  message->set_updates(counts.updates);
}

void Write(const StageCounts& counts, wire::StageCounts* message) {
  for (size_t i = 0; i < kNumStages; ++i) {
    const StageCount& count = counts.by_stage[i];
    // Phases without counts are left out: the reader takes them as zeros.
    if (count == StageCount()) continue;
    wire::StageCounts::Stage* stage = message->add_stages();
    stage->set_stage(static_cast<uint32_t>(i));
    stage->set_items(count.items);
    stage->set_bytes(count.bytes);
    stage->set_wall_ns(count.wall_ns);
    stage->set_cpu_ns(count.cpu_ns);
  }
}

void Write(const WorkCounts& counts, wire::WorkCounts* message) {
  message->set_steps(counts.program.steps);
  message->set_compute_ns(counts.program.compute_ns);
  message->set_input_ns(counts.program.input_ns);
  message->set_collection_ns(counts.program.collection_ns);
  message->set_queued_ns(counts.program.queued_ns);
  for (const PeerWait& peer : counts.peers) {
    wire::WorkCounts::Peer* added = message->add_peers();
    added->set_rank(peer.rank);
    added->set_items(peer.items);
    added->set_ns(peer.ns);
  }
  message->set_open_requests(counts.open_requests);
  message->set_connections(counts.connections);
  message->set_machine_busy_ns(counts.machine_busy_ns);
  message->set_machine_idle_ns(counts.machine_idle_ns);
  message->set_process_cpu_ns(counts.process_cpu_ns);
}

void Write(const std::vector<ReportedValue>& reports, wire::HeartbeatRequest* message) {
  for (const ReportedValue& value : reports) {
    wire::Report* report = message->add_reports();
    report->set_name(value.name);
    report->set_step(value.step);
    report->set_value(value.value);
  }
}

void Write(const QualityGroup& group, wire::QualityGroup* message) {
  const QualityFigures& figures = group.figures;
  message->set_first(group.first);
  message->set_last(group.last);
  message->set_encodings(figures.encodings);
  message->set_nonfinite(figures.nonfinite);
  // The names are constants, so the pointer tells which one it is.
  const auto guard = std::find(kGuardStates.begin(), kGuardStates.end(), figures.guard);
  message->set_guard(static_cast<uint32_t>(guard - kGuardStates.begin()));
  message->set_is_measured(figures.is_measured);
  if (!figures.is_measured) return;
  message->set_step(figures.worst.step);
  message->set_residual_ratio(figures.worst.ratio);
  message->set_decoded_cosine(figures.worst.cosine);
  message->set_owed_steps(figures.worst.owed_steps);
}

void Write(PlacementVersion version, wire::PlacementVersion* message) {
  message->set_epoch(version.epoch);
  message->set_catalogue_version(version.catalogue);
}

void Write(const CatalogueDelta& delta, wire::CataloguePiece* message) {
  Write(delta.version, message->mutable_version());
  message->set_pieces(1);
  message->set_first_tensor(delta.first_tensor);
  TraitsWriter traits(message->mutable_traits());
  WriteTensors(delta.tensors, &traits, message);
  for (size_t i = 0; i < delta.keys.size(); ++i) {
    wire::KeyEntry* added = message->add_keys();
    added->set_key(delta.keys[i].key.value);
    added->set_traits(traits.PlaceOf(delta.keys[i]));
    added->set_owner(delta.owners[i]);
    added->set_buckets(delta.keys[i].buckets);
    added->set_expected_rows(delta.keys[i].expected_rows);
    for (const KeySegment& segment : delta.keys[i].segments) {
      wire::KeySegment* part = added->add_segments();
      part->set_tensor(segment.tensor);
      part->set_offset(segment.offset);
      part->set_elements(segment.elements);
    }
  }
  for (const Key key : delta.retired) message->add_retired(key.value);
}

void Write(const DeclarationPart& part, wire::DeclareRequest* message) {
  message->set_number(part.number);
  message->set_digest(part.digest);
  message->set_count(part.count);
  message->set_first(part.first);
  WriteRanks(part.ranks, message);
  TraitsWriter traits(message->mutable_traits());
  WriteTensors(part.tensors, &traits, message);
}

void Write(const DeclarationAnswer& answer, wire::DeclareReply* message) {
  message->set_wanted(answer.wanted_from.has_value());
  message->set_wanted_from(answer.wanted_from.value_or(0));
  Write(answer.version, message->mutable_version());
}

void Write(const std::vector<Rank>& leaving, wire::Leaving* message) {
  for (const Rank rank : leaving) message->add_ranks(rank);
}

void Write(const JoinRequest& request, wire::JoinRequest* message) {
  message->set_version(kControlVersion);
  message->set_role(static_cast<uint32_t>(request.role));
  message->set_wanted_rank(request.wanted_rank);
  message->set_job_id(request.job_id);
  WriteEndpoints(request.endpoints, message->mutable_endpoints());
  message->set_host(request.host);
  message->set_public_key(std::string(request.public_key.view()));
  message->set_processes(static_cast<uint32_t>(request.processes));
  message->set_join_id(request.join_id);
}

void Write(const absl::Status& status, wire::Failure* message) {
  message->set_code(static_cast<uint32_t>(NumberOf(status)));
  message->set_message(std::string(status.message()));
}

void Write(const DumpOrder& order, wire::DumpOrder* message) {
  message->set_number(order.number);
  message->set_most_bytes(order.most_bytes);
  message->set_last_ns(WriteLast(order.last));
}

void Write(const DumpRequest& request, wire::DumpRequest* message) {
  for (const DumpRanks& ranks : request.nodes) {
    wire::DumpRequest::Ranks* added = message->add_nodes();
    added->set_role(static_cast<uint32_t>(ranks.role));
    added->set_first(ranks.first);
    added->set_last(ranks.last);
  }
  message->set_last_ns(WriteLast(request.last));
  message->set_patience_ns(absl::ToInt64Nanoseconds(request.patience));
}

void Write(const TracePiece& piece, wire::TracePiece* message) {
  message->set_number(piece.number);
  message->set_piece(piece.piece);
  message->set_last(piece.is_last);
  message->set_content(piece.content);
  if (!piece.failure.ok()) Write(piece.failure, message->mutable_failure());
}

absl::StatusOr<JobConfig> Read(const wire::JobConfig& message) {
  JobConfig config;
  config.job_id = message.job_id();
  config.run_seed = message.run_seed();
  constexpr uint32_t kMost = std::numeric_limits<int>::max();
  // The counts become int here, so a peer must not send more.
  if (message.num_workers() == 0 || message.num_workers() > kMost || message.num_servers() == 0 ||
      message.num_servers() > kMost) {
    return InvalidArgument("the job has %d workers and %d servers", message.num_workers(),
                           message.num_servers());
  }
  config.num_workers = static_cast<int>(message.num_workers());
  config.num_servers = static_cast<int>(message.num_servers());
  if (message.min_workers() > message.num_workers() || message.stuck_timeout_ns() < 0) {
    return InvalidArgument("at least %d of %d workers, and a stuck timeout of %d ns",
                           message.min_workers(), message.num_workers(),
                           message.stuck_timeout_ns());
  }
  config.min_workers = static_cast<int>(message.min_workers());
  if (message.first_workers() > message.num_workers()) {
    return InvalidArgument("the job begins with %d of %d workers", message.first_workers(),
                           message.num_workers());
  }
  config.first_workers = static_cast<int>(message.first_workers());
  config.stuck_timeout = absl::Nanoseconds(message.stuck_timeout_ns());
  if (message.link_timeout_ns() < 0) {
    return InvalidArgument("a link timeout of %d ns", message.link_timeout_ns());
  }
  config.link_timeout = absl::Nanoseconds(message.link_timeout_ns());
  if (message.scheduler_timeout_ns() < 0) {
    return InvalidArgument("a scheduler timeout of %d ns", message.scheduler_timeout_ns());
  }
  config.scheduler_timeout = absl::Nanoseconds(message.scheduler_timeout_ns());
  if (message.replay_steps() > kMostReplaySteps) {
    return InvalidArgument("%d steps are kept, at most %d", message.replay_steps(),
                           kMostReplaySteps);
  }
  config.replay_steps = message.replay_steps();
  if (message.row_buckets() != 0 && !IsRowBuckets(message.row_buckets())) {
    return InvalidArgument("%d buckets of rows", message.row_buckets());
  }
  config.row_buckets = message.row_buckets();
  config.partition_bytes = message.partition_bytes();
  config.fusion_bytes = message.fusion_bytes();
  config.min_compress_bytes = message.min_compress_bytes();
  config.heartbeat_interval = absl::Nanoseconds(message.heartbeat_interval_ns());
  config.lease_timeout = absl::Nanoseconds(message.lease_timeout_ns());
  if (config.heartbeat_interval <= absl::ZeroDuration() ||
      config.lease_timeout <= absl::ZeroDuration()) {
    return InvalidArgument("a heartbeat interval of %s and leases of %s",
                           absl::FormatDuration(config.heartbeat_interval),
                           absl::FormatDuration(config.lease_timeout));
  }
  return config;
}

absl::StatusOr<NodeInfo> Read(const wire::NodeInfo& message) { return ReadNode(message); }

absl::StatusOr<Membership> Read(const wire::Membership& message) {
  Membership membership;
  membership.epoch = message.epoch();
  BDN_ASSIGN_OR_RETURN(
      membership.vacant,
      ReadRising({message.vacant().data(), static_cast<size_t>(message.vacant().size())}));
  BDN_RETURN_IF_ERROR(
      ReadNodes(message.workers(), Role::kWorker, membership.vacant, &membership.workers));
  BDN_RETURN_IF_ERROR(ReadServers(message, &membership));
  membership.MakeIndex();
  return membership;
}

absl::StatusOr<StageCounts> Read(const wire::StageCounts& message) {
  StageCounts counts;
  std::bitset<kNumStages> seen;
  for (const wire::StageCounts::Stage& said : message.stages()) {
    const std::optional<Stage> stage = FindStage(said.stage());
    if (!stage.has_value()) {
      return InvalidArgument("stage %d: there are %d", said.stage(), kNumStages);
    }
    if (seen.test(said.stage())) return InvalidArgument("stage %d is there twice", said.stage());
    seen.set(said.stage());
    counts[*stage] = {said.items(), said.bytes(), said.wall_ns(), said.cpu_ns()};
  }
  return counts;
}

absl::StatusOr<WorkCounts> Read(const wire::WorkCounts& message) {
  // So that no sum or difference of two overflows.
  constexpr uint64_t kMost = uint64_t{1} << 62;
  WorkCounts counts = {.program = {.steps = message.steps(),
                                   .compute_ns = message.compute_ns(),
                                   .input_ns = message.input_ns(),
                                   .collection_ns = message.collection_ns(),
                                   .queued_ns = message.queued_ns()},
                       .peers = {},
                       .open_requests = message.open_requests(),
                       .connections = message.connections(),
                       .machine_busy_ns = message.machine_busy_ns(),
                       .machine_idle_ns = message.machine_idle_ns(),
                       .process_cpu_ns = message.process_cpu_ns()};
  for (const uint64_t total :
       {message.steps(), message.compute_ns(), message.input_ns(), message.collection_ns(),
        message.queued_ns(), message.machine_busy_ns(), message.machine_idle_ns(),
        message.process_cpu_ns()}) {
    if (total > kMost) return InvalidArgument("a total of work is %d: at most 2^62", total);
  }
  if (static_cast<size_t>(message.peers_size()) > kMostPeerWaits) {
    return InvalidArgument("waits for %d nodes: a heartbeat has at most %d", message.peers_size(),
                           kMostPeerWaits);
  }
  for (const wire::WorkCounts::Peer& peer : message.peers()) {
    if (peer.rank() < 0 || (!counts.peers.empty() && peer.rank() <= counts.peers.back().rank)) {
      return InvalidArgument("waits for ranks that do not rise: %d", peer.rank());
    }
    if (peer.items() > kMost || peer.ns() > kMost) {
      return InvalidArgument("a wait for rank %d is too long: at most 2^62", peer.rank());
    }
    counts.peers.push_back({peer.rank(), peer.items(), peer.ns()});
  }
  return counts;
}

HeldBytes Read(const wire::HeldBytes& message) {
  return {.weights = message.weights(),
          .replicas = message.replicas(),
          .moments = message.moments(),
          .residuals = message.residuals(),
          .sums = message.sums(),
          .waiting = message.waiting(),
          .replies = message.replies(),
          .values = message.values(),
          .rows = message.rows()};
}

RowCounts Read(const wire::RowCounts& message) {
  return {.held = message.held(),
          .added = message.added(),
          .removed = message.removed(),
          .not_admitted = message.not_admitted()};
}

absl::StatusOr<std::vector<ReportedValue>> ReadReports(const wire::HeartbeatRequest& message) {
  if (static_cast<size_t>(message.reports_size()) > kMostReports) {
    return InvalidArgument("%d reports: a heartbeat has at most %d", message.reports_size(),
                           kMostReports);
  }
  std::vector<ReportedValue> reports;
  reports.reserve(static_cast<size_t>(message.reports_size()));
  for (const wire::Report& report : message.reports()) {
    BDN_RETURN_IF_ERROR(CheckReportName(report.name()));
    reports.push_back({report.name(), report.step(), report.value()});
  }
  return reports;
}

absl::StatusOr<std::vector<Rank>> ReadRising(std::span<const int32_t> ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || (i > 0 && ranks[i] <= ranks[i - 1])) {
      return InvalidArgument("ranks do not rise: %d", ranks[i]);
    }
  }
  return std::vector<Rank>(ranks.begin(), ranks.end());
}

absl::StatusOr<Met> ReadMet(std::span<const int32_t> vacant, uint32_t epoch,
                            std::span<const int32_t> newcomers) {
  Met met{.epoch = epoch};
  BDN_ASSIGN_OR_RETURN(met.vacant, ReadRising(vacant));
  BDN_ASSIGN_OR_RETURN(met.newcomers, ReadRising(newcomers));
  if ((epoch == 0) == met.newcomers.empty()) return met;
  return InvalidArgument("epoch %d began at a boundary with %d newcomers", epoch,
                         met.newcomers.size());
}

void Write(const std::vector<NodeWait>& waits, wire::HeartbeatRequest* message) {
  for (const NodeWait& each : waits) {
    wire::NodeWait* added = message->add_waits();
    added->set_node(each.node);
    added->set_ms(
        static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(each.wait))));
  }
}

absl::StatusOr<std::vector<NodeWait>> ReadWaits(const wire::HeartbeatRequest& message) {
  constexpr uint64_t kMostMs = uint64_t{1} << 40;  // 34 years
  std::vector<NodeWait> waits;
  for (const wire::NodeWait& each : message.waits()) {
    if (each.node() == 0 || (!waits.empty() && each.node() <= waits.back().node) ||
        each.ms() > kMostMs) {
      return InvalidArgument("a wait for node %d of %d ms", each.node(), each.ms());
    }
    waits.push_back({each.node(), absl::Milliseconds(static_cast<int64_t>(each.ms()))});
  }
  return waits;
}

absl::StatusOr<std::vector<TableCounts>> ReadTables(const wire::HeartbeatRequest& message) {
  if (static_cast<size_t>(message.tables_size()) > kMostTablesTold) {
    return InvalidArgument("counts of %d tables: a heartbeat has those of %d at most",
                           message.tables_size(), kMostTablesTold);
  }
  std::vector<TableCounts> tables;
  tables.reserve(static_cast<size_t>(message.tables_size()));
  for (const wire::TableCounts& each : message.tables()) {
    if (each.table().size() > kMaxNameBytes ||
        (!tables.empty() && each.table() <= tables.back().table)) {
      return InvalidArgument("counts of table '%s' behind those of '%s'", each.table(),
                             tables.empty() ? "" : tables.back().table);
    }
    tables.push_back({each.table(), Read(each.rows()), each.bytes(), each.updates()});
  }
  return tables;
}

absl::StatusOr<std::vector<QualityGroup>> ReadQuality(
    const google::protobuf::RepeatedPtrField<wire::QualityGroup>& message) {
  if (static_cast<size_t>(message.size()) > kMostQualityGroups) {
    return InvalidArgument("quality of %d groups: a node has at most %d", message.size(),
                           kMostQualityGroups);
  }
  std::vector<QualityGroup> groups;
  groups.reserve(static_cast<size_t>(message.size()));
  for (const wire::QualityGroup& group : message) {
    // All groups must have the size of the first.
    const uint64_t size = uint64_t{message[0].last()} - message[0].first() + 1;
    BDN_RETURN_IF_ERROR(
        CheckGroup(group, size, groups.empty() ? 0 : int64_t{groups.back().last} + 1));
    groups.push_back({group.first(),
                      group.last(),
                      {.encodings = group.encodings(),
                       .nonfinite = group.nonfinite(),
                       .is_measured = group.is_measured(),
                       .worst = {group.step(), group.residual_ratio(), group.decoded_cosine(),
                                 group.owed_steps()},
                       .guard = kGuardStates[group.guard()]}});
  }
  return groups;
}

absl::StatusOr<std::vector<uint32_t>> ReadRetired(const wire::HeartbeatRequest& message) {
  if (static_cast<size_t>(message.retired_size()) > kMostRetired) {
    return InvalidArgument("%d retired tensors: a heartbeat has at most %d", message.retired_size(),
                           kMostRetired);
  }
  return std::vector<uint32_t>(message.retired().begin(), message.retired().end());
}

PlacementVersion Read(const wire::PlacementVersion& message) {
  return {message.epoch(), message.catalogue_version()};
}

absl::Status ReadMore(const wire::CataloguePiece& message, CatalogueDelta* delta) {
  TraitsReader traits(message.traits());
  BDN_RETURN_IF_ERROR(ReadTensors(message, &traits, &delta->tensors));
  MakeRoom(static_cast<size_t>(message.keys_size()), &delta->keys);
  MakeRoom(static_cast<size_t>(message.keys_size()), &delta->owners);
  for (const wire::KeyEntry& key : message.keys()) {
    BDN_RETURN_IF_ERROR(ReadKey(key, &traits, delta));
  }
  for (const uint64_t key : message.retired()) delta->retired.push_back(Key{key});
  return absl::OkStatus();
}

absl::StatusOr<DeclarationPart> Read(const wire::DeclareRequest& message) {
  DeclarationPart part{.number = message.number(),
                       .digest = message.digest(),
                       .count = message.count(),
                       .first = message.first()};
  if (part.digest.size() > kMaxDigestBytes) {
    return InvalidArgument("a digest of %d bytes, more than %d", part.digest.size(),
                           kMaxDigestBytes);
  }
  BDN_ASSIGN_OR_RETURN(part.ranks, ReadRanks(message));
  TraitsReader traits(message.traits());
  BDN_RETURN_IF_ERROR(ReadTensors(message, &traits, &part.tensors));
  return part;
}

DeclarationAnswer Read(const wire::DeclareReply& message) {
  DeclarationAnswer answer{.version = Read(message.version())};
  if (message.wanted()) answer.wanted_from = message.wanted_from();
  return answer;
}

absl::StatusOr<std::vector<Rank>> Read(const wire::Leaving& message) {
  for (const Rank rank : message.ranks()) {
    if (rank < 0) return InvalidArgument("rank %d of a worker that leaves is negative", rank);
  }
  return std::vector<Rank>(message.ranks().begin(), message.ranks().end());
}

absl::StatusOr<JoinRequest> Read(const wire::JoinRequest& message) {
  JoinRequest request;
  BDN_ASSIGN_OR_RETURN(request.role, ReadRole(message.role()));
  request.wanted_rank = message.wanted_rank();
  request.job_id = message.job_id();
  BDN_ASSIGN_OR_RETURN(request.endpoints, ReadEndpoints(message.endpoints()));
  request.host = message.host();
  BDN_ASSIGN_OR_RETURN(request.public_key, PublicKey::FromBytes(message.public_key()));
  BDN_ASSIGN_OR_RETURN(request.processes, ReadProcesses(message.processes()));
  request.join_id = message.join_id();
  return request;
}

absl::StatusOr<std::vector<int>> ReadProcesses(const wire::JoinReply& message) {
  std::vector<int> processes;
  for (const uint32_t number : message.processes()) {
    BDN_ASSIGN_OR_RETURN(processes.emplace_back(), ReadProcesses(number));
  }
  return processes;
}

absl::StatusOr<DumpOrder> Read(const wire::DumpOrder& message) {
  if (message.number() == 0 || message.most_bytes() == 0 || message.most_bytes() > kMostDumpBytes) {
    return InvalidArgument("dump %d of %d bytes a node: a dump has a number, and %d bytes at most",
                           message.number(), message.most_bytes(), kMostDumpBytes);
  }
  DumpOrder order{.number = message.number(), .most_bytes = message.most_bytes()};
  BDN_ASSIGN_OR_RETURN(order.last, ReadLast(message.last_ns()));
  return order;
}

absl::StatusOr<DumpRequest> Read(const wire::DumpRequest& message) {
  if (static_cast<size_t>(message.nodes_size()) > kMostDumpNodes) {
    return InvalidArgument("a dump of nodes in %d parts: it may name %d", message.nodes_size(),
                           kMostDumpNodes);
  }
  DumpRequest request;
  for (const wire::DumpRequest::Ranks& ranks : message.nodes()) {
    BDN_ASSIGN_OR_RETURN(const Role role, ReadRole(ranks.role()));
    if (ranks.first() < 0 || ranks.last() < ranks.first()) {
      return InvalidArgument("a dump of ranks %d to %d: ranks are not negative, and rise",
                             ranks.first(), ranks.last());
    }
    request.nodes.push_back({role, ranks.first(), ranks.last()});
  }
  BDN_ASSIGN_OR_RETURN(request.last, ReadLast(message.last_ns()));
  request.patience = absl::Nanoseconds(message.patience_ns());
  if (request.patience <= absl::ZeroDuration() || request.patience > kMostDumpPatience) {
    return InvalidArgument("a dump waits %s for a silent node: expected more than 0, up to %s",
                           absl::FormatDuration(request.patience),
                           absl::FormatDuration(kMostDumpPatience));
  }
  return request;
}

absl::StatusOr<TracePiece> Read(const wire::TracePiece& message) {
  if (message.content().size() > kMostDumpPieceBytes) {
    return InvalidArgument("a piece of a recording of %d bytes: it may have %d",
                           message.content().size(), kMostDumpPieceBytes);
  }
  if (message.content().empty() != message.has_failure() ||
      (message.has_failure() && !message.last())) {
    return InvalidArgument(
        "piece %d of a recording has %d bytes, %s failure, and is %s: expected bytes, or a failure "
        "in the last piece",
        message.piece(), message.content().size(), message.has_failure() ? "a" : "no",
        message.last() ? "the last" : "not the last");
  }
  TracePiece piece{.number = message.number(),
                   .piece = message.piece(),
                   .is_last = message.last(),
                   .content = message.content()};
  if (message.has_failure()) piece.failure = ReadFailure(message.failure());
  return piece;
}

absl::Status ReadFailure(const wire::Failure& message) {
  // A failure of code 0 would be none.
  return message.code() == 0 ? absl::UnknownError(message.message())
                             : StatusOf(message.code(), message.message());
}

}  // namespace bdn
