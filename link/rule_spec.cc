#include "link/rule_spec.h"

#include <algorithm>
#include <array>
#include <span>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// The values that an option may have. Numbers stay far from where float32 underflows and overflows.
struct Range {
  const char* expected;
  bool (*contains)(double);                 // null: a flag or a name
  std::span<const char* const> names = {};  // the names that an option may have; empty: it has none
};
constexpr Range kFlag = {"true or false", nullptr};
// RuleSpec::Penalty has them in the same order.
constexpr std::array kPenaltyNames = {"l1", "scad", "mcp", "capped"};
constexpr Range kPenalty = {"l1, scad, mcp or capped", nullptr, kPenaltyNames};
constexpr Range kShare = {"a number from 0 to below 1",
                          [](double value) { return value >= 0 && value < 1; }};
constexpr Range kPositive = {"a number from 1e-30 to 1e6",
                             [](double value) { return value >= 1e-30 && value <= 1e6; }};
constexpr Range kNotNegative = {"a number from 0 to 1e6",
                                [](double value) { return value >= 0 && value <= 1e6; }};

struct RuleOption {
  const char* name;
  const char* default_value;  // in canonical form
  const Range& range;
};

// The number of arrays as long as the weights that a rule keeps beside them.
struct Moments {
  int most = 0;
  const char* option = nullptr;  // the rule keeps none where this option is 0; null: it always does
};
constexpr Moments kNoMoments = {0};
constexpr Moments kOneMoment = {1};
constexpr Moments kTwoMoments = {2};

struct RuleRow {
  RuleSpec::Kind kind;
  const char* name;
  std::span<const RuleOption> options;
  Moments moments;
  const char* help;
};

constexpr std::array kSgd = {RuleOption{"momentum", "0", kShare},
                             RuleOption{"nesterov", "false", kFlag},
                             RuleOption{"decay", "0", kNotNegative}};
constexpr std::array kAdamW = {
    RuleOption{"beta1", "0.9", kShare}, RuleOption{"beta2", "0.999", kShare},
    RuleOption{"eps", "1e-08", kPositive}, RuleOption{"decay", "0.01", kNotNegative}};
constexpr std::array kSignMomentum = {
    RuleOption{"beta1", "0.95", kShare}, RuleOption{"beta2", "0.98", kShare},
    RuleOption{"eta", "1", kPositive}, RuleOption{"decay", "0.1", kNotNegative}};
constexpr std::array kNesterov = {RuleOption{"lr", "0.7", kPositive},
                                  RuleOption{"momentum", "0.9", kShare}};
constexpr std::array kSlowMo = {RuleOption{"beta", "0.5", kShare},
                                RuleOption{"alpha", "1", kPositive}};
constexpr std::array kProx = {
    RuleOption{"penalty", "l1", kPenalty}, RuleOption{"lambda", "0.01", kNotNegative},
    RuleOption{"theta", "3.7", kPositive}, RuleOption{"rho", "1", kPositive}};

using Kind = RuleSpec::Kind;
const std::array kRules = {
    RuleRow{Kind::kMean, "mean", {}, kNoMoments, "the weighted mean goes back to the workers"},
    RuleRow{Kind::kSgd, "sgd", kSgd, Moments{1, "momentum"},
            "the servers hold the weights and step by SGD"},
    RuleRow{Kind::kAdamW, "adamw", kAdamW, kTwoMoments,
            "the servers hold the weights and step by AdamW"},
    RuleRow{Kind::kSignMomentum, "sign_momentum", kSignMomentum, kOneMoment,
            "outer step after local ones: the sign of a momentum"},
    RuleRow{Kind::kNesterov, "nesterov", kNesterov, kOneMoment,
            "outer step after local ones: DiLoCo's"},
    RuleRow{Kind::kSlowMo, "slowmo", kSlowMo, kOneMoment,
            "outer step after local ones: slow momentum"},
    RuleRow{Kind::kAverage,
            "average",
            {},
            kNoMoments,
            "outer step after local ones: the mean of the weights"},
    RuleRow{Kind::kProx, "prox", kProx, kNoMoments,
            "outer step after local ones: the mean of the weights, shrunk by a penalty"},
};

const RuleRow& RowOf(Kind kind) {
  return *std::find_if(kRules.begin(), kRules.end(),
                       [kind](const RuleRow& row) { return row.kind == kind; });
}

