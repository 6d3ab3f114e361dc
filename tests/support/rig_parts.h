#ifndef BANDONEON_TESTS_SUPPORT_RIG_PARTS_H_
#define BANDONEON_TESTS_SUPPORT_RIG_PARTS_H_

#include <cstdlib>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

// What the rigs of whole clusters are made of.

namespace bdn::testing {

// The value; ends the program where there is none.
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

// All at once, for leaving waits for the others. Those who cannot, go without.
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
