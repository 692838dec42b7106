#include "server/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <span>

namespace nibble::server {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.15g", value);
  return text.data();
}

// The inside of a label's quotes.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

constexpr std::pair<const char*, FinishReason> kReasons[] = {{"stop", FinishReason::kStop},
                                                             {"length", FinishReason::kLength},
                                                             {"abort", FinishReason::kCanceled},
                                                             {"error", FinishReason::kError},
                                                             {"deadline", FinishReason::kDeadline}};

// Writes families, each under both names.
class Page {
 public:
  explicit Page(const std::string& model) : label_("model_name=\"" + escaped(model) + "\"") {}

  void gauge(const char* name, const char* help, double value) {
    each_name(name, "gauge", help, [&](const std::string& full) { line(full, value); });
  }
  void counter(const char* name, const char* help, double value) {
    const std::string total = std::string(name) + "_total";
    each_name(total, "counter", help, [&](const std::string& full) { line(full, value); });
  }
  // Of each place of a draft, in vLLM's form.
  void per_position(const char* name, const char* help, std::span<const int64_t> values) {
    each_name(std::string(name) + "_total", "counter", help, [&](const std::string& full) {
      for (size_t i = 0; i < values.size(); ++i) {
        out_ += full + "{" + label_ + ",position=\"" + std::to_string(i) + "\"} " +
                std::to_string(values[i]) + "\n";
      }
    });
  }
  void ends(const EngineMetrics& metrics) {
    each_name("request_success_total", "counter", "Requests that ended, by reason.",
              [&](const std::string& full) {
                for (const auto& [label, reason] : kReasons) {
                  out_ += full + "{" + label_ + ",finished_reason=\"" + label + "\"} " +
                          std::to_string(metrics.ended(reason)) + "\n";
                }
              });
  }
  void histogram(const char* name, const char* help, const Histogram& values) {
    each_name(name, "histogram", help, [&](const std::string& full) { append(full, values); });
  }
  // Of a name that vLLM has against Prometheus' rules: only counters end in _total.
  void iteration_tokens(const Histogram& values) {
    for (const char* name : {"nibble_iteration_tokens", "vllm:iteration_tokens_total"}) {
      family(name, "histogram", "Tokens of a step.");
      append(name, values);
    }
  }
  // Under this name alone: no other engine has it, or it is nobody's own.
  void plain(const std::string& name, const char* type, const char* help, double value) {
    family(name, type, help);
    out_ += name + " " + number(value) + "\n";
  }
  void family(const std::string& name, const char* type, const char* help) {
    out_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  std::string& out() { return out_; }

 private:
  template <typename Write>
  void each_name(const std::string& name, const char* type, const char* help, Write write) {
    for (const std::string& full : {"nibble_" + name, "vllm:" + name}) {
      family(full, type, help);
      write(full);
    }
  }
  void append(const std::string& name, const Histogram& values) {
    int64_t sum = 0;
    for (size_t i = 0; i <= values.bounds().size(); ++i) {
      sum += values.count_in(i);
      const std::string bound = i < values.bounds().size() ? number(values.bounds()[i]) : "+Inf";
      out_ += name + "_bucket{" + label_ + ",le=\"" + bound + "\"} " + std::to_string(sum) + "\n";
    }
    line(name + "_sum", values.sum());
    line(name + "_count", static_cast<double>(values.count()));
  }
  void line(const std::string& name, double value) {
    out_ += name + "{" + label_ + "} " + number(value) + "\n";
  }

  const std::string label_;
  std::string out_;
};

void add_process(Page& page) {
  const ProcessStats process = process_stats();
  page.plain("process_resident_memory_bytes", "gauge", "Resident memory.",
             static_cast<double>(process.resident_bytes));
  page.plain("process_virtual_memory_bytes", "gauge", "Virtual memory.",
             static_cast<double>(process.virtual_bytes));
  page.plain("process_cpu_seconds_total", "counter", "Time on CPUs.", process.cpu_seconds);
  page.plain("process_open_fds", "gauge", "Open files.", static_cast<double>(process.open_fds));
  page.plain("process_max_fds", "gauge", "Limit of open files.",
             static_cast<double>(process.max_fds));
  page.plain("process_start_time_seconds", "gauge", "Start, since 1970.", process.start_time);
}

void add_engine(Page& page, const ServerMetrics::Gauges& now) {
  const EngineStats& engine = now.engine;
  const auto value = [](auto v) { return static_cast<double>(v); };
  page.gauge("num_requests_running", "Sequences in the batch.", value(engine.num_running));
  page.gauge("num_requests_waiting", "Sequences that wait.", value(engine.num_waiting));
  page.gauge("kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.", engine.kv_usage);
  page.counter("prompt_tokens", "Tokens of prompts.", value(engine.prompt_tokens));
  page.counter("generation_tokens", "Tokens generated.", value(engine.generation_tokens));
  page.counter("num_preemptions", "Sequences put back to make room.",
               value(engine.num_preemptions));
  page.counter("prefix_cache_queries", "Prompt tokens looked up.",
               value(engine.prefix_cache_queries));
  page.counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.",
               value(engine.prefix_cache_hits));
  page.plain("nibble_engine_steps_total", "counter", "Steps of the engine.",
             value(engine.num_steps));
  page.plain("nibble_engine_failed", "gauge", "1 once the engine has failed.",
             engine.failed ? 1 : 0);
  page.plain("nibble_kv_cache_tokens", "gauge", "Positions that the KV pages hold.",
             value(now.kv_tokens));
  page.plain("nibble_state_slots", "gauge", "Slots for states of recurrent layers.",
             value(now.state_slots));
  page.plain("nibble_state_slots_running", "gauge",
             "Of these, in use by running sequences and their steps.",
             value(engine.states_running));
  page.plain("nibble_state_slots_kept", "gauge",
             "Of these, with a state that later prompts may go on from.",
             value(engine.states_kept));
  if (engine.ranks.rows > 0) {
    page.plain("nibble_rank_rows_total", "counter", "Rows of logits of which each rank has a part.",
               value(engine.ranks.rows));
    page.plain("nibble_rank_whole_rows_total", "counter",
               "Of these, gathered, as a request needed them whole.",
               value(engine.ranks.whole_rows));
    page.plain("nibble_rank_logit_bytes_total", "counter",
               "Bytes that went between rank 0 and the others for all of them.",
               value(engine.ranks.bytes));
  }
  page.plain("nibble_max_model_len", "gauge", "Longest prompt and answer.",
             value(now.max_model_len));
  page.plain("nibble_http_connections", "gauge", "Open connections.", value(now.connections));
}