absl::StatusOr<const RuleRow*> ReadName(SpecReader& spec) {
  const std::string_view name = spec.Name();
  std::vector<std::string> known;
  for (const RuleRow& row : kRules) {
    if (name == row.name) return &row;
    known.emplace_back(row.name);
  }
  if (name.empty()) return spec.Bad(name, "expected a rule: " + absl::StrJoin(known, ", "));
  return spec.Unknown(name, "rule", known);
}

// Returns the value of option i as a number; OptionValues notes a bad one.
double NumberOf(OptionValues& values, size_t i, const Range& range) {
  if (!range.names.empty()) return static_cast<double>(values.OneOf(i, range.names));
  return range.contains == nullptr ? values.Flag(i) : values.Real(i, range.contains);
}

// Reads the options of a rule; flags become 0 and 1, and names their indices.
absl::StatusOr<std::vector<double>> ReadOptions(SpecReader& spec, const RuleRow& row,
                                                std::string_view name) {
  std::vector<SpecOption> options;
  for (const RuleOption& option : row.options) {
    options.push_back({option.name, option.default_value, option.range.expected});
  }
  BDN_ASSIGN_OR_RETURN(OptionValues values, spec.Options(name, options));
  std::vector<double> numbers;
  for (size_t i = 0; i < options.size(); ++i) {
    const double value = NumberOf(values, i, row.options[i].range);
    numbers.push_back(value + 0.0);  // turns -0 into 0: one value must have one canonical text
  }
  BDN_RETURN_IF_ERROR(spec.Check(values));
  return numbers;
}

// Returns the value in canonical form, as the table has the defaults.
std::string ValueText(const RuleOption& option, double value) {
  if (!option.range.names.empty()) return option.range.names[static_cast<size_t>(value)];
  if (option.range.contains == nullptr) return value != 0 ? "true" : "false";
  return RealText(value);
}

}  // namespace

absl::StatusOr<RuleSpec> RuleSpec::Parse(std::string_view text) {
  SpecReader spec("update rule", text);
  RuleSpec rule;
  const size_t begin = spec.SkipSpaces();
  BDN_ASSIGN_OR_RETURN(const RuleRow* row, ReadName(spec));
  rule.kind_ = row->kind;
  BDN_ASSIGN_OR_RETURN(rule.values_, ReadOptions(spec, *row, spec.PartSince(begin)));
  const std::string_view whole = spec.PartSince(begin);
  BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  if (rule.kind_ == Kind::kSgd && rule.option("nesterov") != 0 && rule.option("momentum") == 0) {
    return spec.Bad(whole, "nesterov needs momentum; give both or neither");
  }
  if (rule.kind_ == Kind::kProx && rule.penalty() == Penalty::kScad && rule.option("theta") <= 1) {
    return spec.Bad(whole, "theta must be above 1 for scad; its authors take 3.7");
  }
  return rule;
}

int RuleSpec::moments() const {
  const Moments& moments = RowOf(kind_).moments;
  if (moments.option != nullptr && option(moments.option) == 0) return 0;
  return moments.most;
}

double RuleSpec::option(std::string_view name) const {
  const RuleRow& row = RowOf(kind_);
  for (size_t i = 0; i < row.options.size(); ++i) {
    if (name == row.options[i].name) return values_[i];
  }
  FailCheck(absl::StrFormat("rule %s has no option '%s'", row.name, name));
}

RuleSpec::Penalty RuleSpec::penalty() const {
  return static_cast<Penalty>(static_cast<int>(option("penalty")));
}

std::string RuleSpec::text() const {
  const RuleRow& row = RowOf(kind_);
  std::vector<std::string> options;
  for (size_t i = 0; i < row.options.size(); ++i) {
    const RuleOption& option = row.options[i];
    const std::string value = ValueText(option, values_[i]);
    if (value != option.default_value) options.push_back(std::string(option.name) + "=" + value);
  }
  return SpecText(row.name, options);
}

std::string DescribeRules() {
  std::string text;
  for (const RuleRow& row : kRules) {
    std::vector<std::string> options;
    for (const RuleOption& option : row.options) {
      options.push_back(absl::StrFormat("%s=%s", option.name, option.default_value));
    }
    absl::StrAppendFormat(&text, "  %-54s %s\n", SpecText(row.name, options), row.help);
  }
  return text;
}

}  // namespace bdn
