#include "compressors/fp16.h"

#include "compressors/dense_float.h"

namespace bdn {

std::shared_ptr<const Codec> MakeFp16() {
  return std::make_shared<DenseFloatCodec>(CodecId::kFp16, "fp16", DType::kFloat16,
                                           /*takes_float64=*/false);
}

}  // namespace bdn
