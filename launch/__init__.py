"""Starts N processes and calls one function in each; knows no model."""
