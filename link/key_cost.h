#ifndef BANDONEON_LINK_KEY_COST_H_
#define BANDONEON_LINK_KEY_COST_H_

#include <cstddef>
#include <cstdint>

#include "common/cluster/catalogue.h"
#include "link/key_codecs.h"
#include "link/rule_spec.h"

namespace bdn {

// The memory that one key costs its server, in bytes. With n elements, S the bytes of a sum (4 n; 8
// n for float64), W workers, P and R the longest payload of a push and of a reply:
//
//   state    4 n for each of: weights, moments (RuleSpec::moments of them), replica (pull
//            delta(...)), residual (pull ef(...))
//   reply    R, kept until every worker has pushed the next step; 0 where it is the weights
//   open     an open round whose pushes come in rank order: (W - 1) P, but no more than 9/8 S + P,
//            with P for S where payloads add up undecoded and P is larger
//   late     the bytes that may wait besides when pushes come in another order: up to (W - 1) P in
//            all, with those of `open`
//
// A broadcast has a value and the next one. A key of rows has the rows that are expected. Memory
// that a step needs only while a thread works on it (one sum a shard, payloads on their way) is not
// counted.
struct KeyCost {
  uint64_t state = 0;
  uint64_t reply = 0;
  uint64_t open = 0;
  uint64_t late = 0;

  // Returns the bytes that are held when pushes come in rank order.
  uint64_t in_order() const { return state + reply + open; }
};

KeyCost CostOfKey(const KeyEntry& key, const RuleSpec& rule, const KeyCodecs& codecs,
                  size_t workers);

}  // namespace bdn

#endif  // BANDONEON_LINK_KEY_COST_H_
