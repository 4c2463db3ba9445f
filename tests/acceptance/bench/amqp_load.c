/* One load client of a benchmark: raw sockets and poll, so that the node is what is measured.
 *
 *   amqp_load publish PORTS QUEUE COUNT SIZE WINDOW RATE CONNECTIONS TIMES EXCHANGE KEYS VARIED GROUPS
 *   amqp_load consume PORTS QUEUE COUNT PREFETCH ACK_EVERY IDLE_S NUMBERS QUEUES CONNECTIONS
 *   amqp_load declare PORTS QUEUE COUNT WINDOW EXCHANGE
 *   amqp_load delete  PORTS QUEUE COUNT WINDOW
 *
 * PORTS: of 127.0.0.1, with commas; a lost connection goes on at the next one, and publishes again
 * what was not confirmed. COUNT 0: until standard input ends. RATE 0: as fast as the window allows.
 * A body begins with the message's number and the monotonic time when it was made, in ns.
 * KEYS n > 1: routing keys in turn, QUEUE followed by 0 to n - 1. VARIED: properties as applications
 * set them, and bodies of 50 to 150 bytes. GROUPS n > 0: a header "order" with n values in turn, and
 * KEYS 1. QUEUES n > 1: each connection consumes from QUEUE0 to
 * QUEUEn-1. declare: quorum queues of such names, WINDOW methods ahead of their answers, and bound to
 * EXCHANGE if it has a name.
 * Writes JSON lines: {"done": n} now and then, at the end what was measured.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, FRAME_END = 0xCE };
enum { FRAME_BYTES_MAX = 131072, FRAME_OVERHEAD = 8, STAMP_BYTES = 16 };
enum { PORTS_MAX = 8, CONNECTIONS_MAX = 1000, SAMPLES_MAX = 20000 };
enum { ANSWER_MS_MAX = 30000, RETRY_US = 20000, RETRIES_MAX = 3000 };
enum { OUT_BYTES_SOFT_MAX = 4 << 20, READ_BYTES = 1 << 18 };

#define ID(class, method) ((uint32_t)(class) << 16 | (method))
enum {
    CONNECTION_START = ID(10, 10), CONNECTION_TUNE = ID(10, 30), CONNECTION_OPEN_OK = ID(10, 41),
    CONNECTION_CLOSE = ID(10, 50), CHANNEL_OPEN_OK = ID(20, 11), CHANNEL_CLOSE = ID(20, 40),
    CHANNEL_CLOSE_OK = ID(20, 41), QOS_OK = ID(60, 11), CONSUME_OK = ID(60, 21),
    DELIVER = ID(60, 60), ACK = ID(60, 80), NACK = ID(60, 120), SELECT_OK = ID(85, 11),
    DECLARE = ID(50, 10), DECLARE_OK = ID(50, 11), BIND = ID(50, 20), BIND_OK = ID(50, 21),
    DELETE = ID(50, 40), DELETE_OK = ID(50, 41),
};

struct buffer {
    uint8_t *data;
    size_t start, end, size;
};

/* A publish that is not confirmed. */
struct open_publish {
    uint64_t number;
    double sent_s;
    int confirmed;
};

struct connection {
    int fd;
    int port; /* its place among the ports */
    struct buffer in, out;
    /* Publishes of this connection are counted from 0; those from `low` up to `high` are open. */
    uint64_t low, high, tag_0;
    struct open_publish *open;
    /* Of one that consumes: the last tag, the last that was acked, deliveries, bytes to come. */
    uint64_t tag, acked, delivered, missing;
    int stamped;
};

static const char *queue;
static int ports[PORTS_MAX], ports_count;
static uint64_t count, done, refused;
static double start_s, said_s;
static double *latencies_ms;
static size_t samples, sample_every = 1;

static void fail(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fputs("amqp_load: ", stderr);
    vfprintf(stderr, format, rest);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double now_s(void) { return (double)now_ns() / 1e9; }

static void say_done(void) {
    printf("{\"done\": %llu}\n", (unsigned long long)done);
    fflush(stdout);
    said_s = now_s();
}

/* Evenly over the whole run, however long it is. */
static void sample(uint64_t number, double ms) {
    if (number % sample_every) return;
    if (samples == SAMPLES_MAX) {
        for (samples = 0; samples < SAMPLES_MAX / 2; samples++)
            latencies_ms[samples] = latencies_ms[2 * samples];
        sample_every *= 2;
    }
    latencies_ms[samples++] = ms;
}

/* --- buffers ---------------------------------------------------------------------------------- */

static uint8_t *room(struct buffer *b, size_t bytes) {
    if (b->start == b->end) b->start = b->end = 0;
    if (b->end + bytes > b->size && b->start > 0) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->end + bytes > b->size) {
        b->size = 2 * (b->end + bytes);
        b->data = realloc(b->data, b->size);
        if (!b->data) fail("out of memory");
    }
    return b->data + b->end;
}