void add_speculation(Page& page, const SpeculationCounts& counts) {
  if (counts.num_places == 0) return;
  const auto value = [](int64_t v) { return static_cast<double>(v); };
  page.counter("spec_decode_num_drafts", "Times that drafts of a sequence were verified.",
               value(counts.num_drafts));
  page.counter("spec_decode_num_draft_tokens", "Tokens drafted and verified.",
               value(counts.num_draft_tokens));
  page.counter("spec_decode_num_accepted_tokens", "Drafts that came true.",
               value(counts.num_accepted_tokens));
  page.per_position("spec_decode_num_accepted_tokens_per_pos", "Those of each place.",
                    std::span(counts.accepted_at).first(counts.num_places));
}

void add_histograms(Page& page, const EngineMetrics& metrics) {
  page.ends(metrics);
  page.histogram("time_to_first_token_seconds", "From submission to the first token.",
                 metrics.time_to_first_token_s);
  page.histogram("inter_token_latency_seconds", "Between tokens of one sequence.",
                 metrics.inter_token_latency_s);
  page.histogram("e2e_request_latency_seconds", "From submission to the end.",
                 metrics.e2e_request_latency_s);
  page.histogram("request_queue_time_seconds", "From submission to the first step.",
                 metrics.request_queue_time_s);
  page.histogram("request_inference_time_seconds", "From the first step to the end.",
                 metrics.request_inference_time_s);
  page.histogram("request_prefill_time_seconds", "From the first step to the first token.",
                 metrics.request_prefill_time_s);
  page.histogram("request_decode_time_seconds", "From the first token to the last.",
                 metrics.request_decode_time_s);
  page.histogram("request_prompt_tokens", "Tokens of a prompt.", metrics.request_prompt_tokens);
  page.histogram("request_generation_tokens", "Tokens of an answer.",
                 metrics.request_generation_tokens);
  page.histogram("request_params_max_tokens", "Tokens that were asked for.",
                 metrics.request_params_max_tokens);
  page.histogram("request_params_n", "Answers to one prompt.", metrics.request_params_n);
  page.iteration_tokens(metrics.iteration_tokens);
}

}  // namespace

void ServerMetrics::answered(std::string_view handler, std::string_view method, int status) {
  ++answered_["handler=\"" + escaped(handler) + "\",method=\"" + escaped(method) + "\",status=\"" +
              std::to_string(status) + "\""];
}

std::string ServerMetrics::text(const Gauges& now) const {
  Page page(now.model);
  add_engine(page, now);
  add_speculation(page, now.engine.speculation);
  add_histograms(page, now.engine.metrics);
  page.plain("nibble_requests_rejected_total", "counter", "Answered with 429.",
             static_cast<double>(rejected_));
  page.plain("nibble_clients_left_total", "counter", "Clients gone before their answer.",
             static_cast<double>(left_));
  page.family("http_requests_total", "counter", "Answers by route, method and status.");
  for (const auto& [labels, count] : answered_) {
    page.out() += "http_requests_total{" + labels + "} " + std::to_string(count) + "\n";
  }
  add_process(page);
  return std::move(page.out());
}

ProcessStats process_stats() {
  ProcessStats stats;
  const auto page_size = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  if (statm >> total >> resident) {
    stats.virtual_bytes = total * page_size;
    stats.resident_bytes = resident * page_size;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  stats.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  if (DIR* directory = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(directory)) stats.open_fds += entry->d_name[0] != '.';
    closedir(directory);
    --stats.open_fds;  // the directory itself
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  static const auto start = static_cast<double>(std::time(nullptr));
  stats.start_time = start;
  return stats;
}

}  // namespace nibble::server
