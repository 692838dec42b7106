#include "cli/vllm_flags.h"

#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace nibble::cli {
namespace {

enum class Takes { kNothing, kValue };

struct VllmFlag {
  const char* names;  // as CLI11 wants them
  Takes takes;
  const char* accepted;     // values between blanks; "*": any; "": the flag is refused
  const char* meaning;      // of an accepted one, or the advice with a refusal
  const char* advice = "";  // for other values
};

constexpr const char* kSplit = "--tensor-parallel-size splits every layer, and every expert";
constexpr const char* kReplicas =
    "one model a process; docs/replicas.md puts several behind a gateway";
constexpr const char* kOwnKernels =
    "nibble's own kernels run; nibble doctor MODEL shows which, --kernel op=name forces one";
constexpr const char* kSampling = "edit generation_config.json, or set it in each request";

constexpr VllmFlag kFlags[] = {
    {"--enable-auto-tool-choice", Takes::kNothing, "*", "tool calls are always recognised"},
    {"--pipeline-parallel-size", Takes::kValue, "1", kSplit, kSplit},
    {"--data-parallel-size", Takes::kValue, "1", kReplicas, kReplicas},
    {"--enable-expert-parallel", Takes::kNothing, "", kSplit},
    {"--distributed-executor-backend", Takes::kValue, "", "nibble starts its ranks itself"},
    {"--dtype", Takes::kValue, "auto bfloat16",
     "what is stored as bf16 stays so unless --dense-format says otherwise", "see --activations"},
    {"-q,--quantization", Takes::kValue, "mxfp4 auto",
     "experts stay as the checkpoint has them; --dense-format says what the rest becomes",
     "--dense-format mxfp8 or mxfp4 encodes the dense matrices while loading"},
    {"--compilation-config", Takes::kValue, "*", "nothing is compiled at start-up"},
    {"--async-scheduling", Takes::kNothing, "*", "steps are scheduled by one loop in C++"},
    {"--trust-remote-code", Takes::kNothing, "*", "code in checkpoints is never run"},
    {"--disable-log-requests", Takes::kNothing, "*", "requests are never logged"},
    {"--no-enable-log-requests", Takes::kNothing, "*", "requests are never logged"},
    {"--enable-log-requests", Takes::kNothing, "", "prompts are never logged"},
    {"--disable-log-stats", Takes::kNothing, "*",
     "a busy engine does not say every ten seconds what it does"},
    {"--uvicorn-log-level", Takes::kValue, "*", "the environment variable NIBBLE_LOG sets it"},
    {"--tokenizer", Takes::kValue, "", "the tokenizer.json in MODEL is used"},
    {"--tokenizer-mode", Takes::kValue, "auto", "the tokenizer.json in MODEL is used",
     "the tokenizer.json in MODEL is used"},
    {"--generation-config", Takes::kValue, "auto", "sampling defaults are the model's", kSampling},
    {"--override-generation-config", Takes::kValue, "", kSampling},
    {"--hf-overrides", Takes::kValue, "", "edit config.json"},
    {"--download-dir", Takes::kValue, "",
     "nibble downloads nothing; it finds models in the Hugging Face cache (HF_HOME)"},
    {"--attention-backend", Takes::kValue, "*", kOwnKernels},
    {"--attention-config", Takes::kValue, "*", kOwnKernels},
    {"--moe-backend", Takes::kValue, "*", kOwnKernels},
    {"--mxfp4-backend", Takes::kValue, "auto CUTLASS MARLIN TRITON",
     "it chooses what activations are rounded to: see --activations",
     "auto, CUTLASS (--activations fp8), MARLIN and TRITON (bf16) are known"},
    {"--swap-space", Takes::kValue, "0", "nothing is swapped", "nibble never swaps"},
    {"--cpu-offload-gb", Takes::kValue, "0", "nothing is offloaded", "nibble never offloads"},
    {"--block-size", Takes::kValue, "16", "pages hold 16 tokens", "pages hold 16 tokens"},
    {"--enable-lora", Takes::kNothing, "", "nibble loads no adapters"},
    {"--root-path", Takes::kValue, "", "let the proxy in front strip the prefix"},
    {"--uds", Takes::kValue, "", "nibble listens on TCP: --host and --port"},
};

// "--tensor-parallel-size" -> "--tensor-parallel-size"
std::string_view long_name(const VllmFlag& flag) {
  const std::string_view names(flag.names);
  const std::string_view from = names.substr(names.find("--"));
  return from.substr(0, from.find(','));
}

bool accepts(const VllmFlag& flag, std::string_view value) {
  const std::string_view accepted(flag.accepted);
  if (accepted == "*") return true;
  if (value.empty() || value.find(' ') != std::string_view::npos) return false;
  return (" " + std::string(accepted) + " ").find(" " + std::string(value) + " ") !=
         std::string::npos;
}

}  // namespace

