// nibble inspect: the tensors of a checkpoint, their formats, and whether they are what the config
// promises.
#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/engine_setup.h"
#include "cli/text_table.h"
#include "io/checkpoint.h"
#include "io/hub.h"
#include "models/model.h"

namespace nibble::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string model, revision = "main";
  bool json = false, all = false;
};

struct Inspection {
  ModelFiles files;
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<WeightInfo> weights;
  std::vector<std::string> unwanted;  // weights that the model has no use for
  std::string finding;                // what does not agree with the config; empty: all does
  bool checked = false;               // false: no model code for this architecture
  bool on_disk() const { return !files.weights.empty(); }
};

int64_t num_elements(const WeightInfo& w) {
  int64_t n = 1;
  for (const int64_t dim : w.shape) n *= dim;
  return n;
}

// What the checkpoint has, and what it has to have.
Inspection inspect(const Options& options) {
  Inspection in{.files = find_model(options.model, options.revision),
                .checkpoint = {},
                .weights = {},
                .unwanted = {},
                .finding = {}};
  std::vector<WeightSpec> wanted;
  try {
    wanted = list_wanted_weights(model_argument(in.files));
    in.checked = true;
  } catch (const Error& e) {
    if (!in.on_disk()) throw;
    in.finding = e.what();
    in.checked = e.kind() != ErrorKind::kUnsupported;
  }
  in.checkpoint = in.on_disk() ? open_checkpoint(in.files.weights) : dummy_checkpoint(wanted, 0);
  in.weights = list_weights(*in.checkpoint);
  if (!in.checked || !in.finding.empty()) return in;
  try {
    match_weights(*in.checkpoint, wanted);
  } catch (const Error& e) {
    in.finding = e.what();
  }
  std::set<std::string_view> names;
  for (const WeightSpec& spec : wanted) names.insert(spec.name);
  for (const WeightInfo& w : in.weights)
    if (!names.contains(w.name)) in.unwanted.push_back(w.name);
  return in;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// "model.layers.7.mlp.router.bias" -> "model.layers.*.mlp.router.bias"
std::string without_layer(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const size_t end = name.find('.', dot + 1);
    const std::string part = name.substr(dot + 1, end == std::string::npos ? end : end - dot - 1);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos)
      return name.substr(0, dot + 1) + "*" + (end == std::string::npos ? "" : name.substr(end));
  }
  return name;
}

// Rows of equal weights of different layers become one, unless `all`.
std::string weight_table(const Inspection& in, bool all) {
  struct Row {
    const WeightInfo* first;
    int64_t count = 0, bytes = 0;
  };
  std::map<std::string, Row> rows;
  for (const WeightInfo& w : in.weights) {
    const std::string key = (all ? w.name : without_layer(w.name)) + " " +
                            std::string(format_name(w.format)) + shape_text(w.shape);
    Row& row = rows.try_emplace(key, Row{&w}).first->second;
    ++row.count;
    row.bytes += w.bytes();
  }
  TextTable table({"weight", "format", "shape", ">times", ">bytes"});
  for (const auto& [key, row] : rows)
    table.add({row.count == 1 ? row.first->name : without_layer(row.first->name),
               std::string(format_name(row.first->format)), shape_text(row.first->shape),
               std::to_string(row.count), with_commas(row.bytes)});
  return table.plain();
}

struct FormatSum {
  int64_t weights = 0, elements = 0, bytes = 0;
};

std::map<std::string, FormatSum> sum_formats(const Inspection& in) {
  std::map<std::string, FormatSum> sums;
  for (const WeightInfo& w : in.weights) {
    FormatSum& sum = sums[std::string(format_name(w.format))];
    ++sum.weights;
    sum.elements += num_elements(w);
    sum.bytes += w.bytes();
  }
  return sums;
}

std::string format_table(const Inspection& in) {
  TextTable table({"format", ">weights", ">elements", ">bytes", ">bits each"});
  FormatSum all;
  const auto add = [&](const std::string& name, const FormatSum& s) {
    const double bits =
        8 * static_cast<double>(s.bytes) / static_cast<double>(std::max<int64_t>(1, s.elements));
    table.add({name, with_commas(s.weights), with_commas(s.elements), with_commas(s.bytes),
               fixed_digits(bits, 2)});
  };
  for (const auto& [name, sum] : sum_formats(in)) {
    add(name, sum);
    all = {all.weights + sum.weights, all.elements + sum.elements, all.bytes + sum.bytes};
  }
  add("all", all);
  return table.plain();
}

void print_text(const Inspection& in, bool all) {
  std::string text = "config   " + in.files.config.origin() + "\n";
  text += in.on_disk() ? "weights  " + in.files.weights.string() + "\n\n"
                       : "weights  none here: this is what the config asks for\n\n";
  text += weight_table(in, all) + "\n" + format_table(in) + "\n";
  text += with_commas(std::ssize(in.checkpoint->tensors())) + " tensors.";
  if (!in.checked) text += " Not checked against the config: " + in.finding;
  if (in.checked && in.finding.empty() && in.on_disk())
    text += " Names, shapes and formats agree with the config.";
  text += "\n";
  for (const std::string& name : in.unwanted) text += "not used by this model: " + name + "\n";
  std::fputs(text.c_str(), stdout);
}

void print_json(const Inspection& in) {
  json out = {{"model", in.files.name},
              {"config", in.files.config.origin()},
              {"weights_on_disk", in.on_disk()},
              {"weights_directory", in.files.weights.string()},
              {"num_tensors", in.checkpoint->tensors().size()},
              {"unused", in.unwanted},
              {"weights", json::array()},
              {"formats", json::object()}};
  out["agrees"] = in.checked ? json(in.finding.empty()) : json(nullptr);
  out["finding"] = in.finding.empty() ? json(nullptr) : json(in.finding);
  int64_t bytes = 0, elements = 0;
  for (const WeightInfo& w : in.weights) {
    out["weights"].push_back({{"name", w.name},
                              {"format", format_name(w.format)},
                              {"shape", w.shape},
                              {"bytes", w.bytes()}});
    bytes += w.bytes();
    elements += num_elements(w);
  }
  for (const auto& [name, sum] : sum_formats(in))
    out["formats"][name] = {
        {"weights", sum.weights}, {"elements", sum.elements}, {"bytes", sum.bytes}};
  out["total_bytes"] = bytes;
  out["total_elements"] = elements;
  std::puts(out.dump(2).c_str());
}

void run_inspect(const Options& options) {
  const Inspection in = inspect(options);
  if (options.json) {
    print_json(in);
  } else {
    print_text(in, options.all);
  }
  if (std::fflush(stdout) != 0)
    throw Error(ErrorKind::kUsage, "standard output: cannot be written");
  if (in.checked && !in.finding.empty()) throw Error(ErrorKind::kCheckpoint, in.finding);
}

}  // namespace

void add_inspect(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a checkpoint's weights and formats, and check them against its config");
  command
      ->add_option("MODEL", options->model,
                   "directory, config.json, or repo id in the Hugging Face cache")
      ->required();
  command->add_option("--revision", options->revision, "branch, tag or commit of a repo id")
      ->capture_default_str();
  command->add_flag("--all", options->all, "one line for every weight, not one for all layers");
  command->add_flag("--json", options->json, "every weight, as JSON");
  command->callback([options] { run_inspect(*options); });
}

}  // namespace nibble::cli
