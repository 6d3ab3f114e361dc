#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/cluster/control_messages.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/health.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/status_fetch.h"
#include "proto/control.grpc.pb.h"
#include "scheduler/job_metrics.h"
#include "scheduler/service.h"
#include "scheduler/status_reply.h"
#include "tests/cluster/ask_health.h"

// The service beyond ControlPlane's contract: bytes from strangers, status, health, addresses.

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GrpcServiceTest : public ::testing::Test {
 protected:
  void Start(const std::string& token = "") {
    options_.config.job_id = "service \"test\"";
    options_.config.num_workers = 1;
    options_.config.num_servers = 1;
    options_.credentials = Credentials(token);
    auto service = SchedulerService::Start("127.0.0.1:0", options_, &clock_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    stub_ = wire::Scheduler::NewStub(
        grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(service_->port()); }

  // Both nodes join by raw messages; `worker_` and `server_` are then their callers.
  void Fill() {
    auto server = std::async(std::launch::async, [this] { return Join(Role::kServer); });
    worker_ = Join(Role::kWorker);
    server_ = server.get();
  }
  wire::Caller Join(Role role) {
    wire::JoinRequest request;
    Write(JoinRequest{.role = role, .endpoints = {EndpointOf("tcp://x")}, .host = "raw\x01:\xff"},
          &request);
    request.set_timeout_ms(30000);
    request.set_nonce(next_nonce_);
    request.set_join_id(next_nonce_++);
    wire::JoinReply reply;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Join(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.caller();
  }

  template <typename Request, typename Reply>
  using Method = grpc::Status (wire::Scheduler::Stub::*)(grpc::ClientContext*, const Request&,
                                                         Reply*);
  template <typename Request, typename Reply>
  grpc::Status Call(Method<Request, Reply> method, const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    Reply reply;
    return (stub_.get()->*method)(&context, request, &reply);
  }

  JobOptions options_;
  const SteadyClock clock_;
  std::unique_ptr<SchedulerService> service_;
  std::unique_ptr<wire::Scheduler::Stub> stub_;
  std::atomic<uint64_t> next_nonce_{1};
  wire::Caller worker_;
  wire::Caller server_;
};

TEST_F(GrpcServiceTest, RefusesAJoinOfNonsense) {
  Start();
  const auto refused = [this](auto change) {
    wire::JoinRequest request;
    request.set_version(kControlVersion);
    request.set_processes(1);
    request.set_role(2);
    request.set_wanted_rank(0);
    request.set_nonce(next_nonce_);
    request.set_join_id(next_nonce_++);
    change(&request);
    const grpc::Status status = Call(&wire::Scheduler::Stub::Join, request);
    EXPECT_FALSE(status.ok());
    return status.error_message();
  };
  EXPECT_THAT(refused([](auto* r) { r->set_role(0); }), HasSubstr("role 0"));
  EXPECT_THAT(refused([](auto* r) { r->set_role(4000000000u); }), HasSubstr("role 4000000000"));
  EXPECT_THAT(refused([](auto* r) { r->set_processes(0); }), HasSubstr("0 processes"));
  EXPECT_THAT(refused([](auto* r) { r->set_processes(1025); }), HasSubstr("1 to 1024"));
  EXPECT_THAT(refused([](auto* r) { r->set_version(0); }), HasSubstr("version"));
  EXPECT_THAT(refused([](auto* r) { r->set_wanted_rank(-2147483647 - 1); }), HasSubstr("rank"));
  EXPECT_THAT(refused([](auto* r) { r->set_host(std::string(60000, 'h')); }),
              AllOf(HasSubstr("60000 bytes"), HasSubstr("raise max-name-bytes")));
  EXPECT_THAT(refused([](auto* r) { r->set_host(std::string(100000, 'h')); }),
              HasSubstr("more than 65536: that is max-request-bytes"));
  EXPECT_THAT(refused([](auto* r) { r->set_job_id("other"); }), HasSubstr("'other'"));
}

TEST_F(GrpcServiceTest, RefusesADeclarationOfNonsense) {
  Start();
  Fill();
  const auto refused_request = [this](auto change) {
    wire::DeclareRequest request;
    *request.mutable_caller() = worker_;
    Write(DeclarationPart{.digest = "d", .count = 1, .tensors = {{.name = "w", .elements = 5}}},
          &request);
    change(&request);
    const grpc::Status status = Call(&wire::Scheduler::Stub::Declare, request);
    EXPECT_FALSE(status.ok());
    return status.error_message();
  };
  const auto refused = [&](auto change) {
    return refused_request([&](auto* request) { change(request->mutable_tensors(0)); });
  };
  const auto refused_traits = [&](auto change) {
    return refused_request([&](auto* request) { change(request->mutable_traits(0)); });
  };
  EXPECT_THAT(refused_traits([](auto* t) { t->set_dtype(10); }), HasSubstr("dtype 10"));
  EXPECT_THAT(refused_traits([](auto* t) { t->set_kind(3); }), HasSubstr("kind 3"));
  EXPECT_THAT(refused([](auto* t) { t->set_traits(1); }), HasSubstr("traits 1 of 1"));
  EXPECT_THAT(refused_request([](auto* r) { r->set_digest(std::string(33, 'd')); }),
              HasSubstr("digest of 33 bytes"));
  EXPECT_THAT(refused_request([](auto* r) { r->set_count(0); }), HasSubstr("a part of 1 tensors"));
  EXPECT_THAT(refused_request([](auto* r) { r->set_first(7); }), HasSubstr("from 7 of 1"));
  EXPECT_THAT(refused_request([](auto* r) { r->set_count(~0u); }), HasSubstr("max-tensors"));
  EXPECT_THAT(refused([](auto* t) { t->set_elements(~uint64_t{0}); }), HasSubstr("elements"));
  EXPECT_THAT(refused([](auto* t) { t->set_elements(uint64_t{1} << 47); }),
              HasSubstr("max-job-bytes"));
  EXPECT_THAT(refused([](auto* t) { t->set_name(std::string(256, 'n')); }),
              AllOf(HasSubstr("256 bytes"), HasSubstr("raise max-name-bytes")));
  EXPECT_THAT(refused_traits([](auto* t) { t->set_push_spec(std::string(256, 'n')); }),
              AllOf(HasSubstr("tensor 'w'"), HasSubstr("raise max-name-bytes")));
  EXPECT_THAT(refused_traits([](auto* t) { t->set_momentum(-1); }), HasSubstr("momentum"));
  EXPECT_THAT(refused_traits([](auto* t) { t->set_push_spec(""); }), HasSubstr("codec"));
}

TEST_F(GrpcServiceTest, LimitsAreSettings) {
  options_.limits.max_name_bytes = 300;
  options_.request_limits = {.max_request_bytes = 1 << 20, .max_declaration_bytes = 1 << 20};
  Start();
  Fill();
  wire::DeclareRequest request;
  *request.mutable_caller() = worker_;
  request.set_timeout_ms(0);
  const std::string name(300, 'n');
  Write(DeclarationPart{.digest = "d", .count = 1, .tensors = {{.name = name, .elements = 5}}},
        &request);
  EXPECT_EQ(Call(&wire::Scheduler::Stub::Declare, request).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED)
      << "it was taken, and no server has installed it";
  wire::BarrierRequest barrier;
  *barrier.mutable_caller() = worker_;
  barrier.set_name(std::string(100000, 'b'));
  EXPECT_THAT(Call(&wire::Scheduler::Stub::Barrier, barrier).error_message(),
              HasSubstr("more than 300"));
}

TEST_F(GrpcServiceTest, TheCatalogueIsReadByPieceOnlyByNodesAndOnlyWhereThereIsOne) {
  Start();
  Fill();
  wire::DeclareRequest declare;
  *declare.mutable_caller() = worker_;
  declare.set_timeout_ms(30000);
  Write(DeclarationPart{.digest = "d", .count = 1, .tensors = {{.name = "w", .elements = 5}}},
        &declare);
  auto declaring = std::async(std::launch::async,
                              [&] { return Call(&wire::Scheduler::Stub::Declare, declare); });
  // A server is told that there is something to read.
  grpc::ClientContext watching;
  const auto stream = stub_->Watch(&watching, server_);
  wire::Event event;
  while (!event.has_placed()) ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.placed().catalogue_version(), 1u);

  wire::CatalogueRequest request;
  *request.mutable_caller() = server_;
  request.set_version(1);
  wire::CataloguePiece piece;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Catalogue(&context, request, &piece).ok());
  EXPECT_EQ(piece.pieces(), 1u);
  ASSERT_EQ(piece.tensors_size(), 1);
  EXPECT_EQ(piece.tensors(0).name(), "w");
  ASSERT_EQ(piece.keys_size(), 1);
  EXPECT_EQ(piece.keys(0).owner(), server_.node());

  request.set_piece(1);
  EXPECT_EQ(Call(&wire::Scheduler::Stub::Catalogue, request).error_code(),
            grpc::StatusCode::NOT_FOUND);
  request.set_piece(0);
  for (const uint32_t version : {0u, 2u, ~0u}) {
    request.set_version(version);
    EXPECT_EQ(Call(&wire::Scheduler::Stub::Catalogue, request).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  request.mutable_caller()->set_incarnation(request.caller().incarnation() + 1);
  EXPECT_EQ(Call(&wire::Scheduler::Stub::Catalogue, request).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);

  wire::AcknowledgeRequest acknowledge;
  *acknowledge.mutable_caller() = server_;
  *acknowledge.mutable_version() = event.placed();
  EXPECT_TRUE(Call(&wire::Scheduler::Stub::AcknowledgePlacement, acknowledge).ok());
  EXPECT_TRUE(declaring.get().ok());
  watching.TryCancel();
}

TEST_F(GrpcServiceTest, RefusesCallersThatAreNotOfThisJob) {
  Start();
  Fill();
  wire::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = worker_;
  EXPECT_TRUE(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).ok());
  heartbeat.mutable_caller()->set_node(99);
  EXPECT_EQ(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).error_code(),
            grpc::StatusCode::NOT_FOUND);
  *heartbeat.mutable_caller() = worker_;
  heartbeat.mutable_caller()->set_incarnation(worker_.incarnation() + 1);
  EXPECT_THAT(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).error_message(),
              HasSubstr("a scheduler that is gone"));

  // One node does not speak for another.
  heartbeat.mutable_caller()->set_node(server_.node());
  heartbeat.mutable_caller()->set_incarnation(worker_.incarnation());
  EXPECT_THAT(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).error_message(),
              HasSubstr("or is another"));

  grpc::ClientContext context;
  wire::Event event;
  const auto stream = stub_->Watch(&context, heartbeat.caller());
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(GrpcServiceTest, RefusesEveryCallWithoutTheToken) {
  Start("secret");
  EXPECT_EQ(Call(&wire::Scheduler::Stub::Heartbeat, wire::HeartbeatRequest()).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(FetchStatusJson(address(), {}, absl::Seconds(30)).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(FetchStatusJson(address(), Credentials("secret"), absl::Seconds(30)).ok());
}

// The first node of that role.
const Json& NodeOf(const Json& status, const std::string& role) {
  static const Json kNone;
  for (const Json& node : status.at("nodes")) {
    if (node.at("role") == role) return node;
  }
  ADD_FAILURE() << "no " << role << " in " << status;
  return kNone;
}

TEST_F(GrpcServiceTest, TellsItsStatusAsJson) {
  Start();
  const auto waiting = FetchStatusJson(address(), {}, absl::Seconds(30));
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  const Json before = Json::parse(*waiting);
  EXPECT_EQ(before.at("job_id"), "service \"test\"");
  EXPECT_EQ(before.at("state"), "waiting");
  EXPECT_EQ(before.at("missing"), "worker rank 0, server rank 0 (0 of 2 have joined)");
  EXPECT_TRUE(before.at("nodes").empty());
  Fill();
  wire::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = worker_;
  heartbeat.set_step(7);
  heartbeat.set_bytes_sent(123456789012345);
  ASSERT_TRUE(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).ok());
  *heartbeat.mutable_caller() = server_;
  heartbeat.mutable_held()->set_weights(4000);
  heartbeat.mutable_held()->set_values(5);
  Write(RowCounts{.held = 7, .added = 9, .removed = 2, .not_admitted = 4},
        heartbeat.mutable_rows());
  Write(TableCounts{.table = "item", .rows = {.held = 7, .added = 9}, .bytes = 80, .updates = 3},
        heartbeat.add_tables());
  StageCounts stages;
  stages[Stage::kSum] = {.items = 2, .bytes = UINT64_MAX, .wall_ns = 30, .cpu_ns = 20};
  Write(stages, heartbeat.mutable_stages());
  EXPECT_EQ(heartbeat.stages().stages_size(), 1) << "the others had nothing";
  ASSERT_TRUE(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).ok());
  const auto running = FetchStatusJson(address(), {}, absl::Seconds(30));
  ASSERT_TRUE(running.ok()) << running.status();
  const Json after = Json::parse(*running);
  EXPECT_EQ(after.at("state"), "running");
  const Json& server = NodeOf(after, "server");
  EXPECT_EQ(server.at("rank"), 0);
  EXPECT_EQ(server.at("host"), "raw\x01:\xc3\xbf");  // the byte 0xff as a letter
  EXPECT_EQ(server.at("held").at("total"), 4005);
  EXPECT_EQ(server.at("held").at("weights"), 4000);
  EXPECT_EQ(server.at("held").at("values"), 5);
  EXPECT_EQ(server.at("held").at("moments"), 0);
  EXPECT_EQ(server.at("rows").dump(), R"({"added":9,"held":7,"not_admitted":4,"removed":2})");
  EXPECT_EQ(after.at("tables").dump(), R"([{"added":9,"bytes":80,"held":7,"not_admitted":0,)"
                                       R"("removed":0,"table":"item","updates":3}])");
  EXPECT_EQ(server.at("stages").size(), ServerStages().size());
  EXPECT_EQ(server.at("stages").at("sum").dump(),
            R"({"bytes":18446744073709551615,"cpu_ns":20,"items":2,"wall_ns":30})");
  EXPECT_EQ(server.at("stages").at("reply").at("items"), 0);
  const Json& worker = NodeOf(after, "worker");
  EXPECT_EQ(worker.at("stages").size(), WorkerStages().size());
  EXPECT_FALSE(worker.contains("held"));
  EXPECT_FALSE(worker.contains("rows"));
  EXPECT_EQ(worker.at("step"), 7);
  EXPECT_EQ(worker.at("bytes_sent"), 123456789012345);
  EXPECT_THAT(*running, HasSubstr(R"("host":"raw\u0001:\u00ff")"));  // ASCII, for any terminal
}

