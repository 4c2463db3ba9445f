<?php

require 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;

function connect(string $address = '127.0.0.1:5672'): AMQPStreamConnection
{
    [$host, $port] = explode(':', $address);
    return new AMQPStreamConnection($host, (int) $port, 'guest', 'guest');
}
