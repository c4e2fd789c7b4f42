"""Named architectures, as changes to the `model` section of a config.

A *style* says how a published family builds its blocks and leaves the sizes to the experiment:
`--config=configs/pydoc.py:llama_style`. An *architecture* is a style at its published size:
`--config=configs/pydoc.py:gpt2`. Both choose the family, so the objective must suit it.

A run's directory may stand in place of a name, `--config=configs/classify_text.py:runs/minilm`. It
gives the model of that run, with as many classes as the data has, and configs for images take over
how that run prepares an image.
"""

import json
from pathlib import Path

# Files of a run: its config, its model section with the sizes from the data, and its weights.
CONFIG, RECORD, CHECKPOINTS = "config.json", "model.json", "checkpoints"
PIXELS = ("image_size", "image_edge", "image_fit", "image_resample", "image_mean", "image_std")
PUBLISHED = ("config.json", "model.safetensors", "model.safetensors.index.json")


def choose(model, name):
    """Applies the architecture, style or run `name` to the `model` section; "" changes nothing."""
    if not name:
        return
    record = Path(name, RECORD)
    if record.is_file():
        # Runs from before this key existed used sinusoids with amplitude 1.
        older = {"sinusoidal_scale": 1.0}
        model.update({**older, **json.loads(record.read_text())["model"], "num_classes": 0})
        return
    if name not in ARCHITECTURES:
        sizes = [known for known in ARCHITECTURES if "width" in ARCHITECTURES[known]()]
        styles = [known for known in ARCHITECTURES if known not in sizes]
        listed = f"{', '.join(sizes)}; styles such as {styles[0]}"
        _refuse_published(name, listed)
        raise ValueError(
            f"unknown architecture {name!r}; known are: {listed}; or a workdir (convert.py makes "
            "one)"
        )
    model.update(ARCHITECTURES[name]())


def take_pixels(data, name):
    """Copies the keys that say how images become numbers from the run `name`, if it is a run.

    The run's parameters were trained on such numbers.
    """
    paths = [Path(name or "", file) for file in (CONFIG, RECORD)]
    if not name or not all(path.is_file() for path in paths):
        return
    theirs, record = (json.loads(path.read_text()) for path in paths)
    if record["model"]["input"] != "patches":
        return
    theirs = {"image_fit": "crop", **theirs["data"]}  # the default before this key existed
    for key in PIXELS:
        if key in theirs:
            value = theirs[key]
            data[key] = tuple(value) if isinstance(value, list) else value


def _refuse_published(name, listed):
    """Raises ValueError with the command that converts a Hugging Face model, if `name` is one.

    A hub name is OWNER/NAME, or a word with a hyphen, which no architecture in `listed` has.
    """
    path, bring_in = Path(name), "python convert.py --from={} --to=WORKDIR, then give WORKDIR"
    if any((path / file).is_file() for file in PUBLISHED) and not (path / CHECKPOINTS).is_dir():
        raise ValueError(
            f"{name} is a published model, not a run; import it first: {bring_in.format(name)}"
        )
    address = f"hf://{name}" if "/" in name else f"hf://OWNER/{name}"
    if ("/" in name and not path.parent.is_dir()) or ("-" in name and "/" not in name):
        raise ValueError(
            f"{name!r} is neither an architecture nor an existing workdir; if it is a model on the "
            f"hub, {bring_in.format(address)}; architectures are: {listed}"
        )


def _dropout(rate, *places):
    """Dropout keys: `rate` in the named places and 0 in the others."""
    everywhere = ("embedding", "attention", "residual", "feed_forward")
    return {f"dropout_{place}": rate if place in places else 0.0 for place in everywhere}


def _style(**changes):
    """All keys in which styles differ: a style inherits none of them from the experiment."""
    return {
        **dict(
            family="encoder",
            input="tokens",
            kv_heads=0,
            position="learned",
            sinusoidal_scale=0.0,
            rope_theta=10_000.0,
            rope_scaling="default",
            rope_factor=1.0,
            token_types=0,
            embedding_scale=False,
            embedding_norm=False,
            share_embeddings=True,
            tie_output=True,
            output_scale=False,
            output_bias=False,
            norm="layernorm",
            norm_placement="pre",
            norm_epsilon=1e-6,
            activation="relu",
            bias=True,
            mixer="attention",
            mixer_options=(),
            bridge="attention",
            attention_scale=True,
            pooling="first",
            pooler=False,
            pooler_activation="tanh",
            init_std=0.0,
        ),
        **changes,
    }


def transformer_style():
    """Vaswani et al. 2017; Marian models are built in the same way."""
    return _style(
        family="encoder_decoder",
        position="sinusoidal",
        embedding_scale=True,
        norm_placement="post",
        norm_epsilon=1e-5,
    )


def bert_style():
    """Devlin et al. 2018: post-norm encoders with token types."""
    return _style(
        token_types=2,
        embedding_norm=True,
        output_bias=True,
        norm_placement="post",
        norm_epsilon=1e-12,
        activation="gelu",
        pooler=True,
        init_std=0.02,
    )


def gpt2_style():
    """Radford et al. 2019: pre-norm decoders with learned positions."""
    return _style(
        family="decoder",
        norm_epsilon=1e-5,
        activation="gelu_tanh",
        pooling="last",
        init_std=0.02,
    )


def llama_style():
    """Touvron et al. 2023: decoders with RoPE, RMSNorm and SwiGLU."""
    return _style(
        family="decoder",
        position="rope",
        tie_output=False,
        norm="rmsnorm",
        norm_epsilon=1e-5,
        activation="swiglu",
        bias=False,
        pooling="last",
        init_std=0.02,
    )


