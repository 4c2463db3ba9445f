import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
arguments = {"x-queue-type": "stream", "x-max-age": "7D"}  # messages go after seven days
channel.queue_declare("events", durable=True, arguments=arguments)
channel.confirm_delivery()
for number in range(1, 4):
    channel.basic_publish("", "events", f"event {number}".encode())
print("3 events are stored")
connection.close()
