"""Settings of sentence-transformers' directories."""

import json

import pytest

from experiment.schema import ConfigError
from pretrained import sentence

PROMPTS = {"query": "query: ", "document": ""}


def directory_with(path, **settings):
    (path / "modules.json").write_text("[]")
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("settings", "prompts"),
    [
        ({}, {}),
        (dict(prompts=None, default_prompt_name=None), {}),
        (dict(prompts=PROMPTS, default_prompt_name=None), {"query": "query: "}),
        # An empty prompt changes no text.
        (dict(prompts=PROMPTS, default_prompt_name="document"), {"query": "query: "}),
    ],
)
def test_prompts_that_users_write_are_read(tmp_path, settings, prompts):
    assert sentence.read_prompts(directory_with(tmp_path, **settings)) == prompts


@pytest.mark.parametrize("prompts", [PROMPTS, {}])
def test_a_prompt_before_every_text_is_refused(tmp_path, prompts):
    directory = directory_with(tmp_path, prompts=prompts, default_prompt_name="query")
    with pytest.raises(ConfigError, match=r"default_prompt_name='query' puts .* before every text"):
        sentence.read_prompts(directory)
