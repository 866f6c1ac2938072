/* The clients of one round: each connects, sends {"c": n}, waits for {"c": n, "ts": ...}, and stays until all of them
 * have their answer; then all close. `round_clients PORT CLIENTS AT_ONCE SECONDS ADDRESS...` prints the figures as one
 * line of JSON, times in seconds; after SECONDS it gives up. Every answer is checked, so a server that mixes its
 * clients up has no figure. It is in C because clients in Python took a whole core for what the fastest servers do on
 * another: a round lasted as long as its clients worked. Called by rounds.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../peers/accept_key.h"

enum { EVENTS = 512, BUFFER = 1024, LONGEST = 125, MASK = 4 }; /* no frame of a round is longer than a short one */
enum { TEXT = 1, CLOSE = 8 }; /* opcodes */
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
static int count, at_once, begun, answered, ended, poller, addresses;
static char **address;
static struct sockaddr_in server;
static double *connects, *answers;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fail(const Client *client, const char *what) {
    fprintf(stderr, "client %td of %d: %s%s%s\n", client - clients, count, what, errno ? ": " : "",
            errno ? strerror(errno) : "");
    exit(1);
}

static void watch(Client *client, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = client};
    if (epoll_ctl(poller, operation, client->fd, &event)) fail(client, "epoll_ctl");
}

static void begin(void) {
    Client *client = &clients[begun];
    struct sockaddr_in own = {.sin_family = AF_INET};
    int yes = 1;
    inet_pton(AF_INET, address[begun++ % addresses], &own.sin_addr);
    client->began = now(CLOCK_MONOTONIC);
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (client->fd < 0) fail(client, "socket");
    setsockopt(client->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    if (bind(client->fd, (struct sockaddr *)&own, sizeof own)) fail(client, "bind");
    if (connect(client->fd, (struct sockaddr *)&server, sizeof server) && errno != EINPROGRESS) fail(client, "connect");
    watch(client, EPOLL_CTL_ADD, EPOLLOUT);
}

static void send_all(Client *client, const void *data, size_t length) {
    if (write(client->fd, data, length) != (ssize_t)length) fail(client, "write");
}

static void send_frame(Client *client, uint8_t opcode, const char *payload, size_t length) {
    uint8_t frame[2 + MASK + LONGEST];
    frame[0] = 0x80 | opcode, frame[1] = 0x80 | (uint8_t)length;
    if (getrandom(frame + 2, MASK, 0) != MASK) fail(client, "getrandom");
    for (size_t i = 0; i < length; i++) frame[2 + MASK + i] = (uint8_t)payload[i] ^ frame[2 + (i & 3)];
    send_all(client, frame, 2 + MASK + length);
}

static void upgrade(Client *client) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t nonce[16];
    char request[512];
    socklen_t size = sizeof errno;
    getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &errno, &size);
    if (errno) fail(client, "connect");
    if (getrandom(nonce, sizeof nonce, 0) != sizeof nonce) fail(client, "getrandom");
    for (int i = 0; i < 5; i++) {
        uint32_t three = (uint32_t)nonce[i * 3] << 16 | (uint32_t)nonce[i * 3 + 1] << 8 | nonce[i * 3 + 2];
        for (int j = 0; j < 4; j++) client->key[i * 4 + j] = digits[three >> (18 - 6 * j) & 63];
    }
    client->key[20] = digits[nonce[15] >> 2], client->key[21] = digits[(nonce[15] & 3) << 4];
    client->key[22] = client->key[23] = '=';
    int length = snprintf(request, sizeof request,
        "GET /v1/link HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: fairlead.v1.msgpack\r\n\r\n",
        ntohs(server.sin_port), client->key);
    client->state = UPGRADING;
    watch(client, EPOLL_CTL_MOD, EPOLLIN);
    send_all(client, request, (size_t)length);
}

/* Octets of the response; 0 until all of it is there. */
static size_t response(Client *client) {
    uint8_t *end = memmem(client->in, client->length, "\r\n\r\n", 4);
    if (!end) return 0;
    char expected[ACCEPT + 1], question[LONGEST];
    *end = 0; /* of the last header, so that the functions for text stop there */
    char *text = (char *)client->in, *value = strcasestr(text, "\r\nsec-websocket-accept:");
    accept_key(client->key, expected);
    if (strncmp(text, "HTTP/1.1 101 ", 13)) fail(client, text);
    if (value) value += 23, value += strspn(value, " ");
    if (!value || strncmp(value, expected, ACCEPT)) fail(client, "Sec-WebSocket-Accept does not belong to the key");
    client->state = ASKING;
    client->opened = now(CLOCK_MONOTONIC);
    int length = snprintf(question, sizeof question, "{\"c\": %td}", client - clients);
    send_frame(client, TEXT, question, (size_t)length);
    return (size_t)(end + 4 - client->in);
}

