import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("payments.dead", durable=True)
channel.queue_declare(
    "payments",
    durable=True,
    arguments={
        "x-delivery-limit": 2,  # two retries; what fails again is dead-lettered
        "x-delayed-retry-type": "failed",  # a failed message waits before it comes again
        "x-delayed-retry-min": 200,  # ms, times the failures so far
        "x-dead-letter-exchange": "",  # the default exchange: its key is a queue's name
        "x-dead-letter-routing-key": "payments.dead",
    },
)
channel.confirm_delivery()
channel.basic_publish("", "payments", b"order 17")
channel.basic_publish("", "payments", b"order without a number")

for method, _, body in channel.consume("payments", inactivity_timeout=3):
    if method is None:
        break  # nothing came for three seconds
    if body.startswith(b"order 1"):
        print("paid:", body.decode())
        channel.basic_ack(method.delivery_tag)
    else:
        print("failed:", body.decode())
        channel.basic_nack(method.delivery_tag, requeue=True)
connection.close()
