<?php

// php-amqplib. How it talks to the harness: tests/acceptance/clients/programs/program.py.

declare(strict_types=1);

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

require getenv('AMQPLIB_AUTOLOAD');

const WAIT_S_MAX = 60;
const RECONNECT_S_MAX = 120;
const BEFORE_KILL = 50;
const AFTER_KILL = 50;

$given = json_decode($argv[1], true);

function say(array $values): void
{
    fwrite(STDOUT, json_encode($values) . "\n");
}

function ask(string $what, string $queue): void
{
    say(['ask' => $what, 'queue' => $queue]);
}

/** What was asked for, if it is there by now. */
function answer(float $waitS): ?array
{
    $read = [STDIN];
    $none = null;
    if (!stream_select($read, $none, $none, (int) $waitS, (int) (fmod($waitS, 1) * 1e6))) {
        return null;
    }
    return json_decode((string) fgets(STDIN), true);
}

function name(string $what): string
{
    global $given;
    return "{$given['prefix']}.$what";
}

function equal(mixed $found, mixed $wanted, string $what): void
{
    if ($found !== $wanted) {
        $shown = fn ($value) => substr(var_export($value, true), 0, 200);
        throw new Exception("$what: {$shown($found)} instead of {$shown($wanted)}");
    }
}

function connect(?string $url = null, int $heartbeat = 0): AMQPStreamConnection
{
    global $given;
    $at = parse_url($url ?? $given['urls'][0]);
    $vhost = rawurldecode(substr($at['path'] ?? '/%2F', 1));
    return new AMQPStreamConnection(
        $at['host'],
        $at['port'],
        $at['user'],
        $at['pass'],
        $vhost,
        connection_timeout: 10.0,
        read_write_timeout: 30.0,
        keepalive: true,
        heartbeat: $heartbeat,
    );
}

function connected(?string $url, callable $work, int $heartbeat = 0): mixed
{
    $connection = connect($url, $heartbeat);
    try {
        return $work($connection);
    } finally {
        try {
            $connection->close();
        } catch (Throwable) {
        }
    }
}

function withQueue(string $what, array $arguments, callable $work): mixed
{
    return connected(null, function ($connection) use ($what, $arguments, $work) {
        $channel = $connection->channel();
        $channel->confirm_select();
        $queue = name($what);
        $channel->queue_declare($queue, false, true, false, false, false, new AMQPTable($arguments));
        try {
            return $work($channel, $queue, $connection);
        } finally {
            $connection->channel()->queue_delete($queue);
        }
    });
}

/** Returns when it is confirmed. */
function publish(
    AMQPChannel $channel,
    string $key,
    string $body,
    array $properties = [],
    string $exchange = '',
    bool $mandatory = false,
): void {
    $channel->basic_publish(new AMQPMessage($body, $properties), $exchange, $key, $mandatory);
    $channel->wait_for_pending_acks_returns(30);
}

function countOf(AMQPChannel $channel, string $queue): int
{
    return $channel->queue_declare($queue, true)[1];
}

function waitUntil(AMQPChannel $channel, callable $check, string $what): void
{
    $deadline = microtime(true) + WAIT_S_MAX;
    while (!$check()) {
        if (microtime(true) > $deadline) {
            throw new Exception("$what: not within " . WAIT_S_MAX . ' s');
        }
        try {
            $channel->wait(null, false, 0.1);
        } catch (AMQPTimeoutException) {
        }
    }
}

function refusedWith(int $code, callable $work): string
{
    try {
        $work();
    } catch (AMQPProtocolChannelException $error) {
        equal($error->getCode(), $code, 'code');
        return $error->getMessage();
    }
    throw new Exception("nothing was refused with $code");
}

