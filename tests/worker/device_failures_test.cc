// One key's exchanges where a device fails on the way: each call that may fail does, one after the
// other, in encodings, decodings, steps that are taken back, and steps that become owed. The driver
// is the fake of tests/device/fake_cuda.cc, the server's answers are made by hand, and all codecs
// that have kernels are tried.

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "device/device_budget.h"
#include "device/pinned_pool.h"
#include "device/pinned_ring.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/fake_driver.h"
#include "tests/device/kernel_cases.h"
#include "tests/support/normal_values.h"
#include "tests/support/shard_rig.h"
#include "worker/device/codec_device.h"
#include "worker/pipeline/device_stages.h"
#include "worker/pipeline/key_exchange.h"

namespace bdn::testing {
namespace {

using Floats = std::vector<float>;
constexpr Key kKey = Key::Of(1, 0);
constexpr size_t kElements = 333;  // several blocks of most codecs, and an odd end
constexpr float kInfinite = std::numeric_limits<float>::infinity();

// The state that a key's link has.
struct Memory {
  const char* label;
  bool has_feedback;
  float momentum;
};
constexpr Memory kMemories[] = {{"no memory", false, 0.0f},
                                {"error feedback", true, 0.0f},
                                {"error feedback and momentum", true, 0.9f},
                                {"momentum", false, 0.9f}};

// The fate of a step.
enum class Turn {
  kCounted,            // its reply has the mean
  kNonFiniteHere,      // its gradient is not finite
  kNonFiniteAnywhere,  // another's was not: the step is taken back
  kFailed,             // its round failed, uncounted: the same
  kLateAndFailed,      // its caller has its tensor back when that is known: the step becomes owed
  kLateAndCounted,
};
constexpr Turn kTurns[] = {Turn::kCounted, Turn::kNonFiniteHere, Turn::kNonFiniteAnywhere,
                           Turn::kFailed,  Turn::kLateAndFailed, Turn::kLateAndCounted,
                           Turn::kCounted};
constexpr size_t kSteps = std::size(kTurns);

struct StepOutcome {
  absl::Status encoded;
  std::vector<std::byte> push;  // its payload
  uint8_t push_flags = 0;
  absl::Status ended;
  Floats tensor;  // afterwards, where it ended well
};
struct Outcome {
  std::vector<StepOutcome> steps;
  absl::Status known;  // whether the memory is
  Floats residual;
  Floats momentum;
};

// One key of one tensor, which lies on a device or on the host.
class Link {
 public:
  // Null: the host.
  Link(const std::string& codec, const Memory& memory, CudaDevice* device)
      : options_{.push = memory.has_feedback ? "ef(" + codec + ")" : codec,
                 .pull = codec,
                 .segments = {kElements}},
        device_(device) {
    DeclaredKey key{.entry = MakeEntry(kKey, options_),
                    .tensor_names = {"w"},
                    .server = kServerNode,
                    .catalogue_version = 1};
    key.entry.momentum = memory.momentum;
    key.link = MakeKeyLink(key.entry, "w").value();
    EXPECT_TRUE(RunsOnDevice(key));
    if (device_ != nullptr) {
      pinned_ = std::make_unique<PinnedPool>(*device_, size_t{1} << 20);
      ring_ = std::make_unique<PinnedRing>(device_);
      codecs_ = std::make_unique<CodecDevice>(device_, pinned_.get(), ring_.get(), size_t{1} << 24);
      of_device_ = DeviceMemory::Make(*device_, kElements * sizeof(float)).value();
    }
    exchange_ = std::make_unique<KeyExchange>(std::move(key));
  }
  ~Link() { exchange_.reset(); }  // before what its memory is of

  StepOutcome Run(Step step, Turn turn) {
    Floats gradient = Normal(kElements, static_cast<uint32_t>(step));
    if (turn == Turn::kNonFiniteHere) gradient[7] = kInfinite;
    std::memcpy(Tensor(), gradient.data(), kElements * sizeof(float));
    PushRequest request;
    request.data = {Tensor(), DType::kFloat32, kElements};
    request.device = codecs_.get();
    exchange_->Deposit(0, 0, kElements, step, /*ticket=*/1, request);
    EXPECT_TRUE(exchange_->Claim());
    StepOutcome outcome;
    const auto push = exchange_->Encode({.run_seed = 1, .rank = 0, .pool = &pool_});
    outcome.encoded = push.status();
    outcome.ended = push.status();
    if (push.ok()) {
      const ByteSpan payload = push->frame.payload.span();
      outcome.push.assign(payload.begin(), payload.end());
      outcome.push_flags = push->frame.header.flags;
      outcome.ended = Answer(push->frame, step, turn);
    }
    exchange_->Finish();
    const float* const tensor = static_cast<const float*>(Tensor());
    if (outcome.ended.ok()) outcome.tensor.assign(tensor, tensor + kElements);
    return outcome;
  }
  absl::Status CopyState(LinkState what, Floats* to) {
    to->resize(kElements);
    return exchange_->CopyState(what, 0, std::span(*to));
  }
  void SetStates(const Outcome& from) {
    EXPECT_TRUE(exchange_->SetState(LinkState::kResidual, 0, from.residual).ok());
    EXPECT_TRUE(exchange_->SetState(LinkState::kMomentum, 0, from.momentum).ok());
  }

