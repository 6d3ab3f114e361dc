#include "common/cluster/trace_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using ::testing::HasSubstr;

constexpr Rank kMostRank = std::numeric_limits<Rank>::max();

TEST(DumpNodes, AreParsed) {
  using Ranks = std::vector<DumpRanks>;
  EXPECT_EQ(*ParseDumpNodes(""), Ranks());
  EXPECT_EQ(*ParseDumpNodes("workers"), (Ranks{{Role::kWorker, 0, kMostRank}}));
  EXPECT_EQ(*ParseDumpNodes("worker-3, servers"),
            (Ranks{{Role::kWorker, 3, 3}, {Role::kServer, 0, kMostRank}}));
  EXPECT_EQ(*ParseDumpNodes("server-8..15"), (Ranks{{Role::kServer, 8, 15}}));
  for (const char* const wrong :
       {"wroker-3", "worker", "worker-", "worker--1", "worker-3..", "worker-5..3", "worker-3.5",
        "worker-3,", "worker 3", "scheduler", "worker-99999999999", "worker-+3", "servers-1"}) {
    EXPECT_THAT(ParseDumpNodes(wrong).status().message(),
                HasSubstr("expected workers, servers, worker-3 or worker-8..15"))
        << wrong;
  }
  std::string many = "workers";
  for (size_t i = 1; i < kMostDumpNodes; ++i) many += ",workers";
  EXPECT_TRUE(ParseDumpNodes(many).ok());
  EXPECT_THAT(ParseDumpNodes(many + ",servers").status().message(), HasSubstr("more than 64"));
}

TEST(DumpNodes, AreChosen) {
  const auto wants = [](const char* text, Role role, Rank rank) {
    return DumpRequest{.nodes = *ParseDumpNodes(text)}.Wants({.role = role, .rank = rank});
  };
  EXPECT_TRUE(wants("", Role::kServer, 7));
  EXPECT_TRUE(wants("server-1,worker-3..5", Role::kWorker, 5));
  EXPECT_FALSE(wants("server-1,worker-3..5", Role::kWorker, 6));
  EXPECT_FALSE(wants("server-1,worker-3..5", Role::kServer, 3));
}

TEST(DumpMessages, SayTheSameOnceTheyAreRead) {
  const DumpRequest request = {.nodes = *ParseDumpNodes("worker-3..5,servers"),
                               .last = absl::Seconds(9),
                               .patience = absl::Milliseconds(250)};
  wire::DumpRequest message;
  Write(request, &message);
  const auto read = Read(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->nodes, request.nodes);
  EXPECT_EQ(read->last, request.last);
  EXPECT_EQ(read->patience, request.patience);
  wire::TracePiece piece;
  Write(TracePiece{.number = 5, .piece = 2, .is_last = true, .content = "abc"}, &piece);
  const auto taken = Read(piece);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->number, 5);
  EXPECT_EQ(taken->piece, 2);
  EXPECT_TRUE(taken->is_last);
  EXPECT_EQ(taken->content, "abc");
  EXPECT_TRUE(taken->failure.ok());
}

TEST(DumpMessages, RefuseWhatCannotBe) {
  const auto refused_request = [](auto spoil) {
    wire::DumpRequest message;
    Write(DumpRequest(), &message);
    spoil(&message);
    return std::string(Read(message).status().message());
  };
  EXPECT_EQ(refused_request([](auto*) {}), "");
  EXPECT_THAT(refused_request([](auto* m) { m->set_patience_ns(0); }), HasSubstr("waits 0"));
  EXPECT_THAT(refused_request([](auto* m) { m->set_patience_ns(-1); }), HasSubstr("waits -1ns"));
  EXPECT_THAT(refused_request([](auto* m) {
                m->set_patience_ns(absl::ToInt64Nanoseconds(kMostDumpPatience) + 1);
              }),
              HasSubstr("up to 10m"));
  EXPECT_THAT(refused_request([](auto* m) { m->set_last_ns(-5); }), HasSubstr("negative"));
  const auto refused_ranks = [&](uint32_t role, int32_t first, int32_t last) {
    return refused_request([&](auto* m) {
      auto* const ranks = m->add_nodes();
      ranks->set_role(role);
      ranks->set_first(first);
      ranks->set_last(last);
    });
  };
  EXPECT_EQ(refused_ranks(2, 3, 3), "");
  EXPECT_THAT(refused_ranks(2, -1, 3), HasSubstr("ranks -1 to 3"));
  EXPECT_THAT(refused_ranks(2, 4, 3), HasSubstr("ranks 4 to 3"));
  EXPECT_THAT(refused_ranks(0, 0, 3), HasSubstr("role 0"));
  EXPECT_THAT(refused_request([](auto* m) {
                for (int i = 0; i < 65; ++i) m->add_nodes()->set_role(2);
              }),
              HasSubstr("in 65 parts"));

  const auto refused_piece = [](auto spoil) {
    wire::TracePiece message;
    Write(TracePiece{.number = 5, .content = "abc"}, &message);
    spoil(&message);
    return std::string(Read(message).status().message());
  };
  EXPECT_EQ(refused_piece([](auto*) {}), "");
  EXPECT_THAT(refused_piece([](auto* m) { m->clear_content(); }), HasSubstr("has 0 bytes"));
  EXPECT_THAT(
      refused_piece([](auto* m) { m->set_content(std::string(kMostDumpPieceBytes + 1, 'x')); }),
      HasSubstr("of 65537 bytes"));
  EXPECT_THAT(refused_piece([](auto* m) {
                m->mutable_failure()->set_code(9);
                m->set_last(true);
              }),
              HasSubstr("a failure, and is the last"));
  EXPECT_THAT(refused_piece([](auto* m) {
                m->clear_content();
                m->mutable_failure()->set_code(9);
              }),
              HasSubstr("is not the last"));
}

}  // namespace
}  // namespace bdn
