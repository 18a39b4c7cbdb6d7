"""report.html: what a run (or a sweep) was, on one page that needs no network, read back from its directory."""
