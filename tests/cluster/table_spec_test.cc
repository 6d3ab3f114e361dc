#include "common/cluster/table_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/cluster/catalogue.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

TEST(TableSpec, HasOneCanonicalForm) {
  EXPECT_EQ(TableSpec::Parse("table()")->text(), "table");
  EXPECT_EQ(TableSpec::Parse("table")->text(), "table");
  EXPECT_EQ(TableSpec::Parse(" table( init = uniform, value=0.50, rows=7 )")->text(),
            "table(rows=7,init=uniform,value=0.5)");
  const TableSpec spec = *TableSpec::Parse("table(rows=9223372036854775808,expect=12)");
  EXPECT_EQ(spec.rows, uint64_t{1} << 63);
  EXPECT_EQ(*TableSpec::Parse(spec.text()), spec);
  const char* const limited = "table(admit=3,max_rows=640,evict=lfu,ttl=1000)";
  EXPECT_EQ(TableSpec::Parse(limited)->text(), limited);
  EXPECT_EQ(TableSpec::Parse("table(admit=1,max_rows=0,evict=none,ttl=0)")->text(), "table");
  EXPECT_FALSE(spec.IsLimited());
  for (const char* const text : {"table(admit=2)", "table(max_rows=1)", "table(ttl=1)"}) {
    EXPECT_TRUE(TableSpec::Parse(text)->IsLimited()) << text;
  }
}

TEST(TableSpec, ExpectsNoMoreRowsThanItMayHave) {
  EXPECT_EQ(TableSpec::Parse("table(max_rows=640)")->ExpectedRows(), 640u);
  EXPECT_EQ(TableSpec::Parse("table(max_rows=640,expect=50)")->ExpectedRows(), 50u);
  EXPECT_EQ(TableSpec::Parse("table(max_rows=640,expect=5000)")->ExpectedRows(), 640u);
}

TEST(TableSpec, IsRefusedWithCarets) {
  for (const char* text :
       {"", "tables()", "table(rows=-1)", "table(rows=1.5)", "table(init=ones)", "table(value=2)",
        "table(init=normal,value=-1)", "table(init=constant,value=nan)", "table(rows=1,rows=2)",
        "table(width=3)", "table() x", "table(expect=1e20)", "table(admit=0)",
        "table(admit=2000000)", "table(max_rows=-1)", "table(ttl=4294967296)", "table(evict=lru)",
        "table(max_rows=640,evict=fifo)"}) {
    const absl::Status status = TableSpec::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("^")) << text;
  }
}

TEST(TableDeclaration, IsCheckedWherever) {
  const TensorDeclaration good{
      .name = "t", .elements = 4, .kind = KeyKind::kRows, .rule = "sgd", .table = "table()"};
  EXPECT_TRUE(CheckDeclaration(good).ok());
  const auto refused = [&](auto change) {
    TensorDeclaration bad = good;
    change(&bad);
    return std::string(CheckDeclaration(bad).message());
  };
  EXPECT_THAT(refused([](auto* t) { t->elements = 1025; }), HasSubstr("a row has 1 to 1024"));
  EXPECT_THAT(refused([](auto* t) { t->dtype = DType::kFloat16; }), HasSubstr("rows are float32"));
  EXPECT_THAT(refused([](auto* t) { t->momentum = 0.9f; }), HasSubstr("momentum"));
  EXPECT_THAT(refused([](auto* t) { t->warmup_steps = 1; }), HasSubstr("warm-up"));
  EXPECT_THAT(refused([](auto* t) { t->table = "table(rows=x)"; }), HasSubstr("table 't'"));
  EXPECT_THAT(refused([](auto* t) { t->kind = KeyKind::kDense; }), HasSubstr("only a table"));
}

}  // namespace
}  // namespace bdn
