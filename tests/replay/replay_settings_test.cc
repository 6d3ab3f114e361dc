#include "replay/replay_settings.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  ReplaySettings settings;
  return std::string(AddReplaySetting(text, &settings).message());
}

TEST(ReplaySettings, AreReadWithTheirUnits) {
  ReplaySettings settings;
  for (const char* text : {"link=100mbit", "push=ef(onebit(block=64))", "partition-bytes=1MiB",
                           "max-bytes-in-flight=2MiB", "fusion-bytes=0", "servers=3", "threads=4",
                           "shards=2", "drop=1", "drop=2", "median"}) {
    EXPECT_TRUE(AddReplaySetting(text, &settings).ok()) << text;
  }
  EXPECT_DOUBLE_EQ(*settings.link, 12.5e6);
  EXPECT_EQ(settings.push, "ef(onebit(block=64))");
  EXPECT_EQ(*settings.partition_bytes, 1U << 20);
  EXPECT_EQ(*settings.max_bytes_in_flight, 2U << 20);
  EXPECT_EQ(*settings.fusion_bytes, 0U);
  EXPECT_EQ(*settings.servers, 3U);
  EXPECT_EQ(*settings.threads, 4U);
  EXPECT_EQ(*settings.shards, 2U);
  EXPECT_THAT(settings.drop, ElementsAre(1, 2));
  EXPECT_TRUE(settings.median);
  EXPECT_EQ(settings.texts.size(), 11U);
}

TEST(ReplaySettings, ShowATypoWithACaretAndTheList) {
  const std::string error = ErrorOf("lnik=100mbit");
  EXPECT_THAT(error, HasSubstr("did you mean 'link'?"));
  EXPECT_THAT(error, HasSubstr("\n  lnik=100mbit\n  ^^^^\n"));
  EXPECT_THAT(error, HasSubstr("link, push, pull, partition-bytes"));
}

TEST(ReplaySettings, RefuseWhatCannotBePredictedByName) {
  for (const char* text : {"overlap=forward", "io-threads=4", "tau=8", "transport=rdma"}) {
    ReplaySettings settings;
    const absl::Status status = AddReplaySetting(text, &settings);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot predict"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("It can set: link"));
  }
}

TEST(ReplaySettings, RefuseBadValues) {
  EXPECT_THAT(ErrorOf("link=fast"), HasSubstr("\n  link=fast\n       ^^^^"));
  EXPECT_THAT(ErrorOf("link=0mbit"), HasSubstr("rate"));
  EXPECT_THAT(ErrorOf("push=onebti"), HasSubstr("onebit"));
  // The scheduler's own limits.
  for (const char* text : {"partition-bytes=1", "partition-bytes=4095", "partition-bytes=2GiB"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("from 4KiB to 1GiB")) << text;
  }
  EXPECT_EQ(ErrorOf("partition-bytes=4KiB"), "");
  EXPECT_THAT(ErrorOf("max-bytes-in-flight=0"), HasSubstr("expected bytes"));
  EXPECT_THAT(ErrorOf("servers=0"), HasSubstr("1 to 4096"));
  EXPECT_THAT(ErrorOf("drop=x"), HasSubstr("rank"));
  EXPECT_THAT(ErrorOf("median=1"), HasSubstr("given as median"));
  EXPECT_THAT(ErrorOf("link"), HasSubstr("given as link=RATE"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no setting"));
  ReplaySettings settings;
  EXPECT_TRUE(AddReplaySetting("link=1mbit", &settings).ok());
  EXPECT_THAT(std::string(AddReplaySetting("link=2mbit", &settings).message()),
              HasSubstr("given twice"));
}

}  // namespace
}  // namespace bdn
