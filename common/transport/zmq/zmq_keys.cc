#include "common/transport/zmq/zmq_keys.h"

#include <link.h>
#include <zmq.h>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kKeyTextBytes = 40;  // of 32 bytes in Z85

struct LoadedLibraries {
  bool has_zmq = false;
  bool has_sodium = false;
};

int NoteLibrary(dl_phdr_info* info, size_t, void* seen) {
  auto* libraries = static_cast<LoadedLibraries*>(seen);
  const std::string_view name(info->dlpi_name == nullptr ? "" : info->dlpi_name);
  if (name.find("/libzmq.so") != std::string_view::npos) libraries->has_zmq = true;
  if (name.find("/libsodium.so") != std::string_view::npos) libraries->has_sodium = true;
  return 0;
}

}  // namespace

absl::Status CheckCurve() {
  if (zmq_has("curve") == 0) {
    return Unimplemented("this libzmq was built without CURVE: install one that has libsodium");
  }
  LoadedLibraries libraries;
  // A libzmq that is built with libsodium has loaded it, too.
  dl_iterate_phdr(NoteLibrary, &libraries);
  if (libraries.has_zmq && !libraries.has_sodium) {
    return Unimplemented(
        "this libzmq has a CURVE that is not libsodium's: install one that is built with it");
  }
  return absl::OkStatus();
}

absl::StatusOr<KeyPair> MakeKeyPair() {
  char public_text[kKeyTextBytes + 1];
  char secret_text[kKeyTextBytes + 1];
  if (zmq_curve_keypair(public_text, secret_text) != 0) {
    return Unimplemented("zmq_curve_keypair: %s", zmq_strerror(errno));
  }
  return KeyPair{PublicKeyFromZ85(public_text), public_text, secret_text};
}

std::string ToZ85(std::string_view bytes) {
  std::string text(bytes.size() / 4 * 5 + 1, '\0');
  if (zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) ==
      nullptr) {
    return "";
  }
  text.pop_back();  // the final 0
  return text;
}

PublicKey PublicKeyFromZ85(std::string_view text) {
  PublicKey key;
  if (text.size() != kKeyTextBytes ||
      zmq_z85_decode(key.bytes.data(), std::string(text).c_str()) == nullptr) {
    return {};
  }
  return key;
}

}  // namespace bdn
