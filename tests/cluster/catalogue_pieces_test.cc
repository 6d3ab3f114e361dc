#include "common/cluster/catalogue_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using ::testing::HasSubstr;

// Tensors of their own keys, and one key of many segments.
CatalogueDelta Delta(uint32_t tensors, uint32_t segments) {
  CatalogueDelta delta{.version = {1, 3}, .first_tensor = 100};
  for (uint32_t i = 0; i < tensors + segments; ++i) {
    delta.tensors.push_back({.name = "layers." + std::to_string(i), .elements = 8});
  }
  for (uint32_t i = 0; i < tensors; ++i) {
    KeyEntry key{.key = Key::Of(100 + i, 0), .push_spec = i % 2 ? "fp16" : "none", .elements = 8};
    key.segments = {{.tensor = 100 + i, .elements = 8}};
    delta.keys.push_back(key);
    delta.owners.push_back(7 + i % 2);
  }
  if (segments > 0) {
    KeyEntry key{.key = Key::Of(100 + tensors, 0), .elements = uint64_t{8} * segments};
    for (uint32_t i = 0; i < segments; ++i) {
      key.segments.push_back({.tensor = 100 + tensors + i, .elements = 8});
    }
    delta.keys.push_back(key);
    delta.owners.push_back(7);
  }
  return delta;
}

using Change = std::function<void(uint32_t piece, wire::CataloguePiece*)>;

absl::StatusOr<SharedDelta> Through(
    const std::vector<std::string>& pieces, uint32_t version = 3,
    const Change& change = [](uint32_t, wire::CataloguePiece*) {}) {
  return ReadDelta(version, [&](uint32_t piece, wire::CataloguePiece* message) {
    EXPECT_TRUE(message->ParseFromString(pieces.at(piece)));
    change(piece, message);
    return absl::OkStatus();
  });
}

TEST(CataloguePieces, WhatIsSmallIsOnePiece) {
  const CatalogueDelta delta = Delta(3, 2);
  const std::vector<std::string> pieces = PiecesOf(delta);
  EXPECT_EQ(pieces.size(), 1u);
  const auto read = Through(pieces);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(**read, delta);
}

TEST(CataloguePieces, TablesComeWithTheirSpecsAndBuckets) {
  CatalogueDelta delta{.version = {1, 3}, .first_tensor = 100};
  for (const char* table : {"table(rows=9)", "table"}) {
    delta.tensors.push_back(
        {.name = table, .elements = 8, .kind = KeyKind::kRows, .rule = "adagrad", .table = table});
  }
  for (uint32_t bucket = 0; bucket < 2; ++bucket) {
    KeyEntry key{.key = Key::Of(100, bucket),
                 .kind = KeyKind::kRows,
                 .rule = "adagrad",
                 .elements = 16,
                 .buckets = 2,
                 .expected_rows = uint64_t{1} << 40};
    key.segments = {{100, 0, 8}, {101, 0, 8}};
    delta.keys.push_back(key);
    delta.owners.push_back(7);
  }
  const auto read = Through(PiecesOf(delta));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(**read, delta);
  const auto refused = Through(PiecesOf(delta), 3, [](uint32_t, wire::CataloguePiece* message) {
    message->mutable_keys(0)->set_buckets(3);
  });
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CataloguePieces, NoPieceIsLongAndTogetherTheyAreTheWhole) {
  constexpr size_t kPiece = 2000;
  const CatalogueDelta delta = Delta(200, 500);
  const std::vector<std::string> pieces = PiecesOf(delta, kPiece);
  EXPECT_GT(pieces.size(), 5u);
  for (const std::string& piece : pieces) EXPECT_LE(piece.size(), kPiece);
  const auto read = Through(pieces);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(**read, delta);
}

TEST(CataloguePieces, TraitsAreThereOnce) {
  CatalogueDelta delta = Delta(1000, 0);
  for (KeyEntry& key : delta.keys) key.push_spec = std::string(200, 'p');
  EXPECT_LT(PiecesOf(delta)[0].size(), 1000 * 60u);
}

