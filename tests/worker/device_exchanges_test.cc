// Tensors in the memory of a device, through workers and servers in this process. The driver is the
// fake of tests/device/fake_cuda.cc, which does the operations of streams late, and in any order
// that events allow; or, for scripts/test_gpu, that of this machine's GPU: then cases that only a
// fake can make are left out.

#include "worker/device/device_exchanges.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "compressors/codec_spec.h"
#include "device/cuda_device.h"
#include "device/device_budget.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/fake_driver.h"
#include "tests/device/kernel_cases.h"
#include "tests/support/normal_values.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"
#include "worker/device/codec_device.h"
#include "worker/error_fields.h"

namespace bdn::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);

// One of the workers with what it has of the device.
class Trainer {
 public:
  // Encodes on the host unless the options say otherwise.
  Trainer(ClusterRig& rig, int rank,
          DeviceExchanges::Options options = {.codecs = CodecPlace::kHost},
          const std::string& library = kFakeLibrary)
      : rig_(rig), rank_(rank), device_(OpenFake(0, library).value()) {
    if (!options.open) options.open = [](int ordinal) { return OpenFake(ordinal); };
    exchanges_ =
        std::make_unique<DeviceExchanges>(std::move(options), &worker(), &clock_, &telemetry_);
  }
  ~Trainer() {
    exchanges_->Close();
    worker().Close();
    exchanges_->Stop();
    rig_.Kill(rank_);  // with what it has on the device
    exchanges_.reset();
  }

  Worker& worker() { return rig_.worker(rank_); }
  DeviceExchanges& exchanges() { return *exchanges_; }
  CudaDevice& device() { return static_cast<CudaDevice&>(*device_); }

  // A tensor in the device's memory.
  struct Array {
    DeviceMemory memory;
    size_t n = 0;
    ComputeDevice* device = nullptr;
    // Reads the memory as it is now: a fake's is the host's, and nothing is waited for.
    Floats Read() const {
      Floats values(n);
      if (IsReal()) {
        const auto out = std::as_writable_bytes(std::span(values));
        EXPECT_TRUE(device->CopyToHost({}, memory.get(), out).ok());
        EXPECT_TRUE(device->Synchronize({}).ok());
      } else {
        std::memcpy(values.data(), memory.get(), n * sizeof(float));
      }
      return values;
    }
  };
  Array Make(const Floats& values) {
    Array array{DeviceMemory::Make(device(), values.size() * sizeof(float)).value(), values.size(),
                &device()};
    Write(values, array);
    return array;
  }
  void Write(const Floats& values, const Array& to) {
    EXPECT_TRUE(device().CopyToDevice({}, std::as_bytes(std::span(values)), to.memory.get()).ok());
    EXPECT_TRUE(device().Synchronize({}).ok());
  }
  static DeviceExchanges::Push PushOf(uint32_t tensor, const Array& array) {
    return {{.tensor = tensor, .data = {array.memory.get(), DType::kFloat32, array.n}}, {0, {}}};
  }
  static DeviceExchanges::Push PushOf(uint32_t tensor, Floats& values) {
    return {{.tensor = tensor, .data = {values.data(), DType::kFloat32, values.size()}}, {}};
  }
  absl::StatusOr<TicketId> Start(DeviceExchanges::Push push) {
    std::vector<TicketId> tickets;
    const absl::Status status = exchanges().PushPullAll({&push, 1}, &tickets);
    if (!status.ok()) return status;
    return tickets.at(0);
  }
  absl::StatusOr<PushResult> Wait(TicketId ticket, absl::Duration timeout = kLong) {
    std::vector<PushResult> results;
    const absl::Status status = exchanges().WaitAll({&ticket, 1}, {}, timeout, &results);
    if (!status.ok()) return status;
    return results.at(0);
  }
  absl::StatusOr<PushResult> Exchange(DeviceExchanges::Push push) {
    const absl::StatusOr<TicketId> ticket = Start(std::move(push));
    if (!ticket.ok()) return ticket.status();
    return Wait(*ticket);
  }
  // Until the push has left the device.
  void AwaitSent(TicketId ticket) {
    while (GetErrorField(Wait(ticket, absl::ZeroDuration()).status(), "stage") == "copy") {
      std::this_thread::yield();
    }
  }
  uint64_t Count(const std::string& metric) {
    for (const Sample& sample : telemetry_.Collect()) {
      if (sample.metric->name == metric) return sample.value;
    }
    ADD_FAILURE() << "nobody counts " << metric;
    return 0;
  }

 private:
  ClusterRig& rig_;
  const int rank_;
  const SteadyClock clock_;
  Registry telemetry_;
  std::unique_ptr<ComputeDevice> device_;
  std::unique_ptr<DeviceExchanges> exchanges_;
};

uint32_t Declare(Worker& worker, const TensorDeclaration& tensor) {
  return worker.Declare({tensor}, kLong).value().at(0);
}

