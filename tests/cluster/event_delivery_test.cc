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

TEST_F(EventDeliveryTest, AnOrderToSendRecordsIsCheckedAndTaken) {
  std::vector<DumpOrder> orders;
  EventDelivery delivery({}, nullptr, [&](const DumpOrder& order) { orders.push_back(order); });
  const DumpOrder order = {.number = 7, .most_bytes = 5000, .last = absl::Seconds(3)};
  wire::Event event;
  Write(order, event.mutable_dump());
  ASSERT_TRUE(delivery.Deliver(event).ok());
  event.mutable_dump()->set_last_ns(0);
  ASSERT_TRUE(delivery.Deliver(event).ok());
  ASSERT_EQ(orders.size(), 2);
  EXPECT_EQ(orders[0], order);
  EXPECT_EQ(orders[1].last, absl::InfiniteDuration());
  const auto refused = [&](auto spoil) {
    wire::Event spoiled = event;
    spoil(spoiled.mutable_dump());
    return delivery.Deliver(spoiled).code();
  };
  EXPECT_EQ(refused([](auto* o) { o->set_number(0); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto* o) { o->set_most_bytes(0); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto* o) { o->set_most_bytes(kMostDumpBytes + 1); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto* o) { o->set_last_ns(-1); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(orders.size(), 2);
}

TEST_F(EventDeliveryTest, AFailureIsReturnedAndNotDelivered) {
  wire::Event event;
  Write(absl::AbortedError("worker 1 is gone"), event.mutable_failure());
  EXPECT_EQ(delivery_.Deliver(event), absl::AbortedError("worker 1 is gone"));
}

}  // namespace
}  // namespace bdn
