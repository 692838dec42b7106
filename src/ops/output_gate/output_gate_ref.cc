#include <cmath>

#include "ops/output_gate/output_gate.h"
#include "ops/store.h"

namespace nibble::ops::ref {

void output_gate(Ctx& cx, const Tensor& att, const Tensor& gate) {
  for (int64_t i = 0; i < att.num_elements(); ++i)
    att.as<float>()[i] =
        stored(cx.activations,
               att.as<float>()[i] / (1 + std::exp(-static_cast<double>(gate.as<float>()[i]))));
}

}  // namespace nibble::ops::ref