TEST(DeviceExchanges, GiveTheBitsOfTensorsOfTheHost) {
  FakeDriver driver;
  for (const std::string codec : {"none", "fp16", "ef(onebit(block=64))", "topk(ratio=0.05)"}) {
    Floats results[2];
    for (const bool on_device : {false, true}) {
      ClusterRig rig(
          2, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096", "--seed=5"});
      rig.OnEach([&](Worker& worker, int rank) {
        Trainer trainer(rig, rank);
        const uint32_t id = Declare(worker, Tensor("w", 3000, codec, codec));
        for (int step = 1; step <= 3; ++step) {
          Floats values = Normal(3000, 10 * step + rank);
          if (on_device) {
            const Trainer::Array array = trainer.Make(values);
            const auto result = trainer.Exchange(Trainer::PushOf(id, array));
            ASSERT_TRUE(result.ok()) << result.status();
            EXPECT_EQ(result->step, static_cast<Step>(step));
            values = array.Read();
          } else {
            ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, values)).ok());
          }
          if (rank == 0) results[on_device] = values;
        }
        ASSERT_TRUE(worker.Leave(kLong).ok());
      });
    }
    EXPECT_EQ(results[0], results[1]) << codec;
  }
}

TEST(DeviceExchanges, MixWithTensorsOfTheHostInOneFrame) {
  FakeDriver driver;
  ClusterRig rig(2);
  rig.OnEach([&](Worker& worker, int rank) {
    Trainer trainer(rig, rank);
    TensorDeclaration a = Tensor("a", 100), b = Tensor("b", 50);
    a.fuse = b.fuse = true;
    const auto ids = worker.Declare({a, b}, kLong).value();
    const Trainer::Array of_device = trainer.Make(Floats(100, 2.0f * rank));
    Floats of_host(50, 4.0f * rank);
    std::vector<DeviceExchanges::Push> pushes;
    pushes.push_back(Trainer::PushOf(ids[1], of_host));
    pushes.push_back(Trainer::PushOf(ids[0], of_device));
    std::vector<TicketId> tickets;
    ASSERT_TRUE(trainer.exchanges().PushPullAll(std::span(pushes), &tickets).ok());
    std::vector<PushResult> results;
    ASSERT_TRUE(trainer.exchanges().WaitAll(tickets, {}, kLong, &results).ok());
    EXPECT_EQ(results.size(), 2u);
    EXPECT_THAT(of_device.Read(), Each(1.0f));
    EXPECT_THAT(of_host, Each(2.0f));
    EXPECT_EQ(trainer.Count("device_bytes_out"), 400u);
    EXPECT_EQ(trainer.Count("device_bytes_back"), 400u);
    ASSERT_TRUE(worker.Leave(kLong).ok());
  });
}

TEST(DeviceExchanges, BeginWhenTheStreamIsThereAndNobodyWaitsForIt) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig, 0);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array first = trainer.Make(Floats(10, 1.0f));
  driver.Hold(true);
  const TicketId ticket = trainer.Start(Trainer::PushOf(id, first)).value();
  // One of the host comes behind it, as it is of the same tensor.
  Floats second(10, 2.0f);
  const TicketId behind = trainer.Start(Trainer::PushOf(id, second)).value();
  DeviceExchanges::Push unwanted{{.tensor = id, .absent = true}, {0, {}}};
  const TicketId last = trainer.Start(unwanted).value();
  const absl::Status late = trainer.Wait(ticket, absl::Milliseconds(1)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(GetErrorField(late, "tensor"), "w");
  EXPECT_EQ(GetErrorField(late, "waiting_for"),
            "a stream of Fake GPU (cuda:0) to come to the push");
  driver.Hold(false);
  EXPECT_EQ(trainer.Wait(ticket).value().step, 1u);
  EXPECT_EQ(trainer.Wait(behind).value().step, 2u);
  EXPECT_EQ(trainer.Wait(last).value().step, 3u);
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, AStreamWaitsForWhatTheCpuDoesNot) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(2);
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Worker& worker, int rank) { ids[rank] = Declare(worker, Tensor("w", 10)); });
  Trainer trainer(rig, 0);
  const Trainer::Array array = trainer.Make(Floats(10, 1.0f));
  const TicketId ticket = trainer.Start(Trainer::PushOf(ids[0], array)).value();
  trainer.AwaitSent(ticket);
  EXPECT_EQ(GetErrorField(trainer.Wait(ticket, absl::ZeroDuration()).status(), "stage"),
            "exchange");
  driver.Hold(true);
  Floats other(10, 3.0f);
  ASSERT_TRUE(PushPull(rig.worker(1), ids[1], other).ok());
  const DeviceStream stream;
  std::vector<PushResult> results;
  ASSERT_TRUE(trainer.exchanges().WaitAll({&ticket, 1}, {&stream, 1}, kLong, &results).ok());
  EXPECT_EQ(results.at(0).step, 1u);
  EXPECT_THAT(array.Read(), Each(1.0f)) << "it is still on its way to the device";
  EXPECT_EQ(driver.Pending(stream), 1u) << "the stream waits for it";
  EXPECT_EQ(trainer.Wait(ticket, kLong).status().code(), absl::StatusCode::kNotFound);
  driver.Hold(false);
  ASSERT_TRUE(trainer.device().Synchronize(stream).ok());
  EXPECT_THAT(array.Read(), Each(2.0f));
  rig.OnEach([](Worker& worker, int) { ASSERT_TRUE(worker.Leave(kLong).ok()); });
}

