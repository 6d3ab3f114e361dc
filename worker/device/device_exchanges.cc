#include "worker/device/device_exchanges.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/device/codec_device.h"
#include "worker/error_fields.h"

namespace bdn {
namespace {

constexpr Family kCopied = {
    "device_copied_bytes", Metric::Kind::kCounter,
    "So many bytes were copied from devices to be pushed (push), and of results to devices (pull).",
    "direction"};
using Counts = DeviceExchanges::Counts;
constexpr MetricRow<Counts> kMetrics[] = {
    {{"device_bytes_out", Metric::Kind::kCounter,
      "So many bytes were copied from devices to be pushed.", &kCopied, "push"},
     [](const Counts& now) { return now.bytes_out; }},
    {{"device_bytes_back", Metric::Kind::kCounter,
      "So many bytes of results were copied to devices.", &kCopied, "pull"},
     [](const Counts& now) { return now.bytes_back; }},
    {{"device_pinned_bytes", Metric::Kind::kGauge,
      "So many bytes of pinned memory are held for copies from and to devices."},
     [](const Counts& now) { return now.pinned_bytes; }},
    {{"device_memory_bytes", Metric::Kind::kGauge,
      "Exchanges have taken so many bytes of devices' own memory."},
     [](const Counts& now) { return now.device_bytes; }},
    {{"device_encoded_pushes", Metric::Kind::kCounter,
      "So many pushes were encoded on their device."},
     [](const Counts& now) { return now.encoded_there; }},
    {{"device_host_encoded_pushes", Metric::Kind::kCounter,
      "So many pushes of devices' tensors were encoded by the host's processors."},
     [](const Counts& now) { return now.encoded_here; }},
    {{"device_unpinned_pushes", Metric::Kind::kCounter,
      "So many pushes were copied through slower memory because pinned memory was lacking."},
     [](const Counts& now) { return now.unpinned; }},
};

// Returns whether a push is of a device. A push without data is handled as the host's, whatever its
// place says.
bool IsOfDevice(const DeviceExchanges::Push& push) {
  return push.place.ordinal != DevicePlace::kHost && push.request.data.data != nullptr;
}

absl::Status WhileClosing() { return Cancelled("the worker is being closed"); }

}  // namespace

// A device, with the streams, the memory and the threads that its tensors go through.
struct DeviceExchanges::Device {
  Device(std::unique_ptr<ComputeDevice> opened, const Options& options)
      : compute(std::move(opened)),
        pinned(*compute, options.max_pinned_bytes),
        ring(compute.get(),
             [name = compute->name()](const absl::Status& why) {
               LogWarning(
                   "%s: no memory of the host can be pinned, so that what finds none is copied "
                   "slowly, by a thread that keeps a processor busy: %s (leave the host some "
                   "memory)",
                   name, why.message());
             }),
        codecs(compute.get(), &pinned, &ring, options.max_device_bytes) {}
  ~Device() {
    // Lanes first: their threads use the streams and events.
    lane_back.reset();
    lane_out.reset();
    for (const DeviceEvent event : free_events) compute->FreeEvent(event);
    if (has_streams) {
      compute->FreeStream(out);
      compute->FreeStream(back);
    }
  }
  absl::Status MakeStreams() {
    BDN_ASSIGN_OR_RETURN(out, compute->MakeStream());
    const auto second = compute->MakeStream();
    if (!second.ok()) {
      compute->FreeStream(out);
      return second.status();
    }
    back = *second;
    has_streams = true;
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceEvent> TakeEvent() {
    MutexLock lock(&mu);
    if (free_events.empty()) return compute->MakeEvent();
    const DeviceEvent event = free_events.back();
    free_events.pop_back();
    return event;
  }
  void GiveBack(DeviceEvent event) {
    MutexLock lock(&mu);
    free_events.push_back(event);
  }

  const std::unique_ptr<ComputeDevice> compute;
  PinnedPool pinned;
  PinnedRing ring;
  CodecDevice codecs;
  bool has_streams = false;
  DeviceStream out;
  DeviceStream back;
  Mutex mu;
  std::vector<DeviceEvent> free_events ABSL_GUARDED_BY(mu);
  bool has_warned ABSL_GUARDED_BY(mu) = false;
  // Each device has lanes of its own, so that a late stream of one device delays no tensor of
  // another.
  std::unique_ptr<Lane> lane_out;
  std::unique_ptr<Lane> lane_back;
};

// One tensor on its way. Its owner (the pushing thread, a lane, the client) changes it without a
// lock, except for the members that waits read.
struct DeviceExchanges::Ticket {
  ~Ticket() {
    if (has_event) device->GiveBack(event);
  }

