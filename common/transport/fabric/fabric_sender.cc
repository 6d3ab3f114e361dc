#include "common/transport/fabric/fabric_sender.h"

#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<std::unique_ptr<FabricSender>> FabricSender::Make(
    FabricEndpoint* endpoint, std::shared_ptr<FabricArena> arena,
    std::shared_ptr<RetiredAddresses> retired, TransportCounter* copied) {
  std::unique_ptr<FabricSender> sender(new FabricSender(endpoint, arena));
  sender->copied_ = copied;
  BDN_ASSIGN_OR_RETURN(sender->heads_,
                       FabricMemory::Make(kOperations * kFabricHeadBytes, std::move(retired)));
  if (arena != nullptr) {
    BDN_ASSIGN_OR_RETURN(sender->heads_region_, endpoint->Register(sender->heads_->span(), false));
    sender->copies_ = std::make_unique<BufferPool>(arena);
  }
  for (size_t i = 0; i < kOperations; ++i) {
    sender->operations_[i].head = sender->heads_->data() + i * kFabricHeadBytes;
    sender->free_.push_back(&sender->operations_[i]);
  }
  return sender;
}

FabricSender::~FabricSender() {
  // The heads go first. A provider that still reads an operation then fails at its head, before the
  // memory of its body can belong to something else.
  heads_region_.reset();
  heads_.reset();
}

absl::StatusOr<void*> FabricSender::DescriptorOf(Buffer* body) {
  if (arena_ == nullptr || body->empty()) return nullptr;
  if (const auto place = arena_->Find(body->span()); place.has_value()) return place->descriptor;
  Buffer copy = copies_->Get(body->size());
  const auto place = arena_->Find(copy.span());
  if (!place.has_value()) {
    return ResourceExhausted("send: no registered memory for a payload of %d bytes", body->size());
  }
  std::memcpy(copy.data(), body->data(), body->size());
  copied_->Add(body->size());
  *body = std::move(copy);
  return place->descriptor;
}

absl::StatusOr<FabricSender::Prepared> FabricSender::Prepare(const Item& item) {
  if (free_.empty()) return Unavailable("send: too much is on its way");
  BDN_ASSIGN_OR_RETURN(void* const descriptor, DescriptorOf(item.body));
  Operation* const operation = free_.back();
  const auto prefix = EncodeFabricPrefix(item.prefix);
  std::memcpy(operation->head, prefix.data(), prefix.size());
  size_t head_bytes = prefix.size();
  if (item.header != nullptr) {
    const auto header = EncodeHeader(*item.header);
    std::memcpy(operation->head + head_bytes, header.data(), header.size());
    head_bytes += header.size();
  }
  void* const of_head = heads_region_ == nullptr ? nullptr : heads_region_->descriptor();
  return Prepared{
      operation, {{operation->head, head_bytes}, of_head}, {item.body->span(), descriptor}};
}

absl::Status FabricSender::Begin(const Target& to, const Item& item, Operation* operation,
                                 absl::Status began) {
  // Nothing was taken yet, so that a caller whose send did not begin can try again with the same
  // item.
  if (!began.ok()) return began;
  free_.pop_back();
  operation->is_open = true;
  operation->session = to.session;
  operation->body = std::move(*item.body);
  if (item.done != nullptr) operation->done = std::move(*item.done);
  return began;
}

absl::Status FabricSender::Send(const Target& to, const Item& item) {
  BDN_ASSIGN_OR_RETURN(const Prepared ready, Prepare(item));
  return Begin(to, item, ready.operation,
               endpoint_->Send(to.peer, ready.head, ready.body, ready.operation));
}

absl::Status FabricSender::Write(const Target& to, const Item& item,
                                 const FabricPeerWindow::Place& place) {
  BDN_ASSIGN_OR_RETURN(const Prepared ready, Prepare(item));
  return Begin(to, item, ready.operation,
               endpoint_->Write(to.peer, ready.head, ready.body, place.address, place.key,
                                place.immediate, ready.operation));
}

FabricSender::Ended FabricSender::OnEvent(const FabricEvent& event) {
  auto* const operation = static_cast<Operation*>(event.operation);
  if (!operation->is_open) return {};  // a second event of one operation
  Ended ended{operation->session, std::exchange(operation->done, nullptr)};
  if (!operation->address.empty()) endpoint_->RemovePeer(operation->address);
  operation->address.clear();
  operation->body = Buffer();
  operation->session = 0;
  operation->is_open = false;
  free_.push_back(operation);
  return ended;
}

std::vector<Transport::SendDone> FabricSender::Abandon(uint64_t session,
                                                       const std::string& address) {
  std::vector<Transport::SendDone> done;
  for (Operation& operation : operations_) {
    if (!operation.is_open || operation.session != session) continue;
    operation.session = 0;
    if (operation.done != nullptr) done.push_back(std::exchange(operation.done, nullptr));
    // The provider may look at the peer's address until the operation ends.
    if (endpoint_->AddPeer(address).ok()) operation.address = address;
  }
  return done;
}

}  // namespace bdn