TEST(DeviceExchanges, SayWhetherTheirClientHasThem) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig, 0);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array array = trainer.Make(Floats(10, 1.0f));
  EXPECT_TRUE(trainer.exchanges().AwaitStarted(absl::ZeroDuration()).ok());
  driver.Hold(true);
  const TicketId ticket = trainer.Start(Trainer::PushOf(id, array)).value();
  EXPECT_EQ(trainer.exchanges().CheckStarted(id).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(trainer.exchanges().CheckStarted(id + 1).ok());
  const absl::Status late = trainer.exchanges().AwaitStarted(absl::Milliseconds(1));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(GetErrorField(late, "tensor"), "w");
  driver.Hold(false);
  EXPECT_TRUE(trainer.exchanges().AwaitStarted(kLong).ok());
  EXPECT_TRUE(trainer.exchanges().CheckStarted(id).ok());
  EXPECT_TRUE(trainer.Wait(ticket).ok());
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, TellOfTheEndOnceTheResultIsThere) {
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig, 0);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array array = trainer.Make(Floats(10, 5.0f));
  DeviceExchanges::Push push = Trainer::PushOf(id, array);
  std::promise<Floats> told;
  push.request.done = [&](TicketId, const absl::StatusOr<PushResult>& result) {
    EXPECT_TRUE(result.ok());
    told.set_value(array.Read());
  };
  ASSERT_TRUE(trainer.Start(std::move(push)).ok());
  EXPECT_THAT(told.get_future().get(), Each(5.0f));
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, LeaveWhatNobodyHasAndSayWhatIsNotFinite) {
  FakeDriver driver;
  ClusterRig rig(2);
  rig.OnEach([&](Worker& worker, int rank) {
    Trainer trainer(rig, rank);
    const uint32_t id = Declare(worker, Tensor("w", 10));
    const Trainer::Array array = trainer.Make(Floats(10, 7.0f));
    const auto step = [&](bool absent) {
      DeviceExchanges::Push push = Trainer::PushOf(id, array);
      push.request.absent = absent;
      return trainer.Exchange(std::move(push)).value();
    };
    EXPECT_TRUE(step(true).absent);
    EXPECT_THAT(array.Read(), Each(7.0f));
    EXPECT_FALSE(step(rank == 0).absent);  // worker 1 has one
    EXPECT_THAT(array.Read(), Each(3.5f));
    const Floats wrong(10, rank == 0 ? 1.0f : std::numeric_limits<float>::infinity());
    trainer.Write(wrong, array);
    EXPECT_TRUE(step(false).nonfinite);
    EXPECT_TRUE(std::isnan(array.Read()[3]));
    ASSERT_TRUE(worker.Leave(kLong).ok());
  });
}

TEST(DeviceExchanges, GoThroughOtherMemoryWherePinnedMemoryIsOut) {
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig, 0, {.codecs = CodecPlace::kHost, .max_pinned_bytes = 4096});
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 5000));
  const Trainer::Array array = trainer.Make(Floats(5000, 3.0f));
  ::testing::internal::CaptureStderr();
  for (Step step = 1; step <= 3; ++step) {
    EXPECT_EQ(trainer.Exchange(Trainer::PushOf(id, array)).value().step, step);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("20000 bytes of pinned memory wanted, the pool has 4096"));
  EXPECT_EQ(log.find("max-pinned-bytes"), log.rfind("max-pinned-bytes")) << "it is said once";
  EXPECT_THAT(array.Read(), Each(3.0f));
  EXPECT_EQ(trainer.Count("device_unpinned_pushes"), 3u);
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, AreRefusedWhileAGraphIsCaptured) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig, 0);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array array = trainer.Make(Floats(10, 1.0f));
  driver.Capture(true);
  const absl::Status refused = trainer.Start(Trainer::PushOf(id, array)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorField(refused, "tensor"), "w");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("captured into a CUDA graph"));
  driver.Capture(false);
  EXPECT_EQ(trainer.Exchange(Trainer::PushOf(id, array)).value().step, 1u) << "nothing was counted";
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, NameTheTensorAndTheCallThatFailed) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig, 0);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array array = trainer.Make(Floats(10, 1.0f));
  driver.FailCopies(true);
  const absl::Status failed = trainer.Start(Trainer::PushOf(id, array)).status();
  driver.FailCopies(false);
  EXPECT_EQ(GetErrorField(failed, "tensor"), "w");
  EXPECT_EQ(GetErrorField(failed, "stage"), "copy");
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cuMemcpyDtoHAsync of 40 bytes"));
  // An error in a request is the ticket's, and does not keep others from being sent.
  DeviceExchanges::Push bad = Trainer::PushOf(id, array);
  bad.request.weight = -1;
  const TicketId refused = trainer.Start(std::move(bad)).value();
  const TicketId good = trainer.Start(Trainer::PushOf(id, array)).value();
  EXPECT_THAT(std::string(trainer.Wait(refused).status().message()), HasSubstr("weight"));
  EXPECT_EQ(trainer.Wait(good).value().step, 1u);
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, SayThatThereIsNoDeviceOrNoDriver) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 4));
  Trainer trainer(rig, 0);
  const Trainer::Array array = trainer.Make(Floats(4, 1.0f));
  DeviceExchanges::Push push = Trainer::PushOf(id, array);
  push.place.ordinal = 3;
  const absl::Status missing = trainer.Start(push).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorField(missing, "tensor"), "w");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("GPU 3"));
}

