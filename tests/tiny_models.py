"""Tiny random models of the real architectures, with processors, saved to folders that `from_pretrained` opens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = [
    "put the red cube on the green pad",
    "pick up the blue cube and place it in the bowl",
    "True False yes no answer score progress percent ANSWER: 0 1 2 3 4 5",
    "The above video shows a robot manipulation trajectory that completes the following task",
]
IMAGE = 64  # pixels; patches of 16


@cache
def _trained(special: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<pad>", "<s>", "</s>", *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS * 20, trainer)
    return str(tokenizer.to_str())


def tokenizer_of(special: tuple[str, ...], named: dict[str, str] | None = None, eos: str = "</s>") -> Any:
    """A byte-level BPE tokenizer with special tokens."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(special)),
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=eos,
        **({"extra_special_tokens": named} if named else {}),
    )


def _chat(image: str, video: str = "", turn: tuple[str, str] = ("<|im_start|>", "<|im_end|>\n")) -> str:
    """A chat template like Qwen's, with the family's own placeholders."""
    return (
        "{% for m in messages %}" + turn[0] + "{{m.role}}\n{% for c in m.content %}"
        "{% if c.type=='image' %}" + image + "{% elif c.type=='video' %}" + video + "{% else %}{{c.text}}{% endif %}"
        "{% endfor %}" + turn[1] + "{% endfor %}"
        "{% if add_generation_prompt %}" + turn[0] + "assistant\n{% endif %}"
    )


