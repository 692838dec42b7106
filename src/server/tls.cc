#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <climits>

#include "base/check.h"
#include "base/error.h"

namespace nibble::server {
namespace {

// OpenSSL's reason, and none left behind for the next call.
std::string last_error() {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

// HTTP/1.1 is all that is spoken, whatever the client would like.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* in, unsigned int in_size, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp11, sizeof kHttp11 - 1, in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

struct TlsContext::Impl {
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  ~Impl() { SSL_CTX_free(context); }
};

TlsContext::TlsContext(const std::string& certificate_file, const std::string& key_file)
    : impl_(std::make_unique<Impl>()) {
  SSL_CTX* context = impl_->context;
  CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) != 1) {
    throw Error(ErrorKind::kUsage,
                certificate_file + ": no certificate that can be used: " + last_error());
  }
  // A key of another type than the certificate's is taken at first, for a certificate to come.
  if (SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    throw Error(ErrorKind::kUsage, key_file + ": no key of the certificate: " + last_error());
  }
}

TlsContext::~TlsContext() = default;

struct TlsChannel::Impl {
  SSL* ssl = nullptr;
  BIO* in = nullptr;   // owned by ssl
  BIO* out = nullptr;  // owned by ssl
  ~Impl() { SSL_free(ssl); }

  void take_output(std::string& wire) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(out, &data);
    if (size > 0) wire.append(data, static_cast<size_t>(size));
    BIO_reset(out);
  }
};

TlsChannel::TlsChannel(const TlsContext& context) : impl_(std::make_unique<Impl>()) {
  impl_->ssl = SSL_new(context.impl_->context);
  impl_->in = BIO_new(BIO_s_mem());
  impl_->out = BIO_new(BIO_s_mem());
  CHECK(impl_->ssl != nullptr && impl_->in != nullptr && impl_->out != nullptr);
  SSL_set_bio(impl_->ssl, impl_->in, impl_->out);
  SSL_set_accept_state(impl_->ssl);
}

TlsChannel::~TlsChannel() = default;

bool TlsChannel::receive(std::string_view bytes, std::string& plain, std::string& wire) {
  CHECK(bytes.size() <= INT_MAX);
  if (!bytes.empty()) BIO_write(impl_->in, bytes.data(), static_cast<int>(bytes.size()));
  std::array<char, 16 << 10> buffer;
  for (;;) {
    const int n = SSL_read(impl_->ssl, buffer.data(), static_cast<int>(buffer.size()));
    if (n > 0) {
      plain.append(buffer.data(), static_cast<size_t>(n));
      continue;
    }
    const int why = SSL_get_error(impl_->ssl, n);
    impl_->take_output(wire);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_READ;
  }
}

bool TlsChannel::send(std::string_view plain, std::string& wire) {
  while (!plain.empty()) {
    const int size = static_cast<int>(std::min<size_t>(plain.size(), 16 << 10));
    const int n = SSL_write(impl_->ssl, plain.data(), size);
    if (n <= 0) return ERR_clear_error(), false;
    plain.remove_prefix(static_cast<size_t>(n));
  }
  impl_->take_output(wire);
  return true;
}

void TlsChannel::close(std::string& wire) {
  if (SSL_is_init_finished(impl_->ssl)) SSL_shutdown(impl_->ssl);
  ERR_clear_error();
  impl_->take_output(wire);
}

}  // namespace nibble::server
