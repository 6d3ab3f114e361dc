#ifndef BANDONEON_COMMON_TELEMETRY_REGISTRY_H_
#define BANDONEON_COMMON_TELEMETRY_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/mutex.h"

namespace bdn {

// One number that a process counts: said once, wherever it is shown.
struct Metric {
  enum class Kind : uint8_t {
    kCounter,  // only rises
    kGauge,    // goes up and down
  };
  // snake_case, with its unit where it has one: "bytes_pushed". One of many that belong together
  // has the place of an object's member: "stages.encode.items".
  const char* name;
  Kind kind;
  const char* help;  // one line, for people
};

struct Sample {
  const Metric* metric;
  uint64_t value;
};

// What a process counts, by whoever counts it: main() makes one and hands it down, and what shows
// numbers (statistics, the log, an exporter) asks it alone. Components keep their counters where
// they count, without a thought of who reads them, and register how to read them. Thread-safe.
class Registry {
 public:
  // Writes the values of a source's metrics, in their order. Runs under the registry's lock: takes
  // no lock under which the registry is called.
  using ReadFn = std::function<void(std::span<uint64_t> values)>;

  // A source that is registered for as long as this lives. The registry outlives it.
  class Source {
   public:
    ~Source();
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

   private:
    friend class Registry;
    Source(Registry* registry, std::span<const Metric> metrics, ReadFn read)
        : registry_(registry), metrics_(metrics), read_(std::move(read)) {}
    Registry* const registry_;
    const std::span<const Metric> metrics_;
    const ReadFn read_;
  };

  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The metrics of one source are read at once, so that they agree. They outlive the source.
  [[nodiscard]] std::unique_ptr<Source> Add(std::span<const Metric> metrics, ReadFn read);

  // Everything as of now, in the order of registration.
  std::vector<Sample> Collect() const;

 private:
  mutable Mutex mu_;
  std::list<const Source*> sources_ ABSL_GUARDED_BY(mu_);
};

// {"pushes": 12, ..., "stages": {"encode": {"items": 6, ...}}}: names and values, in order.
std::string ToJson(std::span<const Sample> samples);
// "pushes 12, rounds 6": for a line of the log; without what lies in objects.
std::string ToText(std::span<const Sample> samples);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_REGISTRY_H_