TEST(DeviceExchanges, SayThatThereIsNoDriver) {
  FakeDriver driver;
  ClusterRig rig(1);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 4));
  Trainer trainer(rig, 0,
                  {.open = [](int ordinal) -> absl::StatusOr<std::unique_ptr<ComputeDevice>> {
                    return CudaDevice::Open({.ordinal = ordinal, .library = "libnone.so"});
                  }});
  const Trainer::Array array = trainer.Make(Floats(4, 1.0f));
  const absl::Status missing = trainer.Start(Trainer::PushOf(id, array)).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no NVIDIA driver on this machine"));
}

TEST(DeviceExchanges, EndWithTheWorker) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  Trainer trainer(rig, 0);
  const Trainer::Array array = trainer.Make(Floats(10, 1.0f));
  driver.Hold(true);
  const TicketId ticket = trainer.Start(Trainer::PushOf(id, array)).value();
  std::thread closer([&] { trainer.exchanges().Close(); });
  EXPECT_EQ(trainer.Wait(ticket).status().code(), absl::StatusCode::kCancelled);
  closer.join();
  EXPECT_EQ(trainer.Start(Trainer::PushOf(id, array)).status().code(),
            absl::StatusCode::kCancelled);
  driver.Hold(false);
}

// ---- Encoded on the device

struct Outcomes {
  std::vector<Floats> results;  // of rank 0, by step
  Floats residual;
  Floats momentum;
  bool operator==(const Outcomes&) const = default;
};

// Returns what rank 0 of two gets in six steps, some of which have what happens in a training.
// `place` is where gradients are encoded; nothing: on the host.
Outcomes Train(const TensorDeclaration& tensor, std::optional<CodecPlace> place,
               std::vector<std::string> flags = {}) {
  flags.insert(flags.end(), {"--servers=2", "--min-compress-bytes=0", "--seed=5"});
  ClusterRig rig(2, flags);
  Outcomes outcomes;
  rig.OnEach([&](Worker& worker, int rank) {
    Trainer trainer(rig, rank, {.codecs = place.value_or(CodecPlace::kHost)});
    const uint32_t id = Declare(worker, tensor);
    for (int step = 1; step <= 6; ++step) {
      Floats values = Normal(tensor.elements, 10 * step + rank);
      if (step == 3 && rank == 1) values[7] = std::numeric_limits<float>::quiet_NaN();
      Trainer::Array array;
      if (place.has_value()) array = trainer.Make(values);
      DeviceExchanges::Push push =
          place.has_value() ? Trainer::PushOf(id, array) : Trainer::PushOf(id, values);
      push.request.absent = step == 4 && rank == 0;
      push.request.weight = step == 5 ? 0.5f : 1.0f;
      push.request.loss_scale = step == 6 ? 1024.0f : 1.0f;
      push.request.learning_rate = 0.1f / step;
      const auto result = trainer.Exchange(std::move(push));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->nonfinite, step == 3);
      if (rank == 0) outcomes.results.push_back(place.has_value() ? array.Read() : values);
    }
    if (rank == 0) {
      outcomes.residual.resize(tensor.elements);
      outcomes.momentum.resize(tensor.elements);
      ASSERT_TRUE(GetState(worker, id, LinkState::kResidual, std::span(outcomes.residual)).ok());
      ASSERT_TRUE(GetState(worker, id, LinkState::kMomentum, std::span(outcomes.momentum)).ok());
    }
    EXPECT_EQ(trainer.Count("device_encoded_pushes") > 0, place == CodecPlace::kDevice);
    EXPECT_EQ(trainer.Count("device_host_encoded_pushes"), 0u);
    ASSERT_TRUE(worker.Leave(kLong).ok());
  });
  // NaN is equal to nothing; that there was one was seen.
  if (outcomes.results.size() == 6) outcomes.results.erase(outcomes.results.begin() + 2);
  return outcomes;
}

TEST(DeviceExchanges, GiveTheSameBitsWhereverTheyAreEncoded) {
  FakeDriver driver;
  for (const std::string codec :
       {"none", "fp16", "bf16", "sign", "onebit", "onebit(block=64)", "ef(onebit(block=64))",
        "ef(onebit,correction=lr)", "ef(twobit(block=64))", "onebit(block=64,scale=bf16)",
        "ef(topk(ratio=0.05))", "topk(ratio=0.1,select=sampled)",
        "ef(randomk(ratio=0.1,unbiased=false))", "ef(blocks(ratio=0.1))",
        "int8(group=128,hadamard=32)", "ef(int4)", "dither", "ef(dither(kind=natural))",
        "none for 2; ef(onebit)"}) {
    TensorDeclaration tensor =
        Tensor("w", 3000, codec, codec.starts_with("none for") ? "fp16" : codec);
    const Outcomes here = Train(tensor, std::nullopt);
    EXPECT_EQ(Train(tensor, CodecPlace::kDevice), here) << codec;
    EXPECT_EQ(here.residual != Floats(3000), codec.find("ef(") != std::string::npos) << codec;
  }
}

