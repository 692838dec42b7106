#include "server/openai_completions.h"

#include <algorithm>
#include <ctime>
#include <deque>

#include "base/check.h"
#include "server/generation_check.h"
#include "server/openai_tokens.h"
#include "server/sse.h"
#include "text/stop_strings.h"

namespace nibble::server {
namespace {

// The ids of one output as text, cut at a stop string. A value: a copy is a snapshot.
class TextAnswer {
 public:
  TextAnswer(const Tokenizer& tokenizer, const CompletionRequest& request)
      : detokenizer_(tokenizer, request.skip_special_tokens),
        stop_(request.stop, request.include_stop_in_output) {}

  std::string push(int32_t id) { return stop_.push(detokenizer_.push(id)); }
  std::string finish() {
    std::string text = stop_.push(detokenizer_.flush());
    return text + stop_.flush();
  }
  bool stopped() const { return stop_.stopped(); }

 private:
  Detokenizer detokenizer_;
  StopStrings stop_;
};

// Ends the request at a stop string and holds it to a grammar, on the engine's thread.
class TextWatcher final : public TokenWatcher {
 public:
  TextWatcher(TextAnswer fresh, const std::optional<Grammar>& grammar,
              const std::vector<int32_t>& end_ids) {
    states_.push_back({std::move(fresh), 0});
    if (grammar) run_.emplace(*grammar, end_ids);
  }

  Watch accept(int32_t id) override {
    if (states_.size() > kMaxRollback) states_.pop_front();
    states_.push_back(states_.back());
    State& now = states_.back();
    now.answer.push(id);
    if (run_) {
      run_->accept(id);
      now.run_length = run_->num_accepted();
    }
    return now.answer.stopped() ? Watch::kStop : Watch::kGoOn;
  }
  void rollback(int n) override {
    CHECK(static_cast<size_t>(n) < states_.size());
    states_.erase(states_.end() - n, states_.end());
    if (run_) run_->rollback_to(states_.back().run_length);
  }
  bool mask(std::span<uint32_t> bits) override {
    if (run_) run_->mask(bits);
    return run_.has_value();
  }
  MaskState mask_state() const override { return run_ ? run_->mask_state() : MaskState::kReady; }
  std::string fault() const override { return run_ ? run_->fault() : ""; }
  void on_mask(std::function<void()> changed) override {
    if (run_) run_->on_mask(std::move(changed));
  }

 private:
  static constexpr size_t kMaxRollback = 64;
  struct State {
    TextAnswer answer;
    size_t run_length;  // ids that the run had accepted
  };
  std::deque<State> states_;  // before each of the last tokens, and now
  std::optional<GrammarRun> run_;
};

struct PromptText {
  std::vector<int32_t> ids;
  std::string text;  // for echo
};

// The old form: four lists, one entry a token.
struct Logprobs {
  static constexpr size_t kTokenBytes = 160;  // in the lists, beside its text and the tops

  Json tokens = Json::array(), token_logprobs = Json::array(), top_logprobs = Json::array(),
       text_offset = Json::array();

  Json take() {
    Json json = {{"tokens", std::move(tokens)},
                 {"token_logprobs", std::move(token_logprobs)},
                 {"top_logprobs", std::move(top_logprobs)},
                 {"text_offset", std::move(text_offset)}};
    *this = Logprobs();
    return json;
  }
};

struct Choice {
  explicit Choice(TextAnswer a) : answer(std::move(a)) {}

