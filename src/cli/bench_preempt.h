// `nibble bench preempt`: more requests than the KV cache holds, and whether each answer is the one
// that it is with room for all.
#pragma once

namespace CLI {
class App;
}

namespace nibble::cli {

void add_bench_preempt(CLI::App& bench);

}  // namespace nibble::cli
