#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/cluster/control_messages.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/trace_fetch.h"
#include "common/telemetry/trace_layout.h"
#include "proto/control.grpc.pb.h"
#include "scheduler/service.h"
#include "tests/support/manual_clock.h"

// Dumps over gRPC: nodes that answer, lie, are silent or go, and callers that go.

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes that begin as a recording does.
std::string Recording(size_t bytes) {
  TraceHeader header;
  std::memcpy(header.magic, kTraceMagic, sizeof(header.magic));
  header.byte_order = kTraceByteOrder;
  header.version = kTraceVersion;
  header.record_bytes = sizeof(TraceRecord);
  std::string recording(bytes, 'r');
  std::memcpy(recording.data(), &header, sizeof(header));
  return recording;
}

class DumpServiceTest : public ::testing::Test {
 protected:
  void Start(int workers, const std::string& token = "", const Clock* clock = nullptr) {
    options_.config.job_id = "dumped";
    options_.config.num_workers = workers;
    options_.config.num_servers = 1;
    options_.config.lease_timeout = absl::Minutes(5);
    options_.credentials = Credentials(token);
    auto service =
        SchedulerService::Start("127.0.0.1:0", options_, clock != nullptr ? clock : &clock_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    grpc::ChannelArguments arguments;
    // So that it takes little before somebody reads.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = wire::Scheduler::NewStub(
        grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(service_->port()); }

  // All nodes join by raw messages: `server_` and `workers_` by rank are then their callers.
  void Fill() {
    std::vector<std::future<wire::Caller>> joins;
    for (int rank = 0; rank < options_.config.num_workers; ++rank) {
      joins.push_back(
          std::async(std::launch::async, [this, rank] { return Join(Role::kWorker, rank); }));
    }
    server_ = Join(Role::kServer, 0);
    for (auto& join : joins) workers_.push_back(join.get());
  }
  wire::Caller Join(Role role, Rank rank) {
    wire::JoinRequest request;
    JoinRequest join{.role = role, .wanted_rank = rank, .host = "raw:" + std::to_string(rank)};
    if (role == Role::kServer) join.endpoints = {EndpointOf("tcp://x")};
    Write(join, &request);
    request.set_timeout_ms(60000);
    const uint64_t number = 1000 * static_cast<uint64_t>(role) + static_cast<uint64_t>(rank);
    request.set_nonce(number);
    request.set_join_id(number);
    wire::JoinReply reply;
    grpc::ClientContext context;
    // A node that cannot connect at once tries again, too; many connect here on a loaded machine.
    context.set_wait_for_ready(true);
    // Its own connection: one takes so many calls at once.
    const auto stub = wire::Scheduler::NewStub(
        grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), OwnConnection()));
    const grpc::Status status = stub->Join(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.caller();
  }
  static grpc::ChannelArguments OwnConnection() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }

  // A dump, as its caller sees it.
  struct Asked {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<wire::DumpPiece>> stream;
    wire::DumpPiece::Nodes nodes;
  };
  // Asks, and reads the first message.
  std::unique_ptr<Asked> Ask(absl::Duration patience = absl::Seconds(60)) {
    wire::DumpRequest request;
    Write(DumpRequest{.patience = patience}, &request);
    auto asked = std::make_unique<Asked>();
    asked->stream = stub_->Dump(&asked->context, request);
    wire::DumpPiece first;
    if (!asked->stream->Read(&first)) {
      ADD_FAILURE() << asked->stream->Finish().error_message();
      return nullptr;
    }
    asked->nodes = first.nodes();
    return asked;
  }
  std::string Refusal(const DumpRequest& asked) {
    wire::DumpRequest request;
    Write(asked, &request);
    grpc::ClientContext context;
    const auto stream = stub_->Dump(&context, request);
    wire::DumpPiece piece;
    EXPECT_FALSE(stream->Read(&piece));
    return stream->Finish().error_message();
  }
  // What came of a node: its bytes, and its end.
  struct Came {
    size_t bytes = 0;
    std::string end = "open";
  };
  // Reads to the end.
  std::map<uint32_t, Came> ReadAll(Asked* asked) {
    std::map<uint32_t, Came> came;
    wire::DumpPiece piece;
    while (asked->stream->Read(&piece)) {
      if (piece.has_content())
        came[piece.content().node()].bytes += piece.content().content().size();
      if (piece.has_end()) {
        const wire::Failure& failure = piece.end().failure();
        came[piece.end().node()].end = failure.code() == 0 ? "whole" : failure.message();
      }
    }
    const grpc::Status status = asked->stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return came;
  }

  // Returns the order that a node hears of.
  uint64_t Hear(const wire::Caller& node) {
    grpc::ClientContext context;
    const auto stream = stub_->Watch(&context, node);
    wire::Event event;
    while (stream->Read(&event)) {
      if (event.has_dump()) break;
    }
    context.TryCancel();
    EXPECT_EQ(event.dump().most_bytes(), kMostDumpBytes);
    return event.dump().number();
  }
  grpc::Status Upload(const wire::Caller& node, const TracePiece& piece) {
    wire::TracePiece message;
    Write(piece, &message);
    *message.mutable_caller() = node;
    grpc::ClientContext context;
    wire::Empty reply;
    return stub_->UploadTrace(&context, message, &reply);
  }

  JobOptions options_;
  const SteadyClock clock_;
  ManualClock manual_clock_;
  std::unique_ptr<SchedulerService> service_;
  std::unique_ptr<wire::Scheduler::Stub> stub_;
  std::vector<wire::Caller> workers_;
  wire::Caller server_;
};

