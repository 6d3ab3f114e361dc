#include "scheduler/local_control_plane.h"

#include "tests/cluster/control_plane_suite.h"

namespace bdn {
namespace {

class Local final : public SchedulerUnderTest {
 public:
  explicit Local(const JobOptions& options) : scheduler_(options, &clock_) {}
  std::unique_ptr<ControlPlane> Connect(const Credentials& credentials) override {
    return scheduler_.Connect(credentials);
  }

 private:
  const SteadyClock clock_;
  LocalScheduler scheduler_;
};

std::unique_ptr<SchedulerUnderTest> Make(const JobOptions& options) {
  return std::make_unique<Local>(options);
}

INSTANTIATE_TEST_SUITE_P(Local, ControlPlaneSuite,
                         ::testing::Values(SchedulerKind{"Local", &Make}));

}  // namespace
}  // namespace bdn
