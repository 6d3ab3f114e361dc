#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_MALLOC_TUNING_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_MALLOC_TUNING_H_

namespace bdn {

// Keeps blocks of up to 32 MiB in malloc's own heaps, where it would map and unmap each. ZeroMQ
// allocates every payload that it receives, and fresh pages cost more than the copy. To be called
// by main() once, before threads start: it changes the whole process.
void TuneMallocForLargeBlocks();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_MALLOC_TUNING_H_
