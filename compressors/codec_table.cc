#include "compressors/codec_table.h"

#include <array>

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
#include "compressors/twobit.h"

namespace bdn {
namespace {

using CodecPtr = std::shared_ptr<const Codec>;

constexpr size_t kMostElements = size_t{1} << 30;

// An option whose default is nullptr must be given. The functions below name an option by its index
// in these arrays, and make a codec of good values alone, since their ranges are its preconditions:
// the caller reports the bad ones.
constexpr std::array kOneBitOptions = {
    SpecOption{"block", "0", "0 (one scale for the whole tensor) or a multiple of 32"},
    SpecOption{"scale", "fp32", "fp32 or bf16"}};
constexpr std::array kTwoBitOptions = {
    SpecOption{"block", "0", "0 (one scale for the whole tensor) or a multiple of 32"}};
constexpr std::array kTopKOptions = {SpecOption{"ratio", nullptr, kShareExpected},
                                     SpecOption{"select", "exact", "exact or sampled"},
                                     SpecOption{"values", "fp32", "fp32, fp16 or twobit"}};
constexpr std::array kRandomKOptions = {SpecOption{"ratio", nullptr, kShareExpected},
                                        SpecOption{"unbiased", "false", "true or false"}};
constexpr std::array kBlocksOptions = {
    SpecOption{"ratio", nullptr, kShareExpected},
    SpecOption{"size", "1024", "a block's elements, from 1 to 2^30"}};
constexpr std::array kDitherOptions = {
    SpecOption{"levels", "7", "from 1 to 127, natural to 31; linear also 0: the sign, drawn"},
    SpecOption{"kind", "linear", "linear or natural"}, SpecOption{"norm", "max", "max or l2"}};
constexpr std::array kIntegerOptions = {
    SpecOption{"group", "128", "a multiple of 32 from 32 to 2^30"},
    SpecOption{"hadamard", "0", "0 or 32"},
    SpecOption{"round", "stochastic", "stochastic or nearest"}};
constexpr std::array kSketchOptions = {
    SpecOption{"rows", "3", "1, 3, 5 or 7"},
    SpecOption{"columns", nullptr, "a row's counters: above 1 a number, at most n; else a share"}};
constexpr std::array kExactSketchOptions = {
    SpecOption{"cells", nullptr, "above 0 and at most 2: a share of the n elements"}};

template <int kBits>
CodecPtr MakeIntegerOf(OptionValues& values) {
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
             [](OptionValues& values) -> CodecPtr {
               constexpr std::array kScales = {"fp32", "bf16"};
               const size_t block = values.Whole(0, 0, kMostElements, 32);
               const bool bfloat_scales = values.OneOf(1, kScales) == 1;
               return values.ok() ? MakeOneBit(block, bfloat_scales) : nullptr;
             }},
    CodecRow{"twobit", kTwoBitOptions,
             "one of four levels, 16x less half a scale for every block elements",
             [](OptionValues& values) -> CodecPtr {
               const size_t block = values.Whole(0, 0, kMostElements, 32);
               return values.ok() ? MakeTwoBit(block) : nullptr;
             }},
    CodecRow{"topk", kTopKOptions,
             "the ratio * n elements of largest magnitude, 6 bytes each, 4 with values=fp16, "
             "2.3 with twobit",
             [](OptionValues& values) -> CodecPtr {
               constexpr std::array kSelects = {"exact", "sampled"};
               constexpr std::array kValues = {"fp32", "fp16", "twobit"};
               TopKOptions options;
               options.ratio = values.Real(0, IsShare);
               options.sampled = values.OneOf(1, kSelects) == 1;
               options.values = static_cast<TopKValues>(values.OneOf(2, kValues));
               return values.ok() ? MakeTopK(options) : nullptr;
             }},
    CodecRow{"randomk", kRandomKOptions,
             "ratio * n elements that all nodes draw alike, 4 "
             "bytes each; unbiased scales them by 1 / ratio",
             [](OptionValues& values) -> CodecPtr {
               RandomKOptions options;
               options.ratio = values.Real(0, IsShare);
               options.unbiased = values.Flag(1);
               return values.ok() ? MakeRandomK(options) : nullptr;
             }},
    CodecRow{"blocks", kBlocksOptions, "a ratio of the blocks of size, that all nodes draw alike",
             [](OptionValues& values) -> CodecPtr {
               BlocksOptions options;
               options.ratio = values.Real(0, IsShare);
               options.size = values.Whole(1, 1, kMostElements);
               return values.ok() ? MakeBlocks(options) : nullptr;
             }},
    CodecRow{"dither", kDitherOptions,
             "unbiased rounding to a few levels each way, 1 to 8 bits an element",
             [](OptionValues& values) -> CodecPtr {
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
             [](OptionValues& values) -> CodecPtr {
               SketchOptions options;
               constexpr std::array kRows = {"1", "3", "5", "7"};
               options.rows = 2 * values.OneOf(0, kRows) + 1;
               options.columns =
                   values.Real(1, [](double value) { return value > 0 && value <= 0x1p30; });
               return values.ok() ? MakeSketch(options) : nullptr;
             }},
    CodecRow{"exactsketch", kExactSketchOptions,
             "for sparse tensors: a bitmap and cells from which every value is found again",
             [](OptionValues& values) -> CodecPtr {
               ExactSketchOptions options;
               options.cells = values.Real(0, [](double value) { return value > 0 && value <= 2; });
               return values.ok() ? MakeExactSketch(options) : nullptr;
             }},
    CodecRow{"sign",
             {},
             "-1, 0 or 1: a bit each, two where there are zeros",
             [](OptionValues&) { return MakeSign(); }},
};

}  // namespace

std::span<const CodecRow> CodecRows() { return kCodecs; }

}  // namespace bdn