TEST_F(DumpServiceTest, PassesOnWhatNodesSend) {
  Start(2);
  Fill();
  const auto asked = Ask();
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->nodes.job_id(), "dumped");
  ASSERT_EQ(asked->nodes.nodes_size(), 3);
  EXPECT_EQ(asked->nodes.nodes(0).id(), server_.node());
  EXPECT_EQ(asked->nodes.nodes(1).id(), workers_[0].node());
  EXPECT_EQ(asked->nodes.nodes(2).host(), "raw:1");
  EXPECT_TRUE(asked->nodes.nodes(0).public_key().empty());
  EXPECT_EQ(asked->nodes.nodes(0).endpoints_size(), 0) << "a dump tells no addresses";
  const uint64_t number = Hear(workers_[0]);
  EXPECT_EQ(Hear(server_), number);
  auto sending = std::async(std::launch::async, [&] {
    // More than the connection takes before somebody reads.
    for (uint32_t i = 0; i < 16; ++i) {
      const std::string content = i == 0 ? Recording(65536) : std::string(65536, 'x');
      const grpc::Status sent = Upload(workers_[0], {number, i, i == 15, content});
      EXPECT_TRUE(sent.ok()) << sent.error_message();
    }
  });
  EXPECT_TRUE(
      Upload(server_, {number, 0, true, "", absl::FailedPreconditionError("it records nothing")})
          .ok());
  auto last = std::async(std::launch::async, [&] {
    return Upload(workers_[1], {number, 0, true, Recording(20000)});
  });
  const auto came = ReadAll(asked.get());
  sending.get();
  EXPECT_TRUE(last.get().ok());
  EXPECT_EQ(came.at(server_.node()).end, "it records nothing");
  EXPECT_EQ(came.at(workers_[0].node()).end, "whole");
  EXPECT_EQ(came.at(workers_[0].node()).bytes, 1 << 20);
  EXPECT_EQ(came.at(workers_[1].node()).bytes, 20000);
}

TEST_F(DumpServiceTest, TakesOneAtATimeAndAnotherOnceTheCallerIsGone) {
  Start(1);
  Fill();
  auto first = Ask();
  ASSERT_NE(first, nullptr);
  EXPECT_THAT(Refusal({}), HasSubstr("another dump of this job was begun"));
  const uint64_t number = Hear(workers_[0]);
  first->context.TryCancel();
  wire::DumpPiece piece;
  while (first->stream->Read(&piece)) continue;
  EXPECT_EQ(first->stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  std::unique_ptr<Asked> second;
  // The scheduler hears of the cancellation a little later.
  while (second == nullptr) {
    wire::DumpRequest request;
    Write(DumpRequest{.patience = absl::Seconds(60)}, &request);
    auto asked = std::make_unique<Asked>();
    asked->stream = stub_->Dump(&asked->context, request);
    if (asked->stream->Read(&piece)) {
      second = std::move(asked);
    } else {
      ASSERT_THAT(asked->stream->Finish().error_message(), HasSubstr("another dump"));
    }
  }
  // A node that is late for the first one.
  const grpc::Status late = Upload(workers_[0], {number, 0, true, Recording(5000)});
  EXPECT_EQ(late.error_code(), grpc::StatusCode::NOT_FOUND);
  const uint64_t next = Hear(workers_[0]);
  EXPECT_NE(next, number);
  auto sent = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Upload(workers_[0], {next, 0, true, Recording(5000)}).ok());
    EXPECT_TRUE(Upload(server_, {next, 0, true, Recording(6000)}).ok());
  });
  const auto came = ReadAll(second.get());
  sent.get();
  EXPECT_EQ(came.at(workers_[0].node()).bytes, 5000);
  EXPECT_EQ(came.at(server_.node()).end, "whole");
}

