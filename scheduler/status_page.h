#ifndef BANDONEON_SCHEDULER_STATUS_PAGE_H_
#define BANDONEON_SCHEDULER_STATUS_PAGE_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/cluster/credentials.h"
#include "common/http/http_server.h"
#include "scheduler/job_host.h"

namespace bdn {

// The status page of a job for browsers: "/" is a page that asks "/api/status" every second, both
// over HTTP in the clear. At an address that other machines reach, every request must show the
// job's token (Bearer, or Basic with any user name). At a local address, the request's Host header
// must name this machine: a page of the web that has its own name lead here is refused. Outlives
// jobs, and shows the present one. Thread-safe.
class StatusPage {
 public:
  // Starts to serve; returns null where `listen` is empty. InvalidArgument for an address that
  // other machines reach, without a token; Unavailable: the address cannot be listened at.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const std::string& listen,
                                                           Credentials credentials);
  // Makes a page without a listener, of which only Answer is used.
  StatusPage(Credentials credentials, bool is_local);

  int port() const { return server_->port(); }
  HttpReply Answer(const HttpRequest& request);

  // A scope in which a job is shown; `page` may be null. `host` is borrowed.
  class Shown {
   public:
    Shown(StatusPage* page, JobHost* host);
    ~Shown();
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    StatusPage* const page_;
  };

 private:
  bool Admits(const HttpRequest& request) const;
  HttpReply Status();
  HttpReply Previous();

  const Credentials credentials_;
  const bool is_local_;
  Mutex mu_;
  JobHost* host_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::string previous_ ABSL_GUARDED_BY(mu_);  // the job before, as it ended; JSON
  std::unique_ptr<HttpServer> server_;         // destroyed first: it calls Answer
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_STATUS_PAGE_H_
