/* A client of NATS: raw sockets and poll, so that the nodes are what is measured.
 *
 *   nats_load publish PORT SUBJECT COUNT SIZE WINDOW    to a stream that has SUBJECT, WINDOW unconfirmed
 *   nats_load pull PORT STREAM CONSUMER COUNT BATCH     acks each message; two pulls of BATCH wait
 *   nats_load read PORT STREAM CONSUMER COUNT BATCH     the same, without acks
 *   nats_load send PORT SUBJECT COUNT SIZE              core: WINDOW_SENT ahead of the last PONG
 *   nats_load take PORT SUBJECT COUNT                   core: what comes
 *
 * COUNT 0: until standard input ends. Writes JSON lines as amqp_load does. Latency: of a publish until its
 * ack; of `take`, from `send` to here, by the time in the body.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { IN_BYTES = 1 << 20, OUT_BYTES = 1 << 22, LINE_BYTES_MAX = 512, SAMPLES_MAX = 20000 };
enum { ANSWER_MS_MAX = 30000, WINDOW_SENT = 5000, PULL_EXPIRES_NS = 1000000000 };

static int fd;
static char in[IN_BYTES + 1], out[OUT_BYTES];
static size_t in_start, in_end, out_start, out_end;
static uint64_t sent, done, refused, count, sample_every = 1;
static uint64_t pongs;
static double start_s;
static int stopping;
static double latencies_ms[SAMPLES_MAX];
static size_t samples;

static void fail(const char *what) {
    fprintf(stderr, "nats_load: %s\n", what);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sample(uint64_t number, double ms) {
    if (number % sample_every) return;
    if (samples == SAMPLES_MAX) {
        for (samples = 0; samples < SAMPLES_MAX / 2; samples++)
            latencies_ms[samples] = latencies_ms[2 * samples];
        sample_every *= 2;
    }
    latencies_ms[samples++] = ms;
}

static void put(const void *bytes, size_t length) {
    if (out_end + length > OUT_BYTES) {
        memmove(out, out + out_start, out_end - out_start);
        out_end -= out_start;
        out_start = 0;
        if (out_end + length > OUT_BYTES) fail("too much unsent");
    }
    memcpy(out + out_end, bytes, length);
    out_end += length;
}

static void flush(void) {
    while (out_start < out_end) {
        ssize_t some = send(fd, out + out_start, out_end - out_start, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (some < 0) return; /* full, or broken: reading tells */
        out_start += (size_t)some;
    }
    out_start = out_end = 0;
}

static void receive(void) {
    if (in_start) {
        memmove(in, in + in_start, in_end - in_start);
        in_end -= in_start;
        in_start = 0;
    }
    ssize_t got = recv(fd, in + in_end, IN_BYTES - in_end, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) fail("the connection is lost");
    if (got > 0) in_end += (size_t)got;
}

/* The next line without its end; NULL: not there yet. */
static char *next_line(void) {
    char *line = in + in_start, *end = memmem(line, in_end - in_start, "\r\n", 2);
    if (!end) return NULL;
    *end = 0;
    in_start = (size_t)(end - in) + 2;
    if (line[0] == '-') fail(line);
    if (!strncmp(line, "PING", 4)) put("PONG\r\n", 6);
    return line;
}

static void until(const char *wanted) {
    for (;;) {
        for (char *line; (line = next_line());)
            if (!strncmp(line, wanted, strlen(wanted))) return;
        flush();
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, ANSWER_MS_MAX) <= 0) fail("no answer");
        receive();
    }
}

struct message {
    char *subject, *reply, *payload; /* reply: NULL if there is none */
    size_t length;                   /* of payload, with headers */
    int status;                      /* of a message that is only headers; 0: it has none */
};

/* Whether there is a whole message; its texts are valid until `receive`. */
static int next_message(struct message *m) {
    for (;;) {
        size_t before = in_start;
        char *line = next_line();
        if (!line) return 0;
        int headers = line[0] == 'H';
        if (!strncmp(line, "PONG", 4)) pongs++;
        if (strncmp(line, "MSG ", 4) && strncmp(line, "HMSG ", 5)) continue;
        size_t length = strtoul(strrchr(line, ' ') + 1, NULL, 10);
        if (in_end - in_start < length + 2) {
            line[strlen(line)] = '\r';
            in_start = before;
            return 0;
        }
        char *words[6], *rest = line;
        int found = 0;
        for (char *word; found < 6 && (word = strsep(&rest, " "));) words[found++] = word;
        m->subject = words[1];
        m->reply = found == (headers ? 6 : 5) ? words[3] : NULL;
        m->payload = in + in_start;
        m->length = length;
        m->status = headers && !strncmp(m->payload, "NATS/1.0 ", 9) ? atoi(m->payload + 9) : 0;
        in_start += length + 2;
        return 1;
    }
}

static void put_publish(const char *subject, const char *reply, const void *body, size_t size) {
    char line[LINE_BYTES_MAX];
    int length = snprintf(line, sizeof line, "PUB %s %s%s%zu\r\n", subject, reply, *reply ? " " : "", size);
    put(line, (size_t)length);
    put(body, size);
    put("\r\n", 2);
}

static void tell(void) {
    static double said_s;
    if (now_s() - said_s < 0.2) return;
    said_s = now_s();
    printf("{\"done\": %llu}\n", (unsigned long long)done);
    fflush(stdout);
}

/* Until the socket or standard input has something. */
static void turn(void) {
    flush();
    struct pollfd p[2] = {{fd, POLLIN | (out_start < out_end ? POLLOUT : 0), 0},
                          {stopping || count ? -1 : 0, POLLIN, 0}};
    if (poll(p, 2, ANSWER_MS_MAX) == 0) fail("nothing came");
    if (p[1].revents) stopping = 1;
    if (p[0].revents & (POLLIN | POLLERR | POLLHUP)) receive();
    tell();
}