TEST_F(DumpServiceTest, ACallerThatTakesNothingIsLetGo) {
  Start(1, "", &manual_clock_);
  Fill();
  const auto asked = Ask(absl::Minutes(10));
  ASSERT_NE(asked, nullptr);
  // The stream stays: a node without one is lost soon.
  grpc::ClientContext watching;
  const auto watch = stub_->Watch(&watching, workers_[0]);
  wire::Event event;
  while (!event.has_dump()) ASSERT_TRUE(watch->Read(&event));
  const uint64_t number = event.dump().number();
  auto sending = std::async(std::launch::async, [&] {
    grpc::Status sent;
    for (uint32_t i = 0; sent.ok() && i < 16; ++i) {
      const std::string content = i == 0 ? Recording(65536) : std::string(65536, 'x');
      sent = Upload(workers_[0], {number, i, i == 15, content});
    }
    return sent;
  });
  const absl::Time begun = manual_clock_.Now();
  while (sending.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    manual_clock_.Advance(absl::Milliseconds(20));
  }
  EXPECT_THAT(sending.get().error_message(), HasSubstr("the dump has ended"));
  EXPECT_GT(manual_clock_.Now(), begun + absl::Seconds(30));
  wire::DumpPiece piece;
  while (asked->stream->Read(&piece)) continue;
  EXPECT_EQ(asked->stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_NE(Ask(), nullptr) << "it is another's turn";
  watching.TryCancel();
}

TEST_F(DumpServiceTest, NamesNodesThatAreSilentAndDeliversTheOthers) {
  Start(2);
  Fill();
  const auto asked = Ask(absl::Milliseconds(300));
  ASSERT_NE(asked, nullptr);
  auto sent = std::async(std::launch::async, [&] {
    const uint64_t number = Hear(workers_[1]);
    (void)Upload(workers_[1], {number, 0, false, Recording(5000)});
  });
  const auto came = ReadAll(asked.get());
  sent.get();
  EXPECT_EQ(came.at(workers_[0].node()).end, "it did not answer for 300ms");
  EXPECT_EQ(came.at(server_.node()).end, "it did not answer for 300ms");
}

TEST_F(DumpServiceTest, NodesThatGoAreNotWaitedFor) {
  options_.config.min_workers = 1;
  options_.config.replay_steps = 8;
  Start(3);
  Fill();
  const auto asked = Ask();
  ASSERT_NE(asked, nullptr);
  const uint64_t number = Hear(workers_[1]);
  auto piece = std::async(std::launch::async, [&] {
    return Upload(workers_[1], {number, 0, false, Recording(5000)});
  });
  EXPECT_TRUE(piece.get().ok());
  service_->host()->Lost(workers_[1].node(), "was killed");
  auto sent = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Upload(workers_[0], {number, 0, true, Recording(5000)}).ok());
    EXPECT_TRUE(Upload(workers_[2], {number, 0, true, Recording(5000)}).ok());
    EXPECT_TRUE(Upload(server_, {number, 0, true, Recording(5000)}).ok());
  });
  const auto came = ReadAll(asked.get());
  sent.get();
  EXPECT_EQ(came.at(workers_[1].node()).bytes, 5000);
  EXPECT_THAT(came.at(workers_[1].node()).end, HasSubstr("was killed"));
  EXPECT_EQ(came.at(workers_[2].node()).end, "whole");
}

