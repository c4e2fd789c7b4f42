"""Where transformers' AutoTokenizer does not follow a tokenizer.json."""

import json
from typing import Any

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The normalizer and pre-tokenizer that transformers 5 gives all models of a type, whatever their
# tokenizer.json and tokenizer_config.json say. For most types it takes those of the file.
_RULES = {
    "qwen2": (
        {"type": "NFC"},
        {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": _WORDS},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
    )
}


def difference(model_type: str, content: str) -> str:
    """Returns a warning if AutoTokenizer reads this tokenizer.json by other rules, or ""."""
    if model_type not in _RULES:
        return ""
    described = json.loads(content)
    rules = described.get("normalizer"), described.get("pre_tokenizer")
    if tuple(map(_rules_on_ids, rules)) == _RULES[model_type]:
        return ""
    return (
        f"transformers' AutoTokenizer splits texts of every {model_type} as its published models "
        "do, not as this tokenizer.json says, so ids may differ; "
        "PreTrainedTokenizerFast.from_pretrained(DIR) follows the file, as we do"
    )


def _rules_on_ids(rules: Any) -> Any:
    """The rules without `trim_offsets`, on which no id depends."""
    if isinstance(rules, dict):
        return {key: _rules_on_ids(rules[key]) for key in rules if key != "trim_offsets"}
    return list(map(_rules_on_ids, rules)) if isinstance(rules, list) else rules
