#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "common/base/endian.h"
#include "common/wire/headers.h"
#include "common/wire/row_block.h"
#include "common/wire/row_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

// A shard with one key of rows, and the frames that workers send it.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Key kRowsKey = Key::Of(7, 0);
using Ids = std::vector<uint64_t>;
using Floats = std::vector<float>;

using Rows = PushedRows;

class RowKeyTest : public ::testing::Test {
 protected:
  void Start(int workers, size_t tables = 1, MemoryBudget* budget = nullptr) {
    outbox_.sent.clear();
    tables_ = tables;
    shard_ = ServerShard({.self = kServerNode, .budget = budget});
    shard_.SetMembership(MakeMembership(workers));
    shard_.AddKey(MakeRowsPlan(kRowsKey, tables, rule_, table_));
    shard_.SetCatalogueVersion(1);
  }

  Frame MakePushFrame(Rank rank, Step step, const std::vector<std::optional<Rows>>& rows) {
    Frame push = MakeRowsPush(kRowsKey, step, rank, rows);
    push.header.learning_rate = rate_;
    push.header.epoch = epoch_;
    return push;
  }
  void Send(const Frame& frame) { outbox_.Add(shard_.OnFrame(frame.header.sender, frame)); }
  void Push(Rank rank, Step step, const Rows& rows) { Send(MakePushFrame(rank, step, {rows})); }
  void PushBare(Rank rank, Step step, uint8_t flags) {
    Frame frame = MakePushFrame(rank, step, {std::nullopt});
    frame.header.codec = 0;
    frame.header.flags = flags;
    Send(frame);
  }
  void Probe(Rank rank, Step step) {
    FrameHeader header = MakeBare(FrameType::kProbe, kRowsKey, step, rank, 2 * tables_).header;
    header.epoch = epoch_;
    Send(Frame{header, {}});
  }
  Frame StateFrame(FrameType type, Rank rank, uint32_t request, Buffer payload) {
    FrameHeader header = StateHeader(
        type, {.part = StatePart::kRows, .key = kRowsKey, .num_elements = 2 * tables_}, 0, request);
    StampHeader({.sender = WorkerNode(rank), .epoch = epoch_}, &header);
    return MakeFrame(header, std::move(payload));
  }
  Frame FetchFrame(Rank rank, const Ids& ids) {
    const std::vector<std::optional<size_t>> lengths = {RowBlockBytes({}, ids, 0)};
    const RowPayload payload = MakeRowPayload(lengths);
    (void)WriteRowBlock({}, ids, payload.parts[0]);
    return StateFrame(FrameType::kFetch, rank, ++requests_, payload.bytes);
  }

  Frame RecordsFrame(FrameType type, Rank rank, uint32_t request, Buffer payload,
                     size_t table = 0) {
    FrameHeader header = StateHeader(type,
                                     {.part = StatePart::kRecords,
                                      .key = kRowsKey,
                                      .num_elements = 2 * tables_,
                                      .element_offset = 2 * table},
                                     0, request);
    StampHeader({.sender = WorkerNode(rank), .epoch = epoch_}, &header);
    return MakeFrame(header, std::move(payload));
  }
  Buffer RecordsOf(const RecordsHead& head, const Ids& ids, const Floats& values,
                   const RowCounters& counters) {
    constexpr size_t kBytes = RecordBytes(2, 0);
    MutableByteSpan out;
    Buffer payload = MakeRecords(head, ids, kBytes, &out);
    for (size_t i = 0; i < ids.size(); ++i) {
      std::memcpy(out.data() + i * kBytes, values.data() + i * 2, 8);
      std::memcpy(out.data() + i * kBytes + 8, &counters, 8);
    }
    return payload;
  }
  // Asks for records, and returns what came.
  Records Scan(const RecordsAsk& ask) {
    Send(RecordsFrame(FrameType::kFetch, 0, ++requests_, EncodeRecordsAsk(ask)));
    auto records = DecodeRecords(Last(0).payload.span(), {.row_bytes = RecordBytes(2, 0)});
    EXPECT_TRUE(records.ok()) << records.status() << Error(0);
    return records.ok() ? *std::move(records) : Records();
  }

  const Frame& Last(Rank rank) { return *outbox_.LastTo(rank); }
  // The rows of the last reply or value; of the only table.
  Floats RowsTold(Rank rank, size_t count) {
    const auto rows = ReadRowAnswer(Last(rank).payload.span(), count, 8);
    if (!rows.ok()) return {};
    Floats values(count * 2);
    std::memcpy(values.data(), rows->data(), rows->size());
    return values;
  }
  std::string Error(Rank rank) { return std::string(ErrorOf(Last(rank)).message()); }
  const RowState& State() { return shard_.Find(kRowsKey)->rows; }

