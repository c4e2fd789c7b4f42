"""Tokens that the files beside a published vocabulary add to it, as transformers adds them.

tokenizer_config.json has them under added_tokens_decoder, under roles such as pad_token, and under
additional_special_tokens. Without an added_tokens_decoder there, transformers also reads
special_tokens_map.json, which has roles and additional_special_tokens, and added_tokens.json, a
table of ids.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import logging
from tokenizers import AddedToken, Tokenizer

CONFIG_FILE_NAME = "tokenizer_config.json"
MAP_FILE_NAME, TABLE_FILE_NAME = "special_tokens_map.json", "added_tokens.json"
FILES_BESIDE = (CONFIG_FILE_NAME, MAP_FILE_NAME, TABLE_FILE_NAME)
TABLE = "added_tokens_decoder"
# Special tokens without a role: a list in all versions of transformers; newer ones also take a list
# or a table of names under another key.
LISTED, LISTED_OR_NAMED = "additional_special_tokens", "extra_special_tokens"
# In the order in which transformers adds tokens that have no id yet.
SPECIAL_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_beside(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer_config.json and special_tokens_map.json beside a file."""
    config = _json_object(path.with_name(CONFIG_FILE_NAME))
    # As in transformers, a config with this table has no use for the other file.
    return config, {} if TABLE in config else _json_object(path.with_name(MAP_FILE_NAME))


def config_beside(path: Path) -> dict[str, Any]:
    """tokenizer_config.json, in which special_tokens_map.json has replaced what it also names."""
    config, older = read_beside(path)
    return config | older


def named_tokens(config: Mapping) -> dict[str, str]:
    """The tokens that have a role, by role."""
    found = {role: token_text(config.get(f"{role}_token")) for role in SPECIAL_ROLES}
    return {role: name for role, name in found.items() if name}


def tokens_without_role(
    config: Mapping[str, Any], older: Mapping[str, Any]
) -> tuple[list[str] | None, dict[str, str]]:
    """The special tokens without a role, and those with a name of the model's own.

    The first is None if neither file has a key for them. Which key wins is as in transformers.
    """
    roles = [f"{role}_token" for role in SPECIAL_ROLES]
    by_name, more = {}, None
    for source in (config, older):
        named = {key: each for key, each in source.items() if key.endswith("_token")}
        table = source.get(LISTED_OR_NAMED)
        named |= table if isinstance(table, dict) else {}
        by_name |= {key: token_text(each) for key, each in named.items() if key not in roles}
    newer = config.get(LISTED_OR_NAMED)
    if newer and not isinstance(newer, dict):
        more = _texts(newer)
    elif LISTED in config or newer == []:
        more = _texts(config.get(LISTED))
    if isinstance(older.get(LISTED_OR_NAMED), list):
        more = list(dict.fromkeys([*(more or ()), *_texts(older[LISTED_OR_NAMED])]))
    elif LISTED in older and more is None:
        more = _texts(older[LISTED])
    return more, {key: token for key, token in by_name.items() if token is not None}


def add_tokens(tokenizer: Tokenizer, path: Path, limit: int | None = None) -> None:
    """Adds the tokens that the files beside `path` have and the tokenizer lacks.

    limit: the model's vocab_size. Tokens that it leaves no room for are not added: the model has no
    embedding for them. Raises ValueError if a token would get another id than the files say.
    """
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    beyond = []
    for name, (id, flags) in _tokens_beside(path).items():
        if name in added:
            continue
        found = tokenizer.token_to_id(name)
        free = tokenizer.get_vocab_size() if found is None else found
        if found is None and limit is not None and max(free, id or 0) >= limit:
            beyond.append(name)
            continue
        if id is not None and id != free:
            raise ValueError(
                f"the files beside it give {name} the id {id}, but its place in the vocabulary is "
                f"{free}; give a tokenizer.json, which has every id"
            )
        tokenizer.add_tokens([AddedToken(name, **flags)])
    if beyond:
        logging.warning(
            "tokens beyond the model's vocab_size=%d are left out, as it has no embeddings of "
            "them: %s", limit, " ".join(beyond[:10]),
        )  # fmt: skip