  size_t prompt = 0;
  TextAnswer answer;
  std::string text;                             // streaming: what has not been sent
  std::vector<PromptLogprobs> prompt_logprobs;  // written by the engine before the first output
  Logprobs logprobs;
  int64_t offset = 0;        // characters of the tokens so far
  std::vector<int32_t> ids;  // streaming: what has not been sent
  FinishReason finish = FinishReason::kNone;
  int64_t num_tokens = 0;
  bool opened = false;
  bool prompt_sent = false;  // its ids
};

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

class CompletionGeneration final : public Generation {
 public:
  CompletionGeneration(const GenerationContext& context, CompletionRequest request,
                       std::vector<PromptText> prompts, std::optional<Grammar> grammar,
                       std::shared_ptr<HttpReply> reply, ByteShare held)
      : Generation(context, std::move(reply), std::move(held)),
        request_(std::move(request)),
        prompts_(std::move(prompts)),
        grammar_(std::move(grammar)),
        fingerprint_(context.fingerprint),
        id_(random_id("cmpl-")),
        created_(std::time(nullptr)),
        cached_(prompts_.size()) {
    const auto n = static_cast<size_t>(request_.n);
    choices_.assign(prompts_.size() * n, Choice(TextAnswer(*model().tokenizer, request_)));
    for (size_t i = 0; i < choices_.size(); ++i) choices_[i].prompt = i / n;
  }

  void run(const std::vector<int32_t>& max_tokens);

 private:
  void on_output(size_t index, const Output& output) override;
  void on_all_ended() override;

  void open(Choice& choice);
  void advance(Choice& choice, const Output& output);
  void add_logprob(Choice& choice, int32_t id, const float* logprob,
                   const std::vector<TokenLogprob>& top);
  Json choice_json(Choice& choice, size_t index);
  Json body(Json choices) const;
  Usage usage() const;

