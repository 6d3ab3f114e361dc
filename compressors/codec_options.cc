#include "compressors/codec_options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "compressors/bf16.h"
#include "compressors/dither.h"
#include "compressors/drawn.h"
#include "compressors/exact_sketch.h"
#include "compressors/fp16.h"
#include "compressors/integer.h"
#include "compressors/none.h"
#include "compressors/onebit.h"
#include "compressors/sign.h"
#include "compressors/sketch.h"
#include "compressors/topk.h"

namespace bdn {
namespace {

using Codec = std::shared_ptr<const Codec>;

constexpr size_t kMostElements = size_t{1} << 30;
constexpr const char* kRatio = "a number above 0 and at most 1";

template <typename Number>
bool ParseAll(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

constexpr std::array kOneBitOptions = {
    OptionRow{"block", "0", "0 (one scale for the whole tensor) or a multiple of 32"}};
constexpr std::array kTopKOptions = {OptionRow{"ratio", nullptr, kRatio},
                                     OptionRow{"select", "exact", "exact or sampled"},
                                     OptionRow{"values", "fp32", "fp32 or fp16"}};
constexpr std::array kRandomKOptions = {OptionRow{"ratio", nullptr, kRatio},
                                        OptionRow{"unbiased", "false", "true or false"}};
constexpr std::array kBlocksOptions = {
    OptionRow{"ratio", nullptr, kRatio},
    OptionRow{"size", "1024", "a block's elements, from 1 to 2^30"}};
constexpr std::array kDitherOptions = {
    OptionRow{"levels", "7", "from 1 to 127, natural to 31; linear also 0: the sign, drawn"},
    OptionRow{"kind", "linear", "linear or natural"}, OptionRow{"norm", "max", "max or l2"}};
constexpr std::array kIntegerOptions = {
    OptionRow{"group", "128", "a multiple of 32 from 32 to 2^30"},
    OptionRow{"hadamard", "0", "0 or 32"},
    OptionRow{"round", "stochastic", "stochastic or nearest"}};
constexpr std::array kSketchOptions = {
    OptionRow{"rows", "3", "1, 3, 5 or 7"},
    OptionRow{"columns", nullptr, "a row's counters: above 1 a number, at most n; else a share"}};
constexpr std::array kExactSketchOptions = {
    OptionRow{"cells", nullptr, "above 0 and at most 2: a share of the n elements"}};

template <int kBits>
Codec MakeIntegerOf(OptionValues& values) {
  constexpr std::array kRounds = {"stochastic", "nearest"};
  constexpr std::array kTransforms = {"0", "32"};
  IntegerOptions options{.bits = kBits};
  options.group = values.Whole(0, 32, kMostElements, 32);
  options.hadamard = values.OneOf(1, kTransforms) == 1;
  options.nearest = values.OneOf(2, kRounds) == 1;
  return values.ok() ? MakeInteger(options) : nullptr;
}

const std::array kCodecs = {
    CodecRow{"none",
             {},
             "no compression: float32 (float64 for float64)",
             [](OptionValues&) { return MakeNone(); }},
    CodecRow{"fp16", {}, "half precision, 2x", [](OptionValues&) { return MakeFp16(); }},
    CodecRow{"bf16", {}, "bfloat16, 2x", [](OptionValues&) { return MakeBf16(); }},
    CodecRow{"onebit", kOneBitOptions,
             "sign and mean magnitude, 32x less a scale for every block elements",
             [](OptionValues& values) -> Codec {
               const size_t block = values.Whole(0, 0, kMostElements, 32);
               return values.ok() ? MakeOneBit(block) : nullptr;
             }},
    CodecRow{"topk", kTopKOptions,
             "the ratio * n elements of largest magnitude, 6 bytes each, 4 with values=fp16",
             [](OptionValues& values) -> Codec {
               constexpr std::array kSelects = {"exact", "sampled"};
               constexpr std::array kValues = {"fp32", "fp16"};
               TopKOptions options;
               options.ratio = values.Real(0, 0, 1);
               options.sampled = values.OneOf(1, kSelects) == 1;
               options.half_values = values.OneOf(2, kValues) == 1;
               return values.ok() ? MakeTopK(options) : nullptr;
             }},
    CodecRow{"randomk", kRandomKOptions,
             "ratio * n elements that all nodes draw alike, 4 "
             "bytes each; unbiased scales them by 1 / ratio",
             [](OptionValues& values) -> Codec {
               RandomKOptions options;
               options.ratio = values.Real(0, 0, 1);
               options.unbiased = values.Flag(1);
               return values.ok() ? MakeRandomK(options) : nullptr;
             }},
    CodecRow{"blocks", kBlocksOptions, "a ratio of the blocks of size, that all nodes draw alike",
             [](OptionValues& values) -> Codec {
               BlocksOptions options;
               options.ratio = values.Real(0, 0, 1);
               options.size = values.Whole(1, 1, kMostElements);
               return values.ok() ? MakeBlocks(options) : nullptr;
             }},
    CodecRow{"dither", kDitherOptions,
             "unbiased rounding to a few levels each way, 1 to 8 bits an element",
             [](OptionValues& values) -> Codec {
               constexpr std::array kKinds = {"linear", "natural"};
               constexpr std::array kNorms = {"max", "l2"};
               DitherOptions options;
               options.natural = values.OneOf(1, kKinds) == 1;
               options.levels =
                   values.Whole(0, options.natural ? 1 : 0, options.natural ? 31 : 127);
               options.l2 = values.OneOf(2, kNorms) == 1;
               return values.ok() ? MakeDither(options) : nullptr;
             }},
    CodecRow{"int8", kIntegerOptions, "8 bits an element and a scale a group", MakeIntegerOf<8>},
    CodecRow{"int4", kIntegerOptions, "4 bits an element and a scale a group", MakeIntegerOf<4>},
    CodecRow{"int2", kIntegerOptions, "2 bits an element and a scale a group", MakeIntegerOf<2>},
    CodecRow{"sketch", kSketchOptions,
             "for sparse tensors: a bitmap and a count sketch of what is not zero",
             [](OptionValues& values) -> Codec {
               SketchOptions options;
               constexpr std::array kRows = {"1", "3", "5", "7"};
               options.rows = 2 * values.OneOf(0, kRows) + 1;
               options.columns = values.Real(1, 0, static_cast<double>(kMostElements));
               return values.ok() ? MakeSketch(options) : nullptr;
             }},
    CodecRow{"exactsketch", kExactSketchOptions,
             "for sparse tensors: a bitmap and cells from which every value is found again",
             [](OptionValues& values) -> Codec {
               ExactSketchOptions options;
               options.cells = values.Real(0, 0, 2);
               return values.ok() ? MakeExactSketch(options) : nullptr;
             }},
    CodecRow{"sign",
             {},
             "-1, 0 or 1: a bit each, two where there are zeros",
             [](OptionValues&) { return MakeSign(); }},
};

}  // namespace

size_t OptionValues::Whole(size_t i, size_t least, size_t most, size_t multiple_of) {
  uint64_t value = 0;
  if (!ParseAll(text_[i], &value) || value < least || value > most || value % multiple_of != 0) {
    Fail(i);
  }
  return value;
}

double OptionValues::Real(size_t i, double above, double most) {
  double value = 0;
  if (!ParseAll(text_[i], &value) || !(value > above && value <= most)) Fail(i);
  return value;
}

size_t OptionValues::OneOf(size_t i, std::span<const char* const> names) {
  const auto found = std::find(names.begin(), names.end(), text_[i]);
  if (found == names.end()) Fail(i);
  return static_cast<size_t>(found - names.begin());
}

bool OptionValues::Flag(size_t i) {
  constexpr std::array kNames = {"false", "true"};
  return OneOf(i, kNames) == 1;
}

std::span<const CodecRow> CodecRows() { return kCodecs; }

std::string RealOption(const char* name, double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return std::string(name).append("=").append(digits, end);
}

std::string SpecText(const char* name, std::span<const std::string> options) {
  std::string text = name;
  const char* before = "(";
  for (const std::string& option : options) {
    text.append(before).append(option);
    before = ",";
  }
  return options.empty() ? text : text.append(")");
}

}  // namespace bdn
