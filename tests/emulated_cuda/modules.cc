// What programs of nvcc register when they start: modules as PTX in fat binaries, kernels by the
// host's functions.
#include <cstdio>
#include <cstdlib>

#include "decode.h"
#include "device.h"
#include "memory.h"

namespace nibble::emulated {

struct LoadedModule {
  std::string_view ptx;
  std::shared_ptr<const Module> parsed;
  std::map<std::string, uint64_t> globals;  // addresses
  std::vector<std::unique_ptr<KernelEntry>> kernels;
};

namespace {

std::map<const void*, KernelEntry*>& kernels() {
  static auto* const all = new std::map<const void*, KernelEntry*>;
  return *all;
}
std::map<const void*, std::pair<LoadedModule*, std::string>>& variables() {
  static auto* const all = new std::map<const void*, std::pair<LoadedModule*, std::string>>;
  return *all;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  std::abort();
}

template <typename T>
T read(const char* at) {
  T v;
  std::memcpy(&v, at, sizeof(v));
  return v;
}

// The PTX of a fat binary: entries of {kind, version, bytes of the header, of the payload} behind a
// header of its own.
std::string_view find_ptx(const char* fat) {
  if (read<uint32_t>(fat) != 0xba55ed50) fail("no fat binary");
  const char* at = fat + read<uint16_t>(fat + 6);
  const char* const end = at + read<uint64_t>(fat + 8);
  while (at < end) {
    const auto kind = read<uint16_t>(at);
    const auto header = read<uint32_t>(at + 4);
    const auto bytes = read<uint64_t>(at + 8);
    if (kind == 1) {
      const std::string_view text(at + header, bytes);
      if (text.find(".version") == std::string_view::npos)
        fail("PTX is compressed: compile with nvcc --no-compress");
      return text.substr(0, text.find('\0'));
    }
    at += header + bytes;
  }
  fail("no PTX in a fat binary: compile with code=compute_*");
}

void parse(LoadedModule& module) {
  if (module.parsed != nullptr) return;
  module.parsed = std::make_shared<const Module>(std::string(module.ptx));
  for (const Variable& v : module.parsed->globals) {
    void* const at = allocate(static_cast<size_t>(v.bytes));
    std::memset(at, 0, static_cast<size_t>(v.bytes));
    std::memcpy(at, v.init.data(), v.init.size());
    module.globals[v.name] = reinterpret_cast<uint64_t>(at);
  }
}

}  // namespace

Program& program_of(KernelEntry& kernel) {
  if (kernel.program == nullptr) {
    parse(*kernel.module);
    auto program = std::make_unique<Program>();
    program->name = kernel.name;
    program->module = kernel.module->parsed;
    const Kernel parsed = kernel.module->parsed->parse_kernel(kernel.name);
    Decoder(*program, parsed, kernel.module->globals).decode();
    kernel.program = std::move(program);
  }
  return *kernel.program;
}

KernelEntry* find_kernel(const void* host_function) {
  const auto found = kernels().find(host_function);
  return found == kernels().end() ? nullptr : found->second;
}

}  // namespace nibble::emulated

using nibble::emulated::KernelEntry;
using nibble::emulated::LoadedModule;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  auto* const module = new LoadedModule;
  const char* data;
  std::memcpy(&data, static_cast<const char*>(wrapper) + 8, sizeof(data));
  module->ptx = nibble::emulated::find_ptx(data);
  return reinterpret_cast<void**>(module);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  auto* const module = reinterpret_cast<LoadedModule*>(handle);
  auto& kernel = module->kernels.emplace_back(std::make_unique<KernelEntry>());
  kernel->module = module;
  kernel->name = name;
  nibble::emulated::kernels()[host] = kernel.get();
}
void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t, int, int) {
  nibble::emulated::variables()[host] = {reinterpret_cast<LoadedModule*>(handle), name};
}

}  // extern "C"
