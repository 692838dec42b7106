#include "ops/ctx.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/thread_pool.h"
#include "cuda/memory.h"
#include "formats/bf16.h"
#include "ops/site.h"

namespace nibble::ops {

int Ctx::threads() const { return pool == nullptr ? 1 : pool->size(); }

bool Ctx::begin(const Site& next) {
  if (!begin(next.label)) return false;
  site = &next;
  return true;
}

bool Ctx::begin(const std::string& label) {
  if (left_out.empty() && !on_op) return true;
  const std::string all = whose + label;
  if (left_out == all || left_out == all.substr(0, all.find_first_of("/."))) return false;
  if (on_op) on_op(all.c_str());
  return true;
}

std::string Ctx::last_op() const { return site == nullptr ? "none" : site->label; }

Buffer Ctx::allocate(int64_t bytes) const {
  if (!on_gpu()) return Buffer(bytes);
  Buffer buffer = cuda::device_buffer(bytes);
  if (bytes > 0) cuda::fill(buffer.data(), 0, bytes);
  return buffer;
}

Buffer Ctx::copy_of(const void* data, int64_t bytes) const {
  Buffer buffer = allocate(bytes);
  if (on_gpu())
    cuda::copy(buffer.data(), data, bytes);
  else
    std::memcpy(buffer.data(), data, bytes);
  return buffer;
}

Tensor Ctx::on_host(const Tensor& t, Buffer& memory) const {
  if (!on_gpu()) return t;
  cuda::wait(stream);
  Tensor host = t;
  if (t.dtype == DType::kBF16) host.dtype = DType::kF32;
  memory = Buffer(host.size_bytes());
  host.data = memory.data();
  if (host.dtype == t.dtype) {
    cuda::copy(host.data, t.data, t.size_bytes());
    return host;
  }
  std::vector<uint16_t> bits(t.num_elements());
  cuda::copy(bits.data(), t.data, t.size_bytes());
  std::transform(bits.begin(), bits.end(), host.as<float>(), bf16_to_float);
  return host;
}

}  // namespace nibble::ops
