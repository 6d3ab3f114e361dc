#include "cli/row_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMagic = "BDNROWS\n";
constexpr int kFormat = 1;
// A file of rows may also be of this one, and has then the ids that were removed and the candidates
// behind the rows.
constexpr int kFormatOfLists = 2;
// The bytes of the record of a candidate, or of an id that was removed.
constexpr size_t kCountersBytes = 8;
constexpr size_t kMostHeadBytes = size_t{1} << 16;
constexpr size_t kMostPieceBytes = size_t{16} << 20;
constexpr size_t kMostManifestBytes = size_t{64} << 20;
constexpr uint64_t kMostNumber = uint64_t{1} << 20;
constexpr uint64_t kMostUpdates = uint64_t{1} << 62;

struct Closer {
  void operator()(FILE* file) const { fclose(file); }
};
using File = std::unique_ptr<FILE, Closer>;

absl::Status Failure(const std::string& what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, " cannot be ", what));
}

// CRC-32 as zlib has it.
uint32_t Crc32(uint32_t crc, std::span<const char> bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * 0xEDB88320u);
      table[i] = value;
    }
    return table;
  }();
  crc = ~crc;
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Reads a whole number of a manifest. InvalidArgument: it is none, or is not from `least` to
// `most`.
absl::StatusOr<uint64_t> Number(const Json& json, const char* name, uint64_t least, uint64_t most) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_unsigned() || found->get<uint64_t>() < least ||
      found->get<uint64_t>() > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is no whole number from %d to %d", name, least, most));
  }
  return found->get<uint64_t>();
}

absl::StatusOr<std::string> Text(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is no text", name));
  }
  return found->get<std::string>();
}

