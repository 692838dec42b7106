// Result<T>: a value, or the text of what was wrong with a request. For what is expected while
// serving.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace nibble {

struct Failure {
  std::string text;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}            // NOLINT
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return CHECK(ok()), std::get<0>(state_); }
  const T& value() const& { return CHECK(ok()), std::get<0>(state_); }
  T&& value() && { return CHECK(ok()), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const std::string& error() const { return CHECK(!ok()), std::get<1>(state_).text; }

 private:
  std::variant<T, Failure> state_;
};

}  // namespace nibble
