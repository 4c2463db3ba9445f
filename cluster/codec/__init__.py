"""Bytes: commands, replies, entries as CBOR. One tag table, golden files of every version."""
