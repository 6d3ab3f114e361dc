#ifndef BANDONEON_COMMON_BASE_CRC32C_H_
#define BANDONEON_COMMON_BASE_CRC32C_H_

#include <cstdint>
#include <optional>

#include "common/base/bytes.h"

namespace bdn {

// CRC-32C (Castagnoli, reflected, as in iSCSI): Crc32c("123456789") == 0xE3069283. Uses
// what the processor has: products without carry of 512 bits, or its instruction, three streams at a
// time.
uint32_t Crc32c(ByteSpan bytes);

// One way of it, all the same values, for tests; nothing where the processor does not have it.
enum class Crc32cMethod {
  kTable,        // defines the values
  kInstruction,  // SSE 4.2
  kFolding,      // products without carry, AVX-512; short runs by the instruction
};
std::optional<uint32_t> Crc32cBy(Crc32cMethod method, ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CRC32C_H_
