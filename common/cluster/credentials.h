#ifndef BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_
#define BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_

#include <string>
#include <string_view>
#include <utility>

#include "common/base/config.h"

namespace bdn {

// What a process shows to the others of its job, and asks of them. main() makes one of the settings
// and hands it down; control_channel.h makes gRPC's credentials of it. Today it is the job's token,
// and connections are neither encrypted nor authenticated besides. Immutable; thread-safe.
class Credentials {
 public:
  Credentials() = default;  // no token: none is shown and none is asked for
  explicit Credentials(std::string token) : token_(std::move(token)) {}
  // REQUIRES: `token` is one of the settings of `config`.
  explicit Credentials(const Config& config) : Credentials(config.Text("token")) {}

  const std::string& token() const { return token_; }
  // Whether a peer that shows `token` may take part. Takes as long for any token of the same
  // length.
  bool Admits(std::string_view token) const;

 private:
  std::string token_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_
