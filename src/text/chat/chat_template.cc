#include "text/chat/chat_template.h"

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <jinja/value.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/check.h"
#include "base/error.h"
#include "text/chat/template_bounds.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxSourceBytes = 1 << 20;
constexpr size_t kStackBytes = size_t{256} << 20;  // reserved, not used: TemplateLimits::depth fits
constexpr const char* kNoMemory = "no memory for a thread";
constexpr size_t kLevelBytes = 64;  // that a level is charged
constexpr size_t kTakenBytes = 1 << 20;

// Of the thread that renders.
class TemplateBounds {
 public:
  TemplateBounds(const TemplateLimits& limits, const TakeBytes& take)
      : limits_(limits),
        take_(take),
        bytes_left_(limits.bytes),
        deadline_(Clock::now() + std::chrono::milliseconds(limits.time_ms)) {
    CHECK(current == nullptr);
    current = this;
  }
  ~TemplateBounds() {
    current = nullptr;
    // Emptied one by one while all are held, no container ends inside another.
    for (const auto& container : kept_) {
      container->val_arr.clear();
      container->val_obj.clear();
      if (auto* object = dynamic_cast<jinja::value_object_t*>(container.get())) {
        object->unordered.clear();
      }
    }
  }

  void charge(size_t bytes) {
    if (broken_.empty() && bytes > bytes_left_) broken_ = "makes too much text or too many values";
    if (broken_.empty() && ++calls_ % 1024 == 0 && Clock::now() > deadline_) {
      broken_ = "takes more than " + std::to_string(limits_.time_ms / 1000) + " s";
    }
    if (broken_.empty() && bytes > granted_) {
      const size_t more = std::max(bytes - granted_, std::min(kTakenBytes, bytes_left_ - granted_));
      if (take_(more)) {
        granted_ += more;
      } else {
        broken_ = "takes more memory than there is";
      }
    }
    if (!broken_.empty()) throw std::runtime_error("the template " + broken_);
    bytes_left_ -= bytes;
    granted_ -= bytes;
  }
  void enter() {
    if (broken_.empty() && depth_ >= limits_.depth) broken_ = "is nested too deeply";
    charge(kLevelBytes);
    ++depth_;
  }
  void leave() {
    --depth_;
    give_back(kLevelBytes);
  }
  void give_back(size_t bytes) { granted_ += bytes; }
  void keep(std::shared_ptr<jinja::value_t> container) { kept_.push_back(std::move(container)); }

  const std::string& broken() const { return broken_; }

  static thread_local TemplateBounds* current;

 private:
  const TemplateLimits limits_;
  const TakeBytes& take_;
  size_t bytes_left_;
  size_t granted_ = 0;  // by take_, and not in use: more than bytes_left_ where much ended
  const Clock::time_point deadline_;
  size_t calls_ = 0;
  int depth_ = 0;
  std::string broken_;  // which bound, once it is
  std::vector<std::shared_ptr<jinja::value_t>> kept_;
};

thread_local TemplateBounds* TemplateBounds::current = nullptr;

// What is left of the calling thread's stack; 0 where the system does not say.
size_t stack_left() {
  static thread_local const char* const lowest = [] {
    pthread_attr_t attributes;
    void* address = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
      return static_cast<const char*>(nullptr);
    if (pthread_attr_getstack(&attributes, &address, &bytes) != 0) address = nullptr;
    pthread_attr_destroy(&attributes);
    return static_cast<const char*>(address);
  }();
  if (lowest == nullptr) return 0;
  return static_cast<size_t>(static_cast<const char*>(__builtin_frame_address(0)) - lowest);
}

// Runs with a stack for all the levels that a template may have, on a thread of its own where the
// caller's is smaller. False: there is no memory for one.
bool with_large_stack(const std::function<void()>& work) {
  if (stack_left() >= kStackBytes) return work(), true;
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstacksize(&attributes, kStackBytes) == 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  const int rc =
      pthread_create(&thread, &attributes, run, const_cast<void*>(static_cast<const void*>(&work)));
  pthread_attr_destroy(&attributes);
  if (rc != 0) return false;
  pthread_join(thread, nullptr);
  return true;
}

