#include "compressors/none.h"

#include "compressors/dense_float.h"

namespace bdn {

std::shared_ptr<const Codec> MakeNone() {
  return std::make_shared<DenseFloatCodec>(CodecId::kNone, "none", DType::kFloat32,
                                           /*takes_float64=*/true);
}

}  // namespace bdn
