// --dense-format and --mxfp4-layers: what the large dense matrices become while they are loaded.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace CLI {
class App;
}

namespace nibble::cli {

struct DenseFlags {
  std::string dense_format = "bf16";      // bf16 | mxfp8 | mxfp4 | nvfp4
  std::vector<std::string> mxfp4_layers;  // of qkv, o, mlp, lm_head
};

void add_dense_flags(CLI::App& command, DenseFlags& flags, const std::string& group);

// Throws Error(kUsage) for a layer that is none.
DenseFormats dense_formats(const DenseFlags& flags);

// "qkv mxfp4, o mxfp4, lm_head bf16", or one word where all are alike.
std::string dense_text(const DenseFormats& dense);

// What to say at start-up: the next faster form of the dense weights that has kernels under `cx`,
// what it gains at most and where its cost is written down. Empty: there is none.
std::string faster_dense_advice(const ops::Ctx& cx, const std::string& model,
                                const DenseFormats& dense);

}  // namespace nibble::cli
