// A benchmark of the codecs. It measures each beside a memcpy of the same bytes in the same run.
// `bandoneon bench codecs` runs this program and has the help text; docs/journal/codec_speed.md
// explains each figure.

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/base/float_guard.h"
#include "common/base/status.h"
#include "compressors/bench/codec_timing.h"
#include "compressors/codec_spec.h"

namespace bdn {
namespace {

constexpr const char* kDefaultCodecs[] = {
    "none",
    "fp16",
    "bf16",
    "onebit",
    "onebit(block=256)",
    "onebit(block=64,scale=bf16)",
    "twobit",
    "twobit(block=64)",
    "sign",
    "topk(ratio=0.01)",
    "topk(ratio=0.01,values=twobit)",
    "topk(ratio=0.001,select=sampled)",
    "randomk(ratio=0.01)",
    "blocks(ratio=0.01)",
    "dither(levels=7)",
    "dither(levels=7,kind=natural)",
    "int4(group=128,round=nearest)",
    "int4(group=128)",
    "int4(group=128,hadamard=32)",
    "int8(group=128,round=nearest)",
    "int2(group=128)",
    "sketch(columns=0.02)",
    "exactsketch(cells=0.1)",
};
constexpr size_t kDefaultElements[] = {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20};
constexpr size_t kMostElements = size_t{1} << 28;
constexpr size_t kMostThreads = 256;

struct BenchOptions {
  std::vector<std::string> codecs;
  std::vector<size_t> elements;
  size_t threads = 1;
  bool json = false;
};

// A line on the terminal that shows the codec under measurement, and then goes away again.
class Progress {
 public:
  explicit Progress(size_t cases) : cases_(cases), shown_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { Clear(); }
  void Show(const std::string& codec, size_t elements) {
    ++done_;
    if (shown_)
      fprintf(stderr, "\r\x1b[K[%zu/%zu] %s, %zu elements", done_, cases_, codec.c_str(), elements);
  }
  void Clear() const {
    if (shown_) fputs("\r\x1b[K", stderr);
  }

