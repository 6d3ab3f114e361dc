// How well each codec keeps what it encodes, pinned in tests/golden/quality.csv: so that a change
// of it shows as a diff.

#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "compressors/codec_spec.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

constexpr size_t kElements = 32768;

constexpr const char* kCodecs[] = {
    "none",
    "fp16",
    "bf16",
    "onebit",
    "onebit(block=256)",
    "onebit(block=64)",
    "onebit(block=64,scale=bf16)",
    "twobit",
    "twobit(block=64)",
    "sign",
    "topk(ratio=0.01)",
    "topk(ratio=0.01,values=fp16)",
    "topk(ratio=0.01,values=twobit)",
    "topk(ratio=0.001,select=sampled)",
    "randomk(ratio=0.01)",
    "randomk(ratio=0.01,unbiased=true)",
    "blocks(ratio=0.01,size=64)",
    "dither(levels=7)",
    "dither(levels=7,norm=l2)",
    "dither(levels=7,kind=natural)",
    "dither(levels=127)",
    "int8(group=128)",
    "int8(group=128,round=nearest)",
    "int4(group=128)",
    "int4(group=128,round=nearest)",
    "int4(group=128,hadamard=32)",
    "int2(group=128)",
    "sketch(columns=0.02)",
    "sketch(columns=0.1)",
    "exactsketch(cells=0.02)",
    "exactsketch(cells=0.1)",
};

// Numbers that are the same with every library: made of +, *, / and square roots alone.
class Generator {
 public:
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  // Near enough: a sum of twelve.
  double Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform();
    return sum;
  }
  // Exact for normal factors.
  double Laplace() {
    const double first = Normal() * Normal();
    return first + Normal() * Normal();
  }
  // Student's t of 3 degrees of freedom: its fourth moment is infinite.
  double HeavyTailed() {
    double squares = 0;
    for (int i = 0; i < 3; ++i) {
      const double value = Normal();
      squares += value * value;
    }
    return Normal() / std::sqrt(squares / 3);
  }
  double Sparse() {
    const bool kept = Uniform() < 0.05;
    return kept ? Normal() : 0;
  }

 private:
  std::mt19937_64 random_{1};
};

std::vector<float> Drawn(double (Generator::*draw)()) {
  Generator generator;
  std::vector<float> x(kElements);
  for (float& value : x) value = static_cast<float>((generator.*draw)());
  return x;
}

// tests/golden/README.md says what they are.
std::vector<float> Gradients() {
  std::ifstream file(BDN_GOLDEN_DIR "/gradients_fp16.bin", std::ios::binary);
  std::vector<float> x(kElements);
  for (float& value : x) {
    const int low = file.get();
    const int high = file.get();
    value = HalfToFloat(static_cast<uint16_t>(low | high << 8));
  }
  EXPECT_TRUE(file.good() && file.peek() == EOF) << "gradients_fp16.bin is not 64 KiB";
  return x;
}

struct Distribution {
  const char* name;
  std::vector<float> x;
};

std::vector<Distribution> Distributions() {
  return {{"normal", Drawn(&Generator::Normal)},
          {"laplace", Drawn(&Generator::Laplace)},
          {"heavy-tailed", Drawn(&Generator::HeavyTailed)},
          {"sparse", Drawn(&Generator::Sparse)},
          {"gradients", Gradients()}};
}

// "bytes,relative L2 error,cosine" of what decodes from x.
std::string Quality(const Codec& codec, const std::vector<float>& x) {
  const auto payload = EncodeToVector(codec, {x.data(), DType::kFloat32, x.size()});
  const auto decoded = DecodeToVector(codec, AsBytes(payload), x.size());
  double missed = 0;
  double input = 0;
  double output = 0;
  double both = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double a = x[i];
    const double b = decoded[i];
    missed += (a - b) * (a - b);
    input += a * a;
    output += b * b;
    both += a * b;
  }
  const double cosine = output > 0 ? both / std::sqrt(input * output) : 0;
  return absl::StrFormat("%d,%.5g,%.5g", payload.size(), std::sqrt(missed / input), cosine);
}

std::string Measure() {
  const std::vector<Distribution> distributions = Distributions();
  std::string csv = "codec,distribution,bytes,relative_l2_error,cosine\n";
  for (const char* spec : kCodecs) {
    const auto link = ParseCodecSpec(spec);
    if (!link.ok() || link->codec == nullptr) continue;
    for (const Distribution& distribution : distributions) {
      csv += absl::StrFormat("\"%s\",%s,%s\n", spec, distribution.name,
                             Quality(*link->codec, distribution.x));
    }
  }
  return csv;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The lines of `a` that `b` does not have.
std::string LinesOnlyIn(const std::string& a, const std::string& b, char mark) {
  std::set<std::string> known;
  std::istringstream old(b);
  for (std::string line; std::getline(old, line);) known.insert(line);
  std::istringstream lines(a);
  std::string only;
  for (std::string line; std::getline(lines, line);) {
    if (known.count(line) == 0) only += std::string(1, mark) + line + "\n";
  }
  return only;
}

TEST(Quality, IsAsCheckedIn) {
  const std::string golden = ReadFile(BDN_GOLDEN_DIR "/quality.csv");
  const std::string measured = Measure();
  if (measured == golden) return;
  const std::string path = BDN_QUALITY_OUTPUT;
  std::ofstream(path) << measured;
  ADD_FAILURE() << "the quality of codecs has changed:\n"
                << LinesOnlyIn(golden, measured, '-') << LinesOnlyIn(measured, golden, '+')
                << "to accept it: cp " << path << " " BDN_GOLDEN_DIR "/quality.csv";
}

}  // namespace
}  // namespace bdn