static void put(struct buffer *b, const void *bytes, size_t length) {
    memcpy(room(b, length), bytes, length);
    b->end += length;
}

static void put_number(struct buffer *b, uint64_t value, int width) {
    uint64_t big = htobe64(value);
    put(b, (uint8_t *)&big + 8 - width, (size_t)width);
}

static void put_short_string(struct buffer *b, const char *text) {
    put_number(b, strlen(text), 1);
    put(b, text, strlen(text));
}

static uint64_t number_at(const uint8_t *at, int width) {
    uint64_t value = 0;
    while (width-- > 0) value = value << 8 | *at++;
    return value;
}

/* --- frames ----------------------------------------------------------------------------------- */

static size_t begin_frame(struct buffer *b, int kind, int channel) {
    put_number(b, (uint64_t)kind, 1);
    put_number(b, (uint64_t)channel, 2);
    put_number(b, 0, 4);
    return b->end - b->start;
}

static size_t begin_method(struct buffer *b, int channel, uint32_t id) {
    size_t mark = begin_frame(b, METHOD, channel);
    put_number(b, id, 4);
    return mark;
}

static void end_frame(struct buffer *b, size_t mark) {
    uint32_t size = htonl((uint32_t)(b->end - b->start - mark));
    memcpy(b->data + b->start + mark - 4, &size, 4);
    put_number(b, FRAME_END, 1);
}

static void flush(struct connection *c) {
    while (c->out.start < c->out.end) {
        ssize_t sent = send(c->fd, c->out.data + c->out.start, c->out.end - c->out.start,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) return; /* full, or broken: reading tells */
        c->out.start += (size_t)sent;
    }
}

/* What is there; 0: the connection is lost. */
static int receive(struct connection *c) {
    ssize_t got = recv(c->fd, room(&c->in, READ_BYTES), READ_BYTES, MSG_DONTWAIT);
    if (got > 0) c->in.end += (size_t)got;
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

struct frame {
    int kind;
    const uint8_t *payload;
    size_t size;
};

static int next_frame(struct connection *c, struct frame *f) {
    size_t have = c->in.end - c->in.start;
    const uint8_t *at = c->in.data + c->in.start;
    if (have < FRAME_OVERHEAD) return 0;
    f->size = number_at(at + 3, 4);
    if (have < f->size + FRAME_OVERHEAD) return 0;
    if (at[7 + f->size] != FRAME_END) fail("a frame without its end");
    f->kind = at[0];
    f->payload = at + 7;
    c->in.start += f->size + FRAME_OVERHEAD;
    return 1;
}

static uint32_t method_of(const struct frame *f) {
    uint32_t id = f->kind == METHOD ? (uint32_t)number_at(f->payload, 4) : 0;
    if (id == CONNECTION_CLOSE || id == CHANNEL_CLOSE)
        fail("closed by the node: %d %.*s", (int)number_at(f->payload + 4, 2), f->payload[6],
             f->payload + 7);
    return id;
}

/* Sends what was put, and waits for one method; 0: the connection is lost. */
static int until(struct connection *c, uint32_t wanted) {
    struct frame f;
    for (;;) {
        flush(c);
        while (next_frame(c, &f))
            if (method_of(&f) == wanted) return 1;
        struct pollfd p = {c->fd, POLLIN | (c->out.start < c->out.end ? POLLOUT : 0), 0};
        int ready = poll(&p, 1, ANSWER_MS_MAX);
        if (ready == 0) fail("no answer within %d s", ANSWER_MS_MAX / 1000);
        if (p.revents & (POLLIN | POLLERR | POLLHUP) && !receive(c)) return 0;
    }
}

/* --- connecting ------------------------------------------------------------------------------- */

static int dial(struct connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(ports[c->port])};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    c->in.start = c->in.end = c->out.start = c->out.end = 0;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0) fail("socket: %s", strerror(errno));
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0) return 0;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);

    struct buffer *out = &c->out;
    put(out, "AMQP\0\0\x09\x01", 8);
    if (!until(c, CONNECTION_START)) return 0;
    size_t mark = begin_method(out, 0, ID(10, 11));
    put_number(out, 0, 4); /* no properties */
    put_short_string(out, "PLAIN");
    put_number(out, 12, 4);
    put(out, "\0guest\0guest", 12);
    put_short_string(out, "en_US");
    end_frame(out, mark);
    if (!until(c, CONNECTION_TUNE)) return 0;
    mark = begin_method(out, 0, ID(10, 31));
    put_number(out, 1, 2);
    put_number(out, FRAME_BYTES_MAX, 4);
    put_number(out, 0, 2); /* no heartbeats */
    end_frame(out, mark);
    mark = begin_method(out, 0, ID(10, 40));
    put_short_string(out, "/");
    put_number(out, 0, 2);
    end_frame(out, mark);
    if (!until(c, CONNECTION_OPEN_OK)) return 0;
    mark = begin_method(out, 1, ID(20, 10));
    put_number(out, 0, 1);
    end_frame(out, mark);
    return until(c, CHANNEL_OPEN_OK);
}