 private:
  const size_t cases_;
  const bool shown_;
  size_t done_ = 0;
};

void PrintHead(size_t elements, size_t threads) {
  printf("%zu thread%s of %zu elements (%.4g MiB of float32); GB/s, and x memcpy\n", threads,
         threads == 1 ? "" : "s, each", elements, static_cast<double>(elements) / (1 << 18));
  printf("%-34s%12s%17s%17s%17s%17s%9s\n", "codec", "bytes", "encode", "encode + ef", "decode-add",
         "multi-decode", "memcpy");
}

void PrintRow(const std::string& codec, const CodecTiming& timing, const Rates& rates) {
  printf("%-34s%12zu", (codec + (timing.sparse() ? " *" : "")).c_str(), timing.encoded_bytes());
  for (const Operation operation : {kEncode, kEncodeFeedback, kDecodeAdd, kMultiDecode}) {
    printf("%9.2f%7.2fx", rates[operation], rates[operation] / rates[kMemcpy]);
  }
  printf("%9.2f\n", rates[kMemcpy]);
}

void PrintJson(const std::string& codec, size_t elements, size_t threads, const CodecTiming& timing,
               const Rates& rates) {
  printf(R"({"codec": "%s", "elements": %zu, "threads": %zu, "data": "%s", "encoded_bytes": %zu, )"
         R"("encode_gb_s": %.4f, "encode_ef_gb_s": %.4f, "decode_add_gb_s": %.4f, )"
         R"("multi_decode_gb_s": %.4f, "memcpy_gb_s": %.4f})"
         "\n",
         codec.c_str(), elements, threads, timing.sparse() ? "sparse" : "normal",
         timing.encoded_bytes(), rates[kEncode], rates[kEncodeFeedback], rates[kDecodeAdd],
         rates[kMultiDecode], rates[kMemcpy]);
}

// A codec and the text by which it was asked for.
struct NamedCodec {
  std::string name;
  std::shared_ptr<const Codec> codec;
};

absl::Status Run(const BenchOptions& options, const std::vector<NamedCodec>& codecs) {
  Progress progress(options.elements.size() * codecs.size());
  bool any_sparse = false;
  for (const size_t elements : options.elements) {
    progress.Clear();
    if (!options.json) PrintHead(elements, options.threads);
    CodecTiming timing(elements, options.threads);
    for (const auto& [name, codec] : codecs) {
      progress.Show(name, elements);
      BDN_RETURN_IF_ERROR(timing.Use(codec.get()));
      const Rates rates = timing.Measure();
      progress.Clear();
      any_sparse |= timing.sparse();
      if (options.json) {
        PrintJson(name, elements, options.threads, timing, rates);
      } else {
        PrintRow(name, timing, rates);
      }
      fflush(stdout);
    }
    if (!options.json) printf("\n");
  }
  if (any_sparse && !options.json)
    printf("* on data of which %.0f %% are not zero\n", 100 * CodecTiming::kSparse);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(const std::string& spec) {
  BDN_ASSIGN_OR_RETURN(LinkCodec link, ParseCodecSpec(spec));
  if (link.error_feedback || link.delta) {
    return InvalidArgument(
        "'%s' has a memory: give the codec alone, which is measured with and "
        "without error feedback",
        spec);
  }
  return std::move(link.codec);
}

absl::StatusOr<size_t> ParseCount(std::string_view name, std::string_view text, size_t most) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    return InvalidArgument("option --%s is '%s': expected a whole number from 1 to %d",
                           std::string(name), std::string(text), most);
  }
  return value;
}

// Parses options. It takes --name=VALUE only: the command in front of this program takes the other
// forms.
absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string_view>& args) {
  BenchOptions options;
  for (const std::string_view arg : args) {
    const size_t equals = std::min(arg.find('='), arg.size());
    const std::string_view name = arg.substr(0, equals);
    const std::string_view value = arg.substr(std::min(equals + 1, arg.size()));
    if (arg == "--json") {
      options.json = true;
    } else if (name == "--codec") {
      options.codecs.emplace_back(value);
    } else if (name == "--elements") {
      BDN_ASSIGN_OR_RETURN(const size_t elements, ParseCount("elements", value, kMostElements));
      options.elements.push_back(elements);
    } else if (name == "--threads") {
      BDN_ASSIGN_OR_RETURN(options.threads, ParseCount("threads", value, kMostThreads));
    } else {
      return InvalidArgument(
          "unknown option %s; expected --codec=SPEC, --elements=N, --threads=T or --json",
          std::string(arg));
    }
  }
  if (options.codecs.empty()) {
    options.codecs.assign(std::begin(kDefaultCodecs), std::end(kDefaultCodecs));
  }
  if (options.elements.empty()) {
    options.elements.assign(std::begin(kDefaultElements), std::end(kDefaultElements));
  }
  return options;
}

constexpr int kUsage = 2;

int Fail(int code, const absl::Status& status) {
  fprintf(stderr, "bandoneon bench codecs: %s\n", std::string(status.message()).c_str());
  if (code == kUsage) fputs("See bandoneon bench codecs --help.\n", stderr);
  return code;
}

int Main(const std::vector<std::string_view>& args) {
  const FloatGuard guard;
  const auto options = ParseOptions(args);
  if (!options.ok()) return Fail(kUsage, options.status());
  std::vector<NamedCodec> codecs;
  for (std::string spec : options->codecs) {
    auto codec = MakeCodec(spec);
    if (!codec.ok()) return Fail(kUsage, codec.status());
    spec.erase(std::remove_if(spec.begin(), spec.end(), absl::ascii_isspace), spec.end());
    codecs.push_back({spec, *std::move(codec)});
  }
  const absl::Status status = Run(*options, codecs);
  return status.ok() ? 0 : Fail(1, status);
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  return bdn::Main(std::vector<std::string_view>(argv + 1, argv + argc));
}
