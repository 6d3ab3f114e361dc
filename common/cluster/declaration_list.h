#ifndef BANDONEON_COMMON_CLUSTER_DECLARATION_LIST_H_
#define BANDONEON_COMMON_CLUSTER_DECLARATION_LIST_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// A worker's list of tensors as it goes to the scheduler: a digest, and the list itself only where it
// is wanted, in parts. So the scheduler reads and keeps one list of however many workers.

inline constexpr size_t kMaxDigestBytes = 32;

// The same for the same tensors in any order; of two different lists it differs, but for accidents
// that one need not expect (128 bits).
std::string DigestOf(std::span<const TensorDeclaration> tensors);

// "elements=10, push=none": what `mine` says where it differs from `other`; empty where they agree.
std::string DescribeDifference(const TensorDeclaration& mine, const TensorDeclaration& other);
// InvalidArgument where two lists are not of the same tensors, in any order, with the same facts: names
// the tensor and both who declared them ("worker 0").
absl::Status CompareDeclarations(std::span<const TensorDeclaration> a, const std::string& name_of_a,
                                 std::span<const TensorDeclaration> b,
                                 const std::string& name_of_b);

// The failure of a declaration; where it is about `tensor`, it says that those of `done` are done with what
// exchanged it and those of `others` are not, and what to do.
absl::Status WithAdviceToClose(const absl::Status& failure, const std::string& tensor,
                               const std::string& done, const std::string& others);

// What one call says of the list.
struct DeclarationPart {
  uint64_t number = 0;                     // tells it from the worker's next one; 0: nothing does
  std::string digest;                      // of the whole list
  uint32_t count = 0;                      // tensors of the whole list
  uint32_t first = 0;                      // place in it of tensors[0]
  std::vector<TensorDeclaration> tensors;  // may be none
};

struct DeclarationAnswer {
  // The list is wanted from this place on: nothing is declared yet. Else the declaration is done.
  std::optional<uint32_t> wanted_from;
  PlacementVersion version;  // once done: the first placement that has all of the tensors
};

// Says `tensors` by as many calls as it takes, and returns the answer to the last. `begins_with_list`
// is of the worker of rank 0, whose list is wanted anyway. InvalidArgument as CheckDeclarations,
// before any call.
absl::StatusOr<DeclarationAnswer> SendDeclaration(
    std::span<const TensorDeclaration> tensors, bool begins_with_list,
    const std::function<absl::StatusOr<DeclarationAnswer>(DeclarationPart)>& call);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_DECLARATION_LIST_H_
