"""What other codebases and our earlier versions call our config keys and flags, for hints."""

_LAYERS = ("model.encoder_layers", "model.decoder_layers")

# Our key(s) -> names of transformers, t5x, MaxText, nanoGPT, the Flax examples, fairseq, ...
_NAMES_OF_KEYS = {
    ("model.width",): "d_model emb_dim hidden_size n_embd embed_dim hidden_dim dim model_dim "
    "base_emb_dim qkv_dim encoder_embed_dim decoder_embed_dim",
    _LAYERS: "num_layers n_layer n_layers depth num_hidden_layers layers",
    ("model.encoder_layers",): "num_encoder_layers",
    ("model.decoder_layers",): "num_decoder_layers base_num_decoder_layers",
    ("model.heads",): "num_heads n_head n_heads num_attention_heads nhead num_query_heads "
    "base_num_query_heads encoder_attention_heads",
    ("model.kv_heads",): "num_kv_heads n_kv_heads num_key_value_heads base_num_kv_heads",
    ("model.head_size",): "head_dim d_kv d_head size_per_head",
    ("model.feed_forward",): "mlp_dim d_ff ffn_dim intermediate_size n_inner dim_feedforward "
    "base_mlp_dim encoder_ffn_dim decoder_ffn_dim",
    ("model.experts",): "num_experts num_local_experts n_routed_experts moe_num_experts",
    ("model.experts_per_token",): "num_experts_per_tok num_experts_per_token moe_top_k",
    ("model.shared_experts",): "n_shared_experts num_shared_experts",
    ("model.router_scores",): "scoring_func routed_score_func",
    ("model.router_renormalise",): "norm_topk_prob",
    ("model.expert_capacity",): "capacity_factor expert_capacity_factor",
    ("model.load_balance_loss",): "router_aux_loss_coef load_balance_loss_weight aux_loss_alpha",
    ("model.router_z_loss",): "router_z_loss_coef router_z_loss_weight",
    ("model.max_length",): "max_position_embeddings n_positions n_ctx max_len max_seq_len",
    ("model.position",): "position_embedding_type pos_embedding",
    ("model.rope_theta",): "rope_base rope_max_timescale",
    ("model.rope_local_theta",): "rope_local_base_freq local_rope_theta",
    ("model.rope_fraction",): "partial_rotary_factor rotary_pct",
    ("model.rope_scaling",): "rope_type",
    ("model.mixer",): "token_mixer rnn_type cell_type",
    ("model.parametrization",): "use_mup mup",
    ("model.score_cap",): "attn_logit_softcapping attn_logits_soft_cap",
    ("model.logit_cap",): "final_logit_softcapping final_logits_soft_cap",
    ("model.qk_norm",): "use_qk_norm qk_layernorm",
    ("model.parallel_residual",): "use_parallel_residual parallel_attn",
    ("model.activation",): "hidden_act activation_function act_fn mlp_activations",
    ("model.norm_epsilon",): "layer_norm_eps layer_norm_epsilon rms_norm_eps "
    "normalization_layer_epsilon",
    ("model.tie_output",): "weight_tying tie_word_embeddings tie_weights logits_via_embedding "
    "tie_embeddings",
    ("model.bias",): "use_bias",
    ("model.attention",): "attention_type attn_implementation attention_kernel_type",
    ("model.attention_window",): "sliding_window sliding_window_size attention_window_size",
    ("model.dropout_residual",): "dropout dropout_rate hidden_dropout_prob resid_pdrop",
    ("model.dropout_attention",): "attention_dropout attention_dropout_rate attn_pdrop "
    "attention_probs_dropout_prob",
    ("model.dropout_embedding",): "embd_pdrop embedding_dropout",
    ("model.init_std",): "initializer_range",
    ("model.token_types",): "type_vocab_size",
    ("model.num_classes",): "num_labels",
    ("model.param_dtype",): "weight_dtype params_dtype",
    ("model.dtype",): "torch_dtype compute_dtype",
    ("model.remat",): "remat_policy gradient_checkpointing activation_checkpointing",
    ("data.length",): "max_target_length seq_len seq_length max_seq_length block_size "
    "sequence_length context_length context_size",
    ("data.encoder_length",): "max_source_length max_input_length",
    ("data.batch_size",): "batch bs global_batch_size train_batch_size",
    ("eval.batch_size",): "eval_batch_size",
    ("data.path", "data.name"): "data dataset",
    ("data.name",): "dataset_name",
    ("data.path",): "data_dir data_path dataset_path",
    ("data.tokenizer",): "tokenizer_path tokenizer_name tokenizer_name_or_path",
    ("data.packing",): "pack_examples",
    ("data.train_examples",): "max_train_samples train_subset",
    ("data.class_weights",): "class_weight",
    ("data.workers",): "num_workers dataloader_num_workers",
    ("steps",): "max_steps num_steps train_steps num_train_steps total_steps max_iters max_update",
    ("seed",): "random_seed rng_seed",
    ("log_every",): "logging_steps log_interval log_period log_every_steps",
    ("init_from",): "checkpoint model_name_or_path load_parameters_path restore_from",
    ("optimizer.learning_rate",): "lr base_learning_rate peak_lr max_lr",
    ("optimizer.weight_decay",): "wd adam_weight_decay",
    ("optimizer.warmup_steps",): "warmup warmup_iters num_warmup_steps warmup_updates",
    ("optimizer.decay_steps",): "lr_decay_iters",
    ("optimizer.schedule",): "lr_scheduler lr_scheduler_type lr_schedule",
    ("optimizer.name",): "optimizer optim opt_type",
    ("optimizer.beta1",): "adam_beta1 adam_b1 b1",
    ("optimizer.beta2",): "adam_beta2 adam_b2 b2",
    ("optimizer.epsilon",): "adam_epsilon adam_eps eps",
    ("optimizer.clip_norm",): "clip grad_clip max_grad_norm gradient_clipping_threshold "
    "gradient_clip_val grad_norm_clip",
    ("optimizer.accumulate",): "gradient_accumulation_steps grad_accum_steps update_freq "
    "accumulate_grad_batches",
    ("task.label_smoothing",): "label_smoothing_factor",
    ("task.dpo_beta",): "beta",
    ("task.window_overlap",): "doc_stride",
    ("task.answer_tokens",): "max_answer_length max_answer_len",
    ("task.unanswerable",): "version_2_with_negative handle_impossible_answer",
    ("model.layer_groups",): "num_hidden_groups share_layers",
    ("model.layer_scale",): "layerscale_value layer_scale_init_value init_values",
    ("finetune.lora_rank",): "r lora_r",
    ("finetune.lora_targets",): "target_modules lora_target_modules",
    ("finetune.lora_also_train",): "modules_to_save",
    ("prune.share",): "sparsity pruning_ratio",
    ("task.noise_rate",): "mlm_probability noise_density",
    ("task.mean_span",): "mean_noise_span_length",
    ("eval.every",): "eval_every eval_steps eval_interval eval_every_steps",
    ("eval.batches",): "eval_iters",
    ("eval.patience",): "early_stopping_patience",
    ("checkpoint.every",): "save_every save_steps checkpoint_period checkpoint_every_steps "
    "checkpoint_interval",
    ("checkpoint.keep",): "save_total_limit max_to_keep",
    ("mesh.data",): "ici_data_parallelism",
    ("mesh.fsdp",): "ici_fsdp_parallelism",
    ("mesh.sequence",): "ici_sequence_parallelism ici_context_parallelism context_parallel_size",
    ("mesh.tensor",): "ici_tensor_parallelism tensor_parallel_size",
}
# Their name -> our full keys.
KEYS = {name: keys for keys, names in _NAMES_OF_KEYS.items() for name in names.split()}

