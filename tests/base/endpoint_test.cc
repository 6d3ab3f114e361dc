#include "common/base/endpoint.h"

#include "gtest/gtest.h"

namespace bdn {
namespace {

TEST(EndpointTest, IsAUrlAndBack) {
  for (const char* url :
       {"tcp://10.0.0.2:7100", "tcp://[::1]:7100", "ipc:///run/a b://c", "nowhere", ""}) {
    const Endpoint endpoint = EndpointOf(url, LinkSecurity::kEncrypted);
    EXPECT_EQ(UrlOf(endpoint), url);
    EXPECT_EQ(BoundUrlOf(endpoint), url);
    EXPECT_EQ(endpoint.security, LinkSecurity::kEncrypted);
  }
  EXPECT_EQ(EndpointOf("ipc:///run/a b://c").address, "/run/a b://c");
}

TEST(EndpointTest, WhatIsAdvertisedReplacesTheAddressOfTheFirstNetworkAlone) {
  const Endpoint memory{"shm", "name", LinkSecurity::kAuthenticated};
  const Endpoint fabric{"fabric", "efa", LinkSecurity::kOpen};
  std::vector<Endpoint> endpoints = {memory, fabric,
                                     EndpointOf("tcp://0.0.0.0:7100", LinkSecurity::kEncrypted),
                                     EndpointOf("tcp://10.1.0.2:7100", LinkSecurity::kEncrypted)};
  const Endpoint other = endpoints[3];
  Advertise("tcp://10.0.0.2:7100", &endpoints);
  EXPECT_EQ(endpoints, (std::vector<Endpoint>{
                           memory,
                           fabric,
                           {"tcp", "10.0.0.2:7100", LinkSecurity::kEncrypted, "0.0.0.0:7100"},
                           other}));
  EXPECT_EQ(NetworkUrl(endpoints), "tcp://10.0.0.2:7100");
  EXPECT_EQ(BoundUrlOf(*NetworkEndpoint(endpoints)), "tcp://0.0.0.0:7100");
  EXPECT_EQ(FindEndpoint(endpoints, "tcp"), &endpoints[2]);
  EXPECT_EQ(FindEndpoint(endpoints, "pigeon"), nullptr);
  EXPECT_EQ(SchemesOf(endpoints), "shm, fabric, tcp, tcp");
}

TEST(EndpointTest, ANodeWithoutANetworkHasNoUrl) {
  std::vector<Endpoint> endpoints = {{"shm", "name"}};
  EXPECT_EQ(NetworkEndpoint(endpoints), nullptr);
  EXPECT_EQ(NetworkUrl(endpoints), "");
  Advertise("tcp://10.0.0.2:7100", &endpoints);
  EXPECT_EQ(endpoints, (std::vector<Endpoint>{{"shm", "name"}}));
  EXPECT_EQ(SchemesOf({}), "nothing");
}

}  // namespace
}  // namespace bdn
