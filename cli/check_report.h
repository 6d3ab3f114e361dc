#ifndef BANDONEON_CLI_CHECK_REPORT_H_
#define BANDONEON_CLI_CHECK_REPORT_H_

#include <span>
#include <string>

#include "cli/job_check.h"

namespace bdn::cli {

// Return a figure for people: "98.1 Mbit/s", "120 us".
std::string RateText(double bits_per_second);
std::string SecondsText(double seconds);

// Returns the figures and the verdicts for people. Of more than 16 workers or servers it shows the
// median and the worst ten pairs in place of all.
std::string CheckText(const JobFigures& figures, std::span<const Verdict> verdicts);
// Returns them as one line of JSON. A figure that was not measured is null.
std::string CheckJson(const JobFigures& figures, std::span<const Verdict> verdicts);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_CHECK_REPORT_H_
