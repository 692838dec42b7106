"""What is trained: a model and the chat format that it speaks, by config.json's model_type."""

import dataclasses
import json
import pathlib
import types

import chatml
import harmony


@dataclasses.dataclass
class Family:
    model_type: str
    chat: types.ModuleType

    def module(self):
        """The model's, which needs torch."""
        if self.model_type == "gpt_oss":
            import gpt_oss

            return gpt_oss
        import qwen3_next

        return qwen3_next


FAMILIES = {f.model_type: f for f in (Family("gpt_oss", harmony), Family("qwen3_next", chatml))}


def family_of(directory):
    """Of a checkpoint."""
    config = json.loads((pathlib.Path(directory) / "config.json").read_text())
    return FAMILIES[config["model_type"]]
