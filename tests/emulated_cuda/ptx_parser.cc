#include <algorithm>
#include <bit>
#include <cctype>

#include "ptx.h"

namespace nibble::emulated {
namespace {

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

// Tokens: names (with dots and ::), numbers, and single characters.
class Lexer {
 public:
  Lexer(std::string_view text, int line) : text_(text), line_(line) { next(); }

  std::string_view token() const { return token_; }
  bool is(std::string_view t) const { return token_ == t; }
  bool at_end() const { return token_.empty(); }
  int line() const { return token_line_; }
  size_t position() const { return start_; }

  std::string take() {
    std::string t(token_);
    next();
    return t;
  }
  bool accept(std::string_view t) {
    if (!is(t)) return false;
    next();
    return true;
  }
  void expect(std::string_view t) {
    if (!accept(t))
      fail("expected '" + std::string(t) + "' and found '" + std::string(token_) + "'");
  }
  void skip_line() {
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    next();
  }
  [[noreturn]] void fail(const std::string& what) const { throw PtxError(token_line_, what); }

  void next() {
    skip_space();
    start_ = at_;
    token_line_ = line_;
    if (at_ >= text_.size()) {
      token_ = {};
      return;
    }
    if (!is_name_char(text_[at_])) {
      token_ = text_.substr(at_++, 1);
      return;
    }
    while (at_ < text_.size()) {
      if (is_name_char(text_[at_])) {
        ++at_;
      } else if (text_.substr(at_, 2) == "::") {
        at_ += 2;
      } else {
        break;
      }
    }
    token_ = text_.substr(start_, at_ - start_);
  }

 private:
  void skip_space() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') {
        ++line_, ++at_;
      } else if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        break;
      }
    }
  }

  std::string_view text_, token_;
  size_t at_ = 0, start_ = 0;
  int line_, token_line_ = 0;
};

int64_t parse_integer(const Lexer& at, std::string_view text) {
  std::string digits(text);
  while (!digits.empty() && digits.back() == 'U') digits.pop_back();
  try {
    size_t used = 0;
    const uint64_t v = std::stoull(digits, &used, 0);
    if (used == digits.size()) return static_cast<int64_t>(v);
  } catch (const std::exception&) {
  }
  at.fail("not a number: " + digits);
}

int type_bits(std::string_view type) {
  if (type == ".pred") return 1;
  const size_t digit = type.find_first_of("0123456789");
  return digit == std::string_view::npos ? 0 : std::stoi(std::string(type.substr(digit)));
}

// ".shared .align 16 .b8 name[128] = {..}": from the type or alignment on.
Variable parse_variable(Lexer& in) {
  Variable v;
  int bits = 0;
  while (in.token().starts_with(".")) {
    const std::string word = in.take();
    if (word == ".align") {
      v.align = parse_integer(in, in.take());
    } else if (type_bits(word) > 0) {
      bits = type_bits(word);
    }  // .ptr, .global and the like say nothing here
  }
  if (bits == 0) in.fail("a variable without a type");
  v.name = in.take();
  v.bytes = bits / 8;
  v.align = std::max<int64_t>(v.align, bits / 8);
  bool is_array = false;
  while (in.accept("[")) {
    is_array = true;
    v.bytes = in.is("]") ? 0 : v.bytes * parse_integer(in, in.take());
    in.expect("]");
  }
  if (!in.accept("=")) return v;
  if (is_array) in.expect("{");
  do {
    const bool negative = in.accept("-");
    std::string text = in.take();
    if (text.starts_with("0f") || text.starts_with("0d")) text = "0x" + text.substr(2);
    int64_t value = parse_integer(in, text);
    if (negative) value = -value;
    for (int b = 0; b < bits / 8; ++b) v.init.push_back(static_cast<uint8_t>(value >> 8 * b));
  } while (in.accept(","));
  if (is_array) in.expect("}");
  return v;
}

class KernelParser {
 public:
  KernelParser(Kernel& kernel, std::string_view body, int line) : k_(kernel), in_(body, line) {}

