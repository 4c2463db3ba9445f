import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("tasks", durable=True)
channel.confirm_delivery()

for number in range(1, 11):
    channel.basic_publish("", "tasks", f"task {number}".encode(), mandatory=True)
print("10 tasks are stored")
connection.close()
