"""A model's figures on pictures that it was not trained on, cell by cell.

A *cell* is a row of the table: a set of pictures, a kind of holes, and a method with its settings that fills them; or
new pictures, and the set that they should resemble. Each is computed once and kept in a file of its own, so that an
evaluation that was stopped goes on where it was, and several machines can share the cells.

Everything is seeded by the number of the picture: every method sees the same pictures and the same holes, and so does
every number of processes that share a cell.
"""

from __future__ import annotations

from asyncpatch.evaluation.cells import FREE as FREE
from asyncpatch.evaluation.cells import OURS as OURS
from asyncpatch.evaluation.cells import RIVALS as RIVALS
from asyncpatch.evaluation.cells import SAMPLES as SAMPLES
from asyncpatch.evaluation.cells import SUPERVISED as SUPERVISED
from asyncpatch.evaluation.cells import Cell as Cell
from asyncpatch.evaluation.cells import Result as Result
from asyncpatch.evaluation.cells import spaced as spaced
from asyncpatch.evaluation.computing import Counted as Counted
from asyncpatch.evaluation.computing import Evaluation as Evaluation
from asyncpatch.evaluation.likeness import Likeness as Likeness
from asyncpatch.evaluation.tables import frechet_said as frechet_said
from asyncpatch.evaluation.tables import guidance_plot as guidance_plot
from asyncpatch.evaluation.tables import markdown as markdown
from asyncpatch.evaluation.tables import paired as paired
