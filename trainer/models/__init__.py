"""Models that tasks are built from. It refuses to know data or losses."""
