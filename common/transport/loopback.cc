#include "common/transport/loopback.h"

#include "common/base/thread.h"

namespace bdn {

LoopbackNetwork::LoopbackNetwork()
    : thread_(StartThread("bdn-loopback", [this] {
        while (core_.WaitAndStep()) {
        }
      })) {}

LoopbackNetwork::~LoopbackNetwork() {
  core_.Interrupt();
  thread_.join();
}

std::unique_ptr<Transport> LoopbackNetwork::MakeTransport() { return core_.MakeTransport(); }

}  // namespace bdn
