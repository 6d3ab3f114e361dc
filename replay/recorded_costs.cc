#include "replay/recorded_costs.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "common/transport/link_schedule.h"
#include "common/wire/frame.h"

namespace bdn {
namespace {

class CostMeter {
 public:
  CostMeter(const JobTrace& job, const ExchangePlaces& places, ReplayModel* model)
      : job_(job), places_(places), model_(*model) {}

  void Measure() {
    MeasureWakes();
    EstimateRates();
    Calibrate();
  }

 private:
  // The ends of the tasks of a pool of threads.
  struct PoolTimes {
    std::vector<int64_t> ends;

    void Sort() { std::sort(ends.begin(), ends.end()); }
    // Returns how long a task that was queued at `queued`, and begun at `begun`, waited behind the
    // last task that ended before it. Of several tasks that wait for one thread that wakes late,
    // only the first one has all of that time: a replay adds up what they have.
    int64_t Unexplained(int64_t queued, int64_t begun) const {
      const auto ended = std::upper_bound(ends.begin(), ends.end(), begun);
      const int64_t since = ended == ends.begin() ? queued : std::max(queued, *std::prev(ended));
      return std::max<int64_t>(0, begun - since);
    }
    // Returns whether a task ended between these two times.
    bool WasBusyBetween(int64_t queued, int64_t begun) const {
      const auto ended = std::upper_bound(ends.begin(), ends.end(), begun);
      return ended != ends.begin() && *std::prev(ended) > queued;
    }
  };

  // Splits what exchanges waited for threads into what a replay finds out anew, because all threads
  // were busy, and the rest: a free thread took so long to begin.
  void MeasureWakes() {
    std::vector<PoolTimes> pools(model_.workers.size());
    std::map<std::pair<uint32_t, uint32_t>, PoolTimes> shards;
    std::vector<PoolTimes> sends(model_.workers.size());
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      const KeyModel& key = model_.keys[CostsAt(place).key];
      if (key.value_bytes > kReplayShortKey) {
        pools[place.worker].ends.push_back(exchange.At(ExchangePoint::kSending));
        pools[place.worker].ends.push_back(exchange.At(ExchangePoint::kDecoded));
        sends[place.worker].ends.push_back(
            std::max(exchange.At(ExchangePoint::kSending), exchange.At(ExchangePoint::kSent)));
      }
      if (exchange.server < 0) continue;
      const bool closes = exchange.last_worker == static_cast<int32_t>(exchange.worker);
      shards[{key.server, key.shard}].ends.push_back(
          exchange.At(closes ? ExchangePoint::kReplied : ExchangePoint::kAccepted));
    }
    for (PoolTimes& pool : pools) pool.Sort();
    for (PoolTimes& pool : sends) pool.Sort();
    for (auto& [shard, pool] : shards) pool.Sort();
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      ExchangeCosts& costs = CostsAt(place);
      const KeyModel& key = model_.keys[costs.key];
      const bool is_short = key.value_bytes <= kReplayShortKey;
      const int64_t queued = exchange.At(ExchangePoint::kQueued);
      const int64_t encoding = exchange.At(ExchangePoint::kEncoding);
      const int64_t here = exchange.At(ExchangePoint::kReplyHere);
      const int64_t decoding = exchange.At(ExchangePoint::kDecoding);
      if (is_short) {
        // No pool is in between.
        costs.encode_wake_ns = std::max<int64_t>(0, encoding - queued);
        costs.decode_wake_ns = std::max<int64_t>(0, decoding - here);
      } else {
        const PoolTimes& pool = pools[place.worker];
        // It may have waited for room among the bytes in flight.
        costs.encode_wake_ns = std::min(pool.Unexplained(queued, encoding),
                                        sends[place.worker].Unexplained(queued, encoding));
        costs.decode_wake_ns = pool.Unexplained(here, decoding);
      }
      if (exchange.server < 0) continue;
      const PoolTimes& shard = shards[{key.server, key.shard}];
      const int64_t arrived = exchange.At(ExchangePoint::kArrived);
      const int64_t taken = exchange.At(ExchangePoint::kTaken);
      (shard.WasBusyBetween(arrived, taken) ? costs.accept_gap_ns : costs.accept_wake_ns) =
          shard.Unexplained(arrived, taken);
    }
  }

  // The frames of one direction, by the time at which they were given to the transport.
  struct FrameTime {
    int64_t given;
    int64_t arrived;
    uint64_t bytes;
  };

  // Returns the bytes a second of the longest stretches of time in which a frame was on its way: at
  // least what a link carried. 0 where too little went over it.
  static double BusyRate(std::vector<FrameTime> frames) {
    constexpr uint64_t kLeastBytes = 256 << 10;
    std::sort(frames.begin(), frames.end(),
              [](const FrameTime& a, const FrameTime& b) { return a.given < b.given; });
    double best = 0;
    for (size_t i = 0; i < frames.size();) {
      int64_t end = frames[i].arrived;
      const int64_t begin = frames[i].given;
      uint64_t bytes = 0;
      for (; i < frames.size() && frames[i].given <= end; ++i) {
        end = std::max(end, frames[i].arrived);
        bytes += frames[i].bytes;
      }
      if (bytes < kLeastBytes || end <= begin) continue;
      best = std::max(best, static_cast<double>(bytes) / (static_cast<double>(end - begin) * 1e-9));
    }
    return best;
  }