# Their name -> our key, and what our key counts.
OTHER_UNITS = {
    **dict.fromkeys(
        ("epochs", "num_epochs", "num_train_epochs"),
        ("steps", "counts steps, of data.batch_size rows each"),
    ),
    **dict.fromkeys(
        ("per_device_batch_size", "per_device_train_batch_size"),
        ("data.batch_size", "counts the rows of all devices together"),
    ),
}
# Their flag -> our flag.
FLAGS = {
    **dict.fromkeys(
        ("output_dir", "out_dir", "logdir", "log_dir", "model_dir", "run_dir"), "workdir"
    ),
    "cfg": "config",
}


def key_hint(key: str, section: str) -> str:
    """A hint at our name for the unknown config key `key` of a section; "" if there is none.

    `section` is "model", "data", ..., or "" for the top level. Begins with punctuation, to follow
    "<key> is not a config key".
    """
    if key in OTHER_UNITS:
        ours, unit = OTHER_UNITS[key]
        return f"; {ours} {unit}."
    own = f"{section}." if section else ""
    from configs.renamed_keys import FORMER_KEYS  # here: all code imports this module by the schema

    if (former := f"{own}{key}") in FORMER_KEYS:
        return f": {former} is now {FORMER_KEYS[former]}."
    names = [repr(each.removeprefix(own)) for each in KEYS.get(key, ())]
    return f". Did you mean {' or '.join(names)}?" if names else ""
