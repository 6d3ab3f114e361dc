#include "cli/link_meter.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "common/base/status.h"

namespace bdn::cli {

// A row of the table below.
struct LinkMeter::Kind {
  uint64_t elements;  // float32
  const char* push;
  const char* pull;
  size_t count;  // for each server
};

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kTinyElements = 64;
constexpr uint64_t kBlockElements = uint64_t{64} << 8;  // 64 KiB, from which codecs are used
constexpr uint64_t kChunkElements = uint64_t{1} << 18;  // 1 MiB
constexpr int kMostRoundTrips = 21;
constexpr size_t kMostRepetitions = 9;
constexpr int kTogether = 3;
constexpr double kStandingStill = 1;  // seconds
// The scheduler levels the bytes of servers, so a few calls bring every server its share.
constexpr int kMostDeclarations = 64;
// The direction that is not measured carries less than this part of the other one.
constexpr double kLeastApart = 0.5;

// Random elements cost neither end time: no value is looked at to choose them.
constexpr char kAll[] = "none";
constexpr char kSixteenth[] = "randomk(ratio=0.0625)";
constexpr char kThousandth[] = "randomk(ratio=0.0009765625)";

absl::Status Check(int code) { return code == BDN_OK ? absl::OkStatus() : LastError(code); }

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bdn_push PushOf(uint32_t tensor, float* data) {
  bdn_push push = {};
  push.struct_size = sizeof(push);
  push.tensor = tensor;
  push.data = data;
  push.flags = data == nullptr ? BDN_ABSENT : 0;
  push.weight = 1;
  push.loss_scale = 1;
  return push;
}

}  // namespace

double LinkMeter::BytesOf(Size size) {
  constexpr double kBytes[] = {4 << 10, 64 << 10, 1 << 20, kChunksInFlight << 20};
  return kBytes[size];
}

absl::Status LinkMeter::Prepare() {
  constexpr Kind kKinds[] = {
      {kTinyElements, kAll, kAll, 1},
      {kBlockElements, kSixteenth, kThousandth, 1},
      {kBlockElements, kAll, kThousandth, 1},
      {kChunkElements, kAll, kThousandth, kChunksInFlight},
      {kBlockElements, kThousandth, kSixteenth, 1},
      {kBlockElements, kThousandth, kAll, 1},
      {kChunkElements, kThousandth, kAll, kChunksInFlight},
  };
  std::vector<std::vector<std::vector<uint32_t>>> found;  // by kind and server
  std::vector<uint32_t> spare;
  for (const Kind& kind : kKinds) {
    BDN_RETURN_IF_ERROR(DeclareKind(kind, &found.emplace_back(), &spare));
  }
  BDN_RETURN_IF_ERROR(Check(bdn_retire(worker_, spare.data(), spare.size())));
  for (size_t s = 0; s < static_cast<size_t>(servers_); ++s) {
    const auto way = [&](size_t first) {
      const std::vector<uint32_t>& chunks = found[first + 2][s];
      return Way{found[first][s], found[first + 1][s], {chunks[0]}, chunks};
    };
    tensors_.push_back({.tiny = found[0][s][0], .up = way(1), .down = way(4)});
  }
  return absl::OkStatus();
}

absl::Status LinkMeter::DeclareKind(const Kind& kind, std::vector<std::vector<uint32_t>>* by_server,
                                    std::vector<uint32_t>* spare) {
  by_server->resize(static_cast<size_t>(servers_));
  const int32_t rank = bdn_rank(worker_);
  for (int call = 0; call < kMostDeclarations; ++call) {
    size_t most = 0;
    for (const auto& tensors : *by_server) most = std::max(most, kind.count - tensors.size());
    if (most == 0) return absl::OkStatus();
    const size_t count = most * static_cast<size_t>(servers_);
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      names.push_back(absl::StrFormat("check/worker %d/%d", rank, declared_++));
    }
    std::vector<bdn_declaration> declarations(count);
    for (size_t i = 0; i < count; ++i) {
      bdn_declaration& declaration = declarations[i];
      declaration.struct_size = sizeof(declaration);
      declaration.name = names[i].c_str();
      declaration.elements = kind.elements;
      declaration.dtype = BDN_FLOAT32;
      declaration.push = kind.push;
      declaration.pull = kind.pull;
      declaration.ranks = &rank;
      declaration.num_ranks = 1;
    }
    std::vector<uint32_t> ids(count);
    BDN_RETURN_IF_ERROR(
        Check(bdn_declare(worker_, declarations.data(), count, ids.data(), kCheckTimeoutSeconds)));
    for (const uint32_t id : ids) {
      int32_t server = -1;
      size_t parts = 0;
      BDN_RETURN_IF_ERROR(Check(bdn_servers_of(worker_, id, &server, 1, &parts)));
      if (parts != 1) {
        return FailedPrecondition(
            "the job cuts tensors of %d KiB into %d parts (setting partition-bytes), which lie at "
            "several servers: run the check with partition-bytes of 1MiB or more",
            kind.elements * sizeof(float) >> 10, parts);
      }
      if (server < 0 || server >= servers_) {
        return FailedPrecondition("a server of the job was lost while it was checked");
      }
      auto& tensors = (*by_server)[static_cast<size_t>(server)];
      (tensors.size() < kind.count ? tensors : *spare).push_back(id);
      known_[id].elements = kind.elements;
    }
  }
  const auto least =
      std::min_element(by_server->begin(), by_server->end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
  // Where servers take over from each other the job goes on, and places nothing at a lost one.
  return Unavailable(
      "server %d was lost while the job was checked, or may hold nothing: the scheduler placed too "
      "few tensors there in %d declarations",
      least - by_server->begin(), kMostDeclarations);
}

