#ifndef BANDONEON_DEVICE_KERNELS_KERNEL_LIST_H_
#define BANDONEON_DEVICE_KERNELS_KERNEL_LIST_H_

// All kernels of kernel_id.h, for code that does something with each.
#include "device/kernels/begin_encode.h"
#include "device/kernels/dither_levels.h"
#include "device/kernels/drawn_values.h"
#include "device/kernels/feedback_steps.h"
#include "device/kernels/float_codes.h"
#include "device/kernels/integer_codes.h"
#include "device/kernels/kernel_id.h"
#include "device/kernels/run_sums.h"
#include "device/kernels/sign_bits.h"
#include "device/kernels/topk_selection.h"
#include "device/kernels/twobit_levels.h"

namespace bdn::device_kernels {

// Runs the phases from kPhase on, and calls end_of_phase() after each but the last.
template <class Kernel, int kPhase, class EndOfPhase>
BDN_DEVICE void RunPhases(const Thread& at, const typename Kernel::Arguments& arguments,
                          typename Kernel::Shared& shared, const EndOfPhase& end_of_phase) {
  Kernel::template Run<kPhase>(at, arguments, shared);
  if constexpr (kPhase + 1 < Kernel::kPhases) {
    end_of_phase();
    RunPhases<Kernel, kPhase + 1>(at, arguments, shared, end_of_phase);
  }
}

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_KERNEL_LIST_H_
