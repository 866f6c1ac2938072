/* What the load generators in C share: links/round_clients.c and tls/handshake_clients.c. Each is one thread with one
 * epoll, fails at the first thing that an honest server does not do, and ends after a deadline. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
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

enum { EVENTS = 512 };

static int poller;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* `which` client, from 0 on. */
static void fail(long which, const char *what) {
    fprintf(stderr, "client %ld: %s%s%s\n", which, what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

/* A write to a closed connection fails with a message, and each client may have a descriptor. */
static void prepare(void) {
    struct rlimit files;
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
}

static void watch(long which, void *client, int fd, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = client};
    if (epoll_ctl(poller, operation, fd, &event)) fail(which, "epoll_ctl");
}

/* A socket that begins to connect to the port of the loopback, from `source` if that is not NULL. */
static int begin_connection(long which, int port, const char *source) {
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in own = {.sin_family = AF_INET};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    if (fd < 0) fail(which, "socket");
    if (source) { /* the kernel takes a port when it knows both ends */
        inet_pton(AF_INET, source, &own.sin_addr);
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&own, sizeof own)) fail(which, "bind");
    }
    if (connect(fd, (struct sockaddr *)&server, sizeof server) && errno != EINPROGRESS) fail(which, "connect");
    errno = 0; /* it was EINPROGRESS, which is no failure */
    return fd;
}

/* Fails if it has not succeeded. */
static void check_connection(long which, int fd) {
    socklen_t size = sizeof errno;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &errno, &size);
    if (errno) fail(which, "connect");
}

/* Gives each ready client to `act` until `*done` has come to `goal`. */
static void serve(void act(void *client), const int *done, int goal, double deadline) {
    struct epoll_event ready[EVENTS];
    while (*done < goal) {
        int left = (int)((deadline - now(CLOCK_MONOTONIC)) * 1000);
        int number = left > 0 ? epoll_wait(poller, ready, EVENTS, left) : 0;
        if (number == 0) {
            fprintf(stderr, "too slow: %d of %d clients have come as far as this\n", *done, goal);
            exit(1);
        }
        for (int i = 0; i < number; i++) errno = 0, act(ready[i].data.ptr);
    }
}