def t5_style():
    """T5 v1.0."""
    return _style(
        family="encoder_decoder",
        position="t5_bias",
        output_scale=True,
        norm="rmsnorm",
        activation="relu",
        bias=False,
        attention_scale=False,
    )


def t5_v1_1_style():
    """T5 v1.1: gated feed-forward layers, and a separate output layer."""
    return {
        **t5_style(),
        **dict(tie_output=False, output_scale=False, activation="geglu_tanh"),
    }


def vit_style():
    """Dosovitskiy et al. 2020: pre-norm encoders of image patches."""
    return _style(
        input="patches",
        norm_epsilon=1e-12,
        activation="gelu",
        init_std=0.02,
    ) | dict(class_token=True)


def _seq2seq(**changes):
    """Styles with the mixer and the bridge of models before the Transformer.

    A block still has residual connections, norms and a feed-forward layer.
    """
    return _style(
        **{
            **dict(family="encoder_decoder", position="none"),
            **dict(share_embeddings=False, tie_output=False),
            **changes,
        }
    )


def seq2seq_lstm():
    """Sutskever et al. 2014, Cho et al. 2014: LSTMs, and one vector between them."""
    no_attention = dict(attention="dot", dropout_attention=0.0)
    return _seq2seq(mixer="lstm", bridge="context_vector") | no_attention


def seq2seq_attention():
    """Bahdanau et al. 2015: GRUs, and additive attention with one head between them."""
    return _seq2seq(mixer="gru") | dict(attention="additive", heads=1, head_size=0)


def conv_s2s():
    """Gehring et al. 2017: gated convolutions, learned positions, attention with one head."""
    return _seq2seq(mixer="conv", position="learned") | dict(heads=1, head_size=0)


def transformer_base():
    """The base model of the 2017 paper."""
    return {
        **transformer_style(),
        **dict(width=512, encoder_layers=6, decoder_layers=6, heads=8, head_size=64),
        **dict(feed_forward=2048),
        **_dropout(0.1, "embedding", "residual"),
    }


def transformer_big():
    """The big model of the 2017 paper."""
    return {
        **transformer_base(),
        **dict(width=1024, heads=16, feed_forward=4096),
        **_dropout(0.3, "embedding", "residual"),
    }


def bert_base():
    """BERT base, uncased."""
    return {
        **bert_style(),
        **dict(vocab_size=30_522, width=768, encoder_layers=12, heads=12, head_size=64),
        **dict(feed_forward=3072, max_length=512),
        **_dropout(0.1, "embedding", "attention", "residual"),
    }


def bert_large():
    """BERT large, uncased."""
    return {
        **bert_base(),
        **dict(width=1024, encoder_layers=24, heads=16, feed_forward=4096),
    }


def gpt2():
    """GPT-2, the small one."""
    return {
        **gpt2_style(),
        **dict(vocab_size=50_257, width=768, decoder_layers=12, heads=12, head_size=64),
        **dict(feed_forward=3072, max_length=1024),
        **_dropout(0.1, "embedding", "attention", "residual"),
    }


def llama_1b():
    """Llama 3.2 1B."""
    return {
        **llama_style(),
        **dict(vocab_size=128_256, width=2048, decoder_layers=16, heads=32, kv_heads=8),
        **dict(head_size=64, feed_forward=8192, rope_theta=500_000.0, tie_output=True),
        **dict(rope_scaling="llama3", rope_factor=32.0, rope_low_frequency=1.0),
        **dict(rope_high_frequency=4.0, rope_original_length=8192, max_length=131_072),
        **_dropout(0.0),
    }


def llama_8b():
    """Llama 3.1 8B."""
    return {
        **llama_1b(),
        **dict(width=4096, decoder_layers=32, head_size=128, feed_forward=14_336),
        **dict(tie_output=False, rope_factor=8.0),
    }


def llama_70b():
    """Llama 3.1 70B."""
    return {
        **llama_8b(),
        **dict(width=8192, decoder_layers=80, heads=64, feed_forward=28_672),
    }


def t5_small():
    """T5 v1.0 small."""
    return {
        **t5_style(),
        **dict(vocab_size=32_128, width=512, encoder_layers=6, decoder_layers=6, heads=8),
        **dict(head_size=64, feed_forward=2048, relative_buckets=32, relative_max_distance=128),
        **_dropout(0.1, "embedding", "attention", "residual", "feed_forward"),
    }


def t5_v1_1_small():
    """T5 v1.1 small."""
    return {
        **t5_small(),
        **t5_v1_1_style(),
        **dict(encoder_layers=8, decoder_layers=8, heads=6, feed_forward=1024),
    }


def vit_s16():
    """ViT-S/16 for images of 224 pixels."""
    return {
        **vit_style(),
        **dict(width=384, encoder_layers=12, heads=6, head_size=64, feed_forward=1536),
        **dict(image_size=224, image_channels=3, patch_size=16, max_length=197),
        **_dropout(0.0),
    }


def vit_b16():
    """ViT-B/16 for images of 224 pixels."""
    return {**vit_s16(), **dict(width=768, heads=12, feed_forward=3072)}


ARCHITECTURES = {
    function.__name__: function
    for function in (
        transformer_style, transformer_base, transformer_big,
        seq2seq_lstm, seq2seq_attention, conv_s2s,
        bert_style, bert_base, bert_large,
        gpt2_style, gpt2, llama_style, llama_1b, llama_8b, llama_70b,
        t5_style, t5_small, t5_v1_1_style, t5_v1_1_small,
        vit_style, vit_s16, vit_b16,
    )
}  # fmt: skip
