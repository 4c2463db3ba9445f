<?php

require __DIR__ . '/connect.php';

use PhpAmqpLib\Message\AMQPMessage;

$connection = connect();
$channel = $connection->channel();
$channel->queue_declare('hello', durable: true, auto_delete: false);
$channel->confirm_select();
$channel->set_nack_handler(fn () => throw new RuntimeException('refused'));

$channel->basic_publish(new AMQPMessage('Hello, Quorate!'), '', 'hello');
$channel->wait_for_pending_acks(30); // until a majority has the message on disk
echo "sent and confirmed\n";
$connection->close();
