#ifndef BANDONEON_TESTS_SUPPORT_STATE_CALLS_H_
#define BANDONEON_TESTS_SUPPORT_STATE_CALLS_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/client.h"

// The calls about state, one a function, as tests write them.

namespace bdn::testing {

inline absl::Status Perform(Client& client, StateCall call,
                            absl::Duration timeout = absl::ZeroDuration()) {
  return client.Perform(&call, timeout);
}

// ---- At this worker's link

inline absl::Status GetState(Client& client, uint32_t tensor, LinkState part,
                             std::span<float> out) {
  return Perform(client,
                 {.what = StateCall::What::kGet, .tensor = tensor, .link_part = part, .out = out});
}
inline absl::Status SetState(Client& client, uint32_t tensor, LinkState part,
                             std::span<const float> in) {
  return Perform(client,
                 {.what = StateCall::What::kSet, .tensor = tensor, .link_part = part, .in = in});
}
inline absl::StatusOr<Step> GetStep(Client& client, uint32_t tensor) {
  StateCall call{.what = StateCall::What::kGetStep, .tensor = tensor};
  BDN_RETURN_IF_ERROR(client.Perform(&call, absl::ZeroDuration()));
  return call.step;
}
inline absl::Status SetStep(Client& client, uint32_t tensor, Step step) {
  return Perform(client, {.what = StateCall::What::kSetStep, .tensor = tensor, .step = step});
}

// ---- At the servers

inline absl::Status GetServerState(Client& client, uint32_t tensor, StatePart part,
                                   std::span<float> out, absl::Duration timeout) {
  return Perform(client,
                 {.what = StateCall::What::kGet,
                  .where = StateCall::Where::kServer,
                  .tensor = tensor,
                  .server_part = part,
                  .out = out},
                 timeout);
}
inline absl::Status SetServerState(Client& client, uint32_t tensor, StatePart part,
                                   std::span<const float> in, Step step, absl::Duration timeout) {
  return Perform(client,
                 {.what = StateCall::What::kSet,
                  .where = StateCall::Where::kServer,
                  .tensor = tensor,
                  .server_part = part,
                  .step = step,
                  .in = in},
                 timeout);
}
inline absl::StatusOr<StateCounters> GetServerCounters(Client& client, uint32_t tensor,
                                                       absl::Duration timeout) {
  StateCall call{
      .what = StateCall::What::kGetCounters, .where = StateCall::Where::kServer, .tensor = tensor};
  BDN_RETURN_IF_ERROR(client.Perform(&call, timeout));
  return call.counters;
}
inline absl::Status SetServerCounters(Client& client, uint32_t tensor,
                                      const StateCounters& counters, Step step,
                                      absl::Duration timeout) {
  return Perform(client,
                 {.what = StateCall::What::kSetCounters,
                  .where = StateCall::Where::kServer,
                  .tensor = tensor,
                  .step = step,
                  .counters = counters},
                 timeout);
}
inline absl::Status SetServerRule(Client& client, std::span<const uint32_t> tensors,
                                  const std::string& rule, absl::Duration timeout) {
  return Perform(client,
                 {.what = StateCall::What::kSetRule,
                  .where = StateCall::Where::kServer,
                  .tensors = tensors,
                  .rule = rule},
                 timeout);
}
inline absl::Status FetchWeights(Client& client, uint32_t tensor, std::span<float> out,
                                 absl::Duration timeout) {
  return Perform(client,
                 {.what = StateCall::What::kFetchWeights,
                  .where = StateCall::Where::kServer,
                  .tensor = tensor,
                  .out = out},
                 timeout);
}

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_STATE_CALLS_H_
