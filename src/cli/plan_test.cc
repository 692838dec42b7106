#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run_for_test.h"
#include "engine/engine.h"
#include "models/draft_head.h"
#include "models/model.h"

namespace nibble::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json plan_json(const std::vector<std::string>& args) {
  std::vector<std::string> all = {"plan"};
  all.insert(all.end(), args.begin(), args.end());
  all.push_back("--json");
  const CommandResult result = run_command(all);
  EXPECT_EQ(result.status, 0) << result.err;
  return json::parse(result.out);
}

int64_t part_bytes(const json& plan, const std::string& name, const char* key) {
  for (const json& part : plan["weights"])
    if (part["part"] == name) return part[key];
  ADD_FAILURE() << "no part " << name;
  return -1;
}

// The byte budgets of both published checkpoints, computed from their shapes by hand.
TEST(Plan, GptOss120bIsCountedToTheByte) {
  const json plan = plan_json({"openai/gpt-oss-120b", "--device", "gb10"});
  EXPECT_EQ(part_bytes(plan, "embed", "bytes"), 1'158'266'880);
  EXPECT_EQ(part_bytes(plan, "unembed", "bytes"), 1'158'266'880);
  EXPECT_EQ(part_bytes(plan, "attention", "bytes"), 1'911'610'368);
  EXPECT_EQ(part_bytes(plan, "router", "bytes"), 26'551'296);
  EXPECT_EQ(part_bytes(plan, "norms", "bytes"), 420'480);
  EXPECT_EQ(part_bytes(plan, "experts", "bytes"), 60'993'699'840);
  EXPECT_EQ(part_bytes(plan, "experts", "bytes_per_token"), 1'906'053'120);
  EXPECT_EQ(plan["weight_bytes"], 65'248'815'744);
  EXPECT_EQ(plan["weight_bytes_per_token"], 5'002'907'904);
  EXPECT_EQ(plan["parameters"], 116'829'156'672);
  EXPECT_EQ(plan["kv_bytes_per_token"], 36'864);
  EXPECT_EQ(plan["kv_window_bytes"], 4'718'592);
  EXPECT_TRUE(plan["memory"]["fits"]);
  EXPECT_NEAR(plan["ceilings"][0]["weights_only_tokens_per_s_nominal"], 54.57, 0.005);
}

TEST(Plan, GptOss20bIsCountedToTheByte) {
  const json plan = plan_json({"openai/gpt-oss-20b", "--device", "gb10"});
  EXPECT_EQ(part_bytes(plan, "attention", "bytes"), 1'274'406'912);
  EXPECT_EQ(part_bytes(plan, "router", "bytes"), 4'425'216);
  EXPECT_EQ(part_bytes(plan, "norms", "bytes"), 282'240);
  EXPECT_EQ(part_bytes(plan, "experts", "bytes"), 10'165'616'640);
  EXPECT_EQ(plan["weight_bytes"], 13'761'264'768);
  EXPECT_EQ(plan["weight_bytes_per_token"], 3'708'089'088);
  EXPECT_EQ(plan["parameters"], 20'914'757'184);
  EXPECT_NEAR(plan["ceilings"][0]["weights_only_tokens_per_s_nominal"], 73.62, 0.005);
}

// A head of lmsys's shape for the 120b, of 8 key/value heads of 64 in one layer.
TEST(Plan, CountsAHead) {
  const std::string head = std::string(NIBBLE_SOURCE_DIR) + "/bench/heads/gpt-oss-120b.json";
  const std::vector<std::string> args = {"openai/gpt-oss-120b", "--device", "gb10"};
  std::vector<std::string> with = args;
  with.insert(with.end(),
              {"--speculative-config",
               R"({"method":"eagle3","num_speculative_tokens":2,"model":")" + head + "\"}"});
  const json plain = plan_json(args), drafts = plan_json(with);
  const DraftHeadInfo info = describe_draft_head({head}, "openai/gpt-oss-120b");
  const json& said = drafts["drafts"];
  EXPECT_EQ(said["weight_bytes"], info.model.weight_bytes);
  EXPECT_EQ(said["kv_bytes_per_token"], 2 * 8 * 64 * 2);
  EXPECT_EQ(drafts["memory"]["weight_bytes"].get<int64_t>() -
                plain["memory"]["weight_bytes"].get<int64_t>(),
            info.model.weight_bytes);
  const json &fits = drafts["memory"]["kv"], &fitted = plain["memory"]["kv"];
  for (size_t i = 0; i < fits.size(); ++i) {
    EXPECT_GE(fits[i]["bytes_per_sequence"].get<int64_t>() -
                  fitted[i]["bytes_per_sequence"].get<int64_t>(),
              fits[i]["context"].get<int64_t>() * 2 * 8 * 64 * 2);
    EXPECT_LE(fits[i]["sequences"], fitted[i]["sequences"]);
  }
  EXPECT_LT(fits[0]["sequences"], fitted[0]["sequences"]);
  // Three tokens meet 1 - (1 - 4 / 128)^3 of the experts where one meets 4 / 128, and a row of the
  // embedding each; the rest is read once. 233 GB/s are read.
  const double experts = 60'993'699'840;
  const double bytes = plain["ceilings"][0]["step_bytes"].get<double>() +
                       experts * (1 - std::pow(124.0 / 128, 3) - 4.0 / 128) + 2 * 2880 * 2 +
                       2 * said["bytes_per_draft"].get<double>();
  const json& one = said["ceilings"][0];
  EXPECT_NEAR(one["step_bytes"].get<double>(), bytes, 2);
  EXPECT_NEAR(one["tokens_per_s_if_all_come_true"].get<double>(), 3 * 233e9 / bytes, 0.01);
  EXPECT_NEAR(one["tokens_to_pay"].get<double>(),
              bytes / plain["ceilings"][0]["step_bytes"].get<double>(), 1e-6);
  EXPECT_FALSE(plain.contains("drafts"));
}

TEST(Plan, SaysWhatDraftsFromTheTextTake) {
  const auto says = [](const std::string& config) {
    return plan_json({"openai/gpt-oss-20b", "--device", "gb10", "--speculative-config",
                      config})["drafts"]["says"]
        .get<std::string>();
  };
  EXPECT_THAT(says(R"({"method":"ngram","num_speculative_tokens":3})"), HasSubstr("no memory"));
  EXPECT_THAT(says(R"({"method":"suffix","num_speculative_tokens":3})"),
              HasSubstr("16.0 MiB for these"));
}

TEST(Plan, SaysWhatFits) {
  const json small =
      plan_json({"openai/gpt-oss-120b", "--device", "gb10", "--memory-budget", "32G"});
  EXPECT_FALSE(small["memory"]["fits"]);
  const json h200 =
      plan_json({"openai/gpt-oss-120b", "--device", "h200", "--context", "8192,131072"});
  const json& kv = h200["memory"]["kv"];
  ASSERT_EQ(kv.size(), 2);
  const ModelInfo info = describe_model("openai/gpt-oss-120b");
  for (const json& row : kv) {
    const int64_t rest = h200["memory"]["left_for_kv_bytes"];
    const int32_t fits = row["sequences"];
    EXPECT_LE(Engine::kv_bytes_for(info, {}, row["context"], fits), rest);
    EXPECT_GT(Engine::kv_bytes_for(info, {}, row["context"], fits + 1), rest);
  }
}

TEST(Plan, PrintsForPeople) {
  const CommandResult result = run_command({"plan", "openai/gpt-oss-120b", "--device", "gb10"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("65,248,815,744"));
  EXPECT_THAT(result.out, HasSubstr("54.57 tokens/s at 273 GB/s"));
}

// gpt-oss-120b over two ranks: halves of what is cut, 1,472 and 1,408 of an expert's 2,880; router,
// norms and embedding on both. The ceiling is the slower rank's.
TEST(Plan, SaysWhatEachRankHolds) {
  const json one = plan_json({"openai/gpt-oss-120b", "--device", "gb10"});
  const json two =
      plan_json({"openai/gpt-oss-120b", "--device", "gb10", "--tensor-parallel-size", "2"});
  EXPECT_FALSE(one.contains("ranks"));
  ASSERT_EQ(two["ranks"].size(), 2);
  const auto bytes = [&](int rank, const char* key) {
    return two["ranks"][rank][key].get<int64_t>();
  };
  const int64_t more = 36 * 128 * (3 * 64 * 2880 / 2 * 17 / 16 + 2 * 64 * 2);  // tiles, biases
  // Biases of o and of down are the first rank's alone.
  const int64_t biases = 36 * (2 * 2880 + 128 * 2 * 2880);
  EXPECT_EQ(bytes(0, "weight_bytes") - bytes(1, "weight_bytes"), more + biases);
  int64_t both = 0;  // has the whole
  for (const json& part : one["weights"])
    if (const auto name = part["part"]; name == "embed" || name == "router" || name == "norms")
      both += part["bytes"].get<int64_t>();
  EXPECT_EQ(bytes(0, "weight_bytes") + bytes(1, "weight_bytes"),
            one["weight_bytes"].get<int64_t>() + both);
  EXPECT_EQ(bytes(0, "kv_heads"), 4);
  EXPECT_EQ(two["weight_bytes"], bytes(0, "weight_bytes"));
  EXPECT_NEAR(two["ceilings"][0]["weights_only_tokens_per_s_nominal"].get<double>(),
              273e9 / static_cast<double>(bytes(0, "weight_bytes_per_token")), 0.5);
  const std::vector<std::string> plan = {"plan", "openai/gpt-oss-120b", "--device", "gb10"};
  EXPECT_THAT(run_command(plan).out, HasSubstr("projected on a GB10"));
  EXPECT_THAT(run_command({plan[0], plan[1], plan[2], plan[3], "--tensor-parallel-size", "2"}).out,
              Not(HasSubstr("projected on a GB10")));
  EXPECT_THAT(run_command({"plan", "openai/gpt-oss-120b", "--device", "gb10",
                           "--tensor-parallel-size", "128"})
                  .err,
              HasSubstr("64 query heads are fewer than the ranks"));
}

// Delta nets, Mamba2 and shared experts are cut, too: what both ranks have is what lies beside
// them.
TEST(Plan, SaysWhatRanksHoldOfModelsWithStates) {
  for (const char* model :
       {"Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"}) {
    SCOPED_TRACE(model);
    const json one = plan_json({model, "--device", "gb10"});
    const json two = plan_json({model, "--device", "gb10", "--tensor-parallel-size", "2"});
    int64_t both = 0, weights = 0, states = 0;
    for (const json& part : one["weights"])
      if (const auto name = part["part"]; name == "embed" || name == "router" || name == "norms")
        both += part["bytes"].get<int64_t>();
    for (const json& rank : two["ranks"]) {
      weights += rank["weight_bytes"].get<int64_t>();
      states += rank["state_bytes"].get<int64_t>();
    }
    // Shared experts' gates and norms of single heads are on both: some hundred bytes a layer.
    const int64_t more = weights - one["weight_bytes"].get<int64_t>() - both;
    EXPECT_GE(more, 0);
    EXPECT_LE(more, 52 * 8192);
    EXPECT_EQ(states, one["state_bytes"].get<int64_t>());
    EXPECT_GT(states, 0);
  }
}

// A projection is the sum of its ops, each of which takes no less than what bounds it; it names the
// rows that the tables choose. More bytes a weight never make a step faster.
TEST(Plan, ProjectsOpByOp) {
  const auto project = [](const char* dense, const char* activations) {
    return plan_json({"openai/gpt-oss-120b", "--device", "gb10", "--streams", "1,16", "--tokens",
                      "512,2048", "--dense-format", dense, "--activations",
                      activations})["projection"];
  };
  const json fp8 = project("mxfp4", "fp8"), bf16 = project("bf16", "auto");
  ASSERT_EQ(fp8["steps"].size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    const json& step = fp8["steps"][i];
    double sum = 0;
    for (const json& op : step["ops"]) {
      sum += op["us"].get<double>();
      for (const char* key : {"memory_us", "tensor_us", "issue_us"})
        EXPECT_LE(op[key], op["us"]) << op["op"];
    }
    EXPECT_NEAR(sum, step["us"].get<double>(), 1e-6 * sum);
    EXPECT_LT(step["us"].get<double>(), bf16["steps"][i]["us"].get<double>());
  }
  // All experts' weights but the last layer's once: 59.3 GB at 233 GB/s take 254 ms, and a prompt
  // of 512 meets nearly all; 2.75 GB of one token 11.8 ms.
  const auto kernel = [](const json& step, const char* name) -> json {
    for (const json& op : step["ops"])
      if (op["op"] == name) return op["kernel"];
    return {};
  };
  EXPECT_GT(fp8["steps"][2]["us"], 254e3);
  EXPECT_GT(fp8["steps"][0]["us"], 11.8e3);
  EXPECT_LT(fp8["steps"][0]["us"], 1.3 * 11.8e3);
  EXPECT_EQ(fp8["steps"][0]["launches"], 218);
  EXPECT_TRUE(fp8["steps"][2]["launches"].is_null());
  EXPECT_EQ(kernel(fp8["steps"][3], "moe_up"), "sm121_w4a8_gemm");
  EXPECT_EQ(kernel(bf16["steps"][3], "moe_up"), "cuda_w4a16_gemm");
  EXPECT_EQ(kernel(bf16["steps"][3], "out_proj"), "cuda_bf16_gemm");
  const CommandResult text = run_command(
      {"plan", "openai/gpt-oss-120b", "--device", "gb10", "--tokens", "512", "--streams", "1"});
  EXPECT_THAT(text.out, HasSubstr("projected, not measured: SMs at 2.40 GHz, reads at 233 GB/s"));
  EXPECT_THAT(text.out, HasSubstr(" ms, 218 launches"));
  const CommandResult h200 =
      run_command({"plan", "openai/gpt-oss-20b", "--device", "h200", "--tokens", "512"});
  EXPECT_EQ(h200.status, 2);
  EXPECT_THAT(h200.err, HasSubstr("--tokens projects for --device gb10"));
}

TEST(Plan, RefusesWhatItDoesNotKnow) {
  const CommandResult device = run_command({"plan", "openai/gpt-oss-20b", "--device", "b200"});
  EXPECT_EQ(device.status, 2);
  EXPECT_THAT(device.err, HasSubstr("gb10, h200, cpu or auto"));
  EXPECT_EQ(run_command({"plan", "nobody/nothing", "--device", "gb10"}).status, 1);
  EXPECT_EQ(run_command({"plan"}).status, 2);
}

TEST(Doctor, ShowsMachineAndKernels) {
  const CommandResult result =
      run_command({"doctor", "openai/gpt-oss-20b", "--device", "cpu", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const json doctor = json::parse(result.out);
  EXPECT_EQ(doctor["device"], "cpu");
  EXPECT_GE(doctor["threads"], 1);
  size_t layers_with_attention = 0;
  EXPECT_GT(doctor["weight_bytes"].get<int64_t>(), int64_t{10} << 30);
  EXPECT_TRUE(doctor["resident_twice"].empty());
  EXPECT_FALSE(doctor.contains("graph_tokens"));  // of GPUs
  for (const json& row : doctor["kernels"]) {
    EXPECT_FALSE(row["kernel"].get<std::string>().empty());
    if (row["op"] == "attention") layers_with_attention += row["layers"].size();
  }
  EXPECT_EQ(layers_with_attention, 24);
  const CommandResult table = run_command({"doctor", "openai/gpt-oss-20b", "--device", "cpu"});
  const std::string kernels = table.out.substr(table.out.find("\nop "));
  EXPECT_THAT(kernels, HasSubstr("better ones, and why not"));
  std::istringstream lines(kernels);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const CommandResult text = run_command({"doctor"});
  EXPECT_THAT(text.out, HasSubstr("threads"));
}

// The kernels of a GPU that is not here, and what serve would refuse on it.
TEST(Doctor, ShowsAGpuThatIsNotHere) {
  const auto doctor = [](std::vector<std::string> flags) {
    std::vector<std::string> args = {"doctor", "openai/gpt-oss-120b"};
    args.insert(args.end(), flags.begin(), flags.end());
    return run_command(args);
  };
  const CommandResult result = doctor({"--device", "h200", "--dense-format", "mxfp4", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["graph_tokens"], 256);
  EXPECT_EQ(json::parse(result.out)["most_graphs"], 1024);
  EXPECT_THAT(doctor({"--device", "gb10"}).out, HasSubstr("each matrix once"));
  const CommandResult int8 = doctor({"--device", "h200", "--activations", "int8"});
  EXPECT_EQ(int8.status, 1);
  EXPECT_THAT(int8.err, HasSubstr("--activations int8 is for CPUs"));
  const CommandResult fp8 = doctor({"--device", "gb10", "--activations", "fp8"});
  EXPECT_EQ(fp8.status, 0) << fp8.err;
  EXPECT_THAT(fp8.out, HasSubstr("sm121_w4a8_gemm"));
  EXPECT_EQ(doctor({"--device", "h200", "--activations", "fp8", "--exact"}).status, 2);
  const CommandResult fp4 = doctor({"--device", "gb10", "--activations", "fp4"});
  EXPECT_EQ(fp4.status, 0) << fp4.err;
  EXPECT_THAT(fp4.out, HasSubstr("sm121_w4a4_gemm"));
  const CommandResult hopper = doctor({"--device", "h200", "--activations", "fp4"});
  EXPECT_EQ(hopper.status, 1);
  EXPECT_THAT(hopper.err, HasSubstr("which Hopper lacks: say fp8"));
}

TEST(Cli, RefusesOnCpusWhatIsForGpus) {
  for (const char* flag : {"--enable-layerwise-nvtx-tracing", "--profile"}) {
    const CommandResult result = run_command(
        {"bench", "openai/gpt-oss-20b", "--load-format", "dummy", "--device", "cpu", flag});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("is for GPUs"));
  }
}

TEST(Cli, UnknownLogLevelsSilenceNothing) {
  setenv("NIBBLE_LOG", "loud", 1);
  const CommandResult result = run_command({"--version"});
  unsetenv("NIBBLE_LOG");
  EXPECT_THAT(result.err, HasSubstr("NIBBLE_LOG=loud: expected debug"));
}

TEST(Cli, BadCommandsSayHowToGoOn) {
  EXPECT_EQ(run_command({}).status, 2);
  EXPECT_EQ(run_command({"frobnicate"}).status, 2);
  EXPECT_EQ(run_command({"--help"}).status, 0);
  EXPECT_THAT(run_command({"--version"}).out, HasSubstr("nibble 0."));
}

}  // namespace
}  // namespace nibble::cli
