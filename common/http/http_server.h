#ifndef BANDONEON_COMMON_HTTP_HTTP_SERVER_H_
#define BANDONEON_COMMON_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace bdn {

// What a browser or a scraper asks for.
struct HttpRequest {
  std::string path;           // "/api/status", decoded
  std::string query;          // behind the "?", as it was sent; or empty
  std::string authorization;  // the header, or empty
  std::string host;           // whom the asker means, "localhost:8080"; or empty
};

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string challenge;  // WWW-Authenticate, with 401; or empty
  // What the body may load and run in a browser, as Content-Security-Policy says it: nothing.
  std::string content_policy = "default-src 'none'; frame-ancestors 'none'";
};

// Answers GET and HEAD in the clear; every other method gets 405. For few who ask seldom: one thread, requests
// of at most 16 KiB, and 64 connections, of which 16 from one address. Where there are more, the oldest is cut: who
// is slow holds nobody up. What it answers, nobody may keep or show inside pages of others. Thread-safe.
class HttpServer {
 public:
  // Runs on the server's thread: nobody else is answered meanwhile.
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  // `listen` is host:port, port 0 for a free one; empty for no service, null. Unavailable says why nobody
  // can listen there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen,
                                                           Handler handler);
  // Stops, after the last call of the handler.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_HTTP_HTTP_SERVER_H_
