"""The types that engine, tasks, families, data and records share; they hold data and promise shapes, and do no work."""
