#include "decode.h"

#include <algorithm>
#include <cctype>

namespace nibble::emulated {

Type parse_type(const std::string& text) {
  static const std::map<std::string, Type> kTypes = {
      {"pred", {'p', 1, 1}},   {"f16", {'f', 16, 1}},    {"f16x2", {'f', 16, 2}},
      {"bf16", {'h', 16, 1}},  {"bf16x2", {'h', 16, 2}}, {"tf32", {'t', 32, 1}},
      {"e4m3x2", {'t', 8, 2}}, {"e5m2x2", {'t', 9, 2}},  {"e2m1x2", {'t', 4, 2}},
      {"u16x2", {'u', 16, 2}}, {"s16x2", {'s', 16, 2}},
  };
  if (const auto found = kTypes.find(text); found != kTypes.end()) return found->second;
  if (text.size() < 2 || text.size() > 4 || std::string("busf").find(text[0]) == std::string::npos)
    return {0, 0, 0};
  for (const char c : text.substr(1))
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return {0, 0, 0};
  return {text[0], std::stoi(text.substr(1)), 1};
}

Decoder::Decoder(Program& program, const Kernel& kernel,
                 const std::map<std::string, uint64_t>& global_addresses)
    : program_(program), kernel_(kernel), globals_(global_addresses) {}

void Decoder::fail(const std::string& what) const {
  std::string opcode;
  for (const std::string& part : statement_->opcode) opcode += (opcode.empty() ? "" : ".") + part;
  throw PtxError(statement_->line, opcode + ": " + what);
}

Type Decoder::type(int i) const {
  for (size_t m = 1; m < statement_->opcode.size(); ++m) {
    const Type t = parse_type(statement_->opcode[m]);
    if (t.kind != 0 && i-- == 0) return t;
  }
  fail("a type is missing");
}

const Operand& Decoder::operand(size_t i) const {
  if (i >= statement_->operands.size()) fail("an operand is missing");
  return statement_->operands[i];
}

int Decoder::register_bits(const Operand& o) const {
  if (o.kind == Operand::Kind::kRegister) return kernel_.registers[static_cast<size_t>(o.reg)];
  if (o.kind == Operand::Kind::kName) return o.name == "%clock64" ? 64 : 32;
  return 0;
}

Place Decoder::constant(uint64_t value, int bits) {
  const auto key = std::make_pair(value, bits == 64 ? 64 : bits == 1 ? 1 : 32);
  if (const auto found = constants_.find(key); found != constants_.end()) return found->second;
  const size_t at = program_.constants.size();
  const size_t word = key.second == 64 ? 8 : 4, words = key.second == 1 ? 32 : kLanes;
  program_.constants.resize(at + word * words);
  for (size_t i = 0; i < words; ++i) std::memcpy(&program_.constants[at + word * i], &value, word);
  return constants_[key] = static_cast<Place>(at) | kConstant;
}

Place Decoder::symbol(const std::string& name, int bits) {
  static const std::map<std::string, uint32_t> kSpecial = {{"%tid.x", kTidX},
                                                           {"%tid.y", kTidY},
                                                           {"%tid.z", kTidZ},
                                                           {"%ntid.x", kNtidX},
                                                           {"%ntid.y", kNtidY},
                                                           {"%ntid.z", kNtidZ},
                                                           {"%ctaid.x", kCtaidX},
                                                           {"%ctaid.y", kCtaidY},
                                                           {"%ctaid.z", kCtaidZ},
                                                           {"%nctaid.x", kNctaidX},
                                                           {"%nctaid.y", kNctaidY},
                                                           {"%nctaid.z", kNctaidZ},
                                                           {"%laneid", kLaneId},
                                                           {"%warpid", kWarpId},
                                                           {"%cluster_ctarank", kClusterRank},
                                                           {"%cluster_nctarank", kClusterSize},
                                                           {"%cluster_ctaid.x", kClusterRank},
                                                           {"%cluster_nctaid.x", kClusterSize},
                                                           {"%clusterid.x", kClusterIdX},
                                                           {"%nclusterid.x", kNclusterIdX},
                                                           {"%dynamic_smem_size", kDynamicShared}};
  if (const auto found = kSpecial.find(name); found != kSpecial.end())
    return special_place(found->second);
  if (const auto found = symbols_.find(name); found != symbols_.end())
    return constant(found->second, bits);
  if (const auto found = globals_.find(name); found != globals_.end())
    return constant(found->second, bits);
  if (name == "WARP_SZ") return constant(32, bits);
  fail("an unknown name: " + name);
}

Place Decoder::place(const Operand& o, int bits) {
  switch (o.kind) {
    case Operand::Kind::kRegister: {
      const int have = register_bits(o);
      if ((have == 64) != (bits == 64) || (have == 1) != (bits == 1))
        fail("a register of " + std::to_string(have) + " bits for " + std::to_string(bits));
      return registers_[static_cast<size_t>(o.reg)];
    }
    case Operand::Kind::kImmediate: {
      auto value = static_cast<uint64_t>(o.value);
      if (o.float_bits == 64 && bits == 32)
        value = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(o.value)));
      if (bits == 1) value = value != 0 ? ~uint64_t{0} : 0;
      if (bits == 16) value &= 0xffff;
      return constant(bits == 64 ? value : value & 0xffffffffu, bits);
    }
    case Operand::Kind::kName:
      return symbol(o.name, bits);
    case Operand::Kind::kSink:
      return kNowhere;
    default:
      fail("an operand of another kind");
  }
}

