#include "cuda/nvtx.h"

#include <nvtx3/nvToolsExt.h>

#include <string_view>

namespace nibble::cuda {

std::function<void(const char* name)> nvtx_ranges() {
  return [is_open = false](const char* name) mutable {
    if (is_open) nvtxRangePop();
    is_open = std::string_view(name) != "end";
    if (is_open) nvtxRangePushA(name);
  };
}

}  // namespace nibble::cuda
