#ifndef BANDONEON_COMMON_BASE_FLOAT_GUARD_H_
#define BANDONEON_COMMON_BASE_FLOAT_GUARD_H_

#include <cstdint>

namespace bdn {

// A scope in which this thread rounds to nearest and keeps subnormals; its end restores the
// caller's settings. A library built with -ffast-math, or torch.set_flush_denormal, changes the
// settings of a thread and its children, and bits would differ between workers. Stands at every API
// entry and pool task; costs a few cycles. Not copyable; used on one thread.
class FloatGuard {
 public:
  FloatGuard();
  ~FloatGuard();
  FloatGuard(const FloatGuard&) = delete;
  FloatGuard& operator=(const FloatGuard&) = delete;

 private:
  const uint64_t saved_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_FLOAT_GUARD_H_
