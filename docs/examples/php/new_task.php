<?php

require __DIR__ . '/connect.php';

use PhpAmqpLib\Message\AMQPMessage;

$connection = connect();
$channel = $connection->channel();
$channel->queue_declare('tasks', durable: true, auto_delete: false);
$channel->confirm_select();
$channel->set_nack_handler(fn () => throw new RuntimeException('refused'));

foreach (range(1, 10) as $number) {
    $channel->basic_publish(new AMQPMessage("task $number"), '', 'tasks');
}
$channel->wait_for_pending_acks(30);
echo "10 tasks are stored\n";
$connection->close();
