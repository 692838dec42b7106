// Bytes held for requests, of a stated total.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace nibble::server {

// Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(size_t total) : total_(total) {}

  size_t total() const { return total_; }
  size_t held() const { return held_; }
  // False, with nothing taken: not so much is left.
  [[nodiscard]] bool take(size_t bytes) {
    size_t held = held_;
    do {
      if (bytes > total_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + bytes));
    return true;
  }
  void give_back(size_t bytes) { held_ -= bytes; }

 private:
  const size_t total_;
  std::atomic<size_t> held_{0};
};

// What one request holds of a budget, given back at its end. The first bytes are free, so that who
// holds little is never refused for those who hold much.
class ByteShare {
 public:
  ByteShare() = default;  // holds nothing
  ByteShare(std::shared_ptr<ByteBudget> budget, size_t free)
      : budget_(std::move(budget)), free_(free) {}
  ByteShare(ByteShare&& other) noexcept
      : budget_(std::move(other.budget_)),
        free_(other.free_),
        bytes_(std::exchange(other.bytes_, 0)) {}
  ByteShare& operator=(ByteShare&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(free_, other.free_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ByteShare() { clear(); }

  size_t bytes() const { return bytes_; }
  size_t free() const { return free_; }
  const ByteBudget& budget() const { return *budget_; }
  // False, with nothing changed: the budget has not so much left. Less is always granted.
  [[nodiscard]] bool resize(size_t bytes) {
    const size_t before = counted(bytes_), after = counted(bytes);
    if (after > before && !budget_->take(after - before)) return false;
    if (after < before) budget_->give_back(before - after);
    bytes_ = bytes;
    return true;
  }
  void clear() {
    if (counted(bytes_) > 0) budget_->give_back(counted(bytes_));
    bytes_ = 0;
  }

 private:
  size_t counted(size_t bytes) const { return bytes - std::min(bytes, free_); }

  std::shared_ptr<ByteBudget> budget_;
  size_t free_ = 0;
  size_t bytes_ = 0;
};

}  // namespace nibble::server
