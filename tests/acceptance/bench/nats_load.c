/* One publisher to NATS JetStream: raw sockets and poll, so that the node is what is measured.
 *
 *   nats_load PORT SUBJECT SIZE WINDOW
 *
 * Publishes with WINDOW messages unconfirmed until standard input ends; a stream must have SUBJECT.
 * Writes JSON lines as amqp_load does.
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
enum { ANSWER_MS_MAX = 30000 };

static int fd;
static char in[IN_BYTES + 1], out[OUT_BYTES];
static size_t in_start, in_end, out_start, out_end;
static uint64_t sent, done, refused, sample_every = 1;
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

/* The number of the publish that the next answer is to; 0: not there yet. */
static uint64_t next_answer(void) {
    for (;;) {
        size_t before = in_start;
        char *line = next_line();
        if (!line) return 0;
        if (strncmp(line, "MSG ", 4) && strncmp(line, "HMSG ", 5)) continue;
        size_t length = strtoul(strrchr(line, ' ') + 1, NULL, 10);
        if (in_end - in_start < length + 2) {
            line[strlen(line)] = '\r';
            in_start = before;
            return 0;
        }
        char *payload = in + in_start;
        in_start += length + 2;
        if (line[0] == 'H' || memmem(payload, length, "\"error\"", 7)) refused++;
        char *subject = strchr(line, ' ') + 1;
        *strchr(subject, ' ') = 0;
        return strtoull(strrchr(subject, '.') + 1, NULL, 10);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) fail("see the first lines of nats_load.c");
    const char *subject = argv[2];
    size_t size = strtoul(argv[3], NULL, 10);
    uint64_t window = strtoull(argv[4], NULL, 10);
    if (!size || !window || window * (size + LINE_BYTES_MAX) > OUT_BYTES) fail("SIZE and WINDOW: 1 to 4 MiB together");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1, stopping = 0;
    char inbox[64], line[LINE_BYTES_MAX], *body = malloc(size);
    double *sent_s = calloc(window, sizeof *sent_s), said_s = 0;
    memset(body, 'x', size);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    until("INFO");
    snprintf(inbox, sizeof inbox, "_INBOX.load%d", getpid());
    put(line, (size_t)snprintf(line, sizeof line,
                               "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,"
                               "\"no_responders\":true,\"protocol\":1}\r\nSUB %s.* 1\r\nPING\r\n", inbox));
    until("PONG");
    printf("{\"done\": 0}\n");
    fflush(stdout);
    double start_s = now_s();
    while (!stopping || done < sent) {
        for (; !stopping && sent - done < window; sent++) {
            /* One that is answered out of turn would take the place of another in `sent_s`; JetStream
             * answers those of one connection in order. */
            sent_s[(sent + 1) % window] = now_s();
            put(line, (size_t)snprintf(line, sizeof line, "PUB %s %s.%llu %zu\r\n", subject, inbox,
                                       (unsigned long long)sent + 1, size));
            put(body, size);
            put("\r\n", 2);
        }
        flush();
        struct pollfd p[2] = {{fd, POLLIN | (out_start < out_end ? POLLOUT : 0), 0},
                              {stopping ? -1 : 0, POLLIN, 0}};
        if (poll(p, 2, ANSWER_MS_MAX) == 0) fail("no confirm");
        if (p[1].revents) stopping = 1;
        if (p[0].revents & (POLLIN | POLLERR | POLLHUP)) receive();
        for (uint64_t number; (number = next_answer());) {
            sample(++done, (now_s() - sent_s[number % window]) * 1000);
            if (number > sent) fail("an answer to what was not published");
        }
        if (now_s() - said_s > 0.2) {
            said_s = now_s();
            printf("{\"done\": %llu}\n", (unsigned long long)done);
            fflush(stdout);
        }
    }
    printf("{\"count\": %llu, \"start_s\": %.9f, \"end_s\": %.9f, \"latencies_ms\": [",
           (unsigned long long)done, start_s, now_s());
    for (size_t i = 0; i < samples; i++) printf("%s%.4f", i ? "," : "", latencies_ms[i]);
    printf("], \"extra\": {\"refused\": %llu}}\n", (unsigned long long)refused);
    return 0;
}
