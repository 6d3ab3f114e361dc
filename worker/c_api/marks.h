#ifndef BANDONEON_WORKER_C_API_MARKS_H_
#define BANDONEON_WORKER_C_API_MARKS_H_

#include <span>

#include "absl/status/status.h"
#include "worker/c_api/bandoneon.h"
#include "worker/client.h"

namespace bdn {

// Checks marks of a program and gives them to the client's recorder; without one it does nothing.
// InvalidArgument names the mark, and then none was recorded.
absl::Status RecordMarks(Client* client, std::span<const bdn_mark> marks);

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_MARKS_H_
