#include "common/cluster/rule_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "common/base/nearest_name.h"
#include "common/base/status.h"

namespace bdn {
namespace {

enum class Range { kFlag, kShare, kPositive, kNotNegative };

struct OptionRow {
  const char* name;
  double default_value;
  Range range;
};

struct RuleRow {
  RuleSpec::Kind kind;
  const char* name;
  std::span<const OptionRow> options;
  const char* help;
};

constexpr std::array kSgd = {OptionRow{"momentum", 0, Range::kShare},
                             OptionRow{"nesterov", 0, Range::kFlag},
                             OptionRow{"decay", 0, Range::kNotNegative}};
constexpr std::array kAdamW = {
    OptionRow{"beta1", 0.9, Range::kShare}, OptionRow{"beta2", 0.999, Range::kShare},
    OptionRow{"eps", 1e-8, Range::kPositive}, OptionRow{"decay", 0.01, Range::kNotNegative}};
constexpr std::array kSignMomentum = {
    OptionRow{"beta1", 0.95, Range::kShare}, OptionRow{"beta2", 0.98, Range::kShare},
    OptionRow{"eta", 1, Range::kPositive}, OptionRow{"decay", 0.1, Range::kNotNegative}};
constexpr std::array kNesterov = {OptionRow{"lr", 0.7, Range::kPositive},
                                  OptionRow{"momentum", 0.9, Range::kShare}};
constexpr std::array kSlowMo = {OptionRow{"beta", 0.5, Range::kShare},
                                OptionRow{"alpha", 1, Range::kPositive}};

using Kind = RuleSpec::Kind;
const std::array kRules = {
    RuleRow{Kind::kMean, "mean", {}, "the weighted mean goes back to the workers"},
    RuleRow{Kind::kSgd, "sgd", kSgd, "the servers hold the weights and step by SGD"},
    RuleRow{Kind::kAdamW, "adamw", kAdamW, "the servers hold the weights and step by AdamW"},
    RuleRow{Kind::kSignMomentum, "sign_momentum", kSignMomentum,
            "outer step after local ones: the sign of a momentum"},
    RuleRow{Kind::kNesterov, "nesterov", kNesterov, "outer step after local ones: DiLoCo's"},
    RuleRow{Kind::kSlowMo, "slowmo", kSlowMo, "outer step after local ones: slow momentum"},
    RuleRow{Kind::kAverage, "average", {}, "outer step after local ones: the mean of the weights"},
};

const RuleRow& RowOf(Kind kind) {
  return *std::find_if(kRules.begin(), kRules.end(),
                       [kind](const RuleRow& row) { return row.kind == kind; });
}

const char* Expected(Range range) {
  switch (range) {
    case Range::kFlag:
      return "true or false";
    case Range::kShare:
      return "a number from 0 to below 1";
    case Range::kPositive:
      return "a number from 1e-30 to 1e6";
    case Range::kNotNegative:
      return "a number from 0 to 1e6";
  }
  return "";
}

// Far beyond any use, and far from where float32 underflows and overflows.
constexpr double kLeast = 1e-30;
constexpr double kMost = 1e6;

bool ParseValue(std::string_view text, Range range, double* value) {
  if (range == Range::kFlag) {
    *value = text == "true" ? 1 : 0;
    return text == "true" || text == "false";
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (!(*value >= 0 && *value <= kMost)) return false;
  *value += 0.0;  // -0 becomes 0
  if (range == Range::kShare) return *value < 1;
  return range == Range::kNotNegative || *value >= kLeast;
}

std::string ValueText(Range range, double value) {
  if (range == Range::kFlag) return value != 0 ? "true" : "false";
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

template <typename Rows>
std::string Unknown(const char* what, std::string_view name, const Rows& rows) {
  std::vector<std::string> known;
  std::string all;
  for (const auto& row : rows) {
    known.emplace_back(row.name);
    all += (all.empty() ? "" : ", ") + known.back();
  }
  const std::string nearest = NearestName(name, known);
  return absl::StrFormat("unknown %s '%s'; ", what, std::string(name)) +
         (nearest.empty() ? "there is: " + all : "did you mean " + nearest + "?");
}

std::string WithoutSpaces(std::string_view text) {
  std::string kept(text);
  std::erase(kept, ' ');
  return kept;
}

}  // namespace

absl::StatusOr<RuleSpec> RuleSpec::Parse(std::string_view text) {
  const std::string whole = WithoutSpaces(text);
  const auto bad = [&whole](const std::string& what) {
    return InvalidArgument("update rule '%s': %s", whole, what);
  };
  std::string_view rest = whole;
  const std::string_view name = rest.substr(0, rest.find('('));
  const auto row = std::find_if(kRules.begin(), kRules.end(),
                                [name](const RuleRow& known) { return known.name == name; });
  if (row == kRules.end()) return bad(Unknown("rule", name, kRules));
  RuleSpec spec;
  spec.kind_ = row->kind;
  for (const OptionRow& option : row->options) spec.values_.push_back(option.default_value);
  rest.remove_prefix(name.size());
  if (rest.empty()) return spec;
  if (rest.size() < 2 || rest.back() != ')') return bad("expected a closing )");
  rest = rest.substr(1, rest.size() - 2);
  std::vector<bool> given(row->options.size(), false);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const std::string_view key = item.substr(0, item.find('='));
    const auto option = std::find_if(row->options.begin(), row->options.end(),
                                     [key](const OptionRow& known) { return known.name == key; });
    if (option == row->options.end()) return bad(Unknown("option", key, row->options));
    const size_t i = option - row->options.begin();
    if (given[i]) return bad(absl::StrFormat("%s is given twice", option->name));
    given[i] = true;
    const std::string_view value = item.substr(std::min(item.size(), key.size() + 1));
    if (!ParseValue(value, option->range, &spec.values_[i])) {
      return bad(absl::StrFormat("%s must be %s", option->name, Expected(option->range)));
    }
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
  }
  if (spec.kind_ == Kind::kSgd && spec.option("nesterov") != 0 && spec.option("momentum") == 0) {
    return bad("nesterov needs momentum; give both or neither");
  }
  return spec;
}

double RuleSpec::option(std::string_view name) const {
  const RuleRow& row = RowOf(kind_);
  for (size_t i = 0; i < row.options.size(); ++i) {
    if (name == row.options[i].name) return values_[i];
  }
  return 0;
}

std::string RuleSpec::text() const {
  const RuleRow& row = RowOf(kind_);
  std::string options;
  for (size_t i = 0; i < row.options.size(); ++i) {
    if (values_[i] == row.options[i].default_value) continue;
    absl::StrAppendFormat(&options, "%s%s=%s", options.empty() ? "" : ",", row.options[i].name,
                          ValueText(row.options[i].range, values_[i]));
  }
  return options.empty() ? row.name : absl::StrFormat("%s(%s)", row.name, options);
}

std::string DescribeRules() {
  std::string text;
  for (const RuleRow& row : kRules) {
    std::string options;
    for (const OptionRow& option : row.options) {
      absl::StrAppendFormat(&options, "%s%s=%s", options.empty() ? "(" : ",", option.name,
                            ValueText(option.range, option.default_value));
    }
    if (!options.empty()) options += ")";
    text += absl::StrFormat("  %-54s %s\n", row.name + options, row.help);
  }
  return text;
}

}  // namespace bdn