def _save(folder: Path, model: Any, processor: Any, scale: float = 3.0) -> Path:
    """Larger parameters than the initial ones, so that different inputs give visibly different outputs."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                if not parameter.any():  # Gemma 3 starts its image projection at zero: pictures would not matter
                    parameter.normal_(std=0.02)
                parameter.mul_(scale)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
QWEN = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def _qwen_chat() -> str:
    return _chat("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>")


def qwen3_vl(folder: Path, **sizes: Any) -> Path:
    """Qwen3-VL: three-dimensional rotary positions, deep-stacked visual features. `sizes` change text_config."""
    tokenizer = tokenizer_of(QWEN, eos="<|im_end|>")
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in QWEN}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = TEXT | {"vocab_size": len(tokenizer), "rope_parameters": rope} | sizes
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config={
            "depth": 2,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_heads": 4,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": text["hidden_size"],
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    processor = transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(
            patch_size=16, merge_size=2, min_pixels=IMAGE * IMAGE, max_pixels=4 * IMAGE * IMAGE
        ),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(patch_size=16, merge_size=2, temporal_patch_size=2),
        chat_template=_qwen_chat(),
    )
    return _save(folder, transformers.Qwen3VLForConditionalGeneration(config), processor)


def qwen2_5_vl(folder: Path) -> Path:
    """Qwen2.5-VL: three-dimensional rotary positions, windowed vision attention."""
    tokenizer = tokenizer_of(QWEN, eos="<|im_end|>")
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in QWEN}
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text | {"vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config={
            "depth": 2,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_heads": 4,
            "patch_size": 16,
            "window_size": 64,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(
            patch_size=16, merge_size=2, min_pixels=IMAGE * IMAGE, max_pixels=4 * IMAGE * IMAGE
        ),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(patch_size=16, merge_size=2),
        chat_template=_qwen_chat(),
    )
    return _save(folder, transformers.Qwen2_5_VLForConditionalGeneration(config), processor)


def smolvlm(folder: Path) -> Path:
    """SmolVLM2: a Llama text model, pixel-shuffled SigLIP features."""
    named = {
        "image_token": "<image>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "end_of_utterance_token": "<end_of_utterance>",
    }
    tokenizer = tokenizer_of(tuple(named.values()), named)
    config = transformers.SmolVLMConfig(
        text_config=TEXT
        | {
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": False,
        },
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": IMAGE,
            "patch_size": 16,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    processor = transformers.SmolVLMProcessor(
        image_processor=transformers.SmolVLMImageProcessor(
            size={"longest_edge": IMAGE}, max_image_size={"longest_edge": IMAGE}, do_image_splitting=False
        ),
        tokenizer=tokenizer,
        video_processor=transformers.SmolVLMVideoProcessor(),
        image_seq_len=4,
        chat_template=_chat("<image>", turn=("<|im_start|>", "<end_of_utterance>\n")),
    )
    return _save(folder, transformers.SmolVLMForConditionalGeneration(config), processor)


def _siglip_vision() -> dict[str, Any]:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": IMAGE,
        "patch_size": 16,
        "vision_use_head": False,
    }


def paligemma(folder: Path) -> Path:
    """PaliGemma: a Gemma text model that attends in both directions over image tokens."""
    tokenizer = tokenizer_of(("<image>",))
    config = transformers.PaliGemmaConfig(
        text_config=TEXT | {"model_type": "gemma", "vocab_size": len(tokenizer)},
        vision_config=_siglip_vision() | {"projection_dim": 64},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=64,
        hidden_size=64,
    )
    images = transformers.SiglipImageProcessor(size={"height": IMAGE, "width": IMAGE})
    images.image_seq_length = 16
    processor = transformers.PaliGemmaProcessor(image_processor=images, tokenizer=tokenizer)
    return _save(folder, transformers.PaliGemmaForConditionalGeneration(config), processor)


def gemma3(folder: Path) -> Path:
    """Gemma 3: sliding and full attention in turn, both directions within an image."""
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = tokenizer_of((*named.values(), "<start_of_turn>", "<end_of_turn>"), named)
    config = transformers.Gemma3Config(
        text_config=TEXT
        | {
            "vocab_size": len(tokenizer),
            "sliding_window": 4096,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 16,
        },
        vision_config=_siglip_vision(),
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
    )
    processor = transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessor(size={"height": IMAGE, "width": IMAGE}),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template=_chat("<start_of_image>", turn=("<start_of_turn>", "<end_of_turn>\n")),
    )
    return _save(folder, transformers.Gemma3ForConditionalGeneration(config), processor)


def internvl(folder: Path) -> Path:
    """InternVL 3: a Qwen2 text model, pixel-shuffled features of its own vision tower."""
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = tokenizer_of((*named.values(), "<|im_start|>", "<|im_end|>"), named, eos="<|im_end|>")
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.InternVLConfig(
        text_config=text | {"model_type": "qwen2", "vocab_size": len(tokenizer)},
        vision_config={
            "model_type": "internvl_vision",
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": [IMAGE, IMAGE],
            "patch_size": [16, 16],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    processor = transformers.InternVLProcessor(
        image_processor=transformers.GotOcr2ImageProcessor(
            size={"height": IMAGE, "width": IMAGE}, crop_to_patches=False
        ),
        tokenizer=tokenizer,
        video_processor=transformers.InternVLVideoProcessor(size={"height": IMAGE, "width": IMAGE}),
        image_seq_length=4,
        chat_template=_chat("<IMG_CONTEXT>\n"),
    )
    return _save(folder, transformers.InternVLForConditionalGeneration(config), processor)


def llava_onevision(folder: Path) -> Path:
    """LLaVA-OneVision: a Qwen2 text model on SigLIP features, one learned line break after each row of tiles."""
    tokenizer = tokenizer_of(("<image>", "<video>", "<|im_start|>", "<|im_end|>"), eos="<|im_end|>")
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.LlavaOnevisionConfig(
        text_config=text | {"model_type": "qwen2", "vocab_size": len(tokenizer)},
        vision_config=_siglip_vision(),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[IMAGE, IMAGE]],
        vision_aspect_ratio="anyres_max_9",
        vision_feature_layer=-1,
    )
    processor = transformers.LlavaOnevisionProcessor(
        image_processor=transformers.LlavaOnevisionImageProcessor(
            size={"height": IMAGE, "width": IMAGE}, image_grid_pinpoints=[[IMAGE, IMAGE]]
        ),
        tokenizer=tokenizer,
        video_processor=transformers.LlavaOnevisionVideoProcessor(size={"height": IMAGE, "width": IMAGE}),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=_chat("<image>"),
    )
    return _save(folder, transformers.LlavaOnevisionForConditionalGeneration(config), processor)


def clip(folder: Path) -> Path:
    """CLIP: one vector an image, one a text."""
    tokenizer = tokenizer_of((), eos="</s>")
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 77,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": IMAGE,
        "patch_size": 16,
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": IMAGE}, crop_size={"height": IMAGE, "width": IMAGE})
    return _save(folder, transformers.CLIPModel(config), transformers.CLIPProcessor(images, tokenizer))


def siglip(folder: Path) -> Path:
    """SigLIP: like CLIP, pooled by attention, with a pairwise sigmoid loss."""
    tokenizer = tokenizer_of(())
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = transformers.SiglipConfig(text_config=text, vision_config=_siglip_vision() | {"vision_use_head": True})
    images = transformers.SiglipImageProcessor(size={"height": IMAGE, "width": IMAGE})
    return _save(folder, transformers.SiglipModel(config), transformers.SiglipProcessor(images, tokenizer))


VLMS: dict[str, Callable[[Path], Path]] = {
    "qwen3_vl": qwen3_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "smolvlm": smolvlm,
    "paligemma": paligemma,
    "gemma3": gemma3,
    "internvl": internvl,
    "llava_onevision": llava_onevision,
}
DUAL_ENCODERS: dict[str, Callable[[Path], Path]] = {"clip": clip, "siglip": siglip}


@cache
def tiny(name: str, base: Path) -> Path:
    """Build a model once a test process: `base` is a session-wide temporary folder."""
    torch.manual_seed(0)
    return {**VLMS, **DUAL_ENCODERS}[name](base / name)
