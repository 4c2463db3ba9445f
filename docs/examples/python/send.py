import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("hello", durable=True)
channel.confirm_delivery()  # basic_publish now waits until a majority has the message on disk

channel.basic_publish("", "hello", b"Hello, Quorate!", mandatory=True)
print("sent and confirmed")
connection.close()
