#include "cli/remote_worker.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/certs/token_proof.h"

namespace bdn::cli {
namespace {

TEST(RemoteHosts, AreReadWithTheirNumbers) {
  const auto hosts = ParseRemoteHosts("a:2,anna@b.example,[::1]:3");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->size(), 3u);
  EXPECT_EQ((*hosts)[0].workers, 2);
  EXPECT_EQ((*hosts)[1].workers, 1);
  EXPECT_EQ(HostOf((*hosts)[1]), "b.example");
  EXPECT_EQ((*hosts)[2].destination, "::1");
  EXPECT_EQ((*hosts)[2].workers, 3);
}

TEST(RemoteHosts, AreNamedWhereTheyAreNone) {
  for (const char* none :
       {"", "a:", "a:0", "a:1025", "a:x", "a,,b", "-oX=y:1", "a b", "a;b", "$(a)", "a,a:2"}) {
    EXPECT_FALSE(ParseRemoteHosts(none).ok()) << none;
  }
}

TEST(RemoteArgv, HoldsTheHostAndNoSecret) {
  const auto argv = RemoteArgv({"a", 1}, {"Port=2222"}, std::chrono::seconds(5));
  EXPECT_EQ(argv.front(), "ssh");
  EXPECT_EQ(argv[argv.size() - 3], "--");
  EXPECT_EQ(argv[argv.size() - 2], "a");
  // The script stands in single quotes.
  EXPECT_EQ(std::count(argv.back().begin(), argv.back().end(), '\''), 2);
  EXPECT_NE(argv.back().find("bandoneon-worker 50"), std::string::npos);
}

TEST(RemoteInput, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(RemoteInput("/it's", {{"A", "$(x)\ny"}}, {"sh", "-c", "a b"}),
            "cd '/it'\\''s'\n"
            "export A='$(x)'\"$nl\"'y'\n"
            "set -- 'sh' '-c' 'a b'\n"
            "go\n");
}

TEST(TokenProof, IsOfTheTokenAndTheChallenge) {
  const std::string proof = TokenProof("sesame", "challenge");
  EXPECT_EQ(proof.size(), 32u);
  EXPECT_TRUE(SameProof(proof, TokenProof("sesame", "challenge")));
  EXPECT_FALSE(SameProof(proof, TokenProof("parsley", "challenge")));
  EXPECT_FALSE(SameProof(proof, TokenProof("sesame", "another")));
  EXPECT_FALSE(SameProof(proof, TokenProof("", "challenge")));
  EXPECT_FALSE(SameProof(proof, proof.substr(1)));
}

}  // namespace
}  // namespace bdn::cli