$steps = [
    'confirms' => fn () => withQueue('confirms', [], function ($channel, $queue) {
        for ($n = 0; $n < 200; $n++) {
            $channel->basic_publish(new AMQPMessage("$n"), '', $queue);
        }
        $channel->wait_for_pending_acks(30);
        equal(countOf($channel, $queue), 200, 'messages in the queue');
        return '200 confirmed';
    }),

    'acks' => fn () => withQueue('acks', [], function ($channel, $queue) {
        for ($n = 0; $n < 60; $n++) {
            publish($channel, $queue, "$n");
        }
        $channel->basic_qos(0, 10, false);
        $held = [];
        $channel->basic_consume($queue, callback: function ($message) use (&$held) {
            $held[] = $message;
        });
        $hold = function (int $count) use ($channel, &$held) {
            $there = function () use (&$held, $count) {
                return count($held) >= $count;
            };
            waitUntil($channel, $there, "$count deliveries");
        };
        $hold(10);
        try {
            $channel->wait(null, false, 0.3);
        } catch (AMQPTimeoutException) {
        }
        equal(count($held), 10, 'deliveries while none is acknowledged');
        for ($n = 0; $n < 60; $n++) {
            $hold($n + 1);
            $held[$n]->ack();
        }
        $bodies = array_map(fn ($message) => $message->getBody(), $held);
        equal($bodies, array_map('strval', range(0, 59)), 'bodies');
        return '60 in order, never more than 10 held';
    }),

    'channel-error' => fn () => connected(null, function ($connection) {
        $text = refusedWith(
            404,
            fn () => $connection->channel()->queue_declare(name('missing'), true),
        );
        $connection->channel()->queue_declare(name('here'), false, false, true);
        return $text;
    }),

    'topic' => fn () => connected(null, function ($connection) {
        $channel = $connection->channel();
        $channel->confirm_select();
        $channel->exchange_declare(name('topic'), 'topic');
        [$queue] = $channel->queue_declare('', false, false, true);
        $channel->queue_bind($queue, name('topic'), '*.b.#');
        foreach (['a.b', 'a.c', 'x.b.y.z', 'b'] as $key) {
            publish($channel, $key, $key, exchange: name('topic'));
        }
        $found = [];
        while ($message = $channel->basic_get($queue, true)) {
            $found[] = $message->getBody();
        }
        equal($found, ['a.b', 'x.b.y.z'], 'what the binding let through');
    }),

    'rpc' => fn () => connected(null, function ($connection) {
        $server = $connection->channel();
        $client = $connection->channel();
        $server->queue_declare(name('rpc'), auto_delete: true);
        $server->basic_consume(name('rpc'), callback: function ($message) use ($server) {
            $about = ['correlation_id' => $message->get('correlation_id')];
            $reply = new AMQPMessage(strtoupper($message->getBody()), $about);
            $server->basic_publish($reply, '', $message->get('reply_to'));
            $message->ack();
        });
        $heard = [];
        $replyTo = 'amq.rabbitmq.reply-to';
        $take = function ($message) use (&$heard) {
            $heard[$message->get('correlation_id')] = $message->getBody();
        };
        $client->basic_consume($replyTo, no_ack: true, callback: $take);
        for ($n = 0; $n < 10; $n++) {
            $about = ['reply_to' => $replyTo, 'correlation_id' => "$n"];
            $client->basic_publish(new AMQPMessage("ask $n", $about), '', name('rpc'));
        }
        // One loop for both channels: waiting on one reads for the other.
        $deadline = microtime(true) + WAIT_S_MAX;
        while (count($heard) < 10 && microtime(true) < $deadline) {
            foreach ([$server, $client] as $channel) {
                try {
                    $channel->wait(null, false, 0.05);
                } catch (AMQPTimeoutException) {
                }
            }
        }
        equal($heard[7] ?? null, 'ASK 7', 'an answer');
        equal(count($heard), 10, 'answers');
        return '10 answers through amq.rabbitmq.reply-to';
    }),

    'exclusive' => fn () => connected(null, function ($connection) {
        [$queue] = $connection->channel()->queue_declare('', false, false, true);
        equal(str_starts_with($queue, 'amq.gen-'), true, 'the server named it');
        connected(null, fn ($other) => refusedWith(
            405,
            fn () => $other->channel()->queue_declare($queue, true),
        ));
    }),

    'mandatory' => fn () => connected(null, function ($connection) {
        $channel = $connection->channel();
        $channel->confirm_select();
        $returned = [];
        $channel->set_return_listener(
            function ($code, $text, $exchange, $key, $message) use (&$returned) {
                $returned[] = [$code, $message->getBody()];
            }
        );
        publish($channel, name('nowhere'), 'back', mandatory: true);
        equal($returned, [[312, 'back']], 'returned');
    }),

    'get' => fn () => withQueue('get', [], function ($channel, $queue) {
        equal($channel->basic_get($queue), null, 'the empty queue');
        publish($channel, $queue, 'one');
        $message = $channel->basic_get($queue);
        equal($message->getBody(), 'one', 'first');
        $message->ack();
    }),

    'headers' => fn () => withQueue('headers', [], function ($channel, $queue) {
        $headers = [
            'number' => 2 ** 40,
            'small' => -7,
            'text' => 'zażółć ☃',
            'flag' => true,
            'table' => ['nested' => ['list' => [1, 'two']]],
            'void' => null,
        ];
        $properties = [
            'application_headers' => new AMQPTable($headers),
            'priority' => 5,
            'message_id' => 'm',
            'timestamp' => 1700000000,
        ];
        publish($channel, $queue, '', $properties);
        $message = $channel->basic_get($queue, true);
        equal($message->getBody(), '', 'the empty body');
        $found = $message->get('application_headers')->getNativeData();
        equal($found, $headers, 'headers');
        equal([$message->get('priority'), $message->get('message_id')], [5, 'm'], 'properties');
        return count($headers) . ' headers';
    }),

    'cancel' => fn () => connected(null, function ($connection) {
        $channel = $connection->channel();
        $channel->queue_declare(name('cancel'), false, true, false, false);
        $channel->basic_consume(name('cancel'), callback: fn () => null);
        connected(null, fn ($other) => $other->channel()->queue_delete(name('cancel')));
        try {
            waitUntil($channel, fn () => !$channel->is_consuming(), 'cancel notification');
        } catch (PhpAmqpLib\Exception\AMQPBasicCancelException) {
            return 'told by its exception';
        }
    }),

    'tx' => fn () => withQueue('tx', [], function ($other, $queue) {
        connected(null, function ($connection) use ($queue) {
            $channel = $connection->channel();
            $channel->tx_select();
            $channel->basic_publish(new AMQPMessage('dropped'), '', $queue);
            $channel->tx_rollback();
            $channel->basic_publish(new AMQPMessage('kept'), '', $queue);
            $channel->tx_commit();
        });
        equal(countOf($other, $queue), 1, 'messages after the commit');
    }),

    'large' => fn () => withQueue('large', [], function ($channel, $queue) {
        $body = str_repeat('quorate!', 1 << 17);
        publish($channel, $queue, $body);
        equal($channel->basic_get($queue, true)->getBody(), $body, 'body');
        return strlen($body) . ' bytes';
    }),

    // It sends heartbeats when it is used, and sees then whether the broker sent its own.
    'heartbeat' => fn () => connected(null, function ($connection) {
        $channel = $connection->channel();
        for ($n = 0; $n < 20; $n++) {
            usleep(200_000);
            $connection->checkHeartBeat();
            try {
                $channel->wait(null, true, 0.01);
            } catch (AMQPTimeoutException) {
            }
        }
        $channel->queue_declare('', false, false, true);
        return 'idle for 4 s at 1 s';
    }, heartbeat: 1),

    'requeue' => fn () => withQueue('requeue', [], function ($channel, $queue) {
        publish($channel, $queue, 'again');
        $message = $channel->basic_get($queue);
        equal((bool) $message->isRedelivered(), false, 'redelivered at first');
        $message->nack(true);
        $message = $channel->basic_get($queue);
        equal((bool) $message->isRedelivered(), true, 'redelivered after nack');
        $message->reject(false);
        equal($channel->basic_get($queue), null, 'after a reject');
    }),

    'dead-letter' => fn () => withQueue('dead', [], function ($channel, $dead) {
        $dying = [
            'x-message-ttl' => 50,
            'x-dead-letter-exchange' => '',
            'x-dead-letter-routing-key' => $dead,
        ];
        return withQueue('short', $dying, function ($other, $short) use ($channel, $dead) {
            publish($other, $short, 'late');
            $deadline = microtime(true) + WAIT_S_MAX;
            while (!($message = $channel->basic_get($dead, true))) {
                equal(microtime(true) < $deadline, true, 'a dead letter in time');
                usleep(20_000);
            }
            [$death] = $message->get('application_headers')->getNativeData()['x-death'];
            $told = [$death['reason'], $death['queue'], $death['count']];
            equal($told, ['expired', $short, 1], 'x-death');
            return 'expired, with x-death';
        });
    }),

    'failover' => 'failover',
];

