// CHECK(cond): a bug in nibble, never a reaction to user input. Prints file, line, condition,
// aborts.
#pragma once

namespace nibble {
[[noreturn]] void check_failed(const char* file, int line, const char* what);
}

#define CHECK(cond) \
  ((cond) ? static_cast<void>(0) : ::nibble::check_failed(__FILE__, __LINE__, #cond))
