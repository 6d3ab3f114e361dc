#include "common/transport/loopback.h"

#include "common/transport/transport_thread.h"

namespace bdn {

LoopbackNetwork::LoopbackNetwork()
    : thread_(StartTransportThread("bdn-loopback", [this] {
        while (queue_.WaitAndStep()) {
        }
      })) {}

LoopbackNetwork::~LoopbackNetwork() {
  queue_.Interrupt();
  thread_.join();
}

std::unique_ptr<Transport> LoopbackNetwork::MakeTransport() { return queue_.MakeTransport(); }

}  // namespace bdn
