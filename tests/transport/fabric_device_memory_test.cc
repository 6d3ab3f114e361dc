// Tests of the registration of devices' memory, as far as a machine without such a device can show
// it: which providers offer it, that host memory takes the same path (FI_HMEM_SYSTEM), and the
// errors where it is not possible.

#include <filesystem>
#include <memory>
#include <vector>

#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

constexpr FabricDevice kGpu = {FabricDevice::Kind::kCuda, 0};

// Returns the usable providers of this machine that are listed with device memory, or without it.
std::vector<FabricProvider> Listed(bool with_device_memory) {
  const std::vector<FabricProvider> all = *ListFabricProviders();
  std::vector<FabricProvider> listed;
  for (const FabricProvider& each : all) {
    if (each.is_usable && each.has_device_memory == with_device_memory) listed.push_back(each);
  }
  return listed;
}

std::unique_ptr<FabricEndpoint> Open(const FabricProvider& at, bool device_memory) {
  auto opened = FabricEndpoint::Open(
      {.provider = at.provider, .domain = at.domain, .device_memory = device_memory});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

void ExpectRefusesGpu(const FabricEndpoint& endpoint) {
  std::vector<std::byte> bytes(4096);
  const absl::Status refused = endpoint.Register(bytes, true, kGpu).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("fabric provider " + endpoint.provider()));
}

TEST(FabricDeviceMemoryTest, WhoOffersItCarriesWhatIsRegisteredWithIt) {
  const std::vector<FabricProvider> offering = Listed(true);
  if (offering.empty()) GTEST_SKIP() << "no provider of this host offers FI_HMEM";
  for (const FabricProvider& each : offering) {
    const auto from = Open(each, true);
    const auto to = Open(each, true);
    ASSERT_TRUE(from->has_device_memory()) << each.provider;
    for (const size_t bytes : {size_t{100}, size_t{4096}, size_t{300000}}) {
      std::vector<std::byte> source(bytes, std::byte{7});
      std::vector<std::byte> target(bytes);
      const auto readable = *from->Register(source, false);
      const auto writable = *to->Register(target, true);
      const FabricEndpoint::Peer peer = *from->AddPeer(to->address());
      FabricOperation operation;
      std::vector<FabricEvent> sent;
      std::vector<FabricEvent> come;
      absl::Status begun = absl::UnavailableError("");
      AwaitTrue([&] {
        if (absl::IsUnavailable(begun)) {
          begun = from->Write(peer, {source, readable->descriptor()}, {}, writable->base(),
                              writable->key(), 77, &operation);
        }
        from->Poll(&sent);
        to->Poll(&come);
        return !sent.empty() && !come.empty();
      });
      EXPECT_EQ(sent.at(0).kind, FabricEvent::Kind::kDone) << sent.at(0).status;
      EXPECT_EQ(come.at(0).kind, FabricEvent::Kind::kWritten);
      EXPECT_EQ(come.at(0).immediate, 77u);
      EXPECT_EQ(target, source);
    }
  }
}

TEST(FabricDeviceMemoryTest, WhoOffersItRefusesADeviceThatIsNotThere) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "it is there";
  for (const FabricProvider& each : Listed(true)) ExpectRefusesGpu(*Open(each, true));
}

TEST(FabricDeviceMemoryTest, WhoDoesNotOfferItIsOpenedWithoutAndSaysSo) {
  for (const FabricProvider& each : Listed(false)) {
    const auto endpoint = Open(each, true);
    EXPECT_FALSE(endpoint->has_device_memory()) << each.provider;
    ExpectRefusesGpu(*endpoint);
    EXPECT_THAT(endpoint->Register({}, true, kGpu).status().message(), HasSubstr("FI_HMEM"));
  }
}

TEST(FabricDeviceMemoryTest, NobodyIsAskedForItWhoWasNotTold) {
  for (const bool with : {false, true}) {
    for (const FabricProvider& each : Listed(with)) {
      const auto endpoint = Open(each, false);
      EXPECT_FALSE(endpoint->has_device_memory()) << each.provider;
      ExpectRefusesGpu(*endpoint);
    }
  }
}

}  // namespace
}  // namespace bdn
