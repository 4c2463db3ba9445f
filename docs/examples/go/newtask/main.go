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
	_, err = channel.QueueDeclare("tasks", true, false, false, false, nil)
	check(err)
	check(channel.Confirm(false))

	ctx := context.Background()
	var confirms []*amqp.DeferredConfirmation
	for number := 1; number <= 10; number++ {
		message := amqp.Publishing{Body: fmt.Appendf(nil, "task %d", number)}
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", "tasks", true, false, message)
		check(err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		if !confirm.Wait() {
			log.Fatal("refused")
		}
	}
	fmt.Println("10 tasks are stored")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
