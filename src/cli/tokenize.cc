// nibble tokenize: text to token ids on standard input and output, and back.
#include <CLI/App.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/token_ids.h"
#include "io/hub.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string model, revision = "main";
  std::string text;
  bool has_text = false;  // else it is on standard input
  bool jsonl = false, decode = false, specials = false;
};

// A tokenizer.json, a directory with one (a model's or not), or a repo id in the cache.
Tokenizer open_tokenizer(const Options& options) {
  if (std::filesystem::exists(options.model)) return Tokenizer::load(options.model);
  const ModelFiles files = find_model(options.model, options.revision);
  if (files.directory.empty()) {
    throw Error(ErrorKind::kNotFound, options.model + ": has no tokenizer here; download the " +
                                          "model, or name a tokenizer.json");
  }
  return Tokenizer::load(files.directory.string());
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (!tokenizer.decodable(id)) {
      throw Error(ErrorKind::kUsage, "the model has no token " + std::to_string(id));
    }
  }
  return tokenizer.decode(ids);
}

// One line {"text": ...} gives {"ids": [...]}, or the other way round.
std::string convert_line(const Tokenizer& tokenizer, const Options& options,
                         const std::string& line) {
  const json in = json::parse(line);
  if (options.decode) {
    return json{{"text", decode(tokenizer, in.at("ids").get<std::vector<int32_t>>())}}.dump();
  }
  const Specials specials = options.specials ? Specials::kRecognize : Specials::kAsText;
  return json{{"ids", tokenizer.encode(in.at("text").get<std::string>(), specials)}}.dump();
}

void convert_lines(const Tokenizer& tokenizer, const Options& options) {
  size_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    try {
      std::cout << convert_line(tokenizer, options, line) << '\n';
    } catch (const json::exception& e) {
      throw Error(ErrorKind::kUsage,
                  "standard input, line " + std::to_string(number) + ": expected " +
                      (options.decode ? "{\"ids\": [numbers]}" : "{\"text\": ...}") + ": " +
                      e.what());
    } catch (const Error& e) {
      throw Error(e.kind(), "standard input, line " + std::to_string(number) + ": " + e.what());
    }
  }
}

void convert_all(const Tokenizer& tokenizer, const Options& options) {
  const std::string in =
      options.has_text ? options.text : std::string(std::istreambuf_iterator<char>(std::cin), {});
  if (options.decode) {
    std::cout << decode(tokenizer,
                        parse_token_ids(in, options.has_text ? "TEXT" : "standard input"));
    return;
  }
  const Specials specials = options.specials ? Specials::kRecognize : Specials::kAsText;
  const char* separator = "";
  for (const int32_t id : tokenizer.encode(in, specials)) {
    std::cout << std::exchange(separator, " ") << id;
  }
  std::cout << '\n';
}

void tokenize(const Options& options) {
  if (options.jsonl && options.has_text) {
    throw Error(ErrorKind::kUsage, "--jsonl reads lines of standard input: leave TEXT out");
  }
  std::ios::sync_with_stdio(false);
  const Tokenizer tokenizer = open_tokenizer(options);
  if (options.jsonl) {
    convert_lines(tokenizer, options);
  } else {
    convert_all(tokenizer, options);
  }
  if (!std::cout.flush()) throw Error(ErrorKind::kUsage, "standard output: cannot be written");
}

}  // namespace

void add_tokenize(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids, or back");
  command
      ->add_option("MODEL", options->model,
                   "directory, repo id in the Hugging Face cache, or a tokenizer.json")
      ->required();
  const CLI::Option* text = command->add_option(
      "TEXT", options->text, "the text, or with --decode the ids; without it, standard input");
  command->add_option("--revision", options->revision, "branch, tag or commit of a repo id");
  command->add_flag("--jsonl,--json", options->jsonl,
                    "lines {\"text\": ...} in, lines {\"ids\": [...]} out; without it, all of the "
                    "input is one text");
  command->add_flag("--decode", options->decode, "ids in, text out");
  command->add_flag("--specials", options->specials,
                    "special tokens spelled out in the text become their ids");
  command->callback([options, text] {
    options->has_text = text->count() > 0;
    tokenize(*options);
  });
}

}  // namespace nibble::cli