  void parse() {
    if (in_.accept("(")) {
      while (!in_.accept(")")) {
        in_.expect(".param");
        Variable v = parse_variable(in_);
        const int64_t end =
            k_.params.empty() ? 0 : k_.params.back().offset + k_.params.back().bytes;
        v.offset = (end + v.align - 1) / v.align * v.align;
        k_.params.push_back(std::move(v));
        in_.accept(",");
      }
    }
    while (!in_.is("{")) parse_directive();
    in_.expect("{");
    k_.parents.push_back(-1);
    registers_.emplace_back();
    parse_scope(0);
  }

 private:
  void parse_directive() {
    const std::string name = in_.take();
    if (name == ".explicitcluster") return;
    if (!name.starts_with(".")) in_.fail("'" + name + "' before a kernel's body");
    std::vector<uint32_t> values;
    do {
      values.push_back(static_cast<uint32_t>(parse_integer(in_, in_.take())));
    } while (in_.accept(","));
    if (name == ".reqnctapercluster")
      for (size_t i = 0; i < values.size() && i < 3; ++i) k_.cluster[i] = values[i];
  }

  void parse_scope(int scope) {
    while (!in_.accept("}")) {
      if (in_.at_end()) in_.fail("a kernel without an end");
      if (in_.accept("{")) {
        const int inner = static_cast<int>(k_.parents.size());
        k_.parents.push_back(scope);
        registers_.emplace_back();
        parse_scope(inner);
        registers_.pop_back();
      } else if (in_.accept(";")) {
      } else if (in_.is(".reg")) {
        in_.next();
        parse_registers();
      } else if (in_.is(".shared")) {
        in_.next();
        k_.shared.push_back(parse_variable(in_));
        in_.expect(";");
      } else if (in_.is(".loc") || in_.is(".pragma") || in_.is(".file")) {
        in_.skip_line();
      } else {
        parse_statement(scope);
      }
    }
  }

  // ".b32 %r<10>" or ".b16 lo, hi".
  void parse_registers() {
    const int bits = type_bits(in_.take());
    if (bits == 0) in_.fail("registers of no known type");
    do {
      const std::string name = in_.take();
      if (in_.accept("<")) {
        const int64_t n = parse_integer(in_, in_.take());
        in_.expect(">");
        for (int64_t i = 0; i < n; ++i) declare(name + std::to_string(i), bits);
      } else {
        declare(name, bits);
      }
    } while (in_.accept(","));
    in_.expect(";");
  }
  void declare(const std::string& name, int bits) {
    registers_.back()[name] = static_cast<int>(k_.registers.size());
    k_.registers.push_back(bits);
  }
  int find_register(const std::string& name) const {
    for (auto scope = registers_.rbegin(); scope != registers_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    return -1;
  }

  void parse_statement(int scope) {
    Statement s;
    s.line = in_.line();
    s.scope = scope;
    if (in_.accept("@")) {
      s.guard_negated = in_.accept("!");
      s.guard = find_register(in_.take());
      if (s.guard < 0) in_.fail("an unknown predicate");
    }
    const std::string word = in_.take();
    if (in_.accept(":")) {
      k_.labels[{scope, word}] = k_.statements.size();
      return;
    }
    for (size_t from = 0; from <= word.size();) {
      const size_t dot = std::min(word.find('.', from), word.size());
      s.opcode.push_back(word.substr(from, dot - from));
      from = dot + 1;
    }
    while (!in_.accept(";")) {
      s.operands.push_back(parse_operand());
      if (!in_.is(";")) in_.expect(",");
    }
    k_.statements.push_back(std::move(s));
  }

  Operand parse_operand() {
    Operand first = parse_simple();
    if (!in_.accept("|")) return first;
    Operand pair;
    pair.kind = Operand::Kind::kPair;
    pair.parts.push_back(std::move(first));
    pair.parts.push_back(parse_simple());
    return pair;
  }

  Operand parse_simple() {
    Operand o;
    if (in_.accept("[")) return parse_address();
    if (in_.accept("{")) {
      o.kind = Operand::Kind::kVector;
      while (!in_.accept("}")) {
        o.parts.push_back(parse_simple());
        in_.accept(",");
      }
      return o;
    }
    o.negated = in_.accept("!");
    const bool negative = in_.accept("-");
    const std::string t = in_.take();
    if (t == "_") {
      o.kind = Operand::Kind::kSink;
    } else if (std::isdigit(static_cast<unsigned char>(t[0]))) {
      o.kind = Operand::Kind::kImmediate;
      if (t.size() > 2 && (t.starts_with("0f") || t.starts_with("0d"))) {
        o.float_bits = t[1] == 'f' ? 32 : 64;
        o.value = parse_integer(in_, "0x" + t.substr(2));
      } else if (t.find('.') != std::string::npos) {
        o.float_bits = 64;
        o.value = std::bit_cast<int64_t>(std::stod(t));
      } else {
        o.value = parse_integer(in_, t);
        if (negative) o.value = -o.value;
      }
    } else if ((o.reg = find_register(t)) >= 0) {
      o.kind = Operand::Kind::kRegister;
    } else {
      o.kind = Operand::Kind::kName;
      o.name = t;
    }
    return o;
  }

  Operand parse_address() {
    Operand o;
    const Operand base = parse_simple();
    o.kind = Operand::Kind::kAddress;
    o.reg = base.reg;
    o.name = base.name;
    o.value = base.value;
    if (in_.accept("+")) {
      const bool negative = in_.accept("-");
      const int64_t offset = parse_integer(in_, in_.take());
      o.value += negative ? -offset : offset;
    }
    if (in_.accept(",")) o.parts = parse_simple().parts;
    in_.expect("]");
    return o;
  }

  Kernel& k_;
  Lexer in_;
  std::vector<std::map<std::string, int>> registers_;  // of each open scope
};

}  // namespace

