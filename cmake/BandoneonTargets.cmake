include(BandoneonHeaders)

# The root of the tree, also when compressors/ is the project.
get_filename_component(BDN_ROOT ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)

# bdn_library(NAME SRCS ... HDRS ... DEPS ... PRIVATE_DEPS ...): a static library whose every header
# is also compiled alone by the target all_verify_interface_header_sets.
function(bdn_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${BDN_ROOT} FILES ${ARG_HDRS})
  target_include_directories(${name} PUBLIC ${BDN_ROOT})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE bdn_options ${ARG_PRIVATE_DEPS})
  set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  bdn_share_headers(${name} library)
endfunction()

# bdn_test(NAME SRCS ... DEPS ... [LABELS short|medium|long] [TIMEOUT seconds] [PARTS n]): one GoogleTest binary,
# every case of which becomes a ctest case. With PARTS n ctest runs it in n parts: where cases are
# many and short, a process for each takes longer than they do.
function(bdn_test name)
  cmake_parse_arguments(ARG "" "LABELS;PARTS;TIMEOUT" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS short)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${BDN_ROOT})
  target_link_libraries(${name} PRIVATE bdn_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  # Compiling tests is most of the time that a first build takes, and few of them compute much.
  if(BDN_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)
  endif()
  bdn_share_headers(${name} test <gmock/gmock.h> <gtest/gtest.h>)
  if(NOT ARG_PARTS)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
    return()
  endif()
  foreach(part RANGE 1 ${ARG_PARTS})
    add_test(NAME "${name}.part ${part}" COMMAND ${name} --gtest_brief=1)
    math(EXPR index "${part} - 1")
    set_tests_properties("${name}.part ${part}" PROPERTIES LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_PARTS};GTEST_SHARD_INDEX=${index};GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/gtest/${name}.${part}.xml")
  endforeach()
endfunction()

# bdn_fuzz(NAME SRCS ... DEPS ...): a libFuzzer target under the fuzz preset, named NAME; every
# target answers `NAME -max_total_time=SECONDS`. The target `fuzzers` is all of them.
function(bdn_fuzz name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(BDN_FUZZ)
    add_executable(${name} ${ARG_SRCS})
    target_include_directories(${name} PRIVATE ${BDN_ROOT})
    target_link_libraries(${name} PRIVATE bdn_options ${ARG_DEPS})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name})
  endif()
endfunction()
