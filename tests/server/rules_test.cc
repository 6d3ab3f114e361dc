#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

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
  for (const char* text :
       {"sgd", "sgd(momentum=0.9)", "adamw", "sign_momentum", "nesterov", "slowmo", "average"}) {
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
    const bool own_rate = c.rule.starts_with("nesterov") || c.rule == "average";
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

TEST(Rules, MeanHasNone) { EXPECT_EQ(MakeUpdateRule(RuleSpec::Parse("mean").value()), nullptr); }

}  // namespace
}  // namespace bdn
