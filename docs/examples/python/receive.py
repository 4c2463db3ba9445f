import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("hello", durable=True)

print("waiting for messages", flush=True)
for method, _, body in channel.consume("hello"):
    print("received:", body.decode(), flush=True)
    channel.basic_ack(method.delivery_tag)
