# frozen_string_literal: true

# bunny on Ruby. How it talks to the harness: tests/acceptance/clients/programs/program.py.
require 'bunny'
require 'json'

WAIT_S_MAX = 60
RECONNECT_S_MAX = 120
BEFORE_KILL = 50
AFTER_KILL = 50

GIVEN = JSON.parse(ARGV[0])
$stdout.sync = true

def say(values) = $stdout.puts(JSON.generate(values))
def name(what) = "#{GIVEN['prefix']}.#{what}"
def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

def ask(what, queue)
  say(ask: what, queue: queue)
  JSON.parse($stdin.gets)
end

def equal(found, wanted, what)
  raise "#{what}: #{found.inspect[0, 200]} instead of #{wanted.inspect[0, 200]}" unless found == wanted
end

def wait_until(what)
  deadline = now + WAIT_S_MAX
  until yield
    raise "#{what}: not within #{WAIT_S_MAX} s" if now > deadline

    sleep 0.02
  end
end

def connected(url = GIVEN['urls'][0], **options)
  # It reconnects by itself where that is not said; here the harness wants to see each loss.
  connection = Bunny.new(url, automatically_recover: false, log_level: Logger::FATAL, **options)
  connection.start
  yield connection
ensure
  begin
    connection&.close
  rescue StandardError, Timeout::Error
    nil
  end
end

def with_queue(what, arguments = {})
  connected do |connection|
    channel = connection.create_channel
    channel.confirm_select
    queue = channel.queue(name(what), durable: true, arguments: arguments)
    begin
      yield channel, queue
    ensure
      connection.create_channel.queue_delete(queue.name)
    end
  end
end

def publish(channel, queue, body, **options)
  channel.default_exchange.publish(body, routing_key: queue, **options)
  raise 'not confirmed' unless channel.wait_for_confirms
end

def refused_with(error, code)
  yield
rescue error => e
  equal(e.channel_close.reply_code, code, 'code') if e.respond_to?(:channel_close)
  e.message
else
  raise "no #{error}"
end

