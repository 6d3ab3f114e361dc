#include "server/rows/initial_row.h"

#include <algorithm>

#include "common/base/draw.h"
#include "common/wire/packed_ids.h"

namespace bdn {
namespace {

// The uniforms whose sum stands for a normal number; their variance adds up to 1.
constexpr uint32_t kAddends = 12;

float Uniform(const Draw& draw, uint32_t j) {
  return static_cast<float>(draw.Word(j) >> 8) * 0x1p-24f;
}

}  // namespace

void WriteInitialRow(const InitialValues& of, uint64_t id, std::span<float> row) {
  const auto value = static_cast<float>(of.spec.value);
  if (of.spec.init == TableSpec::Init::kZeros || of.spec.init == TableSpec::Init::kConstant) {
    std::ranges::fill(row, of.spec.init == TableSpec::Init::kZeros ? 0.0f : value);
    return;
  }
  const Draw draw({.run_seed = of.run_seed,
                   .tensor_name_hash = of.name_hash ^ Mix64(id + 1),
                   .purpose = DrawPurpose::kInitialRow});
  for (uint32_t i = 0; i < row.size(); ++i) {
    if (of.spec.init == TableSpec::Init::kUniform) {
      row[i] = value * (2.0f * Uniform(draw, i) - 1.0f);
      continue;
    }
    float sum = 0;
    for (uint32_t j = 0; j < kAddends; ++j) sum += Uniform(draw, kAddends * i + j);
    row[i] = value * (sum - 6.0f);
  }
}

}  // namespace bdn