static int dial_to_publish(struct connection *c) {
    if (!dial(c)) return 0;
    size_t mark = begin_method(&c->out, 1, ID(85, 10));
    put_number(&c->out, 0, 1);
    end_frame(&c->out, mark);
    return until(c, SELECT_OK);
}

/* At its port, or else at the next ones. */
static void dial_anyhow(struct connection *c, int (*how)(struct connection *)) {
    for (int tries = 0; !how(c); tries++) {
        close(c->fd);
        if (ports_count == 1 || tries == RETRIES_MAX) fail("no connection");
        c->port = (c->port + 1) % ports_count;
        usleep(RETRY_US);
    }
}

/* --- publishing ------------------------------------------------------------------------------- */

static uint64_t window, numbered;
static double rate, due_s;
static int stopping, tell_times;
static double *times; /* number, sent, confirmed; of each */
static size_t times_count, times_size;
static const char *exchange = "";
static uint64_t keys = 1, groups, kinds; /* kinds: of messages that are made beforehand */
static int varied;
static struct buffer *messages; /* all frames of one, by key or group; varied ones without a body */
static size_t *stamps_at;

static void put_publish(struct buffer *b, uint64_t key) {
    char name[300];
    snprintf(name, sizeof name, keys > 1 ? "%s%llu" : "%s", queue, (unsigned long long)key);
    size_t mark = begin_method(b, 1, ID(60, 40));
    put_number(b, 0, 2);
    put_short_string(b, exchange);
    put_short_string(b, name);
    put_number(b, 0, 1);
    end_frame(b, mark);
}

static void make_message(uint64_t key, size_t size) {
    struct buffer *b = &messages[key];
    put_publish(b, groups ? 0 : key);
    if (varied) return;
    size_t mark = begin_frame(b, HEADER, 1);
    put_number(b, 60, 2);
    put_number(b, 0, 2);
    put_number(b, size, 8);
    put_number(b, 0x1000 | (groups ? 0x2000 : 0), 2); /* delivery mode: persistent; headers */
    if (groups) {
        char value[30];
        int length = snprintf(value, sizeof value, "key-%llu", (unsigned long long)key);
        put_number(b, 1 + 5 + 1 + 4 + (uint64_t)length, 4);
        put_short_string(b, "order");
        put(b, "S", 1);
        put_number(b, (uint64_t)length, 4);
        put(b, value, (size_t)length);
    }
    put_number(b, 2, 1);
    end_frame(b, mark);
    for (size_t left = size; left > 0;) {
        size_t part = left < FRAME_BYTES_MAX - FRAME_OVERHEAD ? left : FRAME_BYTES_MAX - FRAME_OVERHEAD;
        mark = begin_frame(b, BODY, 1);
        if (left == size) stamps_at[key] = b->end;
        memset(room(b, part), 'x', part);
        b->end += part;
        end_frame(b, mark);
        left -= part;
    }
}

static char *put_hex(char *to, uint64_t value, int digits) {
    for (int i = digits - 1; i >= 0; i--, value >>= 4) to[i] = "0123456789abcdef"[value & 15];
    return to + digits;
}

