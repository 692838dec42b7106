// nibble bench probe: what the GPU of this machine is and does, as JSON.
#pragma once

namespace CLI {
class App;
}

namespace nibble::cli {

// Adds the subcommand to `bench`.
void add_bench_probe(CLI::App& bench);

}  // namespace nibble::cli