TEST_F(GrpcServiceTest, RefusesAHeartbeatOfTablesThatIsWrong) {
  Start();
  Fill();
  const auto told = [&](const std::vector<std::string>& names) {
    wire::HeartbeatRequest heartbeat;
    *heartbeat.mutable_caller() = server_;
    for (const std::string& name : names) heartbeat.add_tables()->set_table(name);
    return Call(&wire::Scheduler::Stub::Heartbeat, heartbeat);
  };
  EXPECT_TRUE(told({"a", "b"}).ok());
  EXPECT_FALSE(told({"b", "a"}).ok());
  EXPECT_FALSE(told({"a", "a"}).ok());
  EXPECT_FALSE(told({std::string(kMaxNameBytes + 1, 'a')}).ok());
  std::vector<std::string> many;
  for (size_t i = 0; i <= kMostTablesTold; ++i) many.push_back(absl::StrFormat("%06d", i));
  EXPECT_FALSE(told(many).ok());
}

TEST_F(GrpcServiceTest, RefusesAHeartbeatOfWorkThatIsWrong) {
  Start();
  Fill();
  const auto beat = [this](auto spoil) {
    wire::HeartbeatRequest heartbeat;
    *heartbeat.mutable_caller() = worker_;
    WorkCounts work = {.program = {.steps = 7, .compute_ns = uint64_t{1} << 62},
                       .peers = {{0, 3, 9}, {2, 4, 8}},
                       .open_requests = 5,
                       .connections = 7};
    Write(work, heartbeat.mutable_work());
    spoil(heartbeat.mutable_work());
    return Call(&wire::Scheduler::Stub::Heartbeat, heartbeat);
  };
  EXPECT_TRUE(beat([](wire::WorkCounts*) {}).ok());
  WorkCounts told;
  service_->host()->Read(
      [&](const Job& job, absl::Time) { told = job.table().Find(worker_.node())->progress.work; });
  EXPECT_EQ(told.program.steps, 7u);
  EXPECT_EQ(told.peers, (std::vector<PeerWait>{{0, 3, 9}, {2, 4, 8}}));
  EXPECT_EQ(told.open_requests, 5u);
  EXPECT_EQ(told.connections, 7u);
  EXPECT_EQ(beat([](auto* work) { work->set_queued_ns((uint64_t{1} << 62) + 1); }).error_message(),
            "heartbeat: a total of work is 4611686018427387905: at most 2^62");
  EXPECT_THAT(beat([](auto* work) { work->mutable_peers(1)->set_rank(0); }).error_message(),
              HasSubstr("ranks that do not rise: 0"));
  EXPECT_THAT(beat([](auto* work) { work->mutable_peers(0)->set_rank(-1); }).error_message(),
              HasSubstr("ranks that do not rise: -1"));
  EXPECT_THAT(beat([](auto* work) { work->mutable_peers(1)->set_ns(UINT64_MAX); }).error_message(),
              HasSubstr("a wait for rank 2 is too long"));
  EXPECT_THAT(beat([](auto* work) {
                for (int rank = 3; rank < 70; ++rank) work->add_peers()->set_rank(rank);
              }).error_message(),
              HasSubstr("waits for 69 nodes: a heartbeat has at most 64"));
}

