package main

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// failover publishes at the leader, has it killed, and reconnects to the next address. A consumer
// at a node that survives takes all the while.
func failover() string {
	queue, args := name("failover"), amqp.Table{"x-queue-type": "quorum"}
	connection := connect(given.Urls[0])
	must(must(connection.Channel()).QueueDeclare(queue, true, false, false, false, args))
	_ = connection.Close()
	urls := []string{}
	for _, url := range ask("leader", queue)["urls"].([]any) {
		urls = append(urls, url.(string))
	}

	survivor := connect(urls[1])
	defer survivor.Close()
	consumer := must(survivor.Channel())
	check(consumer.Qos(20, 0, false))
	deliveries := must(consumer.Consume(queue, "", false, false, false, false, nil))

	confirmed := 0
	published := make(chan error, 1)
	reconnects := 0
	go func() {
		_, err := attempt(func() string { reconnects = publishThroughout(queue, urls, &confirmed); return "" })
		published <- err
	}()
	seen, twice, done := map[string]bool{}, 0, false
	for !done || len(seen) < confirmed {
		select {
		case err := <-published:
			check(err)
			done = true
		case delivery, open := <-deliveries:
			if !open {
				panic("the consumer at a node that survives was closed")
			}
			if seen[string(delivery.Body)] {
				twice++
			}
			seen[string(delivery.Body)] = true
			check(delivery.Ack(false))
		case <-time.After(reconnectMax + waitMax):
			panic(fmt.Sprintf("%d confirmed, %d consumed, no more", confirmed, len(seen)))
		}
	}
	must(consumer.QueueDelete(queue, false, false, false))
	return fmt.Sprintf("%d confirmed, %d reconnects, %d twice", confirmed, reconnects, twice)
}

// publishThroughout says how often it had to connect again. Bodies are numbers without gaps, so
// all that is confirmed was consumed when as many different ones were.
func publishThroughout(queue string, urls []string, confirmed *int) (reconnects int) {
	deadline := time.Now().Add(reconnectMax)
	dead := make(chan struct{})
	after, asked := 0, false
	for after < afterKill {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("%d confirmed, and not done in time", *confirmed))
		}
		err := publishing(urls[reconnects%len(urls)], func(channel *amqp.Channel) error {
			for after < afterKill {
				message := amqp.Publishing{DeliveryMode: 2, Body: []byte(fmt.Sprint(*confirmed))}
				confirm, err := channel.PublishWithDeferredConfirm("", queue, false, false, message)
				if err != nil {
					return err
				}
				// A confirm that a lost connection ends counts as refused.
				if !confirm.Wait() {
					return fmt.Errorf("not confirmed")
				}
				*confirmed++
				select {
				case <-dead:
					after++
				default:
				}
				if !asked && *confirmed == beforeKill {
					asked = true
					go func() { ask("kill", queue); close(dead) }()
				}
			}
			return nil
		})
		if err != nil {
			reconnects++
			time.Sleep(100 * time.Millisecond)
		}
	}
	return reconnects
}

func publishing(url string, work func(*amqp.Channel) error) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	return work(channel)
}
