#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_MALLOC_TUNING_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_MALLOC_TUNING_H_

namespace bdn {

// Keeps blocks of up to 32 MiB in malloc's own heaps instead of mapping and unmapping each: ZeroMQ
// allocates every body it receives, and fresh pages cost more than the copy. For main(), once,
// before threads start: it changes the whole process.
void TuneMallocForLargeBlocks();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_MALLOC_TUNING_H_
