#ifndef BANDONEON_CLI_JOB_CHECK_H_
#define BANDONEON_CLI_JOB_CHECK_H_

#include <span>
#include <string>
#include <vector>

#include "cli/doctor_checks.h"

// The logic of `bandoneon check`: the order in which pairs are measured, and the verdicts about
// what was measured. It is pure.

namespace bdn::cli {

// The machines of a job's nodes. Nodes with equal numbers are on one machine.
struct JobPlaces {
  std::vector<std::string> hosts;  // the machines' names, by number
  std::vector<int> workers;        // the number of each worker's machine, by rank
  std::vector<int> servers;        // the number of each server's machine, by rank

  size_t num_pairs() const { return workers.size() * servers.size(); }
};

// A worker and a server that exchange data.
struct NodePair {
  int worker = 0;
  int server = 0;

  bool operator==(const NodePair&) const = default;
};
using PairRound = std::vector<NodePair>;

// Returns all pairs in the order in which PairRounds fills rounds best: by the difference of ranks.
std::vector<NodePair> AllPairs(const JobPlaces& places);
// Returns rounds, one after the other, in which each machine is part of one pair at most, so that
// no pair shares a link with another one. There are `most` rounds at most; pairs that find no place
// in them are left out. Deterministic: every worker computes the same rounds.
std::vector<PairRound> PairRounds(const JobPlaces& places, std::span<const NodePair> pairs,
                                  size_t most);

// The figures of one pair. A figure of 0 was not measured.
struct LinkFigures {
  double up = 0;          // bits a second from the worker to the server
  double down = 0;        // bits a second from the server to the worker
  double round_trip = 0;  // seconds that an exchange of 256 bytes takes
  double up_seconds = 0;  // that an exchange took by which `up` was measured
  double down_seconds = 0;
  double spread = 1;  // the best rate of several measurements by the worst, of one direction

  // Takes the better one of each figure, and widens the spread.
  void Improve(const LinkFigures& other);
};

// The figures of one machine. A figure of 0 was not measured.
struct MachineFigures {
  double memory = 0;      // bytes that one thread copies in a second of its CPU time
  double codec = 0;       // bytes of gradients encoded, summed and decoded in a second of CPU time
  double loopback = 0;    // bits a second of one TCP connection of the machine with itself
  double processors = 0;  // cores that the check may use
  double load = 0;        // the machine's load average of a minute, before the check
  double share = 0;       // CPU time by wall time of the thread that copied

  void Improve(const MachineFigures& other);  // load stays
};

// All that a check has measured.
struct JobFigures {
  JobPlaces places;
  std::vector<LinkFigures> links;        // of worker w and server s at w * servers + s
  std::vector<MachineFigures> machines;  // by number; without figures where there is no worker
  std::string codec;                     // the specs with which `codec` was measured
  // Bits a second of all workers together while all of them exchange with all servers at once, one
  // direction after the other.
  double all_up = 0;
  double all_down = 0;

  const LinkFigures& at(NodePair pair) const {
    return links[static_cast<size_t>(pair.worker) * places.servers.size() +
                 static_cast<size_t>(pair.server)];
  }
};

// A verdict about a part of a job, with the number of times by which it is worse than usual.
struct Verdict {
  Finding finding;
  std::string kind;       // "link", "round trip", "memory", "codec", "loopback", "busy", "together"
  std::string direction;  // of a link: "up", "down" or "both ways"; else empty
  int worker = -1;        // of a pair, worker and server are set; of all of a node's pairs one is
  int server = -1;
  int machine = -1;
  double factor = 0;
  bool is_final = false;  // whether to measure again would change nothing
};
// Returns the verdicts. What is compared is compared with what is alike: pairs of one machine with
// such pairs, pairs over the network with those; and with the median of three or more, or with the
// better one of two. A worker or a server whose pairs are all slow has one verdict.
std::vector<Verdict> JudgeJob(const JobFigures& figures);
// Returns the verdicts with those about pairs summed up as one, where they are more than a few.
std::vector<Verdict> SumUpPairs(const JobFigures& figures, std::vector<Verdict> verdicts);

// The parts of a job that are to be measured again before a verdict about them is told.
struct Suspects {
  std::vector<NodePair> pairs;
  std::vector<int> machines;

  bool IsEmpty() const { return pairs.empty() && machines.empty(); }
};
Suspects SuspectsOf(const JobPlaces& places, std::span<const Verdict> verdicts);

// Returns the median of some values, 0 of none; of an even number the mean of the two in the
// middle.
double MedianOf(std::vector<double> values);

// The sums of the links of workers' and of servers' machines, in bits a second of one direction:
// the lesser of them bounds what all can exchange at once.
struct LinkSums {
  double workers = 0;
  double servers = 0;
};
LinkSums SumsOfLinks(const JobFigures& figures, bool is_up);

// Returns 1 where a verdict is an error, else 0.
int CheckExitCode(std::span<const Verdict> verdicts);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_JOB_CHECK_H_
