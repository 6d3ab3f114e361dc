#include "common/transport/zmq/malloc_tuning.h"

#include <malloc.h>

namespace bdn {

void TuneMallocForLargeBlocks() {
  // The largest threshold glibc takes is half a heap: 32 MiB on 64-bit machines.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  // Heaps grow in large pieces and keep what is freed, so that pages are not given back between two
  // steps.
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
}

}  // namespace bdn
