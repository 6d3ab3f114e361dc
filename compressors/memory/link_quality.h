#ifndef BANDONEON_COMPRESSORS_MEMORY_LINK_QUALITY_H_
#define BANDONEON_COMPRESSORS_MEMORY_LINK_QUALITY_H_

#include "common/base/bytes.h"
#include "compressors/codec.h"

namespace bdn {

// A measure of how well one step of a link with error feedback or delta went, as sums of squares: u
// is the input of this step, p the input of the codec (u and the error owed from before), d the
// decoded payload, and e = p - d the error owed now. The sums are in float32 over runs of 1024
// elements and in float64 across them: they are for people to look at, not for results.
struct LinkQuality {
  double input = 0;     // |u|^2
  double offered = 0;   // |p|^2
  double decoded = 0;   // |d|^2
  double residual = 0;  // |e|^2

  LinkQuality& operator+=(const LinkQuality& other);

  // Returns |e| / |p|: 0 where nothing is left out, 1 where nothing is sent. A link on which it
  // stays below 1 owes a bounded number of steps; one on which it stays above 1 owes ever more. It
  // is 0 where p and e are 0, and infinite or NaN where a sum overflowed.
  double ratio() const;
  // Returns the cosine of the angle between p and d, or 0 where one of them is 0.
  double cosine() const;
  // Returns |e| / |u|: the link owes as much as this many steps like this one bring in. It is 0
  // where e is 0, and infinite where u alone is 0.
  double owed_steps() const;
};

// Measures a segment whose EncodeFeedback has just written `payload`, with g as it was then, and
// the residual and momentum as that call left them. Decodes once into the thread's working memory,
// and takes five passes.
LinkQuality MeasureFeedback(const Codec& codec, const Feedback& after, ByteSpan payload);

// Measures a segment whose EncodeDelta has just written `payload`, with the replica as that call
// left it. `before`, float32[w.n], holds the weights before this step, which made w of them.
LinkQuality MeasureDelta(const Codec& codec, ConstView w, const float* before, const float* replica,
                         ByteSpan payload);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_LINK_QUALITY_H_