TEST_F(DumpServiceTest, AJobThatFailsEndsTheDump) {
  Start(1);
  Fill();
  const auto asked = Ask();
  ASSERT_NE(asked, nullptr);
  service_->host()->Stop("stopped for the test");
  const auto came = ReadAll(asked.get());
  EXPECT_THAT(came.at(workers_[0].node()).end,
              HasSubstr("the job has failed: stopped for the test"));
  EXPECT_THAT(Refusal({}), HasSubstr("the job has failed, and its nodes are gone: stopped"));
}

TEST_F(DumpServiceTest, LiesAreRefusedAndCostNobodyElse) {
  Start(4);
  Fill();
  const auto asked = Ask();
  ASSERT_NE(asked, nullptr);
  const uint64_t number = Hear(workers_[0]);
  // These leave the node as it was.
  EXPECT_EQ(Upload(workers_[0], {number + 1, 0, true, Recording(500)}).error_code(),
            grpc::StatusCode::NOT_FOUND);
  wire::Caller forged = workers_[1];
  forged.set_incarnation(workers_[0].incarnation());
  EXPECT_THAT(Upload(forged, {number, 0, true, Recording(500)}).error_message(),
              HasSubstr("or is another"));
  forged.set_node(99);
  EXPECT_EQ(Upload(forged, {number, 0, true, Recording(500)}).error_code(),
            grpc::StatusCode::NOT_FOUND);
  // These end it.
  EXPECT_THAT(Upload(workers_[1], {number, 3, true, Recording(500)}).error_message(),
              HasSubstr("piece 0 was expected"));
  EXPECT_THAT(Upload(workers_[2], {number, 0, true, std::string(500, 'x')}).error_message(),
              HasSubstr("no recording"));
  EXPECT_THAT(Upload(workers_[3], {number, 0, true, ""}).error_message(), HasSubstr("0 bytes"));
  const grpc::Status large = Upload(server_, {number, 0, true, Recording(80000)});
  EXPECT_THAT(large.error_message(), HasSubstr("the bound of a piece of a recording"));
  auto sent = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Upload(workers_[0], {number, 0, true, Recording(500)}).ok());
    EXPECT_TRUE(Upload(server_, {number, 0, true, Recording(500)}).ok());
  });
  const auto came = ReadAll(asked.get());
  sent.get();
  EXPECT_EQ(came.at(workers_[0].node()).end, "whole");
  EXPECT_THAT(came.at(workers_[1].node()).end, HasSubstr("piece 3 came"));
  EXPECT_THAT(came.at(workers_[2].node()).end, HasSubstr("no recording"));
  EXPECT_THAT(came.at(workers_[3].node()).end, HasSubstr("0 bytes"));
  EXPECT_EQ(came.at(server_.node()).end, "whole") << "what is too long is not read";
}

TEST_F(DumpServiceTest, AsksSixtyFourNodesAndCountsTheOthers) {
  Start(65);
  Fill();
  const auto asked = Ask(absl::Milliseconds(50));
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->nodes.nodes_size(), 64);
  EXPECT_EQ(asked->nodes.left_out(), 2);
  EXPECT_EQ(asked->nodes.nodes(63).rank(), 62);
  EXPECT_EQ(ReadAll(asked.get()).size(), 64);
  EXPECT_THAT(Refusal({.nodes = *ParseDumpNodes("worker-65")}),
              HasSubstr("none of these nodes: 65 workers and 1 servers are in it"));
}

TEST_F(DumpServiceTest, AJobThatHasNotBegunHasNothing) {
  Start(1);
  EXPECT_THAT(Refusal({}), HasSubstr("has not begun, and records nothing: it waits for worker"));
  EXPECT_THAT(Refusal({.patience = absl::Hours(1)}), HasSubstr("up to 10m"));
}

TEST_F(DumpServiceTest, ClosingTheServiceEndsTheDump) {
  Start(1);
  Fill();
  const auto asked = Ask();
  ASSERT_NE(asked, nullptr);
  const uint64_t number = Hear(workers_[0]);
  auto closing = std::async(std::launch::async, [this] { service_->Close(); });
  const auto came = ReadAll(asked.get());
  EXPECT_EQ(came.at(server_.node()).end, "the scheduler is closing");
  closing.get();
  EXPECT_FALSE(Upload(workers_[0], {number, 0, true, Recording(500)}).ok());
}