/* Content type, message id, timestamp and one header, with a body of 50 to 150 bytes. */
static void put_varied(struct buffer *b, uint64_t number) {
    uint64_t mixed = (number + 1) * 11400714819323198485u;
    size_t size = 50 + (number * 7919) % 101;
    char id[36], trace[32], *at = id;
    at = put_hex(at, mixed >> 32, 8), *at++ = '-';
    at = put_hex(at, mixed >> 16, 4), *at++ = '-';
    at = put_hex(at, 0x4000 | (mixed & 0xfff), 4), *at++ = '-';
    at = put_hex(at, 0x8000 | (number & 0xfff), 4), *at++ = '-';
    put_hex(at, number, 12);
    put_hex(put_hex(trace, mixed, 16), number, 16);
    size_t mark = begin_frame(b, HEADER, 1);
    put_number(b, 60, 2);
    put_number(b, 0, 2);
    put_number(b, size, 8);
    put_number(b, 0x8000 | 0x2000 | 0x1000 | 0x0080 | 0x0040, 2);
    put_short_string(b, "application/json");
    put_number(b, 1 + 5 + 1 + 4 + sizeof trace, 4);
    put_short_string(b, "trace");
    put(b, "S", 1);
    put_number(b, sizeof trace, 4);
    put(b, trace, sizeof trace);
    put_number(b, 2, 1);
    put_number(b, sizeof id, 1);
    put(b, id, sizeof id);
    put_number(b, 1700000000 + number / 1000, 8);
    end_frame(b, mark);
    mark = begin_frame(b, BODY, 1);
    memset(room(b, size), 'x', size);
    b->end += size;
    end_frame(b, mark);
    b->end -= size + 1; /* to where the stamp belongs */
}

static void put_message(struct connection *c, uint64_t number, uint64_t made_ns) {
    uint64_t stamp[2] = {htole64(number), htole64(made_ns)}, key = number % kinds;
    const struct buffer *message = &messages[key];
    uint8_t *to = room(&c->out, message->end);
    memcpy(to, message->data, message->end);
    c->out.end += message->end;
    if (varied) {
        size_t size = 50 + (number * 7919) % 101;
        put_varied(&c->out, number);
        memcpy(c->out.data + c->out.end, stamp, STAMP_BYTES);
        c->out.end += size + 1;
    } else {
        memcpy(c->out.data + c->out.end - message->end + stamps_at[key], stamp, STAMP_BYTES);
    }
}

static int may_publish(const struct connection *c) {
    return !stopping && c->high - c->low < window && (!count || numbered < count) &&
           c->out.end - c->out.start < OUT_BYTES_SOFT_MAX && (!rate || now_s() >= due_s);
}

static void publish_some(struct connection *c) {
    while (may_publish(c)) {
        uint64_t made_ns = now_ns();
        c->open[c->high++ % window] = (struct open_publish){numbered, (double)made_ns / 1e9, 0};
        put_message(c, numbered++, made_ns);
        if (rate) due_s = due_s + 1 / rate > now_s() - 0.1 ? due_s + 1 / rate : now_s() - 0.1;
    }
    flush(c);
}

static void confirmed(struct open_publish *publish, double at_s) {
    if (publish->confirmed) return;
    publish->confirmed = 1;
    done++;
    sample(publish->number, (at_s - publish->sent_s) * 1000);
    if (!tell_times) return;
    if (times_count == times_size) {
        times_size = times_size ? 2 * times_size : 1 << 12;
        times = realloc(times, times_size * 3 * sizeof *times);
        if (!times) fail("out of memory");
    }
    double *row = times + 3 * times_count++;
    row[0] = (double)publish->number;
    row[1] = publish->sent_s;
    row[2] = at_s;
}

static void on_confirm(struct connection *c, const struct frame *f, uint32_t id) {
    uint64_t last = c->tag_0 + number_at(f->payload + 4, 8) - 1;
    double at_s = now_s();
    if (id == NACK) refused++;
    if (last >= c->high) fail("a confirm of what was not published");
    if (last < c->low) return;
    for (uint64_t each = f->payload[12] & 1 ? c->low : last; each <= last; each++)
        confirmed(&c->open[each % window], at_s);
    while (c->low < c->high && c->open[c->low % window].confirmed) c->low++;
}