  CompletionRequest request_;
  std::vector<PromptText> prompts_;
  const std::optional<Grammar> grammar_;
  const std::string fingerprint_;
  const std::string id_;
  const int64_t created_;
  std::vector<Choice> choices_;
  std::vector<int64_t> cached_;  // tokens, per prompt
};

void CompletionGeneration::run(const std::vector<int32_t>& max_tokens) {
  std::vector<Request> requests;
  const TextAnswer fresh(*model().tokenizer, request_);  // its copies share the stop strings
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Request& r = requests.emplace_back();
    r.prompt = prompts_[choice.prompt].ids;
    r.sampling = request_.sampling;
    if (r.sampling.seed) *r.sampling.seed += i % static_cast<size_t>(request_.n);
    r.max_tokens = max_tokens[choice.prompt];
    r.min_tokens = std::min(request_.min_tokens, r.max_tokens);
    r.stop_ids = stop_ids_for(model(), request_);
    r.cache_salt = request_.cache_salt;
    r.max_drafts = request_.max_drafts;
    r.priority = request_.priority;
    r.deadline = request_.deadline;
    if (!request_.stop.empty() || grammar_) {
      r.watcher = std::make_shared<TextWatcher>(fresh, grammar_, r.stop_ids);
    }
    if (request_.echo && (request_.sampling.logprobs >= 0 || r.max_tokens == 0)) {
      r.prompt_logprobs = std::max(request_.sampling.logprobs, 0);
      r.on_prompt_logprobs = [self = shared_from_this(), &choice](const PromptLogprobs& p) {
        choice.prompt_logprobs.push_back(p);
      };
    }
  }
  submit(std::move(requests), request_.n, request_.stream);
}

// `logprob` null: not known, as for a prompt's first token.
void CompletionGeneration::add_logprob(Choice& choice, int32_t id, const float* logprob,
                                       const std::vector<TokenLogprob>& top) {
  const Tokenizer& tokenizer = *model().tokenizer;
  const std::string text = token_text(tokenizer, id);
  choice.logprobs.tokens.push_back(text);
  choice.logprobs.token_logprobs.push_back(logprob ? Json(finite(*logprob)) : Json(nullptr));
  Json tops = nullptr;
  if (logprob) {
    tops = Json::object();
    for (const TokenLogprob& t : top) tops[token_text(tokenizer, t.id)] = finite(t.logprob);
    tops[text] = finite(*logprob);
  }
  const bool waits = !request_.stream || choice.num_tokens == 0;  // for the echo, or the end
  if (waits) hold(held_bytes(tops) + Logprobs::kTokenBytes + 2 * text.size());
  choice.logprobs.top_logprobs.push_back(std::move(tops));
  choice.logprobs.text_offset.push_back(choice.offset);
  const bool shown = !request_.skip_special_tokens || !tokenizer.is_special(id);
  if (shown) choice.offset += count_characters(tokenizer.token_bytes(id));
}

// What comes before the first generated token: the echo.
void CompletionGeneration::open(Choice& choice) {
  if (std::exchange(choice.opened, true) || !request_.echo) return;
  const PromptText& prompt = prompts_[choice.prompt];
  hold(2 * prompt.text.size());
  choice.text = prompt.text;
  if (request_.sampling.logprobs < 0) return;
  std::sort(choice.prompt_logprobs.begin(), choice.prompt_logprobs.end(),
            [](const auto& a, const auto& b) { return a.position < b.position; });
  for (size_t i = 0; i < prompt.ids.size() && !failed(); ++i) {
    const bool known = i > 0 && i <= choice.prompt_logprobs.size();
    const PromptLogprobs* p = known ? &choice.prompt_logprobs[i - 1] : nullptr;
    add_logprob(choice, prompt.ids[i], p ? &p->next_logprob : nullptr,
                p ? p->top : std::vector<TokenLogprob>{});
  }
}

void CompletionGeneration::advance(Choice& choice, const Output& output) {
  open(choice);
  if (output.id >= 0) {
    ++choice.num_tokens;
    if (request_.return_token_ids) choice.ids.push_back(output.id);
    cached_[choice.prompt] = std::max<int64_t>(cached_[choice.prompt], output.cached_tokens);
    const auto stops = stop_ids_for(model(), request_);
    const bool is_end = output.finish == FinishReason::kStop &&
                        std::find(stops.begin(), stops.end(), output.id) != stops.end();
    const bool was_stopped = choice.answer.stopped();
    if (!is_end || !request_.skip_special_tokens) choice.text += choice.answer.push(output.id);
    if (request_.sampling.logprobs >= 0 && !was_stopped) {
      add_logprob(choice, output.id, &output.logprob, output.top);
    }
  }
  if (output.finish != FinishReason::kNone) {
    choice.finish = output.finish;
    choice.text += choice.answer.finish();
  }
}

Json CompletionGeneration::choice_json(Choice& choice, size_t index) {
  const bool ended = choice.finish != FinishReason::kNone;
  Json json = {{"index", index},
               {"text", std::exchange(choice.text, {})},
               {"logprobs", nullptr},
               {"finish_reason", ended ? Json(finish_name(choice.finish)) : Json(nullptr)}};
  if (request_.sampling.logprobs >= 0) json["logprobs"] = choice.logprobs.take();
  if (request_.return_token_ids) {
    json["token_ids"] = std::exchange(choice.ids, {});
    if (!std::exchange(choice.prompt_sent, true)) {
      json["prompt_token_ids"] = prompts_[choice.prompt].ids;
    }
  }
  return json;
}

Json CompletionGeneration::body(Json choices) const {
  return {{"id", id_},
          {"object", "text_completion"},
          {"created", created_},
          {"model", model().names.front()},
          {"system_fingerprint", fingerprint_},
          {"choices", std::move(choices)}};
}

Usage CompletionGeneration::usage() const {
  Usage usage;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    usage.prompt_tokens += static_cast<int64_t>(prompts_[i].ids.size());
    usage.cached_tokens += cached_[i];
  }
  for (const Choice& choice : choices_) usage.completion_tokens += choice.num_tokens;
  return usage;
}

void CompletionGeneration::on_output(size_t index, const Output& output) {
  Choice& choice = choices_[index];
  advance(choice, output);
  if (!request_.stream) return;
  if (choice.text.empty() && choice.finish == FinishReason::kNone) return;
  Json json = body(Json::array({choice_json(choice, index)}));
  if (request_.continuous_usage) json["usage"] = usage_json(usage());
  stream(sse_event(json));
}

void CompletionGeneration::on_all_ended() {
  if (request_.stream) {
    std::string last;
    if (request_.include_usage) {
      Json json = body(Json::array());
      json["usage"] = usage_json(usage());
      last = sse_event(json);
    }
    return end_stream(last + kSseDone);
  }
  Json list = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) list.push_back(choice_json(choices_[i], i));
  Json json = body(std::move(list));
  json["usage"] = usage_json(usage());
  reply().send({.body = to_text(json)});
}

