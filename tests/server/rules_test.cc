#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "server/update_rule.h"
#include "tests/support/normal_values.h"

// Every rule against its formula in float64.

namespace bdn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using Floats = std::vector<float>;
constexpr size_t kN = 67;
constexpr int kUpdates = 20;
constexpr float kInverseWeight = 1.0f / 3;

std::unique_ptr<const UpdateRule> Rule(const std::string& text) {
  return MakeUpdateRule(RuleSpec::Parse(text).value());
}

TEST(UpdateRules, KeepAsManyMomentsAsTheirSpecSays) {
  for (const char* text : {"sgd", "sgd(momentum=0.9)", "adamw", "sign_momentum", "nesterov",
                           "slowmo", "average", "prox", "prox(penalty=mcp)"}) {
    const RuleSpec spec = RuleSpec::Parse(text).value();
    EXPECT_EQ(MakeUpdateRule(spec)->slots(), spec.moments()) << text;
  }
}

struct State {
  Floats weights;
  Floats moments[UpdateSlice::kMaxSlots];
};

State StartOf(Floats weights) {
  return {weights, {Floats(weights.size(), 0.0f), Floats(weights.size(), 0.0f)}};
}

// One update, in runs of at most `run` elements; returns what it leaves in the sum.
Floats Update(const UpdateRule& rule, Floats sum, const UpdateFacts& facts, State* state,
              size_t run = ~size_t{0}) {
  for (size_t at = 0; at < sum.size(); at += std::min(run, sum.size() - at)) {
    UpdateSlice slice{.sum = sum.data() + at,
                      .weights = state->weights.data() + at,
                      .n = std::min(run, sum.size() - at)};
    for (int slot = 0; slot < rule.slots(); ++slot) {
      slice.moments[slot] = state->moments[slot].data() + at;
    }
    rule.Update(slice, facts);
  }
  return sum;
}

UpdateFacts FactsOf(int update) {
  return {.inverse_weight = kInverseWeight,
          .learning_rate = 0.1f / static_cast<float>(1 + update),
          .updates = static_cast<uint64_t>(update)};
}

// One element in float64: g is the mean, t counts from 1.
struct Element {
  double x = 0;
  double m = 0;
  double v = 0;
};
using Formula = std::function<void(double g, double lr, int t, Element* e)>;

struct Case {
  std::string rule;
  int slots;
  Formula formula;
};

double SignOf(double value) { return (value > 0) - (value < 0); }

// The options of a rule `prox`.
struct ProxOptions {
  explicit ProxOptions(const std::string& text) {
    const RuleSpec spec = RuleSpec::Parse(text).value();
    penalty = spec.penalty();
    lambda = spec.option("lambda");
    theta = spec.option("theta");
    rho = spec.option("rho");
  }
  RuleSpec::Penalty penalty;
  double lambda, theta, rho;
};

// A penalty of v >= 0, as its authors have it.
double PenaltyOf(const ProxOptions& options, double v) {
  const double l = options.lambda, t = options.theta;
  switch (options.penalty) {
    case RuleSpec::Penalty::kL1:
      return l * v;
    case RuleSpec::Penalty::kScad:
      if (v <= l) return l * v;
      if (v <= t * l) return (2 * t * l * v - v * v - l * l) / (2 * (t - 1));
      return l * l * (t + 1) / 2;
    case RuleSpec::Penalty::kMcp:
      return v <= t * l ? l * v - v * v / (2 * t) : t * l * l / 2;
    case RuleSpec::Penalty::kCapped:
      return l * std::min(v, t);
  }
  return 0;
}

double ProxValue(const ProxOptions& options, double pull, double u, double v) {
  return PenaltyOf(options, v) + pull / 2 * (v - u) * (v - u);
}

// Finds the smallest v of least value by a search of ever finer grids around the best point.
Formula ProxFormula(const std::string& text) {
  return [options = ProxOptions(text)](double d, double, int, Element* e) {
    const double m = e->x - d, u = std::abs(m), pull = options.rho * 3;
    double low = 0, high = u + options.theta;
    for (int finer = 0; finer < 6; ++finer) {
      constexpr int kPoints = 2000;
      const double gap = (high - low) / kPoints;
      double best = low, least = ProxValue(options, pull, u, low);
      for (int i = 1; i <= kPoints; ++i) {
        const double v = low + i * gap, value = ProxValue(options, pull, u, v);
        if (value < least) best = v, least = value;
      }
      low = std::max(0.0, best - 2 * gap), high = best + 2 * gap;
    }
    e->x = SignOf(m) * (low + high) / 2;
    if (high - low < 1e-9 && low == 0) e->x = 0;
  };
}

