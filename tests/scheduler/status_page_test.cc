// The answers of the status page, by caller, and its JSON, without a socket.
#include "scheduler/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

JobOptions Options() {
  JobOptions options;
  options.config.job_id = "<script>alert(1)</script>";
  options.config.num_workers = 2;
  options.config.num_servers = 1;
  options.keeps_history = true;
  return options;
}

class StatusPageTest : public ::testing::Test {
 protected:
  // Two workers and a server; nodes are numbered from 1.
  void Fill() {
    for (const Role role : {Role::kWorker, Role::kWorker, Role::kServer}) {
      JoinRequest request = {.role = role, .host = "<b>&host\xff"};
      if (role == Role::kServer) request.endpoints = {EndpointOf("tcp://x")};
      host_.Join(request, kControlVersion, absl::InfiniteDuration(), [](const auto&) {});
    }
  }
  Json Ask() {
    const HttpReply reply = page_.Answer({.path = "/api/status", .host = "localhost:80"});
    EXPECT_EQ(reply.code, 200) << reply.body;
    EXPECT_EQ(reply.content_type, "application/json");
    return Json::parse(reply.body);
  }

  ManualClock clock_;
  JobHost host_{Options(), &clock_};
  StatusPage page_{Credentials(), /*is_local=*/true};
  StatusPage::Shown shown_{&page_, &host_};
};

TEST_F(StatusPageTest, ThePageRunsNothingButItsOwn) {
  const HttpReply one = page_.Answer({.path = "/"});
  const HttpReply other = page_.Answer({.path = "/"});
  EXPECT_EQ(one.code, 200);
  EXPECT_THAT(one.content_type, StartsWith("text/html"));
  EXPECT_THAT(one.content_policy,
              AllOf(HasSubstr("default-src 'none'"), HasSubstr("connect-src 'self'"),
                    Not(HasSubstr("unsafe")), Not(HasSubstr("http"))));
  EXPECT_NE(one.content_policy, other.content_policy) << "a number is used once";
  const size_t at = one.content_policy.find("'nonce-") + 7;
  const std::string nonce = one.content_policy.substr(at, 64);
  EXPECT_THAT(one.body, AllOf(HasSubstr("<script nonce=\"" + nonce + "\">"),
                              HasSubstr("<style nonce=\"" + nonce + "\">"),
                              Not(HasSubstr("@NONCE@")), Not(HasSubstr("innerHTML"))));
  EXPECT_THAT(one.body, AllOf(StartsWith("<!doctype html>"), HasSubstr("</html>")));
}

TEST_F(StatusPageTest, ThereIsNothingElse) {
  for (const char* path : {"", "/x", "/api", "/api/status/", "/../etc/passwd"}) {
    EXPECT_EQ(page_.Answer({.path = path}).code, 404) << path;
  }
}

TEST_F(StatusPageTest, SaysWhoIsMissing) {
  const Json job = Ask();
  EXPECT_EQ(job.at("state"), "waiting");
  EXPECT_THAT(job.at("missing").get<std::string>(), HasSubstr("worker rank 0"));
  EXPECT_TRUE(job.at("history").at("steps_per_second").is_null());
}

TEST(StatusPageOfJobs, TheJobBeforeIsShownAsItEnded) {
  ManualClock clock;
  StatusPage page{Credentials(), /*is_local=*/true};
  EXPECT_EQ(page.Answer({.path = "/api/previous"}).code, 404);
  {
    JobHost host{Options(), &clock};
    const StatusPage::Shown shown(&page, &host);
    host.Join({.role = Role::kWorker, .host = "a"}, kControlVersion, absl::InfiniteDuration(),
              [](const auto&) {});
    EXPECT_EQ(page.Answer({.path = "/api/previous"}).code, 404) << "none has ended";
  }
  EXPECT_EQ(page.Answer({.path = "/api/status"}).code, 503);
  JobHost next{Options(), &clock};
  const StatusPage::Shown shown(&page, &next);
  const Json before = Json::parse(page.Answer({.path = "/api/previous"}).body);
  EXPECT_EQ(before.at("nodes").size(), 1u);
  EXPECT_EQ(before.at("history").at("events").at(0).at("kind"), "joined");
  EXPECT_EQ(Json::parse(page.Answer({.path = "/api/status"}).body).at("nodes").size(), 0u);
}

TEST_F(StatusPageTest, ShowsHostileNamesAsTheyAre) {
  Fill();
  const HttpReply reply = page_.Answer({.path = "/api/status"});
  const Json job = Json::parse(reply.body);
  EXPECT_EQ(job.at("job_id"), "<script>alert(1)</script>");
  EXPECT_EQ(job.at("nodes").at(0).at("host"), "<b>&host\xc3\xbf");
  EXPECT_EQ(job.at("history").at("events").size(), 4u);  // three came, and that was all
}

