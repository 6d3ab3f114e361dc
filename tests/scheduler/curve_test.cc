#include "scheduler/curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bdn {
namespace {

TEST(Curve, HasAPointAStepWhateverTheOrder) {
  Curve curve;
  for (const Step step : {7, 3, 5}) curve.Add(step, 10.0 * static_cast<double>(step));
  const auto points = curve.Points();
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].step, 3u);
  EXPECT_EQ(points[0].value, 30);
  EXPECT_EQ(points[2].step, 7u);
  EXPECT_EQ(curve.steps_per_point(), 1u);
}

TEST(Curve, APointIsTheMeanOfWhatWorkersSaid) {
  Curve curve;
  curve.Add(4, 1);
  curve.Add(4, 2);
  ASSERT_EQ(curve.Points().size(), 1u);
  EXPECT_EQ(curve.Points()[0].value, 1.5);
}

TEST(Curve, HalvesItsResolutionWhenItIsFull) {
  Curve curve;
  constexpr Step kSteps = 4 * Curve::kMostPoints;
  for (Step step = 0; step < kSteps; ++step) curve.Add(step, static_cast<double>(step));
  const auto points = curve.Points();
  EXPECT_EQ(curve.steps_per_point(), 4u);
  ASSERT_EQ(points.size(), Curve::kMostPoints);
  EXPECT_EQ(points[1].step, 4u);
  EXPECT_EQ(points[1].value, (4 + 5 + 6 + 7) / 4.0);
}

TEST(Curve, AValueThatIsNotFiniteIsAGapHoweverManyShareItsPoint) {
  Curve curve;
  curve.Add(0, 1);
  curve.Add(1, std::numeric_limits<double>::infinity());
  curve.Add(1, -std::numeric_limits<double>::infinity());
  curve.Add(2, std::nan(""));
  for (Step step = 3; step <= Curve::kMostPoints; ++step) curve.Add(step, 1);
  const auto points = curve.Points();  // two steps each by now
  EXPECT_TRUE(std::isnan(points[0].value));
  EXPECT_TRUE(std::isnan(points[1].value));
  EXPECT_EQ(points[2].value, 1);
}

TEST(Curve, StaysBoundedWhateverTheSteps) {
  Curve curve;
  uint64_t scattered = 1;
  for (int i = 0; i < 3000; ++i) {
    scattered = scattered * 6364136223846793005u + 1442695040888963407u;
    curve.Add(scattered, 1);
    ASSERT_LE(curve.Points().size(), Curve::kMostPoints);
  }
  curve.Add(std::numeric_limits<Step>::max(), 2);
  EXPECT_GT(curve.Points().size(), Curve::kMostPoints / 4) << "it keeps what it can";
}

}  // namespace
}  // namespace bdn
