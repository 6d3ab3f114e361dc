#ifndef BANDONEON_COMMON_HTTP_HTTP_SERVER_H_
#define BANDONEON_COMMON_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bdn {

// A request of a browser or a scraper.
struct HttpRequest {
  std::string path;           // "/api/status", decoded
  std::string query;          // the text behind the "?", as it was sent; or empty
  std::string authorization;  // the header, or empty
  // The Host header, the name by which the server was asked for, "localhost:8080"; or empty.
  std::string host;
};

// The reply to one HttpRequest.
struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string challenge;  // WWW-Authenticate, with 401; or empty
  // The Content-Security-Policy, which says what the body may load and run in a browser: by default
  // nothing.
  std::string content_policy = "default-src 'none'; frame-ancestors 'none'";
};

// A server that answers GET and HEAD in the clear, and every other method with 405. It is meant for
// few clients that ask seldom: it has one thread, and takes requests of at most 16 KiB and 64
// connections, of which 16 from one address. Beyond that the oldest connection is cut, so that a
// slow client holds nobody up. Its replies forbid clients to store them and to show them inside
// other pages. Thread-safe.
class HttpServer {
 public:
  // Answers one request. Runs on the server's thread: no other request is answered meanwhile.
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  // Starts to serve at `listen`, which is host:port, with port 0 for a free one. Returns null where
  // `listen` is empty; Unavailable says why it cannot be listened at.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen,
                                                           Handler handler);
  // Stops the server, after the last call of the handler.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_HTTP_HTTP_SERVER_H_
