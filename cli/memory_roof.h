#ifndef BANDONEON_CLI_MEMORY_ROOF_H_
#define BANDONEON_CLI_MEMORY_ROOF_H_

#include <cstddef>

namespace bdn::cli {

// What memory alone allows an exchange: the passes that it makes over memory, with plain loops, by
// as many threads, without transport, headers, checksums or arithmetic beyond the adding.
struct RoofOptions {
  int workers = 1;
  int servers = 1;
  size_t tensors = 1;
  size_t bytes = 4;          // a tensor, fp32
  double push_fraction = 1;  // bytes of a payload over those of its fp32
  double pull_fraction = 1;
  bool push_memory = false;  // error feedback: a pass that adds to a residual
  bool pull_memory = false;
};

// fp32 GB/s a worker, one run of:
//   each worker thread, a tensor: encode (read it, or add it to a residual; write the payload),
//   then
//     decode (read the reply, write the tensor);
//   each server thread, its share of each tensor: for each worker decode-add (read a payload, add
//   to the
//     sum); then encode once (read the sum, or add it to a residual; write the reply).
// A payload that is as long as its tensor is a copy. Threads run side by side and wait for nobody.
double MeasureRoof(const RoofOptions& options);

// GB/s of one thread copying `tensors` blocks of `bytes`, bytes copied.
double MeasureMemcpy(size_t tensors, size_t bytes);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_MEMORY_ROOF_H_
