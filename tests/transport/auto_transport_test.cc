#include "common/transport/auto_transport.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/secret.h"
#include "common/transport/shm/shm_socket.h"
#include "common/transport/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

const std::string kSecret(32, 's');

std::unique_ptr<Transport> MakeAuto(bool always_host = false,
                                    const std::string& socket_directory = "") {
  auto network = *MakeZmqTransport({.security = LinkSecurity::kAuthenticated});
  const PublicKey key = network->public_key();
  return MakeAutoTransport(std::move(network), *ShmTransport::Make({.key = key}), always_host,
                           socket_directory);
}

class AutoTransportTest : public ::testing::Test {
 protected:
  AutoTransportTest() {
    server_->Start(server_inbox_.Handler());
    client_->Start(client_inbox_.Handler());
    Listen();
    server_->Admit({{client_->public_key()}, kSecret});
  }
  ~AutoTransportTest() override {
    for (Transport* transport : {client_.get(), server_.get()}) {
      transport->Close();
      transport->Join();
    }
  }
  void Listen() {
    endpoints_ = *server_->Listen("tcp://127.0.0.1:0");
    address_ = NetworkUrl(endpoints_);
    const Endpoint* const host = FindEndpoint(endpoints_, kShmScheme);
    host_ = host == nullptr ? "" : UrlOf(*host);
    ASSERT_EQ(endpoints_.size(), host == nullptr ? 1u : 2u);
    EXPECT_EQ(endpoints_.back().scheme, "tcp");  // the network's is the last
  }
  // Returns the server as it offers itself, but at another address of shared memory: at none if
  // that is empty.
  Peer PeerOn(const std::string& host_url) const {
    Peer peer = PeerAt(address_, LinkSecurity::kAuthenticated, server_->public_key(), kSecret);
    if (!host_url.empty()) {
      Endpoint host = EndpointOf(host_url);
      host.bound.clear();
      peer.endpoints.insert(peer.endpoints.begin(), host);
    }
    return peer;
  }
  ConnectionId Connect(const std::string& host_url) { return *client_->Connect(PeerOn(host_url)); }
  // There and back.
  void Exchange(ConnectionId to, bool over_memory) {
    const size_t before = server_inbox_.size();
    client_->Send(to, FrameOf(3, 100000), completions_.Expect());
    const Inbox::Item there = server_inbox_.WaitFor(before + 1).at(before);
    ExpectSameFrame(there.frame, FrameOf(3, 100000));
    EXPECT_EQ(there.frame.is_of_host, over_memory);
    EXPECT_EQ(server_->KeyOf(there.from), client_->public_key());
    const size_t before_back = client_inbox_.size();
    server_->Send(there.from, FrameOf(4, 100000), completions_.Expect());
    const Inbox::Item back = client_inbox_.WaitFor(before_back + 1).at(before_back);
    EXPECT_EQ(back.from, to);
    EXPECT_EQ(client_->FactsOf(to).is_network, !over_memory);
    ExpectSameFrame(back.frame, FrameOf(4, 100000));
    server_inbox_.Clear();
    client_inbox_.Clear();
  }

  Completions completions_;
  Inbox server_inbox_;
  Inbox client_inbox_;
  std::unique_ptr<Transport> server_ = MakeAuto();
  std::unique_ptr<Transport> client_ = MakeAuto();
  std::string address_;
  std::string host_;  // the URL; empty where it does not listen for its host
  std::vector<Endpoint> endpoints_;
};

TEST_F(AutoTransportTest, ListensInADirectoryWhereOnlyItsUserComes) {
  std::string directory = ::testing::TempDir() + "bdn-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);  // of mode 0700
  server_->Close();
  server_->Join();
  server_ = MakeAuto(false, directory);
  server_->Start(server_inbox_.Handler());
  Listen();
  server_->Admit({{client_->public_key()}, kSecret});
  const std::string host = host_;
  EXPECT_EQ(host.find("shm://" + directory + "/bandoneon-"), 0u) << host;
  Exchange(Connect(host), /*over_memory=*/true);
  server_->Close();
  server_->Join();
  EXPECT_EQ(rmdir(directory.c_str()), 0) << "something is left in " << directory;
}

