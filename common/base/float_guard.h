#ifndef BANDONEON_COMMON_BASE_FLOAT_GUARD_H_
#define BANDONEON_COMMON_BASE_FLOAT_GUARD_H_

#include <cstdint>

namespace bdn {

// While it lives, this thread rounds to nearest and keeps subnormals; then the caller's settings
// come back. A library built with -ffast-math, or torch.set_flush_denormal, changes them for a
// thread and its children, and bits would differ between workers. One at every API entry and pool
// task; a few cycles. Not copyable; used on one thread.
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
