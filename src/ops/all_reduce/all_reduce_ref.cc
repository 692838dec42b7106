#include <vector>

#include "dist/comm.h"
#include "ops/all_reduce/all_reduce.h"

namespace nibble::ops::ref {

void all_reduce(Ctx& cx, const Tensor& t) {
  const int64_t n = t.num_elements();
  std::vector<float> all(cx.comm->size() * n);
  cx.comm->all_gather(std::as_bytes(std::span(t.as<float>(), n)),
                      std::as_writable_bytes(std::span(all)));
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int r = 0; r < cx.comm->size(); ++r) sum += all[r * n + i];
    t.as<float>()[i] = static_cast<float>(sum);
  }
}

}  // namespace nibble::ops::ref
