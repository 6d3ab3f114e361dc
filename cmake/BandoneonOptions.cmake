# Language level, warnings and floating-point rules for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# What CI builds is thrown away: a cache gains it nothing, and common headers that are parsed once do.
if(NOT "$ENV{CI}" STREQUAL "true")
  find_program(BDN_CCACHE ccache)
endif()
if(BDN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BDN_CCACHE})
endif()

add_library(bdn_options INTERFACE)
# No contraction: sums must have the same bits on every instruction set (docs/architecture.md).
target_compile_options(bdn_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off
  -fno-math-errno $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12 takes some functions that store through a pointer held by reference in a lambda for pure,
  # and drops the call (seen in TopKCodec::DecodeAdd; the contract suite catches it).
  target_compile_options(bdn_options INTERFACE -fno-ipa-pure-const)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(bdn_options INTERFACE -Wthread-safety -Werror=thread-safety)
endif()
if(BDN_SANITIZE)
  # -O1 and, for tests (bdn_test), -O0: compiling is most of the time that a run under a sanitizer takes.
  target_compile_options(bdn_options INTERFACE -fsanitize=${BDN_SANITIZE} -fno-omit-frame-pointer -O1 -g1)
  target_link_options(bdn_options INTERFACE -fsanitize=${BDN_SANITIZE})
  if(BDN_SANITIZE MATCHES address)
    target_compile_options(bdn_options INTERFACE -fsanitize=undefined -fno-sanitize-recover=all)
    target_link_options(bdn_options INTERFACE -fsanitize=undefined)
  endif()
endif()
if(BDN_FUZZ)
  # So that the fuzzers see which branches of the libraries they reach.
  target_compile_options(bdn_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
