// The answers to a browser or scraper over real sockets.
#include "common/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/http/http_ask.h"

namespace bdn {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

HttpReply Echo(const HttpRequest& request) {
  if (request.path == "/secret" && request.authorization != "Bearer open") {
    return {.code = 401, .body = "who are you\n", .challenge = "Basic realm=\"bandoneon\""};
  }
  if (request.path == "/host") return {.body = "host " + request.host + "\n"};
  return {.body = absl::StrFormat("path %s query %s\n", request.path, request.query)};
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    auto started = HttpServer::Start("127.0.0.1:0", Echo);
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  int port() const { return server_->port(); }
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithWhatTheHandlerSays) {
  const std::string answer = Ask(port(), "GET /a%20b?x=1 HTTP/1.1\r\nHost: me\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Cache-Control: no-store\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\npath /a b query x=1\n"));
}

TEST_F(HttpServerTest, NothingRunsInABrowserUnlessTheHandlerSaysSo) {
  EXPECT_THAT(Ask(port(), "GET /a HTTP/1.1\r\nHost: me\r\n\r\n"),
              HasSubstr("Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"));
}

TEST_F(HttpServerTest, SaysWhomTheAskerMeans) {
  EXPECT_THAT(Ask(port(), "GET /host HTTP/1.1\r\nHost: me:80\r\n\r\n"), EndsWith("host me:80\n"));
}

TEST_F(HttpServerTest, AHeadHasNoBody) {
  const std::string answer = Ask(port(), "HEAD /a HTTP/1.1\r\nHost: me\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 15\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, TakesNothing) {
  const std::string answer =
      Ask(port(), "POST /a HTTP/1.1\r\nHost: me\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD\r\n"));
}

TEST_F(HttpServerTest, HandsOnWhoAsks) {
  EXPECT_THAT(Ask(port(), "GET /secret HTTP/1.1\r\nHost: me\r\n\r\n"),
              HasSubstr("WWW-Authenticate: Basic realm=\"bandoneon\"\r\n"));
  EXPECT_THAT(Ask(port(), "GET /secret HTTP/1.1\r\nHost: me\r\nAuthorization: Bearer open\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, NonsenseAndTooMuchDoNoHarm) {
  EXPECT_THAT(Ask(port(), "nonsense\r\n\r\n"), Not(HasSubstr("200 OK")));
  EXPECT_THAT(Ask(port(), "GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: me\r\n\r\n"),
              Not(HasSubstr("200 OK")));
  EXPECT_THAT(Ask(port(), "GET /a HTTP/1.1\r\nHost: me\r\n\r\n"), HasSubstr("200 OK"));
}

// A connection that has begun to ask, and goes no further.
int BeginToAsk(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string half = "GET /a HTTP/1.1\r\nHos";
  EXPECT_EQ(send(fd, half.data(), half.size(), MSG_NOSIGNAL), static_cast<ssize_t>(half.size()));
  return fd;
}

TEST_F(HttpServerTest, WhoIsSlowHoldsNobodyUp) {
  const auto begun = std::chrono::steady_clock::now();
  std::vector<int> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(BeginToAsk(port()));
    if (i % 20 == 0) {
      EXPECT_THAT(Ask(port(), "GET /a HTTP/1.1\r\nHost: me\r\n\r\n"), HasSubstr("200 OK"));
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
  for (size_t i = 0; i < slow.size(); ++i) {
    pollfd cut = {slow[i], POLLRDHUP, 0};
    EXPECT_EQ(poll(&cut, 1, i < 84 ? 10'000 : 0), i < 84 ? 1 : 0) << i;
    close(slow[i]);
  }
}

TEST_F(HttpServerTest, WhoDoesNotReadTheAnswerHoldsNobodyUp) {
  const int fd = BeginToAsk(port());
  EXPECT_GT(send(fd, "t: me\r\n\r\n", 9, MSG_NOSIGNAL), 0);
  EXPECT_THAT(Ask(port(), "GET /a HTTP/1.1\r\nHost: me\r\n\r\n"), HasSubstr("200 OK"));
  close(fd);
}

TEST_F(HttpServerTest, AnAddressThatIsTakenIsNamed) {
  const std::string address = absl::StrFormat("127.0.0.1:%d", port());
  const auto second = HttpServer::Start(address, Echo);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST_F(HttpServerTest, StopsAtOnce) {
  EXPECT_THAT(Ask(port(), "GET /a HTTP/1.1\r\nHost: me\r\n\r\n"), HasSubstr("200 OK"));
  const auto begun = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(1500));
}

TEST(HttpServer, NoAddressIsNoService) {
  const auto started = HttpServer::Start("", Echo);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(*started, nullptr);
}

}  // namespace
}  // namespace bdn
