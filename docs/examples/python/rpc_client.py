import sys
import uuid

import pika

number = sys.argv[1]
question = uuid.uuid4().hex


def on_answer(channel, method, properties, body):
    if properties.correlation_id == question:
        print(f"{number} squared is {body.decode()}")
        channel.stop_consuming()


connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("square", durable=True)
# Direct reply-to: the answer comes over this channel, and no queue is made for it.
channel.basic_consume("amq.rabbitmq.reply-to", on_answer, auto_ack=True)
channel.basic_publish(
    "",
    "square",
    number.encode(),
    pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=question),
)
channel.start_consuming()
connection.close()