  std::string rule_ = "sgd";
  std::string table_ = "table(rows=100)";
  size_t tables_ = 1;
  float rate_ = 1.0f;
  Epoch epoch_ = 1;
  uint32_t requests_ = 0;
  Outbox outbox_;
  ServerShard shard_{{.self = kServerNode}};
};

TEST_F(RowKeyTest, EachWorkerGetsTheRowsThatItWants) {
  Start(2);
  Push(1, 1, {{3, 5}, {1, 2, 3, 4}, {5, 9}});
  EXPECT_THAT(outbox_.sent, IsEmpty());
  Push(0, 1, {{5}, {10, 20}, {3}});
  // A mean over both workers, of which one has no gradient of row 3.
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(-0.5f, -1));
  EXPECT_THAT(RowsTold(1, 2), ElementsAre(-6.5f, -12, 0, 0));
  EXPECT_EQ(State().rows(), 2u);
  EXPECT_EQ(shard_.stats().rows, 2u);
  EXPECT_EQ(shard_.held().rows, State().row_bytes());
}

TEST_F(RowKeyTest, ARepeatedPushIsAnsweredAndNeverAddedTwice) {
  Start(2);
  Push(0, 1, {{5}, {2, 2}, {5}});
  Push(0, 1, {{5}, {2, 2}, {5}});
  EXPECT_EQ(Last(0).header.type, FrameType::kWaiting);
  EXPECT_THAT(RanksOf(Last(0)), ElementsAre(1));
  EXPECT_EQ(shard_.stats().duplicates, 1u);
  PushBare(1, 1, kFlagAbsent);
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(-1, -1));
  EXPECT_EQ(Last(1).header.flags, kFlagUnwanted);
  const Frame reply = Last(0);
  Push(0, 1, {{5}, {2, 2}, {5}});
  EXPECT_EQ(Last(0).header, reply.header);
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(-1, -1));
  Probe(0, 1);
  EXPECT_EQ(Last(0).header, reply.header);
  EXPECT_EQ(shard_.stats().pushes, 2u);
}

TEST_F(RowKeyTest, AReplyIsMadeAgainAlsoWhileTheNextRoundIsOpen) {
  Start(2);
  for (const Rank rank : {0, 1}) Push(rank, 1, {{5}, {2, 2}, {5}});
  Push(1, 2, {{5}, {8, 8}, {5}});
  Probe(0, 1);
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(-2, -2));
}

TEST_F(RowKeyTest, ANewRosterEmptiesTheRoundAndLosesNothing) {
  Start(3);
  Push(0, 1, {{5}, {2, 2}, {5}});
  shard_.SetMembership(MembershipOf({0, 2}, 2));
  epoch_ = 2;
  Probe(0, 1);
  EXPECT_THAT(RanksOf(Last(0)), ElementsAre(0, 2));
  Push(0, 1, {{5}, {2, 2}, {5}});
  Push(2, 1, {{5}, {4, 4}, {5}});
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(-3, -3));
}

TEST_F(RowKeyTest, ARoundThatNeedsALeavingWorkerFails) {
  Start(2);
  Push(0, 1, {{5}, {2, 2}, {5}});
  outbox_.Add(shard_.SetLeaving({1}));
  EXPECT_THAT(Error(0), HasSubstr("table 't0' step 1: worker 1 is leaving"));
  EXPECT_EQ(State().rows(), 0u);
}

TEST_F(RowKeyTest, NonFiniteGradientsAndSumsChangeNothing) {
  Start(2);
  Push(0, 1, {{5}, {2, 2}, {5}});
  PushBare(1, 1, kFlagNonFinite);
  EXPECT_EQ(Last(0).header.flags, kFlagNonFinite);
  EXPECT_EQ(State().rows(), 0u);
  for (const Rank rank : {0, 1}) Push(rank, 2, {{5}, {3e38f, 1}, {5}});
  EXPECT_EQ(Last(0).header.flags, kFlagNonFinite);
  EXPECT_EQ(State().rows(), 0u);
  rate_ = 1e30f;
  for (const Rank rank : {0, 1}) Push(rank, 3, {{5}, {1e30f, 1}, {5}});
  EXPECT_THAT(Error(0), HasSubstr("rows are no longer finite"));
  EXPECT_EQ(State().rows(), 0u);
}

TEST_F(RowKeyTest, WorkersThatDisagreeFailTheRound) {
  Start(2);
  Push(0, 1, {{5}, {2, 2}, {}});
  Push(1, 2, {{5}, {2, 2}, {}});
  EXPECT_THAT(Error(0), HasSubstr("rank 0 is at step 1 and rank 1 at step 2"));
  Push(0, 3, {{5}, {2, 2}, {}});
  rate_ = 0.5f;
  Push(1, 3, {{5}, {2, 2}, {}});
  EXPECT_THAT(Error(1), HasSubstr("rank 0 has learning rate 1 and rank 1 has 0.5"));
}

