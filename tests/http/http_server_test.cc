// What a browser or scraper gets over real sockets.
#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Sends `text` and reads until the other end closes.
std::string Ask(int port, const std::string& text) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  std::string answer;
  char some[4096];
  for (ssize_t n; (n = read(fd, some, sizeof(some))) > 0;)
    answer.append(some, static_cast<size_t>(n));
  close(fd);
  return answer;
}

HttpReply Echo(const HttpRequest& request) {
  if (request.path == "/secret" && request.authorization != "Bearer open") {
    return {.code = 401, .body = "who are you\n", .challenge = "Basic realm=\"bandoneon\""};
  }
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

TEST_F(HttpServerTest, AnAddressThatIsTakenIsNamed) {
  const std::string address = absl::StrFormat("127.0.0.1:%d", port());
  const auto second = HttpServer::Start(address, Echo);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST(HttpServer, NoAddressIsNoService) {
  const auto started = HttpServer::Start("", Echo);
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(*started, nullptr);
}

}  // namespace
}  // namespace bdn
