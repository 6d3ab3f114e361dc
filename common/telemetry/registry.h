#ifndef BANDONEON_COMMON_TELEMETRY_REGISTRY_H_
#define BANDONEON_COMMON_TELEMETRY_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace bdn {

struct Family;

// One number that a process counts: said once, wherever it is shown.
struct Metric {
  enum class Kind : uint8_t {
    kCounter,    // only rises
    kGauge,      // goes up and down
    kHistogram,  // how many were how large; of families alone
  };
  // snake_case, with its unit where it has one: "bytes_pushed". One of many that belong together
  // has the place of an object's member: "stages.encode.items".
  const char* name;
  Kind kind;
  const char* help;  // one line, for people
  // For exporters: it is one series of a family, by this value of the family's label. Without a family
  // it is one of its own, by its name.
  const Family* of = nullptr;
  const char* label_value = "";
};

struct Sample {
  const Metric* metric;
  uint64_t value;
};

// A row of a source's table: a metric, and how its value is read from a snapshot of the source.
template <typename Snapshot>
struct MetricRow {
  Metric metric;
  uint64_t (*read)(const Snapshot& now);
};

// For exporters: numbers of one kind that differ in at most one label. Whoever reports it bounds how many
// there are.
struct Family {
  const char* name;  // in base units, which end it: "held_bytes", "stage_seconds"
  Metric::Kind kind;
  const char* help;                     // one line
  const char* label = nullptr;          // "purpose"; null where there is one series
  double unit = 1;                      // of a Metric's value, in the name's: 1e-9 for nanoseconds
  std::span<const double> bounds = {};  // of a histogram: what each bucket reaches, rising
};

// Of a Metric that exporters leave out, because a family tells more.
inline constexpr Family kNotExported = {"", Metric::Kind::kGauge, ""};

// One of a family.
struct Series {
  std::string label_value;
  double value = 0;  // of a histogram the sum
  // Of a histogram: items by bucket, each counted once; one more than there are bounds.
  std::vector<uint64_t> counts = {};
};

struct FamilySamples {
  Family family;
  std::vector<Series> series;
};

// A label that may have more values than anybody wants to store has so many, those of the largest values.
inline constexpr size_t kMostSeries = 256;
void KeepLargest(std::vector<Series>* series, size_t most = kMostSeries);

// What a process counts, by whoever counts it: main() makes one and hands it down, and what shows
// numbers (statistics, the log, an exporter) asks it alone. Components keep their counters where
// they count, without a thought of who reads them, and register how to read them. Thread-safe.
class Registry {
 public:
  // Appends a source's samples as of now, whose metrics outlive them. Runs under the registry's lock:
  // takes no lock under which the registry is called.
  using ReadFn = std::function<void(std::vector<Sample>* samples)>;
  // Says all series of a family as of now. As above.
  using ReadSeriesFn = std::function<std::vector<Series>()>;
  // Says a JSON object as of now. As above.
  using ReadObjectFn = std::function<std::string()>;

  // A source that is registered for as long as this lives. The registry outlives it.
  class Source {
   public:
    ~Source();
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

   private:
    friend class Registry;
    Source(Registry* registry, ReadFn read) : registry_(registry), read_(std::move(read)) {}
    Source(Registry* registry, const Family* family, ReadSeriesFn read)
        : registry_(registry), family_(family), read_series_(std::move(read)) {}
    Source(Registry* registry, const char* member, ReadObjectFn read)
        : registry_(registry), member_(member), read_object_(std::move(read)) {}
    Registry* const registry_;
    const ReadFn read_;
    const Family* const family_ = nullptr;  // instead of samples
    const ReadSeriesFn read_series_;
    const char* const member_ = nullptr;  // as well
    const ReadObjectFn read_object_;
  };

  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  [[nodiscard]] std::unique_ptr<Source> Add(ReadFn read);

  // A table, all of whose rows are read from one snapshot, so that they agree. It outlives the samples.
  template <typename Snapshot, size_t n, typename TakeSnapshot>
  [[nodiscard]] std::unique_ptr<Source> Add(const MetricRow<Snapshot> (&rows)[n],
                                            TakeSnapshot take) {
    return Add([&rows, take = std::move(take)](std::vector<Sample>* samples) {
      const Snapshot now = take();
      for (const MetricRow<Snapshot>& row : rows) samples->push_back({&row.metric, row.read(now)});
    });
  }

  // For exporters alone: in no Sample. The family outlives the source.
  [[nodiscard]] std::unique_ptr<Source> AddFamily(const Family* family, ReadSeriesFn read);

  // For Json alone: its member `member`, which outlives the source.
  [[nodiscard]] std::unique_ptr<Source> AddObject(const char* member, ReadObjectFn read);

  // Everything as of now, in the order of registration.
  std::vector<Sample> Collect() const;
  // The same for exporters: each family once, where its first series was registered.
  std::vector<FamilySamples> CollectFamilies() const;
  // The objects as of now, by their members' names.
  std::vector<std::pair<const char*, std::string>> Objects() const;
  // ToJson of Collect(), and the objects behind; those that are no JSON are left out.
  std::string Json() const;

 private:
  mutable Mutex mu_;
  std::list<const Source*> sources_ ABSL_GUARDED_BY(mu_);
};

// {"pushes": 12, ..., "stages": {"encode": {"items": 6, ...}}}: names and values, in order.
std::string ToJson(std::span<const Sample> samples);
// "pushes 12, bytes_sent 5.6 MB": the counters that have counted, for a line of the log at the end of
// a job. Neither gauges nor what lies in objects.
std::string ToText(std::span<const Sample> samples);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_REGISTRY_H_
