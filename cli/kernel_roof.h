#ifndef BANDONEON_CLI_KERNEL_ROOF_H_
#define BANDONEON_CLI_KERNEL_ROOF_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace bdn::cli {

// What the codecs alone allow an exchange: the program bandoneon-bench-roof, which makes the calls of
// one step (each worker's encode with its memory, the servers' sum and encode, each worker's decode)
// without transport or hand-over. Not thread-safe.
class KernelRoof {
 public:
  struct Options {
    int workers = 1;
    size_t tensors = 1;
    size_t bytes = 4;            // a tensor, fp32
    size_t partition_bytes = 4;  // of a key at most
    std::string push = "none";
    std::string pull = "none";
  };

  // Starts it. Null where it cannot be started; what it cannot measure it says itself, on standard
  // error, and has no steps.
  static std::unique_ptr<KernelRoof> Start(const Options& options);
  ~KernelRoof();
  KernelRoof(const KernelRoof&) = delete;
  KernelRoof& operator=(const KernelRoof&) = delete;

  struct Cost {
    double seconds;
    double cpu_seconds;
  };
  // One step, by as many threads as there are processors; nothing once it has ended.
  std::optional<Cost> Step();

 private:
  KernelRoof(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  const pid_t pid_;
  const int socket_;
};

// GB/s of one thread copying `tensors` blocks of `bytes`, bytes copied.
double MeasureMemcpy(size_t tensors, size_t bytes);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_KERNEL_ROOF_H_