TEST_F(GrpcServiceTest, RefusesAHeartbeatOfReportsThatAreWrong) {
  options_.keeps_history = true;
  Start();
  Fill();
  const auto report = [this](const std::string& name, int times) {
    wire::HeartbeatRequest heartbeat;
    *heartbeat.mutable_caller() = worker_;
    for (int i = 0; i < times; ++i) {
      heartbeat.add_reports()->set_name(name);
      heartbeat.mutable_reports(i)->set_step(~uint64_t{0} - static_cast<uint64_t>(i));
    }
    return Call(&wire::Scheduler::Stub::Heartbeat, heartbeat);
  };
  EXPECT_EQ(report("loss", kMostReports + 1).error_message(),
            "heartbeat: 257 reports: a heartbeat has at most 256");
  EXPECT_THAT(report(std::string(65, 'x'), 1).error_message(), HasSubstr("65 bytes"));
  EXPECT_THAT(report("<a b>", 1).error_message(), HasSubstr("0x20"));
  EXPECT_TRUE(report("loss", kMostReports).ok());
  EXPECT_TRUE(report(std::string(64, 'x'), kMostReports).ok());
  size_t num_curves = 0;
  service_->host()->Read(
      [&](const Job& job, absl::Time) { num_curves = job.history()->curves().size(); });
  EXPECT_EQ(num_curves, 2u);
}

