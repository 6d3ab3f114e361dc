#include "link/rule_spec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

std::string Canonical(const std::string& text) { return RuleSpec::Parse(text).value().text(); }

TEST(RuleSpec, SaysOnlyWhatDiffersFromItsDefaultsInTheOrderOfTheTable) {
  EXPECT_EQ(Canonical("mean"), "mean");
  EXPECT_EQ(Canonical("mean()"), "mean");
  EXPECT_EQ(Canonical(" sgd ( momentum = 0.90 ) "), "sgd(momentum=0.9)");
  EXPECT_EQ(Canonical("sgd(momentum=-0,nesterov=false,decay=0)"), "sgd");
  EXPECT_EQ(Canonical("sgd(decay=1e-4,nesterov=true,momentum=.5)"),
            "sgd(momentum=0.5,nesterov=true,decay=1e-04)");
  EXPECT_EQ(Canonical("adamw(eps=1e-8,decay=-0,beta1=0.9)"), "adamw(decay=0)");
  EXPECT_EQ(Canonical("sign_momentum(eta=2,decay=0.1)"), "sign_momentum(eta=2)");
  EXPECT_EQ(Canonical("nesterov(lr=0.5)"), "nesterov(lr=0.5)");
  EXPECT_EQ(Canonical("slowmo(beta=0,alpha=1e6)"), "slowmo(beta=0,alpha=1e+06)");
  EXPECT_EQ(Canonical("average"), "average");
  EXPECT_EQ(Canonical("prox(rho=1,penalty=l1,lambda=0.01)"), "prox");
  EXPECT_EQ(Canonical("prox(theta=1,rho=.5,lambda=-0,penalty= mcp)"),
            "prox(penalty=mcp,lambda=0,theta=1,rho=0.5)");
  for (const char* text : {"sgd(momentum=0.9,decay=1e-05)", "slowmo(beta=0,alpha=1e+06)",
                           "prox(penalty=capped,rho=2)"}) {
    EXPECT_EQ(Canonical(Canonical(text)), text);
  }
}

TEST(RuleSpec, KnowsItsOptionsAndWhatItTakes) {
  const RuleSpec adamw = RuleSpec::Parse("adamw(beta1=0.8)").value();
  EXPECT_EQ(adamw.kind(), RuleSpec::Kind::kAdamW);
  EXPECT_EQ(adamw.option("beta1"), 0.8);
  EXPECT_EQ(adamw.option("beta2"), 0.999);
  EXPECT_EQ(adamw.option("eps"), 1e-8);
  EXPECT_EQ(adamw.option("decay"), 0.01);
  EXPECT_EQ(RuleSpec::Parse("sgd(momentum=0.9,nesterov=true)").value().option("nesterov"), 1);
  const RuleSpec prox = RuleSpec::Parse("prox(penalty=mcp)").value();
  EXPECT_EQ(prox.penalty(), RuleSpec::Penalty::kMcp);
  EXPECT_EQ(prox.option("theta"), 3.7);
  EXPECT_EQ(RuleSpec::Parse("prox").value().penalty(), RuleSpec::Penalty::kL1);
  EXPECT_EQ(RuleSpec::Parse("prox(penalty=scad)").value().penalty(), RuleSpec::Penalty::kScad);
  EXPECT_EQ(RuleSpec::Parse("prox(penalty=capped)").value().penalty(), RuleSpec::Penalty::kCapped);
  for (const char* text : {"sgd", "adamw", "nesterov", "slowmo", "average", "prox"}) {
    EXPECT_TRUE(RuleSpec::Parse(text).value().holds_weights()) << text;
    EXPECT_FALSE(RuleSpec::Parse(text).value().steps_by_signs()) << text;
  }
  EXPECT_TRUE(RuleSpec::Parse("sign_momentum").value().holds_weights());
  EXPECT_TRUE(RuleSpec::Parse("sign_momentum").value().steps_by_signs());
  EXPECT_FALSE(RuleSpec::Parse("mean").value().holds_weights());
}