absl::StatusOr<std::pair<double, double>> LinkMeter::Traffic() const {
  const Json stats = Json::parse(StatsOf(worker_), nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name) {
    return stats.is_object() && stats.contains(name) && stats[name].is_number()
               ? stats[name].get<double>()
               : -1;
  };
  const std::pair<double, double> bytes = {number("bytes_pushed"), number("bytes_pulled")};
  if (bytes.first < 0 || bytes.second < 0) return Internal("the worker counts no bytes");
  return bytes;
}

absl::StatusOr<LinkMeter::Timed> LinkMeter::Exchange(std::span<const uint32_t> tensors) {
  uint64_t elements = 0;
  for (const uint32_t tensor : tensors) elements += known_[tensor].elements;
  // Zeros stay zeros, whatever the codecs leave out or scale.
  if (buffer_.size() < elements) buffer_.resize(elements);
  std::vector<bdn_push> pushes;
  float* data = buffer_.data();
  for (const uint32_t tensor : tensors) {
    pushes.push_back(PushOf(tensor, data));
    data += known_[tensor].elements;
  }
  std::vector<bdn_ticket> tickets(pushes.size());
  BDN_ASSIGN_OR_RETURN(const auto before, Traffic());
  const double begin = Now();
  BDN_RETURN_IF_ERROR(
      Check(bdn_push_pull_all(worker_, pushes.data(), pushes.size(), tickets.data(), nullptr)));
  BDN_RETURN_IF_ERROR(Check(bdn_wait_all(worker_, tickets.data(), tickets.size(),
                                         kCheckTimeoutSeconds, nullptr, nullptr)));
  const double end = Now();
  const double seconds = end - begin;
  BDN_ASSIGN_OR_RETURN(const auto after, Traffic());
  for (const uint32_t tensor : tensors) {
    if (++known_[tensor].steps <= highest_step_) continue;
    highest_step_ = known_[tensor].steps;
    rose_ = end;
  }
  return Timed{std::max(seconds, 1e-9), after.first - before.first, after.second - before.second};
}

absl::Status LinkMeter::KeepStepsRising(uint32_t tensor) {
  if (Now() - rose_ < kStandingStill) return absl::OkStatus();
  const uint64_t before = highest_step_;
  while (highest_step_ == before) BDN_RETURN_IF_ERROR(Exchange({&tensor, 1}).status());
  return absl::OkStatus();
}

absl::Status LinkMeter::Forget(std::span<const uint32_t> tensors) {
  std::vector<bdn_push> pushes;
  for (const uint32_t tensor : tensors) pushes.push_back(PushOf(tensor, nullptr));
  std::vector<bdn_ticket> tickets(pushes.size());
  BDN_RETURN_IF_ERROR(
      Check(bdn_push_pull_all(worker_, pushes.data(), pushes.size(), tickets.data(), nullptr)));
  return Check(bdn_wait_all(worker_, tickets.data(), tickets.size(), kCheckTimeoutSeconds, nullptr,
                            nullptr));
}

absl::Status LinkMeter::CheckIsThere(int server) const {
  int32_t now = -1;
  size_t parts = 0;
  BDN_RETURN_IF_ERROR(
      Check(bdn_servers_of(worker_, tensors_[static_cast<size_t>(server)].tiny, &now, 1, &parts)));
  if (now == server) return absl::OkStatus();
  return Unavailable("server %d was lost while the job was checked", server);
}

