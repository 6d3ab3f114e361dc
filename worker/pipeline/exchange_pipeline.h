#ifndef BANDONEON_WORKER_PIPELINE_EXCHANGE_PIPELINE_H_
#define BANDONEON_WORKER_PIPELINE_EXCHANGE_PIPELINE_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/executor.h"
#include "common/telemetry/stage_times.h"
#include "worker/pipeline/key_exchange.h"
#include "worker/pipeline/request_runner.h"
#include "worker/pipeline/stage_queue.h"

namespace bdn {

// The way of an exchange whose front was claimed: encoded, sent, and decoded when its answer is
// here, each stage handing over to the next by the stage queue or by an answer. Holds no lock of
// its own and no exchange: until it says that one is over, the exchange belongs to the stages.
// Thread-safe.
class ExchangePipeline {
 public:
  struct Options {
    EncodeContext context;
    size_t max_bytes_in_flight = 0;  // encoded, and not sent yet
    StageTimes* stages = nullptr;    // borrowed; null: none are counted
  };
  // What is told of an exchange, on the executor or inside Start, under no lock.
  struct Callbacks {
    // It is not answered in time, and goes on. Its callers must not wait for it: GiveBack. Told
    // again when there has been no answer for as long as this returns, or for the requests' timeout
    // if that is less.
    std::function<absl::Duration(KeyExchange* exchange, const absl::Status& status)> late;
    // Once for each Start.
    std::function<void(KeyExchange* exchange, const absl::Status& status)> over;
  };

  // `executor` and `requests` are borrowed. The executor must have run everything that is queued
  // before the pipeline goes.
  ExchangePipeline(const Options& options, Executor* executor, RequestRunner* requests,
                   Callbacks callbacks);

  // REQUIRES: the exchange was claimed.
  void Start(KeyExchange* exchange);

 private:
  void Encode(KeyExchange* exchange, std::function<void()> sent, const StageSpan& queued);
  void Send(KeyExchange* exchange, RequestTable::Request request, std::function<void()> sent);
  void QueueDecode(KeyExchange* exchange, RequestTable::Outcome outcome);
  void Decode(KeyExchange* exchange, RequestTable::Outcome outcome, const StageSpan& queued);

  const Options options_;
  RequestRunner* const requests_;
  const Callbacks callbacks_;
  StageQueue queue_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_EXCHANGE_PIPELINE_H_
