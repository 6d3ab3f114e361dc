#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "common/cluster/control_channel.h"
#include "common/cluster/scheduler_client.h"
#include "proto/control.grpc.pb.h"
#include "tests/cluster/ask_health.h"

// The daemon as a process: its exit codes, its log, and what its sudden death does to others.

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A child with its standard error and output in a pipe.
class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) abort();
    args.insert(args.begin(), BDN_SCHEDULER_BINARY);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    output_fd_ = ends[0];
  }
  ~Process() {
    if (pid_ > 0) Kill(SIGKILL), Wait();
    close(output_fd_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Kill(int signal) const { kill(pid_, signal); }

  // Reads the output until `text` is in it.
  bool AwaitOutput(const std::string& text) {
    while (output_.find(text) == std::string::npos) {
      if (!ReadMore()) return false;
    }
    return true;
  }
  // The exit code, or 128 and the signal.
  int Wait() {
    while (ReadMore()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }
  int port() const { return NumberBehind("listens at port "); }
  int health_port() const { return NumberBehind("health service at port "); }

 private:
  int NumberBehind(const std::string& text) const {
    const size_t at = output_.find(text);
    return at == std::string::npos ? 0 : std::atoi(output_.c_str() + at + text.size());
  }
  bool ReadMore() {
    pollfd ready{output_fd_, POLLIN, 0};
    if (poll(&ready, 1, 30000) <= 0) {
      ADD_FAILURE() << "no more output after:\n" << output_;
      return false;
    }
    char buffer[4096];
    const ssize_t count = read(output_fd_, buffer, sizeof(buffer));
    if (count > 0) output_.append(buffer, static_cast<size_t>(count));
    return count > 0;
  }

  pid_t pid_ = -1;
  int output_fd_ = -1;
  std::string output_;
};

class SchedulerDaemonTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> args = {}, const std::string& lease = "1s") {
    args.push_back("--lease-timeout=" + lease);
    args.push_back("--heartbeat-interval=100ms");
    daemon_ = std::make_unique<Process>(std::move(args));
    ASSERT_TRUE(daemon_->AwaitOutput("worker(s) and"));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(daemon_->port()); }

  // One worker and one server join and watch.
  void Fill() {
    server_ = *SchedulerClient::Create(address(), {}, &clock_);
    auto server = std::async(std::launch::async, [this] {
      return server_->Join(
          {.role = Role::kServer, .endpoints = {EndpointOf("tcp://x")}, .host = "s"}, kLong);
    });
    worker_ = *SchedulerClient::Create(address(), {}, &clock_);
    const auto joined = worker_->Join({.role = Role::kWorker, .host = "w"}, kLong);
    ASSERT_TRUE(joined.ok()) << joined.status();
    ASSERT_TRUE(server.get().ok());
    worker_->Watch({.on_membership = [this](const auto&) { worker_watches_.set_value(); },
                    .on_failure = [this](const absl::Status& s) { worker_failure_.set_value(s); }});
    server_->Watch({.on_membership =
                        [this](const auto& view) {
                          (view->workers.empty() ? work_done_ : server_watches_).set_value();
                        },
                    .on_failure = [this](const absl::Status& s) { server_failure_.set_value(s); }});
    worker_watches_.get_future().get();
    server_watches_.get_future().get();
  }

  static constexpr absl::Duration kLong = absl::Seconds(30);

  std::unique_ptr<Process> daemon_;
  std::promise<absl::Status> worker_failure_;
  std::promise<absl::Status> server_failure_;
  std::promise<void> worker_watches_;
  std::promise<void> server_watches_;
  std::promise<void> work_done_;
  const SteadyClock clock_;
  std::unique_ptr<ControlPlane> worker_;
  std::unique_ptr<ControlPlane> server_;
};

