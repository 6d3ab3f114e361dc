#ifndef BANDONEON_COMMON_BASE_FAULT_POINT_H_
#define BANDONEON_COMMON_BASE_FAULT_POINT_H_

#include <atomic>

namespace bdn {

// The names of all places at which tests let a process die, stand still or lose its connections.
// Several places may share a name. tests/system/fault_matrix_test.py reaches each of them.
inline constexpr const char* kFaultPoints[] = {
    "encode.done",      // a worker has encoded a push, and not sent it
    "push.held",        // a server has added a push to a round that waits for others
    "round.closed",     // a server has closed a round, and told nobody
    "reply.some",       // a server has sent a reply to some of the workers
    "snapshot.half",    // a server has made a snapshot, or a worker has it and has not kept it
    "report.some",      // some of the workers have reported a key whose server was lost
    "rebuild.said",     // a server has told a worker, or a worker was told, how a key is rebuilt
    "init.half",        // a server has set state, and not acknowledged it
    "redo.half",        // some of the steps of a key that is rebuilt are made again
    "journal.written",  // the scheduler has logged an event, and not acted on it
    "epoch.some",       // some of the nodes know a new membership
    "admit.some",       // some of the nodes know who else is in the job
    "leave.some",       // some of the workers are leaving
};

// The hook that FaultPoint calls. It is the one global that changes: nothing sets it but the
// constructor of a test's executable (tests/system/faulty/faults.cc), before any thread starts.
using FaultHook = void (*)(const char* point);
inline std::atomic<FaultHook> fault_hook{nullptr};

// Marks a place of kFaultPoints. In programs that are no tests it costs one load.
inline void FaultPoint(const char* point) {
  // Relaxed: the hook was set before any thread began.
  if (const FaultHook hook = fault_hook.load(std::memory_order_relaxed)) hook(point);
}

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_FAULT_POINT_H_
