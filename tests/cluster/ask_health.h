#ifndef BANDONEON_TESTS_CLUSTER_ASK_HEALTH_H_
#define BANDONEON_TESTS_CLUSTER_ASK_HEALTH_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace bdn {

// The health protocol, by hand: its generated code is not installed.
// `service` is shorter than 128 bytes; "" is the whole.
inline std::string AskHealth(const std::string& address, const std::string& service = "") {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ByteBuffer reply;
  // HealthCheckRequest{service: ...}, field 1.
  const grpc::Slice request(
      service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service);
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, grpc::ByteBuffer(&request, 1), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice slice;
  if (!reply.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// HealthCheckResponse{status: ...}, field 1.
inline constexpr char kServing[] = "\x08\x01";
inline constexpr char kNotServing[] = "\x08\x02";

}  // namespace bdn

#endif  // BANDONEON_TESTS_CLUSTER_ASK_HEALTH_H_
