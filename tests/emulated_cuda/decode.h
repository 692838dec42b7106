// From statements of PTX to instructions of the machine.
#pragma once

#include <map>
#include <string>

#include "machine.h"

namespace nibble::emulated {

struct Type {
  char kind = 'b';  // b u s f, h: bf16 of one or two, t: other small formats, p: predicate
  int bits = 32;    // of an element
  int lanes = 1;    // 2: packed
};
// "u32", "bf16x2"; kind 0: no type.
Type parse_type(const std::string& text);

class Decoder {
 public:
  Decoder(Program& program, const Kernel& kernel,
          const std::map<std::string, uint64_t>& global_addresses);
  void decode();

  // For the tables of instructions.
  const Statement& s() const { return *statement_; }
  const std::string& base() const { return statement_->opcode[0]; }
  bool has(std::string_view modifier) const { return statement_->has(modifier); }
  // The i-th type among the modifiers, counted from the front.
  Type type(int i = 0) const;
  const Operand& operand(size_t i) const;
  size_t num_operands() const { return statement_->operands.size(); }
  bool is_register(size_t i) const { return operand(i).kind == Operand::Kind::kRegister; }
  int register_bits(const Operand& o) const;
  // The place of an operand of `bits` bits: a register, or a constant made of it.
  Place place(const Operand& o, int bits);
  Place place(size_t i, int bits) { return place(operand(i), bits); }
  Place predicate(const Operand& o);  // not negated
  int64_t immediate(size_t i) const;
  // Address operand i: its base in in.a, 32 or 64 bits by the return value, the rest in in.offset.
  int address(size_t i, Inst& in);
  const Place* list(std::vector<Place> places);
  uint32_t target(const Operand& o);
  [[noreturn]] void fail(const std::string& what) const;

 private:
  Place constant(uint64_t value, int bits);
  Place symbol(const std::string& name, int bits);
  void place_registers();
  void place_shared(const std::vector<Variable>& all);

  Program& program_;
  const Kernel& kernel_;
  const std::map<std::string, uint64_t>& globals_;
  const Statement* statement_ = nullptr;
  std::vector<Place> registers_;
  std::map<std::string, uint64_t> symbols_;  // addresses in .shared and .param
  std::map<std::pair<uint64_t, int>, Place> constants_;
};

// The tables. Each makes an instruction of the decoder's statement, or returns false.
bool decode_integer(Decoder& d, Inst& in);
bool decode_float(Decoder& d, Inst& in);
bool decode_packed(Decoder& d, Inst& in);
bool decode_convert(Decoder& d, Inst& in);
bool decode_select(Decoder& d, Inst& in);
bool decode_memory(Decoder& d, Inst& in);
bool decode_async(Decoder& d, Inst& in);
bool decode_warp(Decoder& d, Inst& in);
bool decode_matrix(Decoder& d, Inst& in);
bool decode_wgmma(Decoder& d, Inst& in);
bool decode_control(Decoder& d, Inst& in);

}  // namespace nibble::emulated