TEST_F(StatusPageTest, ShowsTheWayOfTheJob) {
  Fill();
  NodeProgress progress;
  EXPECT_TRUE(host_.Heartbeat(1, progress).ok());
  clock_.Advance(absl::Seconds(4));
  progress.step = progress.ended = 8;
  progress.bytes_sent = 123;
  progress.stages[Stage::kEncode] = {.items = 8, .bytes = 800, .wall_ns = 4000};
  EXPECT_TRUE(host_.Heartbeat(1, progress).ok());
  host_.ArriveAtBarrier(1, {"b"}, absl::InfiniteDuration(), [](const auto&) {});
  const Json job = Ask();
  const Json& history = job.at("history");
  EXPECT_EQ(job.at("nodes").at(0).at("bytes_sent"), 123);
  EXPECT_EQ(history.at("steps_per_second"), 2);
  EXPECT_EQ(history.at("waits"), Json::array({"barrier 'b': waiting for worker 1"}));
  ASSERT_EQ(history.at("windows").size(), 1u);
  const Json& window = history.at("windows").at(0);
  EXPECT_EQ(window.at("node"), 1);
  EXPECT_EQ(window.at("steps"), 8);
  EXPECT_EQ(window.at("wall_ns").at("encode"), 4000);
  EXPECT_EQ(window.at("wall_ns").at("deliver"), 0);
  EXPECT_FALSE(window.at("wall_ns").contains("sum")) << "that is of servers";
  EXPECT_EQ(history.at("events").back().at("kind"), "all joined");
  EXPECT_EQ(history.at("events").back().at("seconds_ago"), 4);
}

TEST_F(StatusPageTest, ShowsWhatWorkersReport) {
  Fill();
  EXPECT_TRUE(host_.Report(1, {{"loss", 3, 2.5}, {"loss", 4, std::nan("")}}).ok());
  EXPECT_TRUE(host_.Report(2, {{"loss", 3, 3.5}}).ok());
  const Json curves = Ask().at("history").at("curves");
  EXPECT_EQ(curves.dump(), R"([{"name":"loss","points":[[3,3.0],[4,null]],"steps_per_point":1}])");
  EXPECT_EQ(host_.Report(3, {{"loss", 3, 1}}).code(), absl::StatusCode::kInvalidArgument)
      << "a server has none";
  EXPECT_EQ(host_.Report(9, {{"loss", 3, 1}}).code(), absl::StatusCode::kNotFound);
}

TEST_F(StatusPageTest, ShowsTheWorstOfLinks) {
  Fill();
  EXPECT_EQ(Ask().at("history").at("quality").dump(), R"({"pushes":[],"replies":[]})");
  const auto group = [](uint32_t first, double ratio) {
    return QualityGroup{first, first, {8, 1, true, {16, ratio, 0.5, 2 * ratio}}};
  };
  EXPECT_TRUE(host_.ReportQuality(1, {group(0, 0.25), group(3, 0.5)}).ok());
  EXPECT_TRUE(host_.ReportQuality(2, {group(3, std::nan(""))}).ok());
  EXPECT_TRUE(host_.ReportQuality(3, {{4, 7, {2, 0, false, {}, kGuardStates[1]}}}).ok());
  const Json quality = Ask().at("history").at("quality");
  ASSERT_EQ(quality.at("pushes").size(), 2u);
  EXPECT_EQ(quality.at("pushes").at(0).dump(),
            R"({"decoded_cosine":0.5,"encodings":8,"nonfinite_share":0.125,"owed_steps":0.5,)"
            R"("residual_ratio":0.25,"step":16,"tensors":"0"})");
  EXPECT_EQ(quality.at("pushes").at(1).at("encodings"), 16);
  EXPECT_TRUE(quality.at("pushes").at(1).at("residual_ratio").is_null());
  EXPECT_EQ(quality.at("replies").dump(),
            R"([{"encodings":2,"guard":"warned","nonfinite_share":0.0,"tensors":"4-7"}])");
  EXPECT_TRUE(host_.ReportQuality(2, {group(3, 0.75)}).ok());
  EXPECT_EQ(Ask().at("history").at("quality").at("pushes").at(1).at("residual_ratio"), 0.75)
      << "what a node says takes the place of what it said before";
  EXPECT_EQ(host_.ReportQuality(9, {group(3, 1)}).code(), absl::StatusCode::kNotFound);
}

