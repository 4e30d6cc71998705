"""Matrices as pictures in a page."""

import base64
import io

import numpy as np
from PIL import Image

RED, BLUE, WHITE, GREY = (np.array(colour) for colour in ((178, 24, 43), (33, 102, 172), (255, 255, 255), (160,) * 3))


def png(pixels: np.ndarray, mode: str) -> str:
    """Return pixels, (height, width, channels of PIL's mode) from 0 to 255, as a data: URL."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8), mode).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def diverging(values: np.ndarray, largest: float) -> str:
    """Return a matrix as a data: URL of a picture: `largest` is red, zero white, -largest blue, -infinity grey."""
    share = np.where(np.isfinite(values), values / largest, 0)[..., None]
    pixels = WHITE + np.abs(share) * (np.where(share > 0, RED, BLUE) - WHITE)
    return png(np.where(np.isfinite(values)[..., None], pixels, GREY), "RGB")
