#ifndef BANDONEON_COMMON_CERTS_SMALL_FILE_H_
#define BANDONEON_COMMON_CERTS_SMALL_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn {

// The most bytes that a file may have; a longer one is not read.
inline constexpr size_t kMostFileBytes = size_t{1} << 20;

// Returns the whole of a small file. InvalidArgument names the file and says why it cannot be read.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// Makes the directory for this user alone (0700), unless it exists.
absl::Status MakePrivateDirectory(const std::string& path);
// Writes a file that this user alone may read (0600), by a rename: a reader sees all of the old
// file or all of the new one.
absl::Status WritePrivateFile(const std::string& path, const std::string& text);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_SMALL_FILE_H_
