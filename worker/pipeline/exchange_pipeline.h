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

// The pipeline of claimed exchanges: each is encoded, sent, and decoded when its answer has come. A
// stage hands over to the next by the stage queue or by an answer. The pipeline has no lock of its
// own and keeps no exchange: until it reports the end of one, the exchange belongs to its stages.
// Thread-safe.
class ExchangePipeline {
 public:
  struct Options {
    EncodeContext context;
    size_t max_bytes_in_flight = 0;  // of pushes encoded and not yet sent
    StageTimes* stages = nullptr;    // borrowed; null: no stage times are counted
  };
  // Notifications about an exchange, made on the executor or inside Start, under no lock.
  struct Callbacks {
    // The exchange was not answered in time, and goes on. Its callers must not wait for it: see
    // KeyExchange::GiveBack. Called again when there was no answer for the duration that it
    // returns, or for the requests' timeout if that is less.
    std::function<absl::Duration(KeyExchange* exchange, const absl::Status& status)> late;
    // The exchange has ended. Called once for each Start.
    std::function<void(KeyExchange* exchange, const absl::Status& status)> over;
  };

  // `executor` and `requests` are borrowed. The executor must have run all queued work before the
  // pipeline is destroyed.
  ExchangePipeline(const Options& options, Executor* executor, RequestRunner* requests,
                   Callbacks callbacks);

  // Starts an exchange. REQUIRES: it was claimed.
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
