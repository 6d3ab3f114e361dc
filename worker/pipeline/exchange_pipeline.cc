#include "worker/pipeline/exchange_pipeline.h"

#include <array>
#include <functional>
#include <utility>

#include "common/base/fault_point.h"
#include "common/base/float_guard.h"

namespace bdn {
namespace {

// The lanes of the queue, in the order of the pipeline.
enum LaneIndex : size_t { kEncodeLane, kDecodeLane, kNumLanes };

// A key of fewer bytes is encoded and decoded by the thread that has it, because waking another
// would cost more.
constexpr uint64_t kShortKey = 16 << 10;

bool IsShort(const KeyExchange& exchange, const SegmentedCodec& codec) {
  // Only for codecs that bound themselves, since the payload may lie in memory that the peer can
  // still change; and not for devices, for which the thread would have to sleep.
  return codec.bounds_itself() && exchange.claimed().device == nullptr &&
         KeyBytes(exchange.key().entry) <= kShortKey;
}

SpanId SpanOf(const KeyExchange& exchange) {
  return {.key = exchange.id(), .step = exchange.claimed().step};
}

std::array<StageQueue::Lane, kNumLanes> Lanes(size_t max_bytes_in_flight) {
  std::array<StageQueue::Lane, kNumLanes> lanes;
  lanes[kEncodeLane].max_bytes = max_bytes_in_flight;
  return lanes;
}

}  // namespace

ExchangePipeline::ExchangePipeline(const Options& options, Executor* executor,
                                   RequestRunner* requests, Callbacks callbacks)
    : options_(options),
      requests_(requests),
      callbacks_(std::move(callbacks)),
      queue_(executor, Lanes(options.max_bytes_in_flight)) {}

void ExchangePipeline::Start(KeyExchange* exchange) {
  if (IsShort(*exchange, exchange->key().link.codecs.Push(exchange->claimed().step))) {
    const FloatGuard guard;
    return Encode(
        exchange, [] {}, StageSpan(options_.stages));  // it takes no budget
  }
  const size_t budget = exchange->MaxPushBytes();
  queue_.Push({.lane = kEncodeLane,
               .urgency = {exchange->claimed().priority, exchange->claimed().step,
                           RotatedKey(exchange->id(), options_.context.rank)},
               .bytes = budget,
               .run = [this, exchange, budget, queued = StageSpan(options_.stages)] {
                 Encode(
                     exchange, [this, budget] { queue_.Release(kEncodeLane, budget); }, queued);
               }});
}

void ExchangePipeline::Encode(KeyExchange* exchange, std::function<void()> sent,
                              const StageSpan& queued) {
  const uint64_t bytes = KeyBytes(exchange->key().entry);
  const SpanId id = SpanOf(*exchange);
  // Not the peer but the urgency is what a queue is about (docs/trace_format.md).
  queued.End(
      Stage::kQueue, bytes,
      {.key = id.key, .step = id.step, .peer = static_cast<NodeId>(exchange->claimed().priority)});
  StageLaps laps(options_.stages, id);
  EncodeContext context = options_.context;
  context.with_checksum = requests_->needs_checksums();
  absl::StatusOr<RequestTable::Request> push = exchange->Encode(context);
  laps.End(Stage::kEncode, 1, bytes);
  FaultPoint("encode.done");
  if (push.ok()) return Send(exchange, *std::move(push), std::move(sent));
  // Nothing will be sent, so the budget is given back here.
  sent();
  callbacks_.over(exchange, push.status());
}

void ExchangePipeline::Send(KeyExchange* exchange, RequestTable::Request request,
                            std::function<void()> sent) {
  const absl::Status status = requests_->Submit(
      std::move(request), {.sent = std::move(sent), .answered = [this, exchange](auto outcome) {
                             QueueDecode(exchange, std::move(outcome));
                           }});
  // Would be a bug of this library: a key has one exchange in flight at a time.
  if (!status.ok()) callbacks_.over(exchange, status);
}

void ExchangePipeline::QueueDecode(KeyExchange* exchange, RequestTable::Outcome outcome) {
  if (outcome.frame.ok() &&
      IsShort(*exchange, exchange->key().link.codecs.Pull(exchange->claimed().step))) {
    const FloatGuard guard;
    return Decode(exchange, std::move(outcome), StageSpan(options_.stages));
  }
  queue_.Push(
      {.lane = kDecodeLane,
       .urgency = {exchange->claimed().priority, exchange->claimed().step, exchange->id()},
       .run = [this, exchange, outcome = std::move(outcome), queued = StageSpan(options_.stages)] {
         Decode(exchange, outcome, queued);
       }});
}

void ExchangePipeline::Decode(KeyExchange* exchange, RequestTable::Outcome outcome,
                              const StageSpan& queued) {
  absl::StatusOr<Frame>& answer = outcome.frame;
  const uint64_t bytes = KeyBytes(exchange->key().entry);
  const SpanId id = SpanOf(*exchange);
  if (answer.ok()) queued.End(Stage::kDecodeQueue, answer->payload.size(), id);
  StageLaps laps(options_.stages, id);
  // A reply in shared memory may be changed by its sender while it is decoded. Codecs that bound
  // themselves tolerate that; other codecs, and devices, which read it later, get a copy.
  const bool may_change =
      exchange->key().link.codecs.Pull(exchange->claimed().step).bounds_itself() &&
      !exchange->claimed().is_on_device();
  if (answer.ok() && !may_change) {
    Own(&*answer);
  }
  KeyExchange::Next next = exchange->OnAnswer(outcome);
  const bool is_over = !next.request.has_value();
  const bool has_result = is_over && next.status.ok();
  // An exchange that fetches a replica comes here several times; it counts as one item.
  if (answer.ok()) laps.End(Stage::kDecode, has_result ? 1 : 0, has_result ? bytes : 0);
  if (is_over) {
    callbacks_.over(exchange, next.status);
    if (has_result) laps.End(Stage::kDeliver, 1, bytes);
    return;
  }
  // The next report of lateness comes after the patience that `late` has returned.
  if (!next.status.ok()) next.request->timeout = callbacks_.late(exchange, next.status);
  Send(exchange, *std::move(next.request), nullptr);
}

}  // namespace bdn