TEST_F(StatusPageTest, SaysHowItEnded) {
  Fill();
  host_.Lost(2, "vanished");
  const Json job = Ask();
  EXPECT_EQ(job.at("state"), "failed");
  const Json& events = job.at("history").at("events");
  EXPECT_EQ(events.at(events.size() - 2).at("kind"), "lost");
  EXPECT_EQ(events.back().at("kind"), "failed");
  EXPECT_THAT(events.back().at("text").get<std::string>(), HasSubstr("vanished"));
}

TEST_F(StatusPageTest, NamesANodeThatIsNotHeardWhereOthersAre) {
  Fill();
  for (int second = 0; second < 4; ++second) {
    for (const NodeId node : {1, 2, 3}) {
      if (node != 2 || second == 0) {
        EXPECT_TRUE(host_.Heartbeat(node, NodeProgress()).ok());
      }
    }
    clock_.Advance(absl::Seconds(1));
  }
  const Json job = Ask();
  ASSERT_EQ(job.at("suspects").size(), 1u);
  const Json& suspect = job.at("suspects").at(0);
  EXPECT_EQ(suspect.at("node"), 2);
  EXPECT_EQ(suspect.at("kind"), "stalled");
  EXPECT_EQ(suspect.at("seconds"), 3);
  EXPECT_EQ(suspect.at("since_seconds_ago"), 4);
  const Json& event = job.at("history").at("events").back();
  EXPECT_EQ(event.at("kind"), "suspect");
  EXPECT_THAT(event.at("text").get<std::string>(), HasSubstr("worker 1 on <b>&host"));
  EXPECT_EQ(job.at("heat"), Json::array());
}

TEST_F(StatusPageTest, BetweenTwoJobsThereIsNoStatus) {
  StatusPage page{Credentials(), true};
  EXPECT_EQ(page.Answer({.path = "/api/status"}).code, 503);
  { const StatusPage::Shown shown(&page, &host_); }
  EXPECT_EQ(page.Answer({.path = "/api/status"}).code, 503);
  EXPECT_EQ(page.Answer({.path = "/"}).code, 200);
}

TEST(StatusPageAccess, OnThisHostWhoeverMeansItIsShownThePage) {
  StatusPage page{Credentials("secret"), /*is_local=*/true};
  for (const char* host : {"", "localhost", "localhost:7070", "127.0.0.1:7070", "[::1]:7070"}) {
    EXPECT_EQ(page.Answer({.path = "/", .host = host}).code, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:7070", "localhost.evil.example"}) {
    EXPECT_EQ(page.Answer({.path = "/", .host = host}).code, 403) << host;
  }
}

TEST(StatusPageAccess, WhereOthersReachItTheTokenIsAskedFor) {
  StatusPage page{Credentials("secret: sesame"), /*is_local=*/false};
  const auto code = [&](const std::string& authorization, const char* path = "/api/status") {
    return page.Answer({.path = path, .authorization = authorization, .host = "node:7070"}).code;
  };
  const auto basic = [](const char* text) { return "Basic " + absl::Base64Escape(text); };
  EXPECT_EQ(code("Bearer secret: sesame"), 503) << "admitted, and there is no job";
  EXPECT_EQ(code(basic("anybody:secret: sesame")), 503);
  EXPECT_EQ(code("basic " + absl::Base64Escape(":secret: sesame"), "/"), 200);
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string("Bearer secret"),
        std::string("secret: sesame"), std::string("Basic %%%"), basic("secret: sesame"),
        basic("anybody:"), basic("anybody"), std::string("Digest secret: sesame")}) {
    EXPECT_EQ(code(wrong), 401) << wrong;
    EXPECT_EQ(code(wrong, "/"), 401) << wrong;
  }
  EXPECT_THAT(page.Answer({.path = "/"}).challenge, StartsWith("Basic realm="));
  StatusPage without_token{Credentials(), /*is_local=*/false};
  EXPECT_EQ(without_token.Answer({.path = "/", .authorization = "Bearer "}).code, 401);
}

TEST(StatusPageAccess, NoAddressIsNoPageAndOneOfOthersReachNeedsMore) {
  EXPECT_EQ(*StatusPage::Start("", Credentials()), nullptr);
  for (const Credentials& credentials : {Credentials(), Credentials("secret")}) {
    const auto page = StatusPage::Start("0.0.0.0:0", credentials);
    EXPECT_THAT(std::string(page.status().message()),
                AllOf(HasSubstr("http-listen"), HasSubstr("insecure"), HasSubstr("token")));
  }
}

}  // namespace
}  // namespace bdn