TEST_F(RowKeyTest, WrongFramesChangeNothing) {
  Start(1);
  const auto refused = [&](Frame frame) {
    Send(frame);
    EXPECT_EQ(Last(0).header.type, FrameType::kError);
    EXPECT_EQ(State().rows(), 0u);
    EXPECT_EQ(State().last_step, 0u);
    return Error(0);
  };
  Frame push = MakePushFrame(0, 1, {Rows{{100}, {1, 1}, {}}});
  EXPECT_THAT(refused(push), HasSubstr("id 100 of a table of 100 rows"));
  push = MakePushFrame(0, 1, {Rows{{5}, {1, std::nanf("")}, {}}});
  EXPECT_FALSE(refused(push).empty());
  push = MakePushFrame(0, 1, {Rows{{5}, {1, 1}, {}}});
  push.header.num_elements = 4;
  EXPECT_THAT(refused(push), HasSubstr("rows of 2 elements in all, not 4"));
  push = MakePushFrame(0, 1, {Rows{{5}, {1, 1}, {}}});
  EXPECT_FALSE(
      refused(MakeFrame(push.header, push.payload.Prefix(push.payload.size() - 1))).empty());
  push.header.step = Step{1} << 40;
  EXPECT_THAT(refused(push), HasSubstr("too far ahead"));
  push = StateFrame(FrameType::kInit, 0, 1, RowsPayload({Rows{{5}, {1, HUGE_VALF}, {}}}));
  EXPECT_THAT(refused(push), HasSubstr("row 5 has an element that is not finite"));
  push = StateFrame(FrameType::kInit, 0, 1, RowsPayload({Rows{{5}, {1, 1}, {6}}}));
  EXPECT_FALSE(refused(push).empty());
  push = StateFrame(FrameType::kFetch, 0, 1, RowsPayload({Rows{{5}, {1, 1}, {6}}}));
  EXPECT_FALSE(refused(push).empty());
  push = MakeBare(FrameType::kReport, kRowsKey, 1, 0, 2);
  EXPECT_THAT(refused(push), HasSubstr("a report frame does not go to rows tensor"));
  push = StateFrame(FrameType::kFetch, 0, 1, Buffer());
  push.header.part = StatePart::kSnapshot;
  EXPECT_THAT(refused(push), HasSubstr("has no snapshot"));
}

TEST_F(RowKeyTest, AReplyThatWouldBeTooLongIsNotAskedFor) {
  Start(1);
  Frame push = MakePushFrame(0, 1, {Rows{{}, {}, {1, 2, 3}}});
  Buffer payload = Buffer::CopyOf(push.payload.span());
  payload.mutable_span()[6] = std::byte{0x21};  // 2 Mi rows more of 8 bytes
  Send(MakeFrame(push.header, payload));
  EXPECT_THAT(Error(0), HasSubstr("rows are wanted, at most"));
}

TEST_F(RowKeyTest, FetchesTellRowsAndStoreNone) {
  Start(2);
  Send(FetchFrame(0, {1, 99}));
  EXPECT_THAT(RowsTold(0, 2), ElementsAre(0, 0, 0, 0));
  for (const Rank rank : {0, 1}) Push(rank, 1, {{99}, {2, 4}, {}});
  Send(FetchFrame(1, {1, 99}));
  EXPECT_EQ(Last(1).header.base_step, 1u);
  EXPECT_THAT(RowsTold(1, 2), ElementsAre(0, 0, -2, -4));
  EXPECT_EQ(State().rows(), 1u);
}

TEST_F(RowKeyTest, AnInitIsTakenOnceAndFromOneRank) {
  Start(2);
  const Frame init = StateFrame(FrameType::kInit, 0, 1, RowsPayload({Rows{{5}, {1, 2}, {}}}));
  Send(init);
  EXPECT_EQ(Last(0).header.type, FrameType::kReply);
  for (const Rank rank : {0, 1}) Push(rank, 1, {{5}, {1, 1}, {5}});
  Send(init);  // late: its answer was lost
  EXPECT_EQ(Last(0).header.type, FrameType::kReply);
  Send(FetchFrame(0, {5}));
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(0, 1));
  Send(StateFrame(FrameType::kInit, 1, 1, RowsPayload({Rows{{5}, {1, 2}, {}}})));
  EXPECT_THAT(Error(1), HasSubstr("rank 0 has set rows, and now rank 1 does"));
}