TEST_F(SchedulerDaemonTest, EndsWithZeroWhenAllHaveLeft) {
  Start();
  Fill();
  EXPECT_TRUE(worker_->Leave(absl::OkStatus(), kLong).ok());
  work_done_.get_future().get();
  EXPECT_TRUE(server_->Leave(absl::OkStatus(), kLong).ok());
  EXPECT_EQ(daemon_->Wait(), 0);
  EXPECT_THAT(daemon_->output(), HasSubstr("the job is done"));
}

TEST_F(SchedulerDaemonTest, EndsWithOneWhenANodeIsLostAndTellsTheOthers) {
  Start();
  Fill();
  worker_->Close();
  const absl::Status failure = server_failure_.get_future().get();
  EXPECT_THAT(std::string(failure.message()),
              AllOf(HasSubstr("worker 0 (node"), HasSubstr("stopped answering")));
  EXPECT_EQ(daemon_->Wait(), 1);
  EXPECT_THAT(daemon_->output(), HasSubstr(std::string(failure.message())));
}

TEST_F(SchedulerDaemonTest, SaysHowTheJobGoesOnWithoutAServerAndWithAnother) {
  Start({"--servers=2"});
  std::vector<std::unique_ptr<ControlPlane>> nodes;
  const auto join = [&](Role role, Rank rank) {
    nodes.push_back(*SchedulerClient::Create(address(), {}, &clock_));
    JoinRequest request{.role = role, .wanted_rank = rank, .host = "h"};
    if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
    return std::async(std::launch::async, [request, node = nodes.back().get()] {
      return node->Join(request, kLong).status();
    });
  };
  std::vector<std::future<absl::Status>> joins;
  joins.push_back(join(Role::kWorker, 0));
  for (const Rank rank : {0, 1}) joins.push_back(join(Role::kServer, rank));
  for (auto& joined : joins) EXPECT_TRUE(joined.get().ok());
  nodes.back()->Close();
  EXPECT_TRUE(daemon_->AwaitOutput(
      "the job goes on, with 1 of 2 servers: without server 1, which stopped answering"));
  EXPECT_TRUE(join(Role::kServer, -1).get().ok());
  EXPECT_TRUE(daemon_->AwaitOutput("the job goes on, with 2 of 2 servers: with server 1"));
}

TEST_F(SchedulerDaemonTest, ItsSuddenDeathEndsEveryWaitAndIsNamed) {
  Start();
  Fill();
  auto waiting = std::async(std::launch::async, [this] {
    return worker_->Declare({{.name = "w", .elements = 4}}, kLong).status();
  });
  daemon_->Kill(SIGKILL);
  for (std::promise<absl::Status>* failure : {&worker_failure_, &server_failure_}) {
    EXPECT_THAT(std::string(failure->get_future().get().message()),
                AllOf(HasSubstr("scheduler at " + address()), HasSubstr("stopped answering")));
  }
  EXPECT_THAT(std::string(waiting.get().message()), HasSubstr("scheduler at " + address()));
  EXPECT_THAT(std::string(worker_->Barrier("b", kLong).message()), HasSubstr("stopped answering"));
}

TEST_F(SchedulerDaemonTest, ASchedulerThatHangsIsNoticedToo) {
  Start();
  Fill();
  auto waiting =
      std::async(std::launch::async, [this] { return worker_->Barrier("b", absl::Hours(1)); });
  daemon_->Kill(SIGSTOP);
  EXPECT_THAT(std::string(worker_failure_.get_future().get().message()),
              HasSubstr("stopped answering"));
  EXPECT_THAT(std::string(waiting.get().message()), HasSubstr("stopped answering"));
}

