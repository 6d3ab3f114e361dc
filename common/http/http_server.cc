#include "common/http/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>

#include <string_view>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/listen_address.h"

namespace bdn {
namespace {

constexpr absl::Duration kKnockInterval = absl::Milliseconds(10);

// Connects there and hangs up.
void Knock(std::string host, int port) {
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  const addrinfo hints = {.ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrFormat("%d", port).c_str(), &hints, &found) != 0) return;
  const FileDescriptor fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  (void)connect(fd.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
}

class HttpServerImpl final : public HttpServer {
 public:
  explicit HttpServerImpl(Handler handler) : handler_(std::move(handler)) {}
  ~HttpServerImpl() override {
    if (context_ != nullptr) Stop();
  }

  absl::Status Listen(const std::string& listen) {
    const char* settings[] = {"listening_ports",
                              listen.c_str(),
                              "num_threads",
                              "2",
                              "request_timeout_ms",
                              "10000",
                              "max_request_size",
                              "16384",
                              "enable_keep_alive",
                              "no",
                              "connection_queue",
                              "64",
                              nullptr};
    mg_callbacks callbacks = {};
    callbacks.log_message = [](const mg_connection*, const char* message) {
      LogDebug("http: %s", message);
      return 1;
    };
    callbacks.log_access = [](const mg_connection*, const char*) { return 1; };
    context_ = mg_start(&callbacks, nullptr, settings);
    if (context_ == nullptr) return ListenError(listen);
    mg_server_port port = {};
    if (mg_get_server_ports(context_, 1, &port) < 1) return ListenError(listen);
    port_ = port.port;
    host_ = listen.substr(0, listen.find_last_of(':'));
    mg_set_request_handler(context_, "**", &HttpServerImpl::OnRequest, this);
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  // CivetWeb looks every two seconds whether it is to stop, and whenever somebody connects.
  void Stop() {
    Mutex mu;
    CondVar changed;
    bool has_stopped = false;
    std::thread stopping = StartThread("bdn-http-stop", [&] {
      mg_stop(context_);
      MutexLock lock(&mu);
      has_stopped = true;
      changed.SignalAll();
    });
    const SteadyClock clock;
    mu.Lock();
    while (!has_stopped) {
      mu.Unlock();
      Knock(host_, port_);
      mu.Lock();
      if (!has_stopped) clock.WaitUntil(&changed, &mu, clock.Now() + kKnockInterval);
    }
    mu.Unlock();
    stopping.join();
  }

  static int OnRequest(mg_connection* connection, void* self) {
    const mg_request_info* info = mg_get_request_info(connection);
    const std::string_view method = info->request_method;
    HttpReply reply;
    if (method == "GET" || method == "HEAD") {
      const auto header = [connection](const char* name) -> std::string {
        const char* text = mg_get_header(connection, name);
        return text == nullptr ? "" : text;
      };
      reply = static_cast<HttpServerImpl*>(self)->handler_(
          {.path = info->local_uri == nullptr ? "" : info->local_uri,
           .query = info->query_string == nullptr ? "" : info->query_string,
           .authorization = header("Authorization"),
           .host = header("Host")});
    } else {
      reply = {.code = 405, .body = "only GET and HEAD are answered here\n"};
    }
    std::string head = absl::StrFormat(
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
        "Referrer-Policy: no-referrer\r\nContent-Security-Policy: %s\r\n",
        reply.code, mg_get_response_code_text(connection, reply.code), reply.content_type,
        reply.body.size(), reply.content_policy);
    if (reply.code == 405) head += "Allow: GET, HEAD\r\n";
    if (!reply.challenge.empty()) head += "WWW-Authenticate: " + reply.challenge + "\r\n";
    head += "\r\n";
    mg_write(connection, head.data(), head.size());
    if (method != "HEAD") mg_write(connection, reply.body.data(), reply.body.size());
    return reply.code;
  }

  const Handler handler_;
  mg_context* context_ = nullptr;
  std::string host_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Handler handler) {
  if (listen.empty()) return nullptr;
  BDN_RETURN_IF_ERROR(CheckAddress(listen));
  auto server = std::make_unique<HttpServerImpl>(std::move(handler));
  BDN_RETURN_IF_ERROR(server->Listen(listen));
  return server;
}

}  // namespace bdn
