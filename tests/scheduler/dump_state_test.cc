#include "scheduler/dump_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/telemetry/trace_layout.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Answer = DumpState::Answer;

constexpr uint64_t kNumber = 77;
absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// The beginning of a recording.
std::string Header() {
  TraceHeader header;
  std::memcpy(header.magic, kTraceMagic, sizeof(header.magic));
  header.byte_order = kTraceByteOrder;
  header.version = kTraceVersion;
  header.record_bytes = sizeof(TraceRecord);
  std::string bytes(kTraceHeaderBytes, '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

std::vector<NodeInfo> Nodes(int servers, int workers) {
  std::vector<NodeInfo> nodes;
  NodeId id = 1;
  // Workers first, and ranks that fall: the order of joining says nothing.
  for (int rank = workers; rank-- > 0;) {
    nodes.push_back({.id = id++, .role = Role::kWorker, .rank = rank, .host = "w"});
  }
  for (int rank = servers; rank-- > 0;) {
    nodes.push_back({.id = id++, .role = Role::kServer, .rank = rank, .host = "s"});
  }
  return nodes;
}

class DumpStateTest : public ::testing::Test {
 protected:
  // Two workers (nodes 2 and 1 by rank) and a server (node 3), which are waited for for 5 s.
  DumpState state_{kNumber, {}, *DumpState::Choose({}, Nodes(1, 2)), At(0)};

  static TracePiece Piece(uint32_t piece, std::string content, bool is_last = false) {
    return {.number = kNumber, .piece = piece, .is_last = is_last, .content = std::move(content)};
  }
  // Returns the texts of the messages to the caller, each of which is passed on at once.
  std::vector<std::string> Tell(double now = 0) {
    std::vector<std::string> told;
    while (const auto news = state_.Next()) {
      const std::string node = std::to_string(news->node);
      if (news->content.empty()) {
        told.push_back(node + (news->end.ok() ? " whole" : " " + std::string(news->end.message())));
      } else {
        told.push_back(node + " " + std::to_string(news->content.size()) + " bytes");
        state_.OnPassedOn(news->node, At(now));
      }
    }
    return told;
  }
};

TEST(DumpNodesTest, ServersComeFirstAndWorkersByRank) {
  const auto chosen = DumpState::Choose({}, Nodes(2, 3));
  std::vector<NodeId> ids;
  for (const NodeInfo& node : chosen->asked) ids.push_back(node.id);
  EXPECT_THAT(ids, ElementsAre(5, 4, 3, 2, 1));
  EXPECT_EQ(chosen->left_out, 0);
}

TEST(DumpNodesTest, NoMoreThan64AreAsked) {
  const auto chosen = DumpState::Choose({}, Nodes(10, 120));
  ASSERT_EQ(chosen->asked.size(), 64);
  EXPECT_EQ(chosen->left_out, 66);
  EXPECT_EQ(chosen->asked[9].role, Role::kServer);
  EXPECT_EQ(chosen->asked[63].rank, 53);
  const DumpRequest request = {.nodes = *ParseDumpNodes("worker-54..117")};
  const auto others = DumpState::Choose(request, Nodes(10, 120));
  ASSERT_EQ(others->asked.size(), 64);
  EXPECT_EQ(others->left_out, 0);
  EXPECT_EQ(others->asked[0].rank, 54);
}

TEST(DumpNodesTest, NodesThatThereAreNotAreSaid) {
  const DumpRequest request = {.nodes = *ParseDumpNodes("worker-3")};
  EXPECT_EQ(DumpState::Choose(request, Nodes(1, 3)).status().message(),
            "the job has none of these nodes: 3 workers and 1 servers are in it");
}

TEST_F(DumpStateTest, PiecesAreHeldUntilTheyArePassedOn) {
  EXPECT_TRUE(state_.AwaitsFirst(1));
  EXPECT_EQ(*state_.OnPiece(1, Piece(0, Header())), Answer::kLater);
  EXPECT_FALSE(state_.AwaitsFirst(1));
  EXPECT_FALSE(state_.OnPiece(1, Piece(1, "x")).ok()) << "the one before is still held";
  EXPECT_THAT(Tell(), ElementsAre("1 256 bytes"));
  EXPECT_EQ(*state_.OnPiece(1, Piece(1, "x", true)), Answer::kLater);
  EXPECT_THAT(Tell(), ElementsAre("1 1 bytes", "1 whole"));
  EXPECT_FALSE(state_.is_over());
  for (const NodeId node : {2, 3}) {
    EXPECT_EQ(*state_.OnPiece(node, Piece(0, Header(), true)), Answer::kLater);
  }
  EXPECT_THAT(Tell(), ElementsAre("2 256 bytes", "2 whole", "3 256 bytes", "3 whole"));
  EXPECT_TRUE(state_.is_over());
  EXPECT_TRUE(state_.Open().empty());
}

TEST_F(DumpStateTest, APieceThatComesAgainIsAnsweredAndNotTakenTwice) {
  ASSERT_EQ(*state_.OnPiece(1, Piece(0, Header())), Answer::kLater);
  EXPECT_EQ(*state_.OnPiece(1, Piece(0, Header())), Answer::kLater) << "it is still held";
  EXPECT_THAT(Tell(), ElementsAre("1 256 bytes"));
  EXPECT_EQ(*state_.OnPiece(1, Piece(0, Header())), Answer::kNow);
  ASSERT_EQ(*state_.OnPiece(1, Piece(1, "x", true)), Answer::kLater);
  EXPECT_THAT(Tell(), ElementsAre("1 1 bytes", "1 whole"));
  EXPECT_EQ(*state_.OnPiece(1, Piece(1, "x", true)), Answer::kNow);
  EXPECT_THAT(Tell(), ElementsAre());
}

TEST_F(DumpStateTest, ANodeThatCannotSaysWhyInOneLine) {
  TracePiece piece = Piece(0, "", true);
  piece.failure = absl::FailedPreconditionError("it records\nnothing" + std::string(5000, '!'));
  EXPECT_EQ(*state_.OnPiece(2, piece), Answer::kNow);
  const auto told = Tell();
  ASSERT_EQ(told.size(), 1);
  EXPECT_THAT(told[0], HasSubstr("2 it records\\x0anothing!"));
  EXPECT_LT(told[0].size(), 1100);
}

TEST_F(DumpStateTest, ANodeThatLiesHasEndedAndCostsNobodyElse) {
  const auto lie = [&](NodeId node, TracePiece piece) {
    return std::string(state_.OnPiece(node, std::move(piece)).status().message());
  };
  // These are no news of the node: it may be late for another dump.
  TracePiece other = Piece(0, Header());
  other.number = kNumber - 1;
  EXPECT_THAT(lie(1, other), HasSubstr("nobody waits"));
  EXPECT_THAT(lie(9, Piece(0, Header())), HasSubstr("nobody waits"));
  EXPECT_THAT(state_.Open(), ElementsAre(1, 2, 3));
  EXPECT_THAT(lie(1, Piece(1, Header())), HasSubstr("piece 1 came, and piece 0 was expected"));
  EXPECT_THAT(lie(1, Piece(0, Header())), HasSubstr("not waited for any more"));
  std::string version = Header();
  version[12] = 2;
  EXPECT_THAT(lie(2, Piece(0, version)), HasSubstr("no recording of this version"));
  EXPECT_THAT(state_.Open(), ElementsAre(3));
  EXPECT_EQ(*state_.OnPiece(3, Piece(0, Header(), true)), Answer::kLater);
  EXPECT_THAT(Tell(), ElementsAre("1 piece 1 came, and piece 0 was expected",
                                  "2 it sent what is no recording of this version", "3 256 bytes",
                                  "3 whole"));
  EXPECT_TRUE(state_.is_over());
}

TEST_F(DumpStateTest, NoMoreBytesAreTakenThanWereAskedFor) {
  std::string first = Header();
  first.resize(kMostDumpPieceBytes);
  ASSERT_TRUE(state_.OnPiece(1, Piece(0, first)).ok());
  uint32_t piece = 1;
  for (; piece < kMostDumpBytes / kMostDumpPieceBytes; ++piece) {
    Tell();
    ASSERT_TRUE(state_.OnPiece(1, Piece(piece, first)).ok());
  }
  Tell();
  EXPECT_THAT(state_.OnPiece(1, Piece(piece, "x")).status().message(),
              HasSubstr("more than 1048576 bytes"));
  EXPECT_THAT(Tell(), ElementsAre("1 its recording has more than 1048576 bytes"));
}

TEST_F(DumpStateTest, SilentNodesAreNamedAndOthersKeepWhatTheyHaveSent) {
  ASSERT_TRUE(state_.OnPiece(1, Piece(0, Header())).ok());
  ASSERT_TRUE(state_.OnPiece(2, Piece(0, Header())).ok());
  const auto first = state_.Next();
  state_.OnPassedOn(first->node, At(3));
  state_.OnTime(At(4.9));
  EXPECT_THAT(state_.Open(), ElementsAre(1, 2, 3));
  state_.OnTime(At(5));
  EXPECT_THAT(state_.Open(), ElementsAre(1, 2)) << "2's piece is held, which is not its silence";
  state_.OnTime(At(8));
  EXPECT_THAT(state_.Open(), ElementsAre(2));
  EXPECT_THAT(Tell(9),
              ElementsAre("2 256 bytes", "3 it did not answer for 5s", "1 it sent no more for 5s"));
  state_.OnTime(At(13.9));
  EXPECT_THAT(state_.Open(), ElementsAre(2));
  state_.OnTime(At(14));
  EXPECT_THAT(Tell(), ElementsAre("2 it sent no more for 5s"));
  EXPECT_TRUE(state_.is_over());
}

TEST_F(DumpStateTest, ANodeThatGoesKeepsWhatItHasSent) {
  ASSERT_TRUE(state_.OnPiece(1, Piece(0, Header())).ok());
  state_.OnGone(1, absl::AbortedError("it has left the job"));
  state_.OnGone(1, absl::AbortedError("a second time"));
  state_.OnGone(9, absl::AbortedError("it is none of the dump"));
  EXPECT_THAT(Tell(), ElementsAre("1 256 bytes", "1 it has left the job"));
  EXPECT_FALSE(state_.is_over());
}

}  // namespace
}  // namespace bdn