 private:
  // A fake's memory is the host's.
  void* Tensor() { return device_ == nullptr ? of_host_.data() : of_device_.get(); }

  absl::Status Answer(const Frame& push, Step step, Turn turn) {
    const bool is_late = turn == Turn::kLateAndFailed || turn == Turn::kLateAndCounted;
    if (is_late) {
      const RequestTable::Outcome late{absl::UnknownError("no answer in time"), true};
      EXPECT_TRUE(exchange_->OnAnswer(late).request.has_value());
      EXPECT_TRUE(exchange_->GiveBack());
    }
    const absl::Status status = exchange_->OnAnswer({ReplyTo(push, step, turn)}).status;
    // A round that failed is its caller's error: the step ends as it should.
    const bool fails = turn == Turn::kFailed || turn == Turn::kLateAndFailed;
    if (!fails) return status;
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    return absl::OkStatus();
  }
  absl::StatusOr<Frame> ReplyTo(const Frame& push, Step step, Turn turn) {
    if (turn == Turn::kFailed || turn == Turn::kLateAndFailed) return Aborted("the round failed");
    FrameHeader header = AnswerTo(push.header, FrameType::kReply);
    if (turn == Turn::kNonFiniteAnywhere || turn == Turn::kNonFiniteHere) {
      header.flags = kFlagNonFinite;
      return Frame{header, {}};
    }
    KeyOptions as_pull = options_;
    as_pull.push = options_.pull;
    const Frame mean =
        MakePush(kKey, step, 0, Normal(kElements, static_cast<uint32_t>(100 + step)), as_pull);
    header.codec = mean.header.codec;
    return MakeFrame(header, mean.payload);
  }

  const KeyOptions options_;
  CudaDevice* const device_;
  BufferPool pool_;
  Floats of_host_ = Floats(kElements);
  std::unique_ptr<PinnedPool> pinned_;
  std::unique_ptr<PinnedRing> ring_;
  std::unique_ptr<CodecDevice> codecs_;
  DeviceMemory of_device_;
  std::unique_ptr<KeyExchange> exchange_;
};

Outcome RunAll(Link& link, FakeDriver* driver) {
  Outcome outcome;
  for (size_t i = 0; i < kSteps; ++i) outcome.steps.push_back(link.Run(i + 1, kTurns[i]));
  if (driver != nullptr) driver->Mend();
  outcome.known = link.CopyState(LinkState::kResidual, &outcome.residual);
  if (outcome.known.ok()) outcome.known = link.CopyState(LinkState::kMomentum, &outcome.momentum);
  return outcome;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class DeviceFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    BDN_NEEDS_FAKE();
    driver_ = std::make_unique<FakeDriver>();
    device_ = OpenFake().value();
  }
  void TearDown() override {
    device_.reset();
    driver_.reset();
  }

  // Runs all steps of every codec with `count` calls that fail after k, for every k up to the last
  // call.
  void FailEach(FakeDriver::Call call, long count, bool may_end) {
    for (const CodecCase& codec : CasesWithKernels()) {
      SCOPED_TRACE(codec.spec);
      FailEachOf(codec.spec, call, count, may_end);
      if (HasFailure()) return;
    }
  }

 private:
  void FailEachOf(const std::string& codec, FakeDriver::Call call, long count, bool may_end) {
    for (const Memory& memory : kMemories) {
      Link on_host(codec, memory, nullptr);
      const Outcome here = RunAll(on_host, nullptr);
      const StepOutcome next_here = on_host.Run(kSteps + 1, Turn::kCounted);
      for (long k = 0;; ++k) {
        SCOPED_TRACE(::testing::Message() << memory.label << ", from call " << k << " on");
        Link link(codec, memory, device_.get());
        driver_->Seed(static_cast<unsigned>(k));
        driver_->ResetCounts();
        driver_->Fail(call, k, count, ErrorOf(call, k));
        const Outcome there = RunAll(link, driver_.get());
        const bool has_failed = driver_->counts().failed > 0;
        ExpectSame(there, here, may_end);
        if (has_failed && may_end) ExpectGoesOn(link, here, next_here);
        if (HasFailure()) return;
        if (!has_failed) {
          EXPECT_GT(k, 0) << "there is no such call";
          break;
        }
      }
    }
  }

