#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEMORY_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/mutex.h"

namespace bdn {

// Ranges of addresses at which a provider may still write late, because a peer had begun to.
// Nothing else may lie there before the endpoint is closed, so the ranges stay reserved, without
// pages. Thread-safe.
class RetiredAddresses {
 public:
  RetiredAddresses() = default;
  // Gives the addresses back. REQUIRES: the endpoint is closed, so the owner of the last share must
  // know that.
  ~RetiredAddresses();
  RetiredAddresses(const RetiredAddresses&) = delete;
  RetiredAddresses& operator=(const RetiredAddresses&) = delete;

  // Takes the pages away and keeps the addresses.
  void Retire(MutableByteSpan bytes);

 private:
  Mutex mu_;
  std::vector<MutableByteSpan> ranges_ ABSL_GUARDED_BY(mu_);
};

// A block of zeroed pages of its own. All its pages are there from the beginning, and its addresses
// are retired by the destructor.
class FabricMemory {
 public:
  // ResourceExhausted: the system has no more memory.
  static absl::StatusOr<std::unique_ptr<FabricMemory>> Make(
      size_t bytes, std::shared_ptr<RetiredAddresses> retired);
  ~FabricMemory() { retired_->Retire(bytes_); }
  FabricMemory(const FabricMemory&) = delete;
  FabricMemory& operator=(const FabricMemory&) = delete;

  std::byte* data() const { return bytes_.data(); }
  MutableByteSpan span() const { return bytes_; }

 private:
  FabricMemory(MutableByteSpan bytes, std::shared_ptr<RetiredAddresses> retired)
      : bytes_(bytes), retired_(std::move(retired)) {}

  const MutableByteSpan bytes_;
  const std::shared_ptr<RetiredAddresses> retired_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEMORY_H_
