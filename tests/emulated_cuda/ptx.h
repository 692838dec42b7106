// PTX as nvcc writes it, parsed: modules, and the statements of a kernel.
// Source: PTX ISA 9.0. What a compiler does not write is refused by line, not guessed.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::emulated {

struct PtxError : std::runtime_error {
  PtxError(int line, const std::string& what)
      : std::runtime_error("PTX line " + std::to_string(line) + ": " + what) {}
};

struct Operand {
  enum class Kind : uint8_t {
    kNone,
    kRegister,   // reg; `negated`: !%p
    kImmediate,  // value: an integer, or the bits of a 0f or 0d constant
    kAddress,    // [reg + value] or [name + value]; parts: coordinates of a tensor
    kVector,     // {parts}
    kPair,       // parts[0] | parts[1]
    kName,       // a symbol, label or special register
    kSink,       // _
  };
  Kind kind = Kind::kNone;
  bool negated = false;
  int float_bits = 0;  // of an immediate: 32 or 64 where it was 0f or 0d
  int reg = -1;
  int64_t value = 0;
  std::string name;
  std::vector<Operand> parts;
};

struct Statement {
  int line = 0;
  int scope = 0;
  std::vector<std::string> opcode;  // "ld", "global", "u32"
  int guard = -1;                   // register of @%p
  bool guard_negated = false;
  std::vector<Operand> operands;

  bool has(std::string_view modifier) const {
    for (size_t i = 1; i < opcode.size(); ++i)
      if (opcode[i] == modifier) return true;
    return false;
  }
};

struct Variable {
  std::string name;
  int64_t bytes = 0, align = 1;
  bool is_extern = false;  // .extern .shared: dynamic shared memory
  std::vector<uint8_t> init;
  int64_t offset = 0;  // of a parameter
};

// Bits of a register; 1: a predicate.
struct Kernel {
  std::string name;
  std::vector<Variable> params, shared;
  std::vector<int> registers;  // bits of each: 1 (a predicate), 8, 16, 32, 64
  std::vector<Statement> statements;
  std::map<std::pair<int, std::string>, size_t> labels;  // by scope and name
  std::vector<int> parents;                              // of scopes; of scope 0: -1
  uint32_t cluster[3] = {1, 1, 1};

  // The statement that `label` marks, as scope `scope` sees it.
  size_t find_label(const std::string& label, int scope, int line) const;
};

// A module keeps its text: kernels are parsed when they are first launched.
struct Module {
  std::string text;
  std::vector<Variable> globals, shared;           // .global and .const; .shared of the module
  std::map<std::string, std::string_view> bodies;  // of kernels, from their parameters on

  explicit Module(std::string ptx);
  Kernel parse_kernel(const std::string& name) const;
  std::string line(int number) const;
};

}  // namespace nibble::emulated