absl::StatusOr<LinkFigures> LinkMeter::Measure(int server, double seconds) {
  const Tensors& tensors = tensors_[static_cast<size_t>(server)];
  LinkFigures figures;
  BDN_ASSIGN_OR_RETURN(const Timed tiny,
                       MeasureRoundTrip(tensors.tiny, 0.2 * seconds, &figures.round_trip));
  const double each = 0.4 * seconds;
  BDN_ASSIGN_OR_RETURN(const WayFigures up, MeasureWay(tensors, true, each, tiny));
  BDN_ASSIGN_OR_RETURN(const WayFigures down, MeasureWay(tensors, false, each, tiny));
  figures.up = up.rate;
  figures.up_seconds = up.seconds;
  figures.down = down.rate;
  figures.down_seconds = down.seconds;
  BDN_RETURN_IF_ERROR(Forget(tensors.down[kChunks]));
  // A lost server's tensors are summed by another one, whose figures these are not to be.
  BDN_RETURN_IF_ERROR(CheckIsThere(server));
  return figures;
}

absl::StatusOr<LinkMeter::Timed> LinkMeter::MeasureRoundTrip(uint32_t tensor, double seconds,
                                                             double* median) {
  std::vector<double> times;
  const double end = Now() + seconds;
  Timed timed;
  do {
    BDN_ASSIGN_OR_RETURN(timed, Exchange({&tensor, 1}));
    times.push_back(timed.seconds);
  } while (times.size() < kMostRoundTrips && Now() + times.back() < end);
  timed.seconds = *std::min_element(times.begin(), times.end());
  *median = MedianOf(std::move(times));
  return timed;
}

absl::StatusOr<LinkMeter::WayFigures> LinkMeter::MeasureWay(const Tensors& tensors, bool is_up,
                                                            double seconds, const Timed& tiny) {
  const Way& way = is_up ? tensors.up : tensors.down;
  const double end = Now() + seconds;
  std::vector<double> rates;
  std::vector<double> times;
  int size = kSmall;
  while (true) {
    BDN_RETURN_IF_ERROR(KeepStepsRising(tensors.tiny));
    BDN_ASSIGN_OR_RETURN(const Timed timed, Exchange(way[static_cast<size_t>(size)]));
    const double bytes = is_up ? timed.up_bytes : timed.down_bytes;
    const double others = is_up ? timed.down_bytes : timed.up_bytes;
    if (others > kLeastApart * bytes) {
      return FailedPrecondition(
          "tensors of 64 KiB go uncompressed in this job (setting min-compress-bytes), so the "
          "check cannot tell one direction from the other: run it with min-compress-bytes of 64KiB "
          "or less");
    }
    // The small exchange has the same way there and back, with its own few bytes on it.
    const double more_seconds = timed.seconds - tiny.seconds;
    const double more_bytes = bytes + others - tiny.up_bytes - tiny.down_bytes;
    rates.push_back(more_seconds > timed.seconds / 2 ? 8 * more_bytes / more_seconds
                                                     : 8 * bytes / timed.seconds);
    times.push_back(timed.seconds);
    // The next size is to find time, by the best rate so far; else this size it is. One large
    // exchange says more than many small ones, whose time is that of wakes and waits.
    const double left = end - Now();
    if (size + 1 < kNumSizes) {
      const double best = *std::max_element(rates.begin(), rates.end());
      const double next = 8 * BytesOf(static_cast<Size>(size + 1)) / best + tiny.seconds;
      if (next <= left) {
        ++size;
        rates.clear();
        times.clear();
        continue;
      }
    }
    if (rates.size() >= kMostRepetitions || timed.seconds > left) break;
  }
  return WayFigures{MedianOf(std::move(rates)), MedianOf(std::move(times))};
}

absl::StatusOr<double> LinkMeter::MeasureAll(Size size, bool is_up,
                                             const std::function<absl::Status()>& meet) {
  std::vector<uint32_t> all;
  for (const Tensors& tensors : tensors_) {
    const std::vector<uint32_t>& some = (is_up ? tensors.up : tensors.down)[size];
    all.insert(all.end(), some.begin(), some.end());
  }
  std::vector<double> rates;
  for (int i = 0; i < kTogether; ++i) {
    BDN_RETURN_IF_ERROR(meet());
    BDN_ASSIGN_OR_RETURN(const Timed timed, Exchange(all));
    rates.push_back(8 * (is_up ? timed.up_bytes : timed.down_bytes) / timed.seconds);
  }
  for (int server = 0; server < servers_; ++server) BDN_RETURN_IF_ERROR(CheckIsThere(server));
  return MedianOf(std::move(rates));
}

}  // namespace bdn::cli
