#include "common/transport/loopback.h"

#include "common/base/thread.h"

namespace bdn {

LoopbackNetwork::LoopbackNetwork()
    : thread_(StartThread("bdn-loopback", [this] {
        while (queue_.WaitAndStep()) {
        }
      })) {}

LoopbackNetwork::~LoopbackNetwork() {
  queue_.Interrupt();
  thread_.join();
}

std::unique_ptr<Transport> LoopbackNetwork::MakeTransport() { return queue_.MakeTransport(); }

}  // namespace bdn
