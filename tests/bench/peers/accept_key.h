/* Sec-WebSocket-Accept (RFC 6455, 4.2.2) for the programs in C: floor.c makes it, round_clients.c checks it. */
#pragma once
#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>

enum { KEY = 24, ACCEPT = 28 }; /* octets of a key and of an accept value, both base64 */

static uint32_t rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }

/* SHA-1 (FIPS 180-4) of at most 119 octets: the key and its GUID are 60. */
static void sha1(const uint8_t *text, size_t length, uint8_t digest[20]) {
    uint32_t h[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0}, w[80];
    uint8_t block[128] = {0};
    size_t blocks = (length + 8) / 64 + 1;
    memcpy(block, text, length);
    block[length] = 0x80;
    for (int i = 0; i < 8; i++) block[blocks * 64 - 1 - (size_t)i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
    for (size_t b = 0; b < blocks; b++) {
        for (int i = 0; i < 16; i++) {
            uint32_t word;
            memcpy(&word, block + b * 64 + i * 4, 4);
            w[i] = ntohl(word);
        }
        for (int i = 16; i < 80; i++) w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        uint32_t a = h[0], c = h[1], d = h[2], e = h[3], f = h[4];
        for (int i = 0; i < 80; i++) {
            uint32_t mixed, k;
            if (i < 20) mixed = (c & d) | (~c & e), k = 0x5A827999;
            else if (i < 40) mixed = c ^ d ^ e, k = 0x6ED9EBA1;
            else if (i < 60) mixed = (c & d) | (c & e) | (d & e), k = 0x8F1BBCDC;
            else mixed = c ^ d ^ e, k = 0xCA62C1D6;
            uint32_t next = rotate(a, 5) + mixed + f + k + w[i];
            f = e, e = d, d = rotate(c, 30), c = a, a = next;
        }
        h[0] += a, h[1] += c, h[2] += d, h[3] += e, h[4] += f;
    }
    for (int i = 0; i < 20; i++) digest[i] = (uint8_t)(h[i / 4] >> (24 - i % 4 * 8));
}

/* Four base64 digits for three octets. */
static void base64_digits(const uint8_t octets[3], char *to) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t three = (uint32_t)octets[0] << 16 | (uint32_t)octets[1] << 8 | octets[2];
    for (int i = 0; i < 4; i++) to[i] = digits[three >> (18 - 6 * i) & 63];
}

/* Writes the value for a key, ended by a zero. */
static void accept_key(const char *key, char text[ACCEPT + 1]) {
    uint8_t joined[60], digest[21] = {0};
    memcpy(joined, key, KEY);
    memcpy(joined + KEY, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 36);
    sha1(joined, sizeof joined, digest);
    for (int i = 0; i < 7; i++) base64_digits(digest + 3 * i, text + 4 * i);
    text[ACCEPT - 1] = '=', text[ACCEPT] = 0;
}