TEST(RuleSpec, KeepsAsManyMomentsAsItsRowSays) {
  const std::pair<const char*, int> cases[] = {
      {"mean", 0},   {"sgd", 0},           {"sgd(momentum=0.9)", 1},
      {"adamw", 2},  {"sign_momentum", 1}, {"nesterov", 1},
      {"slowmo", 1}, {"average", 0},       {"prox(penalty=scad)", 0}};
  for (const auto& [text, moments] : cases) {
    EXPECT_EQ(RuleSpec::Parse(text).value().moments(), moments) << text;
  }
}

TEST(RuleSpecDeathTest, AMisspeltOptionNameIsOurOwnMistake) {
  const RuleSpec sgd = RuleSpec::Parse("sgd(momentum=0.9)").value();
  EXPECT_DEATH((void)sgd.option("momemtum"), "rule sgd has no option 'momemtum'");
}

TEST(RuleSpec, NamesWhatIsWrongAndWhatThereIs) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "expected a rule: mean, sgd"},
      {"adamv", "did you mean adamw?"},
      {"sgd(momentum=0.9", "expected a closing )"},
      {"sgd(", "expected a closing )"},
      {"sgd(momentum=0.9)x", "expected the end here"},
      {"sgd(momemtum=0.9)", "did you mean momentum?"},
      {"average(lr=1)", "average takes no options"},
      {"sgd(zeal=1)", "unknown option of sgd 'zeal'; known: momentum, nesterov, decay"},
      {"sgd(momentum=0.9,momentum=0.9)", "momentum is given twice"},
      {"sgd(momentum)", "expected = and a value"},
      {"sgd(momentum=1)", "momentum must be a number from 0 to below 1"},
      {"sgd(momentum=-0.1)", "momentum must be a number from 0 to below 1"},
      {"sgd(momentum=nan)", "momentum must be"},
      {"sgd(momentum=0.9z)", "momentum must be"},
      {"sgd(decay=inf)", "decay must be a number from 0 to 1e6"},
      {"sgd(decay=1e7)", "decay must be a number from 0 to 1e6"},
      {"sgd(momentum=0.9,nesterov=1)", "nesterov must be true or false"},
      {"sgd(nesterov=true)", "nesterov needs momentum"},
      {"adamw(eps=0)", "eps must be a number from 1e-30 to 1e6"},
      {"adamw(eps=1e-50)", "eps must be a number from 1e-30 to 1e6"},
      {"adamw(eps=1e-400)", "eps must be"},
      {"nesterov(lr=0)", "lr must be"},
      {"prox(penalty=lasso)", "penalty must be l1, scad, mcp or capped"},
      {"prox(penalty=0)", "penalty must be l1, scad, mcp or capped"},
      {"prox(lambda=-1)", "lambda must be a number from 0 to 1e6"},
      {"prox(rho=0)", "rho must be a number from 1e-30 to 1e6"},
      {"prox(theta=nan)", "theta must be a number from 1e-30 to 1e6"},
      {"prox(penalty=scad,theta=1)", "theta must be above 1 for scad"},
  };
  for (const auto& [text, why] : cases) {
    const absl::Status status = RuleSpec::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("update rule: ")) << text;
  }
}

TEST(RuleSpec, PutsACaretUnderTheBadPart) {
  EXPECT_EQ(RuleSpec::Parse("sgd(momentum=1.5)").status().message(),
            "update rule: momentum must be a number from 0 to below 1\n"
            "  sgd(momentum=1.5)\n"
            "               ^^^");
  EXPECT_EQ(RuleSpec::Parse("adamv(eps=1)").status().message(),
            "update rule: unknown rule 'adamv'; did you mean adamw?\n"
            "  adamv(eps=1)\n"
            "  ^^^^^");
}

TEST(RuleSpec, DescribesEveryRuleByALineThatParses) {
  const std::string help = DescribeRules();
  for (const char* line : {"mean ", "sgd(momentum=0,nesterov=false,decay=0) ", "average ",
                           "adamw(beta1=0.9,beta2=0.999,eps=1e-08,decay=0.01) ",
                           "prox(penalty=l1,lambda=0.01,theta=3.7,rho=1) "}) {
    EXPECT_THAT(help, HasSubstr(std::string("  ") + line));
  }
  EXPECT_EQ(Canonical("adamw(beta1=0.9,beta2=0.999,eps=1e-08,decay=0.01)"), "adamw");
}

}  // namespace
}  // namespace bdn
