#include "common/base/float_guard.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace bdn {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kDefaultControl = 0x1f80;  // all exceptions masked, to nearest, no FTZ, no DAZ
uint64_t ReadControl() { return _mm_getcsr(); }
void WriteControl(uint64_t control) { _mm_setcsr(static_cast<uint32_t>(control)); }
#elif defined(__aarch64__)
constexpr uint64_t kDefaultControl = 0;
uint64_t ReadControl() {
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
void WriteControl(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
#error "float_guard.cc does not know this processor's floating-point control register"
#endif

}  // namespace

FloatGuard::FloatGuard() : saved_(ReadControl()) {
  // The register is read at every entry, and written only where it differs.
  if (saved_ != kDefaultControl) WriteControl(kDefaultControl);
}

FloatGuard::~FloatGuard() {
  if (saved_ != kDefaultControl) WriteControl(saved_);
}

}  // namespace bdn
