#ifndef BANDONEON_COMMON_BASE_CRC32C_H_
#define BANDONEON_COMMON_BASE_CRC32C_H_

#include <cstdint>

#include "common/base/bytes.h"

namespace bdn {

// CRC-32C (Castagnoli, reflected, as in iSCSI): Crc32c("123456789") == 0xE3069283. Uses the
// processor's instruction where there is one, three streams at a time.
uint32_t Crc32c(ByteSpan bytes);
// The table-driven form, the same values: what the fast one is tested against.
uint32_t Crc32cPortable(ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CRC32C_H_
