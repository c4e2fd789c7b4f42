"""A small tokenizer with control tokens, chat templates in the usual styles, and conversations."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.published_specials import with_chat_template

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|turn|>", "<|end|>")

# Styles that published models have, from the simplest to those that refuse or change something.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'"
        " + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "headers": (  # trims contents and names the system's turn apart
        "{{- bos_token }}\n{%- for message in messages %}\n"
        "    {{- '<|turn|>' ~ message.role ~ '\n\n' ~ message.content | trim ~ '<|end|>' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n"
        "    {{- '<|turn|>assistant\n\n' }}\n{%- endif %}\n"
    ),
    "instructions": (  # no generation prompt, and strict turns
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
        "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
    "plain": (  # no control token ends a turn
        "{% for m in messages %}{{ '### ' + m.role + '\n' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
    ),
    "thoughts": (  # the last answer is written in another way, as in reasoning models
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "marked": (  # says itself what the assistant writes
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
        "{% endgeneration %}{{ '\n' }}{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
}

CHAT = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital is Paris — a café city."},
    {"role": "user", "content": "And of\nItaly?"},
    {"role": "assistant", "content": "Rome."},
]
# Answers with the end of the turn, as each style writes them.
ANSWERS = {
    "chatml": ["The capital is Paris — a café city.<|im_end|>", "Rome.<|im_end|>"],
    "headers": ["The capital is Paris — a café city.<|end|>", "Rome.<|end|>"],
    "instructions": [" The capital is Paris — a café city.</s>", " Rome.</s>"],
    "plain": ["The capital is Paris — a café city.\n", "Rome.\n"],
    "thoughts": [
        "The capital is Paris — a café city.<|im_end|>",
        "<think>\n\n</think>\n\nRome.<|im_end|>",
    ],
    "marked": ["The capital is Paris — a café city.<|im_end|>", "Rome.<|im_end|>"],
}


def write_tokenizer(directory, template=None, **config):
    """Writes tokenizer.json and tokenizer_config.json of a byte-level BPE; returns the former."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(name, special=True) for name in CONTROL],
        show_progress=False,
    )
    tokenizer.train_from_iterator([m["content"] for m in CHAT] * 4, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"} | config
    config = {"eos_token": "</s>"} | config | ({"chat_template": template} if template else {})
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory / "tokenizer.json"


def chat_tokenizer(directory, template=None, **config):
    """The tokenizer that `write_tokenizer` writes, as a run on conversations opens it."""
    path = write_tokenizer(directory, template, **config)
    return with_chat_template(open_tokenizer(path), path)


def write_lines(path, examples):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [each if isinstance(each, str) else json.dumps(each) for each in examples]
    path.write_text("".join(line + "\n" for line in lines))
    return path
