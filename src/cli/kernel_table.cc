#include "cli/kernel_table.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "io/files.h"
#include "ops/site.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kFirstLine = "nibble-kernel-table 1";
constexpr std::string_view kNoMatrix = "-";
constexpr int64_t kMaxBytes = int64_t{1} << 20;

class Lines {
 public:
  Lines(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  // None: the text has ended.
  std::optional<std::string_view> next() {
    if (text_.empty()) return std::nullopt;
    const size_t end = std::min(text_.find('\n'), text_.size());
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++number_;
    return line;
  }
  // What follows `word` in the next line.
  std::string value_of(std::string_view word) {
    const std::string_view line = next().value_or("");
    if (!line.starts_with(word) || line.size() < word.size() + 2 || line[word.size()] != ' ')
      fail("expected \"" + std::string(word) + " ...\"");
    return std::string(line.substr(word.size() + 1));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kUsage, file_ + ":" + std::to_string(number_) + ": " + what);
  }

 private:
  std::string_view text_;
  const std::string& file_;
  int number_ = 0;
};

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words(1);
  for (const char c : line) {
    if (c != ' ') {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

ops::TunedKernel parse_row(std::string_view line, const Lines& lines) {
  const std::vector<std::string> words = words_of(line);
  if (words.size() != 4) lines.fail("expected op, format, tokens and kernel");
  const std::optional<ops::Op> op = ops::find_op(words[0]);
  if (!op) lines.fail("there is no op " + words[0]);
  const bool is_format = std::ranges::any_of(
      kFormats, [&](const FormatRow& format) { return format.name == words[1]; });
  if (!is_format && words[1] != kNoMatrix) lines.fail("there is no format " + words[1]);
  int64_t tokens = 0;
  const auto [end, error] =
      std::from_chars(words[2].data(), words[2].data() + words[2].size(), tokens);
  if (error != std::errc() || end != words[2].data() + words[2].size() ||
      std::ranges::find(ops::kTokenBuckets, tokens) == ops::kTokenBuckets.end()) {
    std::string known;
    for (const int64_t bucket : ops::kTokenBuckets)
      known += (known.empty() ? "" : ", ") + std::to_string(bucket);
    lines.fail("tokens are " + words[2] + ", none of " + known);
  }
  return {*op, is_format ? words[1] : "", tokens, words[3]};
}

[[noreturn]] void throw_no_such_kernel(const std::string& text, const std::string& op,
                                       const std::vector<std::string>& names) {
  std::string why = "--kernel " + text + ": no such kernel; " + op + " has ";
  for (const std::string& name : names) why.append(&name == &names[0] ? "" : ", ").append(name);
  throw Error(ErrorKind::kUsage, why);
}

}  // namespace

std::string kernel_table_text(const KernelTable& table) {
  std::string text = std::string(kFirstLine) + "\ndevice " + table.device + "\nactivations " +
                     table.activations + "\nmodel " + table.model + "\n";
  for (const ops::TunedKernel& row : table.rows) {
    text += std::string(ops::op_name(row.op)) + " " +
            (row.weights.empty() ? std::string(kNoMatrix) : row.weights) + " " +
            std::to_string(row.max_tokens) + " " + row.kernel + "\n";
  }
  return text;
}

KernelTable parse_kernel_table(std::string_view text, const std::string& file) {
  Lines lines(text, file);
  if (lines.next().value_or("") != kFirstLine)
    lines.fail("expected \"" + std::string(kFirstLine) + "\": what nibble bench ops --tune writes");
  KernelTable table;
  table.device = lines.value_of("device");
  table.activations = lines.value_of("activations");
  table.model = lines.value_of("model");
  while (const auto line = lines.next()) {
    ops::TunedKernel row = parse_row(*line, lines);
    const auto is_same = [&](const ops::TunedKernel& other) {
      return other.op == row.op && other.weights == row.weights &&
             other.max_tokens == row.max_tokens;
    };
    if (std::ranges::any_of(table.rows, is_same))
      lines.fail("the same op, format and tokens again");
    table.rows.push_back(std::move(row));
  }
  return table;
}

void use_kernel_table(const std::string& file, const std::string& device,
                      ops::KernelOptions& options) {
  KernelTable table = parse_kernel_table(read_text_file(file, kMaxBytes), file);
  const std::string here = ops::act_format_name(options.activations);
  if (options.exact)
    throw Error(ErrorKind::kUsage,
                "--kernel-table chooses by the size of a step, which --exact must not feel: leave "
                "one of them out");
  if (table.device != device)
    throw Error(ErrorKind::kUnsupported, file + ": timed on " + table.device + ", and this is " +
                                             device + "; run nibble bench ops --tune here");
  if (table.activations != here)
    throw Error(ErrorKind::kUnsupported, file + ": timed with --activations " + table.activations +
                                             ", and this run has " + here);
  options.tuned = std::move(table.rows);
}

void force_kernels(const std::vector<std::string>& kernels, ops::KernelOptions& options) {
  for (const std::string& text : kernels) {
    options.force(text);
    const auto& [op, kernel] = options.forced.back();
    const std::vector<std::string> names = ops::kernel_names(*ops::find_op(op));
    if (std::ranges::find(names, kernel) == names.end()) throw_no_such_kernel(text, op, names);
  }
}

}  // namespace nibble::cli
