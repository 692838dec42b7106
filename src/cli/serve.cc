// nibble serve: the OpenAI-compatible server with its chat page.
#include <sys/resource.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "cli/engine_setup.h"
#include "cli/service_notice.h"
#include "cli/shutdown_signals.h"
#include "cli/text_setup.h"
#include "cli/version.h"
#include "cli/vllm_flags.h"
#include "io/hub.h"
#include "io/memory.h"
#include "server/server.h"
#include "server/tls.h"

namespace nibble::cli {
namespace {

constexpr const char* kShippedModel = "models/nibble-tiny-gpt-oss";  // in the tree
constexpr const char* kInstalledModel = "../share/nibble/models/nibble-tiny-gpt-oss";  // from bin

constexpr int64_t kLeastRequestBytes = 96 << 20;
constexpr int64_t kMostQueued = 1'000'000;
constexpr size_t kMostConnections = 1'000'000;
constexpr double kLongestShutdown = 86'400;

struct ServeFlags {
  EngineFlags engine;
  ChatFormatFlags chat_format;
  VllmFlags vllm;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> served_model_names;
  std::vector<std::string> api_keys;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  int64_t max_queued_requests = 256;
  size_t max_connections = 1024;
  std::string scheduling_policy = "fcfs";
  std::string request_memory = "256M";
  std::string ssl_certfile, ssl_keyfile;
  double shutdown_timeout_s = 10;
  std::string chat_date;
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Where a key is looked for that no flag gives: `vllm serve` has another name for it.
const char* key_variable() {
  const bool is_vllms =
      std::getenv("NIBBLE_API_KEY") == nullptr && std::getenv("VLLM_API_KEY") != nullptr;
  return is_vllms ? "VLLM_API_KEY" : "NIBBLE_API_KEY";
}

// An empty key would let everybody in, and one of other characters no header can bring.
void check_keys(const ServeFlags& flags) {
  const char* variable = std::getenv(key_variable());
  if (flags.api_keys.empty() && variable != nullptr && *variable == '\0') {
    throw Error(ErrorKind::kUsage,
                std::string(key_variable()) +
                    " is set and empty: give it a key, or unset it to ask for none");
  }
  for (const std::string& key : flags.api_keys) {
    if (key.empty()) {
      throw Error(ErrorKind::kUsage,
                  "--api-key is empty: give it a key, or leave it out to ask for none");
    }
    if (!std::ranges::all_of(key, [](unsigned char c) { return c > ' ' && c < 0x7F; })) {
      throw Error(
          ErrorKind::kUsage,
          "--api-key has a character that is not ASCII, or a space: clients cannot send it");
    }
  }
}

void check_date(const std::string& date) {
  int year = 0, month = 0, day = 0, end = 0;
  const bool read = date.size() == 10 &&
                    std::sscanf(date.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &end) == 3 &&
                    end == 10;
  const std::chrono::year_month_day parsed{std::chrono::year(year),
                                           std::chrono::month(static_cast<unsigned>(month)),
                                           std::chrono::day(static_cast<unsigned>(day))};
  if (read && parsed.ok()) return;
  throw Error(ErrorKind::kUsage, "--chat-date " + date + " is no day; say YYYY-MM-DD");
}

int64_t request_bytes(const ServeFlags& flags) {
  const int64_t bytes = parse_size(flags.request_memory);
  if (bytes >= kLeastRequestBytes) return bytes;
  throw Error(ErrorKind::kUsage, "--request-memory must be at least " +
                                     format_size(kLeastRequestBytes) +
                                     ": one of the largest bodies has to fit");
}

// What CLI11's own checks let pass.
void check_flags(const ServeFlags& flags) {
  check_keys(flags);
  request_bytes(flags);
  if (!flags.chat_date.empty()) check_date(flags.chat_date);
  if (!(flags.shutdown_timeout_s >= 0 && flags.shutdown_timeout_s <= kLongestShutdown)) {
    throw Error(ErrorKind::kUsage, "--shutdown-timeout is seconds, 0 to 86400");
  }
}

// A quarter of what the memory plan leaves to everyone else; three times as much while grammars are
// compiled.
int64_t grammar_bytes() {
  constexpr int64_t kEnough = int64_t{1} << 30;
  return std::min(memory_budget(read_machine_memory(), {}).reserve_bytes / 4, kEnough);
}

server::ServerOptions server_options(const ServeFlags& flags) {
  server::ServerOptions options;
  options.grammar_bytes = grammar_bytes();
  options.http.host = flags.host;
  options.http.port = static_cast<uint16_t>(flags.port);
  options.http.max_connections = flags.max_connections;
  options.access.api_keys = flags.api_keys;
  options.access.allowed_origins = flags.allowed_origins;
  if (is_loopback(flags.host) || !flags.allowed_hosts.empty()) {
    options.access.allowed_hosts = flags.allowed_hosts;
  }
  if (flags.ssl_certfile.empty() != flags.ssl_keyfile.empty()) {
    throw Error(ErrorKind::kUsage, "--ssl-certfile and --ssl-keyfile go together");
  }
  if (!flags.ssl_certfile.empty()) {
    options.http.tls =
        std::make_shared<const server::TlsContext>(flags.ssl_certfile, flags.ssl_keyfile);
  }
  options.version = version_text();
  options.max_num_seqs = flags.engine.max_num_seqs;
  options.max_queued_requests = flags.max_queued_requests;
  // Half for what arrives and leaves, half for answers that are being made.
  const int64_t bytes = request_bytes(flags);
  options.http.max_held_bytes = static_cast<size_t>(bytes / 2);
  options.max_answers_bytes = static_cast<size_t>(bytes / 2);
  options.by_priority = flags.scheduling_policy == "priority";
  return options;
}

// The shell's limit of 1,024 files is less than what the server may need.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<std::string> model_names(const ServeFlags& flags) {
  if (!flags.served_model_names.empty()) return flags.served_model_names;
  std::vector<std::string> names{flags.engine.model};
  const std::filesystem::path path(flags.engine.model);
  if (std::filesystem::is_directory(path)) {  // its last part works too
    names.push_back(std::filesystem::canonical(path).filename().string());
  }
  return names;
}

// Everything that is loaded, in the order in which it may go away again: last to first.
struct Loaded {
  std::unique_ptr<TextSide> text;
  std::optional<LoadedEngine> engine;
};

// The half that has no weights: what is wrong with MODEL shows before anything listens.
std::unique_ptr<TextSide> load_text(const ServeFlags& flags) {
  const ModelFiles files = find_model(flags.engine.model, flags.engine.revision);
  return load_text_side(files, vocab_size_of(files), flags.chat_format);
}

server::ServedModel load(const ServeFlags& flags, Loaded& loaded) {
  loaded.engine.emplace(load_engine(flags.engine, {.masked_ids = loaded.text->masked_ids,
                                                   .request_bytes = request_bytes(flags),
                                                   .log_activity = logs_activity(flags.vllm)}));
  loaded.engine->engine->start();
  server::ServedModel model;
  model.engine = loaded.engine->engine.get();
  model.tokenizer = &loaded.text->tokenizer;
  model.chat_format = loaded.text->chat_format.get();
  model.names = model_names(flags);
  model.root = flags.engine.model;
  model.is_text_part =
      find_model(flags.engine.model, flags.engine.revision).config.has("vision_config");
  model.defaults = loaded.text->defaults;
  model.stop_ids = loaded.text->stop_ids;
  model.current_date = flags.chat_date;
  model.created = std::time(nullptr);
  return model;
}

// What --mxfp4-backend says of activations, where --activations says nothing and it can be had.
void take_activations(ServeFlags& flags) {
  std::string activations = activations_of(flags.vllm);
  if (activations.empty() || flags.engine.activations != "auto") return;
  const bool on_gpu = choose_device(flags.engine.device, read_device_facts()) == Device::kCuda;
  if (activations == "fp8" && !on_gpu) {
    LOG_INFO("--mxfp4-backend CUTLASS: fp8 activations need a GPU; --activations auto is used");
    return;
  }
  flags.engine.activations = std::move(activations);
}

// The small model, of the tree that this is the root of or beside the program where it is
// installed.
std::string shipped_model() {
  if (std::filesystem::exists(kShippedModel)) return kShippedModel;
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  const auto installed = (program.parent_path() / kInstalledModel).lexically_normal();
  if (!failed && std::filesystem::exists(installed)) return installed;
  throw Error(ErrorKind::kUsage,
              "say which MODEL to serve: a directory or a repo id in the Hugging Face cache; "
              "`nibble pull REPO` fetches one");
}

void serve(ServeFlags& flags) {
  if (flags.engine.model.empty()) {
    flags.engine.model = shipped_model();
    LOG_INFO(
        "no MODEL was said: serving %s, a small model to try things with; `nibble serve "
        "openai/gpt-oss-20b` serves a real one, once `nibble pull` has fetched it",
        flags.engine.model.c_str());
  }
  check_flags(flags);
  explain_vllm_flags(flags.vllm);
  take_activations(flags);
  if (is_follower(flags.engine)) return follow(flags.engine);
  raise_file_limit();
  Loaded loaded{.text = load_text(flags), .engine = {}};
  ShutdownSignals signals;
  server::Server server(server_options(flags));
  server.start();
  const std::string shown =
      flags.host.find(':') == std::string::npos ? flags.host : "[" + flags.host + "]";
  const std::string scheme = flags.ssl_certfile.empty() ? "http" : "https";
  const std::string url = scheme + "://" + shown + ":" + std::to_string(server.port());
  LOG_INFO("listening at %s; /health is 503 until the model is loaded", url.c_str());
  if (!is_loopback(flags.host) && flags.api_keys.empty()) {
    LOG_WARN("anyone who can reach %s may use it: there is no --api-key", flags.host.c_str());
  }

  server::ServedModel model = load(flags, loaded);
  Engine& engine = *model.engine;
  const std::string name = model.names.front();
  LOG_INFO("%s: context %d tokens, room for %lld in all sequences", name.c_str(),
           engine.max_model_len(), static_cast<long long>(engine.kv_tokens()));
  if (const KvPlan& plan = engine.kv_plan(); plan.state_slots > 0) {
    LOG_INFO("%s: %d states of recurrent layers, for %d sequences at once and prefixes",
             name.c_str(), plan.state_slots, plan.options.max_num_seqs);
  }
  if (!model.chat_format) {
    LOG_WARN("%s has no chat template and no Harmony: only /v1/completions", name.c_str());
  }
  server.serve(std::move(model));
  signals.exit_at_once(false);
  notify_service("READY=1");
  LOG_INFO("ready: chat at %s, API at %s/v1", url.c_str(), url.c_str());

  bool failed = false;
  while (!failed && !signals.wait(std::chrono::milliseconds(250))) failed = engine.stats().failed;
  notify_service("STOPPING=1");
  server.drain(std::chrono::milliseconds(
      failed ? 0 : static_cast<int64_t>(flags.shutdown_timeout_s * 1000)));
  server.stop();
  if (failed) throw Error(ErrorKind::kUnsupported, "the engine failed; every request was ended");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command =
      app.add_subcommand("serve", "Serve a model: an OpenAI-compatible server with a chat page");
  command->add_option("MODEL,--model", flags->engine.model,
                      "a directory, or a repo id in the Hugging Face cache");
  const auto add = [&](const char* name, auto& value, const char* text) {
    CLI::Option* option = command->add_option(name, value, text)->group("Server");
    if (!option->capture_default_str()->get_default_str().starts_with('[')) return option;
    return option->default_str("");  // of an empty list
  };
  add("--host", flags->host, "address to listen at; 0.0.0.0: every one of this machine");
  add("--port", flags->port, "0: any free one")->check(CLI::Range(0, 65535));
  add("--served-model-name", flags->served_model_names, "names that requests may use; first: shown")
      ->expected(1, 16)
      ->check([](const std::string& name) { return std::string(name.empty() ? "is empty" : ""); });
  add("--api-key", flags->api_keys, "asked for by all routes but /health, /ping and the page")
      ->envname(key_variable())
      ->expected(1, 64);
  add("--allowed-hosts", flags->allowed_hosts,
      "names of this server besides localhost and addresses (Host header)")
      ->delimiter(',');
  add("--allowed-origins", flags->allowed_origins,
      "web pages that may use the server, besides its own and those on localhost; *: all")
      ->delimiter(',');
  add("--max-queued-requests", flags->max_queued_requests, "that wait; beyond it: 429")
      ->check(CLI::Range(int64_t{0}, kMostQueued));
  add("--request-memory", flags->request_memory,
      "for bodies, reading them, answers and what clients have not read; beyond it: 503, 429");
  add("--scheduling-policy", flags->scheduling_policy,
      "fcfs: who came first; priority: requests may say how many minutes before (-10 to 10)")
      ->check(CLI::IsMember({"fcfs", "priority"}));
  add("--max-connections", flags->max_connections, "beyond it: 503")
      ->check(CLI::Range(size_t{1}, kMostConnections));
  add("--ssl-certfile", flags->ssl_certfile, "PEM, with its chain: speak TLS; with --ssl-keyfile");
  add("--ssl-keyfile", flags->ssl_keyfile, "PEM");
  add("--shutdown-timeout", flags->shutdown_timeout_s, "seconds for requests under way");
  add("--chat-date", flags->chat_date, "YYYY-MM-DD in every system message; empty: today");
  add_chat_format_flags(*command, flags->chat_format);
  add_engine_flags(*command, flags->engine);
  add_rank_flags(*command, flags->engine.ranks);
  add_vllm_flags(*command, flags->vllm);
  command->callback([flags] { serve(*flags); });
}

}  // namespace nibble::cli
