// Go's amqp091-go.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var steps = map[string]func() string{
	"confirms":      confirms,
	"acks":          acks,
	"channel-error": channelError,
	"topic":         topic,
	"rpc":           rpc,
	"exclusive":     exclusive,
	"mandatory":     mandatory,
	"get":           get,
	"headers":       headers,
	"cancel":        cancel,
	"tx":            tx,
	"large":         large,
	"heartbeat":     heartbeat,
	"requeue":       requeue,
	"dead-letter":   deadLetter,
	"failover":      failover,
}

func confirms() string {
	withQueue("confirms", nil, func(channel *amqp.Channel, queue string) {
		waiting := make([]*amqp.DeferredConfirmation, 200)
		for n := range waiting {
			message := text(fmt.Sprint(n))
			waiting[n] = must(channel.PublishWithDeferredConfirm("", queue, false, false, message))
		}
		for n, confirm := range waiting {
			equal(confirm.Wait(), true, fmt.Sprintf("confirm of %d", n))
		}
		equal(must(channel.QueueDeclarePassive(queue, true, false, false, false, nil)).Messages, 200, "messages")
	})
	return "200 confirmed"
}

func acks() string {
	withQueue("acks", nil, func(channel *amqp.Channel, queue string) {
		for n := range 60 {
			publish(channel, queue, text(fmt.Sprint(n)))
		}
		check(channel.Qos(10, 0, false))
		deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))
		held := []amqp.Delivery{}
		for n := range 60 {
			held = append(held, next(deliveries, fmt.Sprintf("delivery %d", n)))
			equal(string(held[n].Body), fmt.Sprint(n), "body")
			if n == 9 {
				select {
				case <-deliveries:
					panic("an eleventh delivery while none is acknowledged")
				case <-time.After(200 * time.Millisecond):
				}
			}
			if n >= 9 {
				check(held[n-9].Ack(false))
			}
		}
		check(held[59].Ack(true))
	})
	return "60 in order, never more than 10 held"
}

func channelError() string {
	connection := connect(given.Urls[0])
	defer connection.Close()
	channel := must(connection.Channel())
	_, err := channel.QueueDeclarePassive(name("missing"), true, false, false, false, nil)
	var refused *amqp.Error
	equal(errors.As(err, &refused), true, "an error of the broker")
	equal(refused.Code, 404, "code")
	again := must(connection.Channel())
	must(again.QueueDeclare(name("here"), false, false, true, false, nil))
	return refused.Reason
}

func topic() string {
	withQueue("topic", nil, func(channel *amqp.Channel, queue string) {
		outer, inner := name("outer"), name("inner")
		check(channel.ExchangeDeclare(outer, "topic", false, true, false, false, nil))
		check(channel.ExchangeDeclare(inner, "fanout", false, true, true, false, nil))
		check(channel.QueueBind(queue, "", inner, false, nil))
		check(channel.ExchangeBind(inner, "*.b.#", outer, false, nil))
		for _, key := range []string{"a.b", "a.c", "x.b.y.z", "b"} {
			confirm := must(channel.PublishWithDeferredConfirm(outer, key, false, false, text(key)))
			confirm.Wait()
		}
		for _, key := range []string{"a.b", "x.b.y.z"} {
			message, ok, err := channel.Get(queue, true)
			check(err)
			equal(ok, true, "there is a message")
			equal(string(message.Body), key, "key")
		}
		_, ok, _ := channel.Get(queue, true)
		equal(ok, false, "more messages")
	})
	return ""
}

func rpc() string {
	const replyTo = "amq.rabbitmq.reply-to"
	connection := connect(given.Urls[0])
	defer connection.Close()
	server, client := must(connection.Channel()), must(connection.Channel())
	queue := must(server.QueueDeclare(name("rpc"), false, true, false, false, nil)).Name
	requests := must(server.Consume(queue, "", false, false, false, false, nil))
	go func() {
		for request := range requests {
			_ = server.Publish("", request.ReplyTo, false, false, amqp.Publishing{
				CorrelationId: request.CorrelationId,
				Body:          bytes.ToUpper(request.Body),
			})
			_ = request.Ack(false)
		}
	}()
	replies := must(client.Consume(replyTo, "", true, false, false, false, nil))
	for n := range 10 {
		message := text(fmt.Sprint("ask ", n))
		message.ReplyTo, message.CorrelationId = replyTo, fmt.Sprint(n)
		check(client.Publish("", queue, false, false, message))
	}
	for range 10 {
		reply := next(replies, "an answer")
		equal(string(reply.Body), "ASK "+reply.CorrelationId, "answer")
	}
	return "10 answers through " + replyTo
}

func exclusive() string {
	connection, other := connect(given.Urls[0]), connect(given.Urls[0])
	defer connection.Close()
	defer other.Close()
	queue := must(must(connection.Channel()).QueueDeclare("", false, false, true, false, nil)).Name
	equal(strings.HasPrefix(queue, "amq.gen-"), true, "the server named it")
	_, err := must(other.Channel()).QueueDeclarePassive(queue, false, false, true, false, nil)
	var refused *amqp.Error
	equal(errors.As(err, &refused), true, "an error for another connection")
	equal(refused.Code, 405, "code")
	return ""
}

func mandatory() string {
	connection := connect(given.Urls[0])
	defer connection.Close()
	channel := must(connection.Channel())
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	check(channel.Confirm(false))
	confirm := must(channel.PublishWithDeferredConfirm("", name("nowhere"), true, false, text("back")))
	equal(confirm.Wait(), true, "confirm")
	select {
	case returned := <-returns:
		equal(returned.ReplyCode, uint16(312), "code")
		return returned.ReplyText
	default:
		panic("the return does not come before the confirm")
	}
}

