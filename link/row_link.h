#ifndef BANDONEON_LINK_ROW_LINK_H_
#define BANDONEON_LINK_ROW_LINK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"
#include "common/cluster/table_spec.h"
#include "compressors/codec.h"
#include "link/row_rule_spec.h"

namespace bdn {

// The longest payload of a frame about rows. A server takes no tables unless its max-frame-bytes
// allows as many, so that a worker may refuse a longer push before it is sent.
inline constexpr uint64_t kMaxRowsPayload = uint64_t{16} << 20;

// The facts that the workers and the server of a key of rows agree on; each makes them from the
// same catalogue. Immutable; thread-safe.
struct RowLink {
  struct Table {
    std::string name;
    uint64_t name_hash = 0;  // HashName of the name, for Draw
    TableSpec spec;
  };

  RowRuleSpec rule;
  std::shared_ptr<const Codec> push;  // of each row alone
  std::shared_ptr<const Codec> pull;
  size_t width = 0;
  size_t push_row_bytes = 0;  // of one row's payload, which has always that length
  size_t pull_row_bytes = 0;
  uint32_t bucket = 0;
  uint32_t buckets = 1;
  std::vector<Table> tables;  // by segment
};

// Makes the link of a key. `tables` are the declarations of its segments. InvalidArgument names the
// table and shows what is wrong with a spec. REQUIRES: the key is of kRows, as CheckDelta wants it.
absl::StatusOr<RowLink> MakeRowLink(const KeyEntry& entry,
                                    std::span<const TensorDeclaration* const> tables);

// Puts the specs of a table into canonical form, as CanonicalizeSpecs does those of a tensor: the
// pull codec rounds to nearest, because the value of a row must be the same for all that ask for
// it. InvalidArgument: a codec whose rows could not be read one without the others, or that keeps
// something from one step to the next. REQUIRES: kind is kRows.
absl::Status CanonicalizeTable(TensorDeclaration* table);

}  // namespace bdn

#endif  // BANDONEON_LINK_ROW_LINK_H_
