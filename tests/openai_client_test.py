"""OpenAI's own Python client against `nibble serve` with the shipped model."""

import json
import unittest

import openai
import pydantic
from serving import NAME, WEATHER, Server

PARIS = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--api-key", "secret", "--served-model-name", NAME, "other"))
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=cls.server.url + "/v1", api_key="secret", max_retries=0))

    def chat(self, messages=PARIS, **fields):
        return self.client.chat.completions.create(model=NAME, messages=messages, **{"temperature": 0, **fields})

    def test_models(self):
        models = list(self.client.models.list())
        self.assertEqual([m.id for m in models], [NAME, "other"])
        self.assertEqual(models[0].object, "model")
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt-5")

    def test_chat(self):
        reply = self.chat()
        self.assertEqual(reply.choices[0].message.content, ANSWER)
        self.assertEqual(reply.choices[0].message.role, "assistant")
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertIn("Paris", reply.choices[0].message.reasoning_content)
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertTrue(reply._request_id)

    def test_cached_prompt(self):
        """From the third time on also of a model with states, which keeps one where it has seen that texts part."""
        asked = [{"role": "user", "content": "one two three four five six seven. " * 60}]
        usage = [self.chat(asked, max_tokens=1).usage for _ in range(3)][-1]
        self.assertGreater(usage.prompt_tokens_details.cached_tokens, 0)
        self.assertLess(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)

    def test_content_parts_and_developer_role(self):
        messages = [{"role": "developer", "content": "Do what the user asks."},
                    {"role": "user", "content": [{"type": "text", "text": PARIS[0]["content"]}]}]
        self.assertIn("Paris", self.chat(messages).choices[0].message.content)

    def test_stream(self):
        whole = self.chat()
        content, reasoning, finish, usage = "", "", None, None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if not chunk.choices:
                usage = chunk.usage
                continue
            delta = chunk.choices[0].delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            finish = chunk.choices[0].finish_reason or finish
        self.assertEqual(content, ANSWER)
        self.assertEqual(reasoning, whole.choices[0].message.reasoning_content)
        self.assertEqual(finish, "stop")
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_stream_left_early(self):
        for _ in range(20):
            stream = self.chat(stream=True, max_completion_tokens=2000)
            next(iter(stream))
            stream.close()
        self.assertEqual(self.chat().choices[0].message.content, ANSWER)

    def test_efforts(self):
        lengths = {}
        for effort in ("low", "medium", "high"):
            usage = self.chat(reasoning_effort=effort).usage
            lengths[effort] = usage.completion_tokens_details.reasoning_tokens
        self.assertLess(lengths["low"], lengths["high"])

    def test_tools_round_trip(self):
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = self.chat(messages, tools=[WEATHER])
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        message = first.choices[0].message
        self.assertIsNone(message.content)
        call = message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        # The client's own object goes back, as its users do it.
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}]
        second = self.chat(messages, tools=[WEATHER])
        self.assertEqual(second.choices[0].finish_reason, "stop")
        self.assertIn("21", second.choices[0].message.content)

    def test_tools_streamed(self):
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        with self.client.chat.completions.stream(
                model=NAME, messages=messages, tools=[WEATHER], temperature=0) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        self.assertEqual(message.tool_calls[0].function.name, "get_weather")
        self.assertEqual(json.loads(message.tool_calls[0].function.arguments), {"city": "Paris"})

    def test_tool_choice(self):
        messages = [{"role": "user", "content": "Hello"}]
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            reply = self.chat(messages, tools=[WEATHER], tool_choice=choice, max_tokens=200)
            self.assertEqual(reply.choices[0].message.tool_calls[0].function.name, "get_weather")
        reply = self.chat(messages, tools=[WEATHER], tool_choice="none")
        self.assertIsNone(reply.choices[0].message.tool_calls)

    def test_structured_output(self):
        class Capital(pydantic.BaseModel):
            city: str = pydantic.Field(max_length=20)
            sure: bool

        reply = self.client.chat.completions.parse(
            model=NAME, messages=PARIS, response_format=Capital, temperature=0, max_tokens=500)
        self.assertIsInstance(reply.choices[0].message.parsed, Capital)
        tool = openai.pydantic_function_tool(Capital, name="tell_capital")
        reply = self.client.chat.completions.parse(
            model=NAME, messages=PARIS, tools=[tool], tool_choice="required", temperature=0, max_tokens=900)
        call = reply.choices[0].message.tool_calls[0].function
        self.assertEqual(call.name, "tell_capital")
        self.assertIsInstance(call.parsed_arguments, Capital)

    def test_responses(self):
        reply = self.client.responses.create(model=NAME, input="What is the capital of France?", temperature=0)
        self.assertEqual(reply.output_text, ANSWER)
        self.assertEqual(reply.status, "completed")
        text, kinds = "", []
        with self.client.responses.stream(model=NAME, input="What is the capital of France?", temperature=0) as stream:
            for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
            final = stream.get_final_response()
        self.assertEqual(text, ANSWER)
        self.assertEqual(final.output_text, ANSWER)
        self.assertEqual(kinds[0], "response.created")
        self.assertEqual(kinds[-1], "response.completed")

    def test_responses_tools(self):
        tool = {"type": "function", "strict": True, **WEATHER["function"]}
        history = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = self.client.responses.create(model=NAME, input=history, tools=[tool], temperature=0)
        call = first.output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        history += first.output
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'})
        second = self.client.responses.create(model=NAME, input=history, tools=[tool], temperature=0)
        self.assertIn("21", second.output_text)

    def test_responses_logprobs(self):
        asked = {"model": NAME, "input": "What is the capital of France?", "temperature": 0, "top_logprobs": 2}
        tokens = self.client.responses.create(**asked).output[-1].content[0].logprobs
        self.assertEqual("".join(token.token for token in tokens), ANSWER)
        chat = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual([(t.token, t.bytes, [top.token for top in t.top_logprobs]) for t in tokens],
                         [(t.token, t.bytes, [top.token for top in t.top_logprobs]) for t in chat])
        for one, other in zip(tokens, chat):
            self.assertAlmostEqual(one.logprob, other.logprob, places=4)
        streamed, done = [], None
        for event in self.client.responses.create(**asked, stream=True):
            if event.type == "response.output_text.delta":
                streamed += [token.token for token in event.logprobs]
            elif event.type == "response.output_text.done":
                done = [token.token for token in event.logprobs]
        self.assertEqual(streamed, [token.token for token in tokens])
        self.assertEqual(done, streamed)
        del asked["top_logprobs"]
        [content] = self.client.responses.create(**asked, include=["message.output_text.logprobs"]).output[-1].content
        self.assertEqual([(t.token, t.top_logprobs) for t in content.logprobs], [(t.token, []) for t in tokens])
        self.assertEqual(self.client.responses.create(**asked).output[-1].content[0].logprobs, [])

    def test_old_form_of_tools(self):
        functions = [WEATHER["function"]]
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = self.chat(messages, functions=functions).choices[0]
        self.assertEqual(first.finish_reason, "function_call")
        self.assertIsNone(first.message.tool_calls)
        self.assertEqual(first.message.function_call.name, "get_weather")
        self.assertEqual(json.loads(first.message.function_call.arguments), {"city": "Paris"})
        name, arguments = "", ""
        for chunk in self.chat(messages, functions=functions, stream=True):
            if call := chunk.choices[0].delta.function_call:
                name, arguments = name + (call.name or ""), arguments + (call.arguments or "")
        self.assertEqual((name, arguments), ("get_weather", first.message.function_call.arguments))
        messages += [first.message, {"role": "function", "name": "get_weather", "content": '{"temperature": 21}'}]
        second = self.chat(messages, functions=functions, function_call="auto").choices[0]
        self.assertEqual(second.finish_reason, "stop")
        self.assertIn("21", second.message.content)
        self.assertIsNone(self.chat(messages[:1], functions=functions, function_call="none").choices[0].message.function_call)

    def test_allowed_tools(self):
        other = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        listed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "ping"}}]}
        reply = self.chat(messages, tools=[WEATHER, other], max_tokens=300,
                          tool_choice={"type": "allowed_tools", "allowed_tools": listed})
        self.assertEqual([call.function.name for call in reply.choices[0].message.tool_calls], ["ping"])
        reply = self.client.responses.create(
            model=NAME, input=messages, tools=[{"type": "function", **tool["function"]} for tool in (WEATHER, other)],
            tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]},
            temperature=0, max_output_tokens=300)
        self.assertEqual([item.name for item in reply.output if item.type == "function_call"], ["ping"])

    def test_wishes_of_other_models(self):
        """Efforts and fields that not every model has."""
        for effort in ("none", "minimal", "xhigh", "max"):
            self.assertIn("Paris", self.chat(reasoning_effort=effort, verbosity="low").choices[0].message.content)
        self.chat(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        self.chat(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        has_template = NAME != "nibble-tiny-gpt-oss"  # Harmony has no variables, and says so once
        self.assertEqual("".join(self.server.log).count("chat_template_kwargs"), 0 if has_template else 1)
        reply = self.client.responses.create(model=NAME, input="What is the capital of France?", truncation="auto",
                                             text={"verbosity": "high"}, temperature=0)
        self.assertIn("Paris", reply.output_text)
        self.assertEqual(reply.truncation, "auto")

    def test_logprobs_seed_n_stop(self):
        tokens = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in tokens), ANSWER)
        self.assertEqual(len(tokens[0].top_logprobs), 2)
        first, second = (self.chat(n=2, seed=5, temperature=1.5, max_tokens=30) for _ in range(2))
        self.assertEqual([c.message.content for c in first.choices], [c.message.content for c in second.choices])
        self.assertEqual(self.chat(stop=[" is Paris"]).choices[0].message.content, "The capital of France")

    def test_completions(self):
        reply = self.client.completions.create(model=NAME, prompt="The capital of", max_tokens=5, temperature=0,
                                               echo=True, logprobs=1)
        choice = reply.choices[0]
        self.assertTrue(choice.text.startswith("The capital of"))
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual(len(choice.logprobs.tokens), reply.usage.total_tokens)
        text = "".join(c.choices[0].text for c in self.client.completions.create(
            model=NAME, prompt="The capital of", max_tokens=5, temperature=0, stream=True))
        self.assertEqual("The capital of" + text, choice.text)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": "word " * 20_000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "odd"}}})
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-5", messages=PARIS)
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="wrong").models.list()

    def test_many_at_once(self):
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda _: self.chat().choices[0].message.content, range(32)))
        self.assertEqual(replies, [ANSWER] * 32)


if __name__ == "__main__":
    unittest.main()
