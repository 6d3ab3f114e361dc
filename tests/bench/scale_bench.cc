// The cost of one more node and one more tensor for the control plane: a scheduler daemon of its
// own, and simulated nodes in this process that join, declare, meet at barriers, go on without one
// of them and leave over gRPC. Prints one JSON line a job size.
//
//   scale_bench [--workers 10,100,1000] [--servers 4] [--tensors 10000] [--elements 100000]

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/cluster/scheduler_client.h"

extern char** environ;

namespace bdn {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(5);

struct Shape {
  int workers = 0;
  int servers = 4;
  int tensors = 10000;
  uint64_t elements = 100000;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "scale_bench: %s\n", what.c_str());
  std::_Exit(1);
}
void Check(const absl::Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

// Into a network of our own, so that its loopback carries our bytes alone. False where this process
// may not.
bool EnterOwnNetwork() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof(request.ifr_name), "lo");
  request.ifr_flags = IFF_UP;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  if (!up) Die("the loopback of a new network cannot be brought up");
  return true;
}

uint64_t LoopbackBytes() {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    uint64_t bytes = 0;
    if (fields >> name >> bytes && name == "lo:") return bytes;
  }
  return 0;
}

// The daemon that is measured.
class SchedulerProcess {
 public:
  explicit SchedulerProcess(const Shape& shape) {
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) Die("no /proc/self/exe");
    std::string binary(self);
    binary.replace(binary.rfind('/') + 1, std::string::npos, "bandoneon-scheduler");
    char directory[] = "/tmp/scale_bench.XXXXXX";
    if (mkdtemp(directory) == nullptr) Die("no temporary directory");
    const std::string port_file = std::string(directory) + "/port";
    std::vector<std::string> args = {binary,
                                     "--listen=127.0.0.1:0",
                                     "--port-file=" + port_file,
                                     "--workers=" + std::to_string(shape.workers),
                                     "--servers=" + std::to_string(shape.servers),
                                     "--min-workers=1",
                                     "--lease-timeout=60s",
                                     "--log-level=warning"};
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, binary.c_str(), nullptr, nullptr, argv.data(), environ) != 0) {
      Die("cannot start " + binary);
    }
    const SteadyClock clock;
    for (const absl::Time end = clock.Now() + absl::Seconds(30); port_ == 0;) {
      std::ifstream(port_file) >> port_;
      if (clock.Now() > end) Die("the scheduler does not listen");
    }
    unlink(port_file.c_str());
    rmdir(directory);
  }
  ~SchedulerProcess() {
    if (pid_ == 0) return;
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  SchedulerProcess(const SchedulerProcess&) = delete;
  SchedulerProcess& operator=(const SchedulerProcess&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  double PeakMegabytes() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("VmHWM:", 0) == 0) return std::atof(line.c_str() + 6) / 1024;
    }
    return 0;
  }
  double CpuSeconds() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0;
    double system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
};

std::vector<TensorDeclaration> Tensors(const Shape& shape, const char* prefix, int count) {
  std::vector<TensorDeclaration> tensors(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    TensorDeclaration& tensor = tensors[static_cast<size_t>(i)];
    tensor.name = absl::StrFormat("%s.layers.%d.attention.weight", prefix, i);
    tensor.elements = shape.elements;
    tensor.push_spec = tensor.pull_spec = "ef(onebit(block=256))";
  }
  return tensors;
}

struct Phase {
  const char* name;
  std::function<void(int rank, ControlPlane*)> worker;
};

