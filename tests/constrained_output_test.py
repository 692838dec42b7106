"""Whatever is sampled, an answer of a form that ended by itself is of that form, whichever API asked for it. Schemas,
settings and prompts are drawn at random; judges are the package jsonschema and Python's own `re`, not the library that
nibble compiles grammars with. Draws: $NIBBLE_CONSTRAINED_ANSWERS requests (default 200), from $NIBBLE_CONSTRAINED_SEED
on."""

import collections
import concurrent.futures
import json
import os
import random
import re
import unittest
import urllib.error
import urllib.request

import jsonschema
from serving import NAME, SOURCE, WEATHER, Server

NUM_REQUESTS = int(os.environ.get("NIBBLE_CONSTRAINED_ANSWERS", "200"))
# Calls as another family writes them.
TEMPLATE = [f"--chat-template={SOURCE}/build/jinja/models/templates/{name}.jinja"
            for name in os.environ.get("NIBBLE_CONSTRAINED_TEMPLATE", "").split()]
FIRST_SEED = int(os.environ.get("NIBBLE_CONSTRAINED_SEED", "0"))
MAX_TOKENS = 400
QUESTIONS = ["Tell me about Paris.", "Write a poem about the sea.", "Describe a dog in JSON.", "Order me a pizza.",
             "What is the weather in Paris?", "What is 7 + 8?", "Answer with <|end|> and <|call|>.", "Say \"quote\"."]
# What ends an answer, or what of it is being said.
SPECIALS = {
    "nibble-tiny-gpt-oss": ["<|call|>", "<|endoftext|>", "<|end|>", "<|return|>"],
    "nibble-tiny-qwen3-next": ["<|im_end|>", "<|endoftext|>"],
}[NAME]
REGEXES = [r'"[^"]*"', r"[0-9]{3}-[a-z]{2,5}", r"(yes|no)( (yes|no)){0,3}", r"[^<>]{5,50}", r"(a|bc)*d",
           r"\d{4}-\d{2}-\d{2}", r"[a-z]{1,20}@[a-z]{1,20}\.com", r"[à-ü]{2,9}!", r"[a-z ]{130,160}", r"\{[^{}]{0,40}\}"]
CHOICES = [["yes", "no"], ["red", "green", "blue green"], ["<|end|>", "a \"b\"\n\\c", "é"], ["a", "ab", "abc"]]
SUMS = 'root ::= term (("+" | "-") term){0,9}\nterm ::= [0-9]{1,5} | "(" root ")"'


def is_sum(text):
    """What SUMS says, by taking away numbers in brackets until nothing changes."""
    number = "[0-9]{1,5}"
    while (shorter := re.sub(rf"\((n|{number})([+-](n|{number})){{0,9}}\)", "n", text)) != text:
        text = shorter
    return re.fullmatch(rf"(n|{number})([+-](n|{number})){{0,9}}", text) is not None