TEST_F(GrpcServiceTest, RefusesAHeartbeatOfQualityThatIsWrong) {
  options_.keeps_history = true;
  Start();
  Fill();
  const auto group = [](uint32_t first, uint32_t last) {
    wire::QualityGroup made;
    made.set_first(first);
    made.set_last(last);
    made.set_encodings(2);
    made.set_is_measured(true);
    return made;
  };
  const auto told = [this](const std::vector<wire::QualityGroup>& groups) {
    wire::HeartbeatRequest heartbeat;
    *heartbeat.mutable_caller() = worker_;
    for (const wire::QualityGroup& one : groups) *heartbeat.add_quality() = one;
    return Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).error_message();
  };
  EXPECT_EQ(told(std::vector(33, group(0, 0))),
            "heartbeat: quality of 33 groups: a node has at most 32");
  EXPECT_EQ(told({group(1, 2)}), "heartbeat: quality of tensors 1 to 2: these are no group of 2");
  EXPECT_EQ(told({group(3, 5)}), "heartbeat: quality of tensors 3 to 5: these are no group of 3");
  EXPECT_THAT(told({group(5, 4)}), HasSubstr("tensors 5 to 4: these are no group"));
  EXPECT_THAT(told({group(32, 32)}), HasSubstr("no group of 1")) << "it would be the 33rd";
  EXPECT_THAT(told({group(2, 3), group(4, 7)}),
              HasSubstr("tensors 4 to 7: these are no group of 2"));
  EXPECT_THAT(told({group(2, 3), group(2, 3)}), HasSubstr("no group")) << "they do not rise";
  wire::QualityGroup wrong = group(0, 0);
  wrong.set_nonfinite(3);
  EXPECT_EQ(told({wrong}), "heartbeat: quality of tensors 0 to 0: 3 of 2 encodings");
  wrong = group(0, 0);
  wrong.set_encodings(~uint64_t{0});
  EXPECT_THAT(told({wrong}), HasSubstr("of 18446744073709551615 encodings"));
  wrong = group(0, 0);
  wrong.set_guard(3);
  EXPECT_EQ(told({wrong}), "heartbeat: quality of tensors 0 to 0: guard 3: there are 3");
  wrong = group(0, 0);
  wrong.set_decoded_cosine(1.5);
  EXPECT_EQ(told({wrong}), "heartbeat: quality of tensors 0 to 0: ratio 0, cosine 1.5, 0 steps");
  for (const auto& set :
       {&wire::QualityGroup::set_residual_ratio, &wire::QualityGroup::set_owed_steps}) {
    wrong = group(0, 0);
    (wrong.*set)(-1);
    EXPECT_THAT(told({wrong}), HasSubstr("-1")) << wrong.DebugString();
    (wrong.*set)(std::nan(""));
    EXPECT_EQ(told({wrong}), "") << "it is worst, and not wrong";
  }
  constexpr uint32_t kHighest = ~uint32_t{0};
  EXPECT_EQ(told({group(0, kHighest / 32), group(kHighest - kHighest / 32, kHighest)}), "");
  std::vector<QualityGroup> kept;
  service_->host()->Read(
      [&](const Job& job, absl::Time) { kept = job.history()->Quality(Role::kWorker); });
  ASSERT_EQ(kept.size(), 2u) << "what was refused changed nothing";
  EXPECT_EQ(kept[1].last, kHighest);
}