std::vector<Case> Cases() {
  const auto adamw = [](double beta1, double beta2, double eps, double decay) {
    return [=](double g, double lr, int t, Element* e) {
      e->x *= 1 - lr * decay;
      e->m += (1 - beta1) * (g - e->m);
      e->v = beta2 * e->v + (1 - beta2) * g * g;
      const double root = std::sqrt(e->v) / std::sqrt(1 - std::pow(beta2, t));
      e->x -= lr / (1 - std::pow(beta1, t)) * e->m / (root + eps);
    };
  };
  return {
      {"sgd", 0, [](double g, double lr, int, Element* e) { e->x -= lr * g; }},
      {"sgd(decay=0.1)", 0,
       [](double g, double lr, int, Element* e) { e->x -= lr * (g + 0.1 * e->x); }},
      {"sgd(momentum=0.9,decay=0.01)", 1,
       [](double g, double lr, int, Element* e) {
         e->m = 0.9 * e->m + g + 0.01 * e->x;
         e->x -= lr * e->m;
       }},
      {"sgd(momentum=0.9,nesterov=true,decay=0.01)", 1,
       [](double g, double lr, int, Element* e) {
         g += 0.01 * e->x;
         e->m = 0.9 * e->m + g;
         e->x -= lr * (g + 0.9 * e->m);
       }},
      {"adamw", 2, adamw(0.9, 0.999, 1e-8, 0.01)},
      {"adamw(beta1=0.8,beta2=0.95,eps=0.001,decay=0.5)", 2, adamw(0.8, 0.95, 0.001, 0.5)},
      {"sign_momentum(beta1=0.9,beta2=0.8,eta=0.5)", 1,
       [](double difference, double lr, int, Element* e) {
         const double d = difference / lr;
         const double u = 0.9 * e->m + (1 - 0.9) * d;
         e->m = 0.8 * e->m + (1 - 0.8) * d;
         e->x = (1 - 0.1 * 0.5 * lr) * e->x - 0.5 * lr * SignOf(u);
       }},
      {"nesterov(lr=0.6,momentum=0.8)", 1,
       [](double d, double, int, Element* e) {
         e->m = 0.8 * e->m + d;
         e->x -= 0.6 * (d + 0.8 * e->m);
       }},
      {"slowmo(beta=0.7,alpha=0.9)", 1,
       [](double d, double lr, int, Element* e) {
         e->m = 0.7 * e->m + d / lr;
         e->x -= 0.9 * lr * e->m;
       }},
      {"average", 0, [](double d, double, int, Element* e) { e->x -= d; }},
      {"prox(lambda=0.2,rho=0.5)", 0, ProxFormula("prox(lambda=0.2,rho=0.5)")},
      {"prox(penalty=scad,lambda=0.3,theta=2.5)", 0,
       ProxFormula("prox(penalty=scad,lambda=0.3,theta=2.5)")},
      {"prox(penalty=mcp,lambda=0.3,theta=2,rho=0.5)", 0,
       ProxFormula("prox(penalty=mcp,lambda=0.3,theta=2,rho=0.5)")},
      {"prox(penalty=capped,lambda=0.3,theta=0.5)", 0,
       ProxFormula("prox(penalty=capped,lambda=0.3,theta=0.5)")},
  };
}

TEST(Rules, FollowTheirFormulasOverManyUpdates) {
  for (const Case& c : Cases()) {
    const auto rule = Rule(c.rule);
    ASSERT_EQ(rule->slots(), c.slots) << c.rule;
    State state = StartOf(Normal(kN, 1));
    std::vector<Element> expected(kN);
    for (size_t i = 0; i < kN; ++i) expected[i].x = state.weights[i];
    for (int update = 0; update < kUpdates; ++update) {
      const Floats sum = Normal(kN, 100 + update);
      const UpdateFacts facts = FactsOf(update);
      Update(*rule, sum, facts, &state);
      for (size_t i = 0; i < kN; ++i) {
        c.formula(sum[i] / 3.0, facts.learning_rate, update + 1, &expected[i]);
      }
    }
    const auto near = [](float ours, double exact) {
      EXPECT_NEAR(ours, exact, 4e-6 * (1 + std::abs(exact)));
    };
    for (size_t i = 0; i < kN; ++i) {
      SCOPED_TRACE(c.rule + " element " + std::to_string(i));
      near(state.weights[i], expected[i].x);
      if (c.slots > 0) near(state.moments[0][i], expected[i].m);
      if (c.slots > 1) near(state.moments[1][i], expected[i].v);
    }
  }
}