bool IsToken(const std::string& text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::Status AddFiles(const Json& save, const std::string& directory, SavedTable* table) {
  const auto id = Text(save, "id");
  if (!id.ok()) return id.status();
  if (!IsToken(*id)) return absl::InvalidArgumentError("the id of a save is none");
  const auto index = Number(save, "index", 0, kMostNumber);
  if (!index.ok()) return index.status();
  const auto ranks = Number(save, "ranks", 1, kMostNumber);
  if (!ranks.ok()) return ranks.status();
  const auto updates = Number(save, "updates", 0, kMostUpdates);
  if (!updates.ok()) return updates.status();
  for (uint64_t rank = 0; rank < *ranks; ++rank) {
    table->files.push_back(
        absl::StrFormat("%s/%s.table%d.rank%d.rows", directory, *id, *index, rank));
  }
  if (table->first_files == 0) table->first_files = table->files.size();
  table->updates = *updates;
  return absl::OkStatus();
}

absl::StatusOr<SavedTable> ReadTable(const Json& json, const std::string& directory) {
  if (!json.is_object()) return absl::InvalidArgumentError("a table is no object");
  SavedTable table;
  const auto name = Text(json, "table");
  const auto rule = Text(json, "rule");
  const auto width = Number(json, "width", 1, 1024);
  const auto moments = Number(json, "moments", 0, 2048);
  for (const absl::Status& status :
       {name.status(), rule.status(), width.status(), moments.status()}) {
    if (!status.ok()) return status;
  }
  table.name = *name;
  table.rule = *rule;
  table.width = *width;
  table.moments = *moments;
  const auto saves = json.find("saves");
  if (saves == json.end() || !saves->is_array() || saves->empty()) {
    return absl::InvalidArgumentError("a table without saves");
  }
  for (const Json& save : *saves) {
    if (!save.is_object()) return absl::InvalidArgumentError("a save is no object");
    if (absl::Status added = AddFiles(save, directory, &table); !added.ok()) return added;
  }
  return table;
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  const File file(fopen(path.c_str(), "rb"));
  if (file == nullptr) return Failure("read", path);
  std::string text;
  std::array<char, 4096> part;
  while (const size_t count = fread(part.data(), 1, part.size(), file.get())) {
    text.append(part.data(), count);
    if (text.size() > kMostManifestBytes) {
      return absl::DataLossError(absl::StrCat(path, " is too long for a manifest"));
    }
  }
  if (ferror(file.get())) return Failure("read", path);
  return text;
}

// Reads one file of a table from its beginning to its end.
class RowFile {
 public:
  RowFile(const SavedTable& table, std::string path)
      : table_(table), path_(std::move(path)), file_(fopen(path_.c_str(), "rb")) {}

  using Taker = std::function<void(uint64_t id, uint64_t offset, const char* record)>;

  // Calls `row` with the record of each row and where it begins, and `removed` with that of each id
  // that was removed.
  absl::Status Read(const Taker& row, const Taker& removed) {
    if (file_ == nullptr) return Failure("read", path_);
    if (absl::Status head = ReadHead(); !head.ok()) return head;
    absl::Status status = ReadList(table_.record_bytes(), row);
    if (!has_lists_) return status;
    if (status.ok()) status = ReadList(kCountersBytes, removed);
    // The candidates are no rows yet.
    return status.ok() ? ReadList(kCountersBytes, [](auto...) {}) : status;
  }
  // Returns the count of updates after which no id that was removed is missing. REQUIRES: it was
  // read.
  uint64_t removed_since() const { return removed_since_; }

 private:
  absl::Status ReadList(size_t record_bytes, const Taker& take) {
    uint64_t read = 0;
    std::vector<char> piece;
    while (true) {
      if (absl::Status got = Take(8, &piece); !got.ok()) return got;
      const auto count = Load<uint32_t>(piece.data());
      const auto checksum = Load<uint32_t>(piece.data() + 4);
      if (count == 0) return ReadEnd(checksum, read);
      const size_t bytes = count * (sizeof(uint64_t) + record_bytes);
      if (bytes > kMostPieceBytes) return Bad("has a piece of %d records", count);
      if (absl::Status got = Take(bytes, &piece); !got.ok()) return got;
      if (Crc32(0, piece) != checksum) {
        return Bad("is damaged in the %d records behind %d", count, read);
      }
      const size_t ids = count * sizeof(uint64_t);
      for (size_t i = 0; i < count; ++i) {
        const size_t at = ids + i * record_bytes;
        take(Load<uint64_t>(piece.data() + i * sizeof(uint64_t)), offset_ - bytes + at,
             piece.data() + at);
      }
      read += count;
    }
  }
  template <typename... Args>
  absl::Status Bad(const absl::FormatSpec<Args...>& format, const Args&... args) const {
    return absl::DataLossError(absl::StrFormat("%s, of table '%s', %s", path_, table_.name,
                                               absl::StrFormat(format, args...)));
  }
  absl::Status Take(size_t bytes, std::vector<char>* out) {
    out->resize(bytes);
    const size_t got = fread(out->data(), 1, bytes, file_.get());
    offset_ += got;
    if (got == bytes) return absl::OkStatus();
    if (ferror(file_.get())) return Failure("read", path_);
    return Bad("is cut off: %d bytes where %d were to come", got, bytes);
  }
  absl::Status ReadHead() {
    std::vector<char> bytes;
    if (absl::Status got = Take(kMagic.size() + 4, &bytes); !got.ok()) return got;
    const auto length = Load<uint32_t>(bytes.data() + kMagic.size());
    if (std::string_view(bytes.data(), kMagic.size()) != kMagic || length > kMostHeadBytes) {
      return Bad("is no file of rows that bandoneon.torch.save wrote");
    }
    if (absl::Status got = Take(length, &bytes); !got.ok()) return got;
    const Json head = Json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
    const bool is_whole = head.is_object() && head.contains("format") && head.contains("table") &&
                          head.contains("width") && head.contains("moments");
    if (!is_whole) return Bad("has a head that cannot be read");
    has_lists_ = head["format"] == kFormatOfLists;
    if (!has_lists_ && head["format"] != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is of format %s; this build reads formats %d and %d", path_,
                          head["format"].dump(), kFormat, kFormatOfLists));
    }
    if (has_lists_) {
      const auto since = Number(head, "removed_since", 0, kMostUpdates);
      if (!since.ok()) return Bad("has a head in which %s", since.status().message());
      removed_since_ = *since;
    }
    if (head["table"] != table_.name || head["width"] != table_.width ||
        head["moments"] != table_.moments) {
      return Bad("has rows of another table: %s", head.dump());
    }
    return absl::OkStatus();
  }
  absl::Status ReadEnd(uint32_t checksum, uint64_t read) {
    std::vector<char> total;
    if (absl::Status got = Take(sizeof(uint64_t), &total); !got.ok()) return got;
    if (Crc32(0, total) == checksum && Load<uint64_t>(total.data()) == read) {
      return absl::OkStatus();
    }
    return Bad("ends after %d records, and says otherwise", read);
  }

  const SavedTable& table_;
  const std::string path_;
  const File file_;
  uint64_t offset_ = 0;
  bool has_lists_ = false;
  uint64_t removed_since_ = 0;
};

