"""Federation: exchanges and queues that get what is published to those of other clusters."""