  // Returns the error of the k-th call: memory is exhausted, or by turns another error of launches,
  // or of memory that the system is to lock.
  static int ErrorOf(FakeDriver::Call call, long k) {
    if (call == FakeDriver::kPinnedAllocations && k % 2 == 0) return FakeDriver::kOperatingSystem;
    const bool is_launch = call == FakeDriver::kLaunches || call == FakeDriver::kKernelRuns;
    return is_launch && k % 2 == 0 ? FakeDriver::kLaunchFailed : FakeDriver::kOutOfMemory;
  }

  static bool HasMemory(const Outcome& outcome) {
    const Floats zeros(kElements);
    return outcome.residual != zeros || outcome.momentum != zeros;
  }

  static void ExpectSame(const Outcome& there, const Outcome& here, bool may_end) {
    for (size_t i = 0; i < kSteps; ++i) {
      SCOPED_TRACE(::testing::Message() << "step " << i + 1);
      const StepOutcome& got = there.steps[i];
      const StepOutcome& wanted = here.steps[i];
      EXPECT_TRUE(may_end || got.ended.ok()) << got.ended;
      if (got.encoded.ok()) {
        EXPECT_TRUE(got.push == wanted.push) << "what was pushed";
        EXPECT_EQ(got.push_flags, wanted.push_flags);
      }
      EXPECT_TRUE(!got.ended.ok() || SameBits(got.tensor, wanted.tensor)) << "the result";
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(may_end || there.known.ok()) << there.known;
    if (!there.steps.back().encoded.ok() && HasMemory(here)) {
      EXPECT_TRUE(absl::IsFailedPrecondition(there.known)) << there.known << ": it is lost";
    }
    if (!there.known.ok()) return;
    EXPECT_TRUE(SameBits(there.residual, here.residual)) << "the residual";
    EXPECT_TRUE(SameBits(there.momentum, here.momentum)) << "the momentum";
  }

  // Whatever was lost: once its state is set, the key's steps are those of the host again.
  void ExpectGoesOn(Link& link, const Outcome& here, const StepOutcome& next_here) {
    link.SetStates(here);
    const StepOutcome next = link.Run(kSteps + 1, Turn::kCounted);
    EXPECT_TRUE(next.ended.ok()) << next.ended;
    EXPECT_TRUE(next.push == next_here.push);
    EXPECT_TRUE(SameBits(next.tensor, next_here.tensor));
  }

  std::unique_ptr<FakeDriver> driver_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(DeviceFailures, GiveTheHostsBitsWithEveryAllocationThatFails) {
  FailEach(FakeDriver::kAllocations, 1, false);
}

TEST_F(DeviceFailures, GiveTheHostsBitsWhereNothingIsAllocatedFromSomewhereOn) {
  FailEach(FakeDriver::kAllocations, FakeDriver::kForever, false);
}

TEST_F(DeviceFailures, GiveTheHostsBitsWithEveryPinnedAllocationThatFails) {
  FailEach(FakeDriver::kPinnedAllocations, 1, false);
}

TEST_F(DeviceFailures, GiveTheHostsBitsWhereNothingIsPinnedFromSomewhereOn) {
  FailEach(FakeDriver::kPinnedAllocations, FakeDriver::kForever, false);
}

TEST_F(DeviceFailures, GiveTheHostsBitsWithEveryStreamAndEventThatIsNotMade) {
  FailEach(FakeDriver::kCreations, 1, false);
}

TEST_F(DeviceFailures, GiveTheHostsBitsOrAnErrorWithEveryLaunchThatFails) {
  FailEach(FakeDriver::kLaunches, 1, true);
}

TEST_F(DeviceFailures, GiveTheHostsBitsOrAnErrorWithEveryCopyThatFails) {
  FailEach(FakeDriver::kCopies, 1, true);
}

TEST_F(DeviceFailures, GiveTheHostsBitsOrAnErrorWithEveryKernelThatBreaksTheDevice) {
  FailEach(FakeDriver::kKernelRuns, 1, true);
}

}  // namespace
}  // namespace bdn::testing