TEST_F(GrpcServiceTest, RefusesAHeartbeatOfStagesThatThereAreNot) {
  Start();
  Fill();
  wire::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = worker_;
  heartbeat.mutable_stages()->add_stages()->set_stage(kNumStages);
  grpc::Status status = Call(&wire::Scheduler::Stub::Heartbeat, heartbeat);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "heartbeat: stage 11: there are 11");
  heartbeat.mutable_stages()->mutable_stages(0)->set_stage(3);
  EXPECT_TRUE(Call(&wire::Scheduler::Stub::Heartbeat, heartbeat).ok());
  heartbeat.mutable_stages()->add_stages()->set_stage(3);
  status = Call(&wire::Scheduler::Stub::Heartbeat, heartbeat);
  EXPECT_EQ(status.error_message(), "heartbeat: stage 3 is there twice");
}

TEST_F(GrpcServiceTest, StatusSaysWhoDoesNotAnswer) {
  Start();
  const std::string gone = address();
  service_.reset();
  const auto status = FetchStatusJson(gone, {}, absl::Seconds(5));
  EXPECT_THAT(std::string(status.status().message()), HasSubstr(gone));
  EXPECT_EQ(FetchStatusJson("nonsense", {}, absl::Seconds(5)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SchedulerClient::Create("nonsense", {}, &clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(GrpcServiceTest, AnAddressInUseIsSaid) {
  Start();
  const auto second = SchedulerService::Start(address(), options_, &clock_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(address()), HasSubstr("in use")));
  EXPECT_THAT(std::string(HealthServer::Start(address()).status().message()), HasSubstr("in use"));
}

// Takes every descriptor that is free until it goes.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 512);
    setrlimit(RLIMIT_NOFILE, &few);
    TakeFree();
  }
  ~NoDescriptors() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  // Takes the free descriptors, also those that other threads of the process have given back
  // meanwhile.
  void TakeFree() {
    for (int fd = dup(0); fd >= 0; fd = dup(0)) taken_.push_back(fd);
  }

 private:
  rlimit before_ = {};
  std::vector<int> taken_;
};

// Connects while this process has no free descriptor, until two connections could not be accepted,
// and sees that the last is served once there are some.
template <typename Service>
void ExpectConnectionsTakenOnceThereAreDescriptors(const Service& service) {
  const SteadyClock clock;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(service.port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Several, for gRPC's threads may give a descriptor back just then, by which one is taken.
  std::vector<int> early(32);
  for (int& fd : early) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience = {.tv_sec = 30, .tv_usec = 0};
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  }
  size_t connected = 0;
  {
    NoDescriptors none;
    while (service.accept_failures() < 2) {
      ASSERT_LT(connected, early.size());
      none.TakeFree();
      const int fd = early[connected++];
      ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
      const absl::Time given_up = clock.Now() + absl::Seconds(1);
      while (service.accept_failures() < 2 && clock.Now() < given_up) std::this_thread::yield();
    }
  }
  // The connection that waited is served: the server begins with its settings.
  char byte = 0;
  EXPECT_EQ(read(early[connected - 1], &byte, 1), 1);
  for (const int fd : early) close(fd);
}

TEST_F(GrpcServiceTest, TakesConnectionsAgainOnceThereAreDescriptors) {
  Start();
  ExpectConnectionsTakenOnceThereAreDescriptors(*service_);
  EXPECT_TRUE(FetchStatusJson(address(), {}, absl::Seconds(30)).ok());
}

TEST_F(GrpcServiceTest, AFailureReachesEveryNodeBeforeTheEnd) {
  Start();
  Fill();
  grpc::ClientContext context;
  const auto stream = stub_->Watch(&context, worker_);
  wire::Event event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_TRUE(event.has_membership());
  service_->host()->Stop("stopped for the test");
  // The server has joined, and its stream has not come yet.
  EXPECT_FALSE(service_->AwaitNodesTold(absl::ZeroDuration()));
  grpc::ClientContext late_context;
  const auto late = stub_->Watch(&late_context, server_);
  EXPECT_TRUE(service_->AwaitNodesTold(absl::Seconds(30)));
  service_->Close();
  wire::Event last;
  while (late->Read(&event)) last = event;
  EXPECT_EQ(last.failure().message(), "stopped for the test");
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.failure().message(), "stopped for the test");
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcServiceTest, AnswersTheStandardHealthCheck) {
  Start();
  EXPECT_EQ(AskHealth(address()), kServing);
  service_->EndHealth();
  EXPECT_EQ(AskHealth(address()), kNotServing);
}