void spell_out_vllm_flags(std::vector<std::string>& arguments) {
  constexpr std::pair<const char*, const char*> kShort[] = {{"-tp", "--tensor-parallel-size"},
                                                            {"-pp", "--pipeline-parallel-size"},
                                                            {"-dp", "--data-parallel-size"},
                                                            {"-cc", "--compilation-config"}};
  for (std::string& argument : arguments) {
    for (const auto& [from, to] : kShort) {
      if (argument == from) argument = to;
    }
  }
  // vLLM's fork names the experts too, which are MXFP4 in the checkpoint.
  const auto layers = std::find(arguments.begin(), arguments.end(), "--mxfp4-layers");
  if (layers == arguments.end() || layers + 1 == arguments.end()) return;
  std::string rest;
  std::istringstream list(layers[1] == "all" ? "qkv,o,mlp,lm_head" : layers[1]);
  for (std::string layer; std::getline(list, layer, ',');) {
    if (layer != "moe") rest += (rest.empty() ? "" : ",") + layer;
  }
  layers[1] = rest;
  if (rest.empty()) arguments.erase(layers, layers + 2);
}

void add_vllm_flags(CLI::App& command, VllmFlags& flags) {
  for (const VllmFlag& flag : kFlags) {
    const std::string name(long_name(flag));
    CLI::Option* option =
        flag.takes == Takes::kValue
            ? command.add_option_function<std::string>(
                  flag.names,
                  [&flags, name](const std::string& value) {
                    flags.given.emplace_back(name, value);
                  },
                  flag.meaning)
            : command.add_flag_callback(
                  flag.names, [&flags, name] { flags.given.emplace_back(name, ""); }, flag.meaning);
    option->group(*flag.accepted ? "Flags of vLLM, accepted" : "");  // the refused ones: not shown
  }
}

void explain_vllm_flags(const VllmFlags& flags) {
  for (const auto& [name, value] : flags.given) {
    const auto* flag =
        std::find_if(std::begin(kFlags), std::end(kFlags),
                     [&, &name = name](const VllmFlag& f) { return long_name(f) == name; });
    const std::string shown = value.empty() ? name : name + " " + value;
    if (!accepts(*flag, value)) {
      const char* advice = *flag->advice ? flag->advice : flag->meaning;
      throw Error(ErrorKind::kUsage, shown + " is not supported: " + advice);
    }
    LOG_INFO("%s: %s", shown.c_str(), flag->meaning);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (!text.starts_with("VLLM_") || text.starts_with("VLLM_NCCL_SO_PATH=")) continue;
    LOG_INFO("%s is set: nibble reads no variables of vLLM; %s",
             std::string(text.substr(0, text.find('='))).c_str(), kOwnKernels);
  }
}

bool logs_activity(const VllmFlags& flags) {
  return std::none_of(flags.given.begin(), flags.given.end(),
                      [](const auto& flag) { return flag.first == "--disable-log-stats"; });
}

std::string activations_of(const VllmFlags& flags) {
  for (const auto& [name, value] : flags.given) {
    if (name != "--mxfp4-backend" || value == "auto") continue;
    return value == "CUTLASS" ? "fp8" : "bf16";
  }
  return "";
}

}  // namespace nibble::cli
