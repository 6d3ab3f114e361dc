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

// The job in a browser: "/" is a page that asks "/api/status" every second, both over HTTP in the clear.
// At an address that other hosts reach every request shows the job's token (Bearer, or Basic with any user
// name); at one of this host, whoever asks must mean this host: a page of the web that has its name lead here
// does not. Outlives jobs, and shows the present one. Thread-safe.
class StatusPage {
 public:
  // Null where `listen` is empty. InvalidArgument for an address of other hosts' reach without a token;
  // Unavailable: nobody can listen there.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const std::string& listen,
                                                           Credentials credentials);
  // Without a listener: Answer is all there is.
  StatusPage(Credentials credentials, bool is_local);

  int port() const { return server_->port(); }
  HttpReply Answer(const HttpRequest& request);

  // The job that is shown meanwhile; `page` may be null. `host` is borrowed.
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
  std::unique_ptr<HttpServer> server_;         // goes first: it calls Answer
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_STATUS_PAGE_H_
