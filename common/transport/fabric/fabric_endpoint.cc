#include "common/transport/fabric/fabric_endpoint.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/endian.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/transport/fabric/fabric_list.h"

namespace bdn {
namespace {

static_assert(sizeof(FabricOperation) >= sizeof(fi_context2));

constexpr size_t kEventBatch = 64;
// There are at most 512 sends and 256 receives of this end; the rest is for the writes of peers.
constexpr size_t kQueueEntries = 8192;
// Bytes of immediate data that come with a write.
constexpr size_t kImmediateBytes = 4;
constexpr size_t kPieces = 2;  // head and body of a message or a write

struct Close {
  template <typename Handle>
  void operator()(Handle* handle) const {
    fi_close(&handle->fid);
  }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, Close>;

// Returns a random key of as many bytes as the provider takes. A peer that was not told the key
// cannot guess it, and so cannot write.
uint64_t RandomKey(size_t key_bytes) {
  const std::string random = RandomSecret();
  const auto key = LoadLittle<uint64_t>(std::as_bytes(std::span(random)));
  return key_bytes >= sizeof(key) ? key : key & ((uint64_t{1} << (8 * key_bytes)) - 1);
}

}  // namespace

// The objects of libfabric in the order in which they are opened. Each belongs to those above it,
// so they are closed in the reverse order.
struct FabricEndpoint::Handles {
  std::unique_ptr<fi_info, void (*)(fi_info*)> info{nullptr, nullptr};
  Owned<fid_fabric> fabric;
  Owned<fid_domain> domain;
  Owned<fid_av> addresses;
  Owned<fid_cq> queue;
  Owned<fid_ep> endpoint;
};

namespace {
std::atomic<size_t> num_regions = 0;
}  // namespace

FabricRegion::FabricRegion(fid_mr* region, uint64_t key, uint64_t base, void* descriptor)
    : region_(region), key_(key), base_(base), descriptor_(descriptor) {
  ++num_regions;
}

FabricRegion::~FabricRegion() {
  fi_close(&region_->fid);
  --num_regions;
}

size_t FabricRegion::NumAlive() { return num_regions; }

FabricEndpoint::~FabricEndpoint() = default;

absl::Status FabricEndpoint::Error(const char* call, int error) const {
  return absl::Status(
      error == -FI_EAGAIN ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal,
      absl::StrFormat("fabric provider %s: %s: %s", provider_, call, library_.strerror(-error)));
}

absl::StatusOr<std::unique_ptr<FabricEndpoint>> FabricEndpoint::Open(const Options& options) {
  std::unique_ptr<FabricEndpoint> endpoint(new FabricEndpoint());
  BDN_ASSIGN_OR_RETURN(endpoint->library_, FabricLibrary::Open(options.library));
  endpoint->handles_ = std::make_unique<Handles>();
  endpoint->provider_ = options.provider;
  BDN_RETURN_IF_ERROR(endpoint->Choose(options));
  BDN_RETURN_IF_ERROR(endpoint->OpenHandles());
  return endpoint;
}

absl::Status FabricEndpoint::Choose(const Options& options) {
  const FabricWish wish = {options.provider, options.domain, options.interface,
                           options.device_memory};
  BDN_ASSIGN_OR_RETURN(fi_info* const info, FindFabric(library_, wish));
  handles_->info = {info, library_.freeinfo};
  if (info->domain_attr->cq_data_size < kImmediateBytes || info->tx_attr->iov_limit < kPieces) {
    return FailedPrecondition(
        "fabric provider %s: %d bytes of immediate data, %d pieces a write: 4 and 2 are needed",
        provider_, info->domain_attr->cq_data_size, info->tx_attr->iov_limit);
  }
  domain_ = info->domain_attr->name;
  has_device_memory_ = options.device_memory && HasDeviceMemory(*info);
  max_message_bytes_ = info->ep_attr->max_msg_size;
  needs_registered_sends_ = options.as_card || (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  return absl::OkStatus();
}

absl::Status FabricEndpoint::OpenHandles() {
  fi_info* const info = handles_->info.get();
  fid_fabric* fabric = nullptr;
  if (const int e = library_.fabric(info->fabric_attr, &fabric, nullptr); e != 0) {
    return Error("fi_fabric", e);
  }
  handles_->fabric.reset(fabric);
  fid_domain* domain = nullptr;
  if (const int e = fi_domain(fabric, info, &domain, nullptr); e != 0) {
    return Error("fi_domain", e);
  }
  handles_->domain.reset(domain);
  fi_av_attr av = {};
  av.type = info->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info->domain_attr->av_type;
  fid_av* addresses = nullptr;
  if (const int e = fi_av_open(domain, &av, &addresses, nullptr); e != 0) {
    return Error("fi_av_open", e);
  }
  handles_->addresses.reset(addresses);
  BDN_RETURN_IF_ERROR(OpenQueue());
  fid_ep* endpoint = nullptr;
  if (const int e = fi_endpoint(domain, info, &endpoint, nullptr); e != 0) {
    return Error("fi_endpoint", e);
  }
  handles_->endpoint.reset(endpoint);
  if (const int e = fi_ep_bind(endpoint, &addresses->fid, 0); e != 0) return Error("bind av", e);
  if (const int e = fi_ep_bind(endpoint, &handles_->queue->fid, FI_TRANSMIT | FI_RECV); e != 0) {
    return Error("bind cq", e);
  }
  if (const int e = fi_enable(endpoint); e != 0) return Error("fi_enable", e);
  std::array<char, 512> name;
  size_t bytes = name.size();
  if (const int e = fi_getname(&endpoint->fid, name.data(), &bytes); e != 0) {
    return Error("fi_getname", e);
  }
  address_.assign(name.data(), bytes);
  return absl::OkStatus();
}

absl::Status FabricEndpoint::OpenQueue() {
  fi_cq_attr attributes = {};
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.size = kQueueEntries;
  attributes.wait_obj = FI_WAIT_FD;
  // A poller that can block on a file descriptor costs no processor time while nothing arrives, so
  // that is tried first. Some providers have no such descriptor, or fail only when they are asked
  // for it.
  fid_cq* queue = nullptr;
  if (fi_cq_open(handles_->domain.get(), &attributes, &queue, nullptr) == 0) {
    handles_->queue.reset(queue);
    if (fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) == 0) return absl::OkStatus();
    wait_fd_ = -1;
    handles_->queue.reset();
  }
  attributes.wait_obj = FI_WAIT_NONE;
  if (const int e = fi_cq_open(handles_->domain.get(), &attributes, &queue, nullptr); e != 0) {
    return Error("fi_cq_open", e);
  }
  handles_->queue.reset(queue);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FabricRegion>> FabricEndpoint::Register(
    MutableByteSpan bytes, bool peers_may_write, const FabricDevice& device) const {
  const fi_domain_attr& domain = *handles_->info->domain_attr;
  const bool chooses_key = (domain.mr_mode & FI_MR_PROV_KEY) != 0;  // the provider does
  const bool is_of_host = device.kind == FabricDevice::Kind::kHost;
  if (!is_of_host && !has_device_memory_) {
    return FailedPrecondition(
        "fabric provider %s: a device's memory cannot be registered: it does not offer FI_HMEM, or "
        "was not asked for it",
        provider_);
  }
  const iovec range = {bytes.data(), bytes.size()};
  fi_mr_attr attributes = {};
  attributes.mr_iov = &range;
  attributes.iov_count = 1;
  attributes.access = peers_may_write ? FI_REMOTE_WRITE : FI_SEND | FI_RECV | FI_WRITE;
  attributes.requested_key = chooses_key ? 0 : RandomKey(domain.mr_key_size);
#ifdef FI_HMEM
  attributes.iface = is_of_host ? FI_HMEM_SYSTEM : FI_HMEM_CUDA;
  if (!is_of_host) attributes.device.cuda = device.number;
#endif
  fid_mr* region = nullptr;
  const int error = fi_mr_regattr(handles_->domain.get(), &attributes, 0, &region);
  if (error != 0 && !is_of_host) {
    return FailedPrecondition("fabric provider %s: registering %d bytes of CUDA device %d: %s",
                              provider_, bytes.size(), device.number, library_.strerror(-error));
  }
  if (error != 0) {
    rlimit limit = {};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return DescribeRegistrationFailure(provider_, library_.strerror(-error), -error, bytes.size(),
                                       limit.rlim_cur);
  }
  if ((domain.mr_mode & FI_MR_ENDPOINT) != 0) {
    int bound = fi_mr_bind(region, &handles_->endpoint->fid, 0);
    if (bound == 0) bound = fi_mr_enable(region);
    if (bound != 0) {
      fi_close(&region->fid);
      return Error("fi_mr_bind", bound);
    }
  }
  const bool is_virtual = (domain.mr_mode & FI_MR_VIRT_ADDR) != 0;
  return std::make_unique<FabricRegion>(region, fi_mr_key(region),
                                        is_virtual ? reinterpret_cast<uint64_t>(bytes.data()) : 0,
                                        fi_mr_desc(region));
}

// Whether the provider may be given a peer's address. A provider reads as many bytes as its own
// addresses have, whatever the length, and some take no address at all once they have met one of an
// unknown family.
bool FabricEndpoint::IsAddressLike(const std::string& address) const {
  const uint32_t format = handles_->info->addr_format;
  if (format == FI_ADDR_STR) {
    const size_t scheme = address_.find("://");
    return address.find('\0') >= address.size() - 1 && scheme != std::string::npos &&
           address.compare(0, scheme + 3, address_, 0, scheme + 3) == 0;
  }
  if (address.size() != address_.size()) return false;
  const bool has_family =
      format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
  return !has_family ||
         address.compare(0, sizeof(sa_family_t), address_, 0, sizeof(sa_family_t)) == 0;
}

absl::StatusOr<FabricEndpoint::Peer> FabricEndpoint::AddPeer(const std::string& address) {
  if (const auto found = peers_.find(address); found != peers_.end()) {
    ++found->second.second;
    return found->second.first;
  }
  if (!IsAddressLike(address)) {
    return InvalidArgument("fabric provider %s: a peer's address of %d bytes is none of its own",
                           provider_, address.size());
  }
  // Addresses of format FI_ADDR_STR are C strings.
  const std::string terminated = address + '\0';
  fi_addr_t peer = FI_ADDR_NOTAVAIL;
  const int added =
      fi_av_insert(handles_->addresses.get(), terminated.data(), 1, &peer, 0, nullptr);
  if (added != 1 || peer == FI_ADDR_NOTAVAIL) {
    return InvalidArgument("fabric provider %s: a peer's address of %d bytes is none of its own",
                           provider_, address.size());
  }
  peers_[address] = {peer, 1};
  return peer;
}

void FabricEndpoint::RemovePeer(const std::string& address) {
  const auto found = peers_.find(address);
  if (found == peers_.end() || --found->second.second > 0) return;
  fi_addr_t peer = found->second.first;
  fi_av_remove(handles_->addresses.get(), &peer, 1, 0);
  peers_.erase(found);
}

absl::Status FabricEndpoint::Receive(MutableByteSpan bytes, void* descriptor,
                                     FabricOperation* operation) {
  const ssize_t e = fi_recv(handles_->endpoint.get(), bytes.data(), bytes.size(), descriptor,
                            FI_ADDR_UNSPEC, operation);
  return e == 0 ? absl::OkStatus() : Error("fi_recv", static_cast<int>(e));
}

namespace {

struct Pieces {
  Pieces(const FabricEndpoint::Piece& head, const FabricEndpoint::Piece& body)
      : iov{{{const_cast<std::byte*>(head.bytes.data()), head.bytes.size()},
             {const_cast<std::byte*>(body.bytes.data()), body.bytes.size()}}},
        descriptors{head.descriptor, body.descriptor},
        count(body.bytes.empty() ? 1 : 2) {}
  std::array<iovec, kPieces> iov;
  std::array<void*, kPieces> descriptors;
  size_t count;
};

}  // namespace

absl::Status FabricEndpoint::Send(Peer to, const Piece& head, const Piece& body,
                                  FabricOperation* operation) {
  Pieces pieces(head, body);
  fi_msg message = {};
  message.msg_iov = pieces.iov.data();
  message.desc = pieces.descriptors.data();
  message.iov_count = pieces.count;
  message.addr = to;
  message.context = operation;
  const ssize_t e = fi_sendmsg(handles_->endpoint.get(), &message, FI_COMPLETION);
  return e == 0 ? absl::OkStatus() : Error("fi_sendmsg", static_cast<int>(e));
}

absl::Status FabricEndpoint::Write(Peer to, const Piece& head, const Piece& body, uint64_t address,
                                   uint64_t key, uint32_t immediate, FabricOperation* operation) {
  Pieces pieces(head, body);
  const fi_rma_iov target = {address, head.bytes.size() + body.bytes.size(), key};
  fi_msg_rma message = {};
  message.msg_iov = pieces.iov.data();
  message.desc = pieces.descriptors.data();
  message.iov_count = pieces.count;
  message.addr = to;
  message.rma_iov = &target;
  message.rma_iov_count = 1;
  message.context = operation;
  message.data = immediate;
  const ssize_t e =
      fi_writemsg(handles_->endpoint.get(), &message, FI_COMPLETION | FI_REMOTE_CQ_DATA);
  return e == 0 ? absl::OkStatus() : Error("fi_writemsg", static_cast<int>(e));
}

bool FabricEndpoint::Poll(std::vector<FabricEvent>* events) {
  std::array<fi_cq_data_entry, kEventBatch> entries;
  const ssize_t count = fi_cq_read(handles_->queue.get(), entries.data(), entries.size());
  if (count == -FI_EAVAIL) {
    events->push_back(ReadFailure());
    return true;
  }
  for (ssize_t i = 0; i < count; ++i) {
    const fi_cq_data_entry& entry = entries[i];
    FabricEvent event;
    event.operation = static_cast<FabricOperation*>(entry.op_context);
    event.bytes = entry.len;
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0 && (entry.flags & FI_RECV) == 0) {
      event.kind = FabricEvent::Kind::kWritten;
      event.operation = nullptr;
      event.immediate = static_cast<uint32_t>(entry.data);
    } else if ((entry.flags & FI_RECV) != 0) {
      event.kind = FabricEvent::Kind::kReceived;
    }
    events->push_back(std::move(event));
  }
  return count > 0;
}

FabricEvent FabricEndpoint::ReadFailure() {
  fi_cq_err_entry entry = {};
  FabricEvent event{.kind = FabricEvent::Kind::kFailed};
  if (fi_cq_readerr(handles_->queue.get(), &entry, 0) != 1) {
    event.status = Internal("fabric provider %s: a failure that cannot be read", provider_);
    return event;
  }
  event.operation = static_cast<FabricOperation*>(entry.op_context);
  const char* const what = (entry.flags & FI_RECV) != 0    ? "a receive"
                           : (entry.flags & FI_WRITE) != 0 ? "a write"
                           : (entry.flags & FI_SEND) != 0  ? "a send"
                                                           : "an operation";
  event.status = Unavailable("fabric provider %s: %s failed: %s", provider_, what,
                             library_.strerror(entry.err));
  return event;
}

void FabricEndpoint::Close() { handles_->endpoint.reset(); }

bool FabricEndpoint::MayWait() {
  fid* const queue = &handles_->queue->fid;
  fid* waits[] = {queue};
  return fi_trywait(handles_->fabric.get(), waits, 1) == 0;
}

}  // namespace bdn
