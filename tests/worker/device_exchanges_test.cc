// Tensors in the memory of a device, through workers that know the host's: the driver is the fake of
// tests/device/fake_cuda.cc, which does what is put into streams only when somebody waits for it.

#include "worker/device/device_exchanges.h"

#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include "device/cuda_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/worker_rig.h"
#include "worker/error_fields.h"

namespace bdn::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr const char* kLibrary = BDN_FAKE_CUDA_DIR "/libfake_cuda.so";

// The driver that all devices here are of.
class FakeDriver {
 public:
  ~FakeDriver() {
    Hold(false);
    FailCopies(false);
    Capture(false);
    EXPECT_EQ(Function<int()>("FakeContexts")(), 0);
    EXPECT_EQ(Function<size_t()>("FakeHeldBytes")(), 0u);
    dlclose(library_);
  }
  void Hold(bool on) { Function<void(int)>("FakeHold")(on); }
  void FailCopies(bool on) { Function<void(int)>("FakeFailCopies")(on); }
  void Capture(bool on) { Function<void(int)>("FakeCapture")(on); }

 private:
  template <typename F>
  F* Function(const char* name) {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }
  void* const library_ = dlopen(kLibrary, RTLD_NOW);
};

absl::StatusOr<std::unique_ptr<ComputeDevice>> OpenFake(int ordinal) {
  static const std::byte kImage[1] = {};
  return CudaDevice::Open(
      {.ordinal = ordinal, .library = kLibrary, .image = kImage, .image_version = 13000});
}

// One of the workers with what it has of the device.
class Trainer {
 public:
  Trainer(Worker& worker, DeviceExchanges::Options options)
      : worker_(worker), device_(OpenFake(0).value()) {
    if (!options.open) options.open = OpenFake;
    exchanges_ =
        std::make_unique<DeviceExchanges>(std::move(options), &worker, &clock_, &telemetry_);
  }
  explicit Trainer(Worker& worker) : Trainer(worker, {}) {}
  ~Trainer() {
    exchanges_->Close();
    worker_.Close();  // nothing of it comes after this
    exchanges_.reset();
  }

  DeviceExchanges& exchanges() { return *exchanges_; }
  CudaDevice& device() { return static_cast<CudaDevice&>(*device_); }

  // A tensor in the device's memory.
  struct Array {
    DeviceMemory memory;
    size_t n = 0;
    Floats Read() const {
      Floats values(n);
      std::memcpy(values.data(), memory.get(), n * sizeof(float));  // which it is, being a fake's
      return values;
    }
  };
  Array Make(const Floats& values) {
    Array array{DeviceMemory::Make(device(), values.size() * sizeof(float)).value(), values.size()};
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
  Worker& worker_;
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
        Trainer trainer(worker);
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
  rig.OnEach([](Worker& worker, int rank) {
    Trainer trainer(worker);
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
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig.worker(0));
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array first = trainer.Make(Floats(10, 1.0f));
  driver.Hold(true);
  const TicketId ticket = trainer.Start(Trainer::PushOf(id, first)).value();
  // One of the host comes behind it, as it is of the same tensor.
  Floats second(10, 2.0f);
  const TicketId behind = trainer.Start(Trainer::PushOf(id, second)).value();
  const absl::Status late = trainer.Wait(ticket, absl::Milliseconds(1)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(GetErrorField(late, "tensor"), "w");
  EXPECT_EQ(GetErrorField(late, "waiting_for"),
            "a stream of Fake GPU (cuda:0) to come to the push");
  driver.Hold(false);
  EXPECT_EQ(trainer.Wait(ticket).value().step, 1u);
  EXPECT_EQ(trainer.Wait(behind).value().step, 2u);
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, AStreamWaitsForWhatTheCpuDoesNot) {
  FakeDriver driver;
  ClusterRig rig(2);
  std::vector<uint32_t> ids(2);
  rig.OnEach([&](Worker& worker, int rank) { ids[rank] = Declare(worker, Tensor("w", 10)); });
  Trainer trainer(rig.worker(0));
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
  EXPECT_EQ(trainer.Wait(ticket, kLong).status().code(), absl::StatusCode::kNotFound);
  driver.Hold(false);
  ASSERT_TRUE(trainer.device().Synchronize(stream).ok());
  EXPECT_THAT(array.Read(), Each(2.0f));
  rig.OnEach([](Worker& worker, int) { ASSERT_TRUE(worker.Leave(kLong).ok()); });
}

TEST(DeviceExchanges, TellOfTheEndOnceTheResultIsThere) {
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig.worker(0));
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
  rig.OnEach([](Worker& worker, int rank) {
    Trainer trainer(worker);
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
  Trainer trainer(rig.worker(0), {.max_pinned_bytes = 4096});
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
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig.worker(0));
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
  FakeDriver driver;
  ClusterRig rig(1);
  Trainer trainer(rig.worker(0));
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  const Trainer::Array array = trainer.Make(Floats(10, 1.0f));
  driver.FailCopies(true);
  const absl::Status failed = trainer.Start(Trainer::PushOf(id, array)).status();
  driver.FailCopies(false);
  EXPECT_EQ(GetErrorField(failed, "tensor"), "w");
  EXPECT_EQ(GetErrorField(failed, "stage"), "copy");
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cuMemcpyDtoHAsync of 40 bytes"));
  // What is wrong with a request is the ticket's error, and does not keep others from leaving.
  DeviceExchanges::Push bad = Trainer::PushOf(id, array);
  bad.request.weight = -1;
  const TicketId refused = trainer.Start(std::move(bad)).value();
  const TicketId good = trainer.Start(Trainer::PushOf(id, array)).value();
  EXPECT_THAT(std::string(trainer.Wait(refused).status().message()), HasSubstr("weight"));
  EXPECT_EQ(trainer.Wait(good).value().step, 1u);
  ASSERT_TRUE(rig.worker(0).Leave(kLong).ok());
}

TEST(DeviceExchanges, SayThatThereIsNoDeviceOrNoDriver) {
  FakeDriver driver;
  ClusterRig rig(1);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 4));
  Trainer trainer(rig.worker(0));
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
  Trainer trainer(rig.worker(0),
                  {.open = [](int ordinal) -> absl::StatusOr<std::unique_ptr<ComputeDevice>> {
                    return CudaDevice::Open({.ordinal = ordinal, .library = "libnone.so"});
                  }});
  const Trainer::Array array = trainer.Make(Floats(4, 1.0f));
  const absl::Status missing = trainer.Start(Trainer::PushOf(id, array)).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no NVIDIA driver on this machine"));
}

TEST(DeviceExchanges, EndWithTheWorker) {
  FakeDriver driver;
  ClusterRig rig(1);
  const uint32_t id = Declare(rig.worker(0), Tensor("w", 10));
  Trainer trainer(rig.worker(0));
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

}  // namespace
}  // namespace bdn::testing
