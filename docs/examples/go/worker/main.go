package main

import (
	"fmt"
	"log"
	"time"

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
	check(channel.Qos(1, 0, false)) // one task at a time: the next goes to whoever is free

	deliveries, err := channel.Consume("tasks", "", false, false, false, false, nil)
	check(err)
	fmt.Println("ready")
	for delivery := range deliveries {
		time.Sleep(200 * time.Millisecond) // the work
		fmt.Printf("done: %s\n", delivery.Body)
		check(delivery.Ack(false)) // only now may the queue forget it
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
