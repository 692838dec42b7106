// Handshake: how two ranks find out that they belong together. Each proves by HMAC-SHA256 over both
// nonces that it knows the key, and then that it is the same build, with the same model and flags.
// What follows is neither encrypted nor signed: the link between ranks is to be a private one.
//
//   joiner -> host  hello    who it is, and a nonce
//   host -> joiner  answer   a nonce, and the host's proof over both; or a refusal
//   joiner -> host  proof    the joiner's proof and what it runs
//   host -> joiner  welcome  what the host runs; or a refusal
//
// Pure: bytes in, bytes out; dist/bootstrap.h moves them. Each throws Error where the other side
// does not belong here; one that knows the key is told why.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::dist {

inline constexpr size_t kMostHandshakeBytes = 4096;  // of a message

// What all ranks must have alike; texts that people can compare.
struct Identity {
  std::string build;
  std::string model;
  std::string flags;
};

enum class Purpose : uint32_t { kSteps, kWatch };

// Who joins, as it says itself.
struct Caller {
  uint32_t rank = 0;
  uint32_t size = 0;
  Purpose purpose = Purpose::kSteps;
  uint32_t port = 0;  // at which ranks behind it are to call it; 0: none
  bool operator==(const Caller&) const = default;
};

using Nonce = std::array<char, 32>;
Nonce random_nonce();

class JoinerHandshake {
 public:
  JoinerHandshake(std::string key, Identity mine, const Caller& caller, const Nonce& nonce);
  const std::string& hello() const { return hello_; }
  std::string on_answer(std::string_view answer);  // the proof
  void on_welcome(std::string_view welcome);

 private:
  std::string key_, hello_, answer_, proof_;
  Identity mine_;
};

class HostHandshake {
 public:
  HostHandshake(std::string key, Identity mine, uint32_t size, const Nonce& nonce);
  // The answer.
  std::string on_hello(std::string_view hello);
  // The welcome, or what tells the joiner of refusal().
  std::string on_proof(std::string_view proof);
  const Caller& caller() const { return caller_; }
  const std::string& refusal() const { return refusal_; }  // empty: is welcome

 private:
  std::string key_, hello_, answer_;
  Identity mine_;
  uint32_t size_;
  Nonce nonce_;
  Caller caller_;
  std::string refusal_;
};

}  // namespace nibble::dist
