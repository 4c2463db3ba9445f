import io.nats.client.AuthenticationException;
import io.nats.client.ConsumeOptions;
import io.nats.client.Connection;
import io.nats.client.ErrorListener;
import io.nats.client.FetchConsumer;
import io.nats.client.FetchConsumeOptions;
import io.nats.client.JetStream;
import io.nats.client.JetStreamApiException;
import io.nats.client.JetStreamManagement;
import io.nats.client.JetStreamOptions;
import io.nats.client.KeyValue;
import io.nats.client.KeyValueOptions;
import io.nats.client.Message;
import io.nats.client.MessageConsumer;
import io.nats.client.Nats;
import io.nats.client.ObjectStore;
import io.nats.client.ObjectStoreOptions;
import io.nats.client.Options;
import io.nats.client.PublishOptions;
import io.nats.client.PushSubscribeOptions;
import io.nats.client.api.AckPolicy;
import io.nats.client.api.ConsumerConfiguration;
import io.nats.client.api.ConsumerInfo;
import io.nats.client.api.KeyValueConfiguration;
import io.nats.client.api.KeyValueEntry;
import io.nats.client.api.KeyValueOperation;
import io.nats.client.api.KeyValueWatcher;
import io.nats.client.api.ObjectInfo;
import io.nats.client.api.ObjectStoreConfiguration;
import io.nats.client.api.OrderedConsumerConfiguration;
import io.nats.client.api.PublishAck;
import io.nats.client.api.StreamConfiguration;
import io.nats.service.Service;
import io.nats.service.ServiceEndpoint;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.ByteArrayOutputStream;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** jnats. Each step is done as it is, and again while the node that leads the stream is killed. */
final class Client {
    /** What a request, or an attempt at one, may take. */
    static final Duration TIMEOUT = Duration.ofSeconds(2);
    static final Duration ACK_WAIT = Duration.ofSeconds(10);
    static final int OBJECT_BYTES = 4 << 20;

    interface Attempt {
        void at(int number) throws Exception;
    }

    interface Make {
        String in(Connection connection, String name) throws Exception;
    }

    interface Work {
        String on(Scene it) throws Exception;
    }

    interface Step {
        String run(boolean kill) throws Exception;
    }

    /** What is done, and the longest wait for it. */
    record Load(int count, long waitMs) {
        @Override
        public String toString() {
            return String.format("%d acknowledged, the longest wait %.2f s", count, waitMs / 1000.0);
        }
    }

    public static void main(String[] arguments) {
        Map<String, Callable<String>> steps = new HashMap<>();
        steps.put("connect", Client::connect);
        Map<String, Step> withStream = Map.of(
                "publish", Client::publish, "pull", Client::pull, "push", Client::push,
                "ordered", Client::ordered, "kv", Client::kv, "objects", Client::objects,
                "services", Client::services);
        withStream.forEach((name, step) -> {
            steps.put(name, () -> step.run(false));
            steps.put(name + "+kill", () -> step.run(true));
        });
        Protocol.run(arguments[0], steps);
        System.exit(0);
    }

    /** To the first that answers; then to any other when that one dies. */
    static Connection connected(List<String> urls) throws Exception {
        return Nats.connect(new Options.Builder()
                .servers(urls.toArray(String[]::new)).noRandomize().maxReconnects(-1)
                .reconnectWait(Duration.ofMillis(100)).errorListener(new ErrorListener() {})
                .build());
    }

    /** A stream, a client at the node that leads it, and one at another node. */
    record Scene(String stream, Connection near, Connection far, boolean kill) {
        JetStream nearJs() throws Exception {
            return near.jetStream(brief());
        }

