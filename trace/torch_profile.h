#ifndef BANDONEON_TRACE_TORCH_PROFILE_H_
#define BANDONEON_TRACE_TORCH_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn {

// An event of a profile that PyTorch's profiler (Kineto) wrote as JSON.
struct TorchEvent {
  std::string name;
  std::string category;
  std::string process;  // what the profile calls it: a number of a process, of a GPU, a text
  std::string thread;
  int64_t begin_ns = 0;  // real time of the machine
  int64_t end_ns = 0;
  std::string args;  // a JSON object; empty where it has none
};

// A profile of one rank.
struct TorchProfile {
  std::string path;
  std::optional<int> rank;         // as the profile or the user says
  std::vector<TorchEvent> events;  // slices and instants
  // The names of processes and threads that the profile gives.
  std::vector<std::pair<std::string, std::string>> process_names;
  std::vector<std::pair<std::pair<std::string, std::string>, std::string>> thread_names;
  uint64_t skipped = 0;  // events that are neither, such as flows
};

// Reads a profile, compressed or not. `rank` overrides what it says. Errors name the file.
absl::StatusOr<TorchProfile> ReadTorchProfile(const std::string& path, std::optional<int> rank);

}  // namespace bdn

#endif  // BANDONEON_TRACE_TORCH_PROFILE_H_