TEST(DeviceExchanges, GiveTheSameBitsWithMomentumWarmUpAndPartitions) {
  FakeDriver driver;
  TensorDeclaration tensor = Tensor("w", 3000, "ef(onebit(block=64))", "ef(onebit(block=64))");
  tensor.momentum = 0.9f;
  tensor.warmup_steps = 2;
  const Outcomes here = Train(tensor, std::nullopt, {"--partition-bytes=4096"});
  EXPECT_EQ(Train(tensor, CodecPlace::kDevice, {"--partition-bytes=4096"}), here);
  EXPECT_NE(here.momentum, Floats(3000));
}

TEST(DeviceExchanges, CarryTheirMemoryWithThemFromPlaceToPlace) {
  FakeDriver driver;
  std::vector<Floats> results[2];
  for (const bool moves : {false, true}) {
    ClusterRig rig(1, {"--min-compress-bytes=0"});
    Trainer trainer(rig, 0, {.codecs = CodecPlace::kDevice});
    const uint32_t id = Declare(trainer.worker(), Tensor("w", 500, "ef(onebit)", "none"));
    for (int step = 1; step <= 6; ++step) {
      Floats values = Normal(500, step);
      if (moves && step % 3 != 0) {
        const Trainer::Array array = trainer.Make(values);
        ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, array)).ok());
        values = array.Read();
      } else {
        ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, values)).ok());
      }
      results[moves].push_back(values);
      if (step != 4) continue;
      // A checkpoint: what was saved is what is set.
      Floats residual(500);
      ASSERT_TRUE(GetState(trainer.worker(), id, LinkState::kResidual, std::span(residual)).ok());
      ASSERT_TRUE(SetState(trainer.worker(), id, LinkState::kResidual, residual).ok());
    }
    ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(DeviceExchanges, AreEncodedOnTheHostWhereTheDeviceHasNoKernelsForThem) {
  FakeDriver driver;
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Trainer trainer(rig, 0, {.codecs = CodecPlace::kDevice});
  TensorDeclaration a = Tensor("a", 100, "fp16"), b = Tensor("b", 100, "fp16");
  a.fuse = b.fuse = true;
  const auto ids = trainer.worker()
                       .Declare({a, b, Tensor("c", 100, "sketch(columns=0.5)", "none")}, kLong)
                       .value();
  const Trainer::Array array = trainer.Make(Floats(100, 1.0f));
  const Trainer::Array second = trainer.Make(Floats(100, 1.0f));
  const TicketId first = trainer.Start(Trainer::PushOf(ids[0], array)).value();
  EXPECT_TRUE(trainer.Exchange(Trainer::PushOf(ids[1], second)).ok());
  EXPECT_TRUE(trainer.Wait(first).ok());
  EXPECT_TRUE(trainer.Exchange(Trainer::PushOf(ids[2], array)).ok());
  EXPECT_EQ(trainer.Count("device_encoded_pushes"), 0u);
  ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
}

TEST(DeviceExchanges, AreEncodedOnTheHostWhereTheDevicesMemoryIsOut) {
  BDN_NEEDS_FAKE();
  FakeDriver driver(kSmallFakeLibrary);
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Trainer trainer(rig, 0,
                  {.codecs = CodecPlace::kDevice,
                   .open = [](int ordinal) { return OpenFake(ordinal, kSmallFakeLibrary); }},
                  kSmallFakeLibrary);
  // 4096 bytes are there: the gradient's, but not the residual's.
  const uint32_t id = Declare(trainer.worker(), Tensor("w", 600, "ef(onebit)", "none"));
  const Trainer::Array array = trainer.Make(Floats(600, 2.0f));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(trainer.Exchange(Trainer::PushOf(id, array)).value().step, 1u);
  EXPECT_EQ(trainer.Exchange(Trainer::PushOf(id, array)).value().step, 2u);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(array.Read(), Each(2.0f));
  EXPECT_THAT(log, HasSubstr("tensor 'w' is encoded by processors"));
  EXPECT_THAT(log, HasSubstr("cuMemAlloc of 2400 bytes on Fake GPU (cuda:0)"));
  EXPECT_EQ(log.find("by processors"), log.rfind("by processors")) << "it is said once";
  ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
}

TEST(DeviceExchanges, AreEncodedThereWhereNobodySaysWhereAndThePayloadIsHalfAtMost) {
  FakeDriver driver;
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Trainer trainer(rig, 0, {.codecs = CodecPlace::kAuto});
  const auto ids =
      trainer.worker()
          .Declare({Tensor("a", 1000, "onebit", "none"), Tensor("b", 1000, "fp16", "none"),
                    Tensor("c", 1000, "none", "none")},
                   kLong)
          .value();
  const Trainer::Array array = trainer.Make(Floats(1000, 2.0f));
  const auto there_and_here = [&] {
    return std::pair(trainer.Count("device_encoded_pushes"),
                     trainer.Count("device_host_encoded_pushes"));
  };
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(ids[0], array)).ok());
  EXPECT_EQ(there_and_here(), std::pair(1ul, 0ul));
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(ids[1], array)).ok());
  EXPECT_EQ(there_and_here(), std::pair(2ul, 0ul));
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(ids[2], array)).ok());
  EXPECT_EQ(there_and_here(), std::pair(2ul, 1ul)) << "uncompressed there is nothing to spare";
  ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
}

