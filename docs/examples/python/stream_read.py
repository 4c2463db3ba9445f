import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.basic_qos(prefetch_count=100)  # streams need one


def on_message(channel, method, properties, body):
    offset = properties.headers["x-stream-offset"]
    print(f"{offset}: {body.decode()}", flush=True)
    channel.basic_ack(method.delivery_tag)  # asks for more; the message stays in the stream


channel.basic_consume("events", on_message, arguments={"x-stream-offset": "first"})
channel.start_consuming()
