#include "scheduler/status_page.h"

#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/status_json.h"
#include "proto/control.pb.h"
#include "scheduler/status_reply.h"

namespace bdn {

// The text of page/status_page.html, which the build turns into a source file.
std::string_view StatusPageText();

namespace {

// Returns the token that an Authorization header shows; empty where it shows none.
std::string TokenOf(const std::string& authorization) {
  const size_t space = authorization.find(' ');
  if (space == std::string::npos) return "";
  const std::string scheme = authorization.substr(0, space);
  const std::string shown = authorization.substr(space + 1);
  if (absl::EqualsIgnoreCase(scheme, "Bearer")) return shown;
  std::string user_and_password;
  if (!absl::EqualsIgnoreCase(scheme, "Basic") ||
      !absl::Base64Unescape(shown, &user_and_password)) {
    return "";
  }
  const size_t colon = user_and_password.find(':');
  return colon == std::string::npos ? "" : user_and_password.substr(colon + 1);
}

// Returns whether a Host header, whose port may be missing, names this machine.
bool MeansThisHost(const std::string& host) {
  return host.empty() || IsLocalAddress(host) || IsLocalAddress(host + ":80");
}

HttpReply Page() {
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  // The page's own script and style carry the number; anything that somebody slipped in does not.
  const std::string nonce = absl::BytesToHexString(RandomSecret());
  reply.body = absl::StrReplaceAll(std::string(StatusPageText()), {{"@NONCE@", nonce}});
  reply.content_policy = absl::StrFormat(
      "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; img-src data:; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      nonce, nonce);
  return reply;
}

bandoneon::control::StatusReply StatusOf(JobHost* host) {
  bandoneon::control::StatusReply reply;
  host->Read([&reply](const Job& job, absl::Time now) {
    WriteStatus(job, now, &reply);
    WriteHistory(job, now, reply.mutable_history());
  });
  return reply;
}

}  // namespace

StatusPage::StatusPage(Credentials credentials, bool is_local)
    : credentials_(std::move(credentials)), is_local_(is_local) {}

absl::StatusOr<std::unique_ptr<StatusPage>> StatusPage::Start(const std::string& listen,
                                                              Credentials credentials) {
  if (listen.empty()) return nullptr;
  BDN_RETURN_IF_ERROR(CheckAddress(listen));
  BDN_RETURN_IF_ERROR(credentials.CheckMayListenInClear("http-listen", listen));
  auto page = std::make_unique<StatusPage>(std::move(credentials), IsLocalAddress(listen));
  BDN_ASSIGN_OR_RETURN(page->server_,
                       HttpServer::Start(listen, [page = page.get()](const HttpRequest& request) {
                         return page->Answer(request);
                       }));
  LogInfo("status page at http://%s:%d/", listen.substr(0, listen.find_last_of(':')), page->port());
  return page;
}

bool StatusPage::Admits(const HttpRequest& request) const {
  if (is_local_) return MeansThisHost(request.host);
  // Credentials without a token admit every caller.
  return !credentials_.token().empty() && credentials_.Admits(TokenOf(request.authorization));
}

HttpReply StatusPage::Answer(const HttpRequest& request) {
  if (!Admits(request)) {
    if (is_local_) {
      return {.code = 403, .body = "this page is for who asks for localhost or 127.0.0.1\n"};
    }
    return {.code = 401,
            .body = "any user name, and the job's token as the password\n",
            .challenge = "Basic realm=\"bandoneon\", charset=\"UTF-8\""};
  }
  if (request.path == "/") return Page();
  if (request.path == "/api/status") return Status();
  if (request.path == "/api/previous") return Previous();
  return {.code = 404, .body = "there are /, /api/status and /api/previous\n"};
}

HttpReply StatusPage::Status() {
  bandoneon::control::StatusReply reply;
  {
    MutexLock lock(&mu_);
    if (host_ == nullptr) return {.code = 503, .body = "between two jobs\n"};
    reply = StatusOf(host_);
  }
  // Converted without the lock: a job of thousands of nodes has a long text.
  absl::StatusOr<std::string> json = StatusToJson(reply);
  if (!json.ok()) return {.code = 500, .body = std::string(json.status().message()) + "\n"};
  return {.content_type = "application/json", .body = *std::move(json)};
}

HttpReply StatusPage::Previous() {
  MutexLock lock(&mu_);
  if (previous_.empty()) return {.code = 404, .body = "no job has ended here\n"};
  return {.content_type = "application/json", .body = previous_};
}

StatusPage::Shown::Shown(StatusPage* page, JobHost* host) : page_(page) {
  if (page_ == nullptr) return;
  MutexLock lock(&page_->mu_);
  page_->host_ = host;
}

StatusPage::Shown::~Shown() {
  if (page_ == nullptr) return;
  MutexLock lock(&page_->mu_);
  // Kept as text: the JobHost goes with its job, and the page outlives it.
  if (absl::StatusOr<std::string> json = StatusToJson(StatusOf(page_->host_)); json.ok()) {
    page_->previous_ = *std::move(json);
  }
  page_->host_ = nullptr;
}

}  // namespace bdn