        /** An attempt for each number, again until it succeeds; the leader dies in the midst. */
        Load throughout(int before, int after, Attempt attempt) throws Exception {
            long deadline = System.currentTimeMillis() + Protocol.RECONNECT_MS_MAX;
            AtomicBoolean dead = new AtomicBoolean(!kill);
            long last = System.currentTimeMillis();
            long wait = 0;
            int count = 0;
            for (int left = after; left > 0; ) {
                try {
                    attempt.at(count);
                } catch (Exception error) {
                    if (!kill || System.currentTimeMillis() > deadline) {
                        throw error;
                    }
                    Thread.sleep(20);
                    continue;
                }
                count++;
                wait = Math.max(wait, System.currentTimeMillis() - last);
                last = System.currentTimeMillis();
                if (dead.get()) {
                    left--;
                } else if (count == before) {
                    Thread killer = new Thread(() -> {
                        try {
                            Protocol.ask("kill", stream);
                            dead.set(true);
                        } catch (Exception gone) {
                            // The harness went away.
                        }
                    });
                    killer.setDaemon(true);
                    killer.start();
                }
            }
            return new Load(count, wait);
        }

        Load throughout(Attempt attempt) throws Exception {
            return throughout(Protocol.BEFORE_KILL, Protocol.AFTER_KILL, attempt);
        }

        /** Numbers, each stored once however often it was tried. */
        Load publish() throws Exception {
            JetStream js = nearJs();
            return throughout(number -> {
                PublishOptions options = PublishOptions.builder().messageId("" + number).build();
                PublishAck ack = js.publish(stream, bytes("" + number), options);
                Protocol.equal(ack.getSeqno(), number + 1L, "sequence");
            });
        }
    }

    static JetStreamOptions brief() {
        return JetStreamOptions.builder().requestTimeout(TIMEOUT).build();
    }

    static String scene(String what, boolean kill, Make make, Work work) throws Exception {
        String name = Protocol.name(what).replace('.', '-') + (kill ? "-kill" : "");
        String stream;
        try (Connection connection = connected(Protocol.given.urls)) {
            stream = make.in(connection, name);
        }
        List<String> urls = new ArrayList<>();
        for (Object url : (List<?>) Protocol.ask("leader", stream).get("urls")) {
            urls.add((String) url);
        }
        List<String> others = new ArrayList<>(urls);
        Collections.rotate(others, -1);
        try (Connection near = connected(urls); Connection far = connected(others)) {
            String detail = work.on(new Scene(stream, near, far, kill));
            far.jetStreamManagement().deleteStream(stream);
            return detail;
        }
    }

    static String plain(Connection connection, String name) throws Exception {
        connection.jetStreamManagement().addStream(
                StreamConfiguration.builder().name(name).subjects(name).replicas(3).build());
        return name;
    }

    static byte[] bytes(String text) {
        return text.getBytes();
    }

    static int number(byte[] data) {
        return Integer.parseInt(new String(data));
    }

    static void refused(Callable<?> work, int code) throws Exception {
        try {
            work.call();
        } catch (JetStreamApiException error) {
            Protocol.equal(error.getApiErrorCode(), code, "code");
            return;
        }
        throw new AssertionError("not refused with " + code);
    }

    static String connect() throws Exception {
        List<String> urls = Protocol.given.urls;
        String version;
        try (Connection connection = connected(urls.subList(0, 1))) {
            Protocol.until(() -> connection.getServers().stream()
                    .map(url -> url.substring(Math.max(url.lastIndexOf('@'), url.lastIndexOf('/')) + 1))
                    .distinct().count() == urls.size(), "all addresses");
            connection.flush(TIMEOUT);
            version = connection.getServerInfo().getVersion();
        }
        try {
            // Nodes that it is told of it would try without a name.
            String wrong = urls.get(0).replace("guest:guest", "guest:wrong");
            Nats.connect(new Options.Builder().server(wrong).ignoreDiscoveredServers().build()).close();
        } catch (AuthenticationException error) {
            return "a node says " + version + "; a wrong password: " + error.getMessage();
        }
        throw new AssertionError("a wrong password was taken");
    }

