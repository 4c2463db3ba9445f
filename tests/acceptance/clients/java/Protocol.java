import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;

/** How a program talks to the harness: tests/acceptance/clients/programs/program.py. */
final class Protocol {
    static final long WAIT_MS_MAX = 20_000;
    static final long RECONNECT_MS_MAX = 60_000;
    static final int BEFORE_KILL = 50;
    static final int AFTER_KILL = 50;

    static final class Given {
        List<String> urls;
        String prefix;
        List<String> steps;
    }

    static Given given;
    private static final Gson GSON = new Gson().newBuilder().serializeNulls().create();
    private static final BufferedReader ANSWERS =
            new BufferedReader(new InputStreamReader(System.in));

    static void run(String argument, Map<String, Callable<String>> steps) {
        given = GSON.fromJson(argument, Given.class);
        for (String name : given.steps) {
            Map<String, Object> said = new HashMap<>();
            said.put("step", name);
            if (!steps.containsKey(name)) {
                said.put("ok", null);
                said.put("detail", "no part of its program");
            } else {
                try {
                    said.put("detail", steps.get(name).call());
                    said.put("ok", true);
                } catch (Exception | AssertionError error) {
                    error.printStackTrace();
                    said.put("ok", false);
                    Throwable cause = error.getCause() == null ? error : error.getCause();
                    said.put("detail", cause.toString());
                }
            }
            say(said);
        }
    }

    static synchronized void say(Map<String, Object> values) {
        System.out.println(GSON.toJson(values));
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> ask(String what, String queue) throws Exception {
        say(Map.of("ask", what, "queue", queue));
        return GSON.fromJson(ANSWERS.readLine(), Map.class);
    }

    static String name(String what) {
        return given.prefix + "." + what;
    }

    static void equal(Object found, Object wanted, String what) {
        if (!Objects.deepEquals(found, wanted)) {
            throw new AssertionError(what + ": " + found + " instead of " + wanted);
        }
    }

    static void until(Callable<Boolean> check, String what) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS_MAX;
        while (!check.call()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError(what + ": not within " + WAIT_MS_MAX + " ms");
            }
            Thread.sleep(20);
        }
    }
}
