#include "worker/c_api/connect.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/status.h"
#include "common/cluster/credentials.h"
#include "common/cluster/health.h"
#include "common/cluster/membership.h"
#include "common/cluster/settings.h"
#include "common/cluster/status_fetch.h"
#include "common/transport/throttled.h"
#include "device/cuda_device.h"
#include "worker/host/host_address.h"
#include "worker/host/host_client.h"
#include "worker/host/host_messages.h"
#include "worker/host/worker_join.h"

namespace bdn {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
constexpr absl::Duration kReportAfter = absl::Seconds(5);

// Reads a worker's options. A process that trains uses as many threads for codecs as the setting
// says; 0, a choice by the number of processors, is for host daemons alone.
absl::StatusOr<Worker::Options> ReadOptions(const Config& config) {
  BDN_RETURN_IF_ERROR(config.Int("threads", 1, 1024).status());
  return ReadWorkerOptions(config);
}

absl::StatusOr<DeviceExchanges::Options> ReadDeviceOptions(const Config& config) {
  DeviceExchanges::Options options;
  BDN_ASSIGN_OR_RETURN(options.max_pinned_bytes, config.Bytes("max-pinned-bytes"));
  BDN_ASSIGN_OR_RETURN(options.max_device_bytes, config.Bytes("max-device-bytes"));
  const std::string& place = config.Text("codec-device");
  if (place == "cpu") {
    options.codecs = CodecPlace::kHost;
  } else if (place == "gpu") {
    options.codecs = CodecPlace::kDevice;
  } else if (place != "auto") {
    return InvalidArgument("codec-device=%s is none of auto, cpu, gpu", place);
  }
  options.open = [library = config.Text("cuda-driver")](
                     int ordinal) -> absl::StatusOr<std::unique_ptr<ComputeDevice>> {
    return CudaDevice::Open({.ordinal = ordinal, .library = library});
  };
  return options;
}

absl::StatusOr<LogFormat> ReadLogFormat(const Config& config) {
  LogFormat format;
  BDN_RETURN_IF_ERROR(ParseLogFormat(config.Text("log-format"), &format));
  return format;
}

struct AttachOptions {
  HostAddress address;
  HostClient::Options client;
};
absl::StatusOr<AttachOptions> ReadAttachOptions(const Config& config) {
  AttachOptions options;
  BDN_ASSIGN_OR_RETURN(options.address, ParseHostAddress(config.Text("attach")));
  options.client.address = options.address.text;
  options.client.job_id = config.Text("job-id");
  BDN_ASSIGN_OR_RETURN(options.client.local_rank, config.Int("local-rank", -1, kMostProcesses - 1));
  BDN_ASSIGN_OR_RETURN(options.client.local_size, config.Int("local-size", 0, kMostProcesses));
  if (!config.Text("host").empty()) {
    BDN_ASSIGN_OR_RETURN(options.client.codec, ParseHostCodec(config.Text("host")));
  }
  BDN_ASSIGN_OR_RETURN(options.client.attach_timeout, config.Duration("join-timeout"));
  return options;
}

// Connects to the host daemon, and tries again while none listens there: the daemon may be about to
// start.
absl::StatusOr<FileDescriptor> ConnectInTime(const AttachOptions& options, const Clock* clock) {
  const absl::Time deadline = clock->Now() + options.client.attach_timeout;
  absl::Time report = clock->Now() + kReportAfter;
  Mutex mu;
  CondVar never;
  for (;;) {
    absl::StatusOr<FileDescriptor> socket = ConnectToHost(options.address);
    const absl::Time now = clock->Now();
    // Only a missing daemon may still come; another error, as another user's daemon, stays.
    if (!absl::IsNotFound(socket.status()) || now >= deadline) return socket;
    if (now >= report) {
      LogWarning("attaching: %s; trying on", socket.status().message());
      report = absl::InfiniteFuture();
    }
    MutexLock lock(&mu);
    clock->WaitUntil(&never, &mu, std::min(deadline, now + kRetryInterval));
  }
}

absl::StatusOr<std::unique_ptr<Client>> AttachToHost(const Config& config, ClientContext* context) {
  BDN_ASSIGN_OR_RETURN(const AttachOptions options, ReadAttachOptions(config));
  BDN_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectInTime(options, &context->clock));
  BDN_ASSIGN_OR_RETURN(const RecorderOptions recorder, ReadRecorderOptions(config));
  return HostClient::Attach(options.client, std::move(socket), &context->clock, &context->telemetry,
                            recorder);
}

