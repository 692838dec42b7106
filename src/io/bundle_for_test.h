// For tests: a safetensors file made by hand.
#pragma once

#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace nibble::test {

// Tensors with random bytes that own their data.
class Bundle {
 public:
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    int64_t bytes = dtype_bytes(dtype);
    for (const int64_t n : shape) bytes *= n;
    std::vector<std::byte> data(static_cast<size_t>(bytes));
    for (std::byte& b : data) b = static_cast<std::byte>(random_());
    add(name, dtype, std::move(shape), std::move(data));
  }
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           std::vector<std::byte> data) {
    names_.push_back({name, dtype, std::move(shape), {}});
    data_.push_back(std::move(data));
  }
  const std::vector<std::byte>& data(const std::string& name) const {
    for (size_t i = 0; i < names_.size(); ++i)
      if (names_[i].name == name) return data_[i];
    throw std::runtime_error("no tensor " + name);
  }
  void write(const std::filesystem::path& file) const {
    std::vector<TensorData> tensors = names_;
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = data_[i];
    write_safetensors(file, tensors);
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& data : data_) sum += std::ssize(data);
    return sum;
  }

 private:
  std::vector<TensorData> names_;
  std::vector<std::vector<std::byte>> data_;
  std::mt19937 random_{7};
};

}  // namespace nibble::test
