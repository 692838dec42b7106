// What kernels ask of loaded weights beyond their bytes: facts by which rows refuse them
// (WeightFacts), and what a kernel reads beside them (Site::row_exponents).
#pragma once

#include "ops/site.h"
#include "tensor/buffer.h"

namespace nibble::ops {

// Bytes that prepare_weights() will allocate.
int64_t prepared_bytes(const Ctx& cx, const Sites& sites);

// Looks at the weights of all sites, plans those again whose kernels refuse what they hold, and
// says in the log which. What it allocates outlives the sites.
Buffer prepare_weights(const Ctx& cx, Sites& sites);

}  // namespace nibble::ops
