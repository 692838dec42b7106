#include "tensor/buffer.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace nibble {

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  CHECK(bytes >= 0);
  if (bytes == 0) return;
  data_ = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw Error(ErrorKind::kMemory, "the system refused " + std::to_string(bytes) +
                                        " bytes of memory; free some or lower --memory-budget");
  }
  madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  release_ = [](void* data, int64_t n) { munmap(data, static_cast<size_t>(n)); };
}

Buffer::Buffer(void* data, int64_t bytes, void (*release)(void* data, int64_t bytes))
    : data_(data), bytes_(bytes), release_(release) {}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      release_(other.release_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(release_, other.release_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) release_(data_, bytes_);
}

Tensor Arena::take(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t = make_tensor(static_cast<char*>(buffer_.data()) + used_, dtype, shape);
  used_ += padded(t.size_bytes());
  CHECK(used_ <= buffer_.size_bytes());
  return t;
}

}  // namespace nibble
