#include "link/row_link.h"

#include <string_view>

#include "absl/strings/match.h"
#include "common/base/draw.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/codec_spec.h"

namespace bdn {
namespace {

// Parses a codec of rows. The carets are under the word that is wrong.
absl::StatusOr<std::shared_ptr<const Codec>> ParseRowCodec(std::string_view text) {
  SpecReader spec("codec spec of a table", text);
  const size_t begin = spec.SkipSpaces();
  const std::string_view name = spec.Name();
  spec.GoBack(begin);
  BDN_ASSIGN_OR_RETURN(const LinkCodec link, ReadLinkCodec(spec));
  BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  constexpr const char* kWhich = "; none, fp16, bf16, onebit, twobit, int8, int4 and int2 can";
  if (link.error_feedback || link.delta) {
    return spec.Bad(name, std::string(link.delta ? "a delta" : "a residual") +
                              " would be kept of rows that may never be pushed again, so rows go "
                              "without it" +
                              kWhich);
  }
  if (!link.codec->bounds_itself()) {
    return spec.Bad(name, std::string("each row is encoded alone, and must take as many bytes as "
                                      "any other, which this codec cannot promise") +
                              kWhich);
  }
  return link.codec;
}

bool DrawsByDefault(CodecId id) {
  return id == CodecId::kInt8 || id == CodecId::kInt4 || id == CodecId::kInt2;
}

// Returns the same codec, rounding to nearest.
std::string Nearest(const Codec& codec) {
  std::string spec = codec.spec();
  if (!DrawsByDefault(codec.id()) || absl::StrContains(spec, "round=nearest")) return spec;
  if (!spec.ends_with(')')) return spec + "(round=nearest)";
  spec.back() = ',';
  return spec + "round=nearest)";
}

}  // namespace

absl::StatusOr<RowLink> MakeRowLink(const KeyEntry& entry,
                                    std::span<const TensorDeclaration* const> tables) {
  if (tables.size() != entry.segments.size() || tables.empty() || !IsRowBuckets(entry.buckets) ||
      entry.key.partition() >= entry.buckets) {
    return InvalidArgument("key %s has %d segments of %d tables", entry.key.ToString(),
                           entry.segments.size(), tables.size());
  }
  RowLink link;
  const auto in = [&](const absl::Status& status) {
    return Annotate(status, absl::StrFormat("table '%s'", tables[0]->name));
  };
  const auto rule = RowRuleSpec::Parse(entry.rule);
  if (!rule.ok()) return in(rule.status());
  link.rule = *rule;
  const auto push = ParseRowCodec(entry.push_spec);
  if (!push.ok()) return in(push.status());
  link.push = *push;
  const auto pull = ParseRowCodec(entry.pull_spec);
  if (!pull.ok()) return in(pull.status());
  link.pull = *pull;
  link.width = entry.segments[0].elements;
  link.push_row_bytes = link.push->MaxEncodedBytes(link.width, DType::kFloat32);
  link.pull_row_bytes = link.pull->MaxEncodedBytes(link.width, DType::kFloat32);
  link.bucket = entry.key.partition();
  link.buckets = entry.buckets;
  for (const TensorDeclaration* const table : tables) {
    BDN_ASSIGN_OR_RETURN(TableSpec spec, TableSpec::Parse(table->table));
    link.tables.push_back({table->name, Draw::HashName(table->name), spec});
  }
  return link;
}

absl::Status CanonicalizeTable(TensorDeclaration* table) {
  BDN_ASSIGN_OR_RETURN(const auto push, ParseRowCodec(table->push_spec));
  table->push_spec = push->spec();
  BDN_ASSIGN_OR_RETURN(const auto pull, ParseRowCodec(table->pull_spec));
  table->pull_spec = Nearest(*pull);
  BDN_ASSIGN_OR_RETURN(const RowRuleSpec rule, RowRuleSpec::Parse(table->rule));
  table->rule = rule.text();
  BDN_ASSIGN_OR_RETURN(const TableSpec spec, TableSpec::Parse(table->table));
  if (rule.is_mean() && spec.IsLimited()) {
    return InvalidArgument(
        "by the rule mean no rows are held, so that none are admitted, bounded or removed: leave "
        "admit, max_rows, evict and ttl out");
  }
  table->table = spec.text();
  return absl::OkStatus();
}

}  // namespace bdn
