#include "dist/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace nibble::dist {
namespace {

constexpr uint32_t kMagic = 0x7062696e;  // "nibp"
constexpr uint32_t kProtocol = 1;
constexpr uint32_t kMostRanks = 1024;
constexpr size_t kMacBytes = 32, kMostText = 1000;
enum class Kind : uint32_t { kRefusal, kAnswer, kWelcome };

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kUnsupported, what); }

// Little-endian on every machine that runs this.
class Writer {
 public:
  Writer& number(uint32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  Writer& text(std::string_view text) {
    text = text.substr(0, kMostText);
    return number(static_cast<uint32_t>(text.size())).raw(text);
  }
  Writer& identity(const Identity& id) { return text(id.build).text(id.model).text(id.flags); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint32_t number() {
    uint32_t value = 0;
    std::memcpy(&value, raw(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string_view raw(size_t n) {
    if (n > bytes_.size()) refuse("a handshake that is cut short");
    const std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }
  std::string text() {
    const uint32_t n = number();
    if (n > kMostText) refuse("a handshake with a text of " + std::to_string(n) + " bytes");
    return std::string(raw(n));
  }
  Identity identity() {
    Identity id;
    id.build = text(), id.model = text(), id.flags = text();
    return id;
  }
  // Magic and protocol, with which every message starts.
  void head() {
    if (number() != kMagic) refuse("it speaks another language than nibble's ranks");
    if (const uint32_t protocol = number(); protocol != kProtocol)
      refuse("it speaks protocol " + std::to_string(protocol) + " of ranks, this build " +
             std::to_string(kProtocol));
  }
  void end() const {
    if (!bytes_.empty()) refuse("a handshake with bytes behind its end");
  }

 private:
  std::string_view bytes_;
};

Writer head() {
  Writer writer;
  writer.number(kMagic).number(kProtocol);
  return writer;
}

// Of all that was said, in order; `who` keeps one side's from being the other's.
std::string mac(const std::string& key, std::string_view who,
                std::initializer_list<std::string_view> said) {
  Writer all;
  all.text(who);
  for (const std::string_view part : said) all.number(static_cast<uint32_t>(part.size())).raw(part);
  const std::string text = all.take();
  std::string out(kMacBytes, '\0');
  unsigned int length = 0;
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(),
             reinterpret_cast<unsigned char*>(out.data()), &length) != nullptr);
  CHECK(length == kMacBytes);
  return out;
}

bool is_same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Empty where they are alike.
std::string difference(const Identity& joiner, const Identity& host) {
  const auto differ = [](const char* what, const std::string& a, const std::string& b) {
    return "its " + std::string(what) + " is another: there \"" + a + "\", at the rank called \"" +
           b + "\"";
  };
  if (joiner.build != host.build) return differ("build", joiner.build, host.build);
  if (joiner.model != host.model) return differ("model", joiner.model, host.model);
  if (joiner.flags != host.flags) return differ("set of flags", joiner.flags, host.flags);
  return "";
}

std::string_view view(const Nonce& nonce) { return {nonce.data(), nonce.size()}; }

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) == 1);
  return nonce;
}

JoinerHandshake::JoinerHandshake(std::string key, Identity mine, const Caller& caller,
                                 const Nonce& nonce)
    : key_(std::move(key)), mine_(std::move(mine)) {
  hello_ = head()
               .number(caller.rank)
               .number(caller.size)
               .number(static_cast<uint32_t>(caller.purpose))
               .number(caller.port)
               .raw(view(nonce))
               .take();
}

std::string JoinerHandshake::on_answer(std::string_view answer) {
  Reader reader(answer);
  reader.head();
  if (static_cast<Kind>(reader.number()) != Kind::kAnswer) refuse("refused: " + reader.text());
  const std::string_view nonce = reader.raw(sizeof(Nonce)), proof = reader.raw(kMacBytes);
  reader.end();
  if (!is_same(proof, mac(key_, "host", {hello_, nonce})))
    refuse("it does not know the key of these ranks");
  answer_ = answer;
  const std::string what = Writer().identity(mine_).take();
  return proof_ = head().raw(mac(key_, "joiner", {hello_, answer_, what})).raw(what).take();
}

void JoinerHandshake::on_welcome(std::string_view welcome) {
  Reader reader(welcome);
  reader.head();
  const auto kind = static_cast<Kind>(reader.number());
  const std::string_view proof = reader.raw(kMacBytes);
  const std::string text = reader.text();
  reader.end();
  const std::string number(reinterpret_cast<const char*>(&kind), sizeof(kind));
  if (!is_same(proof, mac(key_, "welcome", {hello_, answer_, proof_, number, text})))
    refuse("it does not know the key of these ranks");
  if (kind != Kind::kWelcome) refuse("refused: " + text);
}

HostHandshake::HostHandshake(std::string key, Identity mine, uint32_t size, const Nonce& nonce)
    : key_(std::move(key)), mine_(std::move(mine)), size_(size), nonce_(nonce) {}

std::string HostHandshake::on_hello(std::string_view hello) {
  Reader reader(hello);
  reader.head();
  caller_ = {.rank = reader.number(), .size = reader.number()};
  const uint32_t purpose = reader.number();
  caller_.port = reader.number();
  reader.raw(sizeof(Nonce));
  reader.end();
  if (purpose > static_cast<uint32_t>(Purpose::kWatch)) refuse("a handshake without a purpose");
  caller_.purpose = static_cast<Purpose>(purpose);
  if (caller_.rank >= kMostRanks || caller_.port > 0xffff)
    refuse("a handshake with numbers that cannot be");
  hello_ = hello;
  return answer_ = head()
                       .number(static_cast<uint32_t>(Kind::kAnswer))
                       .raw(view(nonce_))
                       .raw(mac(key_, "host", {hello_, view(nonce_)}))
                       .take();
}

std::string HostHandshake::on_proof(std::string_view proof) {
  Reader reader(proof);
  reader.head();
  const std::string_view shown = reader.raw(kMacBytes);
  const std::string_view what = proof.substr(2 * sizeof(uint32_t) + kMacBytes);
  if (!is_same(shown, mac(key_, "joiner", {hello_, answer_, what})))
    refuse("it does not know the key of these ranks");
  const Identity theirs = reader.identity();
  reader.end();
  refusal_ = difference(theirs, mine_);
  if (caller_.size != size_)
    refusal_ = "it is one of " + std::to_string(caller_.size) + " ranks, of " +
               std::to_string(size_) + " here";
  else if (caller_.rank == 0 || caller_.rank >= size_)
    refusal_ = "rank " + std::to_string(caller_.rank) + " is none that may call";
  const Kind kind = refusal_.empty() ? Kind::kWelcome : Kind::kRefusal;
  const std::string number(reinterpret_cast<const char*>(&kind), sizeof(kind));
  const std::string text = refusal_.substr(0, kMostText);
  return head()
      .raw(number)
      .raw(mac(key_, "welcome", {hello_, answer_, proof, number, text}))
      .text(text)
      .take();
}

}  // namespace nibble::dist
