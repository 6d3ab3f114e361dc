#ifndef BANDONEON_TESTS_SUPPORT_PUMPED_NETWORK_H_
#define BANDONEON_TESTS_SUPPORT_PUMPED_NETWORK_H_

#include <functional>
#include <memory>
#include <thread>

#include "tests/support/scripted_loopback.h"

namespace bdn::testing {

// A scripted network with a thread that keeps it going. Outlives its transports.
class PumpedNetwork {
 public:
  PumpedNetwork()
      : pump_([this] {
          while (net_.WaitAndStep()) continue;
        }) {}
  ~PumpedNetwork() {
    net_.Interrupt();
    pump_.join();
  }
  ScriptedLoopback& net() { return net_; }
  std::function<std::unique_ptr<Transport>()> Factory() {
    return [this] { return net_.MakeTransport(); };
  }

 private:
  ScriptedLoopback net_;
  std::thread pump_;
};

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_PUMPED_NETWORK_H_
