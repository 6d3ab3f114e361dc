#include "worker/local/local_cluster.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/settings.h"
#include "common/cluster/table_spec.h"

namespace bdn {
namespace {

constexpr Setting kShards = {"shards", "1", "threads that sum, in each server"};

absl::StatusOr<JobConfig> ReadJobConfig(const Config& config) {
  JobConfig job;
  job.job_id = config.Text("job-id").empty() ? "local" : config.Text("job-id");
  BDN_ASSIGN_OR_RETURN(job.num_workers, config.Int("workers", 1, 1 << 16));
  BDN_ASSIGN_OR_RETURN(job.num_servers, config.Int("servers", 1, 1 << 16));
  BDN_ASSIGN_OR_RETURN(job.min_workers, config.Int("min-workers", 0, 1 << 16));
  BDN_ASSIGN_OR_RETURN(job.run_seed, config.Int("seed", 0, INT64_MAX));
  BDN_ASSIGN_OR_RETURN(job.partition_bytes, config.Bytes("partition-bytes"));
  BDN_ASSIGN_OR_RETURN(job.fusion_bytes, config.Bytes("fusion-bytes"));
  BDN_ASSIGN_OR_RETURN(job.min_compress_bytes, config.Bytes("min-compress-bytes"));
  BDN_ASSIGN_OR_RETURN(job.row_buckets, config.Int("row-buckets", 0, kMaxRowBuckets));
  BDN_RETURN_IF_ERROR(CheckJobOptions({.config = job, .has_leases = false}));
  return job;
}

// The settings of servers that mean something within one process.
constexpr std::string_view kServerSettings[] = {"max-bytes-in-flight", "max-bytes-queued",
                                                "quality-every", "quality-guard"};

struct ClusterConfig {
  JobConfig job;
  Server::Options server;  // the options that all servers share
};

absl::StatusOr<ClusterConfig> ReadClusterConfig(const std::vector<std::string>& flags) {
  const auto scheduler = SchedulerSettings();
  std::vector<Setting> settings(scheduler.begin(), scheduler.end());
  settings.push_back(kShards);
  for (const Setting& setting : ServerSettings()) {
    const bool is_ours = std::count(std::begin(kServerSettings), std::end(kServerSettings),
                                    std::string_view(setting.name)) > 0;
    if (is_ours) settings.push_back(setting);
  }
  BDN_ASSIGN_OR_RETURN(const Config config, Config::Load(settings, flags, {}));
  ClusterConfig cluster;
  BDN_ASSIGN_OR_RETURN(cluster.job, ReadJobConfig(config));
  Server::Options& server = cluster.server;
  BDN_ASSIGN_OR_RETURN(server.num_shards, config.Int("shards", 1, 1024));
  BDN_ASSIGN_OR_RETURN(server.max_bytes_in_flight, config.Bytes("max-bytes-in-flight"));
  BDN_ASSIGN_OR_RETURN(server.max_bytes_waiting, config.Bytes("max-bytes-queued"));
  BDN_ASSIGN_OR_RETURN(server.quality, ReadQualityOptions(config));
  return cluster;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Create(
    const std::vector<std::string>& flags) {
  BDN_ASSIGN_OR_RETURN(const ClusterConfig config, ReadClusterConfig(flags));
  auto network = std::make_unique<LoopbackNetwork>();
  auto make_transport = [network = network.get()] { return network->MakeTransport(); };
  return std::unique_ptr<LocalCluster>(
      new LocalCluster(config.job, config.server, std::move(network), std::move(make_transport)));
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Create(
    const std::vector<std::string>& flags, TransportFactory make_transport) {
  BDN_ASSIGN_OR_RETURN(const ClusterConfig config, ReadClusterConfig(flags));
  return std::unique_ptr<LocalCluster>(
      new LocalCluster(config.job, config.server, nullptr, std::move(make_transport)));
}

LocalCluster::LocalCluster(const JobConfig& config, const Server::Options& server,
                           std::unique_ptr<LoopbackNetwork> network,
                           TransportFactory make_transport)
    : network_(std::move(network)),
      make_transport_(std::move(make_transport)),
      scheduler_(config, &clock_),
      servers_(config.num_servers) {
  for (int i = 0; i < config.num_servers; ++i) {
    ServerNode& node = servers_[i];
    node.control = scheduler_.Connect();
    node.transport = make_transport_();
    Server::Options options = server;
    options.listen = absl::StrFormat("loopback://server-%d", i);
    // Workers are created by callers, at any time.
    options.join_timeout = absl::InfiniteDuration();
    options.join.wanted_rank = i;
    options.join.host = absl::StrFormat("server %d of this process", i);
    node.server = std::make_unique<Server>(options, &node.telemetry, node.control.get(),
                                           node.transport.get());
    // Start waits until all nodes have joined, so it must not run on the caller's thread, which has
    // yet to make the workers.
    node.starter = std::thread([server = node.server.get(), i] {
      const absl::Status status = server->Start();
      if (!status.ok()) LogDebug("server %d: %s", i, status.message());
    });
  }
}

HeldBytes LocalCluster::held() const {
  HeldBytes held;
  for (const ServerNode& node : servers_) held += node.server->stats().held;
  return held;
}

LocalCluster::~LocalCluster() {
  for (ServerNode& node : servers_) node.control->Close();  // ends a join that still waits
  for (ServerNode& node : servers_) node.starter.join();
  servers_.clear();
}

}  // namespace bdn