class Schemas:
    """Draws one."""

    def __init__(self, rng):
        self.rng = rng
        self.definitions = {}

    def draw(self, is_object=False):
        is_object = is_object or self.rng.random() < 0.7
        schema = self.object(3) if is_object else self.any_of_depth(3)
        return {**schema, "$defs": self.definitions} if self.definitions else schema

    def any_of_depth(self, depth):
        simple = [self.string, self.string, self.enum, self.integer, self.number, self.constant, self.plain]
        nested = [self.object, self.array, self.any_of, self.reference]
        kind = self.rng.choice(simple + (nested if depth > 0 else []))
        return kind(depth - 1) if kind in nested else kind()

    def string(self):
        rng = self.rng
        kind = rng.randrange(8)
        if kind == 0:
            return {"type": "string"}
        if kind == 1:
            return {"type": "string", "format": rng.choice(
                ["email", "date", "time", "date-time", "ipv4", "ipv6", "uuid", "uri", "hostname", "json-pointer"])}
        if kind == 2:
            return {"type": "string", "minLength": rng.randrange(1, 5)}
        if kind < 5:
            least = rng.randrange(4)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(30)}
        return {"type": "string", "pattern": rng.choice(
            ["^[a-z]{1,12}$", "^[A-Z][a-z]*$", "^(foo|bar)+$", "^\\d{2}:\\d{2}$", "^[^\\\"]{0,9}$", "^[a-z]{1,150}$",
             "^(ab|c){130,140}$"])}

    def enum(self):
        values = ["red", "a \"b\"", "<|end|>", "é\n", 7, -1.5, True, None, ["x", 1], {"k": "v"}]
        return {"enum": self.rng.sample(values, self.rng.randrange(1, 5))}

    def constant(self):
        return {"const": self.rng.choice(["fixed", 12, {"a": [1, 2]}, None, "</s>"])}

    def plain(self):
        return {"type": self.rng.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}

    def integer(self):
        least = self.rng.randrange(-200, 200)
        bounds = [{}, {"minimum": least}, {"minimum": least, "maximum": least + self.rng.randrange(300)},
                  {"exclusiveMinimum": least, "exclusiveMaximum": least + 2 + self.rng.randrange(50)}]
        return {"type": "integer", **self.rng.choice(bounds)}

    def number(self):
        least = self.rng.randrange(-20, 20)
        return {"type": "number", **self.rng.choice([{}, {"minimum": least}, {"minimum": least, "maximum": least + 3.5}])}

    def array(self, depth):
        least = self.rng.randrange(3)
        bounds = self.rng.choice([{"maxItems": 4}, {"minItems": least, "maxItems": least + self.rng.randrange(4)}])
        if self.rng.random() < 0.2:
            bounds = {"prefixItems": [self.any_of_depth(depth), self.any_of_depth(depth)], "items": False, "minItems": 2}
            return {"type": "array", **bounds}
        return {"type": "array", "items": self.any_of_depth(depth), **bounds}

    def any_of(self, depth):
        return {"anyOf": [self.any_of_depth(depth) for _ in range(self.rng.randrange(2, 4))]}

    def reference(self, depth):
        name = f"d{len(self.definitions)}"
        self.definitions[name] = {"type": "null"}  # its name is taken while it is drawn
        self.definitions[name] = self.any_of_depth(depth)
        return {"$ref": f"#/$defs/{name}"}

    def object(self, depth):
        names = self.rng.sample(["name", "age", "tags", "a \"b\"", "é", "note", "x", "<|call|>"], self.rng.randrange(0, 5))
        properties = {name: self.any_of_depth(depth) for name in names}
        required = [name for name in names if self.rng.random() < 0.7]
        more = self.rng.choice([False, False, False, True, {"type": "integer"}])
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": more}


def judge_json(schema):
    validator = jsonschema.Draft202012Validator(schema)

    def judge(text):
        try:
            validator.validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            return str(error).splitlines()[0]
        return None
    return judge


def judge_by(is_good):
    return lambda text: None if is_good(text) else "it is not of the form"


class Refused(Exception):
    """What the server said instead of an answer."""


