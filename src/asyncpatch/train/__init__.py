"""Training: ``run.train`` runs a recipe of ``config``; ``asyncpatch.recipes`` has recipes to start from."""
