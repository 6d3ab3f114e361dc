#include "common/cluster/event_delivery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using ::testing::ElementsAre;

// The events that a scheduler sends, right or wrong, and their effects.
class EventDeliveryTest : public ::testing::Test {
 protected:
  static wire::Event Placed(uint32_t catalogue) {
    wire::Event event;
    Write(PlacementVersion{1, catalogue}, event.mutable_placed());
    return event;
  }

  absl::Status fetching_;
  std::vector<uint32_t> versions_;  // that were delivered
  EventDelivery delivery_{
      {.on_catalogue =
           [this](const SharedDelta& delta) { versions_.push_back(delta->version.catalogue); }},
      [this](uint32_t version) -> absl::StatusOr<SharedDelta> {
        if (!fetching_.ok()) return fetching_;
        return std::make_shared<const CatalogueDelta>(CatalogueDelta{.version = {1, version}});
      }};
};

TEST_F(EventDeliveryTest, EveryVersionOfTheCatalogueIsDeliveredOnceInOrder) {
  ASSERT_TRUE(delivery_.Deliver(Placed(1)).ok());
  ASSERT_TRUE(delivery_.Deliver(Placed(4)).ok());
  ASSERT_TRUE(delivery_.Deliver(Placed(4)).ok());  // the stream began anew
  EXPECT_THAT(versions_, ElementsAre(1, 2, 3, 4));
}

TEST_F(EventDeliveryTest, AVersionThatCannotBeFetchedIsNotDelivered) {
  fetching_ = absl::InvalidArgumentError("key 0.0 has no owner");
  EXPECT_EQ(delivery_.Deliver(Placed(2)), fetching_);
  EXPECT_TRUE(versions_.empty());
}

TEST_F(EventDeliveryTest, AFailureIsReturnedAndNotDelivered) {
  wire::Event event;
  Write(absl::AbortedError("worker 1 is gone"), event.mutable_failure());
  EXPECT_EQ(delivery_.Deliver(event), absl::AbortedError("worker 1 is gone"));
}

}  // namespace
}  // namespace bdn