// The engine's message, less its picture of the source.
std::string short_message(std::string_view what) {
  constexpr std::string_view kError = "Error: ", kRaised = "Jinja Exception: ";
  if (const size_t at = what.find(kRaised); at != what.npos)
    what.remove_prefix(at + kRaised.size());
  std::string place;
  if (const size_t at = what.rfind(kError); at != what.npos) {
    const size_t line = what.find("line "), end = what.find(" in source", line);
    if (line < at && end < at) place = " (" + std::string(what.substr(line, end - line)) + ")";
    what.remove_prefix(at + kError.size());
  }
  return std::string(what.substr(0, 2'000)) + place;
}

// Strings of `json` are text of the caller's, which the engine takes them for.
jinja::value value_of(const Json& json, bool is_role = false) {
  const jinja::level nested;
  if (json.is_boolean()) return jinja::mk_val<jinja::value_bool>(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX)
    return jinja::mk_val<jinja::value_float>(json.get<double>());
  if (json.is_number_integer()) return jinja::mk_val<jinja::value_int>(json.get<int64_t>());
  if (json.is_number()) return jinja::mk_val<jinja::value_float>(json.get<double>());
  if (json.is_string()) {
    auto text = jinja::mk_val<jinja::value_string>(json.get_ref<const std::string&>());
    // Templates make a special token of it: '<|' + role + '|>'.
    if (is_role) text->val_str.parts[0].is_input = false;
    return text;
  }
  if (json.is_array()) {
    auto list = jinja::mk_val<jinja::value_array>();
    for (const Json& item : json) list->push_back(value_of(item));
    return list;
  }
  if (!json.is_object()) return jinja::mk_val<jinja::value_none>();
  auto object = jinja::mk_val<jinja::value_object>();
  for (const auto& [key, item] : json.items()) object->insert(key, value_of(item));
  return object;
}

jinja::value messages_of(const Json& json) {
  auto list = jinja::mk_val<jinja::value_array>();
  for (const Json& message : json) {
    auto object = jinja::mk_val<jinja::value_object>();
    for (const auto& [key, item] : message.items()) {
      object->insert(key, value_of(item, key == "role"));
    }
    list->push_back(std::move(object));
  }
  return list;
}

std::vector<TemplatePiece> pieces_of(const jinja::value& value, size_t max_bytes) {
  const auto parts = jinja::runtime::gather_string_parts(value);
  std::vector<TemplatePiece> pieces;
  size_t bytes = 0;
  for (jinja::string_part& part : parts->val_str.parts) {
    bytes += part.val.size();
    if (part.val.empty()) continue;
    if (pieces.empty() || pieces.back().literal == part.is_input) {
      pieces.push_back({.text = {}, .literal = !part.is_input});
    }
    pieces.back().text += part.val;
  }
  if (bytes > max_bytes) throw std::runtime_error("the template makes too much text");
  return pieces;
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string source;
  TemplateLimits limits;
  std::unique_ptr<jinja::program> program;
  mutable std::mutex one_at_a_time;

  ~Parsed() {  // as deep as the source is long
    if (!with_large_stack([this] { program.reset(); })) program.release();
  }
};

ChatTemplate ChatTemplate::parse(std::string source, const std::string& origin,
                                 const TemplateLimits& limits) {
  if (source.size() > kMaxSourceBytes) {
    throw Error(ErrorKind::kCheckpoint, origin + ": the template is longer than 1 MiB");
  }
  auto parsed = std::make_shared<Parsed>();
  parsed->source = std::move(source);
  parsed->limits = limits;
  std::string failure;
  const bool ran = with_large_stack([&] {
    const TakeBytes take = [](size_t) { return true; };  // at start-up
    TemplateBounds bounds(limits, take);
    try {
      jinja::lexer lexer;
      parsed->program = std::make_unique<jinja::program>(
          jinja::parse_from_tokens(lexer.tokenize(parsed->source)));
    } catch (const std::exception& e) {
      failure = bounds.broken().empty() ? e.what() : "it " + bounds.broken();
    }
  });
  if (!ran) failure = kNoMemory;
  if (failure.empty()) return ChatTemplate(std::move(parsed));
  throw Error(ErrorKind::kCheckpoint, origin + ": not a template: " + failure);
}

Result<std::vector<TemplatePiece>> ChatTemplate::render(
    std::string_view variables, const std::vector<std::pair<std::string, std::string>>& literals,
    std::time_t now, const TakeBytes& take) const {
  const Json json = Json::parse(variables, nullptr, false);
  CHECK(json.is_object());
  std::vector<TemplatePiece> pieces;
  std::string failure;
  const std::lock_guard lock(parsed_->one_at_a_time);
  const bool ran = with_large_stack([&] {
    TemplateBounds bounds(parsed_->limits, take);
    try {
      jinja::context context(parsed_->source);
      context.current_time = now;
      for (const auto& [name, value] : json.items()) {
        context.set_val(name, name == "messages" ? messages_of(value) : value_of(value));
      }
      for (const auto& [name, value] : literals) {
        auto text = jinja::mk_val<jinja::value_string>(value);
        text->val_str.parts[0].is_input = false;
        context.set_val(name, text);
      }
      pieces = pieces_of(jinja::runtime(context).execute(*parsed_->program),
                         parsed_->limits.output_bytes);
    } catch (const std::exception& e) {
      failure =
          bounds.broken().empty() ? short_message(e.what()) : "the template " + bounds.broken();
      if (failure.empty()) failure = "the template failed";
    }
  });
  if (!ran) failure = kNoMemory;
  if (!failure.empty()) return Failure{failure};
  return pieces;
}

const std::string& ChatTemplate::source() const { return parsed_->source; }

}  // namespace nibble

namespace jinja {

using nibble::TemplateBounds;

void charge(size_t bytes) {
  if (TemplateBounds::current != nullptr) TemplateBounds::current->charge(bytes);
}

level::level() {
  if (TemplateBounds::current != nullptr) TemplateBounds::current->enter();
}

level::~level() {
  if (TemplateBounds::current != nullptr) TemplateBounds::current->leave();
}

void give_back(size_t bytes) {
  if (TemplateBounds::current != nullptr) TemplateBounds::current->give_back(bytes);
}

void keep(std::shared_ptr<value_t> container) {
  if (TemplateBounds::current != nullptr) TemplateBounds::current->keep(std::move(container));
}

}  // namespace jinja
