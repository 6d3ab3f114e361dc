#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_HOST_NAMES_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_HOST_NAMES_H_

#include <cstddef>
#include <string>

// The provider shm keeps each endpoint's memory as a file of /dev/shm, called by what the endpoint was given
// as its source, the user and a number. Who is killed leaves it there, some 16 MiB.

namespace bdn {

// What endpoints of this process are to be called: of it alone, also where containers share a /dev/shm.
std::string FabricHostName();

// Whether it is so called in this PID namespace, by a process of any user.
bool IsFabricNameOfHere(const std::string& name);

// Removes what processes of this user and this PID namespace have left that are no more; returns how many
// files. Thread-safe.
size_t RemoveFabricNamesOfTheDead();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_HOST_NAMES_H_