// ---- Streams

TEST(DeviceExchanges, AreOrderedByEventsAlone) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  constexpr size_t kElements = 2001;
  for (const CodecPlace place : {CodecPlace::kHost, CodecPlace::kDevice}) {
    ClusterRig rig(2, {"--min-compress-bytes=0", "--fusion-bytes=0"});
    std::vector<uint32_t> ids(2);
    rig.OnEach(
        [&](Worker& worker, int rank) { ids[rank] = Declare(worker, Tensor("w", kElements)); });
    Trainer trainer(rig, 0, {.codecs = place});
    ComputeDevice& device = trainer.device();
    const uint32_t id = ids[0];
    const DeviceStream streams[] = {device.MakeStream().value(), device.MakeStream().value()};
    const Trainer::Array gradient = trainer.Make(Floats(kElements));
    const Trainer::Array taken = trainer.Make(Floats(kElements));
    for (int step = 1; step <= 40; ++step) {
      driver.Seed(step);
      const Floats values = Normal(kElements, step);
      // The other worker's, so that the result is not what was there before.
      Floats others(kElements), mean(kElements);
      for (size_t i = 0; i < kElements; ++i) {
        others[i] = 3 * values[i];
        mean[i] = (values[i] + others[i]) / 2;
      }
      const Trainer::Array made = trainer.Make(values);
      const DeviceStream maker = streams[step % 2];
      const DeviceStream taker = streams[step % 3 == 0 ? step % 2 : (step + 1) % 2];
      // The gradient is made late, in a stream; the result is read by a stream that may be another.
      const size_t bytes = kElements * sizeof(float);
      ASSERT_TRUE(device.CopyOnDevice(maker, made.memory.get(), gradient.memory.get(), bytes).ok());
      DeviceExchanges::Push push = Trainer::PushOf(id, gradient);
      push.place.stream = maker;
      const TicketId ticket = trainer.Start(std::move(push)).value();
      ASSERT_TRUE(PushPull(rig.worker(1), ids[1], others).ok());
      std::vector<PushResult> results;
      ASSERT_TRUE(trainer.exchanges().WaitAll({&ticket, 1}, {&taker, 1}, kLong, &results).ok());
      ASSERT_TRUE(
          device.CopyOnDevice(taker, gradient.memory.get(), taken.memory.get(), bytes).ok());
      ASSERT_TRUE(device.Synchronize(taker).ok());
      ASSERT_EQ(taken.Read(), mean) << "step " << step;
      ASSERT_TRUE(device.Synchronize(maker).ok());
    }
    for (const DeviceStream stream : streams) device.FreeStream(stream);
    rig.OnEach([](Worker& worker, int) { ASSERT_TRUE(worker.Leave(kLong).ok()); });
  }
}

TEST(DeviceExchanges, SeeToItThatNobodySpinsAndCopyPinnedMemoryAlone) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  for (const CodecPlace place : {CodecPlace::kHost, CodecPlace::kDevice}) {
    for (const size_t max_pinned_bytes : {size_t{1} << 30, size_t{4096}}) {
      ClusterRig rig(1, {"--min-compress-bytes=0"});
      Trainer trainer(rig, 0, {.codecs = place, .max_pinned_bytes = max_pinned_bytes});
      const uint32_t id = Declare(trainer.worker(), Tensor("w", 20000, "ef(int8)", "fp16"));
      const Trainer::Array array = trainer.Make(Floats(20000, 2.0f));
      driver.ResetCounts();
      for (int step = 0; step < 4; ++step) {
        ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, array)).ok());
      }
      EXPECT_EQ(driver.counts().stream_synchronizations, 0);
      EXPECT_EQ(driver.counts().pageable_copies, 0);
      EXPECT_EQ(trainer.Count("device_encoded_pushes"), place == CodecPlace::kDevice ? 4u : 0u);
      ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
    }
  }
}

TEST(DeviceExchanges, NeitherSpoilACaptureElsewhereNorAreRefusedByIt) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  for (const CodecPlace place : {CodecPlace::kHost, CodecPlace::kDevice}) {
    ClusterRig rig(1, {"--min-compress-bytes=0"});
    Trainer trainer(rig, 0, {.codecs = place});
    const uint32_t id = Declare(trainer.worker(), Tensor("w", 1000, "ef(onebit)", "fp16"));
    const Trainer::Array array = trainer.Make(Floats(1000, 2.0f));
    driver.BeginGlobalCapture();
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(trainer.Exchange(Trainer::PushOf(id, array)).ok());
    }
    EXPECT_TRUE(driver.EndGlobalCapture());
    ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
  }
}

