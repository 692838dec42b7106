// From the logits of many tokens to their choices, and those seen from the experts
// (ops/routing.h): for the CUDA rows of norm_route that leave it to launches of their own.
#pragma once

#include "ops/ctx.h"
#include "ops/norm_route/route_scratch.h"
#include "ops/routing.h"

namespace nibble::ops::gpu {

// Fills routing's arrays from scratch.logits [T, experts] and a shared expert's gate_logits.
void choose_and_sort(Ctx& cx, const Routing& routing, const RouteScratch& scratch, int experts);

}  // namespace nibble::ops::gpu
