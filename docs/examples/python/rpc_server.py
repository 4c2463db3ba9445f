import pika

connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1:5672/%2F"))
channel = connection.channel()
channel.queue_declare("square", durable=True)
channel.basic_qos(prefetch_count=1)

print("serving", flush=True)
for method, request, body in channel.consume("square"):
    answer = str(int(body) ** 2).encode()
    # To where the caller waits, with the id that tells it which question this answers.
    reply = pika.BasicProperties(correlation_id=request.correlation_id)
    channel.basic_publish("", request.reply_to, answer, reply)
    channel.basic_ack(method.delivery_tag)
