#include "common/cluster/control_messages.h"

#include <grpcpp/support/status.h>

#include <limits>
#include <map>

#include "common/base/status.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

absl::StatusOr<KeyKind> ReadKind(uint32_t value) {
  if (value > 1) return InvalidArgument("key kind %d is unknown", value);
  return static_cast<KeyKind>(value);
}

absl::StatusOr<DType> ReadDType(uint32_t value) {
  if (value >= kNumDTypes) return InvalidArgument("dtype %d is unknown", value);
  return static_cast<DType>(value);
}

absl::StatusOr<Role> ReadRole(uint32_t value) {
  if (value != static_cast<uint32_t>(Role::kServer) &&
      value != static_cast<uint32_t>(Role::kWorker)) {
    return InvalidArgument("role %d is none that joins", value);
  }
  return static_cast<Role>(value);
}

// What a tensor and each of its keys have in common.
template <typename Value, typename Message>
void WriteTraits(const Value& value, Message* message) {
  message->set_dtype(static_cast<uint32_t>(value.dtype));
  message->set_kind(static_cast<uint32_t>(value.kind));
  message->set_push_spec(value.push_spec);
  message->set_pull_spec(value.pull_spec);
  message->set_rule(value.rule);
  message->set_warmup_steps(value.warmup_steps);
  message->set_momentum(value.momentum);
}

template <typename Message, typename Value>
absl::Status ReadTraits(const Message& message, Value* value) {
  BDN_ASSIGN_OR_RETURN(value->dtype, ReadDType(message.dtype()));
  BDN_ASSIGN_OR_RETURN(value->kind, ReadKind(message.kind()));
  value->push_spec = message.push_spec();
  value->pull_spec = message.pull_spec();
  value->rule = message.rule();
  value->warmup_steps = message.warmup_steps();
  value->momentum = message.momentum();
  return absl::OkStatus();
}

void WriteTensor(const TensorDeclaration& tensor, wire::TensorDeclaration* message) {
  WriteTraits(tensor, message);
  message->set_name(tensor.name);
  message->set_elements(tensor.elements);
  message->set_group(tensor.group);
  message->set_fuse(tensor.fuse);
}

absl::StatusOr<TensorDeclaration> ReadTensor(const wire::TensorDeclaration& message) {
  TensorDeclaration tensor;
  BDN_RETURN_IF_ERROR(ReadTraits(message, &tensor));
  tensor.name = message.name();
  tensor.elements = message.elements();
  tensor.group = message.group();
  tensor.fuse = message.fuse();
  BDN_RETURN_IF_ERROR(CheckDeclaration(tensor));
  return tensor;
}

void WriteKey(const KeyEntry& key, wire::KeyEntry* message) {
  WriteTraits(key, message);
  message->set_key(key.key.value);
  for (const KeySegment& segment : key.segments) {
    wire::KeySegment* added = message->add_segments();
    added->set_tensor(segment.tensor);
    added->set_offset(segment.offset);
    added->set_elements(segment.elements);
  }
}

absl::StatusOr<KeyEntry> ReadKey(const wire::KeyEntry& message,
                                 const std::vector<TensorDeclaration>& tensors) {
  KeyEntry key;
  BDN_RETURN_IF_ERROR(ReadTraits(message, &key));
  key.key = Key{message.key()};
  for (const wire::KeySegment& part : message.segments()) {
    const KeySegment segment{part.tensor(), part.offset(), part.elements()};
    if (segment.tensor >= tensors.size() || segment.offset > tensors[segment.tensor].elements ||
        segment.elements > tensors[segment.tensor].elements - segment.offset) {
      return InvalidArgument("key %s has a segment outside of its tensor", key.key.ToString());
    }
    key.segments.push_back(segment);
    key.elements += segment.elements;
  }
  if (key.segments.empty()) return InvalidArgument("key %s is empty", key.key.ToString());
  return key;
}

absl::StatusOr<LinkSecurity> ReadSecurity(uint32_t number) {
  if (number > static_cast<uint32_t>(kLastLinkSecurity)) {
    return InvalidArgument("data_security is %d, which is none", number);
  }
  return static_cast<LinkSecurity>(number);
}

