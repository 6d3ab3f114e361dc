#ifndef BANDONEON_COMMON_CLUSTER_SETTINGS_H_
#define BANDONEON_COMMON_CLUSTER_SETTINGS_H_

#include <span>

#include "common/base/config.h"

namespace bdn {

// Return the settings of each kind of process. There is one table for a process, so that a flag,
// its variable, its default and its help are written once.
std::span<const Setting> SchedulerSettings();
std::span<const Setting> ServerSettings();
std::span<const Setting> HostSettings();  // of bandoneon-worker, the host daemon
std::span<const Setting> WorkerSettings();

// Returns all settings, for Config::Load's `elsewhere`: one environment serves a whole job.
std::span<const Setting> AllSettings();

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_SETTINGS_H_
