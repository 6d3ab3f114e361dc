#ifndef BANDONEON_WORKER_HOST_HOST_CLIENT_H_
#define BANDONEON_WORKER_HOST_HOST_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/telemetry/recorder.h"
#include "common/telemetry/registry.h"
#include "worker/client.h"
#include "worker/host/attached_pushes.h"
#include "worker/host/daemon_calls.h"
#include "worker/host/daemon_channel.h"

namespace bdn {

// A process that takes part in a job through its host daemon (HostServer). Data to be pushed is
// read where it lies if that is memory of memory(), and is copied into such memory once if not;
// each result is copied once, from the memory into which the daemon decoded it for all processes.
// Thread-safe.
//
// Its parts are the connection (DaemonChannel), whose thread takes the daemon's messages, copies
// results and runs callbacks; the tensors and their pushes (AttachedPushes); and the calls
// (DaemonCalls).
class HostClient final : public Client {
 public:
  using Options = DaemonChannel::Options;

  // The numbers of the process's own metrics, as of one moment.
  struct Counts {
    Rank rank = 0;
    int size = 0;
    uint64_t tickets_ended = 0;
    uint64_t bytes_staged = 0;   // copied for the daemon to read
    uint64_t bytes_results = 0;  // copied into the caller's tensors
  };
  Counts counts() const;

  // Says hello over a connected socket, and waits until all processes of the host and all nodes of
  // the job are there. `clock` and `telemetry` are borrowed and outlive the client. The daemon
  // records its own work; `recorder` is for this process's.
  static absl::StatusOr<std::unique_ptr<HostClient>> Attach(const Options& options,
                                                            FileDescriptor socket,
                                                            const Clock* clock, Registry* telemetry,
                                                            const RecorderOptions& recorder = {});
  ~HostClient() override;
  HostClient(const HostClient&) = delete;
  HostClient& operator=(const HostClient&) = delete;

  Standing standing() const override {
    return {.rank = channel_.rank(),
            .joined_size = channel_.joined_size(),
            .is_candidate = channel_.is_candidate(),
            .num_candidates = channel_.num_candidates()};
  }
  // A group of ranks is all of them, as it cannot be another here.
  Presence PresenceAmong(const RankGroup&) const override { return channel_.presence(); }
  const std::vector<int>& processes() const override { return channel_.processes(); }
  std::shared_ptr<MemoryDomain> memory() override { return arena_; }
  ProgramRecords program_records() override { return {.recorder = recorder_.get()}; }
  uint64_t RecordedKeyOf(uint32_t tensor) override;
  absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<TensorDeclaration> tensors,
                                                absl::Duration timeout) override;
  absl::Status Retire(std::span<const uint32_t> tensors) override {
    return pushes_.Retire(tensors);
  }
  absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const override {
    return pushes_.FactsOf(tensor);
  }
  absl::Status PushPullAll(std::span<PushRequest> requests,
                           std::vector<TicketId>* tickets) override {
    return pushes_.PushPullAll(requests, tickets);
  }
  absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                       std::vector<PushResult>* results) override;
  absl::Status DescribeWait(TicketId ticket) override;
  absl::StatusOr<Tables*> tables() override;
  absl::Status BroadcastParts(const BroadcastCall& call, absl::Duration timeout) override;
  absl::StatusOr<std::vector<Rank>> Boundary(absl::Duration timeout) override;
  absl::StatusOr<std::vector<Rank>> Meet(const std::string& name, absl::Duration timeout) override;
  absl::Status ReportValue(const ReportedValue& value) override;
  absl::Status Leave(absl::Duration timeout) override;
  absl::Status Depart(const std::string& reason) override;
  absl::Status Abort(const std::string& reason) override;
  void Close() override { channel_.Close(); }
  absl::Status Perform(StateCall* call, absl::Duration timeout) override;

 private:
  HostClient(const Options& options, FileDescriptor socket, const Clock* clock);
  absl::Status CountWhatTheDaemonCounts(absl::Duration timeout, Registry* telemetry);
  void ReadDaemonsMetrics(std::vector<Sample>* samples);
  std::string ReadDaemonsObject(std::string_view name);

  const std::shared_ptr<ShmArena> arena_;
  DaemonChannel channel_;  // its thread uses the next two, and ends in the destructor
  DaemonCalls calls_;
  AttachedPushes pushes_;

  std::unique_ptr<Recorder> recorder_;  // null: nothing is recorded; made by Attach
  // The same, for the channel's thread, which runs before it is made.
  std::atomic<Recorder*> recorder_of_channel_ = nullptr;
  Mutex declaring_;  // lets one declaration go on at a time; taken before the parts' locks
  Mutex mu_;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;

  // The daemon's metrics, with the names that it gave them.
  std::deque<std::string> texts_;
  std::vector<Metric> daemons_metrics_;
  std::vector<std::unique_ptr<Registry::Source>> metrics_;  // declared last, so destroyed first
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_CLIENT_H_