TEST_F(AutoTransportTest, SharesMemoryWithWhoIsOfThisHost) {
  ASSERT_FALSE(host_.empty());
  Exchange(Connect(host_), /*over_memory=*/true);
  EXPECT_FALSE(client_->needs_checksums());
  EXPECT_FALSE(server_->needs_checksums());
  EXPECT_EQ(server_->stats().frames_received, 1u);
  EXPECT_EQ(server_->stats().connections_open, 1u);
}

TEST_F(AutoTransportTest, TakesTheNetworkToOthers) {
  Exchange(Connect(""), /*over_memory=*/false);
  Exchange(Connect("shm://bandoneon-of-another-host"), /*over_memory=*/false);
  EXPECT_TRUE(client_->needs_checksums());
  EXPECT_TRUE(server_->needs_checksums());
}

TEST_F(AutoTransportTest, TakesNothingElseWhereSharedMemoryIsInsistedOn) {
  const auto client = MakeAuto(/*always_host=*/true);
  client->Start(client_inbox_.Handler());
  server_->Admit({{client->public_key()}, kSecret});
  for (const char* elsewhere : {"", "shm://bandoneon-of-another-host"}) {
    const auto refused = client->Connect(PeerOn(elsewhere));
    EXPECT_THAT(refused.status().message(), ::testing::HasSubstr("shares no memory"));
    EXPECT_THAT(refused.status().message(), ::testing::HasSubstr(address_));
  }
  client->Send(*client->Connect(PeerOn(host_)), FrameOf(5, 1000), completions_.Expect());
  EXPECT_TRUE(server_inbox_.WaitFor(1).at(0).frame.is_of_host);
  client->Close();
  client->Join();
}

TEST_F(AutoTransportTest, HasBothAtATime) {
  const ConnectionId memory = Connect(host_);
  const ConnectionId network = Connect("");
  for (int i = 0; i < 3; ++i) {
    Exchange(memory, true);
    Exchange(network, false);
  }
  client_->Disconnect(memory);
  Exchange(network, false);
}

TEST_F(AutoTransportTest, WhatGoesOverTheNetworkHasAChecksum) {
  Frame frame = FrameOf(3, 1000);
  frame = MakeFrame(frame.header, frame.payload, /*with_checksum=*/false);
  EXPECT_EQ(CheckPayload(frame).code(), absl::StatusCode::kDataLoss);
  client_->Send(Connect(""), frame, completions_.Expect());
  const Frame arrived = server_inbox_.WaitFor(1).at(0).frame;
  EXPECT_EQ(CheckPayload(arrived), absl::OkStatus());
  ExpectSameFrame(arrived, FrameOf(3, 1000));
}

TEST_F(AutoTransportTest, TakesTheNetworkWhereSharedMemoryNeverCameThrough) {
  // Somebody listens, and says nothing.
  const ShmListeningSocket silent = *ListenAt(absl::StrCat("bdn-test-silent-", getpid()));
  const std::string address = absl::StrCat("shm://bdn-test-silent-", getpid());
  const ConnectionId first = Connect(address);
  EXPECT_FALSE(client_->needs_checksums());
  Exchange(Connect(address), false);
  client_->Disconnect(first);
  // A way that has worked is taken again.
  Exchange(Connect(host_), true);
  Exchange(Connect(host_), true);
}

TEST_F(AutoTransportTest, TakesTheNetworkWhereNoDescriptorIsLeft) {
  const std::string host = host_;
  Exchange(Connect(""), false);  // what ZeroMQ needs for another is more than there will be
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  // No new one is below the first number that is free. Less would fail poll() of ZeroMQ, too, which
  // may have no more entries than the limit.
  const int first_free = dup(0);
  ASSERT_GE(first_free, 0);
  close(first_free);
  none.rlim_cur = first_free;
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto connection = client_->Connect(PeerOn(host));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string said = "is on this host, but is reached over the network";
  EXPECT_THAT(log, ::testing::HasSubstr(said));
  EXPECT_EQ(log.find(said), log.rfind(said)) << log;
  if (connection.ok()) Exchange(*connection, false);  // ZeroMQ may have found none, too
}

}  // namespace
}  // namespace bdn