STEPS = {
  'confirms' => lambda {
    with_queue('confirms') do |channel, queue|
      200.times { |n| channel.default_exchange.publish(n.to_s, routing_key: queue.name) }
      raise 'not confirmed' unless channel.wait_for_confirms

      equal(queue.message_count, 200, 'messages in the queue')
      '200 confirmed'
    end
  },

  'acks' => lambda {
    with_queue('acks') do |channel, queue|
      60.times { |n| channel.default_exchange.publish(n.to_s, routing_key: queue.name) }
      channel.wait_for_confirms
      channel.prefetch(10)
      held = []
      queue.subscribe(manual_ack: true) { |about, _, body| held << [body, about.delivery_tag] }
      wait_until('ten deliveries') { held.size >= 10 }
      sleep 0.2
      equal(held.size, 10, 'deliveries while none is acknowledged')
      60.times do |n|
        wait_until("delivery #{n}") { held.size > n }
        channel.ack(held[n][1])
      end
      equal(held.map(&:first), (0...60).map(&:to_s), 'bodies')
      '60 in order, never more than 10 held'
    end
  },

  'channel-error' => lambda {
    connected do |connection|
      text = refused_with(Bunny::NotFound, 404) do
        connection.create_channel.queue(name('missing'), passive: true)
      end
      connection.create_channel.queue(name('here'), exclusive: true)
      text
    end
  },

  'topic' => lambda {
    connected do |connection|
      channel = connection.create_channel
      channel.confirm_select
      topic = channel.topic(name('topic'), auto_delete: true)
      queue = channel.queue('', exclusive: true).bind(topic, routing_key: '*.b.#')
      %w[a.b a.c x.b.y.z b].each { |key| topic.publish(key, routing_key: key) }
      channel.wait_for_confirms
      found = []
      while (body = queue.pop[2])
        found << body
      end
      equal(found, %w[a.b x.b.y.z], 'what the binding let through')
    end
  },

  'rpc' => lambda {
    connected do |connection|
      server, client = connection.create_channel, connection.create_channel
      queue = server.queue(name('rpc'), auto_delete: true)
      queue.subscribe do |_, about, body|
        server.default_exchange.publish(
          body.upcase, routing_key: about.reply_to, correlation_id: about.correlation_id
        )
      end
      heard = {}
      reply_to = 'amq.rabbitmq.reply-to'
      client.basic_consume(reply_to, '', true) { |_, about, body| heard[about.correlation_id] = body }
      10.times do |n|
        client.default_exchange.publish(
          "ask #{n}", routing_key: queue.name, reply_to: reply_to, correlation_id: n.to_s
        )
      end
      wait_until('ten answers') { heard.size == 10 }
      equal(heard['7'], 'ASK 7', 'an answer')
      '10 answers through amq.rabbitmq.reply-to'
    end
  },

  'exclusive' => lambda {
    connected do |connection|
      queue = connection.create_channel.queue('', exclusive: true)
      equal(queue.name.start_with?('amq.gen-'), true, 'the server named it')
      connected do |other|
        refused_with(Bunny::ResourceLocked, 405) do
          other.create_channel.queue(queue.name, passive: true)
        end
      end
    end
  },

  'mandatory' => lambda {
    connected do |connection|
      channel = connection.create_channel
      channel.confirm_select
      returned = []
      exchange = channel.direct('amq.direct') # it does not look up the default one for a return
      exchange.on_return { |about, _, body| returned << [about.reply_code, body] }
      exchange.publish('back', routing_key: name('nowhere'), mandatory: true)
      raise 'not confirmed' unless channel.wait_for_confirms

      # Its handlers run in another thread than that which waits for confirms.
      wait_until('the return') { !returned.empty? }
      equal(returned, [[312, 'back']], 'returned')
    end
  },

  'get' => lambda {
    with_queue('get') do |channel, queue|
      equal(queue.pop, [nil, nil, nil], 'the empty queue')
      publish(channel, queue.name, 'one')
      about, _, body = queue.pop(manual_ack: true)
      equal(body, 'one', 'first')
      channel.ack(about.delivery_tag)
    end
  },

  'headers' => lambda {
    with_queue('headers') do |channel, queue|
      headers = {
        'number' => 2**40, 'small' => -7, 'double' => 0.5, 'text' => 'zażółć ☃', 'flag' => true,
        'table' => { 'nested' => { 'list' => [1, 'two'] } }, 'void' => nil,
        'time' => Time.at(1_700_000_000)
      }
      publish(channel, queue.name, '', headers: headers, priority: 5, message_id: 'm', type: 't')
      _, properties, body = queue.pop
      equal(body, '', 'the empty body')
      found = properties.headers.transform_values { |v| v.is_a?(String) ? v.dup.force_encoding('UTF-8') : v }
      equal(found, headers, 'headers')
      equal([properties.priority, properties.message_id], [5, 'm'], 'properties')
      "#{headers.size} headers"
    end
  },

  'cancel' => lambda {
    connected do |connection|
      channel = connection.create_channel
      queue = channel.queue(name('cancel'), durable: true)
      told = false
      queue.subscribe(on_cancellation: ->(_) { told = true }) { |*| nil }
      connected { |other| other.create_channel.queue_delete(queue.name) }
      wait_until('cancel notification') { told }
      equal(channel.open?, true, 'the channel is open')
    end
  },

  'tx' => lambda {
    with_queue('tx') do |other, queue|
      connected do |connection|
        channel = connection.create_channel
        channel.tx_select
        channel.default_exchange.publish('dropped', routing_key: queue.name)
        channel.tx_rollback
        channel.default_exchange.publish('kept', routing_key: queue.name)
        channel.tx_commit
      end
      equal(other.queue(queue.name, passive: true).message_count, 1, 'messages after the commit')
    end
  },

  'large' => lambda {
    with_queue('large') do |channel, queue|
      body = 'quorate!' * (1 << 17)
      publish(channel, queue.name, body)
      equal(queue.pop[2], body, 'body')
      "#{body.bytesize} bytes"
    end
  },

  'heartbeat' => lambda {
    connected(heartbeat: 1) do |connection|
      sleep 4
      connection.create_channel.queue('', exclusive: true)
      'idle for 4 s at 1 s'
    end
  },

  'requeue' => lambda {
    with_queue('requeue') do |channel, queue|
      publish(channel, queue.name, 'again')
      about, = queue.pop(manual_ack: true)
      equal(about.redelivered?, false, 'redelivered at first')
      channel.nack(about.delivery_tag, false, true)
      about, = queue.pop(manual_ack: true)
      equal(about.redelivered?, true, 'redelivered after nack')
      channel.reject(about.delivery_tag)
      equal(queue.pop[2], nil, 'after a reject')
    end
  },

  'dead-letter' => lambda {
    with_queue('dead') do |_, dead|
      dying = {
        'x-message-ttl' => 50, 'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => dead.name
      }
      with_queue('short', dying) do |channel, short|
        publish(channel, short.name, 'late')
        properties = nil
        wait_until('dead letter') { properties = dead.pop[1] }
        death = properties.headers['x-death'][0]
        equal(death.values_at('reason', 'queue', 'count'), ['expired', short.name, 1], 'x-death')
        'expired, with x-death'
      end
    end
  },

  # A consumer at a node that survives takes all the while; the publisher connects again by itself.
  'failover' => lambda {
    queue = name('failover')
    arguments = { 'x-queue-type' => 'quorum' }
    connected { |c| c.create_channel.queue(queue, durable: true, arguments: arguments) }
    urls = ask('leader', queue)['urls']
    seen = Queue.new
    connected(urls[1]) do |survivor|
      consumer = survivor.create_channel
      consumer.prefetch(20)
      all = consumer.queue(queue, passive: true)
      all.subscribe(manual_ack: true) do |about, _, body|
        seen << body
        consumer.ack(about.delivery_tag)
      end
      deadline = now + RECONNECT_S_MAX
      confirmed = []
      reconnects = after = 0
      killing = dead = nil
      # Bunny raises the loss of a connection in the thread that made it, wherever that is by then.
      Thread.handle_interrupt(StandardError => :never) do
        while after < AFTER_KILL
          raise "#{confirmed.size} confirmed, and not done in time" if now > deadline

          begin
            Thread.handle_interrupt(StandardError => :immediate) do
              connected(urls[reconnects % urls.size], continuation_timeout: 10_000) do |connection|
                channel = connection.create_channel
                channel.confirm_select
                while after < AFTER_KILL
                  publish(channel, queue, confirmed.size.to_s, persistent: true)
                  confirmed << confirmed.size.to_s
                  after += 1 if dead
                  if killing.nil? && confirmed.size == BEFORE_KILL
                    killing = Thread.new { dead = ask('kill', queue)['killed'] }
                  end
                end
              end
            end
          rescue StandardError, Timeout::Error
            reconnects += 1
            sleep 0.1
          end
        end
        begin
          Thread.handle_interrupt(StandardError => :immediate) { Thread.pass }
        rescue Bunny::Exception
          reconnects += 1
        end
      end
      got = []
      wait_until('all that is confirmed') do
        got << seen.pop until seen.empty?
        (confirmed - got).empty?
      end
      consumer.queue_delete(queue)
      "#{confirmed.size} confirmed, #{reconnects} reconnects, #{got.size - got.uniq.size} twice"
    end
  }
}.freeze

GIVEN['steps'].each do |step|
  if STEPS[step].nil?
    say(step: step, ok: nil, detail: 'no part of its program')
    next
  end
  begin
    detail = STEPS[step].call
    say(step: step, ok: true, detail: detail.is_a?(String) ? detail : '')
  rescue StandardError, Timeout::Error => e
    warn(e.full_message)
    say(step: step, ok: false, detail: "#{e.class}: #{e.message}"[0, 300])
  end
end
exit!(0)
