#ifndef BANDONEON_TESTS_COMPRESSORS_CODEC_CASES_H_
#define BANDONEON_TESTS_COMPRESSORS_CODEC_CASES_H_

#include <ostream>
#include <vector>

#include "common/base/dtype.h"

// The codecs that go through the tests of all codecs.

namespace bdn {

// Promises that not every codec makes.
struct CodecPromises {
  // Every element is read. Codecs that draw the elements to send do not read the rest.
  bool reads_all = true;
  // The residual of dense data is shorter than the data: that of an unbiased codec may be longer.
  bool contracts = true;
  // Payloads add up without decoding: their sum decodes to the sum of the decoded arrays. With
  // sketches that holds only to rounding, at best: sketch_test.cc has their promises.
  bool adds_up = false;
};

// A codec under test.
struct CodecCase {
  const char* label;
  const char* spec;
  CodecPromises promises = {};
};

// For the names of tests.
inline void PrintTo(const CodecCase& codec, std::ostream* out) { *out << codec.spec; }
inline void PrintTo(DType dtype, std::ostream* out) { *out << DTypeName(dtype); }

inline constexpr CodecPromises kDrawsSome = {
    .reads_all = false, .contracts = false, .adds_up = true};

inline constexpr CodecCase kCodecs[] = {
    {"None", "none", {.adds_up = true}},
    {"Fp16", "fp16"},
    {"Bf16", "bf16"},
    {"OneBit", "onebit"},
    {"OneBitBlock32", "onebit(block=32)"},
    {"OneBitBlock64", "onebit(block=64)"},
    {"OneBitBlock96", "onebit(block=96)"},
    {"OneBitBlock256", "onebit(block=256)"},
    {"OneBitBlock1056", "onebit(block=1056)"},
    {"OneBitBlock8192", "onebit(block=8192)"},
    {"OneBitBf16", "onebit(scale=bf16)"},
    {"OneBitBlock32Bf16", "onebit(block=32,scale=bf16)"},
    {"OneBitBlock64Bf16", "onebit(block=64,scale=bf16)"},
    {"OneBitBlock96Bf16", "onebit(block=96,scale=bf16)"},
    {"OneBitBlock8192Bf16", "onebit(block=8192,scale=bf16)"},
    {"TwoBit", "twobit"},
    {"TwoBitBlock32", "twobit(block=32)"},
    {"TwoBitBlock64", "twobit(block=64)"},
    {"TwoBitBlock96", "twobit(block=96)"},
    {"TwoBitBlock256", "twobit(block=256)"},
    {"TwoBitBlock1056", "twobit(block=1056)"},
    {"TwoBitBlock8192", "twobit(block=8192)"},
    // Of an element below one half it leaves more than there was.
    {"Sign", "sign", {.contracts = false}},
    {"TopKSmall", "topk(ratio=0.01)"},
    {"TopKHalf", "topk(ratio=0.5)"},
    {"TopKAll", "topk(ratio=1)"},
    {"TopKSampled", "topk(ratio=0.01,select=sampled)"},
    {"TopKSampledHalves", "topk(ratio=0.3,select=sampled,values=fp16)"},
    {"TopKHalves", "topk(ratio=0.05,values=fp16)"},
    {"TopKTwoBit", "topk(ratio=0.03,values=twobit)"},
    {"TopKSampledTwoBit", "topk(ratio=0.3,select=sampled,values=twobit)"},
    {"Dither", "dither"},
    {"DitherL2", "dither(norm=l2)", {.contracts = false}},
    {"DitherNatural", "dither(kind=natural)"},
    {"DitherNaturalL2", "dither(kind=natural,norm=l2)", {.contracts = false}},
    {"DitherNatural31", "dither(levels=31,kind=natural)"},
    {"DitherTwoPoints", "dither(levels=0)", {.contracts = false}},
    {"DitherTwoPointsL2", "dither(levels=0,norm=l2)", {.contracts = false}},
    {"Dither1", "dither(levels=1)", {.contracts = false}},
    {"Dither3", "dither(levels=3)"},
    {"Dither8", "dither(levels=8)"},
    {"Dither63", "dither(levels=63)"},
    {"Dither127", "dither(levels=127)"},
    // Of a few elements they may draw none, and nothing is caught.
    {"RandomKSmall", "randomk(ratio=0.01)", kDrawsSome},
    {"RandomKHalf", "randomk(ratio=0.5)", kDrawsSome},
    {"RandomKUnbiased", "randomk(ratio=0.3,unbiased=true)", kDrawsSome},
    {"RandomKAll", "randomk(ratio=1)", {.adds_up = true}},
    {"Blocks", "blocks(ratio=0.1)", kDrawsSome},
    {"Blocks7", "blocks(ratio=0.4,size=7)", kDrawsSome},
    {"Blocks5000", "blocks(ratio=0.6,size=5000)", kDrawsSome},
    {"BlocksAll", "blocks(ratio=1,size=100)", {.adds_up = true}},
    // Of dense data a sketch can leave more than it took.
    {"Sketch", "sketch(columns=0.1)", {.contracts = false}},
    {"SketchSevenRows", "sketch(rows=7,columns=100)", {.contracts = false}},
    {"ExactSketchFull", "exactsketch(cells=2)"},
    {"ExactSketchCollapsed", "exactsketch(cells=0.5)", {.contracts = false}},
    {"Int8", "int8"},
    {"Int8Nearest", "int8(round=nearest)"},
    {"Int8Group96HadamardNearest", "int8(group=96,hadamard=32,round=nearest)"},
    {"Int4", "int4"},
    {"Int4Nearest", "int4(group=32,round=nearest)"},
    {"Int4Hadamard", "int4(hadamard=32)"},
    {"Int4Group8192HadamardNearest", "int4(group=8192,hadamard=32,round=nearest)"},
    {"Int4Group8192", "int4(group=8192)"},
    {"Int4Group5024", "int4(group=5024)"},
    {"Int2", "int2", {.contracts = false}},
    {"Int2Group96Hadamard", "int2(group=96,hadamard=32)", {.contracts = false}},
    {"Int2Nearest", "int2(round=nearest)"},
};

// Returns the codecs that make one of the promises.
inline std::vector<CodecCase> CodecsThat(bool CodecPromises::*promise) {
  std::vector<CodecCase> codecs;
  for (const CodecCase& codec : kCodecs) {
    if (codec.promises.*promise) codecs.push_back(codec);
  }
  return codecs;
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_COMPRESSORS_CODEC_CASES_H_