class Client:
    def __init__(self, server):
        self.server = server

    def send(self, path, body):
        request = urllib.request.Request(self.server.url + path, json.dumps({"model": NAME, **body}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.read().decode()) from error
        with answer:
            if not body.get("stream"):
                return json.load(answer)
            lines = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
        events = [json.loads(line) for line in lines if line != b"[DONE]"]
        if "error" in events[-1] or events[-1].get("type") == "response.failed":
            raise Refused(events[-1])
        return events

    def id_of(self, special):
        [token] = self.send("/tokenize", {"prompt": special, "add_special_tokens": False})["tokens"]
        return token

    # Each returns [(content, [arguments of calls], ended by itself)], one for each choice.

    def chat(self, body):
        reply = self.send("/v1/chat/completions", body)
        answers = collections.defaultdict(lambda: ["", [], ""])
        for event in reply if body["stream"] else [reply]:
            for choice in event["choices"]:
                answer, said = answers[choice["index"]], choice.get("delta") or choice.get("message", {})
                answer[0] += said.get("content") or ""
                for call in said.get("tool_calls", []):
                    if call.get("id"):
                        answer[1].append("")
                    answer[1][-1] += call["function"]["arguments"]
                answer[2] = choice["finish_reason"] or answer[2]
        return [(text, calls, end in ("stop", "tool_calls")) for text, calls, end in answers.values()]

    def completions(self, body):
        reply = self.send("/v1/completions", body)
        answers = collections.defaultdict(lambda: ["", ""])
        for event in reply if body["stream"] else [reply]:
            for choice in event["choices"]:
                answers[choice["index"]][0] += choice["text"]
                answers[choice["index"]][1] = choice["finish_reason"] or answers[choice["index"]][1]
        return [(text, [], end == "stop") for text, end in answers.values()]

    def responses(self, body):
        reply = self.send("/v1/responses", body)
        if body["stream"]:
            text = "".join(event["delta"] for event in reply if event["type"] == "response.output_text.delta")
            reply = reply[-1]["response"]
        items = reply["output"]
        whole = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        if body["stream"] and text != whole:
            raise AssertionError(f"streamed {text!r}, but in all {whole!r}")
        calls = [item["arguments"] for item in items if item["type"] == "function_call"]
        return [(whole, calls, reply["status"] == "completed")]

    def messages(self, body):
        reply = self.send("/v1/messages", body)
        if not body["stream"]:
            text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
            calls = [json.dumps(block["input"]) for block in reply["content"] if block["type"] == "tool_use"]
            return [(text, calls, reply["stop_reason"] in ("end_turn", "tool_use"))]
        text, calls, reason = "", [], None
        for event in reply:
            if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
                calls.append("")
            delta = event.get("delta", {})
            text += delta.get("text", "")
            if "partial_json" in delta:
                calls[-1] += delta["partial_json"]
            reason = delta.get("stop_reason", reason)
        return [(text, calls, reason in ("end_turn", "tool_use"))]


class Draw:
    """One request at random: which API, what it asks for, and who judges its content and its calls."""

    def __init__(self, seed, special_ids):
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.api = rng.choice(["chat", "chat", "completions", "responses", "messages"])
        self.judge = self.judge_call = None
        self.may_call = False
        self.body = {"temperature": rng.choice([0, 0.3, 1, 1]), "stream": rng.random() < 0.5}
        question = rng.choice(QUESTIONS)
        {"chat": self.make_chat, "completions": self.make_completion, "responses": self.make_response,
         "messages": self.make_message}[self.api](question)
        if self.api in ("chat", "completions"):
            self.add_sampling(special_ids)

    def add_sampling(self, special_ids):
        rng = self.rng
        self.body |= {"seed": self.seed, "max_tokens": MAX_TOKENS, "n": rng.choice([1, 1, 3]),
                      "temperature": rng.choice([0, 0.3, 1, 1, 2])}
        for name, value in [("presence_penalty", 1.5), ("frequency_penalty", 1), ("repetition_penalty", 1.3)]:
            if rng.random() < 0.15:
                self.body[name] = value
        if rng.random() < 0.4:
            self.body["logit_bias"] = {str(special_ids[name]): 100 for name in rng.sample(SPECIALS, rng.randrange(1, len(SPECIALS)))}
        if rng.random() < 0.1:
            self.body["min_tokens"] = 20

    def schema(self):
        schema = Schemas(self.rng).draw()
        self.judge = judge_json(schema)
        return schema

    def add_lenient_tool(self, in_form):
        """At times: a call is held to what can be kept of its schema, and the content to all of its own."""
        if self.rng.random() < 0.6:
            return
        self.may_call = True
        parameters = {"type": "object", "properties": {"kind": {"type": "string", "not": {"const": "none"}},
                                                       "price": {"type": "number", "multipleOf": 0.5}}, "required": ["kind"]}
        self.body |= {"tools": [in_form({"name": "order_pizza", "description": "Orders a pizza."}, parameters)]}

    def draw_form(self):
        """As structured_outputs has it."""
        kind = self.rng.choice(["json", "json", "json_object", "regex", "choice", "grammar"])
        if kind == "json":
            return {"json": self.schema()}
        if kind == "json_object":
            self.judge = judge_json({"type": "object"})
            return {"json_object": True}
        if kind == "regex":
            pattern = self.rng.choice(REGEXES)
            self.judge = judge_by(lambda text: re.fullmatch(pattern, text, re.ASCII) is not None)
            return {"regex": pattern}
        if kind == "choice":
            choices = self.rng.choice(CHOICES)
            self.judge = judge_by(lambda text: text in choices)
            return {"choice": choices}
        self.judge = judge_by(is_sum)
        return {"grammar": SUMS}

    def draw_tools(self):
        """A strict one in OpenAI's form. Whether it is named, and whether it may be called more than once, is drawn too."""
        parameters = Schemas(self.rng).draw(is_object=True)
        self.judge_call = judge_json(parameters)
        self.is_named, self.is_once = self.rng.random() < 0.5, self.rng.random() < 0.5
        return {"type": "function", "function": {"name": "order_pizza", "description": "Orders a pizza.", "strict": True,
                                                 "parameters": parameters}}

    def make_chat(self, question):
        self.body["messages"] = [{"role": "user", "content": question}]
        kind = self.rng.randrange(4)
        if kind == 0:
            self.body["response_format"] = {"type": "json_schema", "json_schema": {
                "name": "answer", "strict": True, "schema": self.schema()}}
            self.add_lenient_tool(lambda tool, parameters: {"type": "function", "function": {**tool, "parameters": parameters}})
        elif kind == 1:
            tool = self.draw_tools()
            named = {"type": "function", "function": {"name": "order_pizza"}}
            self.body |= {"tools": [tool], "tool_choice": named if self.is_named else "required",
                          "parallel_tool_calls": not self.is_once}
        else:
            self.body["structured_outputs"] = self.draw_form()

    def make_completion(self, question):
        self.body |= {"prompt": question, "structured_outputs": self.draw_form()}

    def make_response(self, question):
        self.body |= {"input": question, "max_output_tokens": MAX_TOKENS}
        if self.rng.random() < 0.7:
            self.body["text"] = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": self.schema()}}
            self.add_lenient_tool(lambda tool, parameters: {"type": "function", **tool, "parameters": parameters})
        else:
            tool = self.draw_tools()["function"]
            named = {"type": "function", "name": "order_pizza"}
            self.body |= {"tools": [{"type": "function", **tool}], "tool_choice": named if self.is_named else "required",
                          "parallel_tool_calls": not self.is_once}

    def make_message(self, question):
        self.body |= {"messages": [{"role": "user", "content": question}], "max_tokens": MAX_TOKENS}
        if self.rng.random() < 0.7:
            self.body["output_config"] = {"format": {"type": "json_schema", "schema": self.schema()}}
            self.add_lenient_tool(lambda tool, parameters: {**tool, "input_schema": parameters})
        else:
            tool = self.draw_tools()["function"]
            choice = {"type": "tool", "name": "order_pizza"} if self.is_named else {"type": "any"}
            self.body |= {"tools": [{"name": tool["name"], "input_schema": tool["parameters"], "strict": True}],
                          "tool_choice": {**choice, "disable_parallel_tool_use": self.is_once}}

    def faults(self, content, calls):
        if self.may_call and calls:
            judge = judge_json({"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string"}}})
            return [fault for fault in [content and "it has both", *map(judge, calls)] if fault]
        if self.judge_call is None:
            return [fault for fault in [calls and "it has calls", self.judge(content)] if fault]
        most = 1 if self.is_named or self.is_once or NAME == "nibble-tiny-gpt-oss" else len(calls)
        if not 1 <= len(calls) <= most or content:
            return [f"it has {len(calls)} calls and the content {content!r}"]
        return [fault for fault in map(self.judge_call, calls) if fault]


class ConstrainedOutputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(*TEMPLATE))
        cls.client = Client(cls.server)
        cls.special_ids = {name: cls.client.id_of(name) for name in SPECIALS}

    def in_parallel(self, work, items):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, items))

    def test_what_ends_by_itself_is_of_its_form(self):
        def run(seed):
            draw = Draw(seed, self.special_ids)
            try:
                return draw, getattr(self.client, draw.api)(draw.body)
            except Refused as error:
                return draw, str(error)

        ended, all_answers, failures = collections.Counter(), collections.Counter(), []
        for draw, answers in self.in_parallel(run, range(FIRST_SEED, FIRST_SEED + NUM_REQUESTS)):
            if isinstance(answers, str):
                failures.append((draw.seed, draw.api, answers, draw.body))
                continue
            for content, calls, is_ended in answers:
                all_answers[draw.api] += 1
                ended[draw.api] += is_ended
                for fault in draw.faults(content, calls) if is_ended else []:
                    failures.append((draw.seed, draw.api, fault, content, calls, draw.body))
        print("ended by themselves:", {api: f"{ended[api]} of {all_answers[api]}" for api in all_answers}, flush=True)
        for failure in failures[:20]:
            print(json.dumps(failure, ensure_ascii=False)[:2000], flush=True)
        self.assertEqual(collections.Counter(failure[1] for failure in failures), {})
        for api, count in all_answers.items():
            self.assertGreater(ended[api], count / 2, api)

    def test_each_part_is_as_strict_as_it_says(self):
        """A strict form beside a lenient tool is refused for what would not be kept to, and not for what the tool says."""
        unkept = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.5}}, "required": ["a"]}
        fine = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}

        def chat(form, is_strict, tools):
            return self.client.chat({
                "messages": question, "max_tokens": 200, "stream": False, "tools": [{"type": "function", "function": {
                    "name": name, "parameters": schema, "strict": strict}} for name, schema, strict in tools],
                "response_format": {"type": "json_schema", "json_schema": {"name": "f", "strict": is_strict, "schema": form}}})

        def responses(form, is_strict, tools):
            return self.client.responses({
                "input": question, "max_output_tokens": 200, "stream": False, "tools": [{
                    "type": "function", "name": name, "parameters": schema, "strict": strict} for name, schema, strict in tools],
                "text": {"format": {"type": "json_schema", "name": "f", "strict": is_strict, "schema": form}}})

        def messages(form, _, tools):
            return self.client.messages({
                "messages": question, "max_tokens": 200, "stream": False, "tools": [{
                    "name": name, "input_schema": schema, "strict": strict} for name, schema, strict in tools],
                "output_config": {"format": {"type": "json_schema", "schema": form}}})

        question = [{"role": "user", "content": "Order me a pizza."}]
        for api in [chat, responses, messages]:
            for case, is_good in [
                    ((fine, True, [("f", unkept, False), ("g", fine, True)]), True),
                    ((fine, True, [("f", unkept, True), ("g", fine, False)]), False),
                    ((unkept, True, [("f", fine, False)]), False), ((unkept, True, [("f", fine, True)]), False)]:
                with self.subTest(api=api.__name__, case=case):
                    if is_good:
                        [(content, calls, ended)] = api(*case)
                        self.assertTrue(calls or not ended or judge_json(fine)(content) is None, content)
                    else:
                        with self.assertRaisesRegex(Refused, "multipleOf"):
                            api(*case)
        with self.assertRaisesRegex(Refused, "multipleOf"):
            self.client.completions({"prompt": "Hello", "max_tokens": 200, "structured_outputs": {"json": unkept}, "stream": False})

    def test_a_bias_does_not_end_a_string(self):
        """Every end, in reach of every token."""
        def run(case):
            form, judge, special, seed = case
            return case, self.client.chat({
                "messages": [{"role": "user", "content": "Tell me about Paris."}], "stream": False, "max_tokens": 200,
                "seed": seed, "logit_bias": {str(self.special_ids[special]): 100}, "structured_outputs": form})
        quoted = ({"regex": '"[^"]{20,40}"'}, judge_by(lambda text: re.fullmatch('"[^"]{20,40}"', text) is not None))
        schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 9, "maxLength": 30}},
                  "required": ["a"], "additionalProperties": False}
        forms = [quoted, ({"json": schema}, judge_json(schema))]
        cases = [(*form, special, seed) for form in forms for special in SPECIALS for seed in range(3)]
        num_ended = 0
        for (_, judge, special, seed), [(content, calls, ended)] in self.in_parallel(run, cases):
            num_ended += ended
            if ended:
                self.assertIsNone(judge(content), (special, seed, content))
        self.assertGreater(num_ended, len(cases) / 2)

    def test_no_call_without_an_offer(self):
        """A model that is told of tools in words, or was shown a call before, would like to make one."""
        pizza = {"type": "function", "function": {"name": "order_pizza", "description": "Orders a pizza.", "parameters": {
            "type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}}}
        told = ("# Tools\n\n## functions\n\nnamespace functions {\n\n// Get the weather of a city.\n"
                "type get_weather = (_: {\n// The city\ncity: string,\n}) => any;\n\n} // namespace functions")
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
        history = [{"role": "user", "content": "What is the weather in Rome?"},
                   {"role": "assistant", "content": "", "tool_calls": [call]},
                   {"role": "tool", "tool_call_id": "c1", "content": '{"temperature": 21}'},
                   {"role": "assistant", "content": "It is 21 degrees in Rome."}]
        weather = {"role": "user", "content": "What is the weather in Paris?"}
        chats = [[{"role": "user", "content": "order me a pizza"}], [*history, weather],
                 [{"role": "developer", "content": told}, weather], [{"role": "developer", "content": told}, *history, weather]]
        offers = [{}, {"tools": [pizza], "tool_choice": "none"}, {"tools": [WEATHER], "tool_choice": "none"}]

        def run(case):
            seed, messages, offer = case
            return self.client.chat({"messages": messages, **offer, "stream": seed % 2 == 0, "seed": seed,
                                     "temperature": [0, 1, 2][seed % 3], "max_tokens": 300})
        cases = [(seed, messages, offer) for seed in range(10) for messages in chats for offer in offers]
        for case, [(content, calls, ended)] in zip(cases, self.in_parallel(run, cases)):
            self.assertEqual(calls, [], case)
            if ended:
                self.assertNotIn("functions.get_weather", content[:40])


if __name__ == "__main__":
    unittest.main()
