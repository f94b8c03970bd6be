"""Families of vision-language models: folders that run, and refusals."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from picture_helpers import (
    TEXTS,
    make_renderer,
    make_vlm_engine,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
    sample_conversation,
    write_vlm,
)

from rllib_llm.data import columns
from rllib_llm.errors import ModelError
from rllib_llm.modules.architectures import check_folder, read_config
from rllib_llm.modules.tiny import build_tokenizer
from rllib_llm.pictures.spec import image_spec, refused_family

# As in SmolVLM's: content is a list of parts, roles are words, turns end with a token.
PARTS_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' }}"
    "{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
SPECIAL = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")


def write_idefics3(folder) -> str:
    """Write a tiny Idefics3 with a template and control tokens like SmolVLM's."""
    tokenizer = build_tokenizer(TEXTS, 360, SPECIAL)
    tokenizer.eos_token = "<end_of_utterance>"
    tokenizer.chat_template = PARTS_TEMPLATE
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 24,
        "patch_size": 4,
    }
    config = tf.Idefics3Config(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=3,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    tf.Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_an_idefics3_folder_samples_as_it_scores(tmp_path):
    folder = write_idefics3(tmp_path / "model")
    spec = image_spec(folder)
    assert (spec.family, spec.count, spec.size, spec.patches) == ("idefics3", 4, 24, 36)
    assert spec.before == "<fake_token_around_image><global-img>"
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vlm_engine(module, folder)
    shown = [("<image> What?", [picture(1)]), ("And <image>?", [picture(2, 60, 20)])]
    batch = row_batch([sample_conversation(engine, renderer, shown)], folder)
    gap = row_scores(module, batch) - batch[columns.BEHAVIOUR_LOGP]
    assert gap.abs().max() < 1e-5
    shown = renderer.tokenizer.decode(batch[columns.INPUT_IDS][0])
    run = spec.before + "<image>" * 4 + spec.after
    assert shown.startswith(f"User: {run} What?<end_of_utterance>\nAssistant: ")


def test_a_saved_model_keeps_its_processor_and_its_scores(tmp_path):
    folder = write_vlm(tmp_path / "model", image_size=16, patch_size=4)
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vlm_engine(module, folder)
    conversation = sample_conversation(engine, renderer, [("<image>?", [picture(1)])])
    out = tmp_path / "out"
    module.save_model(out)
    assert (out / "preprocessor_config.json").is_file()
    assert image_spec(str(out)) == image_spec(folder)
    again = make_vlm_module(str(out))
    batch = row_batch([conversation], folder)
    torch.testing.assert_close(row_scores(again, batch), row_scores(module, batch))
    loaded = tf.AutoModelForImageTextToText.from_pretrained(out)
    assert type(loaded).__name__ == "SmolVLMForConditionalGeneration"
    processor = tf.AutoImageProcessor.from_pretrained(out)
    assert list(processor.image_mean) == [0.5, 0.5, 0.5]


def test_a_module_checkpoint_restores_to_the_bit(tmp_path, vlm, renderer, module):
    engine = make_vlm_engine(module, vlm)
    batch = row_batch(
        [sample_conversation(engine, renderer, [("<image>?", [picture(1)])])], vlm
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    module.save_to_path(tmp_path / "saved")
    again = type(module).from_checkpoint(tmp_path / "saved")
    assert torch.equal(row_scores(again, batch), row_scores(module, batch))
    assert (tmp_path / "saved" / "hf" / "preprocessor_config.json").is_file()


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (tf.Qwen2VLConfig(), "'qwen2_vl'.*three dimensions"),
        (tf.Qwen2_5_VLConfig(), "'qwen2_5_vl'.*three dimensions"),
        (tf.LlavaConfig(), "'llava'.*not implemented"),
        (tf.InternVLConfig(), "'internvl'.*not implemented"),
    ],
)
def test_other_families_are_refused_by_name(tmp_path, config, rule):
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rule + ".*smolvlm.*tiny-vlm"):
        read_config(str(tmp_path))
    with pytest.raises(ModelError, match=rule):
        check_folder(str(tmp_path), None)


def test_gemma3_remains_a_model_of_text(tmp_path):
    tf.Gemma3Config().save_pretrained(tmp_path)
    assert image_spec(str(tmp_path)) is None
    assert "both directions" in refused_family("gemma3")


def test_sizes_that_do_not_fit_are_refused(tmp_path):
    folder = write_vlm(tmp_path / "model")
    config = tf.SmolVLMConfig.from_pretrained(folder)
    config.vision_config.image_size = 40  # 5 patches, which scale_factor 2 cannot halve
    config.save_pretrained(folder)
    with pytest.raises(ModelError, match="scale_factor=2"):
        image_spec(str(folder) + "/")
