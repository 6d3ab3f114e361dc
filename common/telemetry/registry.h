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

// One number that a process counts, described once for every place that shows it.
struct Metric {
  enum class Kind : uint8_t {
    kCounter,    // only rises
    kGauge,      // goes up and down
    kHistogram,  // how many items were how large; for families only
  };
  // The name in snake_case, with its unit where it has one: "bytes_pushed". A metric that belongs
  // together with others is named as a member of an object: "stages.encode.items".
  const char* name;
  Kind kind;
  const char* help;  // one line, for people to read
  // For exporters: the family of which the metric is one series, and the value of the family's
  // label. Without a family the metric is exported by its own name.
  const Family* of = nullptr;
  const char* label_value = "";
};

// The value of a metric as of now.
struct Sample {
  const Metric* metric;
  uint64_t value;
};

// A row of a source's table: a metric, and the function that reads its value from a snapshot of the
// source.
template <typename Snapshot>
struct MetricRow {
  Metric metric;
  uint64_t (*read)(const Snapshot& now);
};

// Numbers of one kind, for exporters, that differ in at most one label. The source that reports a
// family bounds how many series it has.
struct Family {
  const char* name;  // ends with its base unit: "held_bytes", "stage_seconds"
  Metric::Kind kind;
  const char* help;             // one line
  const char* label = nullptr;  // "purpose"; null where there is a single series
  double unit = 1;  // one unit of a Metric's value, in the unit of the name: 1e-9 for nanoseconds
  std::span<const double> bounds = {};  // of a histogram: the upper bound of each bucket, rising
};

// The family of metrics that exporters leave out, because another family tells more.
inline constexpr Family kNotExported = {"", Metric::Kind::kGauge, ""};

// One series of a family.
struct Series {
  std::string label_value;
  double value = 0;  // of a histogram, the sum
  // The items in each bucket of a histogram, each item counted once. There is one bucket more than
  // there are bounds.
  std::vector<uint64_t> counts = {};
};

// The series of a family as of now.
struct FamilySamples {
  Family family;
  std::vector<Series> series;
};

// The most series that a label may have: one with more values keeps only the largest of them,
// because every series costs its reader storage.
inline constexpr size_t kMostSeries = 256;
// Keeps the `most` series with the largest values.
void KeepLargest(std::vector<Series>* series, size_t most = kMostSeries);

// The list of everything that a process counts. main() makes one and hands it down; code that shows
// numbers (statistics, the log, an exporter) asks it alone. Components keep their counters where
// they count, without regard to readers, and register how to read them. Thread-safe.
class Registry {
 public:
  // Appends a source's samples as of now, whose metrics outlive the samples. Runs under the
  // registry's lock: it must not take a lock under which the registry is called.
  using ReadFn = std::function<void(std::vector<Sample>* samples)>;
  // Returns all series of a family as of now. Runs under the registry's lock, as ReadFn.
  using ReadSeriesFn = std::function<std::vector<Series>()>;
  // Returns a JSON object as of now. Runs under the registry's lock, as ReadFn.
  using ReadObjectFn = std::function<std::string()>;

  // A source, registered for as long as this object lives. The registry outlives it.
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
    const Family* const family_ = nullptr;  // set for a source of series
    const ReadSeriesFn read_series_;
    const char* const member_ = nullptr;  // set for a source of an object
    const ReadObjectFn read_object_;
  };

  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Registers a source of samples.
  [[nodiscard]] std::unique_ptr<Source> Add(ReadFn read);

  // Registers a table, all of whose rows are read from one snapshot, so that they agree. The table
  // outlives the samples.
  template <typename Snapshot, size_t n, typename TakeSnapshot>
  [[nodiscard]] std::unique_ptr<Source> Add(const MetricRow<Snapshot> (&rows)[n],
                                            TakeSnapshot take) {
    return Add([&rows, take = std::move(take)](std::vector<Sample>* samples) {
      const Snapshot now = take();
      for (const MetricRow<Snapshot>& row : rows) samples->push_back({&row.metric, row.read(now)});
    });
  }

  // Registers a family, which only exporters see: it appears in no Sample. The family outlives the
  // source.
  [[nodiscard]] std::unique_ptr<Source> AddFamily(const Family* family, ReadSeriesFn read);

  // Registers the member `member` of the object that Json returns, and of nothing else. The name
  // outlives the source.
  [[nodiscard]] std::unique_ptr<Source> AddObject(const char* member, ReadObjectFn read);

  // Returns all samples as of now, in the order of registration.
  std::vector<Sample> Collect() const;
  // Returns the same for exporters: each family once, at the position of its first registered
  // series.
  std::vector<FamilySamples> CollectFamilies() const;
  // Returns the objects as of now, by their members' names.
  std::vector<std::pair<const char*, std::string>> Objects() const;
  // Returns ToJson of Collect() with the objects appended; a text that is no JSON object is left
  // out.
  std::string Json() const;

 private:
  mutable Mutex mu_;
  std::list<const Source*> sources_ ABSL_GUARDED_BY(mu_);
};

// Returns names and values as JSON, in order: {"pushes": 12, ..., "stages": {"encode": {"items": 6,
// ...}}}.
std::string ToJson(std::span<const Sample> samples);
// Returns "pushes 12, bytes_sent 5.6 MB" for a line of the log at the end of a job: the counters
// that are not 0, without gauges and without members of objects.
std::string ToText(std::span<const Sample> samples);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_REGISTRY_H_
