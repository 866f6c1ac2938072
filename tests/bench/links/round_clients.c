/* The clients of one round: each connects, sends {"c": n}, waits for {"c": n, "ts": ...}, and stays until all of them
 * have their answer; then all close. `round_clients PORT CLIENTS AT_ONCE SECONDS ADDRESS...` prints the figures as one
 * line of JSON, times in seconds; after SECONDS it gives up. Every answer is checked, so a server that mixes its
 * clients up has no figure. It is in C because clients in Python took a whole core for what the fastest servers do on
 * another: a round lasted as long as its clients worked. Called by rounds.py. */
#define _GNU_SOURCE
#include <sys/random.h>

#include "../clients.h"
#include "../peers/accept_key.h"

enum { BUFFER = 1024, LONGEST = 125, MASK = 4 }; /* no frame of a round is longer than a short one */
enum { CLOCKS = 60 }; /* seconds between a server's timestamp and ours: it is of this round */
enum { TEXT = 1, CLOSE = 8 }; /* opcodes */
#define PROTOCOL "fairlead.v1.msgpack"
enum State { CONNECTING, UPGRADING, ASKING, ANSWERED, CLOSING, CLOSED };

typedef struct {
    int fd;
    enum State state;
    size_t length; /* of what was read and is no whole response or frame yet */
    double began, opened;
    char key[KEY + 1];
    uint8_t in[BUFFER];
} Client;

static Client *clients;
static int count, port, begun, answered, ended, addresses;
static char **address;
static double *connects, *answers;

static void stop(const Client *client, const char *what) { fail(client - clients, what); }

static void begin(void) {
    Client *client = &clients[begun];
    const char *source = address[begun++ % addresses];
    client->began = now(CLOCK_MONOTONIC);
    client->fd = begin_connection(client - clients, port, source);
    watch(client - clients, client, client->fd, EPOLL_CTL_ADD, EPOLLOUT);
}

static void send_all(Client *client, const void *data, size_t length) {
    if (write(client->fd, data, length) != (ssize_t)length) stop(client, "write");
}

static void send_frame(Client *client, uint8_t opcode, const char *payload, size_t length) {
    uint8_t frame[2 + MASK + LONGEST];
    frame[0] = 0x80 | opcode, frame[1] = 0x80 | (uint8_t)length;
    if (getrandom(frame + 2, MASK, 0) != MASK) stop(client, "getrandom");
    for (size_t i = 0; i < length; i++) frame[2 + MASK + i] = (uint8_t)payload[i] ^ frame[2 + (i & 3)];
    send_all(client, frame, 2 + MASK + length);
}

static void upgrade(Client *client) {
    uint8_t nonce[18] = {0}; /* 16 octets, and zeros as base64 wants them */
    char request[512];
    check_connection(client - clients, client->fd);
    if (getrandom(nonce, 16, 0) != 16) stop(client, "getrandom");
    for (int i = 0; i < 6; i++) base64_digits(nonce + 3 * i, client->key + 4 * i);
    client->key[22] = client->key[23] = '=';
    int length = snprintf(request, sizeof request,
        "GET /v1/link HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: " PROTOCOL "\r\n\r\n",
        port, client->key);
    client->state = UPGRADING;
    watch(client - clients, client, client->fd, EPOLL_CTL_MOD, EPOLLIN);
    send_all(client, request, (size_t)length);
}

/* Whether the response has this header with exactly this value; `name` begins with the end of the line before. */
static int has(const char *text, const char *name, const char *value) {
    const char *found = strcasestr(text, name);
    if (!found) return 0;
    found += strlen(name), found += strspn(found, " \t");
    return !strncmp(found, value, strlen(value)) && strchr(" \t\r", found[strlen(value)]); /* or the end, as strchr does */
}

/* Octets of the response; 0 until all of it is there. */
static size_t response(Client *client) {
    uint8_t *end = memmem(client->in, client->length, "\r\n\r\n", 4);
    if (!end) return 0;
    char expected[ACCEPT + 1], question[LONGEST];
    const char *text = (char *)client->in;
    *end = 0; /* of the last header, so that the functions for text stop there */
    accept_key(client->key, expected);
    if (strncmp(text, "HTTP/1.1 101 ", 13)) stop(client, text);
    if (!has(text, "\r\nsec-websocket-accept:", expected))
        stop(client, "Sec-WebSocket-Accept does not belong to the key");
    if (!has(text, "\r\nsec-websocket-protocol:", PROTOCOL))
        stop(client, "the server has not accepted the subprotocol");
    if (strcasestr(text, "\r\nsec-websocket-extensions:")) stop(client, "the server has accepted what nobody offered");
    if (end + 4 != client->in + client->length) stop(client, "the server sent a frame before it was asked");
    client->state = ASKING;
    client->opened = now(CLOCK_MONOTONIC);
    int length = snprintf(question, sizeof question, "{\"c\": %td}", client - clients);
    send_frame(client, TEXT, question, (size_t)length);
    return (size_t)(end + 4 - client->in);
}

