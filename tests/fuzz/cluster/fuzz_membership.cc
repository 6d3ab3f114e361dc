// Any message is a membership, or is refused; one that was taken is written as one that says the
// same, and names a server that it has, or none, for every key.

#include <string>

#include "common/cluster/control_messages.h"
#include "common/cluster/membership.h"
#include "proto/control.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace bdn {
namespace {

using Message = bandoneon::control::Membership;

void Check(const Message& message) {
  auto membership = Read(message);
  if (!membership.ok()) return;
  membership->MakeIndex();
  Message written;
  Write(*membership, &written);
  auto again = Read(written);
  fuzz::Require(again.ok());
  again->MakeIndex();
  fuzz::Require(*again == *membership);
  for (const auto& [home, slots] : membership->moved) {
    for (uint32_t partition = 0; partition < 32; ++partition) {
      const SlotOwner owner = membership->OwnerOf(Key::Of(7, partition), home);
      fuzz::Require(owner.since <= membership->epoch);
      if (owner.server == 0) continue;
      const NodeInfo* const server = membership->Find(owner.server);
      fuzz::Require(server != nullptr && server->role == Role::kServer);
    }
  }
}

// Few inputs have moved slots by themselves, so this one is made of its numbers.
Message Make(fuzz::FuzzInput* input) {
  Message message;
  message.set_epoch(input->Get<uint8_t>());
  message.set_unsafe(input->Get<uint8_t>());
  const size_t servers = input->Get<uint8_t>() % 4;
  for (size_t i = 0; i < servers; ++i) {
    auto* const server = message.add_servers();
    server->set_id(100 + static_cast<uint32_t>(i));
    server->set_role(1);
    server->set_rank(static_cast<int32_t>(i + input->Get<uint8_t>() % 2));
    server->set_host("host:1");
    server->set_processes(1);
    auto* const endpoint = server->add_endpoints();
    endpoint->set_scheme("tcp");
    endpoint->set_address("10.0.0.1:7000");
  }
  const size_t moved = input->Get<uint8_t>() % 3;
  for (size_t i = 0; i < moved; ++i) {
    auto* const slots = message.add_moved();
    slots->set_home(1 + static_cast<uint32_t>(i));
    const size_t count = input->Get<uint8_t>() % 8 == 0 ? input->Get<uint8_t>() % 32 : kSlots;
    for (size_t slot = 0; slot < count; ++slot) {
      const auto which = input->Get<uint8_t>();
      slots->add_servers(which % 8 == 0 ? which : 100 + which % 4);
      slots->add_since(input->Get<uint8_t>() % 8);
    }
  }
  while (!input->empty() && message.vacant_size() < 64) message.add_vacant(input->Get<uint8_t>());
  return message;
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Message message;
  if (message.ParseFromArray(data, static_cast<int>(size))) bdn::Check(message);
  bdn::fuzz::FuzzInput input(data, size);
  bdn::Check(bdn::Make(&input));
  return 0;
}
