"""How TensorFlow Serving takes an export, in words to copy."""

import pathlib

_EXAMPLES = {
    "dpformer": '{"sequences": [12, 7, 31]}',
    "transitions": '{"sequences": [12, 7, 31]}',
    "text": '{"sentences": "a text"}',
    "ctr": None,
}


def how_to_serve(folder: pathlib.Path, model: str) -> str:
    """Commands that start TensorFlow Serving on an export, and ask it.

    Args:
        folder: a folder written by `tfdp.serving.export`.
        model: what kind of model is in it.
    """
    name, example = f"tfdp_{model}", _EXAMPLES[model]
    lines = [
        "TensorFlow Serving takes it as it is; tfdp is not needed there:",
        "  docker run -p 8501:8501 -e MODEL_NAME=" + name + " \\",
        f'    -v "{folder.resolve()}:/models/{name}/1" tensorflow/serving',
    ]
    url = f"http://localhost:8501/v1/models/{name}"
    if example is None:
        lines.append(f"  curl {url}/metadata      # the inputs it takes, by name")
    else:
        lines.append(f"  curl -d '{{\"instances\": [{example}]}}' {url}:predict")
    return "\n".join(lines)
