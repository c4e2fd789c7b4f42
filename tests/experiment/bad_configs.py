"""Configs that validation refuses, for test_bad_input.py."""

import math

GONE = object()  # in place of a value: the key is taken out
IMAGES = {"model.input": "patches", "model.family": "encoder", "task.objective": "classify_images"}

# What changes in configs/default.py, an encoder-decoder that reads 64 tokens, and what the
# refusal has to say.
INVALID_CONFIGS = [
    # Keys that do not exist, in every section
    ({"stepz": 10}, "stepz is not a config key. Did you mean 'steps'?"),
    ({"model.widht": 64}, "model.widht is not a config key. Did you mean 'width'?"),
    ({"model.decoder_layer": 2}, "Did you mean 'decoder_layers'?"),
    ({"data.batchsize": 8}, "data.batchsize is not a config key. Did you mean 'batch_size'?"),
    ({"task.objectve": "seq2seq"}, "Did you mean 'objective'?"),
    ({"optimizer.learning_rat": 0.1}, "Did you mean 'learning_rate'?"),
    ({"mesh.tensr": 1}, "mesh.tensr is not a config key. Did you mean 'tensor'?"),
    ({"checkpoint.evry": 5}, "checkpoint.evry is not a config key. Did you mean 'every'?"),
    ({"eval.sample": 2}, "eval.sample is not a config key. Did you mean 'samples'?"),
    ({"colour": "red"}, "colour is not a config key."),
    # Classes and items
    ({"data.class_balance": "weights"}, "are for classes of texts, not task.objective=seq2seq"),
    ({"data.class_balance": "smote"}, "is not one of: none, weights, oversample"),
    ({"data.class_weights": (("spam", 0.0),)}, "data.class_weights[0][1]=0.0 must be above 0"),
    ({"data.tokenizer": "item"}, "data.tokenizer=item is for sequences of items"),
    ({"eval.metrics": ("hit@10",)}, "hit@10 does not go with task.objective=seq2seq"),
    ({"eval.metrics": ("hit@11",)}, "Did you mean 'hit@1'?"),
    ({"model.position": "rope", "model.sinusoidal_offset": 2}, "is for model.position=sinusoidal"),
    # Sizes of tables that are made before memory can be estimated
    ({"model.head_size": 10**9}, "model.head_size=1000000000 must be at least 0 and at most"),
    ({"model.token_types": 10**9}, "model.token_types=1000000000 must be at least 0 and at most"),
    ({"model.relative_max_distance": 3 * 10**8}, "model.relative_max_distance=300000000 must be"),
    # Keys and sections that are not there
    ({"model.width": GONE}, "model.width is missing"),
    ({"seed": GONE}, "seed is missing"),
    ({"optimizer": GONE}, "optimizer must be a section of the config"),
    ({"eval": 3}, "eval must be a section of the config"),
    # Values of another type
    ({"model.width": "128"}, "model.width='128' must be an int"),
    ({"model.width": 128.0}, "model.width=128.0 must be an int"),
    ({"model.heads": True}, "model.heads=True must be an int"),
    ({"model.bias": 1}, "model.bias=1 must be a bool"),
    ({"model.tie_output": "yes"}, "model.tie_output='yes' must be a bool"),
    ({"model.position": 3}, "model.position=3 is not one of: sinusoidal, learned"),
    ({"model.dropout_residual": "0.1"}, "model.dropout_residual='0.1' must be a float"),
    ({"model.norm_epsilon": None}, "model.norm_epsilon=None must be a float"),
    ({"data.length": [64]}, "data.length=[64] must be an int"),
    ({"optimizer.learning_rate": "1e-3"}, "optimizer.learning_rate='1e-3' must be a float"),
    ({"optimizer.gradient_dtype": "bfloat16"}, "needs model.dtype=bfloat16, not float32"),
    ({"optimizer.decay_embeddings": 0}, "optimizer.decay_embeddings=0 must be a bool"),
    ({"steps": 1e3}, "steps=1000.0 must be an int"),
    ({"init_from": None}, "init_from=None must be a str"),
    ({"profile_steps": 5}, "profile_steps=5 must be a tuple"),
    ({"profile_steps": (1, 2, 3)}, "profile_steps=(1, 2, 3) must have 2 entries"),
    ({"profile_steps": (1, 2.0)}, "profile_steps[1]=2.0 must be an int"),
    ({"mesh.data": "all"}, "mesh.data='all' must be an int"),
    ({"checkpoint.best_metric": True}, "checkpoint.best_metric=True must be a str"),
    # What is not a number
    ({"optimizer.learning_rate": math.nan}, "optimizer.learning_rate=nan must be a finite number"),
    ({"optimizer.learning_rate": math.inf}, "optimizer.learning_rate=inf must be a finite number"),
    ({"optimizer.clip_norm": -math.inf}, "optimizer.clip_norm=-inf must be a finite number"),
    ({"task.label_smoothing": math.nan}, "task.label_smoothing=nan must be a finite number"),
    ({"model.rope_theta": math.inf}, "model.rope_theta=inf must be a finite number"),
    ({"model.dropout_attention": math.nan}, "model.dropout_attention=nan must be a finite number"),
    # Too small, too large
    ({"model.width": 0}, "model.width=0 must be at least 1"),
    ({"model.vocab_size": -1}, "model.vocab_size=-1 must be at least 0"),
    ({"model.heads": -4}, "model.heads=-4 must be at least 1"),
    ({"model.dropout_embedding": 1.0}, "must be at least 0 and below 1"),
    ({"model.norm_epsilon": 0.0}, "model.norm_epsilon=0.0 must be above 0"),
    ({"model.init_std": -0.02}, "model.init_std=-0.02 must be at least 0"),
    ({"data.batch_size": 0}, "data.batch_size=0 must be at least 1"),
    ({"data.prefetch": -1}, "data.prefetch=-1 must be at least 0"),
    ({"task.noise_rate": 1.0}, "task.noise_rate=1.0 must be above 0 and below 1"),
    ({"task.mean_span": 0.5}, "task.mean_span=0.5 must be at least 1"),
    ({"optimizer.learning_rate": 0.0}, "optimizer.learning_rate=0.0 must be above 0"),
    ({"optimizer.beta2": 1.0}, "optimizer.beta2=1.0 must be at least 0 and below 1"),
    ({"optimizer.weight_decay": -0.1}, "optimizer.weight_decay=-0.1 must be at least 0"),
    ({"optimizer.accumulate": 0}, "optimizer.accumulate=0 must be at least 1"),
    ({"steps": 0}, "steps=0 must be at least 1"),
    ({"seed": -1}, "seed=-1 must be at least 0"),
    ({"seed": 2**32}, "seed=4294967296 must be at least 0 and below"),
    ({"mesh.fsdp": 0}, "mesh.fsdp=0 must be at least 1, or -1"),
    ({"mesh.tensor": -2}, "mesh.tensor=-2 must be at least 1, or -1"),
    ({"checkpoint.keep": 0}, "checkpoint.keep=0 must be at least 1"),
    ({"eval.batch_size": -8}, "eval.batch_size=-8 must be at least 1"),
    # Choices that do not exist
    ({"model.family": "decoders"}, "Did you mean 'decoder'?"),
    ({"model.norm": "rms_norm"}, "Did you mean 'rmsnorm'?"),
    ({"model.activation": "swigl"}, "Did you mean 'swiglu'?"),
    ({"model.attention": "flesh"}, "'flesh' is not one of: dot, flash, local"),
    ({"model.attention": "local,longfromer"}, "Did you mean 'longformer'?"),
    ({"model.attention": "dot,"}, "model.attention='dot,': '' is not one of: dot"),
    ({"model.attention": "recurrent"}, "self-attention of encoders: its memory holds earlier"),
    ({"model.attention": "linear", "model.dropout_attention": 0.1}, "it has no weights to drop"),
    ({"model.attention": "local", "model.attention_window": 0}, "must be at least 1"),
    ({"model.position": "transformer_xl"}, "also sees later keys; choose another position"),
    (
        {"model.position": "transformer_xl", "model.width": 15, "model.heads": 3},
        "model.position=transformer_xl has a sine and a cosine for each frequency",
    ),
    (
        {"model.attention": "longformer", "model.global_tokens": "question"},
        "with family=encoder_decoder choose first or separators",
    ),
    # Mixers
    ({"model.mixer": "lstmm"}, "model.mixer='lstmm' is not one of: attention, rnn, gru, lstm"),
    ({"model.bridge": "vector"}, "model.bridge='vector' is not one of: attention, context_vector."),
    (
        {"model.family": "decoder", "model.bridge": "context_vector"},
        "model.bridge=context_vector leads from an encoder to a decoder, but family=decoder",
    ),
    (
        {"model.mixer": "gru", "model.position": "rope"},
        "model.position=rope acts inside self-attention, which model.mixer=gru replaces",
    ),
    (
        {"model.mixer": "lstm", "model.matmul": "int8"},
        "model.mixer=lstm does not go with model.matmul=int8 or fp8",
    ),
    (
        {"model.mixer": "rnn", "model.bridge": "context_vector", "model.attention": "flash"},
        "model.attention=flash does nothing: with model.mixer=rnn and model.bridge=context_vector",
    ),
    (
        {"model.mixer": "rnn", "model.family": "encoder", "model.share_qk": True},
        "model.share_qk=True does nothing: with model.mixer=rnn and model.family=encoder",
    ),
    (
        {"model.parametrization": "mup", "model.mup_base_width": 64, "model.mixer": "gru"},
        "model.parametrization=mup has no settled rule for model.mixer=gru",
    ),
    (
        {"model.parametrization": "mup", "model.mup_base_width": 64, "model.attention": "additive"},
        "model.parametrization=mup has no settled rule for model.attention=additive",
    ),
    (
        {"model.mixer": "rnn", "model.family": "encoder", "model.dropout_attention": 0.1},
        "model.dropout_attention=0.1 does nothing: with model.mixer=rnn and model.family=encoder",
    ),
    (
        {"model.mixer": "conv", "model.mixer_options": (("tap", 3.0),)},
        "model.mixer_options: 'tap' is not an option of conv. Did you mean 'taps'?",
    ),
    (
        {"model.mixer": "conv", "model.mixer_options": (("taps", 4.0),)},
        "model.mixer_options: taps=4 must be odd in an encoder",
    ),
    (
        {"model.mixer": "conv", "model.mixer_options": (("dilations", 0.5),)},
        "model.mixer_options: dilations=0.5 must be a whole number from 1 on",
    ),
    (
        {"model.mixer_options": (("taps", 3.0),)},
        "model.mixer_options: 'taps' is not an option of attention",
    ),
    (
        {"model.attention": "additive", "model.position": "rope"},
        "the scores of model.attention=additive are none",
    ),
    ({"model.dtype": "float16"}, "model.dtype='float16' is not one of: float32, bfloat16."),
    ({"model.pooling": "max"}, "model.pooling='max' is not one of: first, last, mean, first_mean."),
    ({"data.source": "date"}, "data.source='date' is not one of: dates, pydoc, names, digits, "),
    ({"data.source": "text_file"}, "Did you mean 'text_files'?"),
    ({"task.objective": "casual_lm"}, "Did you mean 'causal_lm'?"),
    ({"optimizer.name": "adam_w"}, "Did you mean 'adamw'?"),
    ({"optimizer.schedule": "cosin"}, "Did you mean 'cosine'?"),
    (
        {"checkpoint.best_mode": "maximum"},
        "checkpoint.best_mode='maximum' is not one of: max, min.",
    ),
    # Sizes that do not go together
    ({"model.heads": 3}, "model.heads=3 does not divide model.width=128"),
    ({"model.kv_heads": 3}, "model.kv_heads=3 does not divide model.heads=4"),
    ({"model.kv_heads": 8}, "model.kv_heads=8 does not divide model.heads=4"),
    ({"model.encoder_layers": 0}, "model.encoder_layers=0, but family=encoder_decoder needs"),
    ({"model.position": "rope", "model.head_size": 33}, "the head size must be even, not 33"),
    ({"model.width": 129, "model.heads": 3}, "model.width=129 must be even"),
    ({"model.rope_scaling": "linear"}, "model.rope_scaling=linear needs model.position=rope"),
    ({"model.rope_scaling": "ntk"}, "model.rope_scaling=ntk needs model.position=rope"),
    (
        {"model.position": "rope", "model.rope_scaling": "ntk", "model.head_size": 2},
        "the head size must be at least 4, not 2",
    ),
    (
        {"model.position": "rope", "model.rope_factor": 8.0},
        "model.rope_factor=8 does nothing with model.rope_scaling=default",
    ),
    (
        {
            "model.position": "rope",
            "model.rope_scaling": "llama3",
            "model.rope_low_frequency": 4.0,
        },
        "model.rope_low_frequency=4 must be below model.rope_high_frequency=4",
    ),
    (
        {"model.rope_scaling": "dynamic"},
        "is not one of: default, linear, ntk, llama3, yarn, longrope",
    ),
    ({"model.rope_scaling": "yarn"}, "model.rope_scaling=yarn needs model.position=rope"),
    ({"model.rope_fraction": 0.5}, "model.rope_fraction=0.5 needs model.position=rope"),
    ({"model.rope_layers": (1, 0)}, "model.rope_layers=(1, 0) needs model.position=rope"),
    ({"model.rope_layers": (2,)}, "model.rope_layers[0]=2 must be at least 0 and at most 1"),
    ({"model.rope_fraction": 1.5}, "model.rope_fraction=1.5 must be at most 1 and above 0"),
    (
        {"model.position": "rope", "model.rope_fraction": 0.1},
        "model.rope_fraction=0.1 of the head size 32 is 3 columns",
    ),
    (
        {"model.position": "rope", "model.rope_local_theta": 100.0},
        "model.rope_local_theta=100 is for layers that see only near keys",
    ),
    (
        {"model.position": "rope", "model.rope_attention_factor": 1.2},
        "model.rope_attention_factor=1.2 does nothing with model.rope_scaling=default",
    ),
    (
        {"model.position": "rope", "model.rope_scaling": "longrope", "model.rope_factor": 2.0},
        "model.rope_short_factors has 0 numbers, but rope rotates 16 pairs",
    ),
    (
        {"model.position": "rope", "model.rope_long_factors": (1.0,)},
        "model.rope_long_factors does nothing with model.rope_scaling=default",
    ),
    ({"model.attention_bias": "qkv"}, "model.attention_bias=qkv does nothing with model.bias=True"),
    ({"model.norm_bias": True}, "model.norm_bias=True adds the bias that model.bias=False takes"),
    ({"model.first_norm": False, "model.norm_placement": "post"}, "leaves out the first norm of"),
    ({"model.pooler_norm": True}, "model.pooler_norm=True needs model.pooler=True"),
    ({"model.embedding_size": 8}, "model.embedding_size=8 is for the tokens of model.family="),
    (
        {"model.layer_scale": 0.1, "model.residual": False},
        "model.layer_scale=0.1 is for residual connections",
    ),
    ({"model.distillation": "token"}, "model.distillation=token is for model.input=patches"),
    (
        IMAGES | {"model.distillation": "token", "model.class_token": False},
        "adds a token behind the class token",
    ),
    (
        IMAGES | {"model.distillation": "head", "model.pooler": True},
        "is a second classifier like that of the class token",
    ),
    (
        IMAGES | {"model.distillation": "head", "task.objective": "embed"},
        "is a second classifier, but task.objective=embed has none",
    ),
    (
        {"task.window_overlap": 64},
        "task.window_overlap=64 goes with task.objective=answer_span, not seq2seq; set it to 128",
    ),
    (
        {"task.objective": "answer_span", "model.family": "encoder", "task.label_smoothing": 0.1},
        "task.label_smoothing=0.1 has no part in task.objective=answer_span",
    ),
    (
        {"task.objective": "answer_span", "model.family": "encoder", "eval.metrics": ("bleu",)},
        "bleu does not go with task.objective=answer_span; choose among: squad_exact_match",
    ),
    (
        {"data.image_edge": 8, "data.image_size": 9},
        "data.image_edge=8 must be at least data.image_size=9, which is cut out of it",
    ),
    ({"model.position_image_size": 16}, "position_image_size=16 is for model.input=patches"),
    (
        IMAGES | {"model.position": "rope", "model.position_image_size": 16},
        "model.position_image_size=16 is for images with model.position=learned",
    ),
    (
        IMAGES | {"model.position": "learned", "model.position_image_size": 17},
        "model.patch_size=16 does not divide model.position_image_size=17",
    ),
    ({"model.layer_groups": 4}, "model.layer_groups=4 does not divide model.encoder_layers="),
    (
        {"model.layer_groups": 1, "finetune.layer_decay": 0.9},
        "finetune.layer_decay=0.9 gives each layer its own rate, but with model.layer_groups=1",
    ),
    ({"model.token_dropout": True}, "model.token_dropout=True is for the masked tokens of model"),
    ({"model.own_relative_bias": True}, "needs model.position=t5_bias or model.relative_bias=True"),
    (
        {"model.position": "alibi", "model.relative_bias": True},
        "adds T5's bias to another position scheme than alibi",
    ),
    (
        {"task.objective": "regress_text", "task.label_smoothing": 0.1, "model.family": "encoder"},
        "task.label_smoothing=0.1 has no part in task.objective=regress_text",
    ),
    ({"model.norm": "none", "model.qk_norm": "head"}, "model.qk_norm=head needs a norm"),
    ({"model.share_qk": True, "model.qk_norm": "full"}, "which model.share_qk=True rules out"),
    (
        {"model.attention_scale": False, "model.attention_multiplier": 0.2},
        "model.attention_multiplier=0.2 takes the place of the division by sqrt(head_size)",
    ),
    (
        {"model.attention": "linear", "model.attention_multiplier": 0.2},
        "model.attention_multiplier=0.2 multiplies scores, and model.attention=linear has none",
    ),
    (
        {"model.attention": "additive", "model.attention_multiplier": 0.2},
        "model.attention_multiplier=0.2 multiplies dot products",
    ),
    ({"model.attention": "performer", "model.score_cap": 30.0}, "it has no scores to cap"),
    ({"model.attention": "performer", "model.attention_sinks": True}, "no term for a score"),
    ({"model.activation_limit": 3.0}, "is for model.activation=swiglu_clamped, not relu"),
    ({"model.rope_truncate": False}, "is for model.rope_scaling=yarn, not default"),
    ({"model.router_bias": True}, "model.router_bias=True needs experts"),
    (
        {"model.residual": False, "model.residual_multiplier": 0.2},
        "model.residual_multiplier=0.2 is for residual connections",
    ),
    (
        {
            "model.parametrization": "mup",
            "model.mup_base_width": 64,
            "model.residual_multiplier": 0.2,
        },
        "model.residual_multiplier=0.2 has no rule in model.parametrization=mup",
    ),
    (
        {"model.parallel_residual": "one_norm"},
        "model.parallel_residual=one_norm has no place for cross-attention",
    ),
    (
        {"model.parallel_residual": "two_norms", "model.norm_placement": "sandwich"},
        "so it needs model.norm_placement=pre, not sandwich",
    ),
    (
        {"model.parallel_residual": "one_norm", "model.feed_forward_kind": "none"},
        "adds attention and the feed-forward layer to their input",
    ),
    (
        {"model.mixer": "rnn", "model.family": "encoder", "model.qk_norm": "head"},
        "model.qk_norm=head does nothing: with model.mixer=rnn and model.family=encoder",
    ),
    ({"model.position": "t5_bias", "model.relative_buckets": 6}, "must be a multiple of 4"),
    (
        {"model.position": "t5_bias", "model.relative_max_distance": 16},
        "model.relative_max_distance=16 must exceed half of model.relative_buckets=32",
    ),
    ({"data.length": 513}, "data.length=513 exceeds model.max_length=512"),
    (
        {"model.position": "learned", "data.encoder_length": 600},
        "data.encoder_length=600 exceeds model.max_length=512",
    ),
    ({"optimizer.accumulate": 3}, "optimizer.accumulate=3 does not divide data.batch_size=64"),
    ({"optimizer.warmup_steps": 1000}, "leaves no step to decay before steps=1000"),
    (
        {"optimizer.schedule": "stable_decay", "optimizer.warmup_steps": 900},
        "optimizer.warmup_steps=900 reaches into the last optimizer.decay_fraction=0.2",
    ),
    ({"profile_steps": (5, 4)}, "profile_steps=(5, 4) must satisfy 1 <= first <= last"),
    ({"mesh.fsdp": -1}, "mesh.data and mesh.fsdp are -1"),
    # Choices that do not go together
    ({"task.objective": "causal_lm"}, "needs model.family=decoder, not encoder_decoder"),
    ({"model.family": "decoder"}, "needs model.family=encoder_decoder, not decoder"),
    (
        {"model.family": "encoder"},
        "with family=encoder choose one of: masked_lm, masked_items, classify_text",
    ),
    (
        {"model.family": "decoder", "task.objective": "classify_text"},
        "model.pooling=first in a decoder sees the first token alone",
    ),
    (
        {"model.family": "encoder", "task.objective": "classify_images"},
        "only classify_images, classify_sounds, forecast take patches, every other",
    ),
    ({"model.input": "patches"}, "model.input=patches needs family=encoder, not encoder_decoder"),
    ({"model.token_types": 2}, "family=encoder_decoder has no use for it; set it to 0"),
    ({"model.output_scale": True, "model.tie_output": False}, "model.output_scale=True undoes"),
    ({"task.normalize": True}, "need task.objective=embed, not seq2seq"),
    ({"task.next_sentence": True}, "task.next_sentence=True needs task.objective=masked_lm"),
    # Ablations, muP, pruning
    ({"model.share_qk": True, "model.kv_heads": 2}, "model.kv_heads=2 must be model.heads=4"),
    ({"model.attention_scale_init": False}, "does nothing with model.attention_scale=True"),
    ({"model.parametrization": "mup"}, "set model.mup_base_width"),
    ({"model.mup_base_width": 64}, "does nothing with model.parametrization=standard"),
    (
        {"model.parametrization": "mup", "model.mup_base_width": 64, "optimizer.name": "adafactor"},
        "no settled rule for optimizer.name=adafactor",
    ),
    (
        {"model.parametrization": "mup", "model.mup_base_width": 64, "optimizer.name": "muon"},
        "no settled rule for optimizer.name=muon",
    ),
    (
        {"model.parametrization": "mup", "model.mup_base_width": 64, "optimizer.name": "sgd"},
        "no settled rule for optimizer.name=sgd",
    ),
    (
        {
            "model.parametrization": "mup",
            "model.mup_base_width": 64,
            "finetune.lora_rank": 2,
            "init_from": "runs/x",
        },
        "no settled rule for adapters",
    ),
    ({"prune.share": 0.5}, "prune.share=0.5 does nothing with prune.method=none"),
    ({"prune.method": "magnitude"}, "prune.method=magnitude needs a share to prune"),
    (
        {"prune.method": "magnitude", "prune.share": 1.0},
        "prune.share=1.0 must be at least 0 and below 1",
    ),
    (
        {"prune.method": "2:4", "prune.share": 0.7},
        "prunes two weights of four, not prune.share=0.7",
    ),
    ({"prune.method": "2:4", "prune.end_step": 9}, "prunes once, at prune.begin_step=1"),
    (
        {"prune.method": "heads", "prune.share": 0.5, "prune.begin_step": 9, "prune.end_step": 8},
        "is before prune.begin_step=9",
    ),
    (
        {"prune.method": "magnitude", "prune.share": 0.5, "prune.end_step": 5000},
        "is after the last step, steps=1000",
    ),
    (
        {"prune.method": "2:4", "prune.begin_step": 5000},
        "prune.begin_step=5000 is after the last step",
    ),
    ({"prune.method": "heads", "prune.share": 0.9}, "leaves none of model.heads=4"),
    (
        {"prune.method": "magnitude", "prune.share": 0.5, "prune.parameters": "("},
        "is not a regular expression",
    ),
    ({"prune.method": "unstructured"}, "prune.method='unstructured' is not one of"),
    (
        {
            "prune.method": "magnitude",
            "prune.share": 0.5,
            "finetune.lora_rank": 2,
            "init_from": "runs/base",
        },
        "adapters would fill the zeros again",
    ),
    # Preferences
    ({"task.dpo_beta": 0.5}, "task.dpo_beta=0.5 goes with task.objective=dpo, not seq2seq"),
    ({"task.fim_rate": 0.9}, "task.fim_rate=0.9 goes with task.objective=fill_in_middle, not seq"),
    ({"task.fim_spm_rate": 1.5}, "task.fim_spm_rate=1.5 must be at least 0 and at most 1"),
    ({"task.dpo_beta": 0.0}, "task.dpo_beta=0.0 must be above 0"),
    (
        {"task.objective": "dpo", "model.family": "decoder"},
        "task.objective=dpo compares with the model that it starts from; set init_from",
    ),
    (
        {"task.objective": "dpo", "model.family": "decoder", "task.z_loss": 1e-4},
        "task.z_loss=0.0001 has no part in task.objective=dpo",
    ),
    (
        {
            "model.family": "encoder",
            "model.token_types": 1,
            "task.objective": "masked_lm",
            "task.next_sentence": True,
        },
        "model.token_types=1 cannot tell the two sentences",
    ),
    (
        {"optimizer.name": "sgd", "optimizer.weight_decay": 0.1},
        "optimizer.weight_decay=0.1 does nothing with optimizer.name=sgd",
    ),
    # Ends of a run
    ({"time_limit": -1.0}, "time_limit=-1.0 must be at least 0"),
    ({"time_limit": math.inf}, "time_limit=inf must be a finite number"),
    ({"time_limit": "1h"}, "time_limit='1h' must be a float"),
    ({"eval.patience": -1}, "eval.patience=-1 must be at least 0"),
    (
        {"eval.patience": 3, "eval.every": 0},
        "eval.patience=3 counts evaluations, but with eval.every=0 the only one is the last; set "
        "eval.every to a number of steps, or eval.patience=0",
    ),
    # Lengths and letters
    (
        {"data.bucket_count": 2, "data.buckets": (16,)},
        "data.buckets=(16,) and data.bucket_count=2 both say what to pad to; set one of them to ()",
    ),
    ({"data.bucket_count": 17}, "data.bucket_count=17 must be at least 0 and at most 16"),
    (
        {"data.bucket_count": 2, "data.packing": True},
        "data.packing=True and data.bucket_count are two ways to save padding; choose one",
    ),
    (
        {"data.bucket_count": 2, "data.mixture": (("pydoc", 1.0),)},
        "data.bucket_count sorts batches by length, so data.mixture could not keep its",
    ),
    (
        {"data.lowercase": True},
        "data.lowercase=True is for a tokenizer that is trained on the data (bpe, wordpiece, ",
    ),
    (
        {"data.lowercase": True, "data.tokenizer": "a/tokenizer.json"},
        "not data.tokenizer='a/tokenizer.json'; set it to False",
    ),
    (
        {"data.lowercase": True, "data.tokenizer": "bert-base-uncased"},
        "data.tokenizer='bert-base-uncased' is no file and not one of: byte, bpe, wordpiece, ",
    ),
    (
        {"data.lowercase": True, "data.tokenizer": "bert-base-uncased"},
        "on the hub, write data.tokenizer=hf://google-bert/bert-base-uncased; of a directory, ",
    ),
    (
        {"checkpoint.best_metric": "loss"},
        "checkpoint.best_metric=loss must be a metric of an evaluation",
    ),
    (
        {"checkpoint.best_metric": "eval/dates/loss", "checkpoint.every": 7, "eval.every": 5},
        "checkpoint.every=7 is not a multiple of eval.every=5; make them equal",
    ),
    (
        {"checkpoint.best_metric": "eval/dates/loss", "checkpoint.every": 7, "eval.every": 0},
        "checkpoint.every=7 is not a multiple of eval.every=0; make them equal",
    ),
    # Fine-tuning
    ({"finetune.lora_rnk": 8}, "finetune.lora_rnk is not a config key. Did you mean 'lora_rank'?"),
    ({"finetune.lora_rank": -1}, "finetune.lora_rank=-1 must be at least 0"),
    ({"finetune.lora_rank": 8}, "finetune.lora_rank=8 needs parameters to start from; set init_fr"),
    ({"finetune.resize_vocabulary": True}, "finetune.resize_vocabulary=True needs parameters to"),
    (
        {"finetune.lora_rank": 8, "init_from": "x", "optimizer.name": "muon"},
        "does not go with optimizer.name=muon",
    ),
    (
        {"finetune.lora_rank": 8, "init_from": "x", "finetune.freeze": "backbone/.*"},
        "finetune.freeze='backbone/.*' does nothing with finetune.lora_rank=8",
    ),
    ({"finetune.lora_also_train": ".*/bias"}, "does nothing with finetune.lora_rank=0"),
    (
        {"finetune.freeze": "backbone/("},
        "finetune.freeze='backbone/(' is not a regular expression (",
    ),
    ({"finetune.layer_decay": 1.5}, "finetune.layer_decay=1.5 must be at most 1 and above 0"),
    ({"finetune.head_scale": 0.0}, "finetune.head_scale=0.0 must be above 0"),
    ({"task.teacher_weight": 1.5}, "task.teacher_weight=1.5 must be at least 0 and at most 1"),
    ({"task.teacher_temperature": 0.0}, "task.teacher_temperature=0.0 must be above 0"),
    (
        {"model.input": "patches", "model.family": "encoder", "task.objective": "classify_images"}
        | {"finetune.resize_vocabulary": True, "init_from": "x"},
        "finetune.resize_vocabulary=True is for tokens",
    ),
    # Metrics
    ({"eval.metrics": ("blue",)}, "Did you mean 'bleu'?"),
    ({"eval.measures": ("bleu",)}, "eval.measures is now eval.metrics"),
    ({"eval.metrics": "bleu"}, "eval.metrics='bleu' must be a tuple"),
    (
        {"eval.metrics": ("bleu", "macro_f1")},
        "macro_f1 does not go with task.objective=seq2seq; choose among: bleu, chrf, rouge, ece",
    ),
    (
        {
            "model.family": "encoder",
            "task.objective": "masked_lm",
            "eval.metrics": ("top5_accuracy",),
        },
        "top5_accuracy does not go with task.objective=masked_lm; choose among: ece",
    ),
    (
        {"model.family": "encoder", "task.objective": "embed", "eval.metrics": ("ece",)},
        "ece does not go with task.objective=embed; set it to ()",
    ),
    ({"eval.beam_size": 0}, "eval.beam_size=0 must be at least 1"),
    ({"eval.tasks": ("hellaswag",)}, "a causal language model (task.objective=causal_lm or"),
    ({"eval.task_limit": 5}, "eval.task_limit=5 does nothing without eval.tasks"),
    ({"eval.length_penalty": -0.1}, "eval.length_penalty=-0.1 must be at least 0"),
    # Public data sets
    ({"data.source": "tfds", "data.kind": "documents"}, "data.name is empty; set it for data.so"),
    (
        {"data.source": "huggingface", "data.name": "lm1b"},
        "data.kind is empty; set it for data.source=huggingface to one of: pairs, documents, label",
    ),
    (
        {"data.source": "tfds", "data.name": "wmt17_translate/de-en", "data.kind": "pairs"},
        "data.source_language is empty",
    ),
    (
        {"data.source": "tfds", "data.name": "c", "data.kind": "images", "data.label_field": ""},
        "data.label_field is empty",
    ),
    (
        {"data.source": "tfds", "data.name": "c", "data.kind": "documents", "data.eval_split": ""},
        "data.eval_split is empty",
    ),
    # Nested lists
    (
        {"data.source": "listops", "data.options": {"min_length": 29}},
        "data.options.max_length=30 must exceed data.options.min_length=29 by at least 2",
    ),
    (
        {"data.source": "listops", "data.options": {"depth": 2}},
        "data.options.max_length=30 exceeds the 17 symbols of the longest list with data.options.d",
    ),
    (
        {"data.source": "listops", "data.length": 31},
        "data.length=31 would cut lists off, which leaves them without an answer: set it to at",
    ),
    (
        {"data.source": "listops", "data.options": {"arguments": 1}},
        "data.options.arguments=1 must be at least 2",
    ),
    (
        {"data.source": "listops", "data.options": {"min_length": 3}},
        "data.options.min_length=3 must be at least 4",
    ),
    (
        {"data.source": "listops", "data.options": {"depth": 0}},
        "data.options.depth=0 must be at least 1",
    ),
    (
        {"data.source": "listops", "data.options": {"depth": 2.5}},
        "data.options.depth=2.5 must be an int",
    ),
    (
        {"data.source": "listops", "data.options": {"dept": 2}},
        "data.options.dept is not a config key. Did you mean 'depth'?",
    ),
    (
        {"data.source": "listops", "data.listops_depth": 0},
        "data.options.depth=0 must be at least 1",
    ),
    ({"data.options": 3}, "data.options=3 must be a mapping of names to values"),
    (
        {"data.options": {"depth": 3}},
        "data.source=dates has no options; remove data.options.depth, or set data.options={}",
    ),
    # Rows of text
    ({"data.packing": True, "data.buckets": (16,)}, "are two ways to save padding; choose one"),
    ({"data.buckets": (0,)}, "data.buckets[0]=0 must be at least 1"),
    ({"data.buckets": 16}, "data.buckets=16 must be a tuple"),
    ({"data.mixture": (("pydoc", 1.0),), "data.buckets": (16,)}, "could not keep its proportions"),
    ({"data.mixture": (("pydoc", 0.0),)}, "data.mixture[0][1]=0.0 must be above 0"),
    ({"data.mixture": ("pydoc",)}, "data.mixture[0]='pydoc' must be a tuple"),
    ({"data.eval_share": 1.0}, "data.eval_share=1.0 must be above 0 and below 1"),
    ({"data.train_examples": -1}, "data.train_examples=-1 must be at least 0"),
    ({"data.max_bad_records": -1}, "data.max_bad_records=-1 must be at least 0"),
    ({"data.over_long": "cut"}, "data.over_long='cut' is not one of: truncate, split, drop."),
    (
        {"data.source": "text_files", "data.eval_split": "train"},
        "data.eval_split='train' is what the model is trained on",
    ),
    # Images
    ({"data.flip": True}, "data.flip=True is for images, but task.objective=seq2seq reads text"),
    ({"data.image_mean": (0.5,)}, "data.image_mean=(0.5,) is for images"),
    ({"data.mixup": 0.2}, "reads text; set it to 0.0"),
    ({"data.mixup": -1.0}, "data.mixup=-1.0 must be at least 0"),
    ({"data.crop_scale": 1.5}, "data.crop_scale=1.5 must be at least 0 and at most 1"),
    ({"data.image_std": (0.0,)}, "data.image_std[0]=0.0 must be above 0"),
    (
        {"data.crop_padding": 4, "data.crop_scale": 0.5},
        "data.crop_padding=4 and data.crop_scale=0.5 are two ways to crop an image",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.image_size": 30},
        "model.patch_size=16 does not divide model.image_size=30",
    ),
    # Sounds and series
    ({"model.input_shape": (8, 1)}, "model.input_shape=(8, 1) is for model.input=patches"),
    (
        {"model.input": "patches", "model.family": "encoder", "model.input_shape": (8,)},
        "model.input_shape=(8,) must be one or two axes to cut into patches, and the number",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.input_shape": (24, 1)},
        "model.patch_size=16 does not divide model.input_shape=(24, 1)",
    ),
    (
        {
            "model.input": "patches",
            "model.family": "encoder",
            "model.input_shape": (32, 2),
            "model.input_mean": (1.0, 2.0, 3.0),
        },
        "model.input_mean=(1.0, 2.0, 3.0) must be one number, or one for each of the 2 channels",
    ),
    (
        {
            "model.input": "patches",
            "model.family": "encoder",
            "task.objective": "classify_images",
            "model.input_std": (2.0,),
        },
        "model.input_std=(2.0,) is for sounds and series, not task.objective=classify_images",
    ),
    (
        {
            "model.input": "patches",
            "model.family": "encoder",
            "task.objective": "classify_sounds",
            "data.flip": True,
        },
        "data.flip=True is for images, but task.objective=classify_sounds reads none; set it to",
    ),
    (
        {
            "data.source": "sound_files",
            "data.path": "x",
            "data.options": {"seconds": 0.001},
        },
        "data.options.seconds=0.001 is shorter than one frame",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.class_token": False},
        "model.pooling=first reads the class token",
    ),
    (
        {"model.input": "patches", "model.family": "encoder", "model.embedding_scale": True},
        "model.embedding_scale=True scales token embeddings",
    ),
]
