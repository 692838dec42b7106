// What a chat template may use up. The template engine (llama.cpp's, with cmake/jinja.patch) asks
// here before it makes a value, copies text or goes one level deeper: a template comes with a
// checkpoint from anywhere, and may loop, grow or recurse without end. Nothing is bounded, and
// nothing kept, on a thread that has no TemplateBounds.
#pragma once

#include <cstddef>
#include <memory>

namespace jinja {

struct value_t;

// Takes the bytes from what is left. Throws std::runtime_error where that is not enough, or where
// the time is over; from then on every call does.
void charge(size_t bytes);
// Of those, what is free again: to be used once more, though what is left stays as it is.
void give_back(size_t bytes);

// Of one value, which was charged `bytes`.
template <typename T>
struct charged_allocator {
  using value_type = T;
  explicit charged_allocator(size_t of_value) : bytes(of_value) {}
  template <typename U>
  charged_allocator(const charged_allocator<U>& other) : bytes(other.bytes) {}
  T* allocate(size_t n) { return std::allocator<T>().allocate(n); }
  void deallocate(T* at, size_t n) {
    std::allocator<T>().deallocate(at, n);
    give_back(bytes);
  }
  bool operator==(const charged_allocator& other) const = default;
  size_t bytes;
};

// One level of recursion, of the parser or of values in values. Throws as charge() does.
struct level {
  level();
  ~level();
};

// Keeps a container up to the end: containers can hold each other, or be nested deeper than the
// stack when they end one by one.
void keep(std::shared_ptr<value_t> container);

}  // namespace jinja