TEST_F(RowKeyTest, AScanTellsEachRecordOnceInPieces) {
  Start(1);
  Rows many;
  for (uint64_t id = 0; id < 90; ++id) {
    many.ids.push_back(id);
    many.values.insert(many.values.end(), {1, 1});
  }
  Push(0, 1, many);
  Push(0, 2, {{5, 70}, {1, 1, 1, 1}, {}});
  std::set<uint64_t> told;
  RecordsAsk ask{.most = 7};
  do {
    const Records records = Scan(ask);
    EXPECT_LE(records.block.ids.size(), 7u);
    EXPECT_EQ(records.head.updates, 2u);
    for (const uint64_t id : records.block.ids) EXPECT_TRUE(told.insert(id).second) << id;
    EXPECT_TRUE(records.head.next == 0 || records.head.next > ask.cursor);
    ask.cursor = records.head.next;
  } while (ask.cursor != 0);
  EXPECT_EQ(told.size(), 90u);
  const Records changed = Scan({.since = 1, .most = 100});
  EXPECT_THAT(changed.block.ids, ElementsAre(5, 70));
  const RowCounters counters = CountersOf(changed.block.rows.first(RecordBytes(2, 0)));
  EXPECT_EQ(counters.updates, 2u);
  EXPECT_EQ(counters.changed, 2u);
}

TEST_F(RowKeyTest, ARowThatIsSetCountsAsChangedByTheNextUpdate) {
  Start(1);
  Push(0, 1, {{5}, {1, 1}, {}});
  Send(StateFrame(FrameType::kInit, 0, ++requests_, RowsPayload({Rows{{9}, {1, 2}, {}}})));
  const Records changed = Scan({.since = 1, .most = 100});
  EXPECT_THAT(changed.block.ids, ElementsAre(9));
}

TEST_F(RowKeyTest, RecordsAreSetOnceByEachRankAndReplaceWhatIsThere) {
  Start(2);
  for (const Rank rank : {0, 1}) Push(rank, 1, {{5}, {1, 1}, {}});
  const Frame first = RecordsFrame(
      FrameType::kInit, 0, 1,
      RecordsOf({.updates = 9, .replaces = true}, {3}, {1, 2}, {.updates = 4, .changed = 9}));
  Send(first);
  EXPECT_EQ(Last(0).header.type, FrameType::kReply);
  Send(RecordsFrame(FrameType::kInit, 1, 1,
                    RecordsOf({.updates = 9}, {8}, {3, 4}, {.updates = 1, .changed = 2})));
  EXPECT_EQ(Last(1).header.type, FrameType::kReply);
  EXPECT_EQ(State().rows(), 2u);
  EXPECT_EQ(shard_.stats().rows, 2u);
  EXPECT_EQ(State().tables[0].updates(), 9u);
  for (const Rank rank : {0, 1}) Push(rank, 2, {{3}, {1, 1}, {3, 8}});
  EXPECT_THAT(RowsTold(0, 2), ElementsAre(0, 1, 3, 4));
  Send(first);  // late: its answer was lost
  EXPECT_EQ(Last(0).header.type, FrameType::kReply);
  requests_ = 1;
  const Records changed = Scan({.since = 9, .most = 100});
  EXPECT_THAT(changed.block.ids, ElementsAre(3));
  EXPECT_EQ(CountersOf(changed.block.rows).updates, 5u);
}