TEST_F(SchedulerDaemonTest, SigtermEndsItCleanlyAndTellsTheNodes) {
  Start();
  Fill();
  daemon_->Kill(SIGTERM);
  EXPECT_THAT(std::string(worker_failure_.get_future().get().message()), HasSubstr("SIGTERM"));
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(SchedulerDaemonTest, DrainsAJobThatRunsAndSaysSo) {
  Start({"--drain-timeout=1h", "--health-listen=127.0.0.1:0", "--exit-when-done=false"});
  const std::string health = "127.0.0.1:" + std::to_string(daemon_->health_port());
  Fill();
  EXPECT_EQ(AskHealth(health, "readiness"), kServing);
  daemon_->Kill(SIGTERM);
  ASSERT_TRUE(daemon_->AwaitOutput("the job that runs has 1h to end by itself"));
  EXPECT_EQ(AskHealth(health, "readiness"), kNotServing);
  EXPECT_EQ(AskHealth(health, "liveness"), kServing);
  EXPECT_EQ(AskHealth(address()), kNotServing);
  EXPECT_TRUE(worker_->Leave(absl::OkStatus(), kLong).ok());
  work_done_.get_future().get();
  EXPECT_TRUE(server_->Leave(absl::OkStatus(), kLong).ok());
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(SchedulerDaemonTest, DrainsNoLongerThanItIsTold) {
  Start({"--drain-timeout=100ms"});
  Fill();
  daemon_->Kill(SIGTERM);
  EXPECT_THAT(std::string(worker_failure_.get_future().get().message()), HasSubstr("SIGTERM"));
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(SchedulerDaemonTest, DrainsNothingWhereNoJobRuns) {
  Start({"--drain-timeout=1h"});
  daemon_->Kill(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(SchedulerDaemonTest, ASecondSignalEndsItAtOnce) {
  Start({"--drain-timeout=1h"});
  Fill();
  daemon_->Kill(SIGTERM);
  ASSERT_TRUE(daemon_->AwaitOutput("to end by itself"));
  daemon_->Kill(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 128 + SIGTERM);
}

TEST_F(SchedulerDaemonTest, NamesWhoIsMissingAtTheDeadline) {
  Start({"--workers=2", "--join-timeout=300ms"});
  EXPECT_EQ(daemon_->Wait(), 1);
  EXPECT_THAT(
      daemon_->output(),
      HasSubstr("waiting for worker rank 0, worker rank 1, server rank 0 (0 of 3 have joined)"));
}

TEST_F(SchedulerDaemonTest, ServesOneJobAfterAnotherAndKnowsNobodyOfTheLast) {
  namespace wire = bandoneon::control;
  Start({"--exit-when-done=false"}, "60s");  // Nobody here has heartbeats of its own.
  uint64_t nonce = 0;
  const auto join = [this](uint32_t role, uint64_t nonce) {
    // Connections of the last job end with it; these wait for the next one's.
    const auto stub = wire::Scheduler::NewStub(ConnectChannel(address(), {}));
    grpc::ClientContext context;
    SetDeadline(kLong, &context);
    context.set_wait_for_ready(true);
    wire::JoinRequest request;
    request.set_version(kControlVersion);
    request.set_processes(1);
    request.set_role(role);
    request.set_wanted_rank(-1);
    request.set_timeout_ms(absl::ToInt64Milliseconds(kLong));
    request.add_endpoints()->set_scheme("tcp");
    request.mutable_endpoints(0)->set_address("x");
    request.set_nonce(nonce);
    request.set_join_id(nonce);
    wire::JoinReply reply;
    const grpc::Status status = stub->Join(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  };
  const auto join_both = [&] {
    auto server = std::async(std::launch::async, join, 1, ++nonce);
    const wire::JoinReply worker = join(2, ++nonce);
    (void)server.get();
    return worker;
  };
  const auto call = [this](auto method, const auto& request) {
    const auto stub = wire::Scheduler::NewStub(ConnectChannel(address(), {}));
    grpc::ClientContext context;
    SetDeadline(kLong, &context);
    context.set_wait_for_ready(true);  // as above
    wire::Empty reply;
    return (stub.get()->*method)(&context, request, &reply);
  };

  const wire::JoinReply first = join_both();
  wire::LeaveRequest leave;
  *leave.mutable_caller() = first.caller();
  leave.mutable_reason()->set_code(10);
  leave.mutable_reason()->set_message("the first attempt fails");
  EXPECT_TRUE(call(&wire::Scheduler::Stub::Leave, leave).ok());
  ASSERT_TRUE(daemon_->AwaitOutput("ready for the next job"));
  EXPECT_THAT(daemon_->output(), HasSubstr("the first attempt fails"));

  const wire::JoinReply second = join_both();
  EXPECT_NE(second.data_secret(), first.data_secret());
  wire::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = second.caller();
  const grpc::Status heard = call(&wire::Scheduler::Stub::Heartbeat, heartbeat);
  EXPECT_TRUE(heard.ok()) << heard.error_code() << " " << heard.error_message();
  heartbeat.mutable_caller()->set_incarnation(first.caller().incarnation());
  EXPECT_EQ(call(&wire::Scheduler::Stub::Heartbeat, heartbeat).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(call(&wire::Scheduler::Stub::Leave, leave).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION)
      << "who is of the first job ends the second";
  daemon_->Kill(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 0);
}

// The most memory that the process has had, in KiB.
size_t PeakMemory(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoul(line.substr(6));
  }
  return 0;
}

TEST_F(SchedulerDaemonTest, StrangersMakeItTakeNoMemory) {
  Start({"--token=secret"});
  bandoneon::control::DeclareRequest large;  // which would be some 900 MiB once parsed
  for (int i = 0; i < (16 << 20) / 2; ++i) large.add_tensors();
  const auto stub = bandoneon::control::Scheduler::NewStub(ConnectChannel(address(), {}));
  const size_t before = PeakMemory(daemon_->pid());
  for (int i = 0; i < 8; ++i) {
    grpc::ClientContext context;
    bandoneon::control::DeclareReply reply;
    EXPECT_EQ(stub->Declare(&context, large, &reply).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  // The memory that gRPC holds for a connection, whatever comes over it.
  EXPECT_LT(PeakMemory(daemon_->pid()), before + (size_t{24} << 10));
}

TEST_F(SchedulerDaemonTest, WritesItsPortToAFile) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("bdn-port-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  Start({"--port-file=" + (folder / "port").string()});
  int port = 0;
  std::ifstream(folder / "port") >> port;
  EXPECT_EQ(port, daemon_->port());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST_F(SchedulerDaemonTest, SaysWhyItCannotStart) {
  Start();
  const auto output_of = [](const std::vector<std::string>& args, int code) {
    Process process(args);
    EXPECT_EQ(process.Wait(), code);
    return process.output();
  };
  EXPECT_THAT(output_of({"--listen=" + address()}, 2), HasSubstr("in use"));
  EXPECT_THAT(output_of({"--wrkers=2"}, 2), HasSubstr("did you mean --workers"));
  EXPECT_THAT(output_of({"--port-file=/nonexistent/port"}, 2), HasSubstr("/nonexistent/port"));
  EXPECT_THAT(output_of({"--check-config", "--workers=3"}, 0), HasSubstr("workers = 3 (flag)"));
  EXPECT_THAT(output_of({"--check-config", "--lease-timeout=1s"}, 2),
              HasSubstr("heartbeat-interval"));
  EXPECT_THAT(output_of({"--check-config", "--token=sesame"}, 0),
              AllOf(HasSubstr("token = (hidden) (flag)"), Not(HasSubstr("sesame"))));
  EXPECT_THAT(output_of({"--listen=0.0.0.0:0"}, 2),
              AllOf(HasSubstr("no secret"), HasSubstr("bandoneon certs")));
  EXPECT_THAT(output_of({"--listen=0.0.0.0:0", "--token=sesame"}, 2), HasSubstr("--insecure"));
  EXPECT_THAT(output_of({"--check-config", "--listen=0.0.0.0:0", "--token=t", "--insecure"}, 0),
              HasSubstr("insecure = true (flag)"));
  EXPECT_THAT(output_of({"--help"}, 0), HasSubstr("examples:"));
  EXPECT_THAT(output_of({"--version"}, 0), HasSubstr("control version"));
}

}  // namespace
}  // namespace bdn
