"""Picture and mask files as people have them: read with all that must survive, repainted in the hole, written anew.

A `Picture` keeps the levels of the file as they are (8 or 16 bits, grey or colour), its transparency, colour profile,
EXIF and resolution. `Picture.x` is what a network sees; `Picture.completed` changes the pixels in the hole and no other
one, bit for bit. Colours are never converted: the network sees the levels of the file's own colour space, and the
result carries the same profile.

In a file a mask is white where the picture is to be repainted, black where it stays, and grey means "repaint this
much": the value becomes the time at which that pixel starts. `read_hole` gives just that, as a number from 0 to 1.

Whatever is wrong with a file, or cannot be done to it, is an `ImageError` that names the file and says what to do.
What was changed on the way without being wrong (a JPEG has no transparency) is said in ``notes``, short sentences for
the user to read.
"""

from __future__ import annotations

from asyncpatch.images.holes import feather as feather
from asyncpatch.images.holes import grow as grow
from asyncpatch.images.picture import PIXELS as PIXELS
from asyncpatch.images.picture import ImageError as ImageError
from asyncpatch.images.picture import Picture as Picture
from asyncpatch.images.reading import blank as blank
from asyncpatch.images.reading import picture_from as picture_from
from asyncpatch.images.reading import read_hole as read_hole
from asyncpatch.images.reading import read_picture as read_picture
from asyncpatch.images.reading import read_text as read_text
from asyncpatch.images.writing import check_target as check_target
from asyncpatch.images.writing import numbered as numbered
from asyncpatch.images.writing import png_of as png_of
from asyncpatch.images.writing import write as write
from asyncpatch.images.writing import write_bytes as write_bytes