TEST_F(RowKeyTest, WrongFramesAboutRecordsChangeNothing) {
  Start(1);
  Push(0, 1, {{5}, {1, 1}, {}});
  const auto refused = [&](const Frame& frame) {
    Send(frame);
    EXPECT_EQ(Last(0).header.type, FrameType::kError);
    EXPECT_EQ(State().rows(), 1u);
    EXPECT_EQ(State().tables[0].updates(), 1u);
    return Error(0);
  };
  const auto init = [&](const RecordsHead& head, const Ids& ids, const Floats& values,
                        const RowCounters& counters) {
    return RecordsFrame(FrameType::kInit, 0, 1, RecordsOf(head, ids, values, counters));
  };
  const RowCounters good{.updates = 1, .changed = 1};
  EXPECT_THAT(refused(init({.updates = 1}, {5}, {1, HUGE_VALF}, good)),
              HasSubstr("the record of row 5 has: an element that is not finite"));
  EXPECT_THAT(refused(init({.updates = 1}, {5}, {1, 1}, {.updates = 2, .changed = 1})),
              HasSubstr("2 updates, the last at 1, in a table of 1 updates"));
  EXPECT_THAT(refused(init({.updates = 1}, {5}, {1, 1}, {.updates = 1, .changed = 3})),
              HasSubstr("the last at 3"));
  EXPECT_THAT(refused(init({.updates = 1}, {100}, {1, 1}, good)), HasSubstr("id 100 of a table"));
  EXPECT_THAT(refused(init({.next = 1, .updates = 1}, {5}, {1, 1}, good)),
              HasSubstr("no next cursor"));
  Frame frame = init({.updates = 1, .replaces = true}, {5}, {1, 1}, good);
  frame.header.element_offset = 1;
  EXPECT_THAT(refused(frame), HasSubstr("element 1, where no table begins"));
  frame.header.element_offset = 2;
  EXPECT_THAT(refused(frame), HasSubstr("element 2, where no table begins"));
  frame.header.element_offset = 0;
  frame.header.request = 0;
  EXPECT_THAT(refused(frame), HasSubstr("requests count from 1"));
  EXPECT_FALSE(refused(MakeFrame(init({}, {}, {}, good).header, Buffer())).empty());
  const auto fetch = [&](const RecordsAsk& ask) {
    return RecordsFrame(FrameType::kFetch, 0, ++requests_, EncodeRecordsAsk(ask));
  };
  EXPECT_THAT(refused(fetch({.cursor = 64, .most = 1})), HasSubstr("goes on at 64 of 64 places"));
  EXPECT_THAT(refused(fetch({.most = 0})), HasSubstr("wants none"));
  EXPECT_FALSE(refused(MakeFrame(fetch({}).header, Buffer())).empty());
  Push(0, 2, {{5}, {1, 1}, {}});
  EXPECT_EQ(State().tables[0].updates(), 2u);
}

TEST_F(RowKeyTest, RecordsAreSetBetweenStepsAlone) {
  Start(2);
  Push(0, 1, {{5}, {1, 1}, {}});
  Send(RecordsFrame(FrameType::kInit, 1, 1, RecordsOf({}, {}, {}, {})));
  EXPECT_THAT(Error(1), HasSubstr("a push of step 1 is under way"));
}

TEST_F(RowKeyTest, AValueIsNoLongerThanAFrame) {
  Start(1);
  Rows many;
  for (uint64_t id = 0; id < 90; ++id) {
    many.ids.push_back(id);
    many.values.insert(many.values.end(), {1, 1});
  }
  Push(0, 1, many);
  const Records records = Scan({.most = 0xFFFFFFFF});
  EXPECT_EQ(records.block.ids.size(), 90u);
  EXPECT_EQ(records.head.next, 0u);
}

TEST_F(RowKeyTest, AnOverflowOfOneKeyCountsAsAnUpdate) {
  Start(1);
  Push(0, 1, {{5}, {1, 1}, {}});
  Frame push = MakePushFrame(0, 2, {Rows{{5}, {3e38f, 1}, {}}});
  push.header.weight = 1e-38f;
  Send(push);
  EXPECT_EQ(Last(0).header.flags, kFlagNonFinite);
  EXPECT_EQ(State().tables[0].updates(), 2u);
  EXPECT_EQ(State().rows(), 1u);
}

class RowMeansTest : public RowKeyTest {
 protected:
  RowMeansTest() { rule_ = "mean"; }
  // The rows of a reply with all of them.
  std::vector<std::pair<uint64_t, float>> AllTold(Rank rank) {
    RowBlock block;
    EXPECT_TRUE(ReadRowBlock(Last(rank).payload.span(), {.row_bytes = 8}, &block).ok());
    std::vector<std::pair<uint64_t, float>> told;
    for (size_t i = 0; i < block.ids.size(); ++i) {
      told.emplace_back(block.ids[i], LoadLittle<float>(block.rows, 8 * i));
    }
    return told;
  }
};

TEST_F(RowMeansTest, GoToAllOrAreThoseThatAreWanted) {
  using ::testing::Pair;
  Start(3);
  Push(0, 1, {{3, 5}, {1, 1, 2, 2}, {}});
  Push(1, 1, {{5}, {4, 4}, {5, 9}});
  EXPECT_THAT(outbox_.sent, IsEmpty());
  PushBare(2, 1, kFlagAbsent);
  const float third = 1.0f / 3.0f;
  EXPECT_THAT(AllTold(0), ElementsAre(Pair(3, third), Pair(5, 2)));
  EXPECT_EQ(Last(2).payload.span().size(), Last(0).payload.span().size());
  EXPECT_THAT(AllTold(2), ElementsAre(Pair(3, third), Pair(5, 2)));
  EXPECT_THAT(RowsTold(1, 2), ElementsAre(2, 2, 0, 0));  // of 5, and of 9, which nobody has
  EXPECT_EQ(State().rows(), 0u);
  EXPECT_GT(shard_.held().waiting, 0u);
  // A repeated push gets the same again, also while the next round is open.
  Push(0, 2, {{7}, {1, 1}, {}});
  Push(1, 1, {{5}, {4, 4}, {5, 9}});
  EXPECT_THAT(RowsTold(1, 2), ElementsAre(2, 2, 0, 0));
  Probe(2, 1);
  EXPECT_THAT(AllTold(2), ElementsAre(Pair(3, third), Pair(5, 2)));
}

