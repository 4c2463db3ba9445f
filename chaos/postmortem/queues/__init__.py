"""What became of messages, and how queues and clients fared."""
