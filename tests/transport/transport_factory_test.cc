#include "common/transport/transport_factory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

TEST(TransportFactory, MakesWhatListensAtTheAddress) {
  const SteadyClock clock;
  for (const char* address : {"tcp://127.0.0.1:0", "tcp", "ipc"}) {
    auto transport = MakeTransport(address, {.clock = &clock});
    ASSERT_TRUE(transport.ok()) << transport.status();
    (*transport)->Start([](ConnectionId, Frame) {});
    EXPECT_TRUE((*transport)->Listen("tcp://127.0.0.1:0").ok());
  }
}

TEST(TransportFactory, NamesTheSchemesThatThereAre) {
  const SteadyClock clock;
  const absl::Status status = MakeTransport("carrier-pigeon://coop", {.clock = &clock}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'carrier-pigeon://coop'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tcp://, ipc://"));
}

}  // namespace
}  // namespace bdn