TEST(Rules, GiveTheSameBitsHoweverTheWorkIsSplit) {
  for (const Case& c : Cases()) {
    const auto rule = Rule(c.rule);
    State whole = StartOf(Normal(kN, 2));
    const State start = whole;
    for (const size_t run : {1, 5, 16, 33}) {
      State split = start;
      whole = start;
      for (int update = 0; update < kUpdates; ++update) {
        const Floats sum = Normal(kN, 200 + update);
        Update(*rule, sum, FactsOf(update), &whole);
        Update(*rule, sum, FactsOf(update), &split, run);
      }
      EXPECT_EQ(split.weights, whole.weights) << c.rule;
      EXPECT_EQ(split.moments[0], whole.moments[0]) << c.rule;
      EXPECT_EQ(split.moments[1], whole.moments[1]) << c.rule;
    }
  }
}

TEST(Rules, GiveTheSameBitsOnEveryTarget) {
  for (const Case& c : Cases()) {
    const auto rule = Rule(c.rule);
    const State start = StartOf(Normal(kN, 6));
    std::optional<State> first;
    std::optional<Floats> first_left;
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget scoped(target);
      State state = start;
      Floats left;
      for (int update = 0; update < kUpdates; ++update) {
        left = Update(*rule, Normal(kN, 300 + update), FactsOf(update), &state);
      }
      if (!first.has_value()) first = state;
      if (!first_left.has_value()) first_left = left;
      EXPECT_EQ(left, *first_left) << c.rule << " on " << target;
      EXPECT_EQ(state.weights, first->weights) << c.rule << " on " << target;
      EXPECT_EQ(state.moments[0], first->moments[0]) << c.rule << " on " << target;
      EXPECT_EQ(state.moments[1], first->moments[1]) << c.rule << " on " << target;
    }
  }
}

TEST(Rules, ALearningRateOfZeroMovesOnlyWhatHasARateOfItsOwn) {
  for (const Case& c : Cases()) {
    const auto rule = Rule(c.rule);
    State state = StartOf(Normal(kN, 3));
    Update(*rule, Normal(kN, 4), FactsOf(0), &state);  // moments that are not 0
    const State before = state;
    Update(*rule, Normal(kN, 5), {.learning_rate = 0, .updates = 1}, &state);
    const bool own_rate =
        c.rule.starts_with("nesterov") || c.rule.starts_with("prox") || c.rule == "average";
    EXPECT_EQ(state.weights == before.weights, !own_rate) << c.rule;
    for (const float m : state.moments[0]) EXPECT_TRUE(std::isfinite(m)) << c.rule;
  }
}

TEST(Rules, DifferencesOverALearningRateOfZeroCountAsZero) {
  State state = StartOf({1, 1});
  state.moments[0] = {0.5f, -0.5f};
  Update(*Rule("sign_momentum(beta1=0.5,beta2=0.5)"), {7, 7}, {.learning_rate = 0}, &state);
  EXPECT_THAT(state.moments[0], ElementsAre(0.25f, -0.25f));
  Update(*Rule("slowmo(beta=0.5)"), {7, 7}, {.learning_rate = 0}, &state);
  EXPECT_THAT(state.moments[0], ElementsAre(0.125f, -0.125f));
}

TEST(Rules, SignMomentumLeavesItsDirectionAndZerosHaveNone) {
  State state = StartOf({3, -0.0f, 3, 3});
  const Floats signs =
      Update(*Rule("sign_momentum(decay=0)"), {0, -0.0f, 1e-30f, -5}, FactsOf(0), &state);
  EXPECT_THAT(signs, ElementsAre(0, 0, 1, -1));
  EXPECT_THAT(state.weights, ElementsAre(3, -0.0f, 3 - 0.1f, 3 + 0.1f));

  State decaying = StartOf({3});
  Update(*Rule("sign_momentum(decay=0.5)"), {0}, FactsOf(0), &decaying);
  EXPECT_THAT(decaying.weights, ElementsAre(0.95f * 3));
}

TEST(Rules, AdamWCorrectsTheBiasOfItsFirstMoments) {
  const auto rule = Rule("adamw(decay=0)");
  State first = StartOf({0, 0, 0});
  Update(*rule, {3, -0.01f, 0}, {.learning_rate = 0.5f}, &first);
  EXPECT_NEAR(first.weights[0], -0.5f, 1e-6);
  EXPECT_NEAR(first.weights[1], 0.5f, 1e-6);
  EXPECT_EQ(first.weights[2], 0.0f);
  State late = StartOf({0});  // the correction has worn off, the moments have not grown
  Update(*rule, {3}, {.learning_rate = 0.5f, .updates = 100000}, &late);
  EXPECT_NEAR(late.weights[0], -0.5 * 0.1 / std::sqrt(0.001), 1e-5);
}

