#include "ops/ctx.h"

#include "cpu/thread_pool.h"

namespace nibble::ops {

int Ctx::threads() const { return pool == nullptr ? 1 : pool->size(); }

}  // namespace nibble::ops