// Writes the head of an array in NumPy's format 1.0, padded so that the data begin at a multiple of
// 64.
std::string NpyHead(const std::string& type, const std::string& shape) {
  std::string text =
      absl::StrFormat("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type, shape);
  constexpr size_t kPrefix = 10;
  text.append(63 - (kPrefix + text.size()) % 64, ' ');
  text += '\n';
  std::string head("\x93NUMPY\x01\x00", 8);
  head += static_cast<char>(text.size() & 0xff);
  head += static_cast<char>(text.size() >> 8);
  return head + text;
}

// A file that is there whole or not at all.
class Output {
 public:
  explicit Output(std::string path)
      : path_(std::move(path)),
        partial_(path_ + ".partial"),
        file_(fopen(partial_.c_str(), "wb")) {}
  ~Output() {
    if (!partial_.empty()) std::remove(partial_.c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  absl::Status Write(std::string_view bytes) {
    if (file_ == nullptr || fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
      return Failure("written", partial_);
    }
    return absl::OkStatus();
  }
  absl::Status Flush() {
    return fflush(file_.get()) == 0 ? absl::OkStatus() : Failure("written", partial_);
  }
  absl::Status Publish() {
    if (std::rename(partial_.c_str(), path_.c_str()) != 0) return Failure("written", path_);
    partial_.clear();
    return absl::OkStatus();
  }

 private:
  std::string path_;
  std::string partial_;
  File file_;
};

absl::Status WriteIds(const std::vector<uint64_t>& ids, Output* out) {
  absl::Status status = out->Write(NpyHead("<u8", absl::StrFormat("(%d,)", ids.size())));
  for (size_t i = 0; status.ok() && i < ids.size(); ++i) {
    status = out->Write({reinterpret_cast<const char*>(&ids[i]), sizeof(uint64_t)});
  }
  return status.ok() ? out->Flush() : status;
}

absl::Status WriteRows(const SavedTable& table, const std::vector<RecordPlace>& places,
                       Output* out) {
  absl::Status status =
      out->Write(NpyHead("<f4", absl::StrFormat("(%d, %d)", places.size(), table.width)));
  std::vector<File> files;
  for (const std::string& path : table.files) files.emplace_back(fopen(path.c_str(), "rb"));
  std::string row(table.width * sizeof(float), '\0');
  for (size_t i = 0; status.ok() && i < places.size(); ++i) {
    FILE* const file = files[places[i].file].get();
    const bool is_read = file != nullptr &&
                         fseeko(file, static_cast<off_t>(places[i].offset), SEEK_SET) == 0 &&
                         fread(row.data(), 1, row.size(), file) == row.size();
    status = is_read ? out->Write(row) : Failure("read", table.files[places[i].file]);
  }
  return status.ok() ? out->Flush() : status;
}

}  // namespace

absl::StatusOr<std::vector<SavedTable>> ReadSavedTables(const std::string& directory) {
  const std::string path = directory + "/checkpoint.json";
  const auto text = ReadWhole(path);
  if (!text.ok()) return text.status();
  const Json manifest = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](const std::string& why) {
    return absl::DataLossError(
        absl::StrFormat("%s is not what bandoneon.torch.save writes: %s", path, why));
  };
  if (!manifest.is_object()) return bad("it is no object");
  if (!manifest.contains("format") || manifest["format"] != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is not of format %d, which this build reads", path, kFormat));
  }
  std::vector<SavedTable> tables;
  const auto rows = manifest.find("rows");
  if (rows == manifest.end()) return tables;
  if (!rows->is_array()) return bad("'rows' is no list");
  for (const Json& json : *rows) {
    auto table = ReadTable(json, directory);
    if (!table.ok()) return bad(std::string(table.status().message()));
    tables.push_back(*std::move(table));
  }
  return tables;
}

absl::StatusOr<FoundRecords> FindRecords(const SavedTable& table, uint64_t since) {
  // A file's word on an id: it has a row, or was removed.
  struct Mention {
    RecordPlace place;
    bool is_row = false;
    bool was_row = false;  // of one that was removed
    bool is_new = false;   // it changed after `since`
  };
  FoundRecords found;
  std::vector<Mention> mentions;
  for (uint32_t file = 0; file < table.files.size(); ++file) {
    RowFile reader(table, table.files[file]);
    const auto add = [&](bool is_row, uint64_t id, uint64_t offset, const char* counters) {
      const auto updates = Load<uint32_t>(counters);
      mentions.push_back({.place = {.id = id, .offset = offset, .file = file, .updates = updates},
                          .is_row = is_row,
                          .was_row = !is_row && updates != 0,
                          .is_new = Load<uint32_t>(counters + sizeof(updates)) > since});
    };
    const absl::Status read = reader.Read(
        [&](uint64_t id, uint64_t offset, const char* record) {
          add(true, id, offset, record + table.record_bytes() - kCountersBytes);
        },
        [&](uint64_t id, uint64_t offset, const char* record) { add(false, id, offset, record); });
    if (!read.ok()) return read;
    if (file < table.first_files) {
      found.removed_since = std::max(found.removed_since, reader.removed_since());
    }
  }
  // The last file that has an id says what became of it, and has the present values of its row.
  std::ranges::stable_sort(mentions, {}, [](const Mention& of) { return of.place.id; });
  bool was_removed = false;
  for (size_t i = 0; i < mentions.size(); ++i) {
    const Mention& of = mentions[i];
    was_removed = was_removed || (of.was_row && of.is_new);
    const bool is_last = i + 1 == mentions.size() || of.place.id != mentions[i + 1].place.id;
    if (!is_last) continue;
    if (of.is_row && of.is_new) found.rows.push_back(of.place);
    if (!of.is_row && was_removed) found.removed.push_back(of.place.id);
    was_removed = false;
  }
  return found;
}

absl::Status ExportRows(const SavedTable& table, const FoundRecords& found, bool are_changes,
                        const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s cannot be made: %s", directory, error.message()));
  }
  std::vector<uint64_t> of_rows(found.rows.size());
  std::ranges::transform(found.rows, of_rows.begin(), &RecordPlace::id);
  Output ids(directory + "/ids.npy");
  if (absl::Status written = WriteIds(of_rows, &ids); !written.ok()) return written;
  Output rows(directory + "/rows.npy");
  if (absl::Status written = WriteRows(table, found.rows, &rows); !written.ok()) return written;
  const std::string path_of_removed = directory + "/removed.npy";
  if (are_changes) {
    Output removed(path_of_removed);
    if (absl::Status written = WriteIds(found.removed, &removed); !written.ok()) return written;
    if (absl::Status published = removed.Publish(); !published.ok()) return published;
  } else if (std::filesystem::remove(path_of_removed, error); error) {
    return Failure("removed", path_of_removed);
  }
  if (absl::Status published = ids.Publish(); !published.ok()) return published;
  return rows.Publish();
}

}  // namespace bdn::cli
