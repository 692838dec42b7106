// Flags of `vllm serve` that people type by heart: accepted with a log line that says what they
// mean here, or refused with advice. Never silently ignored.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace nibble::cli {

struct VllmFlags {
  std::vector<std::pair<std::string, std::string>> given;  // flag, value ("": none)
};

// "-tp" and the like, which are no flags to CLI11, become their long names; --mxfp4-layers loses
// the experts.
void spell_out_vllm_flags(std::vector<std::string>& arguments);

void add_vllm_flags(CLI::App& command, VllmFlags& flags);

// Logs what the accepted ones mean, and which VLLM_ variables are set for nothing. Throws
// Error(kUsage) for the others, with advice.
void explain_vllm_flags(const VllmFlags& flags);

// Whether --disable-log-stats is not among them.
bool logs_activity(const VllmFlags& flags);

// What --mxfp4-backend says of --activations; "": nothing.
std::string activations_of(const VllmFlags& flags);

}  // namespace nibble::cli
