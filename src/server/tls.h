// TLS by OpenSSL, without sockets: ciphertext in, plaintext out, and the other way.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace nibble::server {

// A certificate with its key. TLS 1.2 and newer.
class TlsContext {
 public:
  // PEM files; the certificate's may hold its chain. Throws Error(kUsage) naming the file.
  TlsContext(const std::string& certificate_file, const std::string& key_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;

 private:
  friend class TlsChannel;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One connection's server side.
class TlsChannel {
 public:
  explicit TlsChannel(const TlsContext& context);
  ~TlsChannel();

  // Takes what came over the wire: appends what it says to `plain`, and what is to be sent for it
  // (of the handshake, alerts) to `wire`. False: this cannot go on.
  bool receive(std::string_view bytes, std::string& plain, std::string& wire);
  // Appends `plain` to `wire`, encrypted. False: the handshake is not done, or the channel is shut.
  bool send(std::string_view plain, std::string& wire);
  // Says that no more will be sent.
  void close(std::string& wire);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
