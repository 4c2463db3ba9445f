"""Bytes: commands, replies and entries as CBOR. One tag table, golden files of every past version."""
