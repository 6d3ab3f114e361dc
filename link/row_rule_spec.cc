#include "link/row_rule_spec.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"

namespace bdn {
namespace {

using Kind = RowRuleSpec::Kind;

struct Range {
  const char* expected;
  bool (*contains)(double);  // null: step or row, as 0 and 1
};
constexpr Range kShare = {"a number from 0 to below 1",
                          [](double value) { return value >= 0 && value < 1; }};
constexpr Range kPositive = {"a number from 1e-30 to 1e6",
                             [](double value) { return value >= 1e-30 && value <= 1e6; }};
constexpr Range kNotNegative = {"a number from 0 to 1e6",
                                [](double value) { return value >= 0 && value <= 1e6; }};
constexpr Range kCorrection = {"step or row", nullptr};
constexpr const char* kCorrections[] = {"step", "row"};

struct Option {
  const char* name;
  const char* default_value;  // in canonical form
  const Range& range;
};
constexpr std::array kSgd = {Option{"decay", "0", kNotNegative}};
constexpr std::array kAdagrad = {Option{"eps", "1e-10", kPositive},
                                 Option{"initial", "0", kNotNegative},
                                 Option{"decay", "0", kNotNegative}};
constexpr std::array kRowwise = {Option{"eps", "1e-08", kPositive},
                                 Option{"initial", "0", kNotNegative},
                                 Option{"decay", "0", kNotNegative}};
constexpr std::array kAdamW = {Option{"beta1", "0.9", kShare}, Option{"beta2", "0.999", kShare},
                               Option{"eps", "1e-08", kPositive},
                               Option{"decay", "0", kNotNegative},
                               Option{"correction", "step", kCorrection}};
constexpr std::array kFtrl = {Option{"alpha", "0.1", kPositive}, Option{"beta", "1", kNotNegative},
                              Option{"l1", "0", kNotNegative}, Option{"l2", "0", kNotNegative}};

struct Row {
  Kind kind;
  const char* name;
  std::span<const Option> options;
};
const std::array kRules = {
    Row{Kind::kMean, "mean", {}},
    Row{Kind::kSgd, "sgd", kSgd},
    Row{Kind::kAdagrad, "adagrad", kAdagrad},
    Row{Kind::kRowwiseAdagrad, "rowwise_adagrad", kRowwise},
    Row{Kind::kAdamW, "adamw", kAdamW},
    Row{Kind::kFtrl, "ftrl", kFtrl},
};

const Row& RowOf(Kind kind) {
  return *std::find_if(kRules.begin(), kRules.end(),
                       [kind](const Row& row) { return row.kind == kind; });
}

absl::StatusOr<const Row*> ReadName(SpecReader& spec) {
  const std::string_view name = spec.Name();
  std::vector<std::string> known;
  for (const Row& row : kRules) {
    if (name == row.name) return &row;
    known.emplace_back(row.name);
  }
  if (name.empty()) return spec.Bad(name, "expected a rule: " + absl::StrJoin(known, ", "));
  return spec.Unknown(name, "rule of tables", known);
}

std::string ValueText(const Option& option, double value) {
  if (option.range.contains == nullptr) return kCorrections[static_cast<size_t>(value)];
  return RealText(value);
}

}  // namespace

absl::StatusOr<RowRuleSpec> RowRuleSpec::Parse(std::string_view text) {
  SpecReader spec("update rule of a table", text);
  RowRuleSpec rule;
  const size_t begin = spec.SkipSpaces();
  BDN_ASSIGN_OR_RETURN(const Row* row, ReadName(spec));
  rule.kind_ = row->kind;
  if (const size_t momentum = text.find("momentum"); momentum != std::string_view::npos) {
    return spec.Bad(text.substr(momentum, 8),
                    "momentum moves rows that nobody pushes, and rows of tables are updated only "
                    "when they are: leave it out");
  }
  std::vector<SpecOption> options;
  for (const Option& option : row->options) {
    options.push_back({option.name, option.default_value, option.range.expected});
  }
  BDN_ASSIGN_OR_RETURN(OptionValues values, spec.Options(spec.PartSince(begin), options));
  for (size_t i = 0; i < options.size(); ++i) {
    const auto contains = row->options[i].range.contains;
    rule.values_[i] = contains == nullptr ? static_cast<double>(values.OneOf(i, kCorrections))
                                          : values.Real(i, contains) + 0.0;
  }
  BDN_RETURN_IF_ERROR(spec.Check(values));
  BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  return rule;
}

size_t RowRuleSpec::MomentFloats(size_t width) const {
  switch (kind_) {
    case Kind::kMean:
    case Kind::kSgd:
      return 0;
    case Kind::kAdagrad:
      return width;
    case Kind::kRowwiseAdagrad:
      return 1;
    case Kind::kAdamW:
    case Kind::kFtrl:
      return 2 * width;
  }
  return 0;
}

std::string RowRuleSpec::text() const {
  const Row& row = RowOf(kind_);
  std::vector<std::string> options;
  for (size_t i = 0; i < row.options.size(); ++i) {
    const std::string value = ValueText(row.options[i], values_[i]);
    if (value != row.options[i].default_value) {
      options.push_back(std::string(row.options[i].name) + "=" + value);
    }
  }
  return SpecText(row.name, options);
}

}  // namespace bdn
