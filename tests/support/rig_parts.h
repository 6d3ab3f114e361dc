#ifndef BANDONEON_TESTS_SUPPORT_RIG_PARTS_H_
#define BANDONEON_TESTS_SUPPORT_RIG_PARTS_H_

#include <cstdlib>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

// The parts of which rigs of whole clusters are made.

namespace bdn::testing {

// Returns the value; ends the program where there is none.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << std::endl;
    std::abort();
  }
  return *std::move(value);
}

// Runs body(0) to body(count - 1) at once, on a thread each, and waits.
template <typename Body>
void AtOnce(size_t count, const Body& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([i, &body] { body(i); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Lets all leave at once, as each waits for the others. A leave that fails is ignored.
template <typename Takers>
void LeaveAll(Takers* takers) {
  AtOnce(takers->size(), [takers](size_t i) {
    auto& taker = (*takers)[i];
    if (taker == nullptr) return;
    (void)taker->Leave(absl::Seconds(10));
    taker.reset();
  });
}

// Runs `body` for every one that is there, with its rank, at once.
template <typename Takers, typename Body>
void OnEachOf(Takers* takers, const Body& body) {
  AtOnce(takers->size(), [takers, &body](size_t i) {
    auto& taker = (*takers)[i];
    if (taker != nullptr) body(*taker, static_cast<int>(i));
  });
}

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_RIG_PARTS_H_
