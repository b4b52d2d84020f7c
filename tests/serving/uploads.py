"""Files as clients send them."""

import io

import numpy as np
from PIL import Image


def png(array):
    file = io.BytesIO()
    Image.fromarray(np.asarray(array)).save(file, "PNG")
    return file.getvalue()
