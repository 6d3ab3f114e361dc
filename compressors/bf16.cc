#include "compressors/bf16.h"

#include "compressors/dense_float.h"

namespace bdn {

std::shared_ptr<const Codec> MakeBf16() {
  return std::make_shared<DenseFloatCodec>(CodecId::kBf16, "bf16", DType::kBFloat16,
                                           /*takes_float64=*/false);
}

}  // namespace bdn
