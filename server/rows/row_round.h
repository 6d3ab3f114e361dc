#ifndef BANDONEON_SERVER_ROWS_ROW_ROUND_H_
#define BANDONEON_SERVER_ROWS_ROW_ROUND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/base/buffer.h"
#include "link/row_link.h"
#include "server/round.h"
#include "server/rows/row_table.h"

namespace bdn {

// The ids that a worker wants with the reply of a step.
struct WantedIds {
  std::vector<uint64_t> ids;
  bool none = false;  // of means, of which it would get all otherwise
};
// The same by table of the key.
using WantedRows = std::vector<WantedIds>;
// Returns the bytes that they take.
size_t WantedBytes(const WantedRows& wanted);

// One worker's rows of a step, which were validated when they came.
struct RowPush {
  Buffer payload;  // still encoded; empty where the worker has nothing of the key
  WantedRows wanted;
};

// The open step of one key of rows. The roster, and who has pushed, is that of a Round in which
// every push is one without a payload; the rows are held encoded until all pushes are there. A
// value; not thread-safe.
class RowRound {
 public:
  const Round& roster() const { return roster_; }
  Round& roster() { return roster_; }
  bool is_open() const { return roster_.is_open(); }

  void Open(Step step, std::shared_ptr<const Places> places) {
    *this = RowRound();
    roster_.Open(step, std::move(places));
  }
  void Close() { *this = RowRound(); }
  // Takes a push. `contribution` has no payload. REQUIRES: as Round::Add.
  void Add(const KeyPlan& plan, Place place, Contribution contribution, RowPush push);

  // Returns whether no worker has anything of the key.
  bool is_all_absent() const { return num_payloads_ == 0; }
  // Adds up the rows of all workers, in the order of places. Nothing: nobody has the table.
  // REQUIRES: the round is complete, and finite.
  std::vector<std::optional<RowSums>> Sum(const RowLink& link) const;
  // Takes the ids that the worker at a place wants. REQUIRES: it has pushed.
  WantedRows TakeWanted(Place place) { return std::move(pushes_.at(place).wanted); }

  size_t bytes() const { return bytes_; }

 private:
  Round roster_;
  absl::btree_map<Place, RowPush> pushes_;
  size_t num_payloads_ = 0;
  size_t bytes_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_ROUND_H_
