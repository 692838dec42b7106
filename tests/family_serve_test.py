"""`nibble serve DIR` of Qwen3, Qwen3-MoE and Llama 3 checkpoints as their users have them: quantised weights, the
family's tokenizer and its own chat template. Weights are random: what is said is nonsense, that it is said is the test."""

import json
import random
import struct
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import SOURCE, WEATHER, Server

TEMPLATES = SOURCE / "build" / "jinja" / "models" / "templates"
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
               "<tool_response>", "</tool_response>"]
LLAMA_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                "<|eot_id|>", "<|python_tag|>"]
STOPS = ("<|im_end|>", "<|eot_id|>")
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
         "hidden_act": "silu", "rope_theta": 10000.0}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"]}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def byte_alphabet():
    """GPT-2's: a printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]


def tokenizer(special, split, is_llama):
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    added = [{"id": 256 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": t.startswith("<|")} for i, t in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    post = byte_level
    if is_llama:
        bos = {"SpecialToken": {"id": special[0], "type_id": 0}}
        post = {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, bos, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {special[0]: {"id": special[0], "ids": [256], "tokens": [special[0]]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None if is_llama else {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}, byte_level]},
            "post_processor": post, "decoder": {**byte_level, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": is_llama, "vocab": vocab, "merges": []}}


class Tensors:
    """Of one safetensors file."""

    def __init__(self):
        self.header, self.data, self.random = {}, bytearray(), random.Random(1)

    def add(self, name, dtype, shape, data):
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(self.data), len(self.data) + len(data)]}
        self.data += data

    def bf16(self, name, shape, deviation, mean=0.0):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [self.random.gauss(mean, deviation) for _ in range(count)]
        words = struct.unpack(f"<{count}I", struct.pack(f"<{count}f", *values))
        self.add(name, "BF16", shape, struct.pack(f"<{count}H", *(w >> 16 for w in words)))

    def linear(self, module, rows, cols, quantization):
        if quantization is MODELOPT:
            self.add(module + ".weight", "U8", [rows, cols // 2], self.random.randbytes(rows * cols // 2))
            self.add(module + ".weight_scale", "F8_E4M3", [rows, cols // 16], b"\x38" * (rows * cols // 16))
            self.add(module + ".weight_scale_2", "F32", [], struct.pack("<f", cols ** -0.5 / 2.9))
            self.add(module + ".input_scale", "F32", [], struct.pack("<f", 0.01))
        elif quantization is FP8:
            codes = bytes(b & 0xBF for b in self.random.randbytes(rows * cols))
            self.add(module + ".weight", "F8_E4M3", [rows, cols], codes)
            blocks = [(rows + 127) // 128, (cols + 127) // 128]
            self.add(module + ".weight_scale_inv", "F32", blocks,
                     struct.pack("<f", cols ** -0.5) * (blocks[0] * blocks[1]))
        else:
            self.bf16(module + ".weight", [rows, cols], cols ** -0.5)

    def write(self, file):
        header = json.dumps(self.header).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header + self.data)


def write_model(directory, config, special, split, template):
    vocab = 256 + len(special)
    config = {**SHAPE, "vocab_size": vocab, "eos_token_id": 256 + special.index(STOPS[config["model_type"] == "llama"]), **config}
    h, q, kv = config["hidden_size"], 128, 64
    t = Tensors()
    t.bf16("model.embed_tokens.weight", [vocab, h], 1)
    t.bf16("model.norm.weight", [h], 0.1, 1)
    if not config.get("tie_word_embeddings"):
        t.bf16("lm_head.weight", [vocab, h], h ** -0.5)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        quantization = config.get("quantization_config")
        t.bf16(p + "input_layernorm.weight", [h], 0.1, 1)
        t.bf16(p + "post_attention_layernorm.weight", [h], 0.1, 1)
        for name, rows, cols in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            t.linear(p + f"self_attn.{name}_proj", rows, cols, quantization)
        if config["model_type"] != "llama":
            t.bf16(p + "self_attn.q_norm.weight", [32], 0.1, 1)
            t.bf16(p + "self_attn.k_norm.weight", [32], 0.1, 1)
        mlps = [(p + "mlp.", config["intermediate_size"])]
        if "num_experts" in config:
            t.bf16(p + "mlp.gate.weight", [config["num_experts"], h], 0.25)
            mlps = [(p + f"mlp.experts.{e}.", config["moe_intermediate_size"]) for e in range(config["num_experts"])]
        for mlp, width in mlps:
            t.linear(mlp + "gate_proj", width, h, quantization)
            t.linear(mlp + "up_proj", width, h, quantization)
            t.linear(mlp + "down_proj", h, width, quantization)
    t.write(directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(special, split, config["model_type"] == "llama")))
    marks = {"bos_token": special[0], "eos_token": STOPS[config["model_type"] == "llama"]}
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template.read_text(), **marks}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))


def write_qwen3_5(directory, template):
    """As its repos have it: what sees images beside the text part, a delta net and gated attention."""
    special, hidden, key, value = QWEN_TOKENS, 64, 32, 48
    text = {**{k: v for k, v in SHAPE.items() if k != "rope_theta"}, "model_type": "qwen3_5_text",
            "vocab_size": 256 + len(special), "eos_token_id": 256 + special.index("<|im_end|>"),
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "attn_output_gate": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    t = Tensors()
    p = "model.language_model."
    t.bf16(p + "embed_tokens.weight", [text["vocab_size"], hidden], 1)
    t.bf16(p + "norm.weight", [hidden], 0.1)
    t.bf16("lm_head.weight", [text["vocab_size"], hidden], hidden ** -0.5)
    t.bf16("mtp.norm.weight", [hidden], 0.1)
    for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "merger.norm.weight"):
        t.bf16("model.visual." + name, [8], 1)
    for layer in range(2):
        at = f"{p}layers.{layer}."
        t.bf16(at + "input_layernorm.weight", [hidden], 0.1)
        t.bf16(at + "post_attention_layernorm.weight", [hidden], 0.1)
        for name, rows, cols in (("gate", 96, hidden), ("up", 96, hidden), ("down", hidden, 96)):
            t.linear(at + f"mlp.{name}_proj", rows, cols, None)
    at = p + "layers.0.linear_attn."
    for name, rows in (("qkv", 2 * key + value), ("z", value), ("b", 4), ("a", 4)):
        t.linear(at + "in_proj_" + name, rows, hidden, None)
    t.linear(at + "out_proj", hidden, value, None)
    t.bf16(at + "conv1d.weight", [2 * key + value, 4], 0.5)
    t.header[at + "conv1d.weight"]["shape"] = [2 * key + value, 1, 4]
    for name, count, mean in (("A_log", 4, 0), ("dt_bias", 4, -3), ("norm.weight", 12, 1)):
        t.bf16(at + name, [count], 0.2, mean)
    at = p + "layers.1.self_attn."
    for name, rows, cols in (("q", 256, hidden), ("k", 64, hidden), ("v", 64, hidden), ("o", hidden, 128)):
        t.linear(at + name + "_proj", rows, cols, None)
    for name in ("q_norm", "k_norm"):
        t.bf16(at + name + ".weight", [32], 0.1)
    t.write(directory / "model.safetensors")
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
              "vision_config": {"model_type": "qwen3_5", "hidden_size": 8}, "image_token_id": 9, "tie_word_embeddings": False}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(special, QWEN_SPLIT, False)))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template.read_text()}))


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


QUESTION = {"messages": [{"role": "user", "content": "Wie spät ist es?"}], "max_tokens": 12, "temperature": 0.7, "seed": 3}


class FamilyServe(unittest.TestCase):
    def serve(self, config, special, split, template, prompt):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            write_model(directory, config, special, split, TEMPLATES / template)
            with Server(model=directory) as server:
                ids = post(server, "/tokenize", {"messages": QUESTION["messages"]})["tokens"]
                self.assertEqual(post(server, "/detokenize", {"tokens": ids})["prompt"], prompt)
                answer = post(server, "/v1/chat/completions", QUESTION)
                self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
                self.assertIn(answer["choices"][0]["finish_reason"], ("stop", "length"))
                self.assertGreater(answer["usage"]["completion_tokens"], 0)
                self.assertEqual(post(server, "/v1/chat/completions", QUESTION)["choices"], answer["choices"])
                forced = {**QUESTION, "max_tokens": 400, "tools": [WEATHER], "tool_choice": "required",
                          "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}}
                choice = post(server, "/v1/chat/completions", forced)["choices"][0]
                self.assertEqual([c["function"]["name"] for c in choice["message"]["tool_calls"]], ["get_weather"])
                if choice["finish_reason"] == "tool_calls":  # not cut short: random weights like blanks
                    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
                    self.assertIsInstance(arguments["city"], str)

    def test_qwen3_in_nvfp4(self):
        self.serve({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "quantization_config": MODELOPT},
                   QWEN_TOKENS, QWEN_SPLIT, "Qwen-Qwen3-0.6B.jinja",
                   "<|im_start|>user\nWie spät ist es?<|im_end|>\n<|im_start|>assistant\n")

    def test_qwen3_moe_in_fp8(self):
        self.serve({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 5,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True,
                    "quantization_config": FP8},
                   QWEN_TOKENS, QWEN_SPLIT, "Qwen-Qwen3-0.6B.jinja",
                   "<|im_start|>user\nWie spät ist es?<|im_end|>\n<|im_start|>assistant\n")

    def test_llama3_with_tied_embeddings(self):
        rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 2048}
        self.serve({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True,
                    "rope_scaling": rope},
                   LLAMA_TOKENS, QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|"), "meta-llama-Llama-3.1-8B-Instruct.jinja",
                   "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
                   "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWie spät ist es?"
                   "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")

    def test_qwen3_5_as_published_sees_no_images(self):
        picture = "data:image/png;base64,iVBORw0KGgo="
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        of_user = {"type": "image", "source": source}
        refused = [  # path, the message's content, what is said of it
            ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": picture}},
             "messages[0].content has a part of type image_url; nibble takes text only"),
            ("/v1/responses", {"type": "input_image", "image_url": picture},
             "input[0].content has a part of type input_image; nibble takes text only"),
            ("/v1/messages", of_user,
             "messages[0].content[1].type is image: nibble runs the text part of this model, which sees none"),
            ("/v1/messages/count_tokens", of_user,
             "messages[0].content[1].type is image: nibble runs the text part of this model, which sees none")]
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            write_qwen3_5(directory, TEMPLATES / "Qwen-Qwen3-0.6B.jinja")
            with Server(model=directory) as server:
                said = "3 tensors of what sees images (0.0 MB) stay on disk: nibble runs the text part"
                self.assertEqual([said in line for line in server.log].count(True), 1, server.log)
                for path, part, message in refused:
                    text = {"type": "input_text" if path.endswith("responses") else "text", "text": "What is it?"}
                    key = "input" if path.endswith("responses") else "messages"
                    body = {key: [{"role": "user", "content": [text, part]}], "max_tokens": 4}
                    with self.assertRaises(urllib.error.HTTPError) as failed:
                        post(server, path, body)
                    error = json.load(failed.exception)["error"]
                    self.assertEqual((failed.exception.code, error["message"]), (400, message))
                    post(server, path, {**body, key: [{"role": "user", "content": [text]}]})
                result = {"type": "tool_result", "tool_use_id": "t1", "content": [of_user]}
                call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
                turns = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [call]},
                         {"role": "user", "content": [result]}]
                self.assertEqual(post(server, "/v1/messages", {"messages": turns, "max_tokens": 4})["role"], "assistant")
                answer = post(server, "/v1/chat/completions", QUESTION)
                self.assertGreater(answer["usage"]["completion_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