/* Whether this is the answer to the client's question, and the server's clock is about right. Spaces in the format
 * stand for any white space or none. */
static int is_answer(const Client *client, const char *text, size_t length) {
    long number;
    int end = -1;
    double moment, ours = now(CLOCK_REALTIME);
    return sscanf(text, " { \"c\" : %ld , \"ts\" : %lf } %n", &number, &moment, &end) == 2 && end == (int)length &&
           number == client - clients && moment > ours - CLOCKS && moment < ours + CLOCKS;
}

/* One whole frame of the server. */
static void frame(Client *client, uint8_t opcode, const uint8_t *payload, size_t length) {
    char text[LONGEST + 1];
    memcpy(text, payload, length), text[length] = 0;
    if (client->state == ASKING && opcode == TEXT) {
        if (!is_answer(client, text, length)) stop(client, text);
        client->state = ANSWERED;
        connects[answered] = client->opened - client->began;
        answers[answered++] = now(CLOCK_MONOTONIC) - client->opened;
        if (begun < count) begin();
    } else if (client->state == CLOSING && opcode == CLOSE) {
        client->state = CLOSED; /* the server closes the connection (RFC 6455, 7.1.1) */
    } else {
        stop(client, "the server sent a frame that nobody asked for");
    }
}

static void readable(Client *client) {
    ssize_t got = read(client->fd, client->in + client->length, BUFFER - client->length);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (client->state != CLOSED) stop(client, got ? "read" : "the server closed the connection");
        close(client->fd), ended++;
        return;
    }
    client->length += (size_t)got;
    size_t used = client->state == UPGRADING ? response(client) : 0;
    while (client->state >= ASKING && client->length - used >= 2) {
        uint8_t *head = client->in + used;
        size_t length = head[1];
        if (head[0] >> 4 != 8 || length > LONGEST) stop(client, "the server sent a masked, long or partial frame");
        if (client->length - used < 2 + length) break;
        frame(client, head[0] & 15, head + 2, length);
        used += 2 + length;
    }
    client->length -= used;
    memmove(client->in, client->in + used, client->length);
    if (client->length == BUFFER) stop(client, "the server's response is too long");
}

static void act(void *client) {
    if (((Client *)client)->state == CONNECTING) upgrade(client);
    else readable(client);
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int arguments, char **argument) {
    if (arguments < 6) return fputs("usage: round_clients PORT CLIENTS AT_ONCE SECONDS ADDRESS...\n", stderr), 2;
    prepare();
    port = atoi(argument[1]), count = atoi(argument[2]);
    int at_once = atoi(argument[3]);
    address = argument + 5, addresses = arguments - 5;
    clients = calloc((size_t)count, sizeof *clients);
    connects = calloc((size_t)count, sizeof *connects), answers = calloc((size_t)count, sizeof *answers);
    poller = epoll_create1(0);
    if (count < 1 || !clients || !connects || !answers || poller < 0) {
        fputs("no clients, or no memory\n", stderr);
        return 2;
    }
    double started = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), deadline = started + atof(argument[4]);
    while (begun < at_once && begun < count) begin();
    serve(act, &answered, count, deadline);
    double seconds = now(CLOCK_MONOTONIC) - started;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    for (Client *client = clients; client < clients + count; client++) {
        client->state = CLOSING;
        send_frame(client, CLOSE, "\x03\xe8", 2);
    }
    serve(act, &ended, count, deadline);
    qsort(connects, (size_t)count, sizeof *connects, ascending);
    qsort(answers, (size_t)count, sizeof *answers, ascending);
    int middle = count / 2, late = (int)((long)count * 99 / 100);
    printf("{\"seconds\": %f, \"own_cpu\": %f, \"connect_p50\": %f, \"connect_p99\": %f, \"answer_p50\": %f, "
           "\"answer_p99\": %f}\n", seconds, cpu, connects[middle], connects[late], answers[middle], answers[late]);
    return 0;
}
