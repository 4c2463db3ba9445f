<?php

require __DIR__ . '/connect.php';

$channel = connect()->channel();
$channel->queue_declare('hello', durable: true, auto_delete: false);

$channel->basic_consume('hello', callback: function ($message) {
    echo 'received: ', $message->getBody(), "\n";
    $message->ack();
});
echo "waiting for messages\n";
while ($channel->is_consuming()) {
    $channel->wait();
}
