"""Training: ``run.train`` runs a ``config.Recipe``; ``asyncpatch.recipes`` has recipes to start from."""
