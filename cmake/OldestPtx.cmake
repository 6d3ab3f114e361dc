# Copies a text of PTX, which says at its head that it is of version 7.0: -DFROM=... -DTO=... -P OldestPtx.cmake.
file(READ ${FROM} text)
string(REGEX REPLACE "\n\\.version [0-9.]+" "\n.version 7.0" oldest "${text}")
if(oldest STREQUAL text)
  message(FATAL_ERROR "${FROM} has no line that says of which version of PTX it is")
endif()
file(WRITE ${TO} "${oldest}")