static double member(const char *json, const char *name) {
    const char *value = strstr(json, name);
    return value ? strtod(value + strlen(name) + strspn(value + strlen(name), " :"), NULL) : -1;
}

/* One whole frame of the server. */
static void frame(Client *client, uint8_t opcode, const uint8_t *payload, size_t length) {
    char text[LONGEST + 1];
    memcpy(text, payload, length), text[length] = 0;
    if (client->state == ASKING && opcode == TEXT) {
        if (member(text, "\"c\"") != (double)(client - clients) || member(text, "\"ts\"") < 1e9) fail(client, text);
        client->state = ANSWERED;
        connects[answered] = client->opened - client->began;
        answers[answered++] = now(CLOCK_MONOTONIC) - client->opened;
        if (begun < count) begin();
    } else if (client->state == CLOSING && opcode == CLOSE) {
        client->state = CLOSED; /* the server closes the connection (RFC 6455, 7.1.1) */
    } else {
        fail(client, "the server sent a frame that nobody asked for");
    }
}

static void readable(Client *client) {
    ssize_t got = read(client->fd, client->in + client->length, BUFFER - client->length);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (client->state != CLOSED) fail(client, got ? "read" : "the server closed the connection");
        close(client->fd), ended++;
        return;
    }
    client->length += (size_t)got;
    size_t used = client->state == UPGRADING ? response(client) : 0;
    while (client->state >= ASKING && client->length - used >= 2) {
        uint8_t *head = client->in + used;
        size_t length = head[1];
        if (head[0] >> 4 != 8 || length > LONGEST) fail(client, "the server sent a masked, long or partial frame");
        if (client->length - used < 2 + length) break;
        frame(client, head[0] & 15, head + 2, length);
        used += 2 + length;
    }
    client->length -= used;
    memmove(client->in, client->in + used, client->length);
    if (client->length == BUFFER) fail(client, "the server's response is too long");
}

/* Until `*done` has come to `goal`. */
static void serve(const int *done, int goal, double deadline) {
    struct epoll_event ready[EVENTS];
    while (*done < goal) {
        int left = (int)((deadline - now(CLOCK_MONOTONIC)) * 1000);
        int number = left > 0 ? epoll_wait(poller, ready, EVENTS, left) : 0;
        if (number == 0) {
            fprintf(stderr, "too slow: %d of %d clients have an answer, %d have closed\n", answered, count, ended);
            exit(1);
        }
        for (int i = 0; i < number; i++) {
            Client *client = ready[i].data.ptr;
            errno = 0;
            if (client->state == CONNECTING) upgrade(client);
            else readable(client);
        }
    }
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int arguments, char **argument) {
    if (arguments < 6) return 2;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argument[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    count = atoi(argument[2]), at_once = atoi(argument[3]);
    address = argument + 5, addresses = arguments - 5;
    clients = calloc((size_t)count, sizeof *clients);
    connects = calloc((size_t)count, sizeof *connects), answers = calloc((size_t)count, sizeof *answers);
    poller = epoll_create1(0);
    if (count < 1 || !clients || !connects || !answers || poller < 0) return 2;
    double started = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), deadline = started + atof(argument[4]);
    while (begun < at_once && begun < count) begin();
    serve(&answered, count, deadline);
    double seconds = now(CLOCK_MONOTONIC) - started;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    for (Client *client = clients; client < clients + count; client++) {
        client->state = CLOSING;
        send_frame(client, CLOSE, "\x03\xe8", 2);
    }
    serve(&ended, count, deadline);
    qsort(connects, (size_t)count, sizeof *connects, ascending);
    qsort(answers, (size_t)count, sizeof *answers, ascending);
    int middle = count / 2, late = (int)((long)count * 99 / 100);
    printf("{\"seconds\": %f, \"own_cpu\": %f, \"connect_p50\": %f, \"connect_p99\": %f, \"answer_p50\": %f, "
           "\"answer_p99\": %f}\n", seconds, cpu, connects[middle], connects[late], answers[middle], answers[late]);
    return 0;
}
