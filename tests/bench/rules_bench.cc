// The servers' update rules, GB of float32 gradient a second on one thread, with the memcpy of the
// same run interleaved.
//
//   rules_bench [--iterations N]     N rounds over all rules; medians are printed (default 21)

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "server/update_rule.h"
#include "tests/bench/bench_tools.h"

namespace bdn {
namespace {

constexpr size_t kElements = size_t{1} << 20;
constexpr int kRepeats = 8;

// GB of gradient a second.
double Speed(const std::function<void()>& step) {
  const absl::Time start = absl::Now();
  for (int i = 0; i < kRepeats; ++i) step();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return kRepeats * kElements * sizeof(float) / 1e9 / seconds;
}

int Run(int iterations) {
  const std::vector<std::string> specs = {
      "sgd",
      "sgd(momentum=0.9,decay=0.01)",
      "adamw",
      "sign_momentum",
      "slowmo",
      "nesterov(lr=0.7,momentum=0.9)",
      "average",
      "prox",
      "prox(penalty=scad)",
      "prox(penalty=mcp)",
      "prox(penalty=capped)",
  };
  std::vector<float> sum(kElements, 0.01f), x(kElements, 1.0f), copy(kElements);
  std::vector<std::vector<float>> moments(UpdateSlice::kMaxSlots, std::vector<float>(kElements));
  std::vector<std::vector<double>> speeds(specs.size());
  std::vector<double> memcpys;
  for (int round = 0; round < iterations; ++round) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto rule = MakeUpdateRule(RuleSpec::Parse(specs[i]).value());
      UpdateSlice slice{.sum = sum.data(), .weights = x.data(), .n = kElements};
      for (int slot = 0; slot < rule->slots(); ++slot) slice.moments[slot] = moments[slot].data();
      const UpdateFacts facts{.inverse_weight = 0.5f, .learning_rate = 1e-6f, .updates = 10};
      speeds[i].push_back(Speed([&] { rule->Update(slice, facts); }));
      memcpys.push_back(
          Speed([&] { std::memcpy(copy.data(), x.data(), kElements * sizeof(float)); }));
    }
  }
  const double memcpy_speed = Median(memcpys);
  std::printf("%-32s %6s %14s\n", "rule, 1 Mi elements", "GB/s", "times memcpy");
  for (size_t i = 0; i < specs.size(); ++i) {
    const double speed = Median(speeds[i]);
    std::printf("%-32s %6.2f %14.2f\n", specs[i].c_str(), speed, speed / memcpy_speed);
  }
  std::printf("%-32s %6.2f\n", "memcpy", memcpy_speed);
  return 0;
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  int iterations = 21;
  if (argc == 3 && std::strcmp(argv[1], "--iterations") == 0) {
    iterations = std::max(1, std::atoi(argv[2]));
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: rules_bench [--iterations N]\n");
    return 2;
  }
  return bdn::Run(iterations);
}