size_t Kernel::find_label(const std::string& label, int scope, int line) const {
  for (; scope >= 0; scope = parents[static_cast<size_t>(scope)])
    if (const auto found = labels.find({scope, label}); found != labels.end()) return found->second;
  throw PtxError(line, "no label " + label);
}

Module::Module(std::string ptx) : text(std::move(ptx)) {
  Lexer in(text, 1);
  while (!in.at_end()) {
    const std::string word = in.take();
    if (word == ".version" || word == ".target" || word == ".file" || word == ".address_size") {
      in.skip_line();
    } else if (word == ".visible" || word == ".weak" || word == ".extern") {
      // what follows says what it is
    } else if (word == ".entry") {
      const std::string name = in.take();
      const size_t from = in.position();
      while (!in.is("{")) in.next();
      int depth = 0;
      do {
        depth += in.is("{") ? 1 : in.is("}") ? -1 : 0;
        in.next();
      } while (depth > 0 && !in.at_end());
      bodies[name] =
          std::string_view(text).substr(from, (in.at_end() ? text.size() : in.position()) - from);
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      Variable v = parse_variable(in);
      in.expect(";");
      v.is_extern = v.bytes == 0;
      (word == ".shared" ? shared : globals).push_back(std::move(v));
    } else {
      in.fail("'" + word + "' at the top of a module");
    }
  }
}

Kernel Module::parse_kernel(const std::string& name) const {
  const auto body = bodies.find(name);
  if (body == bodies.end()) throw std::runtime_error("no kernel " + name);
  const auto before = static_cast<size_t>(body->second.data() - text.data());
  Kernel kernel;
  kernel.name = name;
  KernelParser(kernel, body->second,
               1 + static_cast<int>(std::count(text.begin(), text.begin() + before, '\n')))
      .parse();
  return kernel;
}

std::string Module::line(int number) const {
  size_t at = 0;
  for (int i = 1; i < number && at != std::string::npos; ++i) {
    at = text.find('\n', at);
    if (at != std::string::npos) ++at;
  }
  if (at == std::string::npos) return "";
  const size_t from = text.find_first_not_of(" \t", at);
  return text.substr(from, text.find('\n', from) - from);
}

}  // namespace nibble::emulated