absl::StatusOr<NodeInfo> ReadNode(const wire::NodeInfo& message) {
  NodeInfo node;
  node.id = message.id();
  BDN_ASSIGN_OR_RETURN(node.role, ReadRole(message.role()));
  node.rank = message.rank();
  node.data_address = message.data_address();
  node.host = message.host();
  BDN_ASSIGN_OR_RETURN(node.public_key, PublicKey::FromBytes(message.public_key()));
  BDN_ASSIGN_OR_RETURN(node.data_security, ReadSecurity(message.data_security()));
  return node;
}

// Ranks are places in the list.
absl::Status ReadNodes(const google::protobuf::RepeatedPtrField<wire::NodeInfo>& messages,
                       std::vector<NodeInfo>* nodes) {
  for (const wire::NodeInfo& message : messages) {
    BDN_ASSIGN_OR_RETURN(NodeInfo node, ReadNode(message));
    if (node.rank != static_cast<Rank>(nodes->size())) {
      return InvalidArgument("rank %d is not in its place", node.rank);
    }
    nodes->push_back(std::move(node));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
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
}

void Write(const NodeInfo& node, wire::NodeInfo* message) {
  message->set_id(node.id);
  message->set_role(static_cast<uint32_t>(node.role));
  message->set_rank(node.rank);
  message->set_data_address(node.data_address);
  message->set_host(node.host);
  message->set_public_key(std::string(node.public_key.view()));
  message->set_data_security(static_cast<uint32_t>(node.data_security));
}

void Write(const Membership& membership, wire::Membership* message) {
  message->set_epoch(membership.epoch);
  for (const NodeInfo& node : membership.workers) Write(node, message->add_workers());
  for (const NodeInfo& node : membership.servers) Write(node, message->add_servers());
}

void Write(const Catalogue& catalogue, wire::Catalogue* message) {
  message->set_version(catalogue.version);
  for (const TensorDeclaration& tensor : catalogue.tensors) {
    WriteTensor(tensor, message->add_tensors());
  }
  for (const KeyEntry& key : catalogue.keys) WriteKey(key, message->add_keys());
}

void Write(const PlacementTable& placement, wire::Placement* message) {
  message->set_epoch(placement.version().epoch);
  message->set_catalogue_version(placement.version().catalogue);
  std::map<NodeId, wire::Placement::Share*> shares;
  for (const auto& [key, server] : placement.owners()) {
    wire::Placement::Share*& share = shares[server];
    if (share == nullptr) {
      share = message->add_shares();
      share->set_server(server);
    }
    share->add_keys(key.value);
  }
}

void Write(const DeclareResult& declared, wire::DeclareReply* message) {
  Write(*declared.catalogue, message->mutable_catalogue());
  Write(*declared.placement, message->mutable_placement());
}

void Write(const std::vector<TensorDeclaration>& tensors, wire::DeclareRequest* message) {
  for (const TensorDeclaration& tensor : tensors) WriteTensor(tensor, message->add_tensors());
}

void Write(const std::vector<Rank>& leaving, wire::Leaving* message) {
  for (const Rank rank : leaving) message->add_ranks(rank);
}

void Write(const JoinRequest& request, wire::JoinRequest* message) {
  message->set_version(kControlVersion);
  message->set_role(static_cast<uint32_t>(request.role));
  message->set_wanted_rank(request.wanted_rank);
  message->set_job_id(request.job_id);
  message->set_data_address(request.data_address);
  message->set_host(request.host);
  message->set_public_key(std::string(request.public_key.view()));
  message->set_data_security(static_cast<uint32_t>(request.data_security));
}

void Write(const absl::Status& status, wire::Failure* message) {
  message->set_code(static_cast<uint32_t>(status.code()));
  message->set_message(std::string(status.message()));
}

absl::StatusOr<JobConfig> Read(const wire::JobConfig& message) {
  JobConfig config;
  config.job_id = message.job_id();
  config.run_seed = message.run_seed();
  constexpr uint32_t kMost = std::numeric_limits<int>::max();
  if (message.num_workers() == 0 || message.num_workers() > kMost || message.num_servers() == 0 ||
      message.num_servers() > kMost) {
    return InvalidArgument("the job has %d workers and %d servers", message.num_workers(),
                           message.num_servers());
  }
  config.num_workers = static_cast<int>(message.num_workers());
  config.num_servers = static_cast<int>(message.num_servers());
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

absl::StatusOr<Membership> Read(const wire::Membership& message) {
  Membership membership;
  membership.epoch = message.epoch();
  BDN_RETURN_IF_ERROR(ReadNodes(message.workers(), &membership.workers));
  BDN_RETURN_IF_ERROR(ReadNodes(message.servers(), &membership.servers));
  return membership;
}

absl::StatusOr<Catalogue> Read(const wire::Catalogue& message) {
  Catalogue catalogue;
  catalogue.version = message.version();
  for (const wire::TensorDeclaration& tensor : message.tensors()) {
    BDN_ASSIGN_OR_RETURN(catalogue.tensors.emplace_back(), ReadTensor(tensor));
  }
  for (const wire::KeyEntry& key : message.keys()) {
    BDN_ASSIGN_OR_RETURN(catalogue.keys.emplace_back(), ReadKey(key, catalogue.tensors));
  }
  return catalogue;
}

absl::StatusOr<PlacementTable> Read(const wire::Placement& message) {
  PlacementTable::Owners owners;
  for (const wire::Placement::Share& share : message.shares()) {
    if (share.server() == 0) return InvalidArgument("a share of the keys is nobody's");
    for (const uint64_t value : share.keys()) {
      const Key key{value};
      if (!owners.emplace(key, share.server()).second) {
        return InvalidArgument("key %s has two owners", key.ToString());
      }
    }
  }
  return PlacementTable({message.epoch(), message.catalogue_version()}, std::move(owners));
}

absl::StatusOr<DeclareResult> Read(const wire::DeclareReply& message) {
  BDN_ASSIGN_OR_RETURN(Catalogue catalogue, Read(message.catalogue()));
  BDN_ASSIGN_OR_RETURN(PlacementTable placement, Read(message.placement()));
  BDN_RETURN_IF_ERROR(CheckPlaced(catalogue, placement));
  return DeclareResult{std::make_shared<const Catalogue>(std::move(catalogue)),
                       std::make_shared<const PlacementTable>(std::move(placement))};
}

absl::StatusOr<std::vector<Rank>> Read(const wire::Leaving& message) {
  for (const Rank rank : message.ranks()) {
    if (rank < 0) return InvalidArgument("rank %d of a worker that leaves is negative", rank);
  }
  return std::vector<Rank>(message.ranks().begin(), message.ranks().end());
}

absl::StatusOr<std::vector<TensorDeclaration>> Read(const wire::DeclareRequest& message) {
  std::vector<TensorDeclaration> tensors;
  tensors.reserve(static_cast<size_t>(message.tensors_size()));
  for (const wire::TensorDeclaration& tensor : message.tensors()) {
    BDN_ASSIGN_OR_RETURN(tensors.emplace_back(), ReadTensor(tensor));
  }
  return tensors;
}

absl::StatusOr<JoinRequest> Read(const wire::JoinRequest& message) {
  JoinRequest request;
  BDN_ASSIGN_OR_RETURN(request.role, ReadRole(message.role()));
  request.wanted_rank = message.wanted_rank();
  request.job_id = message.job_id();
  request.data_address = message.data_address();
  request.host = message.host();
  BDN_ASSIGN_OR_RETURN(request.public_key, PublicKey::FromBytes(message.public_key()));
  BDN_ASSIGN_OR_RETURN(request.data_security, ReadSecurity(message.data_security()));
  return request;
}

absl::Status ReadFailure(const wire::Failure& message) {
  const bool known = message.code() >= 1 && message.code() <= 16;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown,
      message.message());
}

}  // namespace bdn