// A scheduler that is asked about its job, and the proofs that it is shown.
struct AskedScheduler {
  std::string address;
  Credentials credentials;
};

absl::StatusOr<AskedScheduler> ReadAskedScheduler(const std::vector<std::string>& flags) {
  BDN_ASSIGN_OR_RETURN(const Config config,
                       Config::Load(WorkerSettings(), flags, ReadEnvironment(), AllSettings()));
  BDN_ASSIGN_OR_RETURN(Credentials credentials, Credentials::Load(config, ""));
  const std::string& address = config.Text("scheduler");
  BDN_RETURN_IF_ERROR(CheckSchedulerIsSet(config));
  BDN_RETURN_IF_ERROR(credentials.CheckMayAsk(address));
  RouteGrpcLog();
  return AskedScheduler{address, std::move(credentials)};
}

}  // namespace

absl::StatusOr<Config> LoadWorkerConfig(const std::vector<std::string>& flags) {
  BDN_ASSIGN_OR_RETURN(Config config,
                       Config::Load(WorkerSettings(), flags, ReadEnvironment(), AllSettings()));
  LogLevel level;
  BDN_RETURN_IF_ERROR(ParseLogLevel(config.Text("log-level"), &level));
  // All settings are checked here, before anything connects, so that a wrong one is an error at
  // once.
  BDN_RETURN_IF_ERROR(ReadLogFormat(config).status());
  BDN_RETURN_IF_ERROR(ReadOptions(config).status());
  BDN_RETURN_IF_ERROR(ReadDeviceOptions(config).status());
  if (!config.Text("attach").empty()) BDN_RETURN_IF_ERROR(ReadAttachOptions(config).status());
  return config;
}

absl::StatusOr<std::string> AskStatus(const std::vector<std::string>& flags,
                                      absl::Duration timeout) {
  BDN_ASSIGN_OR_RETURN(const AskedScheduler asked, ReadAskedScheduler(flags));
  return FetchStatusJson(asked.address, asked.credentials, timeout);
}

absl::Status AskForTraces(const std::vector<std::string>& flags, const DumpRequest& request,
                          const std::function<void(DumpedNode)>& take) {
  BDN_ASSIGN_OR_RETURN(const AskedScheduler asked, ReadAskedScheduler(flags));
  return FetchTraces(asked.address, asked.credentials, request, take);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectWorker(const Config& config,
                                                      ClientContext* context) {
  BDN_ASSIGN_OR_RETURN(const LogFormat format, ReadLogFormat(config));
  SetLogFormat(format);
  if (!config.Text("attach").empty()) {
    BDN_ASSIGN_OR_RETURN(auto client, AttachToHost(config, context));
    SetLogPlace({.role = "worker", .job = config.Text("job-id"), .rank = client->rank()});
    return client;
  }
  BDN_ASSIGN_OR_RETURN(const Worker::Options options, ReadOptions(config));
  return JoinAsWorker(config, options, &context->clock, &context->telemetry);
}

absl::StatusOr<std::unique_ptr<DeviceExchanges>> MakeDeviceExchanges(const Config& config,
                                                                     Client* client,
                                                                     ClientContext* context) {
  BDN_ASSIGN_OR_RETURN(DeviceExchanges::Options options, ReadDeviceOptions(config));
  return std::make_unique<DeviceExchanges>(std::move(options), client, &context->clock,
                                           &context->telemetry);
}

std::string DescribeDevices(const Config& config) {
  const auto lines = CudaDevice::DescribeAll({.library = config.Text("cuda-driver")});
  if (lines.ok()) return *lines;
  return absl::StrFormat("GPUs: none: %s\n", lines.status().message());
}

absl::StatusOr<std::unique_ptr<Client>> ConnectLocalWorker(const Config& config,
                                                           ClientContext* context,
                                                           LocalCluster* cluster) {
  BDN_ASSIGN_OR_RETURN(const Worker::Options options, ReadOptions(config));
  BDN_ASSIGN_OR_RETURN(const double link, config.Rate("link"));
  return Worker::Create(options, &context->clock, &context->telemetry, cluster->Connect(),
                        MakeThrottled(cluster->MakeTransport(), link, &context->clock));
}

}  // namespace bdn
