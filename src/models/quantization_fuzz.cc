// quantization_config: what it says of the modules of a layer, whatever its patterns.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "models/quantization.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const nibble::Quantization quantization(
        nibble::Config::parse({reinterpret_cast<const char*>(data), size}, "fuzz"));
    for (const char* module :
         {"lm_head", "model.layers.11.self_attn.q_proj", "model.layers.2.mlp.gate",
          "model.layers.3.mlp.experts.117.gate_proj", ""})
      (void)quantization.format_of(module);
  } catch (const nibble::Error&) {
  }
  return 0;
}