Place Decoder::predicate(const Operand& o) {
  if (o.negated) fail("a negated predicate");
  return place(o, 1);
}

int64_t Decoder::immediate(size_t i) const {
  if (operand(i).kind != Operand::Kind::kImmediate) fail("an operand that is no constant");
  return operand(i).value;
}

int Decoder::address(size_t i, Inst& in) {
  const Operand& o = operand(i);
  if (o.kind != Operand::Kind::kAddress) fail("an operand that is no address");
  in.offset = o.value;
  if (o.reg >= 0) {
    in.a = registers_[static_cast<size_t>(o.reg)];
    return kernel_.registers[static_cast<size_t>(o.reg)];
  }
  in.a = o.name.empty() ? constant(0, 64) : symbol(o.name, 64);
  return 64;
}

const Place* Decoder::list(std::vector<Place> places) {
  program_.lists.push_back(std::move(places));
  return program_.lists.back().data();
}

uint32_t Decoder::target(const Operand& o) {
  return static_cast<uint32_t>(kernel_.find_label(o.name, statement_->scope, statement_->line));
}

// Params, registers, special registers and shared variables get their places.
void Decoder::place_registers() {
  Place at = special_place(kNumSpecial);
  for (const int bits : kernel_.registers)
    if (bits != 1) {
      registers_.push_back(at);
      at += bits == 64 ? 256 : 128;
    } else {
      registers_.push_back(0);
    }
  for (size_t r = 0; r < kernel_.registers.size(); ++r)
    if (kernel_.registers[r] == 1) registers_[r] = at, at += 4;
  program_.register_bytes = (at + 255) & ~255u;
}

void Decoder::place_shared(const std::vector<Variable>& all) {
  for (const Variable& v : all) {
    if (v.is_extern || v.bytes == 0) continue;
    int64_t& bytes = program_.static_shared_bytes;
    bytes = (bytes + v.align - 1) / v.align * v.align;
    symbols_[v.name] = kSharedBase + static_cast<uint64_t>(bytes);
    bytes += v.bytes;
  }
}

void Decoder::decode() {
  place_registers();
  place_shared(kernel_.shared);
  std::vector<Variable> used;  // of the module's, those that the kernel names
  for (const Variable& v : program_.module->shared) {
    const auto names = [&](const Operand& o) { return o.name == v.name; };
    if (std::any_of(kernel_.statements.begin(), kernel_.statements.end(), [&](const Statement& s) {
          return std::any_of(s.operands.begin(), s.operands.end(), names);
        }))
      used.push_back(v);
  }
  place_shared(used);
  for (const Variable& v : used) {
    if (v.bytes != 0) continue;
    const int64_t align = std::max<int64_t>(v.align, 16);
    program_.static_shared_bytes = (program_.static_shared_bytes + align - 1) / align * align;
    symbols_[v.name] = kSharedBase + static_cast<uint64_t>(program_.static_shared_bytes);
  }
  program_.params = kernel_.params;
  for (const Variable& p : kernel_.params) {
    program_.param_bytes = p.offset + p.bytes;
    symbols_[p.name] = static_cast<uint64_t>(p.offset);
  }
  std::copy(kernel_.cluster, kernel_.cluster + 3, program_.cluster);
  static constexpr bool (*kTables[])(Decoder&, Inst&) = {
      decode_memory, decode_integer, decode_float,  decode_packed, decode_convert, decode_select,
      decode_async,  decode_warp,    decode_matrix, decode_wgmma,  decode_control};
  for (const Statement& s : kernel_.statements) {
    statement_ = &s;
    Inst in;
    in.line = s.line;
    if (s.guard >= 0) {
      in.has_guard = true;
      in.guard_negated = s.guard_negated;
      in.guard = registers_[static_cast<size_t>(s.guard)];
    }
    bool is_known = false;
    for (const auto table : kTables)
      if ((is_known = table(*this, in))) break;
    if (!is_known) fail("not known to the emulator");
    program_.code.push_back(std::move(in));
  }
}

}  // namespace nibble::emulated
