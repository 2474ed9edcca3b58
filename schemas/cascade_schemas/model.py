"""The model being served: the numbers of its architecture, read from a Hugging Face config.json.

Bundled architectures are in models/*.json: `config` holds the published values, `source` says where they are published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cascade_schemas.task import Value

Activation = Literal["silu", "gelu", "relu"]
Quantisation = Literal["", "fp8", "mxfp4", "nvfp4", "awq", "gptq", "int8"]

_Count = Annotated[int, Field(ge=0)]
_Positive = Annotated[int, Field(gt=0, lt=2**31)]


class UnknownModel(ValueError):
    """A name that is no bundled architecture, nor an alias of one, nor a config.json."""


class UnsupportedModel(ValueError):
    """A config.json that lacks what a decoder-only transformer needs, or describes something else."""


class ModelSpec(Value):
    """A decoder-only transformer. A number that does not apply is 0."""

    name: str
    model_type: str  # Hugging Face's word: opt, llama, qwen2, qwen3, qwen3_moe, mixtral, gpt_oss, deepseek_v3
    layers: _Positive
    hidden: _Positive
    intermediate: _Count  # of a dense MLP; 0 where every layer is a mixture of experts
    heads: _Positive
    kv_heads: _Positive
    head_dim: _Positive
    vocab: _Positive
    activation: Activation = "silu"
    gated: bool = True  # gate and up projections, multiplied
    norm: Literal["rms", "layer"] = "rms"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # an RMSNorm on each head of q and k
    attention_sinks: bool = False  # one learned logit per head
    tie_embeddings: bool = False
    learned_positions: _Count = 0  # rows of a position table; 0 = rotary
    max_positions: _Positive = 2048
    # Mixture of experts
    experts: _Count = 0
    topk: _Count = 0
    moe_intermediate: _Count = 0
    shared_experts: _Count = 0  # always on, of moe_intermediate each
    shared_intermediate: _Count = 0  # a shared expert of a width of its own (Qwen1.5-MoE)
    dense_layers: _Count = 0  # leading layers with a dense MLP
    router_bias: bool = False
    # Sliding windows: tokens per layer, 0 = full attention; empty = full everywhere
    windows: tuple[int, ...] = ()
    # Multi-head latent attention (DeepSeek): kv_lora_rank > 0
    q_lora_rank: _Count = 0
    kv_lora_rank: _Count = 0
    qk_nope_head_dim: _Count = 0
    qk_rope_head_dim: _Count = 0
    v_head_dim: _Count = 0
    # Numbers' formats
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    quantisation: Quantisation = ""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "") -> ModelSpec:
        """A spec from the fields of a config.json; UnsupportedModel says in one sentence what is missing."""
        return _parse(config, name)

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    def window(self, layer: int) -> int:
        """Tokens a layer attends to; 0 = all."""
        return self.windows[layer] if self.windows else 0

    @cached_property
    def parameter_count(self) -> int:
        """Of the checkpoint: every weight once, tied embeddings once."""
        return self._embedding_count + self._lm_head_count + self._norm_count + sum(self._linear_counts)

    def weight_bytes(self, tp: int = 1) -> int:
        """Bytes of weights on one GPU of a tensor-parallel group; norms and the router are on all of them."""
        dense, experts = self._linear_counts
        wide = _DTYPE_BITS[self.dtype]
        # Of a quantised checkpoint the linear layers are narrow. MXFP4 as published quantises only the experts.
        narrow = _WEIGHT_BITS[self.quantisation] or wide
        dense_bits = wide if self.quantisation == "mxfp4" else narrow
        sharded_bits = dense * dense_bits + experts * narrow + (self._embedding_count + self._lm_head_count) * wide
        return int(-(-sharded_bits // (8 * tp)) + self._norm_count * wide / 8)

    def kv_bytes_per_token(self, tp: int = 1, kv_bits: int = 0) -> int:
        """Bytes of KV cache per token on one GPU, all layers, full attention in each."""
        bits = kv_bits or _DTYPE_BITS[self.dtype]
        if self.is_mla:  # one latent and one rotary key for all heads, so every GPU has it whole
            return self.layers * (self.kv_lora_rank + self.qk_rope_head_dim) * bits // 8
        return 2 * self.layers * max(1, self.kv_heads // tp) * self.head_dim * bits // 8

    @property
    def _embedding_count(self) -> int:
        return self.vocab * self.hidden + self.learned_positions * self.hidden

    @property
    def _lm_head_count(self) -> int:
        return 0 if self.tie_embeddings else self.vocab * self.hidden

    @property
    def _norm_count(self) -> int:
        per_norm = self.hidden * (2 if self.norm == "layer" else 1)
        small = 2 * self.head_dim if self.qk_norm else 0
        small += self.heads if self.attention_sinks else 0
        small += self.q_lora_rank + self.kv_lora_rank  # DeepSeek normalises both latents
        router = (self.hidden + self.router_bias) * self.experts
        return self.layers * (2 * per_norm + small) + per_norm + self.moe_layers * router

    @property
    def _linear_counts(self) -> tuple[int, int]:
        """(attention, dense MLPs and shared experts; routed experts)."""
        up = 2 if self.gated else 1
        bias = (up * self.intermediate + self.hidden) if self.mlp_bias else 0
        dense_mlp = (up + 1) * self.hidden * self.intermediate + bias
        shared = (up + 1) * self.hidden * (self.shared_experts * self.moe_intermediate + self.shared_intermediate)
        shared += self.hidden if self.shared_intermediate else 0  # Qwen's shared expert has a gate of its own
        expert_bias = (up * self.moe_intermediate + self.hidden) if self.mlp_bias else 0
        expert = (up + 1) * self.hidden * self.moe_intermediate + expert_bias
        dense = self.layers * self._attention_count + (self.layers - self.moe_layers) * dense_mlp
        return dense + self.moe_layers * shared, self.moe_layers * self.experts * expert

    @property
    def _attention_count(self) -> int:
        if self.is_mla:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            query = (self.hidden + self.heads * qk) * self.q_lora_rank or self.hidden * self.heads * qk
            latent = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
            expand = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
            return query + latent + expand + self.heads * self.v_head_dim * self.hidden
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = (q + 2 * kv if self.qkv_bias else 0) + (self.hidden if self.o_bias else 0)
        return self.hidden * (q + 2 * kv) + q * self.hidden + bias


_DTYPE_BITS = {"bf16": 16, "fp16": 16, "fp32": 32}
# Scales included. MXFP4: one 8-bit scale per 32 weights. NVFP4: one per 16. AWQ and GPTQ: a 16-bit scale and a 4-bit
# zero point per 128. FP8 and INT8: scales per block of 128 x 128 or per channel, too few to count.
_WEIGHT_BITS = {"": 0, "fp8": 8, "int8": 8, "mxfp4": 4.25, "nvfp4": 4.5, "awq": 4.156, "gptq": 4.156}


def load_model(name_or_path: str) -> ModelSpec:
    """A bundled architecture by name or alias, or the config.json at a path (or in the folder at a path)."""
    known = _by_spelling().get(_spelling(name_or_path))
    if known is not None:
        return known
    path = Path(name_or_path)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json" and path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UnsupportedModel(f"{path}: not JSON ({error})") from error
        name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")
        return ModelSpec.from_config(config, name.removesuffix(".config"))
    raise UnknownModel(
        f"{name_or_path!r} is not a known model nor a config.json; known models are {', '.join(known_models())}"
    )


@cache
def known_models() -> tuple[str, ...]:
    """The ids, sorted."""
    return tuple(sorted(_files()))


def model_aliases(name: str) -> tuple[str, ...]:
    return tuple(_files()[name]["aliases"])


@cache
def _files() -> dict[str, dict[str, Any]]:
    folder = files("cascade_schemas") / "models"
    return {
        entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    }


@cache
def _by_spelling() -> dict[str, ModelSpec]:
    specs: dict[str, ModelSpec] = {}
    for name, entry in _files().items():
        spec = ModelSpec.from_config(entry["config"], name)
        for spelling in (name, *entry["aliases"]):
            assert _spelling(spelling) not in specs, spelling
            specs[_spelling(spelling)] = spec
    return specs


def _spelling(name: str) -> str:
    """`meta-llama/Llama-3.1-8B` and `llama_3.1_8b` are one model; the organisation does not tell models apart."""
    return name.rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-")


_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
_QUANTISATIONS: dict[str, Quantisation] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "awq": "awq",
    "gptq": "gptq",
    "bitsandbytes": "int8",
}


def _parse(config: Mapping[str, Any], name: str) -> ModelSpec:
    # Multimodal models keep the language model's numbers one level down.
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, Mapping) else dict(config)
    name = name or str(merged.get("_name_or_path") or merged.get("model_type") or "model")
    model_type = str(merged.get("model_type") or "")
    read = _OPT if model_type == "opt" else _LLAMA_LIKE
    try:
        fields = {field: read_field(merged) for field, read_field in read.items()}
        spec = ModelSpec(name=name, model_type=model_type, **fields)
    except KeyError as error:
        raise UnsupportedModel(
            f"{name}: config.json lacks {error.args[0]!r}; Cascade reads decoder-only transformers (OPT, Llama, Qwen, "
            "gpt-oss, Mixtral, DeepSeek and alike)"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UnsupportedModel(f"{name}: {first['loc'][0]} = {first['input']!r}: {first['msg']}") from error
    except (TypeError, ValueError) as error:
        raise UnsupportedModel(f"{name}: config.json has a value of the wrong type ({error})") from error
    if spec.heads % spec.kv_heads:
        raise UnsupportedModel(
            f"{name}: {spec.heads} heads cannot share {spec.kv_heads} KV heads; check num_key_value_heads"
        )
    return spec


def _required(key: str) -> Any:
    return lambda config: config[key]


def _experts(config: Mapping[str, Any]) -> int:
    # Mixtral and gpt-oss; Qwen; DeepSeek
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(key):
            return int(config[key])
    return 0


def _dense_layers(config: Mapping[str, Any]) -> int:
    return int(config.get("first_k_dense_replace") or 0) if _experts(config) else 0


def _intermediate(config: Mapping[str, Any]) -> int:
    """Of the dense layers; Mixtral and gpt-oss say `intermediate_size` for their experts and have no dense layer."""
    has_dense = not _experts(config) or _dense_layers(config)
    return int(config["intermediate_size"]) if has_dense else 0


def _moe_intermediate(config: Mapping[str, Any]) -> int:
    return int(config.get("moe_intermediate_size") or config["intermediate_size"]) if _experts(config) else 0


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    window = int(config.get("sliding_window") or 0)
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if not window or config.get("use_sliding_window") is False:
        return ()
    if kinds:
        return tuple(window if "sliding" in kind else 0 for kind in kinds)
    if config.get("model_type") == "gpt_oss":  # every other layer, beginning with a sliding one
        return tuple(window if layer % 2 == 0 else 0 for layer in range(layers))
    full_layers = int(config.get("max_window_layers") or 0)  # Qwen: the first ones attend to everything
    return tuple(0 if layer < full_layers else window for layer in range(layers))


def _activation(key: str) -> Any:
    def read(config: Mapping[str, Any]) -> str:
        word = str(config.get(key, "silu"))
        return _ACTIVATIONS.get(word, word)

    return read


def _dtype(config: Mapping[str, Any]) -> str:
    word = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return _DTYPES.get(word, word)


def _quantisation(config: Mapping[str, Any]) -> str:
    method = str((config.get("quantization_config") or {}).get("quant_method") or "")
    return _QUANTISATIONS.get(method, method)


def _head_dim(config: Mapping[str, Any]) -> int:
    if config.get("kv_lora_rank"):  # MLA: what a head of q is compared in
        return int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"])
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _type_is(*types: str) -> Any:
    return lambda config: config.get("model_type") in types


# Qwen1.5 and Qwen2 have a bias on q, k and v that their config.json does not mention.
_LLAMA_LIKE: dict[str, Any] = {
    "layers": _required("num_hidden_layers"),
    "hidden": _required("hidden_size"),
    "intermediate": _intermediate,
    "heads": _required("num_attention_heads"),
    "kv_heads": lambda c: c.get("num_key_value_heads") or c["num_attention_heads"],
    "head_dim": _head_dim,
    "vocab": _required("vocab_size"),
    "activation": _activation("hidden_act"),
    "qkv_bias": lambda c: bool(c.get("attention_bias")) or c.get("model_type") in {"qwen2", "qwen2_moe"},
    "o_bias": lambda c: bool(c.get("attention_bias")) and not str(c.get("model_type")).startswith("qwen"),
    "mlp_bias": lambda c: bool(c.get("mlp_bias")) or c.get("model_type") == "gpt_oss",
    "qk_norm": _type_is("qwen3", "qwen3_moe"),
    "attention_sinks": _type_is("gpt_oss"),
    "tie_embeddings": lambda c: bool(c.get("tie_word_embeddings")),
    "max_positions": lambda c: c.get("max_position_embeddings") or 2048,
    "experts": _experts,
    "topk": lambda c: (c.get("num_experts_per_tok") or 0) if _experts(c) else 0,
    "moe_intermediate": _moe_intermediate,
    "shared_experts": lambda c: (c.get("n_shared_experts") or 0) if _experts(c) else 0,
    "shared_intermediate": lambda c: (c.get("shared_expert_intermediate_size") or 0) if _experts(c) else 0,
    "dense_layers": _dense_layers,
    "router_bias": _type_is("gpt_oss", "deepseek_v3"),
    "windows": _windows,
    "q_lora_rank": lambda c: c.get("q_lora_rank") or 0,
    "kv_lora_rank": lambda c: c.get("kv_lora_rank") or 0,
    "qk_nope_head_dim": lambda c: c.get("qk_nope_head_dim") or 0,
    "qk_rope_head_dim": lambda c: c.get("qk_rope_head_dim") or 0,
    "v_head_dim": lambda c: c.get("v_head_dim") or 0,
    "dtype": _dtype,
    "quantisation": _quantisation,
}
_OPT: dict[str, Any] = {
    "layers": _required("num_hidden_layers"),
    "hidden": _required("hidden_size"),
    "intermediate": _required("ffn_dim"),
    "heads": _required("num_attention_heads"),
    "kv_heads": _required("num_attention_heads"),
    "head_dim": lambda c: c["hidden_size"] // c["num_attention_heads"],
    "vocab": _required("vocab_size"),
    "activation": _activation("activation_function"),
    "gated": lambda _: False,
    "norm": lambda _: "layer",
    "qkv_bias": lambda c: c.get("enable_bias", True),
    "o_bias": lambda c: c.get("enable_bias", True),
    "mlp_bias": lambda c: c.get("enable_bias", True),
    "tie_embeddings": lambda c: c.get("tie_word_embeddings", True),
    # OPT's position table starts at 2.
    "learned_positions": lambda c: c["max_position_embeddings"] + 2,
    "max_positions": _required("max_position_embeddings"),
    "dtype": _dtype,
    "quantisation": _quantisation,
}
