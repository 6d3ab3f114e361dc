#ifndef BANDONEON_TESTS_COMPRESSORS_CODEC_CASES_H_
#define BANDONEON_TESTS_COMPRESSORS_CODEC_CASES_H_

#include <ostream>

#include "common/base/dtype.h"

// The codecs that the tests of what all codecs promise go through.

namespace bdn {

struct CodecCase {
  const char* label;
  const char* spec;
  // What it is not asked: codecs that draw what they send do not read the rest, and unbiased ones
  // may leave more than came in.
  bool reads_all = true;
  bool contracts = true;
  // Sketches add up as sketches, and what a sum decodes to is the sum to rounding at best:
  // sketch_test.cc has what they promise.
  bool adds_decoded = true;
};

// For the names of tests.
inline void PrintTo(const CodecCase& codec, std::ostream* out) { *out << codec.spec; }
inline void PrintTo(DType dtype, std::ostream* out) { *out << DTypeName(dtype); }

inline constexpr CodecCase kCodecs[] = {
    {"None", "none"},
    {"Fp16", "fp16"},
    {"Bf16", "bf16"},
    {"OneBit", "onebit"},
    {"OneBitBlock32", "onebit(block=32)"},
    {"OneBitBlock96", "onebit(block=96)"},
    {"OneBitBlock256", "onebit(block=256)"},
    {"OneBitBlock8192", "onebit(block=8192)"},
    // Of an element below one half it leaves more than there was.
    {"Sign", "sign", true, false},
    {"TopKSmall", "topk(ratio=0.01)"},
    {"TopKHalf", "topk(ratio=0.5)"},
    {"TopKAll", "topk(ratio=1)"},
    {"TopKSampled", "topk(ratio=0.01,select=sampled)"},
    {"TopKSampledHalves", "topk(ratio=0.3,select=sampled,values=fp16)"},
    {"TopKHalves", "topk(ratio=0.05,values=fp16)"},
    {"Dither", "dither"},
    {"DitherL2", "dither(norm=l2)", true, false},
    {"DitherNatural", "dither(kind=natural)"},
    {"DitherNaturalL2", "dither(kind=natural,norm=l2)", true, false},
    {"DitherNatural31", "dither(levels=31,kind=natural)"},
    {"DitherTwoPoints", "dither(levels=0)", true, false},
    {"DitherTwoPointsL2", "dither(levels=0,norm=l2)", true, false},
    {"Dither1", "dither(levels=1)", true, false},
    {"Dither3", "dither(levels=3)"},
    {"Dither8", "dither(levels=8)"},
    {"Dither63", "dither(levels=63)"},
    {"Dither127", "dither(levels=127)"},
    // Of a few elements they may draw none, and nothing is caught.
    {"RandomKSmall", "randomk(ratio=0.01)", false, false},
    {"RandomKHalf", "randomk(ratio=0.5)", false, false},
    {"RandomKUnbiased", "randomk(ratio=0.3,unbiased=true)", false, false},
    {"RandomKAll", "randomk(ratio=1)"},
    {"Blocks", "blocks(ratio=0.1)", false, false},
    {"Blocks7", "blocks(ratio=0.4,size=7)", false, false},
    {"Blocks5000", "blocks(ratio=0.6,size=5000)", false, false},
    {"BlocksAll", "blocks(ratio=1,size=100)"},
    // Of dense data a sketch can leave more than it took.
    {"Sketch", "sketch(columns=0.1)", true, false, false},
    {"SketchSevenRows", "sketch(rows=7,columns=100)", true, false, false},
    {"ExactSketchFull", "exactsketch(cells=2)", true, true, false},
    {"ExactSketchCollapsed", "exactsketch(cells=0.5)", true, false, false},
    {"Int8", "int8"},
    {"Int8Nearest", "int8(round=nearest)"},
    {"Int8Group96HadamardNearest", "int8(group=96,hadamard=32,round=nearest)"},
    {"Int4", "int4"},
    {"Int4Nearest", "int4(group=32,round=nearest)"},
    {"Int4Hadamard", "int4(hadamard=32)"},
    {"Int4Group8192HadamardNearest", "int4(group=8192,hadamard=32,round=nearest)"},
    {"Int4Group8192", "int4(group=8192)"},
    {"Int2", "int2", true, false},
    {"Int2Group96Hadamard", "int2(group=96,hadamard=32)", true, false},
    {"Int2Nearest", "int2(round=nearest)"},
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_COMPRESSORS_CODEC_CASES_H_
