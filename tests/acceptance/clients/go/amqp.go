package main

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// next is one delivery, in time.
func next(deliveries <-chan amqp.Delivery, what string) amqp.Delivery {
	select {
	case delivery, open := <-deliveries:
		if !open {
			panic(what + ": the consumer was closed")
		}
		return delivery
	case <-time.After(waitMax):
		panic(what + ": not in time")
	}
}

func connect(url string) *amqp.Connection {
	return must(amqp.Dial(url))
}

// withQueue gives a channel in confirm mode, and a queue that is deleted afterwards.
func withQueue(what string, args amqp.Table, work func(*amqp.Channel, string)) {
	connection := connect(given.Urls[0])
	defer connection.Close()
	channel := must(connection.Channel())
	queue := must(channel.QueueDeclare(name(what), true, false, false, false, args)).Name
	defer func() {
		if other, err := connection.Channel(); err == nil {
			_, _ = other.QueueDelete(queue, false, false, false)
		}
	}()
	check(channel.Confirm(false))
	work(channel, queue)
}

func publish(channel *amqp.Channel, queue string, message amqp.Publishing) {
	confirm := must(channel.PublishWithDeferredConfirm("", queue, false, false, message))
	equal(confirm.Wait(), true, "confirm")
}

func text(body string) amqp.Publishing { return amqp.Publishing{Body: []byte(body)} }
