#include "worker/long_waits.h"

namespace bdn {

std::string WhyTheWaitGoesOn(std::string_view waiting_for) {
  // A wait for a server has a limit, and needs no explanation.
  if (!waiting_for.starts_with("worker ") && !waiting_for.starts_with("host ")) return "";
  return ", which the job holds for alive: the wait goes on, for setting wait-timeout is for "
         "answers that a server owes. Where one rank works alone for long, as to evaluate, let all "
         "ranks call barrier() behind that";
}

}  // namespace bdn
