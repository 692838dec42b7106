// Comm: the ranks that compute each step together, as one of them sees the others. All of them make
// the same calls in the same order. A call throws Error where a peer is gone, and from then on
// every call does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble::dist {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Throws what is known of a peer that is gone, else does nothing: for whoever waits for something
  // else.
  virtual void check() const = 0;

  // `all` gets what each rank brings, in order of ranks; the same number of bytes from each.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // Sums of all ranks' values in place: in float32, in order of ranks, so that every rank gets the
  // same bits.
  virtual void all_reduce(std::span<float> values) = 0;
  // Between two ranks, in order.
  virtual void send(int to, std::span<const std::byte> bytes) = 0;
  virtual void receive(int from, std::span<std::byte> bytes) = 0;
};

}  // namespace nibble::dist
