"""What happened, from the logs of the nodes alone: read by Spark, replayed by the real machine."""
