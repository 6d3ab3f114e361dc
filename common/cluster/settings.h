#ifndef BANDONEON_COMMON_CLUSTER_SETTINGS_H_
#define BANDONEON_COMMON_CLUSTER_SETTINGS_H_

#include <span>

#include "common/base/config.h"

namespace bdn {

// The settings of each kind of process: one table a process, so that a flag, its variable, its
// default and its help are said once.
std::span<const Setting> SchedulerSettings();
std::span<const Setting> ServerSettings();
std::span<const Setting> HostSettings();  // of bandoneon-worker, the daemon of a host
std::span<const Setting> WorkerSettings();

// All of them, for Config::Load's `elsewhere`: one environment serves a whole job.
std::span<const Setting> AllSettings();

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_SETTINGS_H_