TEST(GrpcHealthServer, SaysWhatItIsTold) {
  const auto health = HealthServer::Start("127.0.0.1:0");
  ASSERT_TRUE(health.ok()) << health.status();
  const std::string address = "127.0.0.1:" + std::to_string((*health)->port());
  EXPECT_EQ(AskHealth(address), kNotServing);
  EXPECT_EQ(AskHealth(address, "readiness"), kNotServing);
  EXPECT_EQ(AskHealth(address, "liveness"), kServing);
  (*health)->SetServing(true);
  for (const char* service : {"", "readiness", "liveness"}) {
    EXPECT_EQ(AskHealth(address, service), kServing) << service;
  }
  (*health)->SetServing(false);
  EXPECT_EQ(AskHealth(address, "readiness"), kNotServing);
  EXPECT_EQ(AskHealth(address, "liveness"), kServing);
}

TEST(GrpcHealthServer, IsNoneWithoutAnAddress) {
  const auto health = HealthServer::Start("");
  ASSERT_TRUE(health.ok()) << health.status();
  EXPECT_EQ(*health, nullptr);
}

TEST(GrpcHealthServer, TakesConnectionsAgainOnceThereAreDescriptors) {
  const auto health = *HealthServer::Start("127.0.0.1:0");
  ExpectConnectionsTakenOnceThereAreDescriptors(*health);
  EXPECT_EQ(AskHealth("127.0.0.1:" + std::to_string(health->port())), kNotServing);
}