    static String publish(boolean kill) throws Exception {
        return scene("publish", kill, Client::plain, it -> {
            Load load = it.publish();
            JetStream js = it.far.jetStream();
            JetStreamManagement manager = it.far.jetStreamManagement();
            for (int number = 0; number < load.count; number++) {
                byte[] found = manager.getMessage(it.stream, number + 1).getData();
                Protocol.equal(new String(found), "" + number, "message");
            }
            PublishAck again = js.publish(
                    it.stream, bytes(""), PublishOptions.builder().messageId("7").build());
            Protocol.equal(again.getSeqno(), 8L, "the same id again");
            Protocol.equal(again.isDuplicate(), true, "a duplicate");
            refused(() -> js.publish(it.stream, bytes(""),
                    PublishOptions.builder().expectedLastSequence(7).build()), 10071);
            long messages = manager.getStreamInfo(it.stream).getStreamState().getMsgCount();
            Protocol.equal(messages, (long) load.count, "messages");
            return load.toString();
        });
    }

    /** What a consumer got and acknowledged for sure. Nothing of it may come again. */
    static final class Settled {
        final Map<Integer, Boolean> inTime = new ConcurrentHashMap<>();
        final AtomicInteger twice = new AtomicInteger();
        final AtomicReference<String> wrong = new AtomicReference<>();

        void take(Message message) throws InterruptedException {
            int number = number(message.getData());
            long came = System.currentTimeMillis();
            if (inTime.containsKey(number)) {
                twice.incrementAndGet();
                if (inTime.get(number)) {
                    wrong.set(number + " came again though it was acknowledged in time");
                }
            }
            while (System.currentTimeMillis() - came < ACK_WAIT.toMillis()) {
                // As `ackSync`, which may be called once only.
                if (message.getConnection().request(message.getReplyTo(), bytes("+ACK"), TIMEOUT) != null) {
                    inTime.put(number, System.currentTimeMillis() - came < ACK_WAIT.toMillis() / 2);
                    return;
                }
                Thread.sleep(50);
            }
        }

        String finished(Scene it, Load load) throws Exception {
            Protocol.until(() -> wrong.get() != null || inTime.size() >= load.count, "all that is acknowledged");
            Protocol.equal(wrong.get(), null, "what came");
            ConsumerInfo info = it.far.jetStreamManagement().getConsumerInfo(it.stream, "reader");
            List<Long> found = List.of(info.getAckFloor().getStreamSequence(), info.getNumAckPending(), info.getNumPending());
            Protocol.equal(found, List.of((long) load.count, 0L, 0L), "acknowledged up to, and what is open");
            return load + ", " + twice + " twice";
        }
    }

    static ConsumerConfiguration.Builder reader() {
        return ConsumerConfiguration.builder().durable("reader").ackPolicy(AckPolicy.Explicit).ackWait(ACK_WAIT);
    }

    static String pull(boolean kill) throws Exception {
        return scene("pull", kill, Client::plain, it -> {
            it.far.jetStreamManagement().addOrUpdateConsumer(it.stream, reader().build());
            var consumer = it.far.getConsumerContext(it.stream, "reader");
            var options = FetchConsumeOptions.builder().maxMessages(10).expiresIn(2000).build();
            Settled settled = new Settled();
            AtomicBoolean stop = new AtomicBoolean();
            AtomicReference<Exception> failure = new AtomicReference<>();
            Thread taking = new Thread(() -> {
                while (!stop.get()) {
                    try (FetchConsumer batch = consumer.fetch(options)) {
                        Message message;
                        while ((message = batch.nextMessage()) != null) {
                            var about = message.metaData();
                            if (about.streamSequence() == 4 && about.deliveredCount() == 1) {
                                message.nak();
                            } else {
                                settled.take(message);
                            }
                        }
                    } catch (Exception error) {
                        failure.set(error);
                    }
                }
            });
            taking.start();
            try {
                return settled.finished(it, it.publish());
            } finally {
                stop.set(true);
                taking.join();
                if (!kill) {
                    Protocol.equal(failure.get(), null, "fetching");
                }
            }
        });
    }

