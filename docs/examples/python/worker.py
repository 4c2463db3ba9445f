import time

import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("tasks", durable=True)
channel.basic_qos(prefetch_count=1)  # one task at a time: the next goes to whoever is free

print("ready", flush=True)
for method, _, body in channel.consume("tasks"):
    time.sleep(0.2)  # the work
    print("done:", body.decode(), flush=True)
    channel.basic_ack(method.delivery_tag)  # only now may the queue forget it
