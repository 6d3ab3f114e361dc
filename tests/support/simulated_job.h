#ifndef BANDONEON_TESTS_SUPPORT_SIMULATED_JOB_H_
#define BANDONEON_TESTS_SUPPORT_SIMULATED_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/shard.h"
#include "tests/support/scripted_loopback.h"
#include "worker/pipeline/request_table.h"

namespace bdn::testing {

// The side that handles a frame.
enum class SimulatedSide { kWorker, kServer, kNetwork };

// A job of any number of workers and servers, on one thread: the request table of each worker, the
// sessions, shard map and one shard of each server, and between them a loopback network with a
// transport for each. The parts that it leaves out do not know the number of nodes: the codecs and
// tensors of workers, the threads and queues of both. Time stands still but for Advance. Not
// thread-safe.
//
// Keys are numbered, dense ones of `elements` float32 first and then broadcast ones, and go to the
// servers in turn. Frames go nowhere before Deliver.
class SimulatedJob {
 public:
  struct Shape {
    int workers = 1;
    int servers = 1;
    int dense_keys = 1;
    int broadcast_keys = 0;
    size_t elements = 16;
    absl::Duration probe_interval = absl::Seconds(1);
  };
  // Runs `work`, which handles frames of this kind and returns how many. A benchmark measures it
  // here.
  using Work = std::function<size_t()>;
  using Meter = std::function<void(SimulatedSide side, const char* kind, const Work& work)>;

  // Makes a job whose nodes have all said hello to each other.
  explicit SimulatedJob(const Shape& shape, Meter meter = nullptr);
  ~SimulatedJob();
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  const Shape& shape() const { return shape_; }
  // Submit for each of the keys a push of the worker's rank + 1 in all elements, the root's init
  // with the step as its value, or another worker's fetch of it.
  void Push(int worker, const std::vector<int>& keys, Step step);
  void Init(int worker, const std::vector<int>& keys, Step step);
  void Fetch(int worker, const std::vector<int>& keys, Step step);
  // Delivers all frames, and those that are sent because of them, until none is on its way.
  void Deliver();
  // Lets time pass. Workers act when something is due, but their frames wait for Deliver.
  void Advance(absl::Duration by);
  // Holds all frames from and to this worker until Release. Frames that it sends count as handed
  // over.
  void Stall(int worker);
  // Lets the held frames arrive, at the next Deliver.
  void Release(int worker);
  // Returns the network, for faults of the caller's own.
  ScriptedLoopback& network() { return network_; }

  RequestStats worker_stats(int worker) const;
  ShardStats server_stats() const;
  // Return the number of results that the workers have had, and the sum of their first elements.
  uint64_t results() const { return results_; }
  double first_elements() const { return first_elements_; }
  // Bytes on the network of frames of a type, and how many there were.
  struct Traffic {
    uint64_t frames = 0;
    uint64_t bytes = 0;
  };
  const Traffic& sent(FrameType type) const { return sent_[static_cast<size_t>(type)]; }

 private:
  struct Worker;
  struct Server;

  Key KeyOf(int key) const { return Key::Of(static_cast<uint32_t>(key), 0); }
  NodeId ServerOf(int key) const;
  void Measure(SimulatedSide side, const char* kind, const Work& work);
  // Sends requests with this header, but for the key, and payload.
  void Submit(int worker, const FrameHeader& header, const Buffer& payload,
              const std::vector<int>& keys);
  void Connect(Worker* worker, size_t server);
  void Perform(Worker* worker, std::vector<RequestTable::Actions> all);
  void HandleSent(Worker* worker);
  void HandleAtWorker(Worker* worker);
  void HandleAtServer(Server* server);
  void Answer(Server* server, Sends sends);

  const Shape shape_;
  const Meter meter_;
  absl::Time now_ = absl::UnixEpoch();
  ScriptedLoopback network_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  uint64_t results_ = 0;
  double first_elements_ = 0;
  Traffic sent_[256];
};

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_SIMULATED_JOB_H_
