# libfabric's headers, for transport=rdma. Nothing links libfabric: it is opened when it is asked for.
#
# Sets BDN_FABRIC to whether they are there.
set(BANDONEON_FABRIC AUTO CACHE STRING "RDMA through libfabric: ON, OFF, or AUTO (where its headers are)")
set_property(CACHE BANDONEON_FABRIC PROPERTY STRINGS AUTO ON OFF)

set(BDN_FABRIC OFF)
if(NOT BANDONEON_FABRIC STREQUAL OFF)
  find_path(BDN_FABRIC_INCLUDE rdma/fi_rma.h)
  if(BDN_FABRIC_INCLUDE)
    set(BDN_FABRIC ON)
  elseif(BANDONEON_FABRIC STREQUAL AUTO)
    message(STATUS "No transport=rdma (BANDONEON_FABRIC): there is no rdma/fi_rma.h")
  else()
    message(FATAL_ERROR "BANDONEON_FABRIC is ${BANDONEON_FABRIC}, but there is no rdma/fi_rma.h. Install libfabric-dev, or set it to OFF")
  endif()
endif()
