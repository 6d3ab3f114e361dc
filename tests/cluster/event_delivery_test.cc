#include "common/cluster/event_delivery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using ::testing::HasSubstr;

constexpr Key kKey = Key::Of(0, 0);

// What a scheduler sends, right or wrong, and what came of it.
class EventDeliveryTest : public ::testing::Test {
 protected:
  static wire::Event CatalogueEvent() {
    Catalogue catalogue{.version = 1};
    catalogue.tensors.push_back({.name = "w", .elements = 8});
    catalogue.keys.push_back(
        {.key = kKey, .segments = {{.tensor = 0, .offset = 0, .elements = 8}}, .elements = 8});
    wire::Event event;
    Write(catalogue, event.mutable_catalogue());
    return event;
  }
  static wire::Event PlacementEvent(const PlacementTable& placement) {
    wire::Event event;
    Write(placement, event.mutable_placement());
    return event;
  }

  void ExpectRefused(const wire::Event& event, const std::string& why) {
    const absl::Status status = delivery_.Deliver(event);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(placement_, nullptr);
  }

  std::shared_ptr<const Catalogue> catalogue_;
  std::shared_ptr<const PlacementTable> placement_;
  EventDelivery delivery_{{
      .on_catalogue = [this](auto catalogue) { catalogue_ = std::move(catalogue); },
      .on_placement = [this](auto placement) { placement_ = std::move(placement); },
  }};
};

TEST_F(EventDeliveryTest, ACatalogueAndItsPlacementArriveAsTheyWereSent) {
  const PlacementTable placement({.epoch = 3, .catalogue = 1}, {{kKey, 7}});
  ASSERT_TRUE(delivery_.Deliver(CatalogueEvent()).ok());
  ASSERT_TRUE(delivery_.Deliver(PlacementEvent(placement)).ok());
  EXPECT_EQ(catalogue_->keys[0].key, kKey);
  EXPECT_EQ(*placement_, placement);
}

TEST_F(EventDeliveryTest, APlacementWithoutItsCatalogueIsRefused) {
  ExpectRefused(PlacementEvent({{.epoch = 3, .catalogue = 1}, {{kKey, 7}}}),
                "of catalogue 1, not of 0");
}

TEST_F(EventDeliveryTest, APlacementThatLeavesAKeyOutIsRefused) {
  ASSERT_TRUE(delivery_.Deliver(CatalogueEvent()).ok());
  ExpectRefused(PlacementEvent({{.epoch = 3, .catalogue = 1}, {}}), "key 0.0 has no owner");
}

TEST_F(EventDeliveryTest, APlacementThatContradictsItselfIsRefused) {
  ASSERT_TRUE(delivery_.Deliver(CatalogueEvent()).ok());
  wire::Event event = PlacementEvent({{.epoch = 3, .catalogue = 1}, {{kKey, 7}}});
  wire::Placement::Share* second = event.mutable_placement()->add_shares();
  second->set_server(8);
  second->add_keys(kKey.value);
  ExpectRefused(event, "key 0.0 has two owners");
  second->set_server(0);
  ExpectRefused(event, "nobody");
}

TEST_F(EventDeliveryTest, AFailureIsReturnedAndNotDelivered) {
  wire::Event event;
  Write(absl::AbortedError("worker 1 is gone"), event.mutable_failure());
  EXPECT_EQ(delivery_.Deliver(event), absl::AbortedError("worker 1 is gone"));
}

}  // namespace
}  // namespace bdn