// Publishes until messages are confirmed after the kill, connecting again; then consumes them all.
function failover(): string
{
    $queue = name('failover');
    $arguments = new AMQPTable(['x-queue-type' => 'quorum']);
    connected(null, fn ($connection) => $connection->channel()
        ->queue_declare($queue, false, true, false, false, false, $arguments));
    ask('leader', $queue);
    $urls = answer(WAIT_S_MAX)['urls'];
    $deadline = microtime(true) + RECONNECT_S_MAX;
    [$confirmed, $after, $reconnects, $asked, $dead] = [0, 0, 0, false, false];
    while ($after < AFTER_KILL) {
        equal(microtime(true) < $deadline, true, "$confirmed confirmed, and done in time");
        try {
            connected($urls[$reconnects % count($urls)], function ($connection) use (
                $queue,
                &$confirmed,
                &$after,
                &$asked,
                &$dead
            ) {
                $channel = $connection->channel();
                $channel->confirm_select();
                while ($after < AFTER_KILL) {
                    $properties = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
                    publish($channel, $queue, "$confirmed", $properties);
                    $confirmed++;
                    $after += $dead ? 1 : 0;
                    if (!$asked && $confirmed === BEFORE_KILL) {
                        ask('kill', $queue);
                        $asked = true;
                    } elseif ($asked && !$dead) {
                        $dead = answer(0) !== null;
                    }
                }
            });
        } catch (Throwable) {
            $reconnects++;
            usleep(100_000);
        }
    }
    return connected($urls[1], function ($connection) use ($queue, $confirmed, $reconnects) {
        $channel = $connection->channel();
        $channel->basic_qos(0, 20, false);
        $seen = [];
        $count = 0;
        $take = function ($message) use (&$seen, &$count) {
            $seen[$message->getBody()] = true;
            $count++;
            $message->ack();
        };
        $channel->basic_consume($queue, callback: $take);
        $wanted = array_map('strval', range(0, $confirmed - 1));
        $all = function () use (&$seen, $wanted) {
            return !array_diff($wanted, array_keys($seen));
        };
        waitUntil($channel, $all, 'all that is confirmed');
        $connection->channel()->queue_delete($queue);
        return "$confirmed confirmed, $reconnects reconnects, " . ($count - count($seen)) . ' twice';
    });
}

foreach ($given['steps'] as $step) {
    if (!isset($steps[$step])) {
        say(['step' => $step, 'ok' => null, 'detail' => 'no part of its program']);
        continue;
    }
    try {
        $detail = $steps[$step]();
        say(['step' => $step, 'ok' => true, 'detail' => is_string($detail) ? $detail : '']);
    } catch (Throwable $error) {
        fwrite(STDERR, "$error\n");
        $detail = get_class($error) . ': ' . $error->getMessage() . ' (line ' . $error->getLine() . ')';
        say(['step' => $step, 'ok' => false, 'detail' => substr($detail, 0, 300)]);
    }
}
