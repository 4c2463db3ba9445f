"""`make compare`: Quorate beside RabbitMQ and NATS JetStream, workload by workload, in one run."""
