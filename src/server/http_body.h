// A body for Beast's parser: a string that grows by what arrives, whatever length was announced.
#pragma once

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/optional.hpp>
#include <cstdint>
#include <string>

namespace nibble::server {

struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <typename Header>
    reader(Header&, std::string& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>&, boost::beast::error_code& ec) { ec = {}; }
    template <typename Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& ec) {
      ec = {};
      const size_t before = body_.size();
      for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return body_.size() - before;
    }
    void finish(boost::beast::error_code& ec) { ec = {}; }

   private:
    std::string& body_;
  };
};

}  // namespace nibble::server
