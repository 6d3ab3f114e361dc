#include "common/base/endpoint.h"

#include <algorithm>

#include "common/base/log_limit.h"

namespace bdn {
namespace {

constexpr std::string_view kSeparator = "://";

std::string Join(const std::string& scheme, const std::string& address) {
  return scheme.empty() ? address : scheme + std::string(kSeparator) + address;
}

}  // namespace

Endpoint EndpointOf(std::string_view url, LinkSecurity security) {
  const size_t end = url.find(kSeparator);
  Endpoint endpoint{.security = security};
  if (end != url.npos) endpoint.scheme = url.substr(0, end);
  endpoint.address = end == url.npos ? url : url.substr(end + kSeparator.size());
  endpoint.bound = endpoint.address;
  return endpoint;
}

std::string UrlOf(const Endpoint& endpoint) { return Join(endpoint.scheme, endpoint.address); }
std::string BoundUrlOf(const Endpoint& endpoint) { return Join(endpoint.scheme, endpoint.bound); }

const Endpoint* FindEndpoint(const std::vector<Endpoint>& endpoints, std::string_view scheme) {
  const auto found = std::find_if(endpoints.begin(), endpoints.end(),
                                  [&](const Endpoint& each) { return each.scheme == scheme; });
  return found == endpoints.end() ? nullptr : &*found;
}

const Endpoint* NetworkEndpoint(const std::vector<Endpoint>& endpoints) {
  const auto found = std::find_if(endpoints.begin(), endpoints.end(),
                                  [](const Endpoint& each) { return !each.bound.empty(); });
  return found == endpoints.end() ? nullptr : &*found;
}

std::string NetworkUrl(const std::vector<Endpoint>& endpoints) {
  const Endpoint* const network = NetworkEndpoint(endpoints);
  return network == nullptr ? "" : UrlOf(*network);
}

std::string SchemesOf(const std::vector<Endpoint>& endpoints) {
  std::string names;
  for (const Endpoint& each : endpoints)
    names += (names.empty() ? "" : ", ") + Printable(each.scheme);
  return names.empty() ? "nothing" : names;
}

void Advertise(std::string_view url, std::vector<Endpoint>* endpoints) {
  for (Endpoint& each : *endpoints) {
    if (each.bound.empty()) continue;
    Endpoint advertised = EndpointOf(url, each.security);
    advertised.bound = each.bound;
    each = advertised;
    return;
  }
}

}  // namespace bdn
