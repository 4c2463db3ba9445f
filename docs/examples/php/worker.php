<?php

require __DIR__ . '/connect.php';

$channel = connect()->channel();
$channel->queue_declare('tasks', durable: true, auto_delete: false);
$channel->basic_qos(0, 1, false); // one task at a time: the next goes to whoever is free

$channel->basic_consume('tasks', callback: function ($message) {
    usleep(200_000); // the work
    echo 'done: ', $message->getBody(), "\n";
    $message->ack(); // only now may the queue forget it
});
echo "ready\n";
while ($channel->is_consuming()) {
    $channel->wait();
}
