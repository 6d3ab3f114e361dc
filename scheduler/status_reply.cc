#include "scheduler/status_reply.h"

#include <map>
#include <utility>

#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

const char* StateName(Job::State state) {
  switch (state) {
    case Job::State::kWaiting:
      return "waiting";
    case Job::State::kRunning:
      return "running";
    case Job::State::kFailed:
      return "failed";
    case Job::State::kDone:
      return "done";
  }
  return "unknown";
}

}  // namespace

void WriteStatus(const Job& job, absl::Time now, bandoneon::control::StatusReply* reply) {
  Write(job.config(), reply->mutable_config());
  reply->set_state(StateName(job.state()));
  if (job.state() == Job::State::kWaiting) reply->set_missing(job.MissingNodes());
  Write(job.failure(), reply->mutable_failure());
  if (job.table().membership() != nullptr) reply->set_epoch(job.table().membership()->epoch);
  reply->set_catalogue_version(job.catalogue().version);
  reply->set_tensors(job.catalogue().tensors.size());
  reply->set_keys(job.catalogue().keys.size());
  std::map<NodeId, std::pair<uint64_t, uint64_t>> owned;
  for (const KeyEntry& key : job.catalogue().keys) {
    auto& [keys, bytes] = owned[job.placement().OwnerOf(key.key)];
    ++keys;
    bytes += KeyBytes(key);
  }
  for (const auto& [id, member] : job.table().members()) {
    bandoneon::control::StatusReply::Node* node = reply->add_nodes();
    Write(member.info, node->mutable_info());
    node->set_left(member.left);
    node->set_step(member.progress.step);
    node->set_bytes_sent(member.progress.bytes_sent);
    node->set_bytes_received(member.progress.bytes_received);
    node->set_seconds_since_heard(absl::ToDoubleSeconds(now - member.last_heard));
    node->set_keys(owned[id].first);
    node->set_key_bytes(owned[id].second);
  }
}

}  // namespace bdn
