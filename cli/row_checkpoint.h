#ifndef BANDONEON_CLI_ROW_CHECKPOINT_H_
#define BANDONEON_CLI_ROW_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The tables in a checkpoint of bandoneon.torch.save, as docs/checkpoints.md says that they lie on
// a disk.

namespace bdn::cli {

struct SavedTable {
  std::string name;
  std::string rule;
  size_t width = 0;
  size_t moments = 0;
  uint64_t updates = 0;
  // The files of each save, in order: a row is as the last of them has it.
  std::vector<std::string> files;
  size_t first_files = 0;  // those of the first save, which is of all rows

  size_t record_bytes() const { return 4 * (width + moments + 2); }
};

// Reads the manifest of a checkpoint. NotFound: there is none; InvalidArgument: of another format;
// DataLoss: it is not what save() writes. All name the file.
absl::StatusOr<std::vector<SavedTable>> ReadSavedTables(const std::string& directory);

// The newest record of a row: its file among those of the table, and where it begins there.
struct RecordPlace {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint32_t file = 0;
  uint32_t updates = 0;  // of the row
};
struct FoundRecords {
  std::vector<RecordPlace> rows;  // ids rising
  std::vector<uint64_t> removed;  // ids that were rows, rising
  // Ids that were removed earlier may be missing in `removed`.
  uint64_t removed_since = 0;
};
// Reads and checks all files of a table, and returns the places of its rows, and what was removed.
// Rows that did not change after `since` updates of the table are left out. DataLoss names file and
// table.
absl::StatusOr<FoundRecords> FindRecords(const SavedTable& table, uint64_t since);

// Writes DIR/ids.npy, uint64[n], rising, and DIR/rows.npy, float32[n][width], which may be mapped
// into memory; and, where these are changes, DIR/removed.npy, uint64[m], rising. Files that are
// there already are replaced once all are whole; a removed.npy is removed where these are all rows.
absl::Status ExportRows(const SavedTable& table, const FoundRecords& found, bool are_changes,
                        const std::string& directory);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_ROW_CHECKPOINT_H_