static void publish_again(struct connection *c) {
    close(c->fd);
    dial_anyhow(c, dial_to_publish);
    c->tag_0 = c->low;
    for (uint64_t each = c->low; each < c->high; each++) {
        struct open_publish *publish = &c->open[each % window];
        put_message(c, publish->number, (uint64_t)(publish->sent_s * 1e9));
    }
}

static double publish(size_t size, int connections) {
    struct connection *all = calloc((size_t)connections, sizeof *all);
    struct pollfd *polled = calloc((size_t)connections + 1, sizeof *polled);
    kinds = groups ? groups : keys;
    messages = calloc(kinds, sizeof *messages);
    stamps_at = calloc(kinds, sizeof *stamps_at);
    for (uint64_t key = 0; key < kinds; key++) make_message(key, size);
    for (int i = 0; i < connections; i++) {
        all[i].open = calloc(window, sizeof *all[i].open);
        dial_anyhow(&all[i], dial_to_publish);
    }
    say_done();
    start_s = due_s = now_s();
    while ((!count && !stopping) || done < numbered || (count && numbered < count)) {
        for (int i = 0; i < connections; i++) {
            publish_some(&all[i]);
            polled[i] = (struct pollfd){
                all[i].fd, POLLIN | (all[i].out.start < all[i].out.end ? POLLOUT : 0), 0};
        }
        polled[connections] = (struct pollfd){count || stopping ? -1 : 0, POLLIN, 0};
        struct timespec wait = {1, 0};
        if (rate) {
            double left_s = due_s - now_s();
            wait = (struct timespec){0, left_s <= 0 ? 0 : (long)(left_s < 0.5 ? left_s * 1e9 : 5e8)};
        }
        if (ppoll(polled, (nfds_t)connections + 1, &wait, NULL) < 0 && errno != EINTR)
            fail("poll: %s", strerror(errno));
        if (polled[connections].revents) stopping = 1;
        for (int i = 0; i < connections; i++) {
            struct frame f;
            if (!(polled[i].revents & (POLLIN | POLLERR | POLLHUP))) continue;
            if (!receive(&all[i])) {
                publish_again(&all[i]);
                continue;
            }
            while (next_frame(&all[i], &f)) {
                uint32_t id = method_of(&f);
                if (id == ACK || id == NACK) on_confirm(&all[i], &f, id);
            }
        }
        if (now_s() - said_s > 0.2) say_done();
    }
    return now_s();
}

/* --- consuming -------------------------------------------------------------------------------- */

static uint64_t *numbers;

static unsigned prefetch;
static uint64_t ack_every, queues;

static void put_ack(struct connection *c) {
    size_t mark = begin_method(&c->out, 1, ACK);
    put_number(&c->out, c->acked = c->tag, 8);
    put_number(&c->out, ack_every > 1, 1);
    end_frame(&c->out, mark);
}

static void put_consume(struct connection *c, uint64_t number) {
    char name[300], consumer[32];
    snprintf(name, sizeof name, queues > 1 ? "%s%llu" : "%s", queue, (unsigned long long)number);
    snprintf(consumer, sizeof consumer, "load%llu", (unsigned long long)number);
    size_t mark = begin_method(&c->out, 1, ID(60, 20));
    put_number(&c->out, 0, 2);
    put_short_string(&c->out, name);
    put_short_string(&c->out, consumer);
    put_number(&c->out, ack_every ? 0 : 2, 1); /* no_ack */
    put_number(&c->out, 0, 4);
    end_frame(&c->out, mark);
}

static int dial_to_consume(struct connection *c) {
    if (!dial(c)) return 0;
    size_t mark = begin_method(&c->out, 1, ID(60, 10));
    put_number(&c->out, 0, 4);
    put_number(&c->out, prefetch, 2);
    put_number(&c->out, 0, 1);
    end_frame(&c->out, mark);
    return until(c, QOS_OK);
}

static void on_delivery(struct connection *c, const struct frame *f) {
    if (f->kind == METHOD) {
        if (method_of(f) == DELIVER) c->tag = number_at(f->payload + 5 + f->payload[4], 8);
        return;
    }
    if (f->kind == HEADER) {
        c->missing = number_at(f->payload + 4, 8);
        c->stamped = 0;
        return;
    }
    if (f->kind != BODY) return;
    if (!c->stamped && f->size >= STAMP_BYTES) {
        uint64_t stamp[2];
        memcpy(stamp, f->payload, STAMP_BYTES);
        if (numbers) numbers[done] = le64toh(stamp[0]);
        sample(done, (double)(now_ns() - le64toh(stamp[1])) / 1e6);
        c->stamped = 1;
    }
    c->missing -= f->size;
    if (c->missing > 0) return;
    done++;
    if (ack_every && (++c->delivered % ack_every == 0 || done == count)) put_ack(c);
}