TEST(CodecDevice, TakesStepsBackAndOwesThemAsleep) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  constexpr size_t kElements = 3000;
  const auto device = OpenFake(0).value();
  PinnedPool pinned(*device, size_t{1} << 20);
  PinnedRing ring(device.get());
  CodecDevice codecs(device.get(), &pinned, &ring);
  const auto codec = ParseCodecSpec("onebit(block=64)").value().codec;
  const Floats gradient = Normal(kElements, 1);
  const DeviceMemory x = codecs.MakeZeros(kElements * sizeof(float)).value();
  const DeviceMemory residual = codecs.MakeZeros(kElements * sizeof(float)).value();
  ASSERT_TRUE(codecs.CopyToDevice(std::as_bytes(std::span(gradient)), x.get()).ok());
  const auto read = [&](const DeviceMemory& from) {
    Floats values(kElements);
    EXPECT_TRUE(codecs.CopyToHost(from.get(), std::as_writable_bytes(std::span(values))).ok());
    return values;
  };
  const DeviceSource step{.x = x.get(),
                          .n = kElements,
                          .options = {.decay = 1.0f},
                          .residual = static_cast<float*>(residual.get())};
  driver.ResetCounts();
  std::vector<std::byte> payload(codec->MaxEncodedBytes(kElements, DType::kFloat32));
  payload.resize(codecs.Encode(*codec, step, Draw(), payload).value());
  const Floats left_out = read(residual);
  EXPECT_NE(left_out, Floats(kElements));
  ASSERT_TRUE(codecs.Owe(*codec, payload, kElements, step.residual).ok());
  const Floats owed = read(residual);
  for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(owed[i], gradient[i], 1e-5) << i;
  ASSERT_TRUE(codecs.CopyToDevice(std::as_bytes(std::span(left_out)), residual.get()).ok());
  ASSERT_TRUE(codecs.Undo(*codec, payload, step).ok());
  const Floats undone = read(residual);
  for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(undone[i], 0.0f, 1e-5) << i;
  EXPECT_EQ(driver.counts().stream_synchronizations, 0);
}

// ---- Memory that is out

// The cases in which something fails: every codec that has kernels, by its first case, with error
// feedback and without. device_failures_test.cc tries all cases of one key, and steps that come to
// nothing.
std::vector<TensorDeclaration> Failing() {
  std::vector<TensorDeclaration> tensors;
  std::set<CodecId> tried;
  for (const CodecCase& codec : CasesWithKernels()) {
    if (!tried.insert(Parse(codec.spec)->id()).second) continue;
    const std::string spec = codec.spec;
    tensors.push_back(Tensor("w", 700, spec, spec));
    tensors.push_back(Tensor("w", 700, "ef(" + spec + ")", spec));
    if (spec.starts_with("onebit")) tensors.back().momentum = 0.9f;
  }
  return tensors;
}

// Returns the results of six steps of one worker, one of them with a gradient that is not finite;
// fewer where a step ended in an error. `before_push` is called with each step when its gradient is
// there.
Outcomes TrainAlone(const TensorDeclaration& tensor, std::optional<CodecPlace> place,
                    const std::function<void(int step)>& before_push = nullptr,
                    size_t max_device_bytes = 0) {
  ClusterRig rig(1, {"--min-compress-bytes=0", "--seed=5"});
  Trainer trainer(
      rig, 0, {.codecs = place.value_or(CodecPlace::kHost), .max_device_bytes = max_device_bytes});
  const uint32_t id = Declare(trainer.worker(), tensor);
  Outcomes outcomes;
  Trainer::Array array;
  if (place.has_value()) array = trainer.Make(Floats(tensor.elements));
  for (int step = 1; step <= 6; ++step) {
    Floats values = Normal(tensor.elements, step);
    if (step == 3) values[7] = std::numeric_limits<float>::infinity();
    if (place.has_value()) trainer.Write(values, array);
    if (before_push != nullptr) before_push(step);
    const auto result = trainer.Exchange(place.has_value() ? Trainer::PushOf(id, array)
                                                           : Trainer::PushOf(id, values));
    if (!result.ok()) return outcomes;
    if (max_device_bytes != 0) {
      EXPECT_LE(trainer.Count("device_memory_bytes"), max_device_bytes);
    }
    if (step != 3) outcomes.results.push_back(place.has_value() ? array.Read() : values);
  }
  outcomes.residual.resize(tensor.elements);
  outcomes.momentum.resize(tensor.elements);
  EXPECT_TRUE(
      GetState(trainer.worker(), id, LinkState::kResidual, std::span(outcomes.residual)).ok());
  EXPECT_TRUE(
      GetState(trainer.worker(), id, LinkState::kMomentum, std::span(outcomes.momentum)).ok());
  EXPECT_TRUE(trainer.worker().Leave(kLong).ok());
  return outcomes;
}

TEST(DeviceExchanges, GiveTheHostsBitsWithEveryAllocationThatFails) {
  BDN_NEEDS_FAKE();
  for (const TensorDeclaration& tensor : Failing()) {
    const Outcomes here = TrainAlone(tensor, std::nullopt);
    ASSERT_EQ(here.results.size(), 5u);
    for (const int in_step : {1, 2, 3, 4}) {
      long failed = 1;
      for (long k = 0; failed > 0; ++k) {
        FakeDriver driver;
        driver.ResetCounts();
        const auto fail = [&](int step) {
          if (step == in_step) driver.Fail(FakeDriver::kAllocations, k, 1);
        };
        EXPECT_EQ(TrainAlone(tensor, CodecPlace::kDevice, fail), here)
            << tensor.push_spec.str() << ": allocation " << k << " from step " << in_step << " on";
        failed = driver.counts().failed;
        if (HasFailure()) return;
      }
    }
    // And all from the k-th on.
    for (long k = 0; k < 8; ++k) {
      FakeDriver driver;
      const auto fail = [&](int step) {
        if (step == 1) driver.Fail(FakeDriver::kAllocations, k, FakeDriver::kForever);
      };
      EXPECT_EQ(TrainAlone(tensor, CodecPlace::kDevice, fail), here)
          << tensor.push_spec.str() << ": from " << k;
    }
  }
}

