#ifndef BANDONEON_COMMON_BASE_ENDPOINT_H_
#define BANDONEON_COMMON_BASE_ENDPOINT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/link_security.h"

namespace bdn {

// One way to reach a node. Only the transport that `scheme` names understands `address`; all other
// code passes it on.
struct Endpoint {
  std::string scheme;   // "tcp", "ipc", "shm", "fabric"
  std::string address;  // at most kMostEndpointBytes
  LinkSecurity security = LinkSecurity::kOpen;
  // The address to which the node itself is bound, for people to read; `address` leads to it,
  // perhaps by way of --advertise. Empty except for an endpoint on the network.
  std::string bound = {};

  bool operator==(const Endpoint&) const = default;
};

// The most endpoints of one node, and the most bytes of each text of one.
inline constexpr size_t kMostEndpoints = 8;
inline constexpr size_t kMostEndpointBytes = 255;

// Parses "tcp://10.0.0.2:7100" as an endpoint of a network; a text without "://" is an address
// alone.
Endpoint EndpointOf(std::string_view url, LinkSecurity security = LinkSecurity::kOpen);
// Return the URL of an endpoint's address, and of the address to which it is bound.
std::string UrlOf(const Endpoint& endpoint);
std::string BoundUrlOf(const Endpoint& endpoint);

// Returns the first endpoint of this scheme; null where there is none.
const Endpoint* FindEndpoint(const std::vector<Endpoint>& endpoints, std::string_view scheme);
// Returns the first endpoint of a network, which stands for the node where people read of it; null
// where there is none.
const Endpoint* NetworkEndpoint(const std::vector<Endpoint>& endpoints);
// Returns the URL of the network endpoint; empty where there is none.
std::string NetworkUrl(const std::vector<Endpoint>& endpoints);
// Returns the schemes, for errors: "shm, tcp"; "nothing" where there are none.
std::string SchemesOf(const std::vector<Endpoint>& endpoints);
// Replaces scheme and address of the first endpoint of a network; the address to which it is bound
// stays.
void Advertise(std::string_view url, std::vector<Endpoint>* endpoints);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_ENDPOINT_H_