static double consume(double idle_s, int tell_numbers, int connections) {
    struct connection *all = calloc((size_t)connections, sizeof *all);
    struct pollfd *polled = calloc((size_t)connections + 1, sizeof *polled);
    struct frame f;
    if (tell_numbers) numbers = calloc(count ? count : 1, sizeof *numbers);
    for (int i = 0; i < connections; i++) dial_anyhow(&all[i], dial_to_consume);
    start_s = now_s();
    for (int i = 0; i < connections; i++) {
        for (uint64_t each = 0; each < queues; each++) put_consume(&all[i], each);
        if (queues > 1) flush(&all[i]);
    }
    /* Of many, empty queues: ready when all answered. */
    for (int i = 0; i < connections; i++)
        for (uint64_t each = 0; queues > 1 && each < queues; each++)
            if (!until(&all[i], CONSUME_OK)) fail("lost");
    say_done();
    double last_s = now_s();
    if (queues > 1) start_s = last_s;
    while ((count ? done < count : !stopping) && now_s() - last_s < idle_s) {
        for (int i = 0; i < connections; i++) {
            flush(&all[i]);
            polled[i] = (struct pollfd){
                all[i].fd, POLLIN | (all[i].out.start < all[i].out.end ? POLLOUT : 0), 0};
        }
        polled[connections] = (struct pollfd){count ? -1 : 0, POLLIN, 0};
        if (poll(polled, (nfds_t)connections + 1, 500) <= 0) continue;
        if (polled[connections].revents) stopping = 1;
        for (int i = 0; i < connections; i++) {
            if (!(polled[i].revents & (POLLIN | POLLERR | POLLHUP))) continue;
            if (!receive(&all[i])) fail("the connection is lost");
            while ((!count || done < count) && next_frame(&all[i], &f)) on_delivery(&all[i], &f);
            last_s = now_s();
        }
        if (now_s() - said_s > 0.2) say_done();
    }
    double end_s = now_s();
    for (int i = 0; i < connections; i++) {
        struct connection *c = &all[i];
        if (ack_every && c->tag > c->acked) put_ack(c);
        size_t mark = begin_method(&c->out, 1, CHANNEL_CLOSE); /* its answer says that the acks came */
        put_number(&c->out, 200, 2);
        put_number(&c->out, 0, 5);
        end_frame(&c->out, mark);
        if (!until(c, CHANNEL_CLOSE_OK)) fail("lost");
    }
    return count ? now_s() : end_s;
}

/* --- declaring -------------------------------------------------------------------------------- */

static void put_declare(struct buffer *b, const char *name) {
    size_t mark = begin_method(b, 1, DECLARE);
    put_number(b, 0, 2);
    put_short_string(b, name);
    put_number(b, 2, 1); /* durable */
    put_number(b, 1 + 12 + 1 + 4 + 6, 4);
    put_short_string(b, "x-queue-type");
    put(b, "S", 1);
    put_number(b, 6, 4);
    put(b, "quorum", 6);
    end_frame(b, mark);
}

static void put_bind(struct buffer *b, const char *name) {
    size_t mark = begin_method(b, 1, BIND);
    put_number(b, 0, 2);
    put_short_string(b, name);
    put_short_string(b, exchange);
    put_short_string(b, name);
    put_number(b, 0, 5); /* with an answer, without arguments */
    end_frame(b, mark);
}

static void put_delete(struct buffer *b, const char *name) {
    size_t mark = begin_method(b, 1, DELETE);
    put_number(b, 0, 2);
    put_short_string(b, name);
    put_number(b, 0, 1);
    end_frame(b, mark);
}

