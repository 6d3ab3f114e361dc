#include "common/cluster/control_channel.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/cluster/certificate_watch.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/control_plane.h"

namespace bdn {
namespace {

namespace tls = grpc::experimental;

// The metadata of every call that carries the job's token.
constexpr char kTokenMetadata[] = "bandoneon-token";
// The metadata of every answer that carries the scheduler's version of control.
constexpr char kVersionMetadata[] = "bandoneon-control-version";

// The interval at which gRPC looks at the files, on a thread of its own, for a change.
constexpr unsigned kReloadSeconds = 1;

// Has gRPC look at the watch's files, which change only to content that has been checked.
std::shared_ptr<tls::FileWatcherCertificateProvider> Watch(const CertificateWatch& watch) {
  const TlsFiles files = watch.shown();
  return std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate,
                                                               files.authority, kReloadSeconds);
}

// A check of the scheduler's certificate, after gRPC's own check that the job's authority has
// signed it.
class SchedulerVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit SchedulerVerifier(Credentials credentials) : credentials_(std::move(credentials)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* sync_status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names())
      uris.emplace_back(uri.data(), uri.size());
    if (!credentials_.AdmitsRole(uris, "scheduler")) {
      *sync_status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                                  "its certificate is not of a scheduler of this job");
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const Credentials credentials_;
};

// Returns `part` so that its last user also ends the watch that it needs.
template <typename Part>
std::shared_ptr<Part> Keep(std::shared_ptr<Part> part, std::shared_ptr<CertificateWatch> watch) {
  if (part == nullptr || watch == nullptr) return part;
  // The part is destroyed first: it still uses the watch.
  auto both = std::make_shared<std::pair<std::shared_ptr<CertificateWatch>, std::shared_ptr<Part>>>(
      std::move(watch), std::move(part));
  return {both, both->second.get()};
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Credentials& credentials,
                                                               const CertificateWatch* watch) {
  if (watch == nullptr) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(*watch));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);  // the verifier checks the role instead
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<SchedulerVerifier>(credentials));
  return tls::TlsCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Credentials& credentials) {
  if (!credentials.has_tls()) return grpc::InsecureServerCredentials();
  auto watch = std::make_shared<CertificateWatch>(credentials.tls());
  tls::TlsServerCredentialsOptions options(Watch(*watch));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return Keep(tls::TlsServerCredentials(options), std::move(watch));
}

void ShowToken(const Credentials& credentials, grpc::ClientContext* context) {
  if (!credentials.token().empty()) context->AddMetadata(kTokenMetadata, credentials.token());
}

void ShowControlVersion(grpc::ServerContextBase* context) {
  // Trailing metadata, which an answer with an error carries, too.
  context->AddTrailingMetadata(kVersionMetadata, absl::StrFormat("%d", kControlVersion));
}

uint32_t ControlVersionOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kVersionMetadata);
  uint32_t version = 0;
  if (found == metadata.end() ||
      !absl::SimpleAtoi(std::string(found->second.data(), found->second.size()), &version)) {
    return 0;
  }
  return version;
}

absl::Status CheckCaller(const Credentials& credentials, const grpc::ServerContextBase& context) {
  const auto found = context.client_metadata().find(kTokenMetadata);
  const bool shown = found != context.client_metadata().end();
  if (!credentials.Admits(shown ? std::string_view(found->second.data(), found->second.size())
                                : std::string_view())) {
    return PermissionDenied("%s token from %s", shown ? "wrong" : "no", context.peer());
  }
  return CheckCallerRole(credentials, context, "");
}

absl::Status CheckCallerRole(const Credentials& credentials, const grpc::ServerContextBase& context,
                             std::string_view role) {
  if (!credentials.has_tls()) return absl::OkStatus();
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri :
       context.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  if (credentials.AdmitsRole(uris, role)) return absl::OkStatus();
  return PermissionDenied("the certificate of %s is not of a %s of this job", context.peer(),
                          std::string(role.empty() ? "node" : role));
}

std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address,
                                              const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // The time that one attempt may take: where a thousand nodes begin at once, none should give up,
  // and begin anew, while it waits for its turn.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The connection is shared with nobody: two nodes in one process must not depend on one
  // connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The scheduler is reached directly, even where the environment names a web proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto watch =
      credentials.has_tls() ? std::make_shared<CertificateWatch>(credentials.tls()) : nullptr;
  return Keep(
      grpc::CreateCustomChannel(address, ChannelCredentialsOf(credentials, watch.get()), arguments),
      watch);
}

gpr_timespec GrpcDeadline(absl::Duration timeout) {
  const timespec span = absl::ToTimespec(timeout);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      {span.tv_sec, static_cast<int32_t>(span.tv_nsec), GPR_TIMESPAN});
}

void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
  if (timeout == absl::InfiniteDuration()) return;
  context->set_deadline(GrpcDeadline(timeout));
}

}  // namespace bdn
