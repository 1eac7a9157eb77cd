"""Pictures with 16 bits for each pixel, as microscopes and X-ray machines make them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedoptima.core.errors import ConfigError

_MOST, _MOST_OF_8 = 65_535, 255


def eight_bits(picture: Any, where: str) -> Any:
    """The same picture, of pillow's, with 8 bits: pillow would make all above 255 white."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    from PIL import Image

    values = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > _MOST:
        raise ConfigError(
            f"{where}: pixels are from {values.min():g} to {values.max():g} (mode "
            f"{picture.mode}); store the image with 8 or 16 bits per pixel"
        )
    if picture.mode == "I" and values.max() <= _MOST_OF_8:  # 32 bits, of which 8 are in use
        return Image.fromarray(values.astype(np.uint8))
    return Image.fromarray((values // 257).astype(np.uint8))
