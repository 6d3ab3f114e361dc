# Headers that most files include, parsed once: a first build takes two thirds of the time. The
# compiled headers name their build tree, so what is made with them is of no use to ccache in
# another tree; where ccache is, and in builds for people who edit, each file is compiled by itself.
option(BDN_PRECOMPILE "Parse common headers once" ON)
if(NOT BDN_PRECOMPILE OR BDN_CCACHE OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang"
   OR NOT (BDN_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Release"))
  set(BDN_PRECOMPILE OFF)
endif()

set(bdn_common_headers <algorithm> <array> <atomic> <cstdint> <functional> <map> <memory> <optional> <set>
  <span> <string> <string_view> <thread> <utility> <variant> <vector> <absl/container/flat_hash_map.h>
  <absl/status/statusor.h> <absl/strings/str_format.h> <absl/time/time.h>)

if(BDN_PRECOMPILE)
  # g++ 12 forgets that lines from compiled headers are the system's, and warns of std::string. It takes
  # compiled headers only where the same macros are defined; -pthread, which some targets have, defines one.
  target_compile_options(bdn_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-stringop-overflow>
    $<$<COMPILE_LANGUAGE:CXX>:-pthread>)
endif()

# bdn_share_headers(TARGET KIND [HEADER...]): the target uses the compiled headers of its kind, "library"
# or "test", which the first target of the kind makes. Targets of a kind have the same options.
function(bdn_share_headers target kind)
  if(NOT BDN_PRECOMPILE)
    return()
  endif()
  get_property(first GLOBAL PROPERTY BDN_HEADERS_OF_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${bdn_common_headers} ${ARGN})
    set_property(GLOBAL PROPERTY BDN_HEADERS_OF_${kind} ${target})
  endif()
endfunction()
