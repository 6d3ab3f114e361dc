#include "common/cluster/health.h"

#include <grpc/support/log.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/listener.h"

namespace bdn {
namespace {

class HealthServerImpl final : public HealthServer {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  HealthServerImpl(std::unique_ptr<grpc::CallbackGenericService> nothing_else,
                   std::unique_ptr<Acceptor> acceptor, std::unique_ptr<grpc::Server> server,
                   std::unique_ptr<Listener> listener)
      : nothing_else_(std::move(nothing_else)),
        acceptor_(std::move(acceptor)),
        server_(std::move(server)),
        listener_(std::move(listener)) {
    server_->GetHealthCheckService()->SetServingStatus("liveness", true);
    SetServing(false);
    listener_->Start([this](int fd) {
      Acceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor_->HandleNewConnection(&connection);
    });
  }
  ~HealthServerImpl() override {
    // The listener first, because it hands connections to the server.
    listener_->Close();
    server_->Shutdown(GrpcDeadline(absl::ZeroDuration()));
  }

  int port() const override { return listener_->port(); }
  uint64_t accept_failures() const override { return listener_->failures(); }
  void SetServing(bool serving) override {
    server_->GetHealthCheckService()->SetServingStatus("readiness", serving);
    server_->GetHealthCheckService()->SetServingStatus("", serving);
  }

 private:
  const std::unique_ptr<grpc::CallbackGenericService> nothing_else_;
  const std::unique_ptr<Acceptor> acceptor_;
  const std::unique_ptr<grpc::Server> server_;
  const std::unique_ptr<Listener> listener_;
};

}  // namespace

void RouteGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) { LogDebug("grpc: %s", args->message); });
}

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const std::string& listen) {
  if (listen.empty()) return nullptr;
  BDN_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::Open(listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  // A gRPC server does not start with its health service alone; this service beside it answers
  // UNIMPLEMENTED.
  auto nothing_else = std::make_unique<grpc::CallbackGenericService>();
  builder.RegisterCallbackGenericService(nothing_else.get());
  using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      Connections::FROM_FD, grpc::InsecureServerCredentials());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Unavailable("cannot serve at %s: gRPC did not start", listen);
  LogInfo("health service at port %d", listener->port());
  return std::make_unique<HealthServerImpl>(std::move(nothing_else), std::move(acceptor),
                                            std::move(server), std::move(listener));
}

}  // namespace bdn
