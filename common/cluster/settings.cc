#include "common/cluster/settings.h"

#include <array>
#include <vector>

namespace bdn {
namespace {

constexpr Setting kJobId = {"job-id", "",
                            "name of the job; others of another name never meet it, e.g. gpt-7"};
constexpr Setting kToken = {"token", "",
                            "secret that every node of the job must present; on a "
                            "command line others read it, in a file or the environment they do not",
                            true};
constexpr Setting kTokenFile = {"token-file", "", "file that holds the token, e.g. job/token"};
constexpr Setting kTlsCa = {"tls-ca", "",
                            "certificates of who may certify others, PEM, e.g. certs/node/ca.pem"};
constexpr Setting kTlsCert = {"tls-cert", "",
                              "this process's certificate, e.g. certs/node/cert.pem"};
constexpr Setting kTlsKey = {"tls-key", "", "its private key, e.g. certs/node/key.pem"};
constexpr Setting kInsecure = {
    "insecure", "false", "take part across hosts without certificates: the token in the clear"};
constexpr Setting kLogLevel = {"log-level", "info", "debug, info, warning, error or off"};
constexpr Setting kLogFormat = {"log-format", "text",
                                "text, or json: each line of the log an object"};
constexpr Setting kScheduler = {"scheduler", "", "where the scheduler listens, e.g. 10.0.0.1:7000"};
constexpr Setting kRank = {"rank", "-1",
                           "place among the nodes of its role, from 0; -1 for any free one"};
constexpr Setting kLink = {"link", "",
                           "pretend the network is this fast, e.g. 200mbit; empty for no limit"};
constexpr Setting kIoThreads = {
    "io-threads", "0", "threads that move bytes, and encrypt them; 0 chooses by the machine"};
constexpr Setting kTransport = {
    "transport", "auto",
    "auto: shared memory with processes of this user on this host, the network with all others; "
    "shm: shared memory or an error; rdma: a fabric of libfabric's or an error; or network"};
constexpr Setting kFabricProvider = {
    "fabric-provider", "",
    "libfabric's provider for transport=rdma, e.g. verbs;ofi_rxm, efa or tcp;ofi_rxm; empty for "
    "an RDMA device's. With auto and one of them payloads go over it, too"};
constexpr Setting kFabricDomain = {"fabric-domain", "",
                                   "its device, e.g. mlx5_0 or eth0; empty for its first"};
constexpr Setting kFabricInterface = {
    "fabric-interface", "",
    "address or name of this host that it is reached at; empty for its first"};
constexpr Setting kFabricWindow = {
    "fabric-window", "64MiB", "memory that each peer over a fabric may write to, 1MiB to 512MiB"};
constexpr Setting kStageTimes = {
    "stage-times", "wall",
    "what is counted of the stages that keys pass through: wall (items, bytes, wall time), cpu "
    "(CPU time, too) or off"};
constexpr Setting kRecorderBytes = {
    "recorder-bytes", "4MiB",
    "memory that keeps the latest spans of this process's work, for `bandoneon trace`; 0 for none"};
constexpr Setting kRecorderDir = {
    "recorder-dir", "",
    "when an exchange is late or the job fails, write those to a file of this directory; empty for "
    "none"};
constexpr Setting kTrace = {
    "trace", "",
    "directory of a file with all spans of this process, which survives a kill; empty for memory "
    "alone"};
constexpr Setting kTraceBytes = {
    "trace-bytes", "1GiB", "largest file of trace; then the latest spans take the oldest's place"};
constexpr Setting kTraceSteps = {"trace-steps", "",
                                 "steps that are recorded, as 100-120 or every 50; empty for all"};
constexpr Setting kQualityEvery = {
    "quality-every", "256",
    "measure what each link with ef(...) or delta(...) leaves out in one of so many steps; 0 for "
    "never"};
constexpr Setting kQualityGuard = {
    "quality-guard", "warn",
    "where that grows without bound: warn, fall-back (send that key uncompressed from then on) "
    "or off"};
constexpr Setting kConnectionTimeout = {
    "connection-timeout", "10s",
    "replace a connection whose other end was silent for so long; 0s for never"};
constexpr Setting kConnections = {
    "connections", "auto",
    "connections to each server over the network, 1 to 64; auto: one, and up to 8 to a server that "
    "is more than 5 ms away"};
constexpr Setting kMaxBytesInFlight = {
    "max-bytes-in-flight", "16MiB",
    "encoded bytes being sent at once: of a worker's pushes, and of replies to one worker; the "
    "rest goes by urgency"};
constexpr Setting kWaitTimeout = {
    "wait-timeout", "1800s",
    "how long a server may owe an answer; for workers that are alive waits go on"};
constexpr Setting kProbeInterval = {"probe-interval", "1s",
                                    "how often to ask after a reply that does not come"};
constexpr Setting kMetricsFile = {"metrics-file", "",
                                  "write what was counted to this file at the end, as JSON"};
constexpr Setting kHistoryFile = {
    "history-file", "",
    "write what this process sees of its job, as JSON, to this path with its role, rank and pid "
    "behind it, for scripts/check_history; empty for none"};
constexpr Setting kExitWhenDone = {
    "exit-when-done", "true",
    "end when the job has ended, done or failed; else serve the next one"};
constexpr Setting kDrainTimeout = {
    "drain-timeout", "0s",
    "after SIGTERM, how long a job that runs may go on until it ends by itself; a second signal "
    "ends it at once"};
constexpr Setting kMetricsListen = {
    "metrics-listen", "",
    "host:port of GET /metrics for Prometheus, in the clear, e.g. 0.0.0.0:7090; empty for none"};
constexpr Setting kHealthListen = {
    "health-listen", "",
    "host:port of a gRPC health service in the clear, e.g. 0.0.0.0:7080; empty for none"};
constexpr Setting kJoinTimeout = {"join-timeout", "120s", "how long to wait for all nodes to join"};

constexpr Setting kSchedulerSettings[] = {
    {"listen", "127.0.0.1:0", "host:port to listen at; port 0 takes a free one"},
    {"port-file", "", "write the port listened at to this file"},
    {"http-listen", "",
     "host:port of the status page for browsers, in the clear, e.g. 127.0.0.1:7070; empty for "
     "none"},
    {"http-port-file", "", "write the port of the status page to this file"},
    {"failure-file", "",
     "when the job has failed, write to this file who went before, in order, an empty line and "
     "why"},
    {"workers", "1", "number of workers of the job"},
    {"max-workers", "0",
     "up to so many workers may be there at once; the job begins with `workers`; 0: no more"},
    {"servers", "1", "number of servers of the job"},
    {"seed", "0", "seed of every random draw of the run"},
    {"partition-bytes", "4MiB", "largest piece of a tensor, as float32"},
    {"fusion-bytes", "1MiB", "tensors under this are fused into groups up to this"},
    {"min-compress-bytes", "64KiB", "groups and tensors under this go uncompressed"},
    {"row-buckets", "0",
     "number of keys into which tables of rows are divided, a power of two to 4096; 0: at least "
     "four for each server"},
    {"heartbeat-interval", "1s", "how often each node says that it lives"},
    {"lease-timeout", "5s", "a node unheard for this long is lost"},
    {"min-workers", "0",
     "the job goes on without workers that are lost while so many are left; 0: all are needed"},
    {"stuck-timeout", "0s",
     "with min-workers: one that lives, and for which rounds wait so long, is lost; 0s: never"},
    {"link-timeout", "10s",
     "a server that does not answer most workers for so long is lost, and with min-workers a "
     "worker that alone gets no answer of a server; 0s: never"},
    {"journal", "",
     "directory of the journal, from which a scheduler that starts again goes on with the job; "
     "empty: with the scheduler the job ends"},
    {"scheduler-timeout", "10m",
     "with a journal: how long nodes wait for a scheduler that does not answer"},
    {"replay-steps", "32",
     "the keys of a lost server are rebuilt on another from at most so many steps, which workers "
     "keep; 0: with a server the job ends"},
    kHistoryFile,
    {"max-job-bytes", "256GiB", "what all tensors of the job may have together, as float32"},
    {"max-tensors", "1048576", "how many tensors the job may declare, broadcasts included"},
    {"max-name-bytes", "255", "longest name, codec spec, rule or address, 64 to 4096"},
    {"max-request-bytes", "64KiB", "largest request of a node, but for declarations"},
    {"max-declaration-bytes", "4MiB", "largest part of a declaration in one request"},
    kHealthListen,
    kMetricsListen,
    kExitWhenDone,
    kDrainTimeout,
    kJobId,
    kToken,
    kTokenFile,
    kTlsCa,
    kTlsCert,
    kTlsKey,
    kInsecure,
    kJoinTimeout,
    kLogLevel,
    kLogFormat,
};

constexpr Setting kServerSettings[] = {
    kScheduler,
    {"listen", "tcp://127.0.0.1:0", "where to take frames: tcp://host:port or ipc://path"},
    {"advertise", "", "address that workers connect to, where it differs from listen"},
    {"data-security", "auto",
     "encrypted, authenticated (no encryption: for private networks), open (anybody: for tests); "
     "auto is encrypted, and authenticated where it listens on this machine alone"},
    {"max-bytes-queued", "2GiB",
     "most that waits to be sent to one worker, and of one worker to be summed"},
    {"max-frames-queued", "65536", "most frames that wait to be sent to one worker"},
    {"max-frame-bytes", "20MiB",
     "longest payload of a frame: who sends more without ending a message is cut off"},
    kMaxBytesInFlight,
    kRank,
    {"shards", "0", "threads that sum; 0 chooses by the machine"},
    kTransport,
    kFabricProvider,
    kFabricDomain,
    kFabricInterface,
    kFabricWindow,
    kIoThreads,
    kConnectionTimeout,
    kLink,
    {"health-listen", "127.0.0.1:0",
     "host:port of a gRPC health service in the clear; empty for none"},
    kMetricsListen,
    {"max-bytes", "",
     "memory that the server may hold for keys, e.g. 64GiB; empty for all that the machine has"},
    kStageTimes,
    kRecorderBytes,
    kRecorderDir,
    kTrace,
    kTraceBytes,
    kTraceSteps,
    kQualityEvery,
    kQualityGuard,
    kMetricsFile,
    kHistoryFile,
    kExitWhenDone,
    kDrainTimeout,
    kJobId,
    kToken,
    kTokenFile,
    kTlsCa,
    kTlsCert,
    kTlsKey,
    kInsecure,
    kJoinTimeout,
    kLogLevel,
    kLogFormat,
};

constexpr Setting kHostSettings[] = {
    kScheduler,
    {"attach", "", "where processes of this host attach: unix:@NAME or unix:/PATH"},
    {"processes", "1", "how many processes of this host there are to be, 1 to 1024"},
    kRank,
    {"threads", "0",
     "threads that encode and decode; 0 takes a quarter of the processors it may use"},
    {"cpus", "",
     "processors that these threads keep to, e.g. 0-3,8 or node0 for those of a NUMA node; empty "
     "for any"},
    kTransport,
    kFabricProvider,
    kFabricDomain,
    kFabricInterface,
    kFabricWindow,
    kIoThreads,
    kConnectionTimeout,
    kConnections,
    kLink,
    kWaitTimeout,
    kProbeInterval,
    kMaxBytesInFlight,
    kStageTimes,
    kRecorderBytes,
    kRecorderDir,
    kTrace,
    kTraceBytes,
    kTraceSteps,
    kQualityEvery,
    kQualityGuard,
    kHealthListen,
    kMetricsListen,
    kMetricsFile,
    kHistoryFile,
    kExitWhenDone,
    kDrainTimeout,
    kJobId,
    kToken,
    kTokenFile,
    kTlsCa,
    kTlsCert,
    kTlsKey,
    kInsecure,
    kJoinTimeout,
    kLogLevel,
    kLogFormat,
};

constexpr Setting kWorkerSettings[] = {
    kScheduler,
    kRank,
    {"threads", "2", "threads that encode and decode"},
    kTransport,
    kFabricProvider,
    kFabricDomain,
    kFabricInterface,
    kFabricWindow,
    kIoThreads,
    kConnectionTimeout,
    kConnections,
    kLink,
    {"push", "none", "codec of gradients to the servers, e.g. ef(onebit(block=256))"},
    {"pull", "none", "codec of sums to the workers, e.g. ef(onebit(block=256))"},
    {"attach", "",
     "take part through this host's bandoneon-worker, which listens there: unix:@NAME or "
     "unix:/PATH"},
    {"host", "",
     "codec of gradients on their way to bandoneon-worker, e.g. int8(group=128); empty for none"},
    {"local-rank", "-1", "place among the processes of this host; -1 for any free one"},
    {"local-size", "0", "processes that this host is to have; 0 for as many as its daemon says"},
    kWaitTimeout,
    kProbeInterval,
    kMaxBytesInFlight,
    {"codec-device", "auto",
     "where gradients of GPUs are encoded: cpu, gpu, or auto: on the GPU where the codec has "
     "kernels and its payload is at most half of the gradient"},
    {"max-pinned-bytes", "1GiB",
     "of the host's memory that each GPU's gradients go through; beyond it they go more slowly"},
    {"max-device-bytes", "0",
     "of each GPU's memory that exchanges may take; 0 leaves the larger of 2 GiB and a tenth of "
     "it free"},
    {"cuda-driver", "libcuda.so.1",
     "NVIDIA's driver, opened when the first tensor of a GPU is pushed"},
    kStageTimes,
    kRecorderBytes,
    kRecorderDir,
    kTrace,
    kTraceBytes,
    kTraceSteps,
    kQualityEvery,
    kQualityGuard,
    kHistoryFile,
    {"library", "", "libbandoneon.so that the Python package loads instead of its own"},
    {"island", "",
     "Python, under torchrun: number of this torchrun among several that share the job, from 0"},
    kJobId,
    kToken,
    kTokenFile,
    kTlsCa,
    kTlsCert,
    kTlsKey,
    kInsecure,
    kJoinTimeout,
    kLogLevel,
    kLogFormat,
};

// A setting may be here several times, once for each process that has it: readers look for names
// only.
constexpr auto kAllSettings = [] {
  std::array<Setting, std::size(kSchedulerSettings) + std::size(kServerSettings) +
                          std::size(kHostSettings) + std::size(kWorkerSettings)>
      all{};
  size_t count = 0;
  for (const Setting& setting : kSchedulerSettings) all[count++] = setting;
  for (const Setting& setting : kServerSettings) all[count++] = setting;
  for (const Setting& setting : kHostSettings) all[count++] = setting;
  for (const Setting& setting : kWorkerSettings) all[count++] = setting;
  return all;
}();

}  // namespace

std::span<const Setting> SchedulerSettings() { return kSchedulerSettings; }
std::span<const Setting> ServerSettings() { return kServerSettings; }
std::span<const Setting> HostSettings() { return kHostSettings; }
std::span<const Setting> WorkerSettings() { return kWorkerSettings; }
std::span<const Setting> AllSettings() { return kAllSettings; }

}  // namespace bdn
