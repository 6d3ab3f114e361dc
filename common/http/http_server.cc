#include "common/http/http_server.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <list>
#include <string_view>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/listen_address.h"

namespace bdn {
namespace {

// Limits on connections, each of which carries one request. All are read and written on one thread,
// which waits for none.
constexpr size_t kMostConnections = 64;
constexpr size_t kMostOfPeer = 16;  // of one address
constexpr absl::Duration kMostTime = absl::Seconds(30);
constexpr unsigned kIdleSeconds = 10;
constexpr size_t kRequestBytes = 16384;

// Returns the bytes of the address without the port.
std::string HostOfPeer(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return {reinterpret_cast<const char*>(&v4->sin_addr), sizeof(v4->sin_addr)};
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return {reinterpret_cast<const char*>(&v6->sin6_addr), sizeof(v6->sin6_addr)};
}

// The open connections. When a new one finds too many, those that have been open for longest are
// cut: a regular request is answered within milliseconds, so only a slow client gets old. Confined
// to the server's thread.
class OpenConnections {
 public:
  struct Connection {
    int fd;
    std::string host;
    absl::Time since;
    bool is_cut = false;  // by us; the library closes it later
  };
  using Place = std::list<Connection>::iterator;

  // Adds a connection, and cuts the older ones for which it leaves no room.
  Place Add(int fd, std::string host) {
    const absl::Time now = clock_.Now();
    size_t all = 1;
    size_t of_host = 1;
    // From the youngest, so that the oldest are cut.
    for (auto next = open_.rbegin(); next != open_.rend(); ++next) {
      if (next->is_cut) continue;
      const bool is_same = next->host == host;
      const bool is_over = all + 1 > kMostConnections || (is_same && of_host + 1 > kMostOfPeer) ||
                           now - next->since > kMostTime;
      if (is_over) {
        next->is_cut = true;
        // Only a shutdown: the library owns the descriptor, sees the end, and closes it.
        shutdown(next->fd, SHUT_RDWR);
        continue;
      }
      ++all;
      if (is_same) ++of_host;
    }
    open_.push_back({fd, std::move(host), now});
    return std::prev(open_.end());
  }
  void Remove(Place place) { open_.erase(place); }

 private:
  const SteadyClock clock_{};
  std::list<Connection> open_;  // oldest first
};

class HttpServerImpl final : public HttpServer {
 public:
  explicit HttpServerImpl(Handler handler) : handler_(std::move(handler)) {}
  ~HttpServerImpl() override {
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }

  absl::Status Listen(const std::string& listen) {
    BDN_ASSIGN_OR_RETURN(const int fd, OpenListeningSocket(listen));
    FileDescriptor listener(fd);
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.ss_family == AF_INET6
                      ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                      : reinterpret_cast<const sockaddr_in&>(address).sin_port);
    // The library's thread inherits the signal mask of the thread that starts it; StartThread
    // blocks all signals.
    StartThread("bdn-http-start", [this, fd] { Start(fd); }).join();
    if (daemon_ == nullptr)
      return Unavailable("cannot serve at %s: libmicrohttpd did not start", listen);
    (void)listener.Release();  // the library owns it now
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  // The state of one request.
  struct Request {
    std::string query;
    bool was_seen = false;
  };

  void Start(int fd) {
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, nullptr, nullptr,
        &HttpServerImpl::OnRequest, this,                             //
        MHD_OPTION_EXTERNAL_LOGGER, &HttpServerImpl::OnLog, nullptr,  //
        MHD_OPTION_LISTEN_SOCKET, fd,                                 //
        // Twice the limit: connections that are cut here count in the library until it has closed
        // them.
        MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(2 * kMostConnections),  //
        MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds,                               //
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, kRequestBytes,                         //
        MHD_OPTION_URI_LOG_CALLBACK, &HttpServerImpl::OnUri, nullptr,              //
        MHD_OPTION_NOTIFY_COMPLETED, &HttpServerImpl::OnCompleted, nullptr,        //
        MHD_OPTION_NOTIFY_CONNECTION, &HttpServerImpl::OnConnection, this, MHD_OPTION_END);
  }

  static void OnLog(void*, const char* format, va_list arguments) {
    char line[256];
    std::vsnprintf(line, sizeof(line), format, arguments);
    LogDebug("http: %s", line);
  }

  static void OnConnection(void* self, MHD_Connection* connection, void** place,
                           MHD_ConnectionNotificationCode code) {
    auto* const server = static_cast<HttpServerImpl*>(self);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
      auto* const added = static_cast<OpenConnections::Place*>(*place);
      server->open_.Remove(*added);
      delete added;
      return;
    }
    const int fd =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    const sockaddr* const peer =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    *place = new OpenConnections::Place(server->open_.Add(fd, HostOfPeer(peer)));
  }

  // Keeps the query as it was sent; OnRequest is given it decoded only.
  static void* OnUri(void*, const char* uri, MHD_Connection*) {
    const char* const query = std::strchr(uri, '?');
    return new Request{.query = query == nullptr ? "" : query + 1};
  }
  static void OnCompleted(void*, MHD_Connection*, void** request, MHD_RequestTerminationCode) {
    delete static_cast<Request*>(*request);
    *request = nullptr;
  }

  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* path,
                              const char* said_method, const char*, const char*, size_t*,
                              void** state) {
    auto* const request = static_cast<Request*>(*state);
    const std::string_view method = said_method;
    HttpReply reply;
    if (method == "GET" || method == "HEAD") {
      // The first call brings only the headers; the library calls again once the body has come.
      if (!std::exchange(request->was_seen, true)) return MHD_YES;
      const auto header = [connection](const char* name) -> std::string {
        const char* const text = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
        return text == nullptr ? "" : text;
      };
      reply =
          static_cast<HttpServerImpl*>(self)->handler_({.path = path,
                                                        .query = request->query,
                                                        .authorization = header("Authorization"),
                                                        .host = header("Host")});
    } else {
      reply = {.code = 405, .body = "only GET and HEAD are answered here\n"};
    }
    return Answer(connection, reply);
  }

  static MHD_Result Answer(MHD_Connection* connection, const HttpReply& reply) {
    MHD_Response* const response = MHD_create_response_from_buffer(
        reply.body.size(), const_cast<char*>(reply.body.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    const auto add = [response](const char* name, const std::string& value) {
      if (!value.empty()) MHD_add_response_header(response, name, value.c_str());
    };
    add("Content-Type", reply.content_type);
    // One request a connection: an idle one would take the slot of another client.
    add("Connection", "close");
    add("Cache-Control", "no-store");
    add("X-Content-Type-Options", "nosniff");
    add("X-Frame-Options", "DENY");
    add("Referrer-Policy", "no-referrer");
    add("Content-Security-Policy", reply.content_policy);
    add("Allow", reply.code == 405 ? "GET, HEAD" : "");
    add("WWW-Authenticate", reply.challenge);
    const MHD_Result queued =
        MHD_queue_response(connection, static_cast<unsigned>(reply.code), response);
    MHD_destroy_response(response);
    return queued;
  }

  const Handler handler_;
  OpenConnections open_;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Handler handler) {
  if (listen.empty()) return nullptr;
  auto server = std::make_unique<HttpServerImpl>(std::move(handler));
  BDN_RETURN_IF_ERROR(server->Listen(listen));
  return server;
}

}  // namespace bdn
