# The kernels of device/ for NVIDIA GPUs, compiled by nvcc alone. Nothing links CUDA: the driver is opened when it is
# needed, so what is built here runs on machines without one.
set(BANDONEON_CUDA AUTO CACHE STRING "Kernels for NVIDIA GPUs: ON, OFF, or AUTO (where there is an nvcc)")
set_property(CACHE BANDONEON_CUDA PROPERTY STRINGS AUTO ON OFF)
set(BANDONEON_CUDA_ARCHITECTURES "" CACHE STRING "What to compile them for, as 80;90; empty: 70 to 90, what nvcc has")

# bdn_cuda_image(SOURCE IMAGE VERSION): compiles the source into one fat binary, with code for each architecture and PTX
# of the newest for those to come. Sets the variables IMAGE to its path, empty without CUDA, and VERSION to the toolkit's as
# drivers count it (13000).
function(bdn_cuda_image source image version)
  set(${image} "" PARENT_SCOPE)
  set(${version} 0 PARENT_SCOPE)
  if(BANDONEON_CUDA STREQUAL OFF)
    return()
  endif()
  find_program(BDN_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT BDN_NVCC)
    if(NOT BANDONEON_CUDA STREQUAL AUTO)
      message(FATAL_ERROR "BANDONEON_CUDA is ${BANDONEON_CUDA}, but there is no nvcc: install the CUDA toolkit, or set it to OFF")
    endif()
    message(STATUS "No nvcc: codecs on GPUs are left out (BANDONEON_CUDA)")
    return()
  endif()
  execute_process(COMMAND ${BDN_NVCC} --version OUTPUT_VARIABLE about COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" found "${about}")
  set(toolkit ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
  math(EXPR number "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
  set(architectures ${BANDONEON_CUDA_ARCHITECTURES})
  if(NOT architectures)
    execute_process(COMMAND ${BDN_NVCC} --list-gpu-arch OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "compute_[0-9]+" listed "${listed}")
    foreach(architecture IN LISTS listed)
      string(REPLACE "compute_" "" architecture ${architecture})
      if(architecture GREATER_EQUAL 70 AND architecture LESS_EQUAL 90)
        list(APPEND architectures ${architecture})
      endif()
    endforeach()
  endif()
  list(SORT architectures COMPARE NATURAL)
  list(GET architectures -1 newest)
  set(targets -gencode arch=compute_${newest},code=compute_${newest})
  foreach(architecture IN LISTS architectures)
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  set(output ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  # The bits are those of the host: no fused multiply-add, IEEE division and roots, subnormals kept.
  add_custom_command(OUTPUT ${output}
    COMMAND ${BDN_NVCC} -std=c++20 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false --expt-relaxed-constexpr
      --extended-lambda -I${BDN_ROOT} ${targets} -MD -MF ${output}.d -MT ${output}
      -fatbin ${source} -o ${output}
    DEPENDS ${source} DEPFILE ${output}.d
    COMMENT "Compiling kernels for GPUs: ${architectures}" VERBATIM)
  message(STATUS "Kernels for GPUs by nvcc ${toolkit}: ${architectures}")
  set(${image} ${output} PARENT_SCOPE)
  set(${version} ${number} PARENT_SCOPE)
endfunction()
