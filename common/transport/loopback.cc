#include "common/transport/loopback.h"

namespace bdn {

LoopbackNetwork::LoopbackNetwork()
    : thread_([this] {
        while (queue_.WaitAndStep()) {
        }
      }) {}

LoopbackNetwork::~LoopbackNetwork() {
  queue_.Interrupt();
  thread_.join();
}

std::unique_ptr<Transport> LoopbackNetwork::MakeTransport() { return queue_.MakeTransport(); }

}  // namespace bdn
