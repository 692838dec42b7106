// `nibble bench ops`: each kernel by itself.
#pragma once

namespace CLI {
class App;
}

namespace nibble::cli {

void add_bench_ops(CLI::App& bench);

}  // namespace nibble::cli