    static String push(boolean kill) throws Exception {
        return scene("push", kill, Client::plain, it -> {
            Settled settled = new Settled();
            it.far.jetStream().subscribe(it.stream, it.far.createDispatcher(), settled::take, false,
                    PushSubscribeOptions.builder().stream(it.stream).configuration(
                            reader().flowControl(Duration.ofSeconds(1)).build()).build());
            return settled.finished(it, it.publish());
        });
    }

    static String ordered(boolean kill) throws Exception {
        return scene("ordered", kill, Client::plain, it -> {
            List<Integer> came = Collections.synchronizedList(new ArrayList<>());
            var consumer = it.far.getStreamContext(it.stream).createOrderedConsumer(new OrderedConsumerConfiguration());
            var options = ConsumeOptions.builder().expiresIn(5000).build();
            try (MessageConsumer consuming = consumer.consume(options, message -> came.add(number(message.getData())))) {
                Load load = it.publish();
                Protocol.until(() -> came.size() >= load.count, "all that is acknowledged");
                List<Integer> wanted = IntStream.range(0, load.count).boxed().collect(Collectors.toList());
                Protocol.equal(new ArrayList<>(came), wanted, "in order");
                return load.toString();
            }
        });
    }

    static String kv(boolean kill) throws Exception {
        Make bucket = (connection, name) -> {
            connection.keyValueManagement().create(
                    KeyValueConfiguration.builder().name(name).maxHistoryPerKey(5).replicas(3).build());
            return "KV_" + name;
        };
        return scene("kv", kill, bucket, it -> {
            String name = it.stream.substring("KV_".length());
            KeyValue near = it.near.keyValue(name, KeyValueOptions.builder().jetStreamOptions(brief()).build());
            KeyValue far = it.far.keyValue(name);
            for (String value : List.of("1", "2", "3")) {
                near.put("a.b", value);
            }
            Protocol.equal(far.history("a.b").stream().map(KeyValueEntry::getValueAsString).collect(Collectors.toList()),
                    List.of("1", "2", "3"), "history");
            Protocol.equal(far.get("a.b", 2).getValueAsString(), "2", "an earlier revision");
            refused(() -> far.create("a.b", bytes("4")), 10071);
            refused(() -> far.update("a.b", "4", 2), 10071);
            long revision = far.update("a.b", "4", 3);
            near.put("gone", "");
            near.delete("gone");
            Protocol.equal(far.keys(), List.of("a.b"), "keys");
            KeyValueEntry gone = far.get("gone");
            Protocol.equal(gone == null || gone.getOperation() == KeyValueOperation.DELETE, true, "deleted");

            List<Integer> watched = Collections.synchronizedList(new ArrayList<>());
            KeyValueWatcher watcher = new KeyValueWatcher() {
                @Override
                public void watch(KeyValueEntry entry) {
                    watched.add(number(entry.getValue()));
                }

                @Override
                public void endOfData() {}
            };
            try (var watching = far.watch("count", watcher)) {
                AtomicLong last = new AtomicLong(near.create("count", bytes("-1")));
                Load load = it.throughout(number -> {
                    try {
                        last.set(near.update("count", "" + number, last.get()));
                    } catch (Exception error) {
                        // What became of an attempt without an answer, the bucket knows.
                        KeyValueEntry found = near.get("count");
                        last.set(found.getRevision());
                        int value = number(found.getValue());
                        if (value == number - 1) {
                            throw error;
                        }
                        Protocol.equal(value, number, "what was set");
                    }
                });
                Protocol.until(() -> !watched.isEmpty() && watched.get(watched.size() - 1) == load.count - 1,
                        "the last one, watched");
                List<Integer> found = new ArrayList<>(watched);
                Protocol.equal(found, found.stream().sorted().distinct().collect(Collectors.toList()), "in order");
                Protocol.equal(number(far.get("count").getValue()), load.count - 1, "the last one");
                KeyValueEntry entry = far.get("a.b");
                Protocol.equal(entry.getValueAsString(), "4", "what was there before");
                Protocol.equal(entry.getRevision(), revision, "its revision");
                return load.toString();
            }
        });
    }