// Each penalty at one factor of the square and one strength. No point of a fine grid may be better
// than the rule's, and of equal ones the smallest counts.
TEST(Rules, ProxIsNeverAboveTheLeastValueOfAGrid) {
  constexpr int kPoints = 160001;
  constexpr double kGap = 5e-5;
  const Floats means = {-4.0f, -1.5f, -0.3f, 0.0f, 0.05f, 0.2f, 0.45f, 0.7f, 1.0f,
                        1.3f,  1.6f,  2.0f,  2.5f, 3.1f,  3.9f, 5.0f,  6.5f};
  struct Strength {
    double pull, lambda, theta;
  };
  std::vector<Strength> strengths;
  for (const double pull : {0.2, 0.5, 1.0, 2.0, 4.0}) {
    for (const double lambda : {0.1, 0.5, 1.5}) {
      for (const double theta : {1.1, 2.0, 3.7}) strengths.push_back({pull, lambda, theta});
    }
  }
  for (const char* penalty : {"l1", "scad", "mcp", "capped"}) {
    for (const Strength& strength : strengths) {
      // Two workers, so that half of the factor is rho.
      const std::string text =
          absl::StrFormat("prox(penalty=%s,lambda=%g,theta=%g,rho=%g)", penalty, strength.lambda,
                          strength.theta, strength.pull / 2);
      const ProxOptions options(text);
      State state = StartOf(means);
      Update(*Rule(text), Floats(means.size(), 0.0f), {.inverse_weight = 0.5f}, &state);
      std::vector<double> penalties(kPoints);
      for (int at = 0; at < kPoints; ++at) penalties[at] = PenaltyOf(options, kGap * at);
      for (size_t i = 0; i < means.size(); ++i) {
        SCOPED_TRACE(text + " of " + std::to_string(means[i]));
        const double u = std::abs(means[i]), v = std::abs(state.weights[i]);
        double least = std::numeric_limits<double>::infinity();
        for (int at = 0; at < kPoints; ++at) {
          const double away = kGap * at - u;
          least = std::min(least, penalties[at] + strength.pull / 2 * away * away);
        }
        EXPECT_LE(ProxValue(options, strength.pull, u, v), least + 1e-6);
        EXPECT_TRUE(v == 0 || (state.weights[i] < 0) == (means[i] < 0));
      }
    }
  }
}

TEST(Rules, ProxTakesTheSmallestOfEqualMinima) {
  // Here the values at 0 and at 1 are 0.25 each: theta * lambda^2 / 2, and pull / 2.
  State state = StartOf({1, -1, 1.001f, -1.001f, 0.999f});
  const UpdateFacts one{.inverse_weight = 1};
  Update(*Rule("prox(penalty=mcp,lambda=1,theta=0.5,rho=0.5)"), Floats(5, 0.0f), one, &state);
  EXPECT_THAT(state.weights, ElementsAre(0, 0, 1.001f, -1.001f, 0));
  // Here the values at 0.5 and at 1.5 are 0.5 + 0.5, and 1.
  State capped = StartOf({1.5f, 1.6f, 1.4f});
  Update(*Rule("prox(penalty=capped,lambda=1,theta=1)"), Floats(3, 0.0f), one, &capped);
  EXPECT_THAT(capped.weights, ElementsAre(0.5f, 1.6f, 1.4f - 1.0f));
}

TEST(Rules, ProxLeavesNoZeroWithASign) {
  const auto expect_zeros = [](const char* rule, const Floats& weights, const Floats& sum) {
    State state = StartOf(weights);
    Update(*Rule(rule), sum, {.inverse_weight = 1}, &state);
    for (const float x : state.weights) {
      EXPECT_EQ(x, 0.0f) << rule;
      EXPECT_FALSE(std::signbit(x)) << rule;
    }
  };
  expect_zeros("prox", {-0.005f, 0.005f, -0.0f, -2}, {0, 0, 0, -2});
  for (const char* const penalty : {"l1", "scad", "mcp", "capped"}) {
    expect_zeros(absl::StrFormat("prox(penalty=%s,lambda=0)", penalty).c_str(), {-0.0f, 0, -2},
                 {0, 0, -2});
  }
  // The rest of this weight is too small for float32.
  expect_zeros("prox(lambda=1.2e-45,rho=1)", {-1.4e-45f}, {0});
}

TEST(Rules, ProxPullsAsOftenAsThereAreWorkers) {
  const auto rule = Rule("prox(lambda=1,rho=0.5)");
  State four = StartOf({3});
  Update(*rule, {0}, {.inverse_weight = 0.25f}, &four);
  EXPECT_EQ(four.weights[0], 2.5f);
  State one = StartOf({3});
  Update(*rule, {0}, {.inverse_weight = 1}, &one);
  EXPECT_EQ(one.weights[0], 1.0f);
}

TEST(Rules, MeanHasNone) { EXPECT_EQ(MakeUpdateRule(RuleSpec::Parse("mean").value()), nullptr); }

}  // namespace
}  // namespace bdn