// The ids of a prompt, or why not.
std::optional<ApiError> encode_prompt(const ServedModel& model, const CompletionRequest& request,
                                      const Prompt& prompt, PromptText& result) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (request.add_special_tokens) {
      const auto prefix = tokenizer.prefix_ids();
      result.ids.assign(prefix.begin(), prefix.end());
    }
    const auto ids = tokenizer.encode(*text, Specials::kRecognize);
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.text = *text;
  } else {
    result.ids = std::get<std::vector<int32_t>>(prompt);
    for (const int32_t id : result.ids) {
      if (id >= tokenizer.size()) {
        return ApiError{.message = "prompt has the id " + std::to_string(id) +
                                   ", which is not in the vocabulary of " +
                                   std::to_string(tokenizer.size()),
                        .param = "prompt"};
      }
    }
    if (request.echo) result.text = tokenizer.decode(result.ids, request.skip_special_tokens);
  }
  if (!result.ids.empty()) return std::nullopt;
  return ApiError{.message = "prompt is empty", .param = "prompt"};
}

}  // namespace

void start_completion(const GenerationContext& context, CompletionRequest request,
                      std::shared_ptr<HttpReply> reply, ByteShare& work) {
  const auto num_prompts = static_cast<int64_t>(request.prompts.size());
  if (auto error = check_count(context.admission, num_prompts, request.n)) {
    return reply->send(api_error_response(*error));
  }
  if (auto error = check_ids(context.model, request)) {
    return reply->send(api_error_response(*error));
  }
  if (auto error = check_priority(context.by_priority, request)) {
    return reply->send(api_error_response(*error));
  }
  std::vector<PromptText> prompts;
  std::vector<int32_t> max_tokens;
  for (const Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    auto error = check_text_bytes(context.model, text ? text->size() : 0);
    if (!error) {
      if (const auto no_room = take_more(work, text ? kEncodedBytes * text->size() : 0)) {
        return reply->send(api_error_response(*no_room));
      }
      error = encode_prompt(context.model, request, prompt, prompts.emplace_back());
    }
    if (!error) {
      error = fit_prompt(context.model, prompts.back().ids.size(), request.max_tokens,
                         max_tokens.emplace_back());
    }
    if (error) {
      error->param = "prompt";
      return reply->send(api_error_response(*error));
    }
    if (reply->gone()) return;
  }
  request.prompts = {};
  work.clear();
  size_t kept = request.format ? format_bytes(*request.format) : 0;
  for (const PromptText& prompt : prompts) {
    kept += prompt.text.size() + prompt.ids.size() * sizeof(int32_t);
  }
  const auto held = std::make_shared<ByteShare>(share_of(context));
  if (const auto error = take_more(*held, kept)) return reply->send(api_error_response(*error));
  std::vector<WantedGrammar> wanted;
  if (request.format) wanted.push_back({*request.format, request.format_field});
  if (!wanted.empty() && stop_ids_for(context.model, request).empty()) {
    return reply->send(api_error_response(
        {.message = request.format_field + " needs an id that ends the text: ignore_eos is set",
         .param = request.format_field}));
  }
  auto run = [context, request = std::move(request), prompts = std::move(prompts),
              max_tokens = std::move(max_tokens), held,
              reply](std::optional<Grammar> grammar) mutable {
    std::make_shared<CompletionGeneration>(context, std::move(request), std::move(prompts),
                                           std::move(grammar), std::move(reply), std::move(*held))
        ->run(max_tokens);
  };
  if (wanted.empty()) return run(std::nullopt);
  context.grammars.compile(context.client, std::move(wanted),
                           [run = std::move(run), reply](GrammarService::Answer answer) mutable {
                             if (answer.error) {
                               return reply->send(api_error_response(*answer.error));
                             }
                             if (!reply->gone()) run(std::move(answer.grammars[0]));
                           });
}

}  // namespace nibble::server