TEST(DeviceExchanges, GiveTheHostsBitsOrAnErrorWithEveryLaunchThatFails) {
  BDN_NEEDS_FAKE();
  for (const TensorDeclaration& tensor : Failing()) {
    const Outcomes here = TrainAlone(tensor, std::nullopt);
    long failed = 1;
    for (long k = 0; failed > 0; ++k) {
      FakeDriver driver;
      driver.ResetCounts();
      const Outcomes there = TrainAlone(tensor, CodecPlace::kDevice, [&](int step) {
        if (step == 2) driver.Fail(FakeDriver::kLaunches, k, 1);
      });
      failed = driver.counts().failed;
      if (there.results.size() == here.results.size()) {
        EXPECT_EQ(there, here) << tensor.push_spec.str() << ": launch " << k;
      }
      for (size_t i = 0; i < there.results.size(); ++i) {
        EXPECT_EQ(there.results[i], here.results[i])
            << tensor.push_spec.str() << ": launch " << k << ", result " << i;
      }
      if (HasFailure()) return;
    }
  }
}

TEST(DeviceExchanges, GiveTheHostsBitsWithinWhatTheyMayTakeOfTheDevicesMemory) {
  FakeDriver driver;
  for (const TensorDeclaration& tensor : Failing()) {
    const Outcomes here = TrainAlone(tensor, std::nullopt);
    for (const size_t max_device_bytes : {256, 3000, 6000, 12000, 1 << 20}) {
      EXPECT_EQ(TrainAlone(tensor, CodecPlace::kDevice, nullptr, max_device_bytes), here)
          << tensor.push_spec.str() << " within " << max_device_bytes;
    }
  }
}

TEST(DeviceExchanges, LeaveATenthOfTheDevicesMemoryToOthers) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  constexpr size_t kGiB = size_t{1} << 30;
  driver.SayThatMemoryIs(4 * kGiB + 2000, 40 * kGiB);
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Trainer trainer(rig, 0, {.codecs = CodecPlace::kDevice});
  const auto ids = trainer.worker()
                       .Declare({Tensor("small", 100, "ef(onebit)", "none"),
                                 Tensor("large", 1000, "ef(onebit)", "none")},
                                kLong)
                       .value();
  const Trainer::Array small = trainer.Make(Floats(100, 1.0f));
  const Trainer::Array large = trainer.Make(Floats(1000, 1.0f));
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(ids[0], small)).ok());
  EXPECT_EQ(trainer.Count("device_encoded_pushes"), 1u);
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(ids[1], large)).ok());
  EXPECT_EQ(trainer.Count("device_encoded_pushes"), 1u);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("max-device-bytes"));
  ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
}

TEST(DeviceExchanges, StayWithTheHostForAHundredStepsAfterMemoryWasOut) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Trainer trainer(rig, 0, {.codecs = CodecPlace::kDevice});
  const uint32_t id = Declare(trainer.worker(), Tensor("w", 500, "ef(onebit)", "none"));
  const Trainer::Array array = trainer.Make(Floats(500, 1.0f));
  // There is room for the residual, and none for the payload.
  driver.Fail(FakeDriver::kAllocations, 1, 1);
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, array)).ok());
  driver.ResetCounts();
  for (int step = 2; step <= 100; ++step) {
    ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, array)).ok());
  }
  EXPECT_EQ(driver.counts().calls[FakeDriver::kAllocations], 0);
  EXPECT_EQ(driver.counts().frees, 0);
  EXPECT_EQ(trainer.Count("device_encoded_pushes"), 0u);
  EXPECT_EQ(trainer.Count("device_host_encoded_pushes"), 100u);
  ASSERT_TRUE(trainer.Exchange(Trainer::PushOf(id, array)).ok());
  EXPECT_EQ(trainer.Count("device_encoded_pushes"), 1u) << "it was tried again";
  ASSERT_TRUE(trainer.worker().Leave(kLong).ok());
}

TEST(DeviceExchanges, FailWithTheDevicesErrorWhereItBreaksOnTheWay) {
  BDN_NEEDS_FAKE();
  FakeDriver driver;
  ClusterRig rig(1, {"--min-compress-bytes=0"});
  Trainer trainer(rig, 0, {.codecs = CodecPlace::kDevice});
  const uint32_t id = Declare(trainer.worker(), Tensor("w", 1000, "onebit", "none"));
  const Trainer::Array array = trainer.Make(Floats(1000, 2.0f));
  driver.FailCopies(true);
  const absl::Status broken = trainer.Exchange(Trainer::PushOf(id, array)).status();
  driver.FailCopies(false);
  EXPECT_EQ(broken.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(GetErrorField(broken, "tensor"), "w");
  EXPECT_EQ(GetErrorField(broken, "stage"), "encode");
  EXPECT_THAT(std::string(broken.message()), HasSubstr("cuMemcpyDtoHAsync"));
}

}  // namespace
}  // namespace bdn::testing