static void subscribe(const char *subject) {
    char line[LINE_BYTES_MAX];
    put(line, (size_t)snprintf(line, sizeof line,
                               "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,"
                               "\"no_responders\":true,\"protocol\":1}\r\nSUB %s 1\r\nPING\r\n", subject));
    until("PONG");
    printf("{\"done\": 0}\n");
    fflush(stdout);
}

static int more_to_send(void) {
    return !stopping && (!count || sent < count);
}

static void publish(const char *subject, size_t size, uint64_t window) {
    if (!size || !window || window * (size + LINE_BYTES_MAX) > OUT_BYTES) fail("SIZE and WINDOW: 1 to 4 MiB together");
    char inbox[64], reply[96], *body = malloc(size);
    double *sent_s = calloc(window, sizeof *sent_s);
    memset(body, 'x', size);
    snprintf(inbox, sizeof inbox, "_INBOX.load%d.*", getpid());
    subscribe(inbox);
    inbox[strlen(inbox) - 2] = 0;
    start_s = now_s();
    while (more_to_send() || done < sent) {
        for (; more_to_send() && sent - done < window; sent++) {
            /* One that is answered out of turn would take the place of another in `sent_s`; JetStream
             * answers those of one connection in order. */
            sent_s[(sent + 1) % window] = now_s();
            snprintf(reply, sizeof reply, "%s.%llu", inbox, (unsigned long long)sent + 1);
            put_publish(subject, reply, body, size);
        }
        turn();
        for (struct message m; next_message(&m);) {
            if (m.status || memmem(m.payload, m.length, "\"error\"", 7)) refused++;
            uint64_t number = strtoull(strrchr(m.subject, '.') + 1, NULL, 10);
            sample(++done, (now_s() - sent_s[number % window]) * 1000);
            if (number > sent) fail("an answer to what was not published");
        }
    }
}

static void pull(const char *stream, const char *consumer, uint64_t batch, int acks) {
    char inbox[64], next[LINE_BYTES_MAX], request[LINE_BYTES_MAX];
    snprintf(inbox, sizeof inbox, "_INBOX.load%d", getpid());
    snprintf(next, sizeof next, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer);
    int length = snprintf(request, sizeof request, "{\"batch\":%llu,\"expires\":%d}",
                          (unsigned long long)batch, PULL_EXPIRES_NS);
    subscribe(inbox);
    start_s = now_s();
    uint64_t asked = 0;
    while (done < count) {
        for (; asked < done + 2 * batch; asked += batch) put_publish(next, inbox, request, (size_t)length);
        turn();
        for (struct message m; next_message(&m);) {
            if (m.status == 100) continue;
            if (m.status) asked = done; /* a pull has ended: ask anew */
            else if (m.reply) {
                if (acks) put_publish(m.reply, "", "+ACK", 4);
                done++;
            }
        }
    }
    put("PING\r\n", 6); /* the acks have been read */
    for (uint64_t before = pongs; pongs == before;) {
        turn();
        for (struct message m; next_message(&m););
    }
}

static void send_core(const char *subject, size_t size) {
    if (size < sizeof(double)) fail("SIZE: at least 8");
    char inbox[64], *body = calloc(1, size);
    snprintf(inbox, sizeof inbox, "_INBOX.load%d", getpid());
    subscribe(inbox);
    start_s = now_s();
    uint64_t pings = 0, first_pong = pongs;
    while (more_to_send() || pongs - first_pong < pings) {
        while (more_to_send() && pings - (pongs - first_pong) < 2) {
            for (uint64_t end = sent + WINDOW_SENT / 2; sent < end && more_to_send(); sent++) {
                double now = now_s();
                memcpy(body, &now, sizeof now);
                put_publish(subject, "", body, size);
            }
            put("PING\r\n", 6);
            pings++;
        }
        turn();
        for (struct message m; next_message(&m););
        done = sent;
    }
}

static void take(const char *subject) {
    subscribe(subject);
    while (done < count || (!count && !stopping)) {
        turn();
        for (struct message m; next_message(&m);) {
            double now = now_s(), made;
            if (!done) start_s = now;
            memcpy(&made, m.payload, sizeof made);
            sample(++done, (now - made) * 1000);
        }
    }
}

static uint64_t number(const char *text) {
    return strtoull(text, NULL, 10);
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "";
    int publishes = !strcmp(verb, "publish"), reads = !strcmp(verb, "read");
    int pulls = reads || !strcmp(verb, "pull");
    int sends = !strcmp(verb, "send"), takes = !strcmp(verb, "take");
    if (argc != 7 * (publishes || pulls) + 6 * sends + 5 * takes) fail("see the first lines of nats_load.c");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    until("INFO");
    count = number(argv[pulls ? 5 : 4]);
    if (publishes) publish(argv[3], number(argv[5]), number(argv[6]));
    if (pulls) pull(argv[3], argv[4], number(argv[6]), !reads);
    if (sends) send_core(argv[3], number(argv[5]));
    if (takes) take(argv[3]);
    printf("{\"count\": %llu, \"start_s\": %.9f, \"end_s\": %.9f, \"latencies_ms\": [",
           (unsigned long long)done, start_s, now_s());
    for (size_t i = 0; i < samples; i++) printf("%s%.4f", i ? "," : "", latencies_ms[i]);
    printf("], \"extra\": {\"refused\": %llu}}\n", (unsigned long long)refused);
    return 0;
}