/* One kind of method after the other, so that each answer is to the oldest that has none. */
static void declare_all(struct connection *c, void (*put_one)(struct buffer *, const char *), uint32_t answer) {
    double *sent_s = calloc(window, sizeof *sent_s);
    for (uint64_t sent = 0, got = 0; got < count; got++) {
        for (; sent < count && sent - got < window; sent++) {
            char name[300];
            snprintf(name, sizeof name, "%s%llu", queue, (unsigned long long)sent);
            sent_s[sent % window] = now_s();
            put_one(&c->out, name);
        }
        if (!until(c, answer)) fail("lost");
        done = got + 1;
        sample(got, (now_s() - sent_s[got % window]) * 1000);
        if (now_s() - said_s > 0.2) say_done();
    }
    free(sent_s);
}

static double declare(int remove) {
    struct connection c = {0};
    dial_anyhow(&c, dial);
    say_done();
    start_s = now_s();
    declare_all(&c, remove ? put_delete : put_declare, remove ? DELETE_OK : DECLARE_OK);
    double end_s = now_s();
    if (*exchange) declare_all(&c, put_bind, BIND_OK);
    return end_s;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void report(double end_s) {
    printf("{\"count\": %llu, \"start_s\": %.9f, \"end_s\": %.9f, \"latencies_ms\": [",
           (unsigned long long)done, start_s, end_s);
    for (size_t i = 0; i < samples; i++) printf("%s%.4f", i ? "," : "", latencies_ms[i]);
    printf("], \"extra\": {\"refused\": %llu", (unsigned long long)refused);
    if (tell_times) {
        printf(", \"confirmed\": [");
        for (size_t i = 0; i < times_count; i++)
            printf("%s[%.0f,%.9f,%.9f]", i ? "," : "", times[3 * i], times[3 * i + 1],
                   times[3 * i + 2]);
        printf("]");
    }
    if (numbers) {
        printf(", \"numbers\": [");
        for (uint64_t i = 0; i < done; i++)
            printf("%s%llu", i ? "," : "", (unsigned long long)numbers[i]);
        printf("]");
    }
    printf("}}\n");
}

static void read_ports(char *text) {
    for (char *each = strtok(text, ","); each && ports_count < PORTS_MAX; each = strtok(NULL, ","))
        ports[ports_count++] = atoi(each);
    if (!ports_count) fail("no ports");
}

int main(int argc, char **argv) {
    double end_s;
    if (argc < 5) fail("see the first lines of amqp_load.c");
    read_ports(argv[2]);
    queue = argv[3];
    count = strtoull(argv[4], NULL, 10);
    if (strlen(queue) > 255) fail("the name of the queue is too long");
    sample_every = count / SAMPLES_MAX + 1;
    latencies_ms = calloc(SAMPLES_MAX, sizeof *latencies_ms);
    if (strcmp(argv[1], "publish") == 0 && argc == 14) {
        size_t size = strtoull(argv[5], NULL, 10);
        int connections = atoi(argv[8]);
        window = strtoull(argv[6], NULL, 10);
        rate = atof(argv[7]);
        tell_times = atoi(argv[9]);
        exchange = argv[10];
        keys = strtoull(argv[11], NULL, 10);
        varied = atoi(argv[12]);
        groups = strtoull(argv[13], NULL, 10);
        if (groups && keys > 1) fail("GROUPS is for one routing key");
        if (size < STAMP_BYTES || !window || !keys || connections < 1 || connections > CONNECTIONS_MAX)
            fail("SIZE is at least 16, WINDOW and KEYS at least 1, CONNECTIONS up to %d", CONNECTIONS_MAX);
        end_s = publish(size, connections);
    } else if (strcmp(argv[1], "consume") == 0 && argc == 11) {
        int connections = atoi(argv[10]);
        prefetch = (unsigned)atoi(argv[5]);
        ack_every = strtoull(argv[6], NULL, 10);
        queues = strtoull(argv[9], NULL, 10);
        if (!queues || connections < 1 || connections > CONNECTIONS_MAX)
            fail("QUEUES is at least 1, CONNECTIONS up to %d", CONNECTIONS_MAX);
        end_s = consume(atof(argv[7]), atoi(argv[8]), connections);
    } else if ((strcmp(argv[1], "declare") == 0 && argc == 7) ||
               (strcmp(argv[1], "delete") == 0 && argc == 6)) {
        window = strtoull(argv[5], NULL, 10);
        if (!window) fail("WINDOW is at least 1");
        if (argc == 7) exchange = argv[6];
        end_s = declare(argc == 6);
    } else {
        fail("see the first lines of amqp_load.c");
    }
    say_done();
    report(end_s);
    return 0;
}