TEST(CataloguePieces, WhatTensorsAndKeysSayAlikeIsHeldOnceByWhoReadsIt) {
  CatalogueDelta delta = Delta(1000, 0);
  for (TensorDeclaration& tensor : delta.tensors) tensor.push_spec = std::string(200, 'p');
  for (KeyEntry& key : delta.keys) key.push_spec = std::string(200, 'p');
  const std::vector<std::string> pieces = PiecesOf(delta, 4000);
  const auto read = Through(pieces);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(**read, delta);
  std::set<const std::string*> texts;
  for (const TensorDeclaration& tensor : (*read)->tensors) texts.insert(&tensor.push_spec.str());
  for (const KeyEntry& key : (*read)->keys) texts.insert(&key.push_spec.str());
  EXPECT_LE(texts.size(), pieces.size());
}

TEST(CataloguePieces, PiecesOfDifferentThingsAreRefused) {
  const std::vector<std::string> pieces = PiecesOf(Delta(200, 0), 2000);
  const auto expect = [&](const Change& change) {
    const absl::Status status = Through(pieces, 3, change).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not what came for it"));
  };
  expect([](uint32_t, auto* piece) { piece->mutable_version()->set_catalogue_version(4); });
  expect([](uint32_t i, auto* piece) { piece->mutable_version()->set_epoch(i); });
  expect([](uint32_t, auto* piece) { piece->set_piece(1); });
  expect([](uint32_t i, auto* piece) { piece->set_pieces(5 + i); });
  expect([](uint32_t i, auto* piece) { piece->set_first_tensor(i); });
}

TEST(CataloguePieces, ADeltaThatContradictsItselfIsRefused) {
  const std::vector<std::string> pieces = PiecesOf(Delta(2, 0));
  const auto message = [&](const std::function<void(wire::KeyEntry*)>& change) {
    const absl::Status status =
        Through(pieces, 3, [&](uint32_t, auto* piece) { change(piece->mutable_keys(1)); }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto* key) { key->set_owner(0); }), HasSubstr("no owner"));
  EXPECT_THAT(message([](auto* key) { key->clear_segments(); }), HasSubstr("is empty"));
  EXPECT_THAT(message([](auto* key) { key->set_traits(9); }), HasSubstr("traits 9 of"));
  for (const uint32_t tensor : {0u, 99u, 102u, ~0u}) {
    EXPECT_THAT(message([&](auto* key) { key->mutable_segments(0)->set_tensor(tensor); }),
                HasSubstr("outside its tensor"));
  }
  EXPECT_THAT(message([](auto* key) { key->mutable_segments(0)->set_offset(~uint64_t{0}); }),
              HasSubstr("outside its tensor"));
  EXPECT_THAT(message([](auto* key) { key->mutable_segments(0)->set_elements(9); }),
              HasSubstr("outside its tensor"));
}

TEST(CataloguePieces, WhatFetchingSaysIsReturned) {
  const auto read =
      ReadDelta(3, [](uint32_t, wire::CataloguePiece*) { return absl::UnavailableError("gone"); });
  EXPECT_EQ(read.status(), absl::UnavailableError("gone"));
}

TEST(CataloguePieces, WhatIsRetiredComesInPiecesToo) {
  CatalogueDelta delta{.version = {1, 3}, .first_tensor = 100};
  for (uint32_t i = 0; i < 100; ++i) delta.retired.push_back(Key::Of(i, i % 3));
  for (const size_t bytes : {size_t{100}, kPieceBytes}) {
    const std::vector<std::string> pieces = PiecesOf(delta, bytes);
    EXPECT_EQ(pieces.size() > 1, bytes == 100);
    const auto read = Through(pieces);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(**read, delta);
  }
}

}  // namespace
}  // namespace bdn
