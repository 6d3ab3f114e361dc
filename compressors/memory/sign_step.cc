#include "compressors/memory/sign_step.h"

namespace bdn {

SignStep MakeSignStep(double eta, double decay, float learning_rate) {
  const double rate = eta * learning_rate;
  return {.keep = static_cast<float>(1.0 - decay * rate), .rate = static_cast<float>(rate)};
}

}  // namespace bdn