func get() string {
	withQueue("get", nil, func(channel *amqp.Channel, queue string) {
		_, ok, err := channel.Get(queue, false)
		check(err)
		equal(ok, false, "a message in the empty queue")
		publish(channel, queue, text("one"))
		message, ok, err := channel.Get(queue, false)
		check(err)
		equal(ok, true, "a message")
		equal(string(message.Body), "one", "body")
		check(message.Ack(false))
	})
	return ""
}

func headers() string {
	sent := amqp.Table{
		"true": true, "byte": int8(-7), "octet": byte(200), "short": int16(-300), "int": int32(-70000),
		"long": int64(1) << 62, "float": float32(0.1), "double": 0.1, "text": "zażółć ☃",
		"bytes": []byte{0, 255}, "decimal": amqp.Decimal{Scale: 4, Value: 31415},
		"time": time.Unix(1700000000, 0), "void": nil,
		"table": amqp.Table{"nested": amqp.Table{"deep": []any{int32(1), "two", nil}}},
		"list":  []any{false, int64(1) << 40, amqp.Table{"in": "list"}},
	}
	withQueue("headers", nil, func(channel *amqp.Channel, queue string) {
		message := amqp.Publishing{
			Headers: sent, ContentType: "application/x-test", ContentEncoding: "none",
			DeliveryMode: 2, Priority: 5, CorrelationId: "c", ReplyTo: "r", Expiration: "600000",
			MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "guest",
			AppId: "a", Body: []byte{0, 1, 254, 255},
		}
		publish(channel, queue, message)
		found, ok, err := channel.Get(queue, true)
		check(err)
		equal(ok, true, "a message")
		for key, value := range sent {
			equal(found.Headers[key], value, "header "+key)
		}
		equal(len(found.Headers), len(sent), "number of headers")
		properties := []any{found.ContentType, found.Priority, found.Expiration, found.MessageId, found.UserId}
		equal(properties, []any{"application/x-test", uint8(5), "600000", "m", "guest"}, "properties")
		equal(found.Timestamp, message.Timestamp, "timestamp")
		equal(found.Body, message.Body, "body")
	})
	return fmt.Sprintf("%d headers", len(sent))
}

func cancel() string {
	connection := connect(given.Urls[0])
	defer connection.Close()
	channel, other := must(connection.Channel()), must(connection.Channel())
	queue := must(channel.QueueDeclare(name("cancel"), true, false, false, false, nil)).Name
	cancelled := channel.NotifyCancel(make(chan string, 1))
	must(channel.Consume(queue, "mine", false, false, false, false, nil))
	must(other.QueueDelete(queue, false, false, false))
	select {
	case tag := <-cancelled:
		equal(tag, "mine", "consumer tag")
	case <-time.After(waitMax):
		panic("no cancel notification")
	}
	return ""
}

func tx() string {
	withQueue("tx", nil, func(other *amqp.Channel, queue string) {
		connection := connect(given.Urls[0])
		defer connection.Close()
		channel := must(connection.Channel())
		count := func() int { return must(other.QueueDeclarePassive(queue, true, false, false, false, nil)).Messages }
		check(channel.Tx())
		check(channel.Publish("", queue, false, false, text("dropped")))
		check(channel.TxRollback())
		check(channel.Publish("", queue, false, false, text("kept")))
		equal(count(), 0, "messages before the commit")
		check(channel.TxCommit())
		equal(count(), 1, "messages after the commit")
	})
	return ""
}

func large() string {
	body := bytes.Repeat([]byte("quorate\x00"), 1<<17)
	withQueue("large", nil, func(channel *amqp.Channel, queue string) {
		publish(channel, queue, amqp.Publishing{Body: body})
		message, _, err := channel.Get(queue, true)
		check(err)
		equal(bytes.Equal(message.Body, body), true, "the body is the same")
	})
	return fmt.Sprintf("%d bytes", len(body))
}

func heartbeat() string {
	connection := must(amqp.DialConfig(given.Urls[0], amqp.Config{Heartbeat: time.Second}))
	defer connection.Close()
	time.Sleep(4 * time.Second)
	must(must(connection.Channel()).QueueDeclare("", false, false, true, false, nil))
	return "idle for 4 s at 1 s"
}

func requeue() string {
	withQueue("requeue", nil, func(channel *amqp.Channel, queue string) {
		publish(channel, queue, text("again"))
		first, _, err := channel.Get(queue, false)
		check(err)
		equal(first.Redelivered, false, "redelivered at first")
		check(first.Nack(false, true))
		second, _, err := channel.Get(queue, false)
		check(err)
		equal(second.Redelivered, true, "redelivered after nack")
		check(second.Reject(false))
	})
	return ""
}

func deadLetter() string {
	withQueue("dead", nil, func(channel *amqp.Channel, dead string) {
		args := amqp.Table{
			"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
		}
		withQueue("short", args, func(other *amqp.Channel, short string) {
			publish(other, short, text("late"))
			letter := next(must(channel.Consume(dead, "", true, false, false, false, nil)), "dead letter")
			death := letter.Headers["x-death"].([]any)[0].(amqp.Table)
			found := []any{death["reason"], death["queue"], death["exchange"], death["count"]}
			equal(found, []any{"expired", short, "", int64(1)}, "x-death")
		})
	})
	return "expired, with x-death"
}
