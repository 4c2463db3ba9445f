"""Consensus: PySyncObj made safe, driven in rounds. The only place that imports pysyncobj."""
