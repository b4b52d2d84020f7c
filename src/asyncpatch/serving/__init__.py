"""Pictures for others: jobs that wait their turn (``jobs``), over HTTP (``api``) and on a page (``page``)."""