def _tokens_beside(path: Path) -> dict[str, tuple[int | None, dict[str, bool]]]:
    """Ids, if the files give some, and flags of all tokens, in the order of their ids."""
    config, older = read_beside(path)
    table = {int(id): token for id, token in (config.get(TABLE) or {}).items()}
    more, by_name = tokens_without_role(config, older)
    special = [*named_tokens(config | older).values(), *by_name.values(), *(more or ())]
    if TABLE not in config:
        ids = _json_object(path.with_name(TABLE_FILE_NAME))
        table = {id: dict(content=name, special=name in special) for name, id in ids.items()}
    found = {}
    for id, token in sorted(table.items(), key=lambda pair: pair[0]):
        if name := token_text(token):
            found.setdefault(name, (id, _flags(token)))
    entries = [each for source in (config, older) for each in _values(source)]
    said = {token_text(each): each for each in entries if isinstance(each, dict)}
    for name in special:
        found.setdefault(name, (None, _flags(said.get(name, {}) | {"special": True})))
    return found


def add_special(tokenizer: Tokenizer, names: list[str]) -> None:
    """Makes names in the vocabulary special: they are found before a text is split."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    vocab = tokenizer.get_vocab()
    new = [name for name in names if name in vocab and name not in added]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in new])


def with_strips(content: str, config: Mapping, *, is_library_file: bool) -> str:
    """The tokenizer.json with `lstrip` and `rstrip` of special tokens as in the config.

    As in transformers, the entries of `added_tokens_decoder` apply to every kind of file. Entries
    for roles, such as RoBERTa's mask_token, apply to all but a tokenizer.json.
    """
    entries = list((config.get(TABLE) or {}).values())
    if not is_library_file:
        entries += [value for key, value in config.items() if key.endswith("_token")]
    said = {entry.get("content"): entry for entry in entries if isinstance(entry, dict)}
    layout, is_changed = json.loads(content), False
    for token in layout["added_tokens"]:
        entry = said.get(token["content"], token)
        strips = {key: bool(entry.get(key)) for key in ("lstrip", "rstrip")}
        is_changed |= not strips.items() <= token.items()
        token.update(strips)
    return json.dumps(layout, ensure_ascii=False) if is_changed else content


def with_covering_mask(content: str, name: str) -> str:
    """The tokenizer.json in which the mask is found in a text, and covers the space before it."""
    tokenizer = Tokenizer.from_str(content)
    mask = AddedToken(name, special=True, normalized=False, lstrip=True)
    tokenizer.add_special_tokens([mask])
    return with_strips(
        tokenizer.to_str(pretty=True), {"mask_token": dict(content=name, lstrip=True)},
        is_library_file=False,
    )  # fmt: skip


def _values(source: Mapping[str, Any]) -> Iterator[Any]:
    """All values in which a file may describe a token."""
    yield from source.values()
    for key in (LISTED, LISTED_OR_NAMED):
        more = source.get(key)
        more = list(more.values()) if isinstance(more, dict) else more
        yield from more if isinstance(more, list) else ()


def _flags(token: Any) -> dict[str, bool]:
    """How a token is found in a text. An entry may leave out keys, or be no more than a name."""
    says = token if isinstance(token, dict) else {}
    flags = {key: bool(says.get(key)) for key in ("lstrip", "rstrip", "single_word")}
    is_special = bool(says.get("special", True))
    return dict(flags, special=is_special, normalized=bool(says.get("normalized", not is_special)))


def _texts(tokens: Any) -> list[str]:
    """The texts of a list of tokens; empty for anything else."""
    found = map(token_text, tokens) if isinstance(tokens, list) else ()
    return [token for token in found if token is not None]


def token_text(token: Any) -> str | None:
    """The text of a token, which files give as it is or in an object with `content`."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} beside it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} beside it is not a JSON object")
    return content
