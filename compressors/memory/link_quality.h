#ifndef BANDONEON_COMPRESSORS_MEMORY_LINK_QUALITY_H_
#define BANDONEON_COMPRESSORS_MEMORY_LINK_QUALITY_H_

#include "common/base/bytes.h"
#include "compressors/codec.h"

namespace bdn {

// How well one step of a link with a memory went, as sums of squares: u is what the step brought in, p
// what the codec was given (u and what was owed before), d what its payload decodes to, e = p - d what
// is owed now. Taken in float32 over runs of 1024 elements, in float64 across them: for people to look
// at, not for results.
struct LinkQuality {
  double input = 0;     // |u|^2
  double offered = 0;   // |p|^2
  double decoded = 0;   // |d|^2
  double residual = 0;  // |e|^2

  LinkQuality& operator+=(const LinkQuality& other);

  // |e| / |p|: 0 where nothing is left out, 1 where nothing is sent. A link on which it stays below 1
  // owes a bounded number of steps; one on which it stays above owes ever more. 0 where p and e are 0;
  // infinite or NaN where a sum overflowed.
  double ratio() const;
  // Of p and d; 0 where one of them is 0.
  double cosine() const;
  // |e| / |u|: as much is owed as so many steps like this one bring in. 0 where e is 0, infinite where
  // u alone is.
  double owed_steps() const;
};

// Of a segment whose EncodeFeedback has just written `payload`: g as it was then, the memory as that left
// it. Decodes once into working memory of the thread's, and takes five passes.
LinkQuality MeasureFeedback(const Codec& codec, const Feedback& after, ByteSpan payload);

// Of a segment whose EncodeDelta has just written `payload`, with the replica as that moved it.
// `before`, float32[w.n]: the weights before this step, which made w of them.
LinkQuality MeasureDelta(const Codec& codec, ConstView w, const float* before, const float* replica,
                         ByteSpan payload);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_LINK_QUALITY_H_
