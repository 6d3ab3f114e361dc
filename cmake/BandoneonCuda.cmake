# The kernels of device/ for NVIDIA GPUs, compiled by nvcc alone. Nothing links CUDA: the driver is opened when it is
# needed, so what is built here runs on machines without one.
#
# Sets BDN_CUDA to whether there is a compiler for them, BDN_CUDA_VERSION to the oldest driver for what it makes, as they
# count (13000), BDN_CUDA_ARCHITECTURES and, the last of them, BDN_CUDA_NEWEST; BDN_CUDA_OLDEST is the least that any of
# its output is for.
set(BANDONEON_CUDA AUTO CACHE STRING "Kernels for NVIDIA GPUs: ON, OFF, or AUTO (where there is an nvcc that works)")
set_property(CACHE BANDONEON_CUDA PROPERTY STRINGS AUTO ON OFF)
set(BANDONEON_CUDA_ARCHITECTURES "" CACHE STRING "What to compile them for, as 80;90; empty: 70 to 90, what nvcc has")

# The bits are those of the host: no fused multiply-add, IEEE division and roots, subnormals kept.
set(BDN_NVCC_FLAGS -std=c++20 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false --expt-relaxed-constexpr
  --extended-lambda)

# Sets BDN_CUDA_PROBLEM to why there is none, empty where there is one.
function(bdn_try_nvcc)
  find_program(BDN_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT BDN_NVCC)
    set(BDN_CUDA_PROBLEM "there is no nvcc" PARENT_SCOPE)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/CMakeFiles/try_nvcc.cu)
  file(WRITE ${source} "#include <bit>\nextern \"C\" __global__ void Nothing(const __grid_constant__ float x) {}\n")
  execute_process(COMMAND ${BDN_NVCC} ${BDN_NVCC_FLAGS} -ptx ${source} -o ${source}.ptx
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    set(BDN_CUDA_PROBLEM "${BDN_NVCC} does not compile C++20: ${output}" PARENT_SCOPE)
  endif()
endfunction()

set(BDN_CUDA OFF)
set(BDN_CUDA_VERSION 0)
set(BDN_CUDA_OLDEST 0)
set(BDN_TEXT_ARCHITECTURE 75)  # of bdn_write_kernel_text
if(NOT BANDONEON_CUDA STREQUAL OFF)
  bdn_try_nvcc()
  if(NOT BDN_CUDA_PROBLEM)
    set(BDN_CUDA ON)
  elseif(BANDONEON_CUDA STREQUAL AUTO)
    message(STATUS "No kernels for GPUs (BANDONEON_CUDA): ${BDN_CUDA_PROBLEM}")
  else()
    message(FATAL_ERROR "BANDONEON_CUDA is ${BANDONEON_CUDA}, but ${BDN_CUDA_PROBLEM}. Install the CUDA toolkit, or set it to OFF")
  endif()
endif()

if(BDN_CUDA)
  execute_process(COMMAND ${BDN_NVCC} --version OUTPUT_VARIABLE about COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" found "${about}")
  # Drivers of one major version take each other's code; PTX of a newer toolkit only GPUs to come would need.
  math(EXPR BDN_CUDA_VERSION "${CMAKE_MATCH_1} * 1000")
  set(BDN_CUDA_ARCHITECTURES ${BANDONEON_CUDA_ARCHITECTURES})
  if(NOT BDN_CUDA_ARCHITECTURES)
    execute_process(COMMAND ${BDN_NVCC} --list-gpu-arch OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[0-9]+" listed "${listed}")
    foreach(architecture IN LISTS listed)
      if(architecture GREATER_EQUAL 70 AND architecture LESS_EQUAL 90)
        list(APPEND BDN_CUDA_ARCHITECTURES ${architecture})
      endif()
    endforeach()
  endif()
  list(SORT BDN_CUDA_ARCHITECTURES COMPARE NATURAL)
  list(GET BDN_CUDA_ARCHITECTURES -1 BDN_CUDA_NEWEST)
  list(GET BDN_CUDA_ARCHITECTURES 0 BDN_CUDA_OLDEST)
  if(BDN_CUDA_OLDEST GREATER BDN_TEXT_ARCHITECTURE)
    set(BDN_CUDA_OLDEST ${BDN_TEXT_ARCHITECTURE})
  endif()
  message(STATUS "Kernels for GPUs: ${BDN_CUDA_ARCHITECTURES}, by nvcc for drivers from ${BDN_CUDA_VERSION} on")
endif()

# bdn_write_kernel_text(SOURCE OUTPUT): PTX for the oldest GPUs and drivers. nvcc writes the newest version of the
# language at its head; the kernels need nothing of it that PTX 7.0 (CUDA 11.0) lacks, as ptxas says in a test.
function(bdn_write_kernel_text source output)
  bdn_compile_kernels(${source} ${output}.newest -ptx -arch=compute_${BDN_TEXT_ARCHITECTURE})
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DFROM=${output}.newest -DTO=${output} -P ${BDN_ROOT}/cmake/OldestPtx.cmake
    DEPENDS ${output}.newest ${BDN_ROOT}/cmake/OldestPtx.cmake VERBATIM)
endfunction()

# bdn_compile_kernels(SOURCE OUTPUT FLAG ...): the flags say what is made and for what.
function(bdn_compile_kernels source output)
  get_filename_component(name ${output} NAME)
  add_custom_command(OUTPUT ${output}
    COMMAND ${BDN_NVCC} ${BDN_NVCC_FLAGS} -I${BDN_ROOT} ${ARGN} -MD -MF ${output}.d -MT ${output} ${source} -o ${output}
    DEPENDS ${source} DEPFILE ${output}.d COMMENT "Compiling kernels for GPUs: ${name}" VERBATIM)
endfunction()
