"""Model families; each is a folder of its own and imports no other."""
