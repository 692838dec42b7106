#include "text/tokenizer/split_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace nibble {
namespace {

// Rewrites an Oniguruma expression for PCRE2 with UTF and UCP. Constructs whose meaning differs
// between the two are translated or refused; the rest is copied.
class Translator {
 public:
  Translator(std::string_view regex, const std::string& field) : in_(regex), field_(field) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        inside_class(c);
      } else {
        outside_class(c);
      }
    }
    if (in_class_) refuse("has a [ without ]");
    return std::move(out_);
  }

 private:
  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  void copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }
  void replace(size_t n, std::string_view by) {
    out_ += by;
    at_ += n;
  }

  void escape() {
    const char c = peek(1);
    switch (c) {
      case 's':  // PCRE2's \s has U+180E too
        return replace(2, "\\p{White_Space}");
      case 'S':
        return replace(2, "\\P{White_Space}");
      case 'p':
      case 'P':
        return property();
      case 'x':
        if (peek(2) != '{') refuse("\\x is supported as \\x{...} only");
        return copy(2);
      case 'u': {
        const std::string_view hex = in_.substr(std::min(at_ + 2, in_.size()), 4);
        const bool is_hex = hex.find_first_not_of("0123456789abcdefABCDEF") == hex.npos;
        if (hex.size() != 4 || !is_hex) refuse("\\u needs four hexadecimal digits");
        return replace(6, "\\x{" + std::string(hex) + "}");
      }
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      default:
        break;
    }
    const bool is_letter_or_digit =
        (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (c == '\0' || is_letter_or_digit) refuse(std::string("\\") + c + " is not supported");
    copy(1);
    copy(1);
  }

  // \p{..}: general categories are the same in both; any other name is a script in Oniguruma
  // (PCRE2 would take script extensions).
  void property() {
    const size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == in_.npos) refuse("\\p needs a name in braces");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    std::string negation;
    if (name.starts_with('^')) {
      negation = "^";
      name.remove_prefix(1);
    }
    const std::string prefix = name.size() <= 2 ? "" : "sc:";
    out_ += in_.substr(at_, 2);
    replace(close + 1 - at_, "{" + negation + prefix + std::string(name) + "}");
  }

  void inside_class(char c) {
    if (c == '[') refuse("a class inside a class is not supported");
    if (next_is("&&")) refuse("&& in a class is not supported");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void outside_class(char c) {
    switch (c) {
      case '[':
        in_class_ = true;
        copy(peek(1) == '^' ? 2 : 1);
        if (peek(0) == ']') refuse("an empty class is not supported");
        return;
      case '^':
      case '$':
        refuse("^ and $ are not supported");
      case '(':
        return group();
      case '{':
        return repetition();
      default:
        return copy(1);
    }
  }

  void group() {
    static constexpr std::array<std::string_view, 7> kKnown = {"(?:", "(?i:", "(?=", "(?!",
                                                               "(?>", "(?<=", "(?<!"};
    if (peek(1) == '*') refuse("(* is not supported");
    if (peek(1) == '?') {
      const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                      [&](std::string_view k) { return next_is(k); });
      if (known == kKnown.end()) refuse("this kind of (? group is not supported");
      return copy(known->size());
    }
    copy(1);
  }

  // {n}, {n,} and {n,m}. What a + or ? after it means differs.
  void repetition() {
    size_t i = 1;
    const auto digits = [&] {
      const size_t begin = i;
      while (peek(i) >= '0' && peek(i) <= '9') ++i;
      return i > begin;
    };
    bool ok = digits();
    if (peek(i) == ',') {
      ++i;
      digits();
    }
    ok = ok && peek(i) == '}' && peek(i + 1) != '+' && peek(i + 1) != '?';
    if (!ok) refuse("this { is not supported; write \\{ for the character");
    copy(i + 1);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kUnsupported,
                field_ + ": at character " + std::to_string(at_) + " of the expression: " + what);
  }

  std::string_view in_;
  const std::string& field_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct MatchSpace::Parts {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr);

  Parts() {
    CHECK(data != nullptr && context != nullptr);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Parts() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
};

MatchSpace::MatchSpace() : parts_(std::make_unique<Parts>()) {}
MatchSpace::~MatchSpace() = default;

struct SplitPattern::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string_view regex, const std::string& field) {
  if (regex.size() > 1 << 16) {
    throw Error(ErrorKind::kUnsupported, field + ": the expression is longer than 64 KiB");
  }
  const std::string translated = Translator(regex, field).run();
  auto code = std::make_shared<Code>();
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &at, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr) {
    std::array<char, 256> text{};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
    throw Error(ErrorKind::kUnsupported, field + ": cannot compile the expression: " + text.data() +
                                             " (at " + std::to_string(at) + " of " + translated +
                                             ")");
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

bool SplitPattern::find(std::string_view text, size_t from, MatchSpace& space, size_t& begin,
                        size_t& end) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  MatchSpace::Parts& p = *space.parts_;
  // Far above what the expressions in use need (a few steps a byte), low enough that one of
  // exponential cost gives up within seconds.
  const size_t limit = 20'000'000 + 16 * std::min<size_t>(text.size(), 1 << 27);
  pcre2_set_match_limit(p.context, static_cast<uint32_t>(limit));
  int rc = PCRE2_ERROR_JIT_BADOPTION;
  if (code_->jit) {
    rc = pcre2_jit_match(code_->code, subject, text.size(), from, 0, p.data, p.context);
  }
  // No JIT, or its stack is too small for this text: the interpreter's frames are on the heap.
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH && rc != PCRE2_ERROR_MATCHLIMIT) {
    rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     p.data, p.context);
  }
  if (rc < 0) {
    if (rc != PCRE2_ERROR_NOMATCH) LOG_WARN("tokenizer: PCRE2 error %d, text kept whole", rc);
    return false;
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(p.data);
  begin = range[0];
  end = range[1];
  return true;
}

}  // namespace nibble
