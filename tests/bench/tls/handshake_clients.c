/* Clients of TLS, some at a time: each connects, shakes hands, asks for a link, reads the head of the answer and closes.
 * `handshake_clients PORT CLIENTS AT_ONCE SECONDS CERTIFICATE full|resumed` prints the duration and its own CPU time as
 * one line of JSON, in seconds; after SECONDS it gives up. Each client verifies the certificate, and that a session was
 * resumed when it should be and only then. Called by clients.py. */
#define _GNU_SOURCE
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "../clients.h"

enum { BUFFER = 4096 };
enum State { CONNECTING, SHAKING, ASKED };
static const char REQUEST[] =
    "GET /v1/link HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Protocol: fairlead.v1.msgpack\r\n\r\n";

typedef struct {
    int fd;
    long number;
    enum State state;
    SSL *tls;
    size_t length;
    char head[BUFFER + 1];
} Client;

static SSL_CTX *context;
static SSL_SESSION *session; /* that all resume */
static int count, port, begun, done, resuming; /* resuming: or each has a handshake of its own */

static int keep_session(SSL *tls, SSL_SESSION *given) {
    (void)tls;
    SSL_SESSION_free(session);
    session = given;
    return 1; /* it is ours now */
}

static void begin(Client *client) {
    client->number = begun++;
    client->fd = begin_connection(client->number, port, NULL);
    client->state = CONNECTING, client->length = 0;
    watch(client->number, client, client->fd, EPOLL_CTL_ADD, EPOLLOUT);
}

/* Whether the call of OpenSSL that returned `result` has to wait; ends the program if it has failed. */
static int waits(Client *client, int result, const char *what) {
    int error = SSL_get_error(client->tls, result);
    if (error == SSL_ERROR_WANT_READ) return 1;
    if (error == SSL_ERROR_ZERO_RETURN) fail(client->number, "the server closed before it answered");
    ERR_print_errors_fp(stderr);
    fail(client->number, what);
    return 0;
}

static void connected(Client *client) {
    check_connection(client->number, client->fd);
    watch(client->number, client, client->fd, EPOLL_CTL_MOD, EPOLLIN);
    client->tls = SSL_new(context);
    if (!client->tls || !SSL_set_fd(client->tls, client->fd) || !SSL_set_tlsext_host_name(client->tls, "localhost") ||
        !SSL_set1_host(client->tls, "localhost") || (resuming && !SSL_set_session(client->tls, session)))
        fail(client->number, "OpenSSL has no connection");
    client->state = SHAKING;
}

static void answered(Client *client) {
    if (strncmp(client->head, "HTTP/1.1 101 ", 13) && strncmp(client->head, "HTTP/1.1 200 ", 13))
        fail(client->number, client->head);
    SSL_set_shutdown(client->tls, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN); /* or its session counts as broken */
    SSL_free(client->tls);
    close(client->fd);
    done++;
    if (begun < count) begin(client);
}

static void act(void *which) {
    Client *client = which;
    int result;
    ERR_clear_error(); /* SSL_get_error looks at what an earlier call may have left */
    if (client->state == CONNECTING) connected(client);
    if (client->state == SHAKING) {
        if ((result = SSL_connect(client->tls)) != 1 && waits(client, result, "the handshake failed")) return;
        if (SSL_session_reused(client->tls) != resuming) fail(client->number, "the wrong kind of handshake");
        client->state = ASKED;
        if ((result = SSL_write(client->tls, REQUEST, sizeof REQUEST - 1)) <= 0)
            waits(client, result, "writing the request failed");
    }
    while ((result = SSL_read(client->tls, client->head + client->length, (int)(BUFFER - client->length))) > 0) {
        client->length += (size_t)result, client->head[client->length] = 0;
        if (strstr(client->head, "\r\n\r\n")) {
            answered(client);
            return;
        }
        if (client->length == BUFFER) fail(client->number, "the server's response is too long");
    }
    waits(client, result, "reading the answer failed");
}

static void play(Client *clients, int goal, int at_once, double deadline) {
    begun = done = 0, count = goal;
    for (int i = 0; i < at_once && i < goal; i++) begin(&clients[i]);
    serve(act, &done, goal, deadline);
}

int main(int arguments, char **argument) {
    if (arguments != 7) {
        fputs("usage: handshake_clients PORT CLIENTS AT_ONCE SECONDS CERTIFICATE full|resumed\n", stderr);
        return 2;
    }
    prepare();
    port = atoi(argument[1]);
    int at_once = atoi(argument[3]);
    Client *clients = calloc((size_t)at_once, sizeof *clients);
    context = SSL_CTX_new(TLS_client_method());
    poller = epoll_create1(0);
    if (!clients || !context || poller < 0) return fputs("no memory\n", stderr), 2;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    if (!SSL_CTX_load_verify_locations(context, argument[5], NULL)) fail(0, "the certificate cannot be read");
    double deadline = now(CLOCK_MONOTONIC) + atof(argument[4]);
    if (!strcmp(argument[6], "resumed")) {
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(context, keep_session);
        play(clients, 1, 1, deadline);
        if (!session || !SSL_SESSION_has_ticket(session)) fail(0, "the server gives no session ticket");
        resuming = 1;
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* otherwise OpenSSL uses a ticket only once */
    }
    double started = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    play(clients, atoi(argument[2]), at_once, deadline);
    printf("{\"seconds\": %f, \"own_cpu\": %f}\n", now(CLOCK_MONOTONIC) - started, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    return 0;
}
