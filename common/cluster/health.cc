#include "common/cluster/health.h"

#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/listen_address.h"

namespace bdn {
namespace {

class HealthServerImpl final : public HealthServer {
 public:
  HealthServerImpl(std::unique_ptr<grpc::CallbackGenericService> nothing_else,
                   std::unique_ptr<grpc::Server> server, int port)
      : nothing_else_(std::move(nothing_else)), server_(std::move(server)), port_(port) {
    SetServing(false);
  }
  ~HealthServerImpl() override { server_->Shutdown(GrpcDeadline(absl::ZeroDuration())); }

  int port() const override { return port_; }
  void SetServing(bool serving) override {
    server_->GetHealthCheckService()->SetServingStatus(serving);
  }

 private:
  const std::unique_ptr<grpc::CallbackGenericService> nothing_else_;
  const std::unique_ptr<grpc::Server> server_;
  const int port_;
};

}  // namespace

void RouteGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) { LogDebug("grpc: %s", args->message); });
}

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const std::string& listen) {
  BDN_RETURN_IF_ERROR(CheckAddress(listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A server of gRPC's does not start with its health service alone; this answers UNIMPLEMENTED.
  auto nothing_else = std::make_unique<grpc::CallbackGenericService>();
  builder.RegisterCallbackGenericService(nothing_else.get());
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return ListenError(listen);
  return std::make_unique<HealthServerImpl>(std::move(nothing_else), std::move(server), port);
}

}  // namespace bdn
