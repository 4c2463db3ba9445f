"""The committed entries through the real machine."""
