package main

import (
	"context"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	connection, err := amqp.Dial("amqp://guest:guest@127.0.0.1:5672/%2F")
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	_, err = channel.QueueDeclare("hello", true, false, false, false, nil)
	check(err)
	check(channel.Confirm(false))

	ctx := context.Background()
	message := amqp.Publishing{Body: []byte("Hello, Quorate!")}
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", "hello", true, false, message)
	check(err)
	if !confirm.Wait() { // until a majority has it on disk
		log.Fatal("refused")
	}
	fmt.Println("sent and confirmed")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