TEST_F(RowMeansTest, OfNobodyAreAbsentAndThoseThatAreNotWantedAreNotSent) {
  Start(2);
  for (const Rank rank : {0, 1}) PushBare(rank, 1, kFlagAbsent);
  EXPECT_EQ(Last(0).header.flags, kFlagAbsent);
  Frame push = MakePushFrame(0, 2, {Rows{{5}, {1, 1}, {}}});
  Buffer none = Buffer::CopyOf(push.payload.span());
  StoreLittle(none.mutable_span(), 4, 0xFFFFFFFFu);
  Send(MakeFrame(push.header, none));
  Push(1, 2, {{5}, {1, 1}, {}});
  EXPECT_EQ(Last(0).header.flags, kFlagUnwanted);
  EXPECT_EQ(AllTold(1).size(), 1u);
  for (const Rank rank : {0, 1}) Push(rank, 3, {{5}, {3e38f, 1}, {}});
  EXPECT_EQ(Last(1).header.flags, kFlagNonFinite);
}

TEST_F(RowMeansTest, AreHeldByNobodyForFetchesAndInits) {
  Start(1);
  Send(FetchFrame(0, {5}));
  EXPECT_THAT(Error(0), HasSubstr("table 't0' has no rows"));
  Send(StateFrame(FrameType::kInit, 0, 9, RowsPayload({Rows{{5}, {1, 1}, {}}})));
  EXPECT_THAT(Error(0), HasSubstr("table 't0' has no rows"));
  Send(RecordsFrame(FrameType::kFetch, 0, 9, EncodeRecordsAsk({})));
  EXPECT_THAT(Error(0), HasSubstr("table 't0' has no records"));
}

TEST_F(RowKeyTest, ThatNoneAreWantedIsForMeansAlone) {
  Start(1);
  Frame push = MakePushFrame(0, 1, {Rows{{5}, {1, 1}, {}}});
  Buffer none = Buffer::CopyOf(push.payload.span());
  StoreLittle(none.mutable_span(), 4, 0xFFFFFFFFu);
  Send(MakeFrame(push.header, none));
  EXPECT_THAT(Error(0), HasSubstr("rows are wanted, at most"));
}