TEST_F(GrpcServiceTest, ALostServerIsShownAndCountedUntilAnotherComes) {
  options_.config.replay_steps = 8;
  Start();
  Registry registry;
  const auto sources = AddJobMetrics(service_.get(), &registry);
  const auto lost = [&] {
    for (const FamilySamples& family : registry.CollectFamilies()) {
      if (std::string(family.family.name) == "servers_lost") return family.series.at(0).value;
    }
    return -1.0;
  };
  EXPECT_EQ(lost(), 0);
  Fill();
  EXPECT_EQ(lost(), 0);
  // One that waits for a server to be lost says so to whoever asks.
  auto next = std::async(std::launch::async, [this] { return Join(Role::kServer); });
  std::string waits;
  while (waits != "waiting for a server of the job to be lost: all 1 are here") {
    wire::WaitsReply reply;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Waits(&context, wire::Caller(), &reply).ok());
    waits = reply.text();
    ASSERT_EQ(waits.empty(), false);
  }
  size_t asked = 0;
  while (asked == 0) {
    service_->host()->Read([&](const Job& job, absl::Time) { asked = job.Waits().size(); });
  }
  service_->host()->Lost(server_.node(), "was killed");
  const NodeId newcomer = next.get().node();
  EXPECT_EQ(lost(), 0) << "another has come";
  service_->host()->Read([&](const Job& job, absl::Time now) {
    wire::StatusReply reply;
    WriteStatus(job, now, &reply);
    ASSERT_EQ(reply.nodes_size(), 3);
    for (const wire::StatusReply::Node& node : reply.nodes()) {
      EXPECT_EQ(node.lost(), node.info().id() == server_.node());
      EXPECT_TRUE(node.info().id() != newcomer || node.info().rank() == 0);
    }
  });
}

}  // namespace
}  // namespace bdn
