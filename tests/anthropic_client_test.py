"""Anthropic's own Python client against `nibble serve` with the shipped model."""

import json
import unittest

import anthropic
from serving import NAME, WEATHER, Server

PARIS = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0}  # the API has it, this client's methods do not
ANSWER = "The capital of France is Paris."
TOOL = {"name": "get_weather", "description": WEATHER["function"]["description"],
        "input_schema": WEATHER["function"]["parameters"]}


class AnthropicClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--api-key", "secret", "--served-model-name", NAME))
        cls.client = cls.enterClassContext(
            anthropic.Anthropic(base_url=cls.server.url, api_key="secret", max_retries=0))

    def ask(self, messages=PARIS, **fields):
        return self.client.messages.create(model=NAME, max_tokens=400, messages=messages, extra_body=GREEDY, **fields)

    def test_message(self):
        reply = self.ask(system="You are a helpful assistant.")
        self.assertEqual(reply.content[0].text, ANSWER)
        self.assertEqual(reply.stop_reason, "end_turn")
        self.assertGreater(reply.usage.output_tokens, 5)

    def test_stream_with_thinking(self):
        with self.client.messages.stream(model=NAME, max_tokens=1500, messages=PARIS,
                                         thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual([block.type for block in message.content], ["thinking", "text"])
        self.assertEqual(message.content[1].text, text)
        self.assertIn("Paris", text)

    def test_tools_round_trip(self):
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        with self.client.messages.stream(model=NAME, max_tokens=400, messages=messages, tools=[TOOL],
                                         extra_body=GREEDY) as stream:
            first = stream.get_final_message()
        self.assertEqual(first.stop_reason, "tool_use")
        call = first.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "get_weather", {"city": "Paris"}))
        messages += [{"role": "assistant", "content": first.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                   "content": '{"temperature": 21}'}]}]
        self.assertIn("21", self.ask(messages, tools=[TOOL]).content[-1].text)

    def test_output_format(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
                  "required": ["city", "sure"], "additionalProperties": False}
        form = {"type": "json_schema", "schema": schema}
        for field in ({"output_config": {"format": form}}, {"extra_body": {"output_format": form}}):
            for temperature in (0, 1):
                extra = {**field.get("extra_body", {}), "temperature": temperature}
                reply = self.client.messages.create(model=NAME, max_tokens=500, messages=PARIS, **{**field, "extra_body": extra})
                answer = json.loads(reply.content[0].text)
                self.assertEqual(set(answer), {"city", "sure"})
                self.assertIsInstance(answer["sure"], bool)
        with self.assertRaises(anthropic.BadRequestError):
            self.ask(output_config={"format": {"type": "xml"}})
        with self.assertRaises(anthropic.BadRequestError):  # the answer has begun
            self.ask([*PARIS, {"role": "assistant", "content": "{"}], output_config={"format": form})

    def test_threads_are_refused_by_their_code(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(model=NAME, max_tokens=5, messages=PARIS, extra_body={"thread": {"id": "t1"}})
        self.assertEqual(caught.exception.body["error"]["details"]["error_code"], "thread_unsupported_request")

    def test_count_tokens(self):
        count = self.client.messages.count_tokens(model=NAME, messages=PARIS).input_tokens
        usage = self.ask().usage
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="claude", max_tokens=5, messages=PARIS)
        with self.assertRaises(anthropic.BadRequestError):
            self.ask(tool_choice={"type": "any"})  # of no tools
        with self.assertRaises(anthropic.AuthenticationError):
            self.client.with_options(api_key="wrong").messages.create(model=NAME, max_tokens=5, messages=PARIS)


if __name__ == "__main__":
    unittest.main()
