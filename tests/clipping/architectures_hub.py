"""Families of keras_hub and keras.applications with random weights, in small."""

import importlib.util

import keras
import numpy as np
from architectures import add
from keras import layers
from networks import T, V, entropy, ids, normal

SMALL = {"vocabulary_size": V, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 12}
HEADS = {**SMALL, "num_heads": 2}
GROUPS = {**SMALL, "num_query_heads": 2, "num_key_value_heads": 1}


def hub(family, inputs, pool=None, **kwargs):
    """A backbone with a head of three classes on its output, by name if there are several."""

    def build():
        import keras_hub

        backbone = getattr(keras_hub.models, f"{family}Backbone")(**kwargs)
        outputs = backbone.output
        outputs = outputs[pool] if pool else outputs
        if len(outputs.shape) > 2:
            outputs = keras.ops.mean(outputs, tuple(range(1, len(outputs.shape) - 1)))
        model = keras.Model(backbone.inputs, layers.Dense(3)(outputs))
        return model

    def data():
        made = {
            "tokens": lambda: ids(T), "padding": lambda: np.tril(np.ones((3, T), np.int32), 3),
            "segments": lambda: ids(T, high=2),
        }  # fmt: skip
        named = {name: made[kind]() for name, kind in inputs.items()}
        return named, ids(high=3)

    if importlib.util.find_spec("keras_hub"):
        add(f"keras_hub {family}", build, data, entropy, scale=0.05)


def images(family, size, outputs=None, **kwargs):
    def build():
        import keras_hub

        backbone = getattr(keras_hub.models, f"{family}Backbone")(**kwargs)
        pooled = layers.Flatten()(backbone.output if outputs is None else backbone.output[outputs])
        return keras.Model(backbone.inputs, layers.Dense(3)(pooled))

    if importlib.util.find_spec("keras_hub"):
        add(f"keras_hub {family}", build, lambda: (normal(*size), ids(high=3)), entropy,
            scale=0.05)  # fmt: skip


TEXT = {"token_ids": "tokens", "padding_mask": "padding"}
SEGMENTS = {**TEXT, "segment_ids": "segments"}
PAIR = {f"{side}_{name}": kind for side in ("encoder", "decoder") for name, kind in TEXT.items()}
CLEAN = {"dropout": 0.0}
hub("Bert", SEGMENTS, "sequence_output", **HEADS, **CLEAN, max_sequence_length=T)
hub("Roberta", TEXT, **HEADS, **CLEAN, max_sequence_length=T)
hub("XLMRoberta", TEXT, **HEADS, **CLEAN, max_sequence_length=T)
hub("DebertaV3", TEXT, **HEADS, **CLEAN, max_sequence_length=T, bucket_size=4)
hub("DistilBert", TEXT, **HEADS, **CLEAN, max_sequence_length=T)
hub("Albert", SEGMENTS, "sequence_output", **HEADS, embedding_dim=4, max_sequence_length=T)
hub("Electra", SEGMENTS, "sequence_output", vocab_size=V, num_layers=2, num_heads=2, hidden_dim=8,
    embedding_dim=4, intermediate_dim=12, **CLEAN, max_sequence_length=T)  # fmt: skip
hub("FNet", {"token_ids": "tokens", "segment_ids": "segments"}, "sequence_output", **SMALL, **CLEAN,
    max_sequence_length=T)  # fmt: skip
hub("GPT2", TEXT, **HEADS, **CLEAN, max_sequence_length=T)
hub("GPTNeoX", TEXT, **HEADS, max_sequence_length=T, rotary_percentage=0.5)
hub("OPT", TEXT, **HEADS, **CLEAN, max_sequence_length=T)
hub("Bloom", TEXT, **HEADS)
hub("Falcon", TEXT, vocabulary_size=V, num_layers=2, num_attention_heads=2, hidden_dim=8,
    intermediate_dim=12)  # fmt: skip
hub("Llama", TEXT, **GROUPS)
hub("Llama3", TEXT, **GROUPS)
hub("Mistral", TEXT, **GROUPS)
hub("Gemma", TEXT, **GROUPS, head_dim=4)
hub("Gemma3", TEXT, **GROUPS, head_dim=4, image_size=None)
hub("Qwen", TEXT, **GROUPS)
hub("Qwen3", TEXT, **GROUPS, head_dim=4)
hub("Phi3", TEXT, **GROUPS)
hub("RoformerV2", {"token_ids": "tokens", "segment_ids": "segments"}, **HEADS, **CLEAN, head_size=4)
hub("ESM", {"token_ids": "tokens"}, **HEADS, **CLEAN, max_sequence_length=T)
hub("T5", PAIR, "decoder_sequence_output", **HEADS, **CLEAN)
hub("Bart", PAIR, "decoder_sequence_output", **HEADS, **CLEAN, max_sequence_length=T)
images("ViT", (8, 8, 3), image_shape=(8, 8, 3), patch_size=4, num_layers=2, num_heads=2,
       hidden_dim=8, mlp_dim=12)  # fmt: skip
images("DeiT", (8, 8, 3), image_shape=(8, 8, 3), patch_size=4, num_layers=2, num_heads=2,
       hidden_dim=8, intermediate_dim=12)  # fmt: skip
images("DINOV2", (8, 8, 3), image_shape=(8, 8, 3), patch_size=4, num_layers=2, num_heads=2,
       hidden_dim=8, intermediate_dim=12, position_embedding_shape=(8, 8, 3),
       use_mask_token=False)  # fmt: skip
images("SwinTransformer", (16, 16, 3), image_shape=(16, 16, 3), patch_size=2, embed_dim=8,
       depths=(2, 2), num_heads=(2, 2), window_size=4, drop_path=0.0)  # fmt: skip
images("VGG", (32, 32, 3), stackwise_num_repeats=[1, 1], stackwise_num_filters=[3, 4],
       image_shape=(32, 32, 3))  # fmt: skip
images("ViTDet", (16, 16, 3), hidden_size=8, num_layers=2, intermediate_dim=12, num_heads=2,
       global_attention_layer_indices=[1], image_shape=(16, 16, 3), patch_size=4,
       num_output_channels=4, window_size=2)  # fmt: skip


def whisper():
    import keras_hub

    backbone = keras_hub.models.WhisperBackbone(
        **HEADS, num_mels=4, max_encoder_sequence_length=2 * T, max_decoder_sequence_length=T
    )
    pooled = keras.ops.mean(backbone.output["decoder_sequence_output"], 1)
    return keras.Model(backbone.inputs, layers.Dense(3)(pooled))


if importlib.util.find_spec("keras_hub"):
    add("keras_hub Whisper", whisper, lambda: (
        {"encoder_features": normal(2 * T, 4), "decoder_token_ids": ids(T),
         "decoder_padding_mask": np.tril(np.ones((3, T), np.int32), 3)}, ids(high=3)),
        entropy, scale=0.05)  # fmt: skip


def convnext():
    from keras.src.applications.convnext import ConvNeXt

    return ConvNeXt(
        depths=[1, 1, 1, 1], projection_dims=[4, 4, 6, 6], include_top=True, weights=None,
        input_shape=(32, 32, 3), classes=3, classifier_activation=None, include_preprocessing=False,
        name="convnext", default_size=32,
    )  # fmt: skip


add("ConvNeXt", convnext, lambda: (normal(32, 32, 3), ids(high=3)), entropy, scale=0.05)
