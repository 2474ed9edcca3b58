import json
from pathlib import Path

import pytest
from cascade_schemas.model import ModelSpec, UnknownModel, UnsupportedModel, known_models, load_model, model_aliases
from hypothesis import given
from hypothesis import strategies as st

SAMPLES = Path(__file__).parents[2] / "services" / "samples"

# Parameters of the published checkpoints (the safetensors index of each on Hugging Face), every tensor counted once.
PUBLISHED = {
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-1.3b": 1_315_758_080,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "Qwen/Qwen1.5-0.5B-Chat": 463_987_712,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_are_those_published(name, parameters):
    assert load_model(name).parameter_count == parameters


def test_deepseek_v3_has_the_671_billion_of_its_report():
    assert round(load_model("deepseek-ai/DeepSeek-V3").parameter_count / 1e9) == 671


def test_every_bundled_model_names_its_source():
    folder = Path(__file__).parents[2] / "schemas" / "cascade_schemas" / "models"
    assert {path.stem for path in folder.glob("*.json")} == set(known_models())
    for path in folder.glob("*.json"):
        assert len(json.loads(path.read_text())["source"]) > 20, path


def test_names_are_forgiving_and_unknown_ones_list_the_known():
    assert load_model("meta-llama/Llama-3.1-70B") is load_model("LLAMA_3.1_70B")
    assert "Meta-Llama-3.1-8B" in model_aliases("llama-3.1-8b")
    with pytest.raises(UnknownModel, match=r"gpt-oss-20b, llama-3\.1-70b"):
        load_model("gpt-5")


def test_the_samples_configs_are_the_bundled_models():
    assert load_model(str(SAMPLES / "llama-3.2-1b.config.json")) == load_model("llama-3.2-1b")
    recorded = load_model(str(SAMPLES / "opt-125m.config.json"))  # recorded in bf16, published in fp16
    assert recorded.model_copy(update={"dtype": "fp16"}) == load_model("opt-125m")


def test_a_folder_with_a_config_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text((SAMPLES / "opt-125m.config.json").read_text())
    assert load_model(str(tmp_path)).hidden == 768


def test_an_unreadable_config_says_what_is_wrong(tmp_path):
    bad = tmp_path / "config.json"
    bad.write_text("{")
    with pytest.raises(UnsupportedModel, match="not JSON"):
        load_model(str(bad))
    with pytest.raises(UnsupportedModel, match="lacks 'num_hidden_layers'"):
        ModelSpec.from_config({"model_type": "bert"}, "bert")
    llama = json.loads((SAMPLES / "llama-3.2-1b.config.json").read_text())
    with pytest.raises(UnsupportedModel, match="cannot share 7 KV heads"):
        ModelSpec.from_config({**llama, "num_key_value_heads": 7}, "odd")
    with pytest.raises(UnsupportedModel, match="activation = 'tanh'"):
        ModelSpec.from_config({**llama, "hidden_act": "tanh"}, "odd")
    with pytest.raises(UnsupportedModel, match=r"wrong type.*many"):
        ModelSpec.from_config({**llama, "num_hidden_layers": "many"}, "odd")


def test_weight_bytes_follow_dtype_quantisation_and_sharding():
    llama = load_model("llama-3.1-8b")
    assert llama.weight_bytes() == 2 * llama.parameter_count
    assert llama.weight_bytes(8) == pytest.approx(2 * llama.parameter_count / 8, rel=1e-3)
    # 12.8 GiB on disk, the checkpoint's published size
    assert load_model("gpt-oss-20b").weight_bytes() == pytest.approx(13.76e9, rel=0.01)


def test_kv_bytes_per_token():
    # 2 (K and V) x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB
    assert load_model("llama-3.1-8b").kv_bytes_per_token() == 131_072
    assert load_model("llama-3.1-8b").kv_bytes_per_token(tp=8) == 16_384
    assert load_model("llama-3.1-8b").kv_bytes_per_token(tp=16) == 16_384  # a KV head is never cut
    assert load_model("llama-3.1-8b").kv_bytes_per_token(kv_bits=8) == 65_536
    # 61 layers x (512 + 64) x 2 bytes: the latent is on every GPU
    assert load_model("deepseek-v3").kv_bytes_per_token(tp=8) == 70_272


def test_gpt_oss_slides_in_every_other_layer():
    spec = load_model("gpt-oss-20b")
    assert [spec.window(layer) for layer in range(4)] == [128, 0, 128, 0]
    assert load_model("qwen1.5-0.5b").window(0) == 0


def test_the_language_model_inside_a_multimodal_one_is_read():
    llama = json.loads((SAMPLES / "llama-3.2-1b.config.json").read_text())
    spec = ModelSpec.from_config({"model_type": "llava", "text_config": llama}, "llava")
    assert (spec.model_type, spec.layers) == ("llama", 16)


@given(st.sampled_from(known_models()), st.sampled_from([1, 2, 4, 8]))
def test_more_gpus_never_hold_more_weights_each(name, tp):
    spec = load_model(name)
    assert spec.weight_bytes(2 * tp) <= spec.weight_bytes(tp)
    assert spec.kv_bytes_per_token(2 * tp) <= spec.kv_bytes_per_token(tp)