    static String objects(boolean kill) throws Exception {
        Make bucket = (connection, name) -> {
            connection.objectStoreManagement().create(ObjectStoreConfiguration.builder(name).replicas(3).build());
            return "OBJ_" + name;
        };
        return scene("objects", kill, bucket, it -> {
            String name = it.stream.substring("OBJ_".length());
            ObjectStore near = it.near.objectStore(name, ObjectStoreOptions.builder().jetStreamOptions(brief()).build());
            ObjectStore far = it.far.objectStore(name);
            Load load = it.throughout(2, 2, number -> near.put("" + number, content(number)));
            List<String> names = far.getList().stream().map(ObjectInfo::getObjectName).collect(Collectors.toList());
            for (int number = 0; number < load.count; number++) {
                ByteArrayOutputStream found = new ByteArrayOutputStream();
                far.get("" + number, found);
                Protocol.equal(Arrays.equals(found.toByteArray(), content(number)), true, "object " + number);
                Protocol.equal(names.contains("" + number), true, "listed");
            }
            far.delete("0");
            Protocol.equal(near.getInfo("0"), null, "what was deleted");
            return load + ", " + (OBJECT_BYTES >> 20) + " MiB each";
        });
    }

    static byte[] content(int number) throws Exception {
        ByteArrayOutputStream all = new ByteArrayOutputStream(OBJECT_BYTES);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int block = 0; block < OBJECT_BYTES / 32; block++) {
            all.write(digest.digest(bytes(number + "/" + block)));
        }
        return all.toByteArray();
    }

    static String services(boolean kill) throws Exception {
        return scene("services", kill, Client::plain, it -> {
            Service service = Service.builder().connection(it.near).name("upper").version("1.2.3")
                    .addServiceEndpoint(ServiceEndpoint.builder().endpointName("upper")
                            .endpointSubject(it.stream + ".upper")
                            .handler(request -> request.respond(
                                    it.near, new String(request.getData()).toUpperCase()))
                            .build())
                    .build();
            service.startService();
            String id = service.getId();
            Protocol.until(() -> it.far.request("$SRV.PING.upper." + id, null, TIMEOUT) != null, "a ping");
            Load load = it.throughout(number -> {
                Message answer = it.far.request(it.stream + ".upper", bytes("ask " + number), TIMEOUT);
                if (answer == null) {
                    throw new IllegalStateException("no answer");
                }
                Protocol.equal(new String(answer.getData()), "ASK " + number, "answer");
            });
            JsonObject about = new JsonObject();
            for (String verb : List.of("PING", "INFO", "STATS")) {
                String subject = "$SRV." + verb;
                for (String each : List.of(subject, subject + ".upper", subject + ".upper." + id)) {
                    byte[] answer = it.far.request(each, null, TIMEOUT).getData();
                    about = JsonParser.parseString(new String(answer)).getAsJsonObject();
                    List<String> found = new ArrayList<>();
                    for (String key : List.of("name", "version", "id")) {
                        found.add(about.get(key).getAsString());
                    }
                    Protocol.equal(found, List.of("upper", "1.2.3", id), each);
                }
            }
            int count = about.getAsJsonArray("endpoints").get(0).getAsJsonObject().get("num_requests").getAsInt();
            Protocol.equal(count >= load.count, true, count + " requests are counted");
            service.stop();
            return load.toString();
        });
    }
}
