// What a record costs, beside reading the clock as the phases do anyway: ns each, on one thread, in
// the same run, interleaved.
//
//   recorder_bench [--iterations N]     N rounds; medians are printed (default 21)

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/time/clock.h"
#include "common/telemetry/recorder.h"
#include "common/telemetry/stage_times.h"
#include "tests/bench/bench_tools.h"

namespace bdn {
namespace {

constexpr int kRepeats = 200'000;

double NsEach(const std::function<void()>& body) {
  const absl::Time start = absl::Now();
  for (int i = 0; i < kRepeats; ++i) body();
  return absl::ToDoubleNanoseconds(absl::Now() - start) / kRepeats;
}

void Run(int rounds) {
  const auto recorder = Recorder::Open({.bytes = 4 << 20}, {.role = "worker"});
  StageTimes plain(MachineStageClock(/*with_cpu=*/false));
  StageTimes recorded(MachineStageClock(/*with_cpu=*/false));
  recorded.RecordWith(recorder.get());
  std::vector<double> clocks;
  std::vector<double> records;
  std::vector<double> spans;
  std::vector<double> recorded_spans;
  for (int round = 0; round < rounds; ++round) {
    clocks.push_back(NsEach([&] { (void)plain.clock().WallNs(); }));
    records.push_back(NsEach([&] { recorder->Add({.step = 1, .kind = 4}); }));
    spans.push_back(NsEach([&] { StageSpan(&plain).End(Stage::kSend, 100, {}); }));
    recorded_spans.push_back(NsEach([&] { StageSpan(&recorded).End(Stage::kSend, 100, {}); }));
  }
  printf("clock %.1f ns, record %.1f ns, span %.1f ns, span that is recorded %.1f ns\n",
         Median(clocks), Median(records), Median(spans), Median(recorded_spans));
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  int rounds = 21;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--iterations") == 0) rounds = std::max(1, std::atoi(argv[i + 1]));
  }
  bdn::Run(rounds);
}