  TicketId id = 0;
  // Moved to the client when the exchange begins. Its data is the memory that the client reads and
  // writes.
  PushRequest request;
  uint32_t tensor = 0;
  std::string name;  // of the tensor
  std::shared_ptr<const Codec>
      codec;                 // of its pushes, where a device can stand for the host; else null
  Device* device = nullptr;  // null: it is the host's, and only waits for the pushes before it
  void* data = nullptr;      // in the device's memory, if it is copied
  bool stays = false;        // it is encoded on the device
  std::optional<PinnedPool::Block> pinned;
  std::unique_ptr<std::byte[]> unpinned;
  MutableByteSpan staging;
  bool has_event = false;
  DeviceEvent event;  // the last point of its streams that was recorded
  std::function<void(TicketId ticket, const absl::StatusOr<PushResult>& result)> done;

  enum class Stage { kLeaving, kExchanging, kComingBack, kDone };
  // Guarded by DeviceExchanges::mu_.
  Stage stage = Stage::kLeaving;
  TicketId inner = 0;  // the client's ticket
  absl::StatusOr<PushResult> result = PushResult();

  // Returns the error with the tensor's name.
  absl::Status Named(const absl::Status& status) const {
    return WithFields(status, {.tensor = name, .stage = "copy"});
  }
};

DeviceExchanges::DeviceExchanges(Options options, Client* client, const Clock* clock,
                                 Registry* telemetry)
    : options_(std::move(options)), client_(client), clock_(clock) {
  metrics_ = telemetry->Add(kMetrics, [this] { return counts(); });
}

DeviceExchanges::~DeviceExchanges() {
  metrics_.reset();
  Close();
  Stop();
  for (const auto& [ordinal, device] : devices_) device->lane_back->Stop();
}

DeviceExchanges::Counts DeviceExchanges::counts() const {
  MutexLock lock(&mu_);
  Counts counts = {.bytes_out = bytes_out_,
                   .bytes_back = bytes_back_,
                   .encoded_here = encoded_here_,
                   .unpinned = unpinned_};
  for (const auto& [ordinal, device] : devices_) {
    counts.pinned_bytes += device->pinned.held_bytes();
    counts.device_bytes += device->codecs.taken_bytes();
    counts.encoded_there += device->codecs.num_encoded();
    counts.encoded_here += device->codecs.num_encoded_by_host();
  }
  return counts;
}

absl::StatusOr<DeviceExchanges::Device*> DeviceExchanges::DeviceOf(int ordinal) {
  MutexLock lock(&mu_);
  const auto found = devices_.find(ordinal);
  if (found != devices_.end()) return found->second.get();
  BDN_ASSIGN_OR_RETURN(auto opened, options_.open(ordinal));
  auto device = std::make_unique<Device>(std::move(opened), options_);
  BDN_RETURN_IF_ERROR(device->MakeStreams());
  device->lane_out =
      std::make_unique<Lane>("bdn-device-out", [this](auto items) { OnLeft(std::move(items)); });
  device->lane_back =
      std::make_unique<Lane>("bdn-device-back", [this](auto items) { OnBack(std::move(items)); });
  return (devices_[ordinal] = std::move(device)).get();
}

// ---- Out

absl::Status DeviceExchanges::PushPullAll(std::span<Push> pushes, std::vector<TicketId>* tickets) {
  tickets->clear();
  tickets->reserve(pushes.size());
  // Pushes of the host's tensors go to the client in one call, unless a push of the same tensor is
  // still leaving its device: then they queue behind it, because the order of a tensor's pushes is
  // that of its steps.
  const auto goes_straight = [this](const Push& push) {
    if (IsOfDevice(push)) return false;
    MutexLock lock(&mu_);
    return !leaving_.contains(push.request.tensor);
  };
  std::vector<PushRequest> straight;
  std::vector<TicketId> opened;
  const auto push_straight = [&] {
    const absl::Status status = client_->PushPullAll(std::span(straight), &opened);
    tickets->insert(tickets->end(), opened.begin(), opened.end());
    straight.clear();
    return status;
  };
  for (Push& push : pushes) {
    if (goes_straight(push)) {
      straight.push_back(std::move(push.request));
      continue;
    }
    if (!straight.empty()) BDN_RETURN_IF_ERROR(push_straight());
    BDN_ASSIGN_OR_RETURN(const TicketId ticket, Leave(&push));
    tickets->push_back(ticket);
  }
  return straight.empty() ? absl::OkStatus() : push_straight();
}

absl::StatusOr<TicketId> DeviceExchanges::Leave(Push* push) {
  auto ticket = std::make_shared<Ticket>();
  BDN_ASSIGN_OR_RETURN(TensorFacts facts, client_->FactsOf(push->request.tensor));
  ticket->name = std::move(facts.name);
  ticket->codec = std::move(facts.codec_for_devices);
  ticket->tensor = push->request.tensor;
  MutableView& data = push->request.data;
  if (data.data != nullptr && data.n == 0) data = {data.data, facts.dtype, facts.elements};
  ticket->done = std::exchange(push->request.done, nullptr);
  const bool is_of_device = IsOfDevice(*push);
  ticket->request = std::move(push->request);
  Lane::Item item{.what = ticket};
  if (is_of_device) {
    if (ticket->request.left_out != nullptr) {
      return Unimplemented("tensor '%s': left_out is for tensors of the host", ticket->name);
    }
    const absl::StatusOr<Device*> device = DeviceOf(push->place.ordinal);
    if (!device.ok()) return ticket->Named(device.status());
    ticket->device = *device;
    const absl::Status status = CopyOut(ticket.get(), push->place.stream);
    if (!status.ok()) return ticket->Named(status);
    item.device = ticket->device->compute.get();
    item.event = ticket->event;
  }
  MutexLock lock(&mu_);
  if (is_closed_) return WhileClosing();
  Leaving& leaving = leaving_[ticket->tensor];
  if (leaving.lane == nullptr) {
    // The tensor's earlier pushes have begun meanwhile, or this is its first. A tensor of the host
    // has no device; any lane will do.
    Device* const device = is_of_device ? ticket->device : devices_.begin()->second.get();
    leaving.lane = device->lane_out.get();
  }
  ++leaving.count;
  ticket->id = ++last_ticket_;
  tickets_[ticket->id] = ticket;
  // Under the lock, so that two pushes of one tensor are posted in the order in which they were
  // counted.
  leaving.lane->Post(std::move(item));
  return ticket->id;
}

// Puts the copy to the host into a stream of ours, unless a thread must carry it out. The caller's
// thread waits for nothing.
absl::Status DeviceExchanges::CopyOut(Ticket* ticket, DeviceStream stream) {
  Device& device = *ticket->device;
  ComputeDevice& compute = *device.compute;
  BDN_ASSIGN_OR_RETURN(const bool is_capturing, compute.IsCapturing(stream));
  if (is_capturing) {
    return FailedPrecondition(
        "its stream is being captured into a CUDA graph, which cannot hold an exchange: push "
        "outside of the graph (torch.cuda.graph, make_graphed_callables)");
  }
  BDN_ASSIGN_OR_RETURN(ticket->event, device.TakeEvent());
  ticket->has_event = true;
  // The caller's stream has made the data at this point; the stream of ours waits for it, and the
  // caller's goes on.
  BDN_RETURN_IF_ERROR(compute.Record(ticket->event, stream));
  BDN_ASSIGN_OR_RETURN(ticket->stays, StaysOnDevice(ticket));
  if (ticket->stays) {
    ticket->request.device = &device.codecs;
    return absl::OkStatus();
  }
  MutableView& data = ticket->request.data;
  ticket->data = data.data;
  const size_t bytes = data.n * DTypeSize(data.dtype);
  absl::StatusOr<PinnedPool::Block> block = device.pinned.Take(bytes);
  if (block.ok()) {
    ticket->pinned.emplace(*std::move(block));
    ticket->staging = ticket->pinned->bytes().first(bytes);
  } else {
    if (!absl::IsResourceExhausted(block.status())) return block.status();
    ticket->unpinned = std::make_unique_for_overwrite<std::byte[]>(bytes);
    ticket->staging = {ticket->unpinned.get(), bytes};
    bool says_so;
    {
      MutexLock lock(&device.mu);
      says_so = !std::exchange(device.has_warned, true);
    }
    if (says_so) {
      LogWarning(
          "%s: %s; what finds none goes through memory that is not pinned, more slowly (setting "
          "max-pinned-bytes)",
          compute.name(), block.status().message());
    }
  }
  data.data = ticket->staging.data();
  {
    MutexLock lock(&mu_);
    if (!ticket->request.absent) {
      bytes_out_ += bytes;
      ++encoded_here_;
    }
    if (ticket->unpinned != nullptr) ++unpinned_;
  }
  // Memory that is not pinned cannot be copied to by a stream: OnLeft copies it by the ring when
  // the caller's stream is here.
  if (ticket->request.absent || ticket->unpinned != nullptr) return absl::OkStatus();
  BDN_RETURN_IF_ERROR(compute.WaitFor(ticket->event, device.out));
  BDN_RETURN_IF_ERROR(compute.CopyToHost(device.out, ticket->data, ticket->staging));
  return compute.Record(ticket->event, device.out);
}

absl::StatusOr<bool> DeviceExchanges::StaysOnDevice(Ticket* ticket) const {
  if (options_.codecs == CodecPlace::kHost) return false;
  Device& device = *ticket->device;
  const absl::Status works = device.compute->kernels();
  if (!works.ok() && options_.codecs == CodecPlace::kDevice) return works;
  const Codec* const codec = ticket->codec.get();
  if (!works.ok() || codec == nullptr) return false;
  if (options_.codecs == CodecPlace::kDevice) return true;
  const MutableView& data = ticket->request.data;
  // See CodecPlace.
  return codec->MaxEncodedBytes(data.n, data.dtype) <= data.n * DTypeSize(data.dtype) / 2;
}

void DeviceExchanges::OnLeft(std::vector<Lane::Item> items) {
  bool is_closed;
  {
    MutexLock lock(&mu_);
    is_closed = is_closed_;
  }
  std::vector<std::shared_ptr<Ticket>> ready;
  for (Lane::Item& item : items) {
    Ticket& ticket = *item.what;
    if (item.status.ok() && ticket.unpinned != nullptr && !ticket.request.absent) {
      item.status = ticket.device->ring.CopyToHost(ticket.device->out, ticket.data, ticket.staging);
    }
    if (item.status.ok() && is_closed) item.status = WhileClosing();
    if (item.status.ok()) {
      ready.push_back(item.what);
    } else {
      End(item.what, ticket.Named(item.status));
    }
  }
  std::vector<PushRequest> requests;
  for (const auto& ticket : ready) {
    requests.push_back(std::move(ticket->request));
    // The callback holds the ticket, which the caller may give up before.
    requests.back().done = [this, ticket](TicketId, const absl::StatusOr<PushResult>& result) {
      OnAnswer(ticket, result);
    };
    MutexLock lock(&mu_);
    ticket->stage = Ticket::Stage::kExchanging;
  }
  // A request that is refused does not keep the others from starting: the call is repeated behind
  // it.
  std::vector<TicketId> opened;
  for (size_t begun = 0; begun < ready.size(); begun += opened.size()) {
    const absl::Status status = client_->PushPullAll(std::span(requests).subspan(begun), &opened);
    for (size_t i = 0; i < opened.size(); ++i) {
      MutexLock lock(&mu_);
      ready[begun + i]->inner = opened[i];
    }
    if (status.ok()) break;
    End(ready[begun + opened.size()], status);
    ++begun;
  }
  MutexLock lock(&mu_);
  for (const Lane::Item& item : items) {
    const auto left = leaving_.find(item.what->tensor);
    if (--left->second.count == 0) leaving_.erase(left);
  }
  changed_.SignalAll();
}

// ---- Back

void DeviceExchanges::OnAnswer(const std::shared_ptr<Ticket>& ticket,
                               const absl::StatusOr<PushResult>& result) {
  const bool comes_back =
      result.ok() && !result->absent && ticket->device != nullptr && !ticket->stays;
  if (!comes_back) return End(ticket, result);
  Lane::Item item{.what = ticket};
  if (ticket->unpinned == nullptr) {
    const absl::Status status = CopyBack(ticket.get());
    if (!status.ok()) return End(ticket, ticket->Named(status));
    item.device = ticket->device->compute.get();
    item.event = ticket->event;
  }
  {
    MutexLock lock(&mu_);
    bytes_back_ += ticket->staging.size();
    ticket->result = *result;
    // A copy by the ring has no event for which a stream could wait: the result is there when the
    // copy is done.
    if (ticket->unpinned == nullptr) ticket->stage = Ticket::Stage::kComingBack;
    changed_.SignalAll();
  }
  ticket->device->lane_back->Post(std::move(item));
}

absl::Status DeviceExchanges::CopyBack(Ticket* ticket) {
  Device& device = *ticket->device;
  BDN_RETURN_IF_ERROR(device.compute->CopyToDevice(device.back, ticket->staging, ticket->data));
  return device.compute->Record(ticket->event, device.back);
}

void DeviceExchanges::OnBack(std::vector<Lane::Item> items) {
  for (Lane::Item& item : items) {
    Ticket& ticket = *item.what;
    if (ticket.unpinned != nullptr) {
      item.status =
          ticket.device->ring.CopyToDevice(ticket.device->back, ticket.staging, ticket.data);
    }
    if (item.status.ok()) {
      End(item.what, item.what->result);
    } else {
      End(item.what, item.what->Named(item.status));
    }
  }
}

void DeviceExchanges::End(const std::shared_ptr<Ticket>& ticket,
                          absl::StatusOr<PushResult> result) {
  {
    MutexLock lock(&mu_);
    ticket->stage = Ticket::Stage::kDone;
    ticket->result = result;
    ticket->pinned.reset();
    ticket->unpinned.reset();
    changed_.SignalAll();
  }
  if (ticket->done == nullptr) return;
  ticket->done(ticket->id, result);
  MutexLock lock(&mu_);
  tickets_.erase(ticket->id);
}

// ---- Waiting

absl::Status DeviceExchanges::WaitAll(std::span<const TicketId> tickets,
                                      std::span<const DeviceStream> streams, absl::Duration timeout,
                                      std::vector<PushResult>* results) {
  const absl::Time deadline = clock_->Now() + timeout;
  results->clear();
  results->reserve(tickets.size());
  std::vector<PushResult> of_client;
  for (size_t i = 0; i < tickets.size();) {
    if (IsOurs(tickets[i])) {
      const auto result = Wait(tickets[i], streams.empty() ? nullptr : &streams[i], deadline);
      if (!result.has_value()) return Describe(tickets[i]);
      BDN_RETURN_IF_ERROR(result->status());
      results->push_back(**result);
      ++i;
      continue;
    }
    // A run of tickets of the client is waited for in one call.
    const auto end = std::find_if(tickets.begin() + i, tickets.end(), IsOurs);
    const auto theirs = tickets.subspan(i, end - tickets.begin() - i);
    const absl::Status status = client_->WaitAll(theirs, deadline - clock_->Now(), &of_client);
    results->insert(results->end(), of_client.begin(), of_client.end());
    BDN_RETURN_IF_ERROR(status);
    i += theirs.size();
  }
  return absl::OkStatus();
}

std::optional<absl::StatusOr<PushResult>> DeviceExchanges::Wait(TicketId id,
                                                                const DeviceStream* stream,
                                                                absl::Time deadline) {
  MutexLock lock(&mu_);
  for (;;) {
    const auto found = tickets_.find(id);
    if (found == tickets_.end()) return NotFound("no ticket %d is in flight", id);
    const std::shared_ptr<Ticket> ticket = found->second;
    const bool comes_back = ticket->stage == Ticket::Stage::kComingBack;
    if (ticket->stage == Ticket::Stage::kDone || (comes_back && stream != nullptr)) {
      tickets_.erase(found);
      // Under the lock: the event still belongs to this ticket, which returns it when it ends.
      if (comes_back) {
        const absl::Status status = ticket->device->compute->WaitFor(ticket->event, *stream);
        if (!status.ok()) return ticket->Named(status);
      }
      return ticket->result;
    }
    if (is_closed_) return WhileClosing();
    if (clock_->Now() >= deadline) return std::nullopt;
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
}

absl::Status DeviceExchanges::Describe(TicketId id) const {
  std::shared_ptr<const Ticket> ticket;
  TicketId inner = 0;
  bool is_leaving = false;
  {
    MutexLock lock(&mu_);
    const auto found = tickets_.find(id);
    if (found == tickets_.end()) return NotFound("no ticket %d is in flight", id);
    ticket = found->second;
    is_leaving = ticket->stage == Ticket::Stage::kLeaving;
    if (ticket->stage == Ticket::Stage::kExchanging) inner = ticket->inner;
  }
  if (inner != 0) {
    const absl::Status described = client_->DescribeWait(inner);
    if (absl::IsDeadlineExceeded(described)) return described;
  }
  const std::string device = ticket->device == nullptr ? "a" : ticket->device->compute->name();
  return WithFields(
      DeadlineExceeded("still in flight"),
      {.tensor = ticket->name,
       .stage = "copy",
       .waiting_for = is_leaving ? "a stream of " + device + " to come to the push" : device});
}

absl::Status DeviceExchanges::AwaitStarted(absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  TicketId late = 0;
  {
    MutexLock lock(&mu_);
    while (!leaving_.empty() && !is_closed_ && clock_->Now() < deadline) {
      clock_->WaitUntil(&changed_, &mu_, deadline);
    }
    if (leaving_.empty()) return absl::OkStatus();
    if (is_closed_) return WhileClosing();
    for (const auto& [id, ticket] : tickets_) {
      if (ticket->stage == Ticket::Stage::kLeaving) late = id;
    }
  }
  const absl::Status described = Describe(late);
  return absl::IsNotFound(described) ? DeadlineExceeded("a push has not left its device")
                                     : described;
}

absl::Status DeviceExchanges::CheckStarted(uint32_t tensor) const {
  MutexLock lock(&mu_);
  if (!leaving_.contains(tensor)) return absl::OkStatus();
  return FailedPrecondition("tensor %d is in flight: its push has not left its device", tensor);
}

// ---- The end

void DeviceExchanges::Close() {
  MutexLock lock(&mu_);
  is_closed_ = true;
  changed_.SignalAll();
}

void DeviceExchanges::Stop() {
  std::vector<Lane*> lanes;
  {
    MutexLock lock(&mu_);
    for (const auto& [ordinal, device] : devices_) lanes.push_back(device->lane_out.get());
  }
  // Without the lock, which the lanes' threads take.
  for (Lane* const lane : lanes) lane->Stop();
}

}  // namespace bdn