TEST_F(RowKeyTest, AFullServerFailsTheRoundAndSaysWhatToSet) {
  MemoryBudget budget(3000);
  Start(1, 1, &budget);
  Rows many;
  for (uint64_t id = 0; id < 90; ++id) {
    many.ids.push_back(id);
    many.values.insert(many.values.end(), {1, 1});
  }
  Push(0, 1, many);
  EXPECT_EQ(ErrorOf(Last(0)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Error(0), HasSubstr("table 't0' step 1: 90 new rows take"));
  EXPECT_THAT(Error(0), HasSubstr("max-bytes"));
  EXPECT_EQ(State().rows(), 0u);
}

// Each of these rows once, with one gradient.
Rows AllOf(uint64_t first, uint64_t end) {
  Rows rows;
  for (uint64_t id = first; id < end; ++id) {
    rows.ids.push_back(id);
    rows.values.insert(rows.values.end(), {1, 1});
  }
  return rows;
}

TEST_F(RowKeyTest, AnAdmissionCountsAStepOnceHoweverManyWorkersPush) {
  table_ = "table(init=constant,value=1,admit=2)";
  Start(2);
  for (const Rank rank : {0, 1}) Push(rank, 1, {{5}, {2, 2}, {5}});
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(1, 1));
  EXPECT_EQ(State().rows(), 0u);
  EXPECT_EQ(shard_.stats().rows_not_admitted, 1u);
  Push(0, 2, {{9}, {2, 2}, {}});
  Push(1, 2, {{5}, {2, 2}, {5, 9}});
  // The gradient of the first step is dropped, and a worker without the row counts as ever.
  EXPECT_THAT(RowsTold(1, 2), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(State().rows(), 1u);
  EXPECT_EQ(shard_.stats().rows_added, 1u);
  EXPECT_EQ(shard_.stats().rows_not_admitted, 2u);
  EXPECT_EQ(shard_.held().rows, State().row_bytes());
}

TEST_F(RowKeyTest, ARepeatedPushIsNoSecondOneForAnAdmission) {
  table_ = "table(admit=2)";
  Start(2);
  Push(0, 1, {{5}, {2, 2}, {5}});
  Push(0, 1, {{5}, {2, 2}, {5}});
  PushBare(1, 1, kFlagAbsent);
  Push(0, 1, {{5}, {2, 2}, {5}});  // late: its reply was lost
  EXPECT_THAT(RowsTold(0, 1), ElementsAre(0, 0));
  EXPECT_EQ(State().tables[0].candidates(), 1u);
  PushBare(0, 2, kFlagNonFinite);
  Push(1, 2, {{5}, {2, 2}, {5}});  // a step that is left out counts for no row
  EXPECT_EQ(State().rows(), 0u);
}

TEST_F(RowKeyTest, AFullTableMakesRoomBeforeItsReplies) {
  table_ = "table(init=constant,value=1,max_rows=64,evict=lru)";
  Start(1);
  Push(0, 1, AllOf(0, 64));
  EXPECT_EQ(State().rows(), 64u);
  Push(0, 2, {{1000}, {1, 1}, {0, 8, 1000}});
  // 57 of 64 stay: the lowest ids of those that were updated longest ago go.
  EXPECT_THAT(RowsTold(0, 3), ElementsAre(1, 1, 0, 0, 0, 0));
  EXPECT_EQ(State().rows(), 57u);
  EXPECT_EQ(shard_.stats().rows, 57u);
  EXPECT_EQ(shard_.stats().rows_added, 65u);
  EXPECT_EQ(shard_.stats().rows_removed, 8u);
  Probe(0, 2);
  EXPECT_THAT(RowsTold(0, 3), ElementsAre(1, 1, 0, 0, 0, 0));
}

TEST_F(RowKeyTest, AFullTableThatEvictsNoneFailsTheRoundAndSaysWhatToSet) {
  table_ = "table(max_rows=64)";
  Start(1);
  Push(0, 1, AllOf(0, 60));
  Push(0, 2, AllOf(58, 70));
  EXPECT_EQ(ErrorOf(Last(0)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Error(0), HasSubstr("table 't0' step 2: 10 new rows do not fit beside the 60 of "
                                  "bucket 0, which may have 64: max_rows=64"));
  EXPECT_THAT(Error(0), HasSubstr("evict=\"lru\""));
  EXPECT_EQ(State().rows(), 60u);
  EXPECT_EQ(State().tables[0].updates(), 1u);
  Push(0, 3, AllOf(50, 64));
  EXPECT_EQ(State().rows(), 64u);
  Push(0, 4, AllOf(0, 64));  // known rows alone
  EXPECT_EQ(Last(0).header.type, FrameType::kReply);
}

TEST_F(RowKeyTest, IdsThatAreNotAdmittedCountAgainstTheServersMemory) {
  MemoryBudget budget(3000);
  table_ = "table(admit=2)";
  Start(1, 1, &budget);
  Push(0, 1, AllOf(0, 90));
  EXPECT_EQ(ErrorOf(Last(0)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Error(0), HasSubstr("step 1: 0 new rows and 90 new ids not admitted yet take"));
  EXPECT_THAT(Error(0), HasSubstr("hold fewer rows by admit, max_rows or ttl"));
  EXPECT_EQ(State().tables[0].candidates(), 0u);
}

TEST_F(RowKeyTest, AnOverflowCountsForTheAgeOfRows) {
  table_ = "table(ttl=2)";
  Start(1);
  Push(0, 1, AllOf(0, 3));
  Push(0, 2, {{1}, {1, 1}, {}});
  EXPECT_EQ(State().rows(), 3u);
  Push(0, 3, {{1}, {1, 1}, {}});
  Frame push = MakePushFrame(0, 4, {Rows{{5}, {3e38f, 1}, {}}});
  push.header.weight = 1e-38f;
  Send(push);
  EXPECT_EQ(Last(0).header.flags, kFlagNonFinite);
  EXPECT_EQ(State().rows(), 1u);
  EXPECT_EQ(shard_.stats().rows, 1u);
  EXPECT_EQ(shard_.stats().rows_removed, 2u);
}

TEST_F(RowKeyTest, TheListsOfATableAreToldAndSet) {
  table_ = "table(admit=2,ttl=1)";
  Start(1);
  for (const Step step : {1, 2}) Push(0, step, AllOf(step - 1, 3));
  const Records rows = Scan({.most = 9});
  EXPECT_THAT(rows.block.ids, ElementsAre(1, 2));
  EXPECT_EQ(rows.head.complete_since, 0u);
  const Records removed = Scan({.most = 9, .list = RowList::kRemoved});
  EXPECT_THAT(removed.block.ids, ElementsAre(0));  // a candidate, which was too old
  EXPECT_EQ(CountersOf(removed.block.rows).updates, 0u);
  EXPECT_EQ(CountersOf(removed.block.rows).changed, 2u);
  EXPECT_THAT(Scan({.most = 9, .list = RowList::kCandidates}).block.ids, IsEmpty());

  const auto set = [&](RowList list, uint64_t id, RowCounters counters) {
    MutableByteSpan out;
    const Buffer payload = MakeRecords({.updates = 9, .list = list}, Ids{id}, 8, &out);
    std::memcpy(out.data(), &counters, 8);
    Send(RecordsFrame(FrameType::kInit, 0, ++requests_, payload));
    EXPECT_EQ(Last(0).header.type, FrameType::kReply) << Error(0);
  };
  set(RowList::kCandidates, 1, {.updates = 1, .changed = 9});
  set(RowList::kRemoved, 2, {.updates = 1, .changed = 9});
  EXPECT_EQ(State().rows(), 0u);
  EXPECT_EQ(shard_.stats().rows, 0u);
  EXPECT_THAT(Scan({.most = 9, .list = RowList::kCandidates}).block.ids, ElementsAre(1));
  EXPECT_THAT(Scan({.since = 8, .most = 9, .list = RowList::kRemoved}).block.ids, ElementsAre(2));
  Push(0, 3, {{1}, {1, 1}, {}});
  EXPECT_EQ(State().rows(), 1u);
}

TEST_F(RowKeyTest, RowsOfALimitedTableAreNotSet) {
  for (const char* const spec : {"table(admit=2)", "table(max_rows=64)", "table(ttl=9)"}) {
    table_ = spec;
    Start(1);
    Send(StateFrame(FrameType::kInit, 0, ++requests_, RowsPayload({Rows{{5}, {1, 1}, {}}})));
    EXPECT_THAT(Error(0), HasSubstr("begin with the values of its init")) << spec;
  }
}

TEST_F(RowKeyTest, TablesOfAGroupAreToldApart) {
  Start(1, 3);
  Send(MakePushFrame(0, 1, {Rows{{5}, {1, 1}, {}}, std::nullopt, Rows{{5}, {3, 3}, {5, 6}}}));
  const auto parts = ReadRowParts(Last(0).payload.span(), 3);
  ASSERT_TRUE(parts.ok());
  EXPECT_FALSE((*parts)[0].has_value());
  EXPECT_FALSE((*parts)[1].has_value());
  const auto rows = ReadRowAnswer(*(*parts)[2], 2, 8);
  ASSERT_TRUE(rows.ok());
  Floats values(4);
  std::memcpy(values.data(), rows->data(), 16);
  EXPECT_THAT(values, ElementsAre(-3, -3, 0, 0));
  EXPECT_EQ(State().tables[0].updates(), 1u);
  EXPECT_EQ(State().tables[1].updates(), 0u);
}

TEST_F(RowKeyTest, TheRowsOfEachTableAreCounted) {
  table_ = "table(rows=100,admit=2,max_rows=64,evict=lru)";
  Start(1, 2);
  Ids ids(66);
  std::iota(ids.begin(), ids.end(), 0);
  const Rows first{{ids.begin(), ids.begin() + 60}, Floats(120, 1.0f), {}};
  const Rows more{{ids.begin() + 60, ids.end()}, Floats(12, 1.0f), {}};
  const Rows one{{9}, {1, 1}, {}};
  Send(MakePushFrame(0, 1, {first, one}));
  Send(MakePushFrame(0, 2, {first, std::nullopt}));
  Send(MakePushFrame(0, 3, {more, std::nullopt}));
  Send(MakePushFrame(0, 4, {more, std::nullopt}));  // 66 rows, of which 57 are kept
  const std::vector<TableCounts> counts = shard_.CountTables();
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0].table, "t0");
  EXPECT_EQ(counts[0].rows, (RowCounts{.held = 57, .added = 66, .removed = 9, .not_admitted = 66}));
  EXPECT_EQ(counts[0].updates, 4u);
  EXPECT_EQ(counts[0].bytes, State().tables[0].bytes());
  EXPECT_EQ(counts[1].table, "t1");
  EXPECT_EQ(counts[1].rows, (RowCounts{.not_admitted = 1}));
  EXPECT_EQ(counts[1].updates, 1u);
  shard_.RemoveKey(kRowsKey);
  EXPECT_THAT(shard_.CountTables(), IsEmpty());
}

TEST_F(RowKeyTest, ARetiredKeyFreesItsRows) {
  Start(1);
  Push(0, 1, {{5}, {1, 1}, {}});
  EXPECT_EQ(shard_.stats().rows, 1u);
  (void)shard_.RemoveKey(kRowsKey);
  EXPECT_EQ(shard_.stats().rows, 0u);
  EXPECT_EQ(shard_.held(), HeldBytes());
}

}  // namespace
}  // namespace bdn::testing
