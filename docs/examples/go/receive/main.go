package main

import (
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

	deliveries, err := channel.Consume("hello", "", false, false, false, false, nil)
	check(err)
	fmt.Println("waiting for messages")
	for delivery := range deliveries {
		fmt.Printf("received: %s\n", delivery.Body)
		check(delivery.Ack(false))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
