#ifndef BANDONEON_CLI_KERNEL_ROOF_H_
#define BANDONEON_CLI_KERNEL_ROOF_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace bdn::cli {

// The speed that the codecs alone would allow. It is measured by the program bandoneon-bench-roof,
// which makes the calls of one step (each worker's encode with its residual, the servers' sum and
// encode, each worker's decode) without transport or hand-over. Not thread-safe.
class KernelRoof {
 public:
  // The job whose step is measured.
  struct Options {
    int workers = 1;
    size_t tensors = 1;
    size_t bytes = 4;            // of a tensor in float32
    size_t partition_bytes = 4;  // of a key, at most
    std::string push = "none";
    std::string pull = "none";
  };

  // Starts the program. Returns null where it cannot be started. If it cannot measure such a job it
  // says so on standard error, and has no steps.
  static std::unique_ptr<KernelRoof> Start(const Options& options);
  ~KernelRoof();
  KernelRoof(const KernelRoof&) = delete;
  KernelRoof& operator=(const KernelRoof&) = delete;

  // The cost of a step.
  struct Cost {
    double seconds;
    double cpu_seconds;
  };
  // Measures one step, by as many threads as there are cores. Returns nothing once the program has
  // ended.
  std::optional<Cost> Step();

 private:
  KernelRoof(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  const pid_t pid_;
  const int socket_;
};

// Returns the GB/s at which one thread copies `tensors` blocks of `bytes`, counting each byte once.
double MeasureMemcpy(size_t tensors, size_t bytes);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_KERNEL_ROOF_H_
