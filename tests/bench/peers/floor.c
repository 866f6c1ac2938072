/* The floor: the least that a WebSocket echo on Linux needs. `floor PORT`: one thread, one epoll, no limits, no close
 * handshake of its own, no deadlines, nothing checked that an honest client never gets wrong. It shows what a connection
 * and a message cost the kernel; it is no server for anything else. Answers as servers.py does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "accept_key.h"

enum { BUFFER = 1 << 20, EVENTS = 512, DESCRIPTORS = 1 << 20 };

typedef struct {
    uint8_t *left; /* what was read and is no whole request or frame yet; NULL nearly always */
    uint32_t length;
    uint8_t open;
} Link;

static Link links[DESCRIPTORS];
static uint8_t in[BUFFER * 2], out[BUFFER * 2 + 16];
static volatile sig_atomic_t asked;

static void on_signal(int number) { (void)number, asked = 1; }

/* Octets used of the request; 0 until all of it is there. */
static size_t shake_hands(int fd, uint8_t *data, size_t length) {
    uint8_t *end = memmem(data, length, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    char *key = strcasestr((char *)data, "sec-websocket-key:"), text[ACCEPT + 1];
    if (!key) return (size_t)-1;
    for (key += 18; *key == ' '; key++) {}
    accept_key(key, text);
    int size = snprintf((char *)out, sizeof out,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n"
        "Sec-WebSocket-Protocol: fairlead.v1.msgpack\r\n\r\n", text);
    return write(fd, out, (size_t)size) == size ? (size_t)(end + 4 - data) : (size_t)-1;
}

/* Writes one unmasked frame's head and returns its length. */
static size_t frame_head(uint8_t *to, uint8_t opcode, size_t length) {
    to[0] = 0x80 | opcode;
    if (length < 126) return to[1] = (uint8_t)length, 2;
    if (length < 65536) return to[1] = 126, to[2] = (uint8_t)(length >> 8), to[3] = (uint8_t)length, 4;
    to[1] = 127;
    for (int i = 0; i < 8; i++) to[2 + i] = (uint8_t)((uint64_t)length >> (56 - 8 * i));
    return 10;
}

/* Answers all whole frames with one write. Octets used; -1 to close. */
static size_t frames(int fd, uint8_t *data, size_t length) {
    size_t used = 0, filled = 0;
    while (length - used >= 6) {
        uint8_t *frame = data + used, opcode = frame[0] & 15;
        size_t size = frame[1] & 127, head = 2;
        if (size == 126) size = (size_t)frame[2] << 8 | frame[3], head = 4;
        else if (size == 127) return (size_t)-1; /* the bench sends nothing that long */
        if (length - used < head + 4 + size) break;
        uint8_t *mask = frame + head, *payload = mask + 4;
        for (size_t i = 0; i < size; i++) payload[i] ^= mask[i & 3];
        if (opcode == 1) {
            struct timespec now;
            clock_gettime(CLOCK_REALTIME, &now);
            char text[96], *number = memchr(payload, ':', size);
            int written = snprintf(text, sizeof text, "{\"c\": %ld, \"ts\": %ld.%06ld}",
                                   number ? strtol(number + 1, NULL, 10) : 0, now.tv_sec, now.tv_nsec / 1000);
            filled += frame_head(out + filled, 1, (size_t)written);
            memcpy(out + filled, text, (size_t)written), filled += (size_t)written;
        } else {
            filled += frame_head(out + filled, opcode, size);
            memcpy(out + filled, payload, size), filled += size;
        }
        used += head + 4 + size;
        if (opcode == 8) {
            if (write(fd, out, filled) < 0) {}
            return (size_t)-1;
        }
    }
    return filled && write(fd, out, filled) != (ssize_t)filled ? (size_t)-1 : used;
}

static void readable(int fd) {
    Link *link = &links[fd];
    size_t length = link->length;
    if (link->left) memcpy(in, link->left, length), free(link->left), link->left = NULL, link->length = 0;
    ssize_t got = read(fd, in + length, BUFFER - length);
    if (got > 0) {
        length += (size_t)got;
        size_t used = link->open ? frames(fd, in, length) : shake_hands(fd, in, length);
        if (used != (size_t)-1) {
            if (used) link->open = 1;
            if (used < length) {
                link->length = (uint32_t)(length - used);
                link->left = malloc(link->length);
                memcpy(link->left, in + used, link->length);
            }
            return;
        }
    }
    link->open = 0;
    close(fd);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1, poller = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 2048)) return 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int number = epoll_wait(poller, ready, EVENTS, -1);
        if (asked) { /* there is no garbage: 0 ms */
            FILE *report = fopen(getenv("BENCH_GC"), "w");
            if (report) fputs("0.0", report), fclose(report);
            asked = 0;
        }
        for (int i = 0; i < number; i++) {
            if (ready[i].data.fd != listener) {
                readable(ready[i].data.fd);
                continue;
            }
            for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                if (fd >= DESCRIPTORS) { close(fd); continue; }
                event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
            }
        }
    }
}