void RunJob(const Shape& shape, bool counts_bytes) {
  const SteadyClock clock;
  const auto begun = std::make_unique<SchedulerProcess>(shape);
  SchedulerProcess* const scheduler = begun.get();
  const auto connect = [&] {
    return SchedulerClient::Create(scheduler->address(), {}, &clock).value();
  };
  // Counts the nodes that have not yet heard that the last worker is gone.
  std::latch unaware(shape.workers - 1 + shape.servers);
  const auto on_membership = [&unaware](const std::shared_ptr<const Membership>& membership) {
    // Servers hear of one more membership once all workers have left, and it has no vacant rank.
    if (!membership->vacant.empty()) unaware.count_down();
  };
  const auto is_lost = [&shape](int rank) { return rank == shape.workers - 1; };
  std::vector<std::unique_ptr<ControlPlane>> servers;
  std::vector<std::thread> server_threads;
  for (int i = 0; i < shape.servers; ++i) {
    servers.push_back(connect());
    server_threads.emplace_back([&on_membership, control = servers.back().get()] {
      JoinRequest join{
          .role = Role::kServer, .endpoints = {EndpointOf("tcp://x")}, .host = "bench:1"};
      Check(control->Join(join, kPatience).status());
      control->Watch({
          .on_membership = on_membership,
          .on_catalogue =
              [control](auto delta) { Check(control->AcknowledgePlacement(delta->version)); },
          .on_failure = [](const absl::Status& status) { Check(status); },
      });
    });
  }
  const std::vector<TensorDeclaration> model = Tensors(shape, "model", shape.tensors);
  const std::vector<TensorDeclaration> one = Tensors(shape, "late", 1);
  const std::vector<TensorDeclaration> two = Tensors(shape, "later", 1);
  const auto declare = [](const std::vector<TensorDeclaration>& tensors) {
    return [&tensors](int, ControlPlane* control) {
      Check(control->Declare(tensors, kPatience).status());
    };
  };
  const Phase phases[] = {
      {"join",
       [&](int rank, ControlPlane* control) {
         JoinRequest join{.role = Role::kWorker, .wanted_rank = rank, .host = "bench:1"};
         Check(control->Join(join, kPatience).status());
         // The worker that is lost is told so, as a failure of its own.
         if (is_lost(rank)) return control->Watch({.on_failure = [](const absl::Status&) {}});
         control->Watch({.on_membership = on_membership,
                         .on_failure = [](const absl::Status& status) { Check(status); }});
       }},
      {"declare", declare(model)},
      {"declare_one_more", declare(one)},
      {"and_one_more", declare(two)},
      {"barrier", [](int, ControlPlane* control) { Check(control->Barrier("b", kPatience)); }},
      {"lose_a_worker",
       [&](int rank, ControlPlane* control) {
         if (!is_lost(rank)) return unaware.wait();
         Check(control->Leave(Unavailable("this worker's machine is taken away"), kPatience));
       }},
      {"leave",
       [&](int rank, ControlPlane* control) {
         if (!is_lost(rank)) Check(control->Leave(absl::OkStatus(), kPatience));
       }},
  };
  std::vector<std::unique_ptr<ControlPlane>> workers;
  for (int i = 0; i < shape.workers; ++i) workers.push_back(connect());
  std::barrier<> together(shape.workers + 1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.workers; ++rank) {
    threads.emplace_back([&, rank, control = workers[static_cast<size_t>(rank)].get()] {
      for (const Phase& phase : phases) {
        together.arrive_and_wait();
        phase.worker(rank, control);
        together.arrive_and_wait();
      }
    });
  }
  std::printf("{\"bench\": \"scale\", \"workers\": %d, \"servers\": %d, \"tensors\": %d",
              shape.workers, shape.servers, shape.tensors);
  for (const Phase& phase : phases) {
    const absl::Time start = clock.Now();
    const double cpu = scheduler->CpuSeconds();
    const uint64_t bytes = LoopbackBytes();
    together.arrive_and_wait();
    together.arrive_and_wait();
    std::printf(", \"%s_s\": %.3f, \"%s_scheduler_cpu_s\": %.2f", phase.name,
                absl::ToDoubleSeconds(clock.Now() - start), phase.name,
                scheduler->CpuSeconds() - cpu);
    if (counts_bytes) {
      std::printf(", \"%s_bytes_a_worker\": %.0f", phase.name,
                  static_cast<double>(LoopbackBytes() - bytes) / shape.workers);
    }
    std::printf(", \"%s_scheduler_peak_mib\": %.1f", phase.name, scheduler->PeakMegabytes());
    std::fflush(stdout);
  }
  std::printf("}\n");
  for (std::thread& thread : threads) thread.join();
  for (std::thread& thread : server_threads) thread.join();
  for (const auto& server : servers) (void)server->Leave(absl::OkStatus(), kPatience);
}

int ReadNumber(const char* text) {
  int number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 1) Die(std::string(text) + " is no number");
  return number;
}

int Main(int argc, char** argv) {
  Shape shape;
  std::vector<int> sizes = {10, 100, 1000};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--workers") {
      sizes.clear();
      for (const std::string& size : std::vector<std::string>(absl::StrSplit(argv[i + 1], ','))) {
        sizes.push_back(ReadNumber(size.c_str()));
      }
    } else if (flag == "--servers") {
      shape.servers = ReadNumber(argv[i + 1]);
    } else if (flag == "--tensors") {
      shape.tensors = ReadNumber(argv[i + 1]);
    } else if (flag == "--elements") {
      shape.elements = static_cast<uint64_t>(ReadNumber(argv[i + 1]));
    } else if (flag == "--iterations") {  // once, small: does it still run
      sizes = {3};
      shape.servers = 2;
      shape.tensors = 100;
    } else {
      Die("unknown flag " + flag);
    }
  }
  const bool counts_bytes = EnterOwnNetwork();
  for (const int workers : sizes) {
    shape.workers = workers;
    RunJob(shape, counts_bytes);
  }
  return 0;
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) { return bdn::Main(argc, argv); }