// Nodes as they are in a job, by their own client of the scheduler.
class DumpClientTest : public DumpServiceTest {
 protected:
  struct Node {
    std::unique_ptr<ControlPlane> control;
    NodeId id = 0;
  };
  Node Connect(Role role, const std::string& token,
               std::function<absl::StatusOr<std::string>(const DumpOrder&)> on_dump) {
    Node node{*SchedulerClient::Create(address(), Credentials(token), &clock_)};
    JoinRequest join{.role = role, .host = "host:1"};
    if (role == Role::kServer) join.endpoints = {EndpointOf("tcp://x")};
    const auto joined = node.control->Join(join, absl::Seconds(60));
    EXPECT_TRUE(joined.ok()) << joined.status();
    if (joined.ok()) node.id = joined->node;
    node.control->Watch({.on_dump = std::move(on_dump)});
    return node;
  }
  std::map<std::string, DumpedNode> Fetch(const std::string& token, const DumpRequest& request) {
    std::map<std::string, DumpedNode> nodes;
    const absl::Status status =
        FetchTraces(address(), Credentials(token), request,
                    [&](DumpedNode node) { nodes[RoleName(node.node.role)] = std::move(node); });
    EXPECT_TRUE(status.ok()) << status;
    return nodes;
  }
};

TEST_F(DumpClientTest, NodesAnswerWheneverTheyAreAsked) {
  Start(1, "secret");
  std::vector<DumpOrder> orders;
  auto server =
      std::async(std::launch::async, [&] { return Connect(Role::kServer, "secret", nullptr); });
  Node worker = Connect(Role::kWorker, "secret", [&](const DumpOrder& order) {
    orders.push_back(order);  // one at a time
    return Recording(300'000 + orders.size());
  });
  const Node silent = server.get();
  const auto stranger =
      FetchTraces(address(), Credentials("wrong"), {}, [](const DumpedNode&) { FAIL(); });
  EXPECT_EQ(stranger.code(), absl::StatusCode::kPermissionDenied) << stranger;
  for (size_t i = 1; i <= 3; ++i) {
    const auto nodes = Fetch("secret", {.last = absl::Seconds(i), .patience = absl::Seconds(60)});
    const DumpedNode& of_worker = nodes.at("worker");
    EXPECT_TRUE(of_worker.end.ok()) << of_worker.end;
    EXPECT_EQ(of_worker.recording, Recording(300'000 + i));
    EXPECT_EQ(of_worker.job, "dumped");
    EXPECT_EQ(of_worker.asked, 2);
    EXPECT_EQ(of_worker.node.host, "host:1");
    EXPECT_EQ(nodes.at("server").end.message(), "it records nothing");
  }
  ASSERT_EQ(orders.size(), 3);
  EXPECT_EQ(orders[1].last, absl::Seconds(2));
}

TEST_F(DumpClientTest, ANodeWhoseCopyFailsOrIsTooLongSaysSo) {
  Start(1);
  auto server = std::async(std::launch::async, [&] {
    return Connect(Role::kServer, "",
                   [](const DumpOrder&) -> absl::StatusOr<std::string> { throw std::bad_alloc(); });
  });
  const Node worker = Connect(
      Role::kWorker, "", [](const DumpOrder& order) { return Recording(order.most_bytes + 1); });
  const Node other = server.get();
  const auto nodes = Fetch("", {.patience = absl::Seconds(60)});
  EXPECT_THAT(nodes.at("server").end.message(), HasSubstr("no memory left"));
  EXPECT_THAT(nodes.at("worker").end.message(), HasSubstr("1048577 bytes"));
}

TEST_F(DumpClientTest, ANodeThatClosesWhileItSendsWaitsForNobody) {
  Start(1);
  auto server = std::async(std::launch::async, [&] {
    return Connect(Role::kServer, "", [](const DumpOrder&) { return Recording(5000); });
  });
  std::promise<void> begun;
  Node worker = Connect(Role::kWorker, "", [&](const DumpOrder&) {
    begun.set_value();
    return Recording(1 << 20);
  });
  const Node other = server.get();
  // Nobody reads, so the node's pieces wait.
  const auto asked = Ask();
  ASSERT_NE(asked, nullptr);
  begun.get_future().get();
  (void)worker.control->Leave(absl::AbortedError("the test ends it"), absl::ZeroDuration());
  worker.control->Close();
  const auto came = ReadAll(asked.get());
  EXPECT_EQ(came.size(), 2);
}

}  // namespace
}  // namespace bdn
