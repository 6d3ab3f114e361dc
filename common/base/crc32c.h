#ifndef BANDONEON_COMMON_BASE_CRC32C_H_
#define BANDONEON_COMMON_BASE_CRC32C_H_

#include <cstdint>
#include <optional>

#include "common/base/bytes.h"

namespace bdn {

// Returns the CRC-32C (Castagnoli, reflected, as in iSCSI) of the bytes: Crc32c("123456789") ==
// 0xE3069283. Uses the fastest method that the processor has: carry-less products of 512 bits, its
// CRC instruction on three streams at a time, or else a table.
uint32_t Crc32c(ByteSpan bytes);

// The methods of computing the CRC. All give the same values.
enum class Crc32cMethod {
  kTable,        // defines the values
  kInstruction,  // SSE 4.2
  kFolding,      // carry-less products, AVX-512; short runs go by the instruction
};
// Computes the CRC by one method, for tests; returns nothing where the processor lacks the method.
std::optional<uint32_t> Crc32cBy(Crc32cMethod method, ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CRC32C_H_