  // Estimates the rate of links that no setting tells: a node's link has the greater rate that one
  // of its two directions was seen to carry.
  void EstimateRates() {
    if (model_.has_link_rate) return;
    struct Frames {
      std::vector<FrameTime> pushes;
      std::vector<FrameTime> replies;
    };
    std::vector<Frames> by_worker(model_.workers.size());
    std::vector<Frames> by_server(model_.servers.size());
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      if (exchange.server < 0) continue;
      const uint32_t server = model_.keys[CostsAt(place).key].server;
      const FrameTime push{exchange.At(ExchangePoint::kSending),
                           exchange.At(ExchangePoint::kArrived),
                           kHeaderBytes + exchange.push_bytes};
      const FrameTime reply{exchange.At(ExchangePoint::kReplied),
                            exchange.At(ExchangePoint::kReplyHere),
                            kHeaderBytes + exchange.reply_bytes};
      for (Frames* const frames : {&by_worker[place.worker], &by_server[server]}) {
        frames->pushes.push_back(push);
        frames->replies.push_back(reply);
      }
    }
    const auto rate_of = [](Frames* frames) {
      return std::max(BusyRate(std::move(frames->pushes)), BusyRate(std::move(frames->replies)));
    };
    for (size_t i = 0; i < by_worker.size(); ++i) {
      model_.workers[i].link_rate = rate_of(&by_worker[i]);
    }
    for (size_t i = 0; i < by_server.size(); ++i) {
      model_.servers[i].link_rate = rate_of(&by_server[i]);
    }
  }

  // One direction of a link, as in the replay.
  struct CalibratedLink {
    explicit CalibratedLink(double rate) : has_rate(rate > 0), schedule(has_rate ? rate : 1) {}
    int64_t Depart(int64_t now, uint64_t bytes) {
      if (!has_rate) return now;
      return absl::ToUnixNanos(schedule.Depart(absl::FromUnixNanos(now), kHeaderBytes + bytes));
    }
    int64_t Arrive(int64_t now, uint64_t bytes) {
      if (!has_rate) return now;
      return absl::ToUnixNanos(schedule.Arrive(absl::FromUnixNanos(now), kHeaderBytes + bytes));
    }
    bool has_rate;
    LinkSchedule schedule;
  };

  // A frame on its way, for finding out what it took beyond the links' rates.
  struct Travel {
    uint32_t exchange = 0;  // of the job
    ExchangePlace place;
    int64_t given = 0;
    int64_t left = 0;  // as its sender has recorded it
    int64_t departs = 0;
  };

  ExchangeCosts& CostsAt(const ExchangePlace& place) {
    return model_.workers[place.worker].steps[place.step].exchanges[place.exchange];
  }

  void Calibrate() {
    std::vector<Travel> pushes;
    std::vector<Travel> replies;
    for (const auto& [index, place] : places_) {
      const Exchange& exchange = job_.exchanges[index];
      const int64_t sending = exchange.At(ExchangePoint::kSending);
      int64_t sent = exchange.At(ExchangePoint::kSent);
      if (sent == kNoTime) sent = sending;
      pushes.push_back({index, place, sending, sent, 0});
      if (exchange.server < 0) continue;
      const int64_t replied = exchange.At(ExchangePoint::kReplied);
      int64_t reply_sent = exchange.At(ExchangePoint::kReplySent);
      if (reply_sent == kNoTime) reply_sent = replied;
      replies.push_back({index, place, replied, reply_sent, 0});
    }
    const auto by_left = [](const Travel& a, const Travel& b) {
      return std::tie(a.left, a.exchange) < std::tie(b.left, b.exchange);
    };
    const auto by_departure = [](const Travel& a, const Travel& b) {
      return std::tie(a.departs, a.exchange) < std::tie(b.departs, b.exchange);
    };
    std::vector<CalibratedLink> worker_out, worker_in, server_out, server_in;
    for (const WorkerModel& worker : model_.workers) {
      worker_out.emplace_back(worker.link_rate);
      worker_in.emplace_back(worker.link_rate);
    }
    for (const ServerModel& server : model_.servers) {
      server_out.emplace_back(server.link_rate);
      server_in.emplace_back(server.link_rate);
    }
    std::sort(pushes.begin(), pushes.end(), by_left);
    for (Travel& push : pushes) {
      push.departs =
          worker_out[push.place.worker].Depart(push.given, CostsAt(push.place).push_bytes);
    }
    std::sort(pushes.begin(), pushes.end(), by_departure);
    for (const Travel& push : pushes) {
      const Exchange& exchange = job_.exchanges[push.exchange];
      ExchangeCosts& costs = CostsAt(push.place);
      if (exchange.server < 0) {
        costs.answer_ns =
            std::max<int64_t>(0, exchange.At(ExchangePoint::kReplyHere) - push.departs);
        continue;
      }
      const int64_t arrives =
          server_in[model_.keys[costs.key].server].Arrive(push.departs, costs.push_bytes);
      costs.send_ns = std::max<int64_t>(0, exchange.At(ExchangePoint::kArrived) - arrives);
    }
    std::sort(replies.begin(), replies.end(), by_left);
    for (Travel& reply : replies) {
      const ExchangeCosts& costs = CostsAt(reply.place);
      reply.departs =
          server_out[model_.keys[costs.key].server].Depart(reply.given, costs.reply_bytes);
    }
    std::sort(replies.begin(), replies.end(), by_departure);
    for (const Travel& reply : replies) {
      ExchangeCosts& costs = CostsAt(reply.place);
      const int64_t arrives =
          worker_in[reply.place.worker].Arrive(reply.departs, costs.reply_bytes);
      costs.reply_ns = std::max<int64_t>(
          0, job_.exchanges[reply.exchange].At(ExchangePoint::kReplyHere) - arrives);
    }
  }

  const JobTrace& job_;
  const ExchangePlaces& places_;
  ReplayModel& model_;
};

}  // namespace

void MeasureCosts(const JobTrace& job, const ExchangePlaces& places, ReplayModel* model) {
  CostMeter(job, places, model).Measure();
}

}  // namespace bdn
