import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
method, properties, body = channel.basic_get("payments.dead")
death = properties.headers["x-death"][0]
print("dead:", body.decode())
print("queue:", death["queue"], "reason:", death["reason"])
channel.basic_nack(method.delivery_tag, requeue=True)  # it stays where it is
connection.close()
