#include <string>

#include "common/cluster/scheduler_client.h"
#include "scheduler/service.h"
#include "tests/cluster/control_plane_suite.h"

namespace bdn {
namespace {

class OverGrpc final : public SchedulerUnderTest {
 public:
  explicit OverGrpc(const JobOptions& options) {
    auto service = SchedulerService::Start("127.0.0.1:0", options, &clock_);
    EXPECT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }
  std::unique_ptr<ControlPlane> Connect(const Credentials& credentials) override {
    return *SchedulerClient::Create("127.0.0.1:" + std::to_string(service_->port()), credentials,
                                    &clock_);
  }

 private:
  const SteadyClock clock_;
  std::unique_ptr<SchedulerService> service_;
};

std::unique_ptr<SchedulerUnderTest> Make(const JobOptions& options) {
  return std::make_unique<OverGrpc>(options);
}

INSTANTIATE_TEST_SUITE_P(Grpc, ControlPlaneSuite, ::testing::Values(SchedulerKind{"Grpc", &Make}));

}  // namespace
}  // namespace bdn
