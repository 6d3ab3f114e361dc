#ifndef BANDONEON_TESTS_REFERENCE_WIRE_REFERENCE_H_
#define BANDONEON_TESTS_REFERENCE_WIRE_REFERENCE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// A second decoder of the wire format, written from proto/wire_format.md alone: byte by byte, with
// no code of the project's, to be read beside that document. It returns nothing for bytes that a
// receiver MUST refuse.
namespace wire_reference {

using Bytes = std::vector<uint8_t>;

// Section 3, bit by bit.
uint32_t Crc32c(const Bytes& bytes);

// The header of a frame: section 3.
struct Header {
  uint8_t type, codec, flags, part;
  uint32_t sender;
  uint64_t key, step, base_step, num_elements, element_offset = 0, saved_step = 0;
  uint32_t epoch, catalogue_version;
  float weight, learning_rate;
  uint32_t payload_bytes, payload_crc, program_steps, request;
  int32_t priority;
};
std::optional<Header> ReadHeader(const Bytes& bytes);

// Section 5.1.
struct Hello {
  uint32_t node;
  uint8_t role;
  std::string job_id, token;
};
std::optional<Hello> ReadHello(const Bytes& bytes);

// Section 5.2.
struct Error {
  uint32_t code;
  std::string message;
};
std::optional<Error> ReadError(const Bytes& bytes);

// Section 5.3.
std::optional<std::vector<int32_t>> ReadRanks(const Bytes& bytes);

// Section 5.6.
struct Counters {
  uint64_t updates;
  float previous_learning_rate;
};
std::optional<Counters> ReadCounters(const Bytes& bytes);

struct Report {
  uint64_t done = 0;
  uint64_t complete_from = 0;
  uint64_t open = 0;
  uint64_t uncompressed_from = 0;
  std::array<uint64_t, 2> snapshots{};
  uint64_t keeps_value = 0;
  uint64_t newest_snapshot = 0;
  uint32_t flags = 0;
  std::vector<std::pair<uint64_t, uint32_t>> inits;  // the step before it, and its number
};
std::optional<Report> ReadReport(const Bytes& bytes);

struct Order {
  uint64_t what = 0;
  uint64_t start = 0;
  uint64_t target = 0;
};
std::optional<Order> ReadOrder(const Bytes& bytes);

struct Given {
  uint64_t step = 0;
  uint64_t payload_step = 0;
  uint64_t base_step = 0;
  uint64_t flags = 0;
  uint64_t codec = 0;
  uint64_t refusal = 0;
  uint64_t payload_bytes = 0;
  uint64_t replica_bytes = 0;
};
std::optional<Given> ReadGiven(const Bytes& bytes);

// Section 2, On a fabric.
struct FabricHandshake {
  uint32_t kind = 0;
  uint64_t session = 0, token = 0;
  uint32_t number = 0, message_bytes = 0;
  uint64_t key = 0, base = 0;
  uint32_t block_bytes = 0, num_blocks = 0, immediate = 0;
  std::string text, address;
};
std::optional<FabricHandshake> ReadFabricHandshake(const Bytes& bytes);
// The beginning of a message over a fabric: section 2.
struct FabricPrefix {
  uint32_t kind, number, count;
  uint64_t token, payload_bytes;
};
std::optional<FabricPrefix> ReadFabricPrefix(const Bytes& bytes);

}  // namespace wire_reference

#endif  // BANDONEON_TESTS_REFERENCE_WIRE_REFERENCE_H_
